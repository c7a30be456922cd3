"""Parts that have changed between planning and reading: nothing is passed over in silence."""

import gc
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.streaming.datasource import ReadAllAvailable
from pyspark.sql.types import LongType, StringType, StructField, StructType

from topics.client import Client
from topics.errors import InvalidRequest
from topics.reader import Lost
from topics.settings import Settings
from topics.spark.options import read_options
from topics.spark.origins import Origins
from topics.spark.plan import Part, RecordsLost, parts_of
from topics.spark.reader import Living, PartReader, freeze_modules, in_worker
from topics.spark.schema import Projection, Shape
from topics.spark.source import TopicsStreamReader
from topics.spark.tables.lake import Commit, Covered, Lake, LakeFile, Trimmed
from topics.storage.disk import RealDisk
from topics.testing.clock import ManualClock
from topics.testing.server import ServerProcess, ServerThread

FIELDS = {"seq": LongType(), "data": StringType(), "kind": StringType(), "gap_from": LongType(), "gap_to": LongType()}
SCHEMA = StructType([StructField(name, kind) for name, kind in FIELDS.items()] + [StructField("reason", StringType())])
PROJECTION = Projection(to_arrow_schema(SCHEMA, timezone="UTC"))


class Bench:
    """A server in this process, whose time stands still, and reads of it that are planned and read apart."""

    def __init__(self, server: ServerThread, path: Path) -> None:
        self.server = server
        self.path = path
        self.url = "http://{}:{}".format(*server.address)
        self.client = Client(self.url, "")

    def fill(self, count: int, **config: Any) -> None:
        self.client.put_topic("t", **config)
        self.append(1, count)

    def append(self, first: int, last: int) -> None:
        self.client.append("t", [{"data": seq, "node": f"n{seq % 2}"} for seq in range(first, last + 1)])

    def options(self, **options: Any) -> Any:
        base = {"url": self.url, "topic": "t", "onGap": "record", "startingSeq": "0", "retries": "1"}
        given = {name: str(value) for name, value in (base | options).items() if value is not None}
        return read_options(given, is_stream=False, environ={})

    def plan(self, parts: int = 1, is_stream: bool = False, **options: Any) -> list[Part]:
        with Origins(self.options(**options)) as origins:
            (look,) = origins.all_looks().values()
            stretch = origins.stretch(look, origins.start(look, "earliest"), origins.end(look))
        return parts_of([stretch], parts, is_stream=is_stream, announces=True)

    def read(self, parts: list[Part], **options: Any) -> list[Any]:
        """Seqs, and gaps as (first, last, reason), in the order in which they come."""
        found: list[Any] = []
        for part in parts:
            for batch in PartReader(part, self.options(**options), PROJECTION).batches():
                assert batch.schema == PROJECTION.schema
                for row in batch.to_pylist():
                    gap = (row["gap_from"], row["gap_to"], row["reason"])
                    found.append(gap if row["kind"] == "tombstone" else row["seq"])
        return found

    def checkpoint(self) -> None:
        self.server.do(self.server.server.engine.checkpoint())


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    disk = RealDisk(tmp_path / "data")
    with ServerThread(Settings(segment_max_events=10), disk=disk) as server:
        bench = Bench(server, tmp_path)
        yield bench
        bench.client.close()
    gc.unfreeze()  # a process that is no worker of Spark ends by giving everything back


def test_a_gap_stands_before_the_record_behind_it(bench: Bench) -> None:
    """TM4, TM16"""
    bench.fill(30, cap_records=20)
    assert bench.read(bench.plan()) == [(1, 10, "cap"), *range(11, 31)]


def test_what_is_the_same_in_each_row_is_there_whatever_the_length_of_a_batch() -> None:
    shape = Shape(PROJECTION, "t")
    for count in (3, 1, 5, 0, 4):
        stored = {"seq": pa.array(range(count), pa.uint64()), "data": pa.array(["1"] * count, pa.string())}
        batch = shape.records(pa.RecordBatch.from_pydict(stored))
        assert batch.schema == PROJECTION.schema
        record = {"data": "1", "kind": "record", "gap_from": None, "gap_to": None, "reason": None}
        assert batch.to_pylist() == [{"seq": seq, **record} for seq in range(count)]


def test_a_part_that_was_read_leaves_what_is_loaded_out_of_later_collections(bench: Bench) -> None:
    freeze_modules.cache_clear()
    bench.fill(3)
    (part,) = bench.plan()
    batches = in_worker(PartReader(part, bench.options(), PROJECTION).batches())
    assert [batch.num_rows for batch in batches] == [3]
    assert gc.get_freeze_count() > 0


def test_a_gap_that_spans_parts_is_told_once(bench: Bench) -> None:
    bench.fill(100, cap_records=20)
    parts = bench.plan(5, is_stream=True)
    assert len(parts) == 5
    assert bench.read(parts) == [(1, 80, "cap"), *range(81, 101)]


def test_what_is_lost_after_planning_is_a_gap_of_its_own(bench: Bench) -> None:
    bench.fill(30, cap_records=20)
    parts = bench.plan()
    bench.append(31, 35)
    assert bench.read(parts) == [(1, 10, "cap"), (11, 15, "cap"), *range(16, 31)]


def test_a_reader_that_must_not_miss_anything_fails_in_the_task(bench: Bench) -> None:
    bench.fill(20, cap_records=20)
    parts = bench.plan(onGap="fail")
    bench.append(21, 25)
    with pytest.raises(RecordsLost, match=r"while they were read: topic t, seqs 1 to 5 \(cap\)"):
        bench.read(parts, onGap="fail")
    assert bench.read(parts, onGap="ignore") == list(range(6, 21))


def test_a_deleted_stretch_is_no_gap_before_and_after_planning(bench: Bench) -> None:
    """TM9"""
    bench.fill(30)
    bench.client.delete_records("t", before_seq=6)
    parts = bench.plan(onGap="fail")
    bench.client.delete_records("t", before_seq=11)
    assert bench.read(parts, onGap="fail") == list(range(11, 31))


def test_a_topic_created_anew_after_planning_is_not_read_as_the_old_one(bench: Bench) -> None:
    """TM11"""
    bench.fill(30)
    parts = bench.plan(2)
    bench.client.delete_topic("t")
    assert bench.read(parts) == [(1, 15, "recreated"), (16, 30, "recreated")]
    bench.fill(40)
    assert bench.read(parts) == [(1, 15, "recreated"), (16, 30, "recreated")]


def test_own_records_are_left_out_unless_the_topic_says_otherwise(bench: Bench) -> None:
    """ND1, ND3"""
    bench.fill(10)
    assert bench.read(bench.plan(), node="n1") == [2, 4, 6, 8, 10]
    assert bench.read(bench.plan(), node='["n0", "n1"]') == []
    bench.client.put_topic("t", dedupe_node=False)
    assert bench.read(bench.plan(), node="n1") == list(range(1, 11))


def test_an_export_that_breaks_off_is_taken_up_behind_its_last_batch(tmp_path: Path) -> None:
    with ServerProcess(tmp_path) as server:
        server.environ["TOPICS_PORT"] = str(server.address[1])
        with Client("http://{}:{}".format(*server.address), "") as client:
            for first in range(1, 40_000, 1000):
                client.append("t", [{"data": [seq, "x" * 2000]} for seq in range(first, first + 1000)])
            options = read_options({"url": client.url, "topic": "t"}, is_stream=False, environ={})
            with Origins(options) as origins:
                (look,) = origins.all_looks().values()
                stretch = origins.stretch(look, origins.start(look, "earliest"), origins.end(look))
        (part,) = parts_of([stretch], 1, is_stream=False, announces=True)
        batches = PartReader(part, options, PROJECTION).batches()
        found = next(batches)["seq"].to_pylist()
        server.kill()  # far more is to come than sockets hold
        server.start()
        for batch in batches:
            found += batch["seq"].to_pylist()
    assert found == list(range(1, 40_001))


@pytest.mark.parametrize("start", [{"startingSeq": "latest"}, {"startingSeq": "earliest"}, {"startingTimestamp": "0"}])
def test_a_first_batch_that_is_run_again_begins_where_it_began(bench: Bench, start: dict[str, str]) -> None:
    """Spark keeps the end of a batch. The start of the first one it asks for again, after a restart."""
    bench.fill(10, cap_records=20)
    options = read_options({"url": bench.url, "topic": "t", "onGap": "record", **start}, is_stream=True, environ={})
    plans = []
    reader = TopicsStreamReader(options, PROJECTION)
    begin = reader.initialOffset()
    bench.append(11, 15)
    end = reader.latestOffset(begin, ReadAllAvailable())
    assert reader.latestOffset(end, ReadAllAvailable()) is end, "there is nothing new"
    for _ in range(2):
        plans.append([part.value for part in reader.partitions(begin, end)])
        reader.stop()
        bench.append(16, 30)
        reader = TopicsStreamReader(options, PROJECTION)
        begin = reader.initialOffset()
    reader.stop()
    assert begin != end
    (once,), (again,) = plans
    assert (again.after, again.last) == (once.after, once.last) == (end["t"]["since"]["seq"], 15)


@pytest.mark.parametrize("is_done", [True, False])
def test_a_server_that_was_set_up_anew_is_noticed_though_epochs_and_seqs_are_alike(bench: Bench, is_done: bool) -> None:
    """TM11: by the times of its records; whether or not the last batch of the checkpoint has to be run again."""
    bench.fill(10)
    given = {"topic": "t", "onGap": "record", "startingSeq": "0"}

    def reader(url: str) -> TopicsStreamReader:
        return TopicsStreamReader(read_options({"url": url, **given}, is_stream=True, environ={}), PROJECTION)

    first = reader(bench.url)
    begin = first.initialOffset()
    end = first.latestOffset(begin, ReadAllAvailable())
    first.stop()
    with ServerThread(clock=ManualClock(bench.server.clock.now_ms() + 60_000)) as server:
        anew = Bench(server, bench.path)
        anew.fill(25)
        again = reader(anew.url)
        if is_done:
            further = again.latestOffset(end, ReadAllAvailable())
            parts = [part.value for part in again.partitions(end, further)]
            assert anew.read(parts) == [(1, 25, "recreated"), *range(1, 26)]
            assert again.latestOffset(further, ReadAllAvailable()) is further
        else:
            parts = [part.value for part in again.partitions(begin, end)]
            assert anew.read(parts) == [(1, 10, "recreated")]
        again.stop()
        anew.client.close()
    same = reader(bench.url)
    assert same.latestOffset(end, ReadAllAvailable()) is end
    same.stop()


# --- segments


def test_sealed_records_come_from_the_directory_and_the_rest_from_the_server(bench: Bench) -> None:
    bench.fill(25)
    bench.checkpoint()
    bench.append(26, 40)
    parts = bench.plan(path=bench.path / "data")
    assert [(part.sealed, len(part.pieces)) for part in parts] == [(25, 3)]
    assert bench.read(parts, path=bench.path / "data") == list(range(1, 41))


def test_merged_segments_are_found_again(bench: Bench) -> None:
    bench.fill(3)
    bench.checkpoint()
    parts = bench.plan(path=bench.path / "data")
    for seq in range(4, 24, 2):
        bench.append(seq, seq + 1)
        bench.checkpoint()
    assert not (bench.path / "data" / parts[0].pieces[0].file).exists()
    assert bench.read(parts, path=bench.path / "data", url=None) == [1, 2, 3]


def test_what_is_lost_between_two_checkpoints_is_told_by_the_directory_too(bench: Bench) -> None:
    bench.fill(30, cap_records=25)
    bench.checkpoint()
    parts = bench.plan(path=bench.path / "data")
    bench.append(31, 60)
    bench.checkpoint()
    found = bench.read(parts, path=bench.path / "data", url=None)
    assert found == [(1, 5, "cap"), (6, 30, "cap")]


def test_a_topic_that_left_the_directory_is_a_gap(bench: Bench) -> None:
    bench.fill(10)
    bench.checkpoint()
    parts = bench.plan(path=bench.path / "data")
    bench.client.delete_topic("t")
    bench.checkpoint()
    assert bench.read(parts, path=bench.path / "data", url=None) == [(1, 10, "recreated")]


# --- the lake


def archive(bench: Bench, first: int, last: int, *, trims: bool = False, leaves_out: tuple[int, ...] = ()) -> Path:
    """Archive seqs as the job will do it; `leaves_out` had been deleted by then."""
    root = bench.path / "lake"
    (root / "records").mkdir(parents=True, exist_ok=True)
    seqs = [seq for seq in range(first, last + 1) if seq not in leaves_out]
    name = f"records/{first}.parquet"
    pq.write_table(pa.table({"seq": seqs, "data": [f"{seq}" for seq in seqs], "node": ["n1"] * len(seqs)}), root / name)
    lake = Lake.load(str(root), must_exist=False)
    epoch = bench.client.state("t").epoch
    file = LakeFile(name, seqs[0], seqs[-1], len(seqs))
    lake.commit(Commit(run="r", batch=first, covered=[Covered("t", epoch, first, last, [file])]))
    if trims:
        lake.commit(Commit(trimmed=[Trimmed("t", epoch, last)]))
        bench.client.delete_records("t", before_seq=last + 1)
    return root


def test_a_gap_that_the_lake_covers_is_no_gap(bench: Bench) -> None:
    bench.fill(20, cap_records=20)
    lake = archive(bench, 1, 20)
    bench.append(21, 50)
    parts = bench.plan(archive=lake)
    assert bench.read(parts, archive=lake) == [*range(1, 21), (21, 30, "cap"), *range(31, 51)]


def test_live_records_come_from_the_server_even_if_the_lake_has_them(bench: Bench) -> None:
    bench.fill(20, cap_records=15)
    lake = archive(bench, 4, 18)
    assert bench.read(bench.plan(archive=lake), archive=lake) == [(1, 3, "cap"), *range(4, 21)]


def test_records_lost_after_planning_come_from_the_lake(bench: Bench) -> None:
    bench.fill(20, cap_records=20)
    lake = archive(bench, 1, 20)
    parts = bench.plan(archive=lake, onGap="fail")
    bench.append(21, 32)
    assert bench.read(parts, archive=lake, onGap="fail") == list(range(1, 21))


def test_what_the_archive_trimmed_is_read_from_it_and_what_others_deleted_is_not(bench: Bench) -> None:
    bench.fill(30)
    lake = archive(bench, 1, 10, trims=True, leaves_out=(3,))
    bench.client.delete_records("t", before_seq=15)
    everything = [seq for seq in range(1, 31) if seq != 3 and not 10 < seq < 15]
    assert bench.read(bench.plan(3, archive=lake, onGap="fail"), archive=lake, onGap="fail") == everything


def test_what_is_about_to_be_trimmed_is_not_read_twice(bench: Bench) -> None:
    bench.fill(20)
    lake = archive(bench, 1, 10)
    Lake.load(str(lake)).commit(Commit(trimmed=[Trimmed("t", bench.client.state("t").epoch, 10)]))
    parts = bench.plan(archive=lake)
    assert bench.read(parts, archive=lake) == list(range(1, 21))
    bench.client.delete_records("t", before_seq=11)
    assert bench.read(parts, archive=lake) == list(range(1, 21))


def test_the_earliest_record_is_that_of_the_lake(bench: Bench) -> None:
    bench.fill(20, cap_records=20)
    lake = archive(bench, 3, 20)
    bench.append(21, 30)
    found = bench.read(bench.plan(archive=lake, startingSeq="earliest", onGap="fail"), archive=lake, onGap="fail")
    assert found == list(range(3, 31))


def test_history_of_an_earlier_instance_is_not_mixed_in(bench: Bench) -> None:
    bench.fill(20)
    lake = archive(bench, 1, 20)
    bench.client.delete_topic("t")
    bench.fill(10, cap_records=5)
    assert bench.read(bench.plan(archive=lake), archive=lake) == [(1, 5, "cap"), *range(6, 11)]


def test_a_topic_deleted_after_planning_is_read_from_the_lake_as_far_as_that_goes(bench: Bench) -> None:
    bench.fill(20)
    lake = archive(bench, 5, 15)
    parts = bench.plan(archive=lake)
    bench.client.delete_topic("t")
    assert bench.read(parts, archive=lake) == [(1, 4, "recreated"), *range(5, 16), (16, 20, "recreated")]


def test_own_records_are_left_out_of_history_too(bench: Bench) -> None:
    """ND1"""
    bench.fill(20, cap_records=20)
    lake = archive(bench, 1, 20)
    bench.append(21, 30)
    assert bench.read(bench.plan(archive=lake), archive=lake, node="n1") == list(range(12, 31, 2))


def test_a_cursor_of_an_earlier_instance_is_told_at_planning(bench: Bench) -> None:
    """TM11"""
    bench.fill(8)
    with Origins(bench.options(startingSeq='{"t": {"epoch": 99, "seq": 3}}')) as origins:
        (look,) = origins.all_looks().values()
        stretch = origins.stretch(look, origins.start(look, "earliest"), origins.end(look))
    assert stretch.gaps == [Lost(1, 8, "recreated")]
    assert bench.read(parts_of([stretch], 2, is_stream=False, announces=True)) == [(1, 8, "recreated"), *range(1, 9)]


def test_a_topic_that_is_not_there_is_named(bench: Bench) -> None:
    with (
        Origins(bench.options(topic="nowhere")) as origins,
        pytest.raises(InvalidRequest, match="no topic 'nowhere' in http"),
    ):
        origins.all_looks()


# --- segments beside a server


def test_segments_and_server_together_give_what_the_server_gives_at_any_moment(bench: Bench) -> None:
    """LV1: deletes, caps and trims since the last checkpoint count, merged files too."""
    path, head = str(bench.path / "data"), 0
    bench.client.put_topic("t", cap_records=60)
    for round_ in range(14):
        bench.client.append("t", [{"data": n, "tag": str(n % 5)} for n in range(9)])
        head += 9
        for change in (
            lambda: None,
            bench.checkpoint,
            lambda tag=str(round_ % 5): bench.client.delete_records("t", match=tag),
            lambda seq=head - 40 if round_ % 4 == 3 else 1: bench.client.delete_records("t", before_seq=max(1, seq)),
        ):
            planned = bench.plan(2, path=path)
            before = bench.plan(2)
            change()
            for parts in (planned, bench.plan(2, path=path)):
                expected = before if parts is planned else bench.plan(2)
                assert bench.read(parts, path=path) == bench.read(expected), (round_, head)


@given(st.sets(st.integers(1, 80), min_size=1), st.sets(st.integers(1, 80)), st.integers(0, 3))
def test_of_a_batch_only_what_lies_in_a_run_is_kept(seqs: set[int], live: set[int], skipped: int) -> None:
    living = Living()
    for seq in sorted(live):
        living.add([(seq, seq)])
    column = pa.array([*range(skipped), *sorted(seqs)], pa.uint64())
    batch = pa.RecordBatch.from_arrays([column], ["seq"]).slice(skipped)
    assert living.of(batch)["seq"].to_pylist() == sorted(seqs & live)


def test_many_runs_are_asked_for_in_several_calls(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """LV1"""
    monkeypatch.setattr("topics.engine.reads.Reading.live_runs.__defaults__", (0, None, None, 3))
    bench.client.put_topic("t")
    bench.client.append("t", [{"data": n, "tag": "ab"[n % 2]} for n in range(40)])
    bench.checkpoint()
    bench.client.delete_records("t", match="b")
    path = str(bench.path / "data")
    assert bench.read(bench.plan(path=path), path=path) == list(range(1, 41, 2))
    bench.client.delete_records("t", match="a")
    assert bench.read(bench.plan(path=path), path=path) == []


def test_segments_of_a_topic_that_is_gone_by_now_are_not_read(bench: Bench) -> None:
    """TM11"""
    bench.fill(20)
    bench.checkpoint()
    bench.append(21, 25)
    path = str(bench.path / "data")
    parts, served = bench.plan(path=path), bench.plan()
    bench.client.delete_topic("t")
    assert bench.read(parts, path=path) == bench.read(served) == [(1, 25, "recreated")]
    bench.fill(3)
    assert bench.read(parts, path=path) == bench.read(served) == [(1, 25, "recreated")]


def test_a_directory_of_another_server_is_refused_though_epochs_and_seqs_are_alike(
    bench: Bench, tmp_path: Path
) -> None:
    bench.fill(20)
    bench.checkpoint()
    with ServerThread(Settings(), disk=RealDisk(tmp_path / "other")) as server:
        other = Bench(server, tmp_path)
        other.client.put_topic("t")
        other.client.append("t", [{"data": f"other {n}"} for n in range(20)])
        other.checkpoint()
        other.client.close()
        with pytest.raises(InvalidRequest, match=r"not the data directory of the server at http.* seq 1 as the server"):
            bench.plan(path=str(tmp_path / "other"))
    path = str(bench.path / "data")
    bench.client.delete_records("t", before_seq=5)
    assert bench.read(bench.plan(path=path), path=path) == list(range(5, 21))


def test_a_topic_made_anew_to_the_same_length_is_noticed_at_the_next_look(bench: Bench) -> None:
    """TM11: its epoch is compared, whether or not it has moved."""
    bench.fill(5)
    with Origins(bench.options(topic=None, topicPattern="t")) as origins:
        before = origins.looks()
        assert origins.looks(before)["t"] is before["t"]
        bench.client.delete_topic("t")
        bench.fill(5)
        assert origins.looks(before)["t"].epoch > before["t"].epoch
