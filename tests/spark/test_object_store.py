"""A lake on a real S3 server: its manifest, and history that the Python source reads from there."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession

from tests.live.object_store import BUCKET, ENVIRON, ObjectStore, command, object_store
from topics.client import Client
from topics.errors import ConfigurationError, Damaged, InvalidRequest
from topics.spark.jobs import importing
from topics.spark.options import read_options
from topics.spark.schema import Projection
from topics.spark.source import TopicsReader
from topics.spark.tables import lake as lakes
from topics.spark.tables.lake import Commit, Covered, Lake, LakeFile, open_root, read_rows
from topics.spark.tables.layout import compact, described
from topics.spark.tables.outputs import Place, check_connector
from topics.testing.clock import ManualClock
from topics.testing.server import ServerThread

pytestmark = pytest.mark.skipif(command() is None, reason="there is no S3 server: make s3")


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[ObjectStore]:
    for name, value in ENVIRON.items():
        monkeypatch.setenv(name, value)
    with object_store(tmp_path) as store:
        yield store


def read(url: str, archive: str, **options: Any) -> list[int]:
    given = read_options({"url": url, "topic": "t", "archive": archive, **options}, is_stream=False, environ={})
    reader = TopicsReader(given, Projection(pa.schema([("seq", pa.int64())])))
    return [n for part in reader.partitions() for batch in reader.read(part) for n in batch["seq"].to_pylist()]


def test_history_comes_from_a_lake_on_an_object_store(store: ObjectStore) -> None:
    root = store.uri("lake").replace("s3://", "s3a://")
    with ServerThread() as server, Client("http://{}:{}".format(*server.address), "") as client:
        client.put_topic("t", cap_records=10)
        client.append("t", [{"data": n} for n in range(1, 11)])
        with client.export("t") as export:
            rows = pa.Table.from_batches(list(export))
        system, path = open_root(root)
        pq.write_table(rows, f"{path}/records/one.parquet", filesystem=system)
        covered = Covered("t", client.state("t").epoch, 1, 10, [LakeFile("records/one.parquet", 1, 10, 10)])
        assert Lake.load(root, must_exist=False).commit(Commit(run="r", batch=0, covered=[covered]))
        client.append("t", [{"data": n} for n in range(11, 16)])
        assert read(client.url, root) == list(range(1, 16))
        assert read(client.url, store.uri("lake"), startingSeq="2") == list(range(3, 16)), "s3:// is the same place"


def test_spark_is_told_the_place_without_keys_and_endpoint(store: ObjectStore) -> None:
    place = Place(store.uri("some/lake"))
    assert place.uri("records/a.parquet") == f"s3a://{BUCKET}/some/lake/records/a.parquet"


def test_a_second_writer_that_lags_behind_does_not_overwrite_a_commit(store: ObjectStore) -> None:
    """An object store has no lock that a process holds for as long as it lives."""
    root = store.uri("lake")
    one, other = (Lake.load(root, must_exist=False) for _ in range(2))
    one.commit(Commit(run="a", batch=0, covered=[Covered("t", 1, 1, 10)]))
    with pytest.raises(InvalidRequest, match="another job writes to this lake"):
        other.commit(Commit(run="b", batch=0, covered=[Covered("t", 1, 1, 20)]))
    assert Lake.load(root).covered("t", 1) == [(1, 10)]


def test_a_claim_of_another_writer_counts_until_it_is_old(store: ObjectStore, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is what a writer leaves that is killed within a commit, and what one has that is about to commit."""
    root = store.uri("lake")
    Lake.load(root, must_exist=False).commit(Commit(run="a", batch=0, covered=[Covered("t", 1, 1, 10)]))
    system, path = open_root(root)
    with system.open_output_stream(f"{path}/claims/other") as stream:
        stream.write(b"00000000000000000002.json")
    lake, commit = Lake.load(root), Commit(run="a", batch=1, covered=[Covered("t", 1, 11, 20)])
    with pytest.raises(InvalidRequest, match="another job writes to this lake; if it was killed, try again in 120 s"):
        lake.commit(commit)
    monkeypatch.setattr(lakes, "CLAIMED_NS", 0)
    assert lake.commit(commit) and Lake.load(root).covered("t", 1) == [(1, 20)]
    said = sorted(file.read_bytes() for file in (store.objects / BUCKET / "lake" / "claims").iterdir())
    assert said == [b"00000000000000000002.json", b"none", b"none"], "its own claims are given up"


def test_keys_in_the_place_are_in_no_message_and_no_name(store: ObjectStore) -> None:
    root, shown = store.uri("lake"), f"s3://{BUCKET}/lake"
    with pytest.raises(InvalidRequest) as caught:
        Lake.load(root)
    assert str(caught.value).startswith(f"{shown} is not a lake")
    lake = Lake.load(root, must_exist=False)
    file = LakeFile("records/one.parquet", 1, 10, 10)
    lake.commit(Commit(run="r", batch=0, covered=[Covered("t", 1, 1, 10, [file])]))
    assert lake.paths("t") == [f"{shown}/records/one.parquet"]
    with pytest.raises(Damaged) as damaged:
        list(read_rows(root, [file], [(1, 10)], ["data"]))
    assert f"{shown}/records/one.parquet" in str(damaged.value) and "SECRET" not in str(damaged.value)


def test_files_to_import_have_the_names_that_spark_knows(store: ObjectStore) -> None:
    system, path = open_root(store.uri("in"))
    for name in ("a.ndjson", "b/c.ndjson", "_part/d.ndjson"):
        with system.open_output_stream(f"{path}/{name}") as stream:
            stream.write(b"1\n")
    names = [file.path for file in importing.found(store.uri("in"))]
    assert names == [f"s3a://{BUCKET}/in/a.ndjson", f"s3a://{BUCKET}/in/b/c.ndjson"]
    with pytest.raises(InvalidRequest) as caught:
        importing.found(store.uri("nothing"))
    assert str(caught.value) == f"s3://{BUCKET}/nothing: there is no file to import"


def test_spark_without_a_connector_is_told_which_one_to_get(store: ObjectStore, spark: SparkSession) -> None:
    with pytest.raises(ConfigurationError, match=r"no connector for s3a://bucket/lake: .*hadoop-aws:\d+\.\d+\.\d+$"):
        check_connector(spark, Place(store.uri("lake")))
    check_connector(spark, Place("/lake"))


def test_small_files_are_merged_and_a_second_writer_does_not_touch_what_counts(store: ObjectStore) -> None:
    root = store.uri("lake")
    place, lake = Place(root), Lake.load(root, must_exist=False)
    for n in range(2):
        path, names = f"records/{n}.parquet", ("topic", "seq", "data")
        rows = pa.table([["t"] * 10, list(range(10 * n + 1, 10 * n + 11)), ["x"] * 10], names=names)
        pq.write_table(rows, f"{place.path}/{path}", filesystem=place.system)
        _, file = described(place, path)
        lake.commit(Commit(run="r", batch=n, covered=[Covered("t", 1, 10 * n + 1, 10 * n + 10, [file])]))
    other = Lake.load(root)
    assert compact(lake, place, ManualClock(0), files_min=2) == 2
    with pytest.raises(InvalidRequest, match="another job writes to this lake"):
        compact(other, Place(root), ManualClock(0), files_min=2)
    for found in (lake, Lake.load(root)):
        (file,) = found.files("t", 1, 1, 20)
        assert described(place, file.path) == ("t", file), "it is the file that was committed"
        batches = read_rows(root, [file], [(1, 20)], ["data"])
        assert [n for batch in batches for n in batch["seq"].to_pylist()] == list(range(1, 21))
