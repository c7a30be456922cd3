"""The body of a write: what is refused and why, what is kept and how."""

import json
import tracemalloc
from sys import getsizeof
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import UNSET, Raw

from tests.effort import swept
from topics.core.topic.records import NO_META, Batch, RecordIn, WriteIn, batch_of, check_batch, decode_body, parse_write
from topics.errors import BatchTooLarge, InvalidRequest, RecordTooLarge
from topics.settings import Settings

LIMITS = Settings()
SMALL = Settings(max_batch_records=2, max_record_bytes=20, max_meta_bytes=10, max_tag_bytes=4, max_node_bytes=4)


def parse(body: bytes | str, limits: Settings = LIMITS) -> tuple[WriteIn, Batch]:
    return parse_write(body.encode() if isinstance(body, str) else body, limits)


def kept(batch: Batch) -> list[tuple[bytes, bytes, str | None, str | None]]:
    return [(bytes(r.data), bytes(r.meta), r.tag, r.node) for r in decode_body(batch.body).records]


REFUSED: list[tuple[str, str]] = [
    ("", "not valid JSON"),
    ("[]", "the body must be an object, not an array"),
    ("7", "the body must be an object, not a number (7)"),
    ("{}", "records is missing"),
    ('{"records":null}', "records must be an array, not null"),
    ('{"records":[]}', "records is empty"),
    ('{"records":{}}', "records must be an array, not an object"),
    ('{"records":[1]}', "records[0] must be an object, not a number (1)"),
    ('{"records":[{"tag":"x"}]}', "records[0].data is missing"),
    ('{"records":[{"data":1,"tag":7}]}', "records[0].tag must be a string or null, not a number (7)"),
    ('{"records":[{"data":1,"node":[]}]}', "records[0].node must be a string or null, not an array"),
    ('{"records":[{"data":1,"meta":[]}]}', "records[0].meta is not an object"),
    ('{"records":[{"data":1},{"data":1,"meta":"x"}]}', "records[1].meta is not an object"),
    ('{"records":[{"data":1,"meta":7}]}', "records[0].meta is not an object"),
    ('{"records":[{"data":1}],"node":7}', "node must be a string or null, not a number (7)"),
    ('{"records":[{"data":1}],"idempotency_key":7}', "idempotency_key must be a string or null, not a number (7)"),
    ('{"records":[{"data":1}],"create":1}', "create must be true, false or null, not a number (1)"),
    ('{"records":[{"data":1}],"config":[]}', "config must be an object or null, not an array"),
    ('{"records":[{"data":1}],"config":{"ttl_ms":null}}', "config.ttl_ms must be a whole number, not null"),
    ('{"records":[{"data":1}],"disable_backpressure":null}', "disable_backpressure must be true or false, not null"),
    ('{"records":[{"data":1}]} x', "not valid JSON"),
    ('{"records":[{"data":1}]', "not valid JSON"),
]


@pytest.mark.parametrize(("body", "message"), REFUSED)
def test_a_body_of_the_wrong_shape_is_refused_and_the_place_named(body: str, message: str) -> None:
    """WR1, WR3, CV3, CV19"""
    with pytest.raises(InvalidRequest) as refusal:
        parse(body)
    assert message in str(refusal.value)


TEXTS = [
    *(b"NaN", b"Infinity", b"-Infinity", b"01", b"1.", b".5", b"-", b"1e", b"+1", b"0x10", b"--1", b"1_0", b""),
    *(b'"\\ud800"', b'"\\udc00"', b'"\\ud83d\\ud83d"', b'{"\\ud800":1}', b'["\\udfff\\ud800"]', b'"\\\\\\ud800"'),
    *(b'"\x01"', b'"\t"', b'"\n"', b'"\\x"', b'"\\u12g4"', b'"abc', b"'a'", b'"\xff"', b'"\xed\xa0\x80"', b'"\xc3"'),
    *(
        b"[1,]",
        b'{"a":1,}',
        b"{a:1}",
        b"tru",
        b"nulll",
        b"[1 2]",
        b'{"a" 1}',
        b"{1:2}",
        b"[,]",
        b"/**/1",
        b"\xef\xbb\xbf1",
    ),
]


@swept("text", TEXTS)
@pytest.mark.parametrize("place", [b'{"records":[{"data":%s}]}', b'{"records":[{"data":1}],"unknown":%s}'])
def test_what_is_not_json_is_refused_wherever_it_stands(text: bytes, place: bytes) -> None:
    """CV20, CV21: even where nobody looks at it."""
    with pytest.raises(InvalidRequest, match="not valid JSON"):
        parse(place % text)


@pytest.mark.parametrize("field", ["tag", "node"])
@pytest.mark.parametrize("text", ['"\\ud800"', '"\\udc00x"'])
def test_an_unpaired_surrogate_in_a_name_is_refused(field: str, text: str) -> None:
    """CV21"""
    with pytest.raises(InvalidRequest):
        parse(f'{{"records":[{{"data":1,"{field}":{text}}}]}}')


VERBATIM = [
    *(b"null", b"true", b"-0", b"1e400", b"1.0", b"1E+5", b"12345678901234567890123", b'""', b"[]", b"{}"),
    b'{"b":1.0,"a":12345678901234567890,"b":1e400}',
    b'{ "a" :\t[ 1 , 2 ] }',
    b'"\\u0041\\/\\ud83d\\ude00\\u2028"',
    '"é\u2028\u2029\x7f"'.encode(),
]


@pytest.mark.parametrize("text", VERBATIM)
def test_data_is_kept_byte_for_byte(text: bytes) -> None:
    """CV6, CV20"""
    _, batch = parse(b'{"records":[{"data":%s}]}' % text)
    assert kept(batch) == [(text, b"", None, None)]
    assert list(batch.sizes) == [len(text)]


@pytest.mark.parametrize("text", [text for text in VERBATIM if text.startswith(b"{")])
def test_meta_is_kept_byte_for_byte_and_counts(text: bytes) -> None:
    """CV6, TP15"""
    _, batch = parse(b'{"records":[{"meta":%s,"data":7}]}' % text)
    assert kept(batch) == [(b"7", text, None, None)]
    assert list(batch.sizes) == [1 + len(text)]


def test_a_null_meta_is_none_and_costs_nothing() -> None:
    """CV19, TP15"""
    _, batch = parse('{"records":[{"data":1,"meta":null,"tag":null,"node":null},{"data":22}]}')
    assert list(batch.sizes) == [1, 2]
    assert not batch.has_tags


def test_nulls_mean_absent() -> None:
    """CV19"""
    write, _ = parse('{"records":[{"data":1}],"node":null,"idempotency_key":null,"create":null,"config":null}')
    assert (write.node, write.idempotency_key, write.create, write.config) == (None, None, None, None)


def test_unknown_fields_are_ignored_at_every_level() -> None:
    """CV4"""
    write, batch = parse('{"x":1,"records":[{"data":1,"y":{}}],"config":{"z":[]},"create":true}')
    assert (write.create, kept(batch)) == (True, [(b"1", b"", None, None)])


def test_the_last_of_a_repeated_field_counts_and_is_the_one_that_is_checked() -> None:
    """CV20"""
    _, batch = parse('{"records":[],"records":[{"data":1,"data":22,"tag":"a","tag":"b"}],"node":"x","node":"y"}', SMALL)
    assert kept(batch) == [(b"22", b"", "b", None)]
    assert decode_body(batch.body).node == "y"
    with pytest.raises(InvalidRequest, match="tag"):
        parse('{"records":[{"data":1,"tag":"a","tag":"bbbbb"}]}', SMALL)
    with pytest.raises(InvalidRequest, match="meta"):
        parse('{"records":[{"data":1,"meta":{},"meta":[]}]}', SMALL)


@pytest.mark.parametrize(
    ("text", "stored"),
    [
        (b'{"a":\n 1, "b" : [ 1 ]}', b'{"a":1,"b":[1]}'),
        (b"[1,\r\n2]", b"[1,2]"),
        (b'{"a": "x\\ny  z",\r"a":1.0}', b'{"a":"x\\ny  z","a":1.0}'),
        (b'[\n1e400, "\\u0041"]', b'[1e400,"\\u0041"]'),
    ],
)
@pytest.mark.parametrize("field", ["data", "meta"])
def test_a_line_break_between_tokens_takes_all_whitespace_with_it(text: bytes, stored: bytes, field: str) -> None:
    """CV26, TP15"""
    if field == "meta" and not text.startswith(b"{"):
        text, stored = b'{"m":%s}' % text, b'{"m":%s}' % stored
    others = b"" if field == "data" else b'"data":7,'
    _, batch = parse(b'{"records":[{%s"%s":%s}]}' % (others, field.encode(), text))
    assert kept(batch)[0][0 if field == "data" else 1] == stored
    assert list(batch.sizes) == [len(stored) + (0 if field == "data" else 1)]


def test_line_breaks_around_the_records_leave_them_alone() -> None:
    """CV26, CV6"""
    body = b'{\n "records" : [\r\n {"data" : { "a" : 1 }\n}\n]\n}'
    _, batch = parse(body)
    assert kept(batch) == [(b'{ "a" : 1 }', b"", None, None)]
    assert batch.body == body


def test_a_body_that_is_mostly_waste_is_not_kept() -> None:
    body = (
        b'{"records":[{"data":1,"tag":"x"},{"data":2,"node":"n","meta":{}}],"pad":"' + b"x" * 10_000 + b'","node":"y"}'
    )
    _, batch = parse(body)
    assert len(batch.body) < 200
    assert kept(batch) == [(b"1", b"", "x", None), (b"2", b"{}", None, "n")]
    assert decode_body(batch.body).node == "y"


@pytest.mark.parametrize("levels", [128, 500])
def test_deep_nesting_is_accepted(levels: int) -> None:
    """CV21"""
    for text in (b"[" * levels + b"]" * levels, b'{"a":' * levels + b"1" + b"}" * levels):
        _, batch = parse(b'{"records":[{"data":%s}]}' % text)
        assert kept(batch)[0][0] == text


@pytest.mark.parametrize("opening", [b"[", b'{"a":', b'[{"a":'])
def test_bottomless_nesting_is_refused(opening: bytes) -> None:
    """CV21"""
    with pytest.raises(InvalidRequest):
        parse(b'{"records":[{"data":' + opening * 200_000)


def test_what_was_accepted_can_be_decoded_from_much_further_down_the_stack() -> None:
    """CV21: else a record that was acked could never be read or sealed."""
    levels = 1000
    while True:
        try:
            _, batch = parse(b'{"records":[{"data":%s}]}' % (b"[" * levels + b"]" * levels))
            break
        except InvalidRequest:
            levels -= 1

    def decode_at(depth: int) -> int:
        return decode_at(depth - 1) if depth else len(decode_body(batch.body).records)

    assert levels >= 128
    assert decode_at(200) == 1


LIMITED: list[tuple[dict[str, Any], type[InvalidRequest], str]] = [
    ({"records": [{"data": 1}] * 3}, BatchTooLarge, "records has 3 records, at most 2"),
    ({"records": [{"data": "x" * 19}]}, RecordTooLarge, "records[0] is 21 bytes, at most 20"),
    ({"records": [{"data": 1}, {"data": "x" * 13, "meta": {"a": 1}}]}, RecordTooLarge, "records[1] is 22 bytes"),
    ({"records": [{"data": 1, "meta": {"abcde": 1}}]}, InvalidRequest, "records[0].meta is 11 bytes, at most 10"),
    ({"records": [{"data": 1, "tag": "xxxxx"}]}, InvalidRequest, "records[0].tag is 5 bytes, at most 4"),
    ({"records": [{"data": 1}, {"data": 1, "tag": "ééé"}]}, InvalidRequest, "records[1].tag is 6 bytes"),
    ({"records": [{"data": 1, "node": "xxxxx"}]}, InvalidRequest, "records[0].node is 5 bytes, at most 4"),
    ({"records": [{"data": 1}], "node": "😀x"}, InvalidRequest, "node is 5 bytes, at most 4"),
    ({"records": [{"data": 1}], "idempotency_key": "k" * 257}, InvalidRequest, "idempotency_key has 257 characters"),
]


@pytest.mark.parametrize(("body", "error", "message"), LIMITED)
def test_what_is_above_a_limit_is_refused(body: dict[str, Any], error: type[InvalidRequest], message: str) -> None:
    """WR3, TP15"""
    with pytest.raises(error) as refusal:
        parse(json.dumps(body, separators=(",", ":"), ensure_ascii=False), SMALL)
    assert refusal.type is error
    assert message in str(refusal.value)


@pytest.mark.parametrize(
    "body",
    [
        {"records": [{"data": "x" * 18}, {"data": 1}]},
        {"records": [{"data": 1, "meta": {"abcd": 1}}]},
        {"records": [{"data": 1, "tag": "éé", "node": "😀"}], "node": "xxxx"},
        {"records": [{"data": 1, "tag": "", "node": ""}], "node": "", "idempotency_key": "é" * 256},
    ],
)
def test_what_is_at_a_limit_is_accepted(body: dict[str, Any]) -> None:
    """WR3, WR1"""
    parse(json.dumps(body, separators=(",", ":"), ensure_ascii=False), SMALL)


def test_meta_has_at_most_64_keys() -> None:
    """WR3"""
    for keys, is_accepted in ((64, True), (65, False)):
        body = json.dumps({"records": [{"data": 1, "meta": {f"k{n}": n for n in range(keys)}}]})
        if is_accepted:
            parse(body)
        else:
            with pytest.raises(InvalidRequest, match="65 keys, at most 64"):
                parse(body)


def test_an_empty_tag_is_a_tag() -> None:
    """WR1"""
    _, batch = parse('{"records":[{"data":1,"tag":""}]}')
    assert batch.has_tags


def test_a_batch_made_in_this_process_is_checked_and_kept_alike() -> None:
    """CV26, WR3"""
    records = [RecordIn(Raw(b'{"a":\n1 }'), "t", None, NO_META), RecordIn(Raw(b" 7 "), None, "n", Raw(b'{"m":1}'))]
    batch = batch_of(records, "node", LIMITS)
    assert kept(batch) == [(b'{"a":1}', b"", "t", None), (b"7", b'{"m":1}', None, "n")]
    assert (list(batch.sizes), batch.has_tags) == ([7, 8], True)
    for wrong in (b"{", b"NaN", b"", b"1,2", b"1]"):
        with pytest.raises(InvalidRequest):
            batch_of([RecordIn(Raw(wrong))], None, LIMITS)


def test_a_record_made_in_this_process_cannot_smuggle_in_another() -> None:
    with pytest.raises(InvalidRequest):
        batch_of([RecordIn(Raw(b'1},{"data":2'))], None, Settings(max_batch_records=1))


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda children: st.lists(children, max_size=3) | st.dictionaries(st.text(), children, max_size=3),
    max_leaves=8,
)


@given(st.lists(json_values, min_size=1, max_size=4), st.sampled_from([None, 1, "\t"]), st.booleans())
def test_any_json_is_kept_as_its_value_and_byte_for_byte_if_on_one_line(
    values: list[Any], indent: Any, is_ascii: bool
) -> None:
    """CV6, CV26"""
    try:
        texts = [json.dumps(value, indent=indent, ensure_ascii=is_ascii).encode() for value in values]
    except UnicodeEncodeError:
        return
    if any("\\ud" in text.decode() for text in texts):
        return
    _, batch = parse(b'{"records":[%s]}' % b",".join(b'{"data":%s}' % text for text in texts))
    for (stored, _, _, _), text, value in zip(kept(batch), texts, values, strict=True):
        assert json.loads(stored) == value
        assert stored == text or b"\n" in text
        assert b"\n" not in stored


@pytest.mark.parametrize(
    ("record", "has_delays"),
    [
        (rb'{"data":1}', False),
        (rb'{"data":1,"delay_ms":5}', True),
        (rb'{"data":1,"deliver_at":5}', True),
        (rb'{"data":1,"\u0064elay_ms":5}', True),
        (rb'{"data":1,"d\u0065liver_at":5}', True),
        (rb'{"data":{"delay_ms":5}}', False),
        (rb'{"data":"\u0064elay_ms"}', False),
    ],
)
@pytest.mark.parametrize("count", [1, 3])
def test_a_delay_is_found_however_its_name_is_written(record: bytes, has_delays: bool, count: int) -> None:
    """QU3"""
    records = [rb'{"data":0}'] * (count - 1) + [record]
    _, batch = parse_write(b'{"records":[' + b",".join(records) + b"]}", Settings())
    assert batch.has_delays is has_delays


texts_ = st.sampled_from([None, "", "a", "b"])
spelled = st.builds(
    lambda data, tag, node, meta, delay: RecordIn(Raw(data), tag, node, NO_META if meta is None else Raw(meta), delay),
    st.sampled_from([b"1", b"null", b'{"meta":null}', b'"1"']),
    texts_,
    texts_,
    st.sampled_from([None, b"null", b"{}", b'{"a":1}']),
    st.sampled_from([UNSET, 0, 5, 86_400_000, 10**12]),
)
batches = st.tuples(st.lists(spelled, min_size=1, max_size=3), texts_)


@given(batches, batches)
def test_a_digest_tells_apart_what_is_stored_differently_and_nothing_else(
    one: tuple[list[RecordIn], str | None], other: tuple[list[RecordIn], str | None]
) -> None:
    """ID9"""

    def digest(records: list[RecordIn], node: str | None) -> int:
        return batch_of(records, node, Settings(), "k").digest

    def stored(records: list[RecordIn], node: str | None) -> object:
        return [
            (
                bytes(record.data),
                record.tag,
                node if record.node is None else record.node,
                None if bytes(record.meta) in (b"", b"null") else bytes(record.meta),
                min(record.delay_ms or 0, 86_400_000),
            )
            for record in records
        ]

    assert (digest(*one) == digest(*other)) == (stored(*one) == stored(*other))
    assert batch_of(one[0], one[1], Settings()).digest == 0, "none is made without a key"
    assert check_batch(one[0], one[1], "k", Settings()).digest == digest(*one), "without a text of its own, as of Arrow"


def test_a_body_that_is_made_takes_no_more_memory_than_its_text() -> None:
    """LM14: it is kept, and an encoder would make room for more."""
    tracemalloc.start()
    try:
        records = [RecordIn(Raw(b"1")), RecordIn(Raw(b"2"))]
        before = tracemalloc.get_traced_memory()[0]
        bodies = [check_batch(records, None, None, Settings()).body for _ in range(1000)]
        assert tracemalloc.get_traced_memory()[0] - before < sum(map(getsizeof, bodies)) + 20_000
    finally:
        tracemalloc.stop()
