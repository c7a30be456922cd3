"""Large bodies: put together as they come in, and taken apart record by record (LM10, LM11)."""

import gc
import json
import random
import sys
import time
import tracemalloc
from dataclasses import replace
from typing import Any, Final

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.api.clients.raw import listed
from tests.api.clients.websocket import client_frame
from topics.core.topic.records import RecordIn, WriteIn, check_batch, decode_json
from topics.errors import InvalidRequest, RecordTooLarge, Refusal
from topics.server.transport.encoding import FILLED_BYTES_MIN, Filling
from topics.server.transport.websocket_reader import BINARY, CONT, TEXT, BrokenOff, FrameReader
from topics.server.wire.bulk import ndjson_in
from topics.server.wire.large import LARGE_BYTES, REST_BYTES_MAX, lines_in, put_together, take_apart
from topics.settings import MIB, Settings

LIMITS: Final = replace(Settings(), max_record_bytes=100_000)
_decode = msgspec.json.Decoder(WriteIn).decode


# --- as it comes in


@pytest.mark.parametrize("length", [0, 1, 2, 5000, -1])
def test_a_body_is_put_together_of_its_parts(length: int) -> None:
    """LM11: with its length known or not."""
    whole = random.Random(1).randbytes(5000 if length < 0 else length)
    filling = Filling(length, [whole[:700], bytearray(whole[700:900])])
    for start in range(900, len(whole), 333):
        filling.add(whole[start : start + 333])
    assert filling.size == len(whole)
    assert filling.take() == whole


def test_a_body_is_not_longer_than_announced_and_may_be_shorter() -> None:
    """LM11"""
    filling = Filling(10, [b"12345678"])
    with pytest.raises(ValueError, match="11 bytes of a body of 10"):
        filling.add(b"9ab")
    assert filling.take() == b"12345678"


def test_bodies_that_are_announced_take_no_memory_before_they_come() -> None:
    """LM11: and one that has come is there once."""
    part = bytes(64 * 1024)
    tracemalloc.start()
    try:
        filling = Filling(16 * MIB)
        for _ in range(256):
            filling.add(part)
        tracemalloc.reset_peak()
        held, _ = tracemalloc.get_traced_memory()
        assert len(filling.take()) == 16 * MIB
        assert tracemalloc.get_traced_memory()[1] - held < MIB
    finally:
        tracemalloc.stop()


def read_all(reader: FrameReader, pieces: list[bytes]) -> list[tuple[int, bytes]]:
    found = []
    for piece in pieces:
        reader.feed(piece)
        reader.work = 0
        while (one := reader.next()) is not None:
            found.append(one)
            reader.work = 0  # the next turn
    return found


@pytest.mark.parametrize("seed", range(8))
def test_large_frames_survive_any_cuts_and_fragments(seed: int) -> None:
    """WS2, LM10"""
    choice = random.Random(seed)
    large = ("ä€𐍈" + chr(choice.randrange(32, 127))).encode() * (FILLED_BYTES_MIN // 5)
    cut = choice.randrange(len(large))
    stream = b"".join(
        (
            client_frame(TEXT, large),
            client_frame(BINARY, large[:cut], fin=False),
            client_frame(9, b"between"),
            client_frame(CONT, large[cut:], fin=False),
            client_frame(CONT, large),
            client_frame(TEXT, b"small"),
        )
    )
    cuts = sorted(choice.randrange(len(stream) + 1) for _ in range(choice.randrange(1, 40)))
    pieces = [stream[a:b] for a, b in zip([0, *cuts], [*cuts, len(stream)], strict=True)]
    expected = [(TEXT, large), (9, b"between"), (BINARY, large + large), (TEXT, b"small")]
    assert read_all(FrameReader(8 * MIB), pieces) == expected


def test_a_large_text_that_is_none_is_refused_where_that_shows() -> None:
    """WS10: not when all of it has come."""
    frame = client_frame(TEXT, b"a" * 100 + b"\xff" + b"a" * 2 * MIB)
    reader = FrameReader(8 * MIB)
    reader.feed(frame[:1000])
    with pytest.raises(BrokenOff, match="not UTF-8"):
        reader.next()


# --- taken apart


def outcome(decode: Any, body: bytes) -> Any:
    try:
        write = decode(body)
    except Refusal as refusal:
        return refusal.code, refusal.message
    return {name: repr(getattr(write, name)) for name in write.__struct_fields__ if name != "records"}, [
        (bytes(one.data).strip(), one.tag, one.node, bytes(one.meta).strip(), one.delay_ms, one.deliver_at)
        for one in write.records
    ]


def same(body: bytes) -> None:
    """However a write is decoded, the same comes of it; of several faults another one may be named."""
    whole, apart = outcome(lambda text: decode_json(_decode, text), body), outcome(_apart, body)
    if whole[0] == InvalidRequest.code:
        assert apart[0] == InvalidRequest.code, (body, whole, apart)
    else:
        assert apart == whole, body


def _apart(body: bytes) -> Any:
    return put_together(_decode, take_apart(body, LIMITS))


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-5, 10**20) | st.text(max_size=5) | st.floats(allow_nan=False),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=6,
)
RECORDS = st.fixed_dictionaries(
    {"data": VALUES},
    optional={
        "tag": st.text(max_size=3) | st.none(),
        "node": st.text(max_size=3),
        "meta": st.dictionaries(st.text(max_size=3), VALUES, max_size=2) | st.none(),
        "delay_ms": st.integers(-1, 10),
        "other": VALUES,
    },
)
WRITES = st.fixed_dictionaries(
    {"records": st.lists(RECORDS, max_size=4)},
    optional={
        "node": st.text(max_size=3) | st.integers(),
        "idempotency_key": st.text(max_size=3),
        "create": st.booleans(),
        "config": st.fixed_dictionaries({}, optional={"durability": st.sampled_from(["fsync", "no"])}),
        "other": VALUES,
    },
)


@given(WRITES, st.booleans(), st.randoms(use_true_random=False), st.sampled_from([None, 1, "\t"]))
@settings(derandomize=True, database=None)
def test_a_write_that_is_taken_apart_is_the_write(
    write: dict[str, Any], is_escaped: bool, choice: random.Random, indent: Any
) -> None:
    """LM10, WR1: with its fields in any order, and whatever is wrong with it."""
    fields = list(write.items())
    choice.shuffle(fields)
    body = json.dumps(dict(fields), ensure_ascii=is_escaped, indent=indent).encode()
    same(body)
    for _ in range(4):
        at = choice.randrange(len(body))
        same(body[:at])
        same(body[:at] + body[at + 1 :])
        same(body[:at] + choice.choice([b",", b"}", b"]", b'"', b"{", b"[", b":", b"1", b" ", b"\n"]) + body[at:])


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b" ",
        b"[]",
        b"null",
        b"1",
        b'"records"',
        b"{}",
        b'{"records":null}',
        b'{"records":{}}',
        b'{"records":[]}',
        b'{"records":[1]}',
        b'{"records":[{"data":1},]}',
        b'{"records":[,{"data":1}]}',
        b'{"records":[{"data":1} {"data":1}]}',
        b'{"records":[{"data":1}],}',
        b'{"records":[{"data":1}]}}',
        b'{"records":[{"data":1}]} x',
        b'{"records":[{"data":1}]} \n',
        b'{"records":[{"data":1}],"records":[{"data":2},{"data":3}]}',
        b'{"records":[{"data":1}],"records":[]}',
        b'{"rec\\u006frds":[{"d\\u0061ta":1}]}',
        b'{"records":[{"data":1,"data":2}]}',
        b'{"records":[{"data":1}%b]}' % (b" " * 2 * MIB),
        b'{"records":%b[%b{"data":1%b}]}' % (b" " * 2 * MIB, b" " * MIB, b"\n" * 200_000),
        b'{"records":[{"data":1}],"node":"n"%b}' % (b" " * 2 * MIB),
        b'{"idempotency_key"%b:"k","records":[{"data":1}]}' % (b"\n" * 2 * MIB),
        b'{"records":[{"data":"\xff"}]}',
        b'{"records":[{"data":' + b"[" * 100_000,
        b'{"records":[{"data":1}],"x":' + b"[" * 900 + b"]" * 900 + b"}",
    ],
    ids=lambda body: body[:40].decode("latin-1") or "nothing",
)
def test_odd_writes_are_the_same_apart(body: bytes) -> None:
    """LM10, WR3, CV4"""
    same(body)


@pytest.mark.parametrize(
    "record", [b"1", b"{}", b'{"data":1,"tag":7}', b'{"data":1,"delay_ms":-1}', b'{"data":1,"meta":tru}', b"{'data':1}"]
)
def test_a_fault_is_named_the_same_apart(record: bytes) -> None:
    """WR3: the record, the field, what it must be; of what is no JSON, the byte."""
    body = b'{"node":"n","records":[{"data":1},{"data":2},%b]}' % record
    assert outcome(_apart, body) == outcome(lambda text: decode_json(_decode, text), body)


def nested(size: int) -> bytes:
    return b"[%b]" % listed(b"{}", size // 3)


@pytest.mark.parametrize(
    ("body", "refusal", "message"),
    [
        (b'{"records":[{"data":%b}]}' % nested(16 * MIB), RecordTooLarge, r"records\[0\] is more than \d+ bytes"),
        (b'{"records":[{"data":1},{"x":%b}]}' % nested(16 * MIB), RecordTooLarge, r"records\[1\] is more than"),
        (b'{"records":[{"data":1}],"x":%b}' % nested(16 * MIB), InvalidRequest, "bytes beside its records"),
        (b'{"x":"%b","records":[{"data":1}]}' % (b"x" * 16 * MIB), InvalidRequest, "bytes beside its records"),
        (b'{"%b":1,"records":[{"data":1}]}' % (b"x" * 16 * MIB), InvalidRequest, "bytes beside its records"),
        (b'{"x":%b,"records":[{"data":1}]}' % (b"1" * 16 * MIB), InvalidRequest, "bytes beside its records"),
        (b"{%b}" % listed(b'"a":1', 3_000_000), InvalidRequest, "bytes beside its records"),
    ],
    ids=["data", "a field of a record", "a field", "a text", "a key", "a number", "fields"],
)
def test_a_value_that_cannot_be_taken_is_not_decoded_to_its_end(
    body: bytes, refusal: type[Refusal], message: str
) -> None:
    """LM9, LM10: whoever decodes holds the interpreter until the value ends."""
    plain = _seconds(lambda: outcome(lambda text: decode_json(_decode, text), body))
    spent = _seconds(lambda: take(body, refusal, message))
    print(f"{spent:.4f} s, {plain:.4f} s as a whole")
    if b"{}" in body:
        assert spent < plain


@pytest.mark.parametrize("number", [b"-1", b"1.5", b"1e5", b"1e-5", b"true", b'"\\u00e4"', '"\u00e4"'.encode()])
def test_wherever_a_window_ends_what_does_not_fit_it_is_too_large_and_no_bad_json(number: bytes) -> None:
    """LM10, WR3"""
    window_bytes = 4 * LIMITS.max_record_bytes + LARGE_BYTES
    opening, record = b'{"records":[', b'{"data":['
    for cut in range(1, len(number) + 1):
        filling = b"1," * ((window_bytes - len(record) - cut) // 2)
        blank = b" " * (window_bytes - len(record) - cut - len(filling))
        body = b"%b%b%b%b%b]}]}" % (opening, record, filling, blank, number)
        assert body[len(opening) + window_bytes - cut :].startswith(number)
        take(body, RecordTooLarge, r"records\[0\] is more than")


def take(body: bytes, refusal: type[Refusal], message: str) -> None:
    with pytest.raises(refusal, match=message):
        put_together(_decode, take_apart(body, LIMITS))


def _seconds(work: Any) -> float:
    began = time.process_time()
    work()
    return time.process_time() - began


def test_what_lies_behind_records_that_are_refused_is_known() -> None:
    """WS5: a publish is refused by its request_id, which may come last."""
    for records in (b'{"data":1,"tag":7}', listed(b'{"data":1}', 20_000), b"1,{},[]"):
        apart = take_apart(b'{"a":1,"records":[%b],"request_id":"x"}' % records, LIMITS, goes_on=True)
        assert json.loads(apart.rest) == {"a": 1, "records": [], "request_id": "x"}
        assert apart.refusal is not None and not apart.records
    assert take_apart(b'{"a":1,"records":[7],"b":1}', LIMITS).rest == b'{"a":1,"records":[]}'
    assert len(take_apart(b'{"a":"%b","b":1}' % (b"x" * (REST_BYTES_MAX + 1)), LIMITS, goes_on=True).rest) < 100


def test_a_refused_body_is_let_go_of_at_once() -> None:
    """LM11: an exception that knows its own frame would keep it until the next collection."""
    gc.collect()
    gc.disable()
    try:
        for text in (
            b'{"records":[{"data":1,"tag":7}]}',
            b'{"records":[{]}',
            b'{"records":[%b]}' % nested(30_000),
            b'{"records":[{"data":1}%b}}' % bytes(9),
        ):
            body = bytes(bytearray(text))
            before = sys.getrefcount(body)
            with pytest.raises(Refusal):
                put_together(_decode, take_apart(body, LIMITS))
            assert sys.getrefcount(body) == before
    finally:
        gc.enable()


# --- lines


ENDS = st.sampled_from(["\n", "\r\n", "\n\n", " \n", "\n \r\n", "\r"])


@given(st.lists(st.tuples(RECORDS, ENDS), max_size=5), st.booleans())
@settings(derandomize=True, database=None)
def test_lines_are_the_same_one_by_one(lines: list[tuple[dict[str, Any], str]], ends: bool) -> None:
    """WR1, LM10"""
    body = "".join(json.dumps(record) + end for record, end in lines).encode()
    if not ends:
        body = body.rstrip()
    whole = outcome(lambda text: WriteIn(ndjson_in(text, LIMITS)), body)
    one_by_one = outcome(lambda text: WriteIn(lines_in(text, LIMITS)), body)
    if one_by_one != whole:  # the value at fault is shown only where all that stands around it is JSON
        assert one_by_one[0] == whole[0] == InvalidRequest.code
        assert one_by_one[1].startswith(f"{whole[1]} (")


@pytest.fixture(params=[1024, 0], ids=["copied", "where it is"])
def a_line_is_decoded(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Lines are copied up to a length, and longer ones are not."""
    monkeypatch.setattr("topics.server.wire.large.COPIED_BYTES_MAX", request.param)


@pytest.mark.usefixtures("a_line_is_decoded")
@pytest.mark.parametrize("end", [b"\n", b"\r\n", b"\r", b"\n \n", b"\n\n\t"])
def test_lines_are_the_records_in_them(end: bytes) -> None:
    """WR3, LM11"""
    body = end.join([b'{"data":1}', b' {"data":[2, 3]} ', b'{"tag":"t","data":"x"}', b""])
    assert [(bytes(one.data), one.tag) for one in lines_in(body, LIMITS)] == [
        (bytes(one.data), one.tag) for one in ndjson_in(body, LIMITS)
    ]


@pytest.mark.usefixtures("a_line_is_decoded")
@pytest.mark.parametrize(
    "body",
    [
        b"{}",
        b'{"data":1}\n[]',
        b'{"data":1}{"data":2}',
        b'{"data":\r1}',
        b'{"data":\n1}',
        b'{"data":1}\n\x0c\n',
        b"\x0b",
    ],
)
def test_lines_that_are_no_records_are_refused_one_by_one(body: bytes) -> None:
    """WR3"""
    for read in (ndjson_in, lines_in):
        with pytest.raises(InvalidRequest):
            read(body, LIMITS)


@pytest.mark.usefixtures("a_line_is_decoded")
@pytest.mark.parametrize(
    "line",
    [b'{"data":1,"delay_ms":-1}', b'{"data":NaN}', b'{"tag":"t"}', b"7", b'{"data":1,"tag":7}', b'{"data":"\xc3"}'],
)
def test_a_refused_line_is_told_in_the_same_words(line: bytes) -> None:
    """CV3, WR3: with its number, its value and its byte in the whole."""
    body = b'{"data":1}\r\n\n{"data":2}\n' + line + b"\n"
    told = []
    for read in (ndjson_in, lines_in):
        with pytest.raises(InvalidRequest) as refused:
            read(body, LIMITS)
        told.append(refused.value.message)
    assert told[0] == told[1]


@pytest.mark.usefixtures("a_line_is_decoded")
@pytest.mark.parametrize("body", [b'{"data":1}\n{"data":NaN}', b' \r\n\n{"data":1}\r\n{"data":[1,}\n'])
def test_the_byte_at_which_a_line_is_bad_is_that_of_the_whole_body(body: bytes) -> None:
    """WR3"""
    whole, lines = (
        outcome(lambda text: ndjson_in(text, LIMITS), body),
        outcome(lambda text: lines_in(text, LIMITS), body),
    )
    assert lines == whole and "(byte " in lines[1]


def test_a_line_that_is_too_long_is_not_decoded_to_its_end() -> None:
    """LM9, LM10"""
    with pytest.raises(RecordTooLarge, match=r"records\[1\] is more than"):
        lines_in(b'{"data":1}\n{"data":%b}' % nested(16 * MIB), LIMITS)


# --- what is kept of it


@pytest.mark.parametrize(
    ("between", "node"), [(b",", None), (b",\n", "n"), (b" , ", None)], ids=["clean", "over lines", "spaced"]
)
def test_a_large_batch_is_the_batch_of_its_records(between: bytes, node: str | None) -> None:
    """LM10, ID9: digest, sizes, pieces; and its records are let go of."""
    data = b"[%b]" % between.join([b"1"] * 2000)
    body = b'{"records":[%b]}' % b",".join([b'{"data":%b,"tag":"t%d"}' % (data, n) for n in range(600)])
    plain = decode_json(_decode, body).records
    small = [check_batch([one], node, "key", Settings()) for one in decode_json(_decode, body).records]
    records: list[RecordIn] = take_apart(body, Settings()).records
    batch = check_batch(records, node, "key", Settings(), body)
    assert not records
    assert list(batch.sizes) == [size for one in small for size in one.sizes]
    assert batch.pieces is not None and len(batch.pieces) > 1
    kept = [record for text, _ in batch.pieces for record in json.loads(text)["records"]]
    assert kept == json.loads(batch.body)["records"] == json.loads(body)["records"]
    assert all(json.loads(text).get("node") == node for text, _ in batch.pieces)
    assert b"\n" not in batch.body and not any(b"\n" in text for text, _ in batch.pieces)
    assert [len(sizes) for _, sizes in batch.pieces] == [len(json.loads(text)["records"]) for text, _ in batch.pieces]
    few = check_batch(plain[:5], node, "key", Settings())
    assert few.digest == check_batch(take_apart(body, Settings()).records[:5], node, "key", Settings()).digest
