"""A topic as one DataFrame, of a lake and what the lake does not have yet: the rows of the source, read natively."""

import threading
from pathlib import Path
from typing import Any
from urllib.request import urlopen

import pytest
from pyspark.sql import DataFrame, Row

import topics.spark
from tests.spark.rig import Rig, gaps, said_by, seqs
from topics.client import NewRecord
from topics.errors import InvalidRequest
from topics.reader import Lost
from topics.spark.jobs.archiving import Plan, archive
from topics.spark.plan import RecordsLost
from topics.spark.servers.connection import Connection
from topics.spark.tables import history, tail
from topics.spark.tables.lake import Commit, Lake

COLUMNS = ("topic", "seq", "ts", "node", "tag", "meta", "data")


class Beside:
    """A topic with a lake of its own, whose name has what globs are made of."""

    def __init__(self, rig: Rig, place: Path) -> None:
        self.rig = rig
        self.lake = str(place / "lake [1]{x}*")

    def archive(self, topic: str, **given: Any) -> None:
        plan = Plan(selection=topic, server=Connection(url=self.rig.url), is_once=True, **given)
        archive(self.rig.spark, plan, self.lake)

    def table(self, topic: str, **given: Any) -> DataFrame:
        return topics.spark.table(self.rig.spark, topic, lake=self.lake, **{"url": self.rig.url, **given})

    def source(self, topic: str, **options: Any) -> DataFrame:
        return self.rig.load(topic=topic, archive=self.lake, **options)

    def check(self, topic: str, on_gap: str = "fail") -> list[Row]:
        """The rows are those of the source, column by column; they are returned."""
        found = self.table(topic, on_gap=on_gap)
        expected = self.source(topic, onGap=on_gap)
        assert found.dtypes == expected.dtypes
        rows = sorted(found.collect(), key=position)
        assert rows == sorted(expected.collect(), key=position)
        return rows


def position(row: Row) -> tuple[int, int]:
    return (row.seq, 0) if row.seq is not None else (row.gap_from, 1)


@pytest.fixture
def beside(rig: Rig, tmp_path: Path) -> Beside:
    return Beside(rig, tmp_path)


def odd(numbers: range) -> list[NewRecord]:
    """Records of which each part matters."""
    return [
        NewRecord({"n": n, "s": 'é"\n'}, tag=f"t.{n % 3}", node=f"n{n % 2}", meta={"m": n} if n % 5 else None)
        for n in numbers
    ]


def test_the_rows_are_those_of_the_source(rig: Rig, beside: Beside) -> None:
    """Before, at and above the seam; as of the call, though topic and lake go on."""
    topic = rig.topic()
    rig.client.append(topic, odd(range(1, 501)))
    beside.archive(topic, batch_records=200)
    assert seqs(beside.check(topic)) == list(range(1, 501))
    rig.client.append(topic, odd(range(501, 531)))
    assert seqs(beside.check(topic)) == list(range(1, 531))
    before = beside.table(topic)
    assert before.columns == list(COLUMNS)
    rig.client.append(topic, odd(range(531, 541)))
    beside.archive(topic)
    assert seqs(before.where("seq > 0").collect()) == list(range(1, 531)), "as of the call"
    assert seqs(beside.check(topic)) == list(range(1, 541))
    assert beside.table(topic, includes_meta=False).columns == [name for name in COLUMNS if name != "meta"]


@pytest.mark.parametrize("limit", ["ROWS_MAX", "BYTES_MAX"])
def test_many_rows_above_the_seam_are_read_by_tasks_and_as_of_the_call(
    rig: Rig, beside: Beside, monkeypatch: pytest.MonkeyPatch, limit: str
) -> None:
    topic = rig.topic()
    rig.client.append(topic, odd(range(1, 101)))
    beside.archive(topic)
    rig.client.append(topic, odd(range(101, 131)))
    assert "Python" not in explained(beside.table(topic)), "few rows are read by the driver"
    monkeypatch.setattr(history if limit == "ROWS_MAX" else tail, limit, 29)
    assert seqs(beside.check(topic)) == list(range(1, 131))
    before = beside.table(topic)
    assert "Python" in explained(before) or "BatchScan topics" in explained(before)
    rig.client.append(topic, odd(range(131, 141)))
    assert seqs(before.where("seq > 0").collect()) == list(range(1, 131))


def test_the_settings_of_a_session_stay_as_they_were(rig: Rig, beside: Beside) -> None:
    topic = rig.topic(count=10)
    beside.archive(topic)
    rig.append(topic, range(11, 21))
    names = [f"{tail.ARROW}.localRelationThreshold", f"{tail.ARROW}.maxRecordsPerBatch"]
    before = [rig.spark.conf.get(name) for name in names]
    assert beside.table(topic).count() == 20
    assert [rig.spark.conf.get(name) for name in names] == before


def test_nothing_of_the_history_comes_through_python(rig: Rig, beside: Beside) -> None:
    topic = rig.topic(count=1000)
    beside.archive(topic)
    rig.append(topic, range(1001, 1011))
    plan = explained(beside.table(topic).where("seq <= 1000 AND tag IS NULL").select("data"))
    assert "FileScan parquet" in plan or "Scan parquet" in plan
    assert "IsNull(tag)" in plan and "LessThanOrEqual(seq,1000)" in plan, "filters are pushed"
    assert "ReadSchema: struct<seq:bigint,tag:string,data:string>" in plan, "only the columns of the query are read"


@pytest.mark.parametrize("way", ["ranges", "joined"])
def test_what_was_deleted_since_is_not_shown(
    rig: Rig, beside: Beside, monkeypatch: pytest.MonkeyPatch, way: str
) -> None:
    """DL1, DL2: by tag, below a seq, all of a file, and above the seam"""
    if way == "joined":
        monkeypatch.setattr(history, "RANGES_MAX", 2)
    topic = rig.topic()
    rig.client.append(topic, odd(range(1, 301)))
    beside.archive(topic, batch_records=100)
    rig.client.append(topic, odd(range(301, 321)))
    rig.client.delete_records(topic, match="t.1", before_seq=180)
    assert len(beside.check(topic)) == 320 - 60
    rig.client.delete_records(topic, before_seq=51)
    assert beside.check(topic)[0].seq == 51
    rig.client.delete_records(topic, match="t.2")
    rig.client.delete_records(topic, before_seq=111)
    assert beside.check(topic)[0].seq == 111
    rig.client.delete_records(topic, before_seq=10_000)
    assert beside.check(topic) == []


def test_no_record_is_asked_for_to_know_what_was_deleted(rig: Rig, beside: Beside) -> None:
    """LV1"""
    topic = rig.topic()
    rig.client.append(topic, odd(range(1, 101)))
    beside.archive(topic)
    rig.client.append(topic, odd(range(101, 111)))
    lake = Lake.load(beside.lake)
    before = exports(rig)
    assert history._asked(rig.client, lake, topic).live == [(1, 110)]
    rig.client.put_topic(topic, cap_records=50)
    rig.client.append(topic, odd(range(111, 112)))
    seen = history._asked(rig.client, lake, topic)
    assert (seen.earliest, seen.live, [(gap.first, gap.last) for gap in seen.lost]) == (62, [(62, 111)], [(1, 61)])
    rig.client.delete_records(topic, match="t.0", before_seq=80)
    runs = history._asked(rig.client, lake, topic).live
    assert runs is not None and runs[:2] == [(62, 62), (64, 65)]
    assert exports(rig) == before
    assert seqs(beside.check(topic))[:2] == [1, 2]
    assert exports(rig) > before, "what lies above the seam is one"


def exports(rig: Rig) -> int:
    """How many exports the server has answered."""
    with urlopen(f"{rig.url}/v0/metrics") as answer:
        lines = answer.read().decode().splitlines()
    return sum(int(float(line.split()[-1])) for line in lines if "requests_total" in line and "/export" in line)


def test_gaps_are_rows_and_one_across_the_seam_is_one(rig: Rig, beside: Beside) -> None:
    """TM2"""
    topic = rig.topic()
    rig.client.append(topic, odd(range(1, 101)))
    beside.archive(topic)
    rig.client.put_topic(topic, cap_records=50)
    rig.client.append(topic, odd(range(101, 301)))
    beside.archive(topic)
    rig.client.append(topic, odd(range(301, 401)))
    found = beside.check(topic, "record")
    assert gaps(found) == [(101, 250, "cap"), (301, 350, "cap")]
    rig.client.put_topic(topic)
    with pytest.raises(RecordsLost, match="seqs 101 to 250"):
        beside.table(topic)
    assert gaps(beside.check(topic, "record")) == gaps(found)
    assert seqs(beside.check(topic, "ignore")) == [*range(1, 101), *range(251, 301), *range(351, 401)]


def test_a_gap_that_goes_on_above_the_seam_is_one_row(rig: Rig, beside: Beside) -> None:
    """TM2: the lake ends within what was lost."""
    topic = rig.topic()
    rig.client.append(topic, odd(range(1, 11)))
    beside.archive(topic)
    rig.client.put_topic(topic, cap_records=5)
    rig.client.append(topic, odd(range(11, 41)))
    lake = Lake.load(beside.lake)
    (entry,) = lake.entries[topic, rig.client.state(topic).epoch]
    lake.commit(Commit(covered=[type(entry)(topic, entry.epoch, 11, 20, [], [Lost(11, 20, "cap")])]))
    assert gaps(beside.check(topic, "record")) == [(11, 35, "cap")]


def test_what_was_lost_before_all_there_is_is_not_told(rig: Rig, beside: Beside) -> None:
    """As by the source, whose start is the first record that there is."""
    topic = rig.topic(cap_records=20)
    rig.client.append(topic, odd(range(1, 101)))
    beside.archive(topic)
    rig.client.append(topic, odd(range(101, 111)))
    assert seqs(beside.check(topic)) == list(range(81, 111))


def test_what_was_trimmed_is_history(rig: Rig, beside: Beside) -> None:
    topic = rig.topic()
    rig.client.append(topic, odd(range(1, 101)))
    beside.archive(topic, trims=True, keep_records=30)
    rig.client.append(topic, odd(range(101, 106)))
    assert seqs(beside.check(topic)) == list(range(1, 106))
    late = beside.table(topic)
    beside.archive(topic, trims=True)
    assert seqs(late.where("seq > 0").collect()) == list(range(1, 106)), "trimmed after the call"
    rig.client.append(topic, odd(range(106, 111)))
    rig.client.delete_records(topic, before_seq=109)
    assert seqs(beside.check(topic)) == [*range(1, 106), 109, 110]


def test_a_topic_created_anew_has_the_history_of_its_own(rig: Rig, beside: Beside) -> None:
    """TM11"""
    topic = rig.topic(count=10)
    beside.archive(topic)
    old = beside.table(topic)
    rig.client.delete_topic(topic)
    with pytest.raises(InvalidRequest, match="there is no topic"):
        beside.table(topic)
    rig.topic(count=4)
    assert [row.data for row in beside.check(topic)] == ["1", "2", "3", "4"]
    assert seqs(old.where("seq > 0").collect()) == list(range(1, 11)), "as of the call"
    alone = topics.spark.table(rig.spark, topic, lake=beside.lake)
    assert seqs(alone.collect()) == list(range(1, 11)), "the lake alone has the last instance that was archived"


def test_a_queue_has_the_jobs_that_are_left(rig: Rig, beside: Beside) -> None:
    """QU6"""
    topic = rig.topic(count=20, type="queue")
    beside.archive(topic)
    rig.client.ack(topic, "me", rig.client.claim(topic, "me", max_jobs=5).claimed)
    rig.append(topic, range(21, 24))
    assert seqs(beside.check(topic)) == list(range(6, 24))


def test_rows_that_are_selected_leave_files_out(rig: Rig, beside: Beside) -> None:
    """By the plan's own metric, the number of files; and the rows are those of the filter. Gaps stay."""
    topic, clock, waiting = rig.topic(), rig.topic("clock"), threading.Event()
    moments: list[int] = []
    for n in range(5):
        rig.client.append(topic, [NewRecord(n, tag=f"{'abcde'[n]}.{m}") for m in range(20)])
        newest = rig.client.diff(topic, from_seq=20 * n + 19).records[-1].ts
        moments.append(newest)
        beside.archive(topic)
        while passed(rig, clock) <= newest:
            waiting.wait(0.001)
    since = moments[2] + 1
    cases: list[tuple[dict[str, Any], str, int]] = [
        ({}, "true", 5),
        ({"since": since}, f"ts >= timestamp_millis({since})", 2),
        ({"until": since}, f"ts < timestamp_millis({since})", 3),
        (
            {"since": moments[0] + 1, "until": since},
            f"ts BETWEEN timestamp_millis({moments[0] + 1}) AND timestamp_millis({since - 1})",
            2,
        ),
        ({"tag": "b.7"}, "tag = 'b.7'", 1),
        ({"tag": "d.*"}, "tag LIKE 'd.%'", 1),
        ({"tag": "x"}, "false", 0),
    ]
    for given, condition, files in cases:
        chosen = beside.table(topic, **given)
        assert sorted(chosen.select("*").collect()) == sorted(beside.source(topic).where(condition).collect()), given
        assert files_read(chosen) == files, given


def test_a_plain_filter_leaves_row_groups_out(rig: Rig, beside: Beside) -> None:
    topic = rig.topic()
    for n in range(3):
        rig.client.append(topic, [NewRecord(n, tag=f"{'abc'[n]}") for _ in range(50)])
        beside.archive(topic)
    chosen = beside.table(topic).where("tag = 'b'")
    assert scanned(chosen, "numOutputRows") == 50, "of the other files, nothing was decoded"


def test_it_is_a_view_for_sql(rig: Rig, beside: Beside) -> None:
    topic = rig.topic(count=30)
    beside.archive(topic)
    rig.append(topic, range(31, 36))
    topics.spark.register_table(rig.spark, "orders", topic, lake=beside.lake, url=rig.url)
    (row,) = rig.spark.sql(
        "SELECT count(*) AS n, sum(CAST(data AS INT)) AS total, max(seq) AS last FROM orders"
    ).collect()
    assert (row.n, row.total, row.last) == (35, 35 * 36 // 2, 35)


def test_files_of_other_times_may_lack_columns_and_have_more(rig: Rig, beside: Beside) -> None:
    """A schema that evolves: what a file lacks is null, what nobody knows is left alone."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    topic = rig.topic()
    rig.client.append(topic, odd(range(1, 11)))
    beside.archive(topic)
    rig.client.append(topic, odd(range(11, 21)))
    beside.archive(topic)
    first, second = Lake.load(beside.lake).files(topic, rig.client.state(topic).epoch, 1, 20)
    for file, change in (
        (first, lambda rows: rows.drop(["meta"])),
        (second, lambda rows: rows.append_column("later", pa.array(range(rows.num_rows)))),
    ):
        path = Path(beside.lake) / file.path
        pq.write_table(change(pq.read_table(path)), path)
        path.with_name(f".{path.name}.crc").unlink(missing_ok=True)
    found = sorted(beside.table(topic).collect(), key=position)
    assert [row.meta is None for row in found] == [n <= 10 or n % 5 == 0 for n in range(1, 21)]
    assert [row.data for row in found] == [row.data for row in sorted(rig.load(topic=topic).collect(), key=position)]
    rig.client.put_topic(topic, cap_records=1)
    rig.client.append(topic, odd(range(21, 22)))
    beside.check(topic)


def test_what_cannot_be_read_is_named(rig: Rig, beside: Beside, tmp_path: Path) -> None:
    with pytest.raises(InvalidRequest, match="is not a lake"):
        beside.table(rig.topic())
    topic = rig.topic(count=1)
    beside.archive(topic)
    for given, message in (
        ({"on_gap": "no"}, "on_gap is 'no': it must be one of fail, record, ignore"),
        ({"since": "monday"}, "since is 'monday'"),
        ({"url": None}, "has nothing of topic other"),
    ):
        with pytest.raises(InvalidRequest, match=message):
            beside.table("other" if "url" in given else topic, **given)
    (file,) = Lake.load(beside.lake).files(topic, rig.client.state(topic).epoch, 1, 1)
    (Path(beside.lake) / file.path).unlink()
    assert file.path.rpartition("/")[2] in said_by(lambda: beside.table(topic).collect())


def passed(rig: Rig, clock: str) -> int:
    """The time of the server."""
    seq = rig.client.append(clock, [NewRecord(0)]).first_seq
    return rig.client.diff(clock, from_seq=seq - 1).records[0].ts


def explained(rows: DataFrame) -> str:
    mode: Any = rows.sparkSession._jvm
    formatted = mode.org.apache.spark.sql.execution.ExplainMode.fromString("formatted")
    return str(rows._jdf.queryExecution().explainString(formatted))


def scans(rows: DataFrame) -> list[Any]:
    """The scans of Parquet files in the plan of rows that were not collected before: metrics count one time."""
    rows.collect()
    plan = rows._jdf.queryExecution().executedPlan()
    found, waiting = [], [plan]
    while waiting:
        node = waiting.pop()
        if node.nodeName() == "AdaptiveSparkPlan":
            waiting.append(node.executedPlan())
            continue
        if node.nodeName().endswith("QueryStage"):
            waiting.append(node.plan())
        if "parquet" in node.nodeName().lower():
            found.append(node)
        children = node.children()
        waiting += [children.apply(n) for n in range(children.size())]
    return found


def scanned(rows: DataFrame, metric: str) -> int:
    return sum(int(scan.metrics().apply(metric).value()) for scan in scans(rows))


def files_read(rows: DataFrame) -> int:
    return scanned(rows, "numFiles")


def test_a_long_tail_is_read_by_all_cores_and_a_short_one_by_one(rig: Rig, beside: Beside) -> None:
    topic = rig.topic(count=100)
    beside.archive(topic)
    rig.append(topic, range(101, 201))
    short = beside.table(topic).rdd.getNumPartitions()
    rig.append(topic, range(201, 2 * history.TAIL_RECORDS_MIN + 201))
    found = beside.table(topic)
    assert found.rdd.getNumPartitions() == short + 1, "two cores"
    assert seqs(found.select("seq").collect()) == list(range(1, 2 * history.TAIL_RECORDS_MIN + 201))
