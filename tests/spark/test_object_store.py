"""A lake on a real S3 server: its manifest, and history that the Python source reads from there."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.live.object_store import BUCKET, ENVIRON, ObjectStore, command, object_store
from topics.client import Client
from topics.spark.options import read_options
from topics.spark.schema import Projection
from topics.spark.source import TopicsReader
from topics.spark.tables.lake import Commit, Covered, Lake, LakeFile, open_root
from topics.spark.tables.outputs import Place
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
