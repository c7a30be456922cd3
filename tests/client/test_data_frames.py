"""Topics as data frames of the real libraries: every record and value is there, and losses are told."""

import json
import sys
from typing import Any

import pyarrow as pa
import pytest

from tests.client.conftest import Connect
from topics.client.data_frames import COLUMNS_MAX, expanded
from topics.client.results import Lost
from topics.errors import InvalidRequest, TopicNotFound
from topics.testing.server import ServerThread

ORDERS = [{"data": {"sku": "A", "count": 1}, "tag": "eu"}, {"data": {"sku": "B", "paid": True, "at": {"x": 1}}}]


def test_a_topic_is_a_pandas_frame(client: Any, topic: str) -> None:
    pandas = pytest.importorskip("pandas")
    client.append(topic, ORDERS)
    frame = client.frame(topic)
    assert isinstance(frame, pandas.DataFrame)
    assert list(frame.columns) == ["seq", "ts", "node", "tag", "meta", "sku", "count", "paid", "at"]
    assert frame["sku"].tolist() == ["A", "B"] and frame["tag"].tolist() == ["eu", None]
    assert frame["count"].dtype == "Int64" and frame["count"][0] == 1 and frame["count"].isna()[1]
    assert frame["paid"].dtype == "boolean" and str(frame["ts"].dtype) == "datetime64[ms, UTC]"
    assert frame.attrs["topics"]["last"] == 2 and json.dumps(frame.attrs["topics"])


def test_a_topic_is_a_polars_frame(client: Any, topic: str) -> None:
    polars = pytest.importorskip("polars")
    client.append(topic, ORDERS)
    frame = client.frame(topic, "polars")
    assert frame["count"].to_list() == [1, None]
    assert frame.filter(polars.col("tag") == "eu")["sku"].to_list() == ["A"]


def test_a_topic_is_a_table_of_part_of_it(client: Any, topic: str) -> None:
    client.append(topic, [{"data": {"n": n}} for n in range(5)])
    epoch = client.state(topic).epoch
    assert client.frame(topic, "pyarrow", after=1, last=3, epoch=epoch)["n"].to_pylist() == [1, 2]
    texts = client.frame(topic, "pyarrow", expand=False)
    assert texts.column_names == ["seq", "ts", "node", "tag", "meta", "data"]
    assert texts["data"].to_pylist()[4] == '{"n":4}' and b"topics.lost" in texts.schema.metadata


@pytest.mark.parametrize("library", ["pandas", "polars", "pyarrow"])
@pytest.mark.parametrize("expand", [True, False])
def test_an_empty_topic_is_an_empty_frame(client: Any, topic: str, library: str, expand: bool) -> None:
    pytest.importorskip(library)
    client.put_topic(topic)
    frame = client.frame(topic, library, expand=expand)
    assert len(frame) == 0 and "data" in (frame.column_names if library == "pyarrow" else frame.columns)


def test_what_is_lost_is_told(server: ServerThread, connect: Connect, topic: str) -> None:
    told: list[Lost] = []
    client = connect(server.address, on_gap=told.append)
    client.put_topic(topic, cap_records=2)
    client.append(topic, [{"data": {"n": n}} for n in range(5)])
    table = client.frame(topic, "pyarrow")
    assert table["n"].to_pylist() == [3, 4] and b"cap" in table.schema.metadata[b"topics.lost"]
    assert [(lost.topic, lost.gap_from, lost.gap_to, lost.reason) for lost in told] == [(topic, 1, 3, "cap")]
    pytest.importorskip("pandas")
    (lost,) = client.frame(topic).attrs["topics"]["lost"]
    assert (lost["gap_from"], lost["gap_to"]) == (1, 3)


def test_a_frame_of_no_topic_and_of_no_library_is_refused(client: Any, topic: str) -> None:
    with pytest.raises(TopicNotFound):
        client.frame(topic, "pyarrow")
    with pytest.raises(InvalidRequest, match="'numpy' is not a library of data frames; use"):
        client.frame(topic, "numpy")


def test_a_library_that_is_not_installed_is_named(client: Any, topic: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "polars", None)
    with pytest.raises(ImportError, match="needs polars; install it, or ask for"):
        client.frame(topic, "polars")


# --- columns


def table_of(*data: Any) -> "pa.Table":
    texts = [text if isinstance(text, bytes) else json.dumps(text).encode() for text in data]
    return pa.table({"seq": pa.array(range(len(data))), "data": [text.decode() for text in texts]})


def columns_of(*data: Any) -> dict[str, list[Any]]:
    table = expanded(table_of(*data))
    assert table.column_names[0] == "seq" and table.num_rows == len(data)
    return {name: table[name].to_pylist() for name in table.column_names[1:]}


@pytest.mark.parametrize(
    ("data", "columns"),
    [
        ([{"a": 1}, {"b": "x"}, {}], {"a": [1, None, None], "b": [None, "x", None]}),
        ([{"a": 1}, {"a": 2.5}], {"a": [1.0, 2.5]}),
        ([{"a": 1}, {"a": "x"}, {"a": None}], {"a": ["1", '"x"', None]}),
        ([{"a": True}, {"a": 1}], {"a": ["true", "1"]}),
        ([{"a": 2**53 + 1}, {"a": 0.5}], {"a": [str(2**53 + 1), "0.5"]}),
        ([{"a": 2**70}], {"a": [str(2**70)]}),
        ([{"a": {"x": 1}}, {"a": {"y": [1, 2]}}], {"a": [{"x": 1, "y": None}, {"x": None, "y": [1, 2]}]}),
        ([{"a": [1]}, {"a": ["x"]}], {"a": ["[1]", '["x"]']}),
        ([1, 2], {"data": [1, 2]}),
        ([1, "x", None], {"data": ["1", '"x"', "null"]}),
        ([1, {"a": 2}], {"data": [1, None], "a": [None, 2]}),
        ([b'"\\ud800"', {"a": 2}], {"data": ['"\\ud800"', None], "a": [None, 2]}),
        ([b"[" * 9000 + b"]" * 9000], {"data": ["[" * 9000 + "]" * 9000]}),
        ([{"seq": 7, "data": 8, "": 9}], {"data.seq": [7], "data.data": [8], "": [9]}),
        ([{"data.seq": 6, "seq": 7}], {"data.seq": [6], "data.data.seq": [7]}),
    ],
)
def test_data_become_columns_and_nothing_is_left_out(data: list[Any], columns: dict[str, list[Any]]) -> None:
    assert columns_of(*data) == columns


def test_keys_that_are_values_become_no_columns() -> None:
    many = {str(n): n for n in range(COLUMNS_MAX + 1)}
    with pytest.raises(InvalidRequest, match=r"more than 1000 different fields.*expand=False"):
        columns_of(many)
    assert columns_of({"a": many}) == {"a": [json.dumps(many, separators=(",", ":"))]}
