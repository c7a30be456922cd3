"""Rows as records: what is one, what is not, and how they are sent."""

import json
from collections.abc import Iterator
from contextlib import closing
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import msgspec
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType

from topics.client.protocol.operations import arrow_body
from topics.errors import InvalidRequest
from topics.server.wire.bulk import ArrowRows
from topics.settings import Settings
from topics.spark import rows, writer
from topics.spark.rows import BadRow, RowChecker, Spool
from topics.spark.writer import Chunk, chunks

pytestmark = pytest.mark.usefixtures("spark")  # it parses the schemas


def checked(schema: str, values: list[tuple[Any, ...]], topic: str | None = "t", row: int = 0) -> list[dict[str, Any]]:
    shape = StructType.fromDDL(schema)
    arrow = to_arrow_schema(shape, timezone="UTC")
    batch = pa.RecordBatch.from_pylist([dict(zip(shape.fieldNames(), value, strict=True)) for value in values], arrow)
    return RowChecker.of(shape, topic).check(batch, row).to_pylist()


def data_of(schema: str, *values: Any) -> list[str]:
    return [row["data"] for row in checked(schema, [(value,) for value in values])]


def test_json_texts_are_taken_as_they_are() -> None:
    """CV6"""
    texts = ['{"b": 1.0,  "a":1e3}', "null", '"é\\u00e9"', "[]", " 1 "]
    assert data_of("data STRING", *texts) == texts


def test_texts_with_line_breaks_are_compacted_as_the_server_does_it() -> None:
    """CV26"""
    assert data_of("data STRING", '{\r\n  "a b": [1,\n 2]\n}', '{"a": 1}') == ['{"a b":[1,2]}', '{"a": 1}']


@pytest.mark.parametrize(
    "text", ["", " ", "{bad", "1 2", "1][2", "1,2", "[1,", '"\n"', "NaN", "01", '"\\ud800"', "tru"]
)
def test_a_text_that_is_not_json_is_named_by_its_row(text: str) -> None:
    values = [("1",)] * 5 + [(text,)] + [("2",)] * 3
    with pytest.raises(BadRow, match=r"row 1005 of the partition.*nothing of this partition was written"):
        checked("data STRING", values, row=1000)


def test_values_cannot_make_up_for_each_other() -> None:
    with pytest.raises(BadRow, match=r"row 0 "):
        checked("data STRING", [("[1,",), ("2]",), ("3 4",)])


def test_a_null_text_is_no_record_and_a_null_struct_is_null() -> None:
    with pytest.raises(BadRow, match=r"row 1 .*a JSON null is the text null"):
        checked("data STRING", [("1",), (None,)])
    assert data_of("data STRUCT<a: INT>", {"a": 1}, None) == ['{"a":1}', "null"]


def test_structs_maps_and_arrays_become_json() -> None:
    assert data_of("data STRUCT<a: INT, b: STRING, c: STRUCT<d: BOOLEAN>>", {"a": 1, "b": None, "c": {"d": True}}) == [
        '{"a":1,"c":{"d":true}}'
    ]
    assert data_of("data MAP<STRING, ARRAY<INT>>", {"x": [1, None]}) == ['{"x":[1,null]}']
    assert data_of("data MAP<BIGINT, STRING>", {7: "a"}) == ['{"7":"a"}']
    assert data_of("data ARRAY<DOUBLE>", [1.5, 2.0]) == ["[1.5,2.0]"]


def test_times_decimals_and_binaries_have_a_json_form() -> None:
    schema = "data STRUCT<t: TIMESTAMP, d: DATE, n: DECIMAL(10,2), b: BINARY>"
    moment = datetime(2026, 1, 31, 12, 30, 0, 250_000, UTC)
    value = {"t": moment, "d": date(2026, 1, 31), "n": Decimal("10.50"), "b": b"abc"}
    assert data_of(schema, value) == ['{"t":"2026-01-31T12:30:00.250000Z","d":"2026-01-31","n":10.50,"b":"YWJj"}']


@pytest.mark.parametrize("meta", ["[]", "1", "{bad", '"x"'])
def test_meta_is_an_object(meta: str) -> None:
    """WR1"""
    with pytest.raises(BadRow, match=r"row 1 .*meta is .* not a JSON object"):
        checked("data STRING, meta STRING", [("1", '{"k": 1}'), ("1", meta)])


def test_absent_tags_nodes_and_metas_stay_absent() -> None:
    found = checked("meta STRING, data STRING, tag STRING", [(None, "1", "x"), ('{"k":1}', "2", None)])
    assert [(row["meta"], row["tag"], row["node"]) for row in found] == [(None, "x", None), ('{"k":1}', None, None)]


def test_a_column_topic_goes_before_the_option() -> None:
    found = checked("data STRING, topic STRING", [("1", "a"), ("2", None)], topic="b")
    assert [row["topic"] for row in found] == ["a", "b"]
    with pytest.raises(BadRow, match=r"row 1 .*topic is null"):
        checked("data STRING, topic STRING", [("1", "a"), ("2", None)], topic=None)
    with pytest.raises(BadRow, match=r"row 1 .*'a b' is not a topic name"):
        checked("data STRING, topic STRING", [("1", "a"), ("2", "a b")])


@pytest.mark.parametrize(
    ("schema", "topic", "message"),
    [
        ("value STRING", "t", "columns value cannot be written"),
        ("tag STRING", "t", "no column data"),
        ("data STRING", None, "which topic to write to"),
        ("data INT", "t", "column data is of type integer"),
        ("data STRING, tag INT", "t", "column tag is of type integer"),
        ("data STRING, meta ARRAY<INT>", "t", "column meta is of type array"),
        ("data STRING, seq BIGINT, ts TIMESTAMP", "t", "columns seq, ts cannot be written"),
    ],
)
def test_a_frame_without_records_is_refused_before_any_task(schema: str, topic: str | None, message: str) -> None:
    with pytest.raises(InvalidRequest, match=message):
        RowChecker.of(StructType.fromDDL(schema), topic)


# --- chunks

CUTS = [(0, 4), (4, 2), (6, 2), (8, 1), (9, 1), (10, 1), (11, 1), (12, 1), (13, 2)]

TEXTS = st.text(st.characters(codec="utf-8"), max_size=8)
RECORDS = st.lists(
    st.tuples(st.sampled_from(["a", "b", "c"]), st.integers(), st.none() | TEXTS, st.none() | TEXTS, st.booleans()),
    min_size=1,
    max_size=60,
)


def batches_of(records: list[tuple[Any, ...]], sizes: Iterator[int]) -> Iterator[pa.RecordBatch]:
    columns = [
        {
            "topic": topic,
            "data": json.dumps(value),
            "tag": tag,
            "node": node,
            "meta": json.dumps({"n": value}) if has_meta else None,
        }
        for topic, value, tag, node, has_meta in records
    ]
    schema = pa.schema([(name, pa.string()) for name in rows.COLUMNS])
    while columns:
        size = next(sizes)
        yield pa.RecordBatch.from_pylist(columns[:size], schema)
        columns = columns[size:]


def plan(made: Iterator[Chunk]) -> list[tuple[str, int, int, str]]:
    """The chunks, each with the records that a server takes from its body, as JSON."""
    return [
        (
            chunk.topic,
            chunk.place,
            chunk.count,
            msgspec.json.encode(ArrowRows.read(arrow_body(chunk.rows()), Settings()).records()).decode(),
        )
        for chunk in made
    ]


@given(RECORDS, st.integers(1, 9), st.integers(1, 9), st.sampled_from([1, 4, 7]))
def test_chunks_depend_on_the_rows_and_not_on_their_batches(
    records: list[tuple[Any, ...]], one: int, other: int, chunk_records: int
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(writer, "CHUNK_RECORDS", chunk_records)
        patch.setattr(writer, "CHUNK_BYTES", 40)
        made = plan(chunks(batches_of(records, iter(lambda: one, 0))))
        again = plan(chunks(batches_of(records, iter(lambda: other, 0))))
    assert sorted(made) == sorted(again)  # which topic comes first is open
    for topic in {record[0] for record in records}:
        found = [record for name, _, _, body in made if name == topic for record in json.loads(body)]
        expected = [record for record in records if record[0] == topic]
        assert found == [
            {
                "data": value,
                **({} if tag is None else {"tag": tag}),
                **({} if node is None else {"node": node}),
                **({"meta": {"n": value}} if has_meta else {}),
            }
            for _, value, tag, node, has_meta in expected
        ]
    assert all(count <= chunk_records for _, _, count, _ in made)


@pytest.mark.parametrize("size", [1, 7, 100])
def test_chunks_are_cut_where_they_always_were(monkeypatch: pytest.MonkeyPatch, size: int) -> None:
    """ID1: the key of a chunk is its place, so a batch of an earlier version that is run again must have the same."""
    monkeypatch.setattr(writer, "CHUNK_RECORDS", 4)
    monkeypatch.setattr(writer, "CHUNK_BYTES", 10)
    lengths = [1, 1, 1, 1, 1, 8, 2, 3, 30, 1, 30, 5, 5, 6, 0]
    columns = {name: pa.nulls(len(lengths), pa.string()) for name in rows.COLUMNS}
    columns["topic"] = pa.array(["a"] * len(lengths))
    columns["data"] = pa.array(["1" * length for length in lengths])
    columns["meta"] = pa.array([None] * 11 + ["22222", None, None, "2"])
    batches = pa.table(columns).to_batches(max_chunksize=size)
    assert [(chunk.place, chunk.count) for chunk in chunks(iter(batches))] == CUTS


def test_a_chunk_that_is_too_much_for_a_server_is_halved_at_the_same_place() -> None:
    records = [("a", n, None, None, False) for n in range(5)]
    (chunk,) = chunks(batches_of(records, iter(lambda: 5, 0)))
    assert [(half.place, half.count) for half in chunk.halves()] == [(0, 2), (2, 3)]
    assert chunk.halves()[1].row(2) == 4


def test_the_place_of_a_chunk_is_that_among_the_rows_of_its_topic() -> None:
    """ID9: a row more or less of another topic moves no key, and the first chunk of each topic is always the same."""
    few, more = ["a", "b", "a"], ["b", "a", "b", "a"]
    for topics in (few, more):
        made = plan(chunks(batches_of([(topic, n, None, None, False) for n, topic in enumerate(topics)], iter([9]))))
        assert sorted((topic, place) for topic, place, _, _ in made) == [("a", 0), ("b", 0)]


def test_rows_that_wait_are_the_same_from_memory_and_from_a_file(monkeypatch: pytest.MonkeyPatch) -> None:
    records = [("a", n, f"t{n}", None, True) for n in range(100)]
    for limit in (10**9, 300, 0):
        monkeypatch.setattr(rows, "SPILL_BYTES", limit)
        with closing(Spool()) as spool:
            for batch in batches_of(records, iter(lambda: 7, 0)):
                spool.add(batch)
            assert [row["tag"] for batch in spool.batches() for row in batch.to_pylist()] == [
                f"t{n}" for n in range(100)
            ]


# --- bytes


def binary(how: str, *values: bytes | None) -> list[str]:
    shape = rows.marked(StructType.fromDDL("data BINARY"), how)
    batch = pa.RecordBatch.from_pydict({"data": pa.array(values, pa.binary())})
    return [row["data"] for row in RowChecker.of(shape, "t").check(batch, 0).to_pylist()]


def test_bytes_are_json_texts_or_become_base64() -> None:
    assert binary("text", b'{"a": 1}', b"null") == ['{"a": 1}', "null"]
    assert binary("base64", b"\xff\x00", b"", None) == ['"/wA="', '""', "null"]


@pytest.mark.parametrize("value", [b"\xff", b"{", None])
def test_bytes_that_are_no_json_text_are_named_by_their_row(value: bytes | None) -> None:
    with pytest.raises(BadRow, match=r"row 1 of the partition"):
        binary("text", b"1", value)
