"""`topics replay`: history back into a topic, in order, each record once."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from tests.spark.commands import Command
from tests.spark.rig import Rig, Watched
from topics.client import NewRecord
from topics.errors import InvalidRequest
from topics.reader import Lost
from topics.spark.jobs import replaying
from topics.spark.jobs.archiving import Plan, archive
from topics.spark.jobs.replaying import History, Replayed, replay
from topics.spark.runs.progress import Progress
from topics.spark.servers.connection import Connection
from topics.spark.tables.lake import Lake
from topics.testing.clock import ManualClock

Replay = Callable[..., Replayed]


@pytest.fixture
def run(rig: Rig, tmp_path: Path) -> Replay:
    """Replay a topic of the lake of the test into another one."""

    def run(
        topic: str, *, name: str = "", rate: int | None = None, progress: Progress | None = None, **given: Any
    ) -> Replayed:
        history, server = History(topic=topic, **given), Connection(url=rig.url)
        lake, state = str(tmp_path / "lake"), str(tmp_path / "state")
        to = f"{topic}.again{name}"
        return replay(rig.spark, lake, history, to, server=server, state=state, rate=rate, progress=progress)

    return run


def archived(rig: Rig, tmp_path: Path, topic: str, **given: Any) -> None:
    plan = Plan(selection=topic, server=Connection(url=rig.url), is_once=True, **given)
    archive(rig.spark, plan, str(tmp_path / "lake"))


def contents(rig: Rig, topic: str) -> list[tuple[Any, ...]]:
    with rig.client.export(topic) as export:
        rows = [row for batch in export for row in batch.to_pylist()]
    return [(row["data"], row["meta"], row["tag"], row["node"]) for row in rows]


def odd(count: int, start: int = 1) -> list[NewRecord]:
    return [
        NewRecord({"n": n, "s": 'é"\n'}, tag=f"t.{n % 3}", node=f"n{n % 2}", meta={"m": n} if n % 5 else None)
        for n in range(start, start + count)
    ]


def test_what_was_archived_and_then_evicted_comes_back_byte_for_byte(rig: Rig, run: Replay, tmp_path: Path) -> None:
    """TM2"""
    topic = rig.topic()
    for start in (1, 6001):
        rig.client.append(topic, odd(6000, start))
    first = contents(rig, topic)
    archived(rig, tmp_path, topic, batch_records=5000, trims=True)
    assert contents(rig, topic) == []
    rig.client.put_topic(topic, cap_records=300)
    rig.client.append(topic, odd(1000, 12_001))
    second = contents(rig, topic)
    archived(rig, tmp_path, topic)
    done = run(topic)
    assert (done.rows, done.gaps, done.missing) == (12_300, [Lost(12_001, 12_700, "cap")], [])
    assert contents(rig, f"{topic}.again") == first + second
    assert run(topic).rows_now == 0, "it is done"


def test_files_are_taken_by_their_seqs_and_may_lack_columns(rig: Rig, run: Replay, tmp_path: Path) -> None:
    """Whatever their sizes: the last file is the largest here, and the first one is older than meta."""
    topic = rig.topic()
    for start, count in ((1, 10), (11, 100), (111, 1000)):
        rig.client.append(topic, odd(count, start))
        archived(rig, tmp_path, topic)
    lake = Lake.load(str(tmp_path / "lake"))
    oldest, *_ = lake.files(topic, rig.client.state(topic).epoch, 1, 10)
    path = tmp_path / "lake" / oldest.path
    pq.write_table(pq.read_table(path).drop(["meta"]), path)
    assert run(topic).rows == 1110
    expected = [(data, None if n < 10 else meta, *rest) for n, (data, meta, *rest) in enumerate(contents(rig, topic))]
    assert contents(rig, f"{topic}.again") == expected


def test_seqs_times_and_tags_choose(rig: Rig, run: Replay, tmp_path: Path) -> None:
    topic = rig.topic()
    rig.client.append(topic, odd(100))
    records = rig.client.diff(topic, limit=100).records
    archived(rig, tmp_path, topic)
    assert run(topic, first=11, last=20, name="seqs").rows == 10
    assert rig.values(f"{topic}.againseqs")[0]["n"] == 11
    assert run(topic, tag="t.1", name="tag").rows == 34
    assert run(topic, tag="t.*", last=9, name="glob").rows == 9
    assert run(topic, until=records[0].ts, name="before").rows == 0
    assert run(topic, since=records[0].ts, until=records[-1].ts + 1, name="during").rows == 100


def test_the_plan_of_the_first_run_is_kept(rig: Rig, run: Replay, tmp_path: Path) -> None:
    """Though the lake has grown, or the rate is another one."""
    topic = rig.topic(count=4000)
    archived(rig, tmp_path, topic)
    assert run(topic, rate=1_000_000).rows == 4000
    rig.append(topic, range(10))
    archived(rig, tmp_path, topic)
    assert run(topic, rate=1000).rows_now == 0
    assert run(topic, first=4001).rows == 10, "asked for differently, it is another replay"


def test_a_rate_is_kept(rig: Rig, tmp_path: Path) -> None:
    topic, clock, waited = rig.topic(count=3000), ManualClock(), []

    def wait(seconds: float) -> None:
        waited.append(seconds)
        clock.advance(round(seconds * 1000))

    archived(rig, tmp_path, topic)
    history, server, lake = History(topic=topic), Connection(url=rig.url), str(tmp_path / "lake")
    to, state = f"{topic}.again", str(tmp_path)
    replay(rig.spark, lake, history, to, server=server, state=state, rate=1500, clock=clock, wait=wait)
    assert waited == [1.0, 1.0], "1500 records, and then 1500"


def test_rows_are_shown_as_they_arrive_not_when_a_unit_ends(
    rig: Rig, run: Replay, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(replaying, "UNIT_SEQS", 20)
    topic = rig.topic(count=50)
    archived(rig, tmp_path, topic)
    progress = Watched("replay")
    run(topic, progress=progress)
    assert [rows for rows, _ in progress.seen] == [20, 40, 50]
    assert (progress.rows, progress.total) == (50, 50)


def test_what_is_not_in_the_lake_is_named(rig: Rig, run: Replay, tmp_path: Path) -> None:
    topic = rig.topic(count=3)
    archived(rig, tmp_path, topic)
    with pytest.raises(InvalidRequest, match=f"has nothing of topic other; it has {topic}"):
        run("other")
    with pytest.raises(InvalidRequest, match="epoch 99"):
        run(topic, epoch=99)


@pytest.mark.full
def test_killed_and_run_again_it_has_every_record_once_and_in_order(rig: Rig, run: Replay, tmp_path: Path) -> None:
    """ID1"""
    topic, count = rig.topic(count=60_000), 60_000
    archived(rig, tmp_path, topic)
    to = f"{topic}.again"
    rig.client.put_topic(to, idempotency_window_ms=7 * 86_400_000)
    arguments = ("replay", str(tmp_path / "lake"), to, "--from", topic, "--rate", "15000")
    command = Command(tmp_path / "process", *arguments, "--state", str(tmp_path / "state"), url=rig.url)
    command.kill_once(lambda: rig.client.state(to).head_seq > 15_000)
    assert 0 < rig.client.state(to).head_seq < count, "it was killed in the middle"
    assert run(topic, rate=15_000).rows == count
    assert rig.values(to) == list(range(1, count + 1))
