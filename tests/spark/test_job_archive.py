"""`topics archive`: what the lake has, what it says was lost, and what is deleted once it has it."""

import json
import os
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from xxhash import xxh3_64_hexdigest

import topics.spark
from tests.spark.commands import Command
from tests.spark.rig import Rig, gaps, said_by, seqs
from topics.client import NewRecord
from topics.errors import ConfigurationError, InvalidRequest
from topics.reader import Lost
from topics.spark.jobs import archiving
from topics.spark.jobs.archiving import Archived, Plan, archive
from topics.spark.servers.connection import Connection
from topics.spark.tables import iceberg, layout
from topics.spark.tables.lake import Commit, Lake, Trimmed
from topics.testing.server import ServerProcess

Archive = Callable[..., Archived]


@pytest.fixture
def run(rig: Rig, tmp_path: Path) -> Archive:
    """Archive once, into the lake of the test."""

    def run(selection: str, **given: Any) -> Archived:
        plan = Plan(selection=selection, server=Connection(url=rig.url), **{"is_once": True, **given})
        return archive(rig.spark, plan, str(tmp_path / "lake"))

    return run


def lake(tmp_path: Path) -> Lake:
    return Lake.load(str(tmp_path / "lake"))


def epoch(rig: Rig, topic: str) -> int:
    return rig.client.state(topic).epoch


def rows(tmp_path: Path, topic: str) -> list[dict[str, Any]]:
    """The rows that the manifest names, in the order of the files."""
    found = lake(tmp_path)
    files = [file for (name, _), entries in found.entries.items() if name == topic for e in entries for file in e.files]
    return [row for file in files for row in pq.read_table(tmp_path / "lake" / file.path).to_pylist()]


def odd(count: int, start: int = 1) -> list[NewRecord]:
    """Records of which each part matters."""
    return [
        NewRecord(
            {"n": n, "f": n / 4, "s": 'é"\n'}, tag=f"t.{n % 3}", node=f"n{n % 2}", meta={"m": n} if n % 5 else None
        )
        for n in range(start, start + count)
    ]


def parts(found: Any) -> list[tuple[Any, ...]]:
    return [
        (row["seq"], row["data"], row["meta"], row["tag"], row["node"], int(row["ts"].timestamp() * 1000))
        for row in found
    ]


def live(rig: Rig, topic: str) -> list[tuple[Any, ...]]:
    with rig.client.export(topic) as export:
        return [
            (r["seq"], r["data"], r["meta"], r["tag"], r["node"], int(r["ts"].timestamp() * 1000))
            for batch in export
            for r in batch.to_pylist()
        ]


def test_the_lake_has_every_record_byte_for_byte(rig: Rig, run: Archive, tmp_path: Path) -> None:
    one, other = rig.topic("a"), rig.topic("b")
    rig.client.append(one, odd(1000))
    rig.client.append(other, odd(10))
    done = run(f"{rig.prefix}[.].*", batch_records=400)
    assert (done.rows, done.lost, done.deleted, done.batches) == (1010, 0, 0, 3)
    for topic in (one, other):
        assert parts(rows(tmp_path, topic)) == live(rig, topic)
    rig.client.append(one, odd(5))
    assert run(f"{rig.prefix}[.].*").rows == 5 and run(f"{rig.prefix}[.].*").batches == 0
    assert lake(tmp_path).covered(one, epoch(rig, one)) == [(1, 1005)]
    everything = rig.spark.read.parquet(str(tmp_path / "lake" / "records"))
    assert everything.groupBy("topic").count().orderBy("topic").collect() == [(one, 1005), (other, 10)]


def test_what_was_lost_or_deleted_before_is_accounted_for(rig: Rig, run: Archive, tmp_path: Path) -> None:
    """TM2, DL1"""
    topic = rig.topic(cap_records=100)
    rig.append(topic, range(1, 301))
    rig.client.delete_records(topic, before_seq=251)
    rig.append(topic, range(301, 321))
    done = run(topic)
    assert (done.rows, done.lost + done.deleted) == (70, 250)
    (entry,) = lake(tmp_path).entries[(topic, epoch(rig, topic))]
    lost = [
        gap for batch in (tmp_path / "lake" / "gaps").rglob("*.parquet") for gap in pq.read_table(batch).to_pylist()
    ]
    assert [(gap["topic"], gap["gap_from"], gap["gap_to"], gap["reason"]) for gap in lost] == [
        (topic, *gap) for gap in entry.gaps
    ]
    assert sum(gap.last - gap.first + 1 for gap in entry.gaps) == done.lost
    assert sum(file.rows for file in entry.files) + done.lost + done.deleted == 320


def test_a_cap_takes_what_the_lake_has_and_reading_goes_on(rig: Rig, run: Archive, tmp_path: Path) -> None:
    """Archived, then evicted; evicted, then archived; and live: each seq is told of once. TM2"""
    topic = rig.topic()
    rig.client.append(topic, odd(1000))
    first = live(rig, topic)
    run(topic)
    rig.client.put_topic(topic, cap_records=300)
    rig.client.append(topic, odd(1000, 1001))
    second = live(rig, topic)
    done = run(topic)
    assert (done.rows, done.lost) == (300, 700)
    rig.client.append(topic, odd(400, 2001))
    found = rig.load(topic=topic, archive=str(tmp_path / "lake"), startingSeq="0", onGap="record").collect()
    assert gaps(found) == [(1001, 1700, "cap"), (2001, 2100, "cap")]
    records = sorted((row.asDict() for row in found if row.kind == "record"), key=lambda row: row["seq"])
    assert parts(records) == first + second + live(rig, topic)
    assert lake(tmp_path).entries[(topic, epoch(rig, topic))][1].gaps == [Lost(1001, 1700, "cap")]


def test_what_age_took_is_read_from_the_lake(rig: Rig, run: Archive, tmp_path: Path) -> None:
    """TM2"""
    topic = rig.topic()
    rig.client.append(topic, odd(100))
    before = live(rig, topic)
    run(topic)
    rig.client.put_topic(topic, ttl_ms=1)
    waiting = threading.Event()
    while rig.client.state(topic).count:
        waiting.wait(0.01)
    rig.client.put_topic(topic)
    rig.client.append(topic, odd(10, 101))
    found = rig.load(topic=topic, archive=str(tmp_path / "lake")).collect()
    assert parts(sorted((row.asDict() for row in found), key=lambda row: row["seq"])) == before + live(rig, topic)


def test_trimming_deletes_what_the_lake_has_and_keeps_the_newest(rig: Rig, run: Archive, tmp_path: Path) -> None:
    """DL1"""
    topic = rig.topic(count=100)
    assert run(topic, trims=True, keep_records=30).trimmed == 70
    assert [record.seq for record in rig.client.diff(topic).records] == list(range(71, 101))
    found = lake(tmp_path)
    assert found.trimmed_through(topic, epoch(rig, topic)) == 70
    assert seqs(rig.load(topic=topic, archive=str(tmp_path / "lake")).collect()) == list(range(1, 101))
    rig.append(topic, range(101, 111))
    assert run(topic, trims=True, keep_records=30).trimmed == 10
    assert seqs(rig.load(topic=topic, archive=str(tmp_path / "lake"), startingSeq="0").collect()) == list(range(1, 111))


def test_nothing_is_trimmed_before_the_lake_is_durable(
    rig: Rig, run: Archive, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The order in which it happens: files and directories synced, the commit, the note of the trim, the delete."""
    from topics.client import Client
    from topics.spark.tables import outputs

    topic, steps = rig.topic(count=50), []
    sync, commit, delete = outputs.sync, Lake.commit, Client.delete_records

    def noted(step: Callable[[Any], str], call: Callable[..., Any]) -> Callable[..., Any]:
        def run(*given: Any, **named: Any) -> Any:
            answer = call(*given, **named)
            steps.append(step(given))
            return answer

        return run

    def kind(given: Any) -> str:
        return "sync file" if given[0].endswith(".parquet") else "sync directory"

    monkeypatch.setattr(outputs, "sync", noted(kind, sync))
    monkeypatch.setattr(Lake, "commit", noted(lambda given: "trim" if given[1].trimmed else "commit", commit))
    monkeypatch.setattr(Client, "delete_records", noted(lambda _: "delete", delete))
    run(topic, trims=True)
    order = list(dict.fromkeys(steps))
    assert order == ["sync file", "sync directory", "commit", "trim", "delete"]
    assert rig.client.state(topic).count == 0


def test_a_trim_that_was_only_noted_is_done_by_the_next_run(rig: Rig, run: Archive, tmp_path: Path) -> None:
    topic = rig.topic(count=50)
    run(topic)
    lake(tmp_path).commit(Commit(trimmed=[Trimmed(topic, epoch(rig, topic), 50)]))
    assert run(topic, trims=True).trimmed == 50
    assert seqs(rig.load(topic=topic, archive=str(tmp_path / "lake")).collect()) == list(range(1, 51))


def test_a_queue_is_archived_and_not_trimmed(rig: Rig, run: Archive) -> None:
    topic = rig.topic(count=5, type="queue")
    assert run(topic).rows == 5
    with pytest.raises(InvalidRequest, match="is a queue: its jobs are not trimmed"):
        run(topic, trims=True)
    assert rig.client.state(topic).count == 5


def test_a_topic_created_anew_is_another_one_in_the_lake(rig: Rig, run: Archive, tmp_path: Path) -> None:
    """TM11"""
    topic = rig.topic(count=10)
    run(topic)
    before = epoch(rig, topic)
    rig.client.delete_topic(topic)
    rig.topic(count=4)
    assert run(topic).rows == 4
    found = lake(tmp_path)
    assert found.covered(topic, before) == [(1, 10)]
    assert found.covered(topic, epoch(rig, topic)) == [(1, 4)]


def test_a_batch_whose_topic_is_created_anew_meanwhile_is_not_committed(
    rig: Rig, run: Archive, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """TM11"""
    topic, pattern = rig.topic(count=10), f"{rig.prefix}[.].*"
    old, write = epoch(rig, topic), archiving.Archive._write

    def recreate_then_write(self: Any, moves: Any, directory: str) -> Any:
        if epoch(rig, topic) == old:
            rig.client.delete_topic(topic)
            rig.topic(count=20)
        return write(self, moves, directory)

    monkeypatch.setattr(archiving.Archive, "_write", recreate_then_write)
    assert run(pattern).rows == 0, "once is up to the heads of the topics that there were"
    assert run(pattern).rows == 20
    assert list(lake(tmp_path).entries) == [(topic, epoch(rig, topic))]


def test_records_of_a_topic_created_anew_are_not_trimmed_for_those_before(
    rig: Rig, run: Archive, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """TP16, DL1: between the last look at the topic and the delete it becomes another one."""
    topic, commit = rig.topic(count=10), Lake.commit
    old = epoch(rig, topic)

    def recreate_then_commit(self: Lake, given: Commit) -> bool:
        if given.trimmed:
            rig.client.delete_topic(topic)
            rig.topic(count=20)
        return commit(self, given)

    monkeypatch.setattr(Lake, "commit", recreate_then_commit)
    done = run(topic, trims=True)
    assert (done.rows, done.trimmed) == (10, 0)
    assert rig.client.state(topic).count == 20 and lake(tmp_path).trimmed_through(topic, old) == 10


def test_a_server_that_was_set_up_anew_is_not_taken_for_the_one_that_the_lake_is_of(
    rig: Rig, run: Archive, tmp_path: Path
) -> None:
    """Its epochs and seqs are alike. Nothing is trimmed that was not archived, and no row of the one is the other's."""
    root = str(tmp_path / "lake")
    with ServerProcess(tmp_path / "before") as server, Rig(rig.spark, server) as before:
        before.append(before.topic(), range(30))
        archive(rig.spark, Plan(selection="rig.t", server=Connection(url=before.url), is_once=True), root)
        assert topics.spark.table(rig.spark, "rig.t", lake=root, url=before.url).count() == 30
    for count in (20, 50):
        with ServerProcess(tmp_path / f"after{count}") as server, Rig(rig.spark, server) as after:
            after.append(after.topic(), range(1000, 1000 + count))
            plan = Plan(selection="rig.t", server=Connection(url=after.url), is_once=True, trims=True)
            with pytest.raises(InvalidRequest, match="from an earlier set-up of its server"):
                archive(rig.spark, plan, root)
            assert after.values("rig.t") == [*range(1000, 1000 + count)], "nothing was trimmed"
            with pytest.raises(InvalidRequest, match="has another log under the name of topic"):
                topics.spark.table(rig.spark, "rig.t", lake=root, url=after.url)
            assert "has another log under the name" in said_by(
                lambda after=after: after.load(topic="rig.t", archive=root).collect()  # type: ignore[misc]
            )


def test_the_manifest_has_the_checksum_of_every_file(rig: Rig, run: Archive, tmp_path: Path) -> None:
    topic = rig.topic(count=50)
    run(topic, batch_records=20)
    files = [file for entry in lake(tmp_path).entries[topic, epoch(rig, topic)] for file in entry.files]
    images = [(tmp_path / "lake" / file.path).read_bytes() for file in files]
    assert [file.xxh3 for file in files] == [xxh3_64_hexdigest(image) for image in images]
    assert sum(file.rows for file in files) == 50


def test_it_goes_on_until_it_is_ended(rig: Rig, tmp_path: Path) -> None:
    topic, is_over = rig.topic(count=5), threading.Event()
    plan = Plan(selection=topic, server=Connection(url=rig.url), every_ms=10)
    done: list[Archived] = []
    root = str(tmp_path / "lake")
    thread = threading.Thread(target=lambda: done.append(archive(rig.spark, plan, root, is_over=is_over)))
    thread.start()
    try:
        waiting = threading.Event()
        for count in (5, 8):
            while Lake.load(root, must_exist=False).covered(topic, epoch(rig, topic)) != [(1, count)]:
                assert thread.is_alive()
                waiting.wait(0.02)
            if count == 5:
                rig.append(topic, range(3))
        with pytest.raises(InvalidRequest, match="another job writes to"):
            archive(rig.spark, plan, root)
    finally:
        is_over.set()
        thread.join()
    assert done[0].rows == 8


def test_an_iceberg_table_follows_the_lake(rig: Rig, run: Archive, tmp_path: Path) -> None:
    """Also where a run was killed between the commit and the table."""
    from pyiceberg.catalog import load_catalog

    topic = rig.topic(count=10)
    run(topic)
    rig.append(topic, range(11, 16))
    run(topic, iceberg="topics.records")
    run(topic, iceberg="topics.records")
    place = tmp_path / "lake" / "iceberg"
    catalog = load_catalog("topics", type="sql", uri=f"sqlite:///{place}/catalog.db", warehouse=f"file://{place}")
    table = catalog.load_table("topics.records")
    found = table.scan().to_arrow()
    assert sorted(found["seq"].to_pylist()) == list(range(1, 16))
    assert found.schema.names == list(archiving.COLUMNS)
    assert table.scan(row_filter="seq > 12").to_arrow()["data"].to_pylist() == ["13", "14", "15"]


def test_without_pyiceberg_the_message_says_what_to_install(
    rig: Rig, run: Archive, monkeypatch: pytest.MonkeyPatch
) -> None:
    import sys

    monkeypatch.setitem(sys.modules, "pyiceberg.catalog", None)
    with pytest.raises(ConfigurationError, match=r"pip install 'topics-engine\[iceberg\]'"):
        run(rig.topic(count=1), iceberg="topics.records")
    assert iceberg.MISSING


def test_it_says_in_a_file_how_it_is(rig: Rig, tmp_path: Path) -> None:
    """While it works, while the server is away, when that is back, and at the end."""
    health, is_over, waiting = tmp_path / "health.json", threading.Event(), threading.Event()
    root = str(tmp_path / "lake")
    with ServerProcess(tmp_path / "server") as server, Rig(rig.spark, server) as there:
        topic = there.topic(count=5)
        connection = Connection(url=there.url, retries=0)
        plan = Plan(selection=topic, server=connection, every_ms=10, health=str(health))
        thread = threading.Thread(target=lambda: archive(rig.spark, plan, root, is_over=is_over))
        thread.start()

        def wait_for(**expected: Any) -> None:
            while not health.exists() or {key: said(health)[key] for key in expected} != expected:
                assert thread.is_alive(), "it ended"
                waiting.wait(0.01)

        try:
            wait_for(ok=True, rows=5, lag=0, error=None)
            server.environ["TOPICS_PORT"] = str(server.address[1])
            server.kill()
            wait_for(ok=False, rows=5)
            assert "connect" in said(health)["error"]
            server.start()
            there.append(topic, range(3))
            wait_for(ok=True, rows=8, lag=0, error=None)
        finally:
            is_over.set()
            thread.join()
    assert said(health)["ended"] and said(health)["ok"] and said(health)["pid"] == os.getpid()


def said(health: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(health.read_bytes())
    return found


def test_a_health_file_that_cannot_be_written_is_named(run: Archive, rig: Rig, tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match=r"--health is .*/none/health\.json: it cannot be written"):
        run(rig.topic(count=1), health=str(tmp_path / "none" / "health.json"))


def test_small_files_are_merged_and_every_reader_goes_on(rig: Rig, run: Archive, tmp_path: Path) -> None:
    """The option archive, the table, and a frame that began with the files before the merge."""
    topic = rig.topic()
    for n in range(layout.FILES_MIN):
        rig.client.append(topic, odd(20, 20 * n + 1))
        run(topic)
    before = live(rig, topic)
    root = str(tmp_path / "lake")
    begun = topics.spark.table(rig.spark, topic, lake=root)
    assert run(topic, compacts=True).merged == layout.FILES_MIN
    assert len(lake(tmp_path).paths(topic)) == 1 and parts(rows(tmp_path, topic)) == before
    rig.client.put_topic(topic, cap_records=1)
    rig.client.append(topic, odd(1, 20 * layout.FILES_MIN + 1))
    frames = [begun, rig.load(topic=topic, archive=root), topics.spark.table(rig.spark, topic, lake=root, url=rig.url)]
    for frame in frames:
        found = sorted((row.asDict() for row in frame.collect()), key=lambda row: row["seq"])
        assert parts(found)[: len(before)] == before
    with pytest.raises(InvalidRequest, match="--compact does not go with --iceberg"):
        run(topic, compacts=True, iceberg="topics.records")


def test_an_iceberg_table_whose_files_were_merged_is_not_doubled(rig: Rig, run: Archive) -> None:
    topic = rig.topic()
    for _ in range(layout.FILES_MIN):
        rig.client.append(topic, odd(1))
        run(topic, iceberg="topics.records")
    run(topic, compacts=True)
    with pytest.raises(InvalidRequest, match="were merged by archive --compact"):
        run(topic, iceberg="topics.records")


def test_killed_in_the_middle_of_a_file_nothing_of_it_counts(rig: Rig, run: Archive, tmp_path: Path) -> None:
    """The file lies there, unfinished; each record is in the lake once, in all its parts."""
    topic, root = rig.topic(), tmp_path / "lake"
    for start in range(1, 100_001, 5000):
        rig.client.append(topic, odd(5000, start))
    command = Command(tmp_path / "process", "archive", topic, str(root), "--once", url=rig.url)
    command.kill_once(lambda: any(root.glob("records/*/*/_temporary/**/*.parquet")))
    assert list(root.glob("records/*/*/_temporary/**/*.parquet")), "it was killed within a file"
    with pytest.raises(InvalidRequest, match="is not a lake"):
        topics.spark.table(rig.spark, topic, lake=str(root), url=rig.url)
    assert run(topic).rows == 100_000
    assert parts(rows(tmp_path, topic)) == live(rig, topic)
    found = topics.spark.table(rig.spark, topic, lake=str(root), url=rig.url)
    assert (found.count(), found.select("seq").distinct().count()) == (100_000, 100_000)


def test_asked_to_end_it_finishes_its_batch(rig: Rig, tmp_path: Path) -> None:
    """As a service: SIGTERM to the process, exit code 0, and a result."""
    topic, health = rig.topic(count=50), tmp_path / "health.json"
    arguments = ("archive", topic, str(tmp_path / "lake"), "--follow", "--every-ms", "10", "--health", str(health))
    command = Command(tmp_path / "process", *arguments, url=rig.url)
    assert command.end_once(lambda: health.exists() and said(health).get("rows") == 50) == 0, command.errors
    assert command.summary["rows"] == 50 and said(health)["ended"]


@pytest.mark.full
def test_killed_and_run_again_the_lake_is_the_same(rig: Rig, run: Archive, tmp_path: Path) -> None:
    topic, count, manifest = rig.topic(), 100_000, tmp_path / "lake" / "manifest"
    rig.append(topic, ["x" * 100] * count)
    arguments = ("archive", topic, str(tmp_path / "lake"), "--once", "--batch-records", "10000")
    command = Command(tmp_path / "process", *arguments, url=rig.url)
    command.kill_once(lambda: len(list(manifest.glob("*.json"))) >= 2)
    before = sum(entry.last - entry.first + 1 for entry in lake(tmp_path).entries[(topic, epoch(rig, topic))])
    assert 0 < before < count, "it was killed in the middle"
    assert run(topic, batch_records=10_000).rows == count - before
    assert [row["seq"] for row in rows(tmp_path, topic)] == list(range(1, count + 1))
    assert lake(tmp_path).covered(topic, epoch(rig, topic)) == [(1, count)]
