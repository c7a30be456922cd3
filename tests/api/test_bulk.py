"""Bulk bodies and exports: NDJSON and Arrow in, Arrow out (additive)."""

import gzip
import json
from typing import Any
from zlib import crc32

import pyarrow as pa
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from msgspec.structs import replace

from tests.api.clients.transcript import WRITE_PERFORMANCE, Client, Reply, ok, refused
from tests.api.conftest import Start
from topics.core.topic.parts import Chunk
from topics.core.topic.records import check_batch
from topics.model import are_values
from topics.server.wire.bulk import ArrowRows
from topics.settings import Settings
from topics.storage.arrays import arrays_of, arrays_of_laid
from topics.testing.disk import MemoryDisk

NDJSON = "Content-Type: application/x-ndjson"
ARROW = "Content-Type: application/vnd.apache.arrow.stream"
HOSTILE = [
    '{"b":1.0,"a":12345678901234567890,"b":1e400}',
    "null",
    '"é😀\\u0000"',
    "[ 1 , 2.50 ]",
    '{ "a" : { } }',
    "-0",
    '""',
]


def arrow(columns: dict[str, list[str | None]], *, kind: Any = None, **options: Any) -> bytes:
    batch = pa.record_batch({name: pa.array(values, kind or pa.string()) for name, values in columns.items()})
    return stream_of([batch], **options)


def stream_of(batches: list[Any], **options: Any) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batches[0].schema, options=pa.ipc.IpcWriteOptions(**options)) as writer:
        for batch in batches:
            writer.write_batch(batch)
    return bytes(sink.getvalue())


def exported(reply: Reply) -> Any:
    """The table of an export."""
    assert reply.status == 200, reply
    assert reply.headers["content-type"] == "application/vnd.apache.arrow.stream"
    with pa.ipc.open_stream(reply.body) as reader:
        table = reader.read_all()
    table.validate(full=True)
    return table


def lost(table: Any) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads(table.schema.metadata[b"topics.lost"])
    return found


def texts(api: Client, topic: str) -> list[str]:
    """The data of all records as text, as diff shows it."""
    reply = api.post(f"/v0/topics/{topic}/diff", {"limit": 1000, "include_meta": False})
    raw = reply.body.decode()
    found, at = [], raw.index('"records":[') + len('"records":[')
    decoder = json.JSONDecoder()
    while raw[at] != "]":
        _, end = decoder.raw_decode(raw, at)
        record = raw[at:end]
        found.append(record[record.index('"data":') + len('"data":') : -1])
        at = end + (raw[end] == ",")
    return found


# --- NDJSON


def test_ndjson_is_one_record_per_line(api: Client, topic: str) -> None:
    """WR1, WR4, WR8, CV6"""
    lines = [f'{{"data":{text},"tag":"t{n}","meta":{{"n": {n} }}}}' for n, text in enumerate(HOSTILE)]
    reply = api.post(f"/v0/topics/{topic}", "\n".join(lines), NDJSON)
    answer = ok(reply, 201, WRITE_PERFORMANCE)
    assert (answer["seqs"], answer["created"]) == (list(range(1, len(HOSTILE) + 1)), True)
    assert texts(api, topic) == HOSTILE
    records = api.diff(topic, include_tags=True)["records"]
    assert [record["$tag"] for record in records] == [f"t{n}" for n in range(len(HOSTILE))]


@pytest.mark.parametrize(
    "body", ['{"data":1}\n{"data":2}\n', '{"data":1}\r\n{"data":2}', '{"data":1}\n\n{"data":2}\n\n']
)
def test_line_ends_and_blank_lines_do_not_matter(api: Client, topic: str, body: str) -> None:
    assert ok(api.post(f"/v0/topics/{topic}", body, NDJSON), 201)["count"] == 2
    assert api.data(topic) == [1, 2]


def test_a_bad_line_of_a_large_body_is_named_by_its_byte_in_the_whole(api: Client, topic: str) -> None:
    """WR3, LM10"""
    good = '{"data":"%s"}\n' % ("x" * 600_000)
    reply = api.post(f"/v0/topics/{topic}", good * 2 + '{"data":NaN}', NDJSON)
    assert (reply.status, f"(byte {2 * len(good) + 8})" in reply.json["error"]["message"]) == (400, True), reply.json


BAD_LINES = [
    b"",
    b"\n",
    b"not JSON",
    b'{"data":1}\nnot JSON',
    b'{"data":1} {"data":2}',
    b'{"data":1},\n{"data":2}',
    b'[{"data":1}]',
    b'{"data":1}\n{"tag":"x"}',
    b'{"data":1}\n{"data":2,"tag":5}',
    b'{"data":1}\n{"data":2,"meta":[]}',
    b'{"data":1}\n{"data":2,"tag":"' + b"x" * 300 + b'"}',
    b'{"data":1}\n1',
    b'{"data":1}\nnull',
    b'{"data":1}\n{"data":NaN}',
    b'{"data":1}\n{"data":"\xff"}',
    b'{"data":1}\n{"data":"\\ud800"}',
    b'{"data":\n1}',
    b'{"records":[{"data":1}]}',
]


@pytest.mark.parametrize("body", BAD_LINES, ids=repr)
def test_a_bad_line_refuses_all(api: Client, topic: str, body: bytes) -> None:
    """WR4, WR14, CV20, CV21"""
    before = api.everything()
    message = refused(api.post(f"/v0/topics/{topic}", body, NDJSON), 400, "invalid_request", None)
    if body.startswith(b'{"data":1}\n') and b"JSON" not in body and b"NaN" not in body and b"\xff" not in body:
        assert "[1]" in message or "ud800" in body.decode(errors="replace"), message
    assert api.everything() == before


def test_ndjson_keeps_the_limits_and_the_keys_of_any_write(start: Start, topic: str) -> None:
    """WR3, ID2, CV7, CV17"""
    api = Client(start(max_batch_records=3, max_body_bytes=1000, max_record_bytes=100).address)
    line = '{"data":1}\n'
    path = f"/v0/topics/{topic}"
    refused(api.post(path, line * 4, NDJSON), 400, "batch_too_large", None)
    refused(api.post(path, '{"data":"' + "x" * 100 + '"}', NDJSON), 400, "record_too_large", None)
    refused(api.post(path, line * 100, NDJSON), 413, "payload_too_large", None)
    refused(
        api.post(path, gzip.compress(line.encode() * 100), NDJSON, "Content-Encoding: gzip"), 413, "payload_too_large"
    )
    assert api.post(path, gzip.compress(line.encode() * 3), NDJSON, "Content-Encoding: gzip").status == 201
    first = ok(api.post(path, line * 2, NDJSON, "Idempotency-Key: k"))
    again = ok(api.post(path, line * 2, NDJSON, "Idempotency-Key: k"))
    assert (first["seqs"], again["seqs"], again["deduped"]) == ([4, 5], [4, 5], True)
    refused(api.post(path, line, NDJSON, f"Idempotency-Key: {'k' * 257}"), 400, "invalid_request")


@pytest.mark.parametrize("header", [NDJSON, ARROW])
@pytest.mark.parametrize("path", ["/diff", "/delete", "PUT"])
def test_bulk_types_are_for_writes_only(api: Client, topic: str, header: str, path: str) -> None:
    """CV2"""
    api.create(topic)
    method, path = ("PUT", "") if path == "PUT" else ("POST", path)
    refused(api.ask(method, f"/v0/topics/{topic}{path}", b"{}", header), 415, "unsupported_media_type", None)


# --- Arrow


def test_an_arrow_stream_is_one_record_per_row(api: Client, topic: str) -> None:
    """WR1, WR4, CV6"""
    count = len(HOSTILE)
    body = arrow(
        {
            "data": list(HOSTILE),
            "tag": [f"t{n}" if n % 2 else None for n in range(count)],
            "node": ["n" if n % 3 else None for n in range(count)],
            "meta": ['{"m": 1.50}' if n % 2 else None for n in range(count)],
        }
    )
    assert ok(api.post(f"/v0/topics/{topic}", body, ARROW), 201)["count"] == count
    assert texts(api, topic) == HOSTILE
    records = api.diff(topic, include_tags=True)["records"]
    assert [record.get("$tag") for record in records] == [f"t{n}" if n % 2 else None for n in range(count)]
    assert [record.get("$node") for record in records] == ["n" if n % 3 else None for n in range(count)]
    assert [
        '"meta":{"m": 1.50}' in api.post(f"/v0/topics/{topic}/diff", {"from_seq": n, "limit": 1}).body.decode()
        for n in range(count)
    ] == [bool(n % 2) for n in range(count)]


def test_several_batches_large_strings_and_other_columns_are_taken(api: Client, topic: str) -> None:
    batch = pa.record_batch({"x": pa.array([1, 2]), "data": pa.array(["1", "2"], pa.large_string())})
    answer = ok(api.post(f"/v0/topics/{topic}", stream_of([batch, batch, batch]), ARROW), 201)
    assert answer["count"] == 6
    assert api.data(topic) == [1, 2] * 3
    sliced = pa.record_batch({"data": pa.array([str(n) for n in range(100)])}).slice(17, 5)
    ok(api.post(f"/v0/topics/{topic}", stream_of([sliced]), ARROW))
    assert api.data(topic, 6) == [17, 18, 19, 20, 21]


GOOD_ARROW = arrow({"data": ["1", "2", "3"], "tag": ["a", "b", "c"]})


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"not Arrow",
        b"\xff\xff\xff\xff",
        b"\xff\xff\xff\xff\xff\xff\xff\x7f",
        GOOD_ARROW[:100],
        GOOD_ARROW[:-100],
        GOOD_ARROW[:8] + b"\xff" * 40 + GOOD_ARROW[48:],
        arrow({"tag": ["x"]}),
        arrow({"data": []}),
        arrow({"data": ["1", None]}),
        arrow({"data": ["1", "not JSON"]}),
        arrow({"data": ["1", ""]}),
        arrow({"data": ["1", "1 2"]}),
        arrow({"data": ["1", "NaN"]}),
        arrow({"data": ["1", '"\\ud800"']}),
        arrow({"data": ["1", "2"], "meta": [None, "[]"]}),
        arrow({"data": ["1", "2"], "meta": [None, "{"]}),
        arrow({"data": ["1", "2"], "tag": [None, "x" * 257]}),
        arrow({"data": ["1"]}, compression="zstd"),
        stream_of([pa.record_batch({"data": pa.array([1, 2])})]),
        stream_of([pa.record_batch({"data": pa.array(["1"]).dictionary_encode()})]),
        stream_of([pa.record_batch({"data": pa.array(["1"]), "tag": pa.array([1])})]),
        stream_of([pa.record_batch({"data": pa.array([b"\xff"], pa.binary())})]),
        stream_of([pa.RecordBatch.from_arrays([pa.array([b'"\xff"'], pa.binary()).view(pa.string())], names=["data"])]),
        stream_of([pa.record_batch([pa.array(["1"]), pa.array(["2"])], names=["data", "data"])]),
    ],
    ids=lambda body: f"{len(body)}-{crc32(body) % 997}",
)
def test_a_bad_arrow_body_is_refused_and_changes_nothing(api: Client, topic: str, body: bytes) -> None:
    """WR4, WR14, CV20, CV21"""
    before = api.everything()
    refused(api.post(f"/v0/topics/{topic}", body, ARROW), 400, "invalid_request", None)
    assert api.everything() == before


def test_a_mutated_arrow_body_is_taken_or_refused_and_never_breaks_the_server(api: Client, topic: str) -> None:
    """CV21: every byte of a small stream, changed in turn."""
    with api.connect() as connection:
        for at in range(0, len(GOOD_ARROW), 3):
            body = GOOD_ARROW[:at] + bytes([GOOD_ARROW[at] ^ 0x55]) + GOOD_ARROW[at + 1 :]
            connection.send(api.request("POST", f"/v0/topics/{topic}", body, ARROW))
            reply = connection.reply()
            assert reply.status in (200, 201, 400), (at, reply)
    assert api.get("/v0/health").status == 200


def test_arrow_keeps_the_limits_and_the_keys_of_any_write(start: Start, topic: str) -> None:
    """WR3, ID2"""
    api = Client(start(max_batch_records=3, max_record_bytes=100).address)
    path = f"/v0/topics/{topic}"
    refused(api.post(path, arrow({"data": ["1"] * 4}), ARROW), 400, "batch_too_large", None)
    refused(api.post(path, arrow({"data": ['"' + "x" * 100 + '"']}), ARROW), 400, "record_too_large", None)
    for is_repeat in (False, True):
        reply = api.post(path, arrow({"data": ["1", "2"]}), ARROW, "Idempotency-Key: k")
        assert ok(reply, 200 if is_repeat else 201)["deduped"] is is_repeat
    body = gzip.compress(arrow({"data": ["5"]}))
    assert api.post(path, body, ARROW, "Content-Encoding: gzip").status == 200
    assert api.data(topic) == [1, 2, 5]


def test_line_breaks_between_tokens_go_from_arrow_rows_as_well(api: Client, topic: str) -> None:
    """CV26"""
    body = arrow({"data": ['{"a":\n [1, 2]}', "[1 ,2]"], "meta": ['{\r\n"b":1}', None]})
    assert api.post(f"/v0/topics/{topic}", body, ARROW).status == 201
    assert texts(api, topic) == ['{"a":[1,2]}', "[1 ,2]"]
    assert b'"meta":{"b":1}' in api.post(f"/v0/topics/{topic}/diff", {}).body


TEXTS = st.one_of(st.none(), st.sampled_from(["", "a", "é😀", 'q"\\\n', "x" * 64]), st.text(max_size=3))
VALUES = st.one_of(
    st.sampled_from([*HOSTILE, " 1 ", "[1", "2]", "1,2", "", "{}\n", '"', '1,"a":2', '{"meta":null}', None]),
    st.integers().map(str),
)
ROWS = st.lists(st.tuples(VALUES, TEXTS, TEXTS, st.sampled_from([None, None, "{}", "null", "1"])), max_size=4)


@given(batches=st.lists(ROWS, max_size=3), has_meta=st.booleans(), key=st.sampled_from([None, "k", "k" * 257]))
def test_rows_checked_by_columns_are_those_checked_one_by_one(
    batches: list[list[tuple[str | None, ...]]], has_meta: bool, key: str | None
) -> None:
    """WR3, ID9, CV26: what is kept of them, their sizes and their digest are the same; none is bad that is taken."""
    names = ("data", "tag", "node", "meta") if has_meta else ("data", "tag", "node")
    tables = [
        pa.record_batch({name: pa.array([row[n] for row in rows], pa.string()) for n, name in enumerate(names)})
        for rows in batches or [[]]
    ]
    rows = ArrowRows.read(stream_of(tables), Settings())
    found = rows.batch(key)
    if found is not None:
        assert replace(found, layout=None) == check_batch(rows.records(), None, key, Settings())


PLAIN_TEXTS = st.one_of(st.none(), st.sampled_from(["", "a", "é😀", "x" * 64, ",", "}"]), TEXTS)
PLAIN_VALUES = st.one_of(st.sampled_from(HOSTILE), st.sampled_from(['"},{"', '{"data":1,"tag":"x"}']), st.just("1"))
PLAIN_ROWS = st.lists(st.tuples(PLAIN_VALUES, PLAIN_TEXTS, PLAIN_TEXTS), min_size=1, max_size=9)


@given(batches=st.lists(PLAIN_ROWS, min_size=1, max_size=3), left_out=st.sets(st.integers(0, 26)))
def test_rows_taken_from_a_body_by_its_layout_are_those_that_it_decodes_to(
    batches: list[list[tuple[str | None, ...]]], left_out: set[int]
) -> None:
    """CV6, ST6: on their way into a segment and out of an export, any of them."""
    names = ("data", "tag", "node")
    tables = [
        pa.record_batch({name: pa.array([row[n] for row in rows], pa.string()) for n, name in enumerate(names)})
        for rows in batches
    ]
    batch = ArrowRows.read(stream_of(tables), Settings()).batch("k")
    assert batch is not None
    fields = [text for rows in batches for row in rows for text in row[1:] if text is not None]
    assert (batch.layout is not None) == all(json.dumps(text, ensure_ascii=False) == f'"{text}"' for text in fields)
    assume(batch.layout is not None)
    chunk = Chunk(70)
    chunk.append(batch.body, batch.sizes, 5, batch.has_tags, batch.layout)
    sent = Chunk.from_image(chunk.image(), memoryview(batch.body))
    runs = [(row, row + 1) for row in range(chunk.count) if row not in left_out] or [(0, chunk.count)]
    decoded = arrays_of(chunk.columns(0, chunk.count).select(runs))
    for laid in (chunk.laid(), sent.laid()):
        assert laid is not None
        taken = arrays_of_laid(laid).select(runs)
        for found, expected in zip(taken, decoded, strict=True):
            found.validate(full=True)
            assert found.equals(expected)


@given(st.lists(st.text('[]{},:"1 ', max_size=3), max_size=6), st.integers(0, 2))
def test_texts_that_only_together_are_json_are_no_values(texts: list[str], skipped: int) -> None:
    """CV21: none reaches into its neighbour."""
    array = pa.array(texts, pa.string()).slice(skipped)

    def is_value(text: str) -> bool:
        try:
            json.loads(text)
        except ValueError:
            return False
        return text == text.strip()

    assert are_values(array) == all(is_value(text) for text in array.to_pylist())


@pytest.mark.parametrize("texts", [["1", "2"], ['{"a": [1, 2]}', '"b"'], ["1"] * 5000])
def test_ordinary_rows_are_checked_by_columns(texts: list[str]) -> None:
    body = arrow({"data": list(texts), "tag": ["t", *[None] * (len(texts) - 1)], "meta": [None] * len(texts)})
    assert ArrowRows.read(body, Settings()).batch("k") is not None


@pytest.mark.parametrize("depth", [600, 690, 900, 950, 970, 975, 100_000])
def test_arrow_rows_that_are_nested_too_deeply_to_be_read_are_refused(api: Client, topic: str, depth: int) -> None:
    """CV21: whoever reads a row finds it in a body, deeper down than it came."""
    nested = "[" * depth + "]" * depth
    for columns in ({"data": [nested]}, {"data": ["1"], "meta": [f'{{"a":{nested}}}']}):
        reply = api.post(f"/v0/topics/{topic}", arrow({name: list(texts) for name, texts in columns.items()}), ARROW)
        if reply.status not in (200, 201):
            refused(reply, 400, "invalid_request", None)
    if api.get(f"/v0/topics/{topic}").status == 200:
        ok(api.post(f"/v0/topics/{topic}/diff", {}))


# --- export


def test_an_export_holds_every_live_record_as_diff_shows_it(api: Client, topic: str) -> None:
    """CV6"""
    count = 300
    records = [
        {"data": {"n": n, "x": "é" * (n % 7)}}
        | ({"tag": f"t{n}"} if n % 2 else {})
        | ({"node": "n"} if n % 3 else {})
        | ({"meta": {"m": n}} if n % 5 else {})
        for n in range(count)
    ]
    for at in range(0, count, 50):
        api.write_records(topic, *records[at : at + 50])
    api.post(f"/v0/topics/{topic}/delete", {"match": "t7"})
    api.post(f"/v0/topics/{topic}/delete", {"before_seq": 3})
    table = exported(api.get(f"/v0/topics/{topic}/export"))
    shown = api.diff(topic, include_tags=True, limit=1000)["records"]
    assert table["seq"].to_pylist() == [record["$seq"] for record in shown]
    assert table["tag"].to_pylist() == [record.get("$tag") for record in shown]
    assert table["node"].to_pylist() == [record.get("$node") for record in shown]
    assert table["ts"].cast(pa.int64()).to_pylist() == [record["$ts"] for record in shown]
    assert [json.loads(text) for text in table["data"].to_pylist()] == [record["data"] for record in shown]
    assert [text and json.loads(text) for text in table["meta"].to_pylist()] == [record.get("meta") for record in shown]
    assert table["data"].to_pylist() == texts(api, topic)
    assert lost(table) == []
    metadata = table.schema.metadata
    assert metadata[b"topics.topic"] == topic.encode()
    assert int(metadata[b"topics.head_seq"]) == int(metadata[b"topics.last"]) == count
    assert int(metadata[b"topics.epoch"]) == api.state(topic)["epoch"]


def test_an_export_written_back_gives_the_same_bytes(api: Client, topic: str) -> None:
    """CV6, CV26: the round trip is exact."""
    lines = [f'{{"data":{text},"tag":"t{n}","node":"n","meta":{{ "k":{text}}}}}' for n, text in enumerate(HOSTILE * 20)]
    assert api.post(f"/v0/topics/{topic}", "\n".join(lines), NDJSON).status == 201
    reply = api.get(f"/v0/topics/{topic}/export")
    copied = api.post(f"/v0/topics/{topic}-copy", reply.body, ARROW)
    assert copied.status == 201, copied
    again = exported(api.get(f"/v0/topics/{topic}-copy/export"))
    first = exported(reply)
    for column in ("seq", "data", "meta", "tag", "node"):
        assert again[column].to_pylist() == first[column].to_pylist()
    one = api.post(f"/v0/topics/{topic}/diff", {"include_tags": True, "limit": 1000}).body
    other = api.post(f"/v0/topics/{topic}-copy/diff", {"include_tags": True, "limit": 1000}).body
    assert (
        one.partition(b'"records":')[2].partition(b'"performance"')[0]
        == other.partition(b'"records":')[2].partition(b'"performance"')[0]
    )


@pytest.mark.parametrize(
    ("query", "expected"),
    [
        ("after=0", range(1, 11)),
        ("after=4", range(5, 11)),
        ("last=3", range(1, 4)),
        ("after=2&last=5", range(3, 6)),
        ("after=10", range(0)),
        ("after=5&last=5", range(0)),
        ("last=99", range(1, 11)),
    ],
)
def test_an_export_may_be_a_range(api: Client, topic: str, query: str, expected: range) -> None:
    api.write(topic, *range(10))
    assert exported(api.get(f"/v0/topics/{topic}/export?{query}"))["seq"].to_pylist() == list(expected)


@pytest.mark.parametrize("query", ["after=x", "after=-1", "last=1.5", "after=18446744073709551616", "last=true"])
def test_a_malformed_range_is_refused(api: Client, topic: str, query: str) -> None:
    """CV18"""
    api.create(topic)
    refused(api.get(f"/v0/topics/{topic}/export?{query}"), 400, "invalid_request", None)


def test_an_export_tells_what_was_lost(api: Client, topic: str) -> None:
    """TM4: in its metadata, as the tombstone that diff would open with."""
    api.create(topic, cap_records=3)
    api.write(topic, *range(10))
    table = exported(api.get(f"/v0/topics/{topic}/export"))
    assert table["seq"].to_pylist() == [8, 9, 10]
    assert lost(table) == [api.diff(topic)["tombstone"]]
    assert lost(exported(api.get(f"/v0/topics/{topic}/export?after=7"))) == []


def test_an_export_from_sealed_segments_equals_one_from_memory(start: Start, topic: str) -> None:
    disk = MemoryDisk()
    server = start(disk=disk, segment_max_events=50)
    api = Client(server.address)
    for at in range(0, 500, 50):
        api.write_records(topic, *({"data": {"n": at + n}, "tag": f"t{n}", "meta": {"m": 1}} for n in range(50)))
    before = exported(api.get(f"/v0/topics/{topic}/export"))
    server.do(server.server.engine.checkpoint())
    api.write(topic, "tail")
    api.post(f"/v0/topics/{topic}/delete", {"match": "t9"})
    after = exported(api.get(f"/v0/topics/{topic}/export"))
    kept = [n for n, tag in enumerate(before["tag"].to_pylist()) if tag != "t9"]
    assert after.slice(0, len(kept)).equals(before.take(kept).cast(after.schema))
    assert after["data"].to_pylist()[-1] == '"tail"'
    again = Client(start(disk=server.run(disk.kill), segment_max_events=50).address)
    assert exported(again.get(f"/v0/topics/{topic}/export")).equals(after)


def test_arrow_rows_are_exported_alike_from_memory_from_segments_and_from_the_log(start: Start, topic: str) -> None:
    """CV6, ST6: with some of them deleted, and some that were written in another way between them."""
    disk = MemoryDisk()
    server = start(disk=disk, segment_max_events=5000)
    api = Client(server.address)
    for at in (0, 2000):
        rows = range(at, at + 2000)
        columns: dict[str, list[str | None]] = {
            "data": [f'{{"n": {n}, "t": "é"}}' for n in rows],
            "tag": [None if n % 3 else f"t{n % 30}" for n in rows],
            "node": ['a "b"' if at and n == 2500 else f"n{n}" for n in rows],
        }
        assert api.post(f"/v0/topics/{topic}", arrow(columns), ARROW).status == (200 if at else 201)
        api.write(topic, "between")
    api.post(f"/v0/topics/{topic}/delete", {"match": "t9"})
    before = exported(api.get(f"/v0/topics/{topic}/export"))
    assert before.num_rows == 4002 - sum(n % 30 == 9 for n in range(4000))
    crashed = Client(start(disk=server.run(disk.kill), segment_max_events=5000).address)
    assert exported(crashed.get(f"/v0/topics/{topic}/export")).equals(before)
    server.do(server.server.engine.checkpoint())
    assert exported(api.get(f"/v0/topics/{topic}/export")).equals(before)


@pytest.mark.parametrize("size", [500, 1000, 1500], ids=["below 1 MiB", "below 2 MiB", "above"])
def test_large_arrow_bodies_are_kept_refused_and_known_again_as_small_ones_are(
    api: Client, topic: str, size: int
) -> None:
    """CV6, WR3, ID1, ID9: however they are checked."""
    url, key = f"/v0/topics/{topic}", "Idempotency-Key: k"
    columns: dict[str, list[str | None]] = {
        "data": [json.dumps(f"{n}é" + "x" * size) for n in range(1500)],
        "tag": [None if n % 2 else f"t{n}" for n in range(1500)],
    }
    assert api.post(url, arrow(columns), ARROW, key).status == 201
    table = exported(api.get(f"{url}/export"))
    assert {name: table[name].to_pylist() for name in columns} == columns
    assert ok(api.post(url, arrow(columns), ARROW, key))["deduped"]
    other = {**columns, "tag": [*columns["tag"][:-1], "other"]}
    refused(api.post(url, arrow(other), ARROW, key, "Idempotency-Mismatch: refuse"), 409, "idempotency_mismatch")
    refused(api.post(url, arrow({**columns, "data": [*columns["data"][:-1], "{"]}), ARROW), 400, "invalid_request")
    assert exported(api.get(f"{url}/export")).num_rows == 1500


def test_an_export_of_nothing_is_an_empty_table(api: Client, topic: str) -> None:
    api.create(topic)
    table = exported(api.get(f"/v0/topics/{topic}/export"))
    assert table.num_rows == 0
    assert {"seq", "ts", "node", "tag", "meta", "data"} <= set(table.schema.names)
    refused(api.get(f"/v0/topics/{topic}-none/export"), 404, "topic_not_found")
    assert api.ask("HEAD", f"/v0/topics/{topic}/export").status == 200


def test_a_large_export_reaches_a_slow_reader_whole(api: Client, topic: str) -> None:
    for n in range(20):
        api.write(topic, *("x" * 5000 + str(n) for _ in range(100)))
    with api.connect() as connection:
        connection.send(api.request("GET", f"/v0/topics/{topic}/export"))
        connection.read_until(b"\r\n\r\n")
        for _ in range(3):
            api.write(topic, "meanwhile")
        connection.unread = b""
    table = exported(api.get(f"/v0/topics/{topic}/export?last=2000"))
    assert (table.num_rows, table.nbytes > 10_000_000) == (2000, True)
