"""What is wrong with a JSON text, in JSON's words."""

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import Struct

from topics.core.topic.config import ConfigIn
from topics.core.topic.records import RecordIn, WriteIn, decode_json
from topics.errors import InvalidRequest
from topics.faults import NAMES_MAX, fault_in, nearest, quoted
from topics.server.wire.commands import SubscribeIn
from topics.server.wire.requests import ClaimIn, DiffIn, RouterIn, WatchIn

SAID: list[tuple[type[Struct], str, str]] = [
    (WriteIn, '{"records":[],"idempotency_key":5}', "idempotency_key must be a string or null, not a number (5)"),
    (WriteIn, '{"record":[]}', 'records is missing; "record" was given, did you mean records?'),
    (WriteIn, "{" + '"x":1,' * 8 + '"record":[]}', 'records is missing; "record" was given, did you mean records?'),
    (WriteIn, "{" + "".join(f'"x{n}":1,' for n in range(NAMES_MAX)) + '"record":[]}', "records is missing"),
    (WriteIn, '{"records":[{"daat":1}]}', 'records[0].data is missing; "daat" was given, did you mean data?'),
    (WriteIn, '{"records":[{"data":1,"delay_ms":-1}]}', "records[0].delay_ms must not be below 0 (-1)"),
    (
        WriteIn,
        '{"records":[{"data":1,"delay_ms":0.5}]}',
        "records[0].delay_ms must be a whole number, not a fraction (0.5)",
    ),
    (WriteIn, '{"records":[],"on_mismatch":"ignore"}', 'on_mismatch: "ignore" is not one of its values; use refuse'),
    (
        WriteIn,
        '{"records":[],"config":{"durability":"sync"}}',
        'config.durability: "sync" is not a class; use ephemeral, memory, disk or fsync; did you mean fsync?',
    ),
    (
        ConfigIn,
        '{"durability":"sync"}',
        'durability: "sync" is not a class; use ephemeral, memory, disk or fsync; did you mean fsync?',
    ),
    (ConfigIn, '{"durability":"x\\"y"}', 'durability: "x\\"y" is not a class; use ephemeral, memory, disk or fsync'),
    (ConfigIn, '{"type":"Queue"}', 'type: "Queue" is not a type of topic; use log or queue; did you mean queue?'),
    (ConfigIn, '{"type":7}', "type must be a string, not a number (7); use log or queue"),
    (ConfigIn, '{"durable":"true"}', 'durable must be true or false, not a string ("true")'),
    (ConfigIn, '{"priority":[1]}', "priority must be a whole number or null, not an array"),
    (ConfigIn, '{"ttl_ms":true}', "ttl_ms must be a whole number, not a boolean (true)"),
    (ConfigIn, '{"ttl_ms":{}}', "ttl_ms must be a whole number, not an object"),
    (ConfigIn, '{"ttl_ms":"x"', "ttl_ms must be a whole number, not a string"),
    (ConfigIn, '{"ttl_ms":"x"} more', "ttl_ms must be a whole number, not a string"),
    (ConfigIn, "null", "the body must be an object, not null"),
    (ConfigIn, '"{}"', 'the body must be an object, not a string ("{}")'),
    (ConfigIn, "", "the body is not valid JSON: Input data was truncated"),
    (ConfigIn, "{]", "the body is not valid JSON: object keys must be strings (byte 1)"),
    (DiffIn, '{"node":5}', "node must be a string, an array or null, not a number (5)"),
    (DiffIn, '{"node":["a",5]}', "node[1] must be a string, not a number (5)"),
    (WatchIn, '{"topics":{"a":{"tail":1}}}', "topics[...].tail must be true or false, not a number"),
    (
        WatchIn,
        '{"topics":{},"consistency":"string"}',
        'consistency: "string" is not a consistency; use eventual or strong',
    ),
    (RouterIn, '{"source":"a"}', "dest is missing"),
    (
        RouterIn,
        '{"source":"a","dest":"b","guarantee":"once"}',
        'guarantee: "once" is not a guarantee; use at_least_once or exactly_once',
    ),
    (ClaimIn, '{"nodes":"w"}', 'node is missing; "nodes" was given, did you mean node?'),
    (SubscribeIn, '{"topic":1}', "topic must be a string, not a number (1)"),
]


@pytest.mark.parametrize(("kind", "text", "message"), SAID, ids=[text for _, text, _ in SAID])
def test_a_fault_names_the_field_what_was_given_what_is_allowed_and_the_nearest(
    kind: type[Struct], text: str, message: str
) -> None:
    """ER1"""
    with pytest.raises(InvalidRequest) as refusal:
        decode_json(msgspec.json.Decoder(kind).decode, text.encode())
    assert str(refusal.value).removesuffix("; did you mean strong?").startswith(message)


def test_a_fault_in_lines_names_the_line() -> None:
    """ER1"""
    with pytest.raises(InvalidRequest, match=r"^\[1\]\.tag must be a string or null, not a number \(7\)$"):
        decode_json(msgspec.json.Decoder(RecordIn).decode_lines, b'{"data":1}\n{"data":2,"tag":7}')


@pytest.mark.parametrize(
    ("body", "what"),
    [(b'"\xff"', "it is not UTF-8 (byte 0xff)"), (b"[" * 200_000, "it is nested too deeply")],
    ids=["UTF-8", "nesting"],
)
def test_a_text_that_is_no_json_says_why(body: bytes, what: str) -> None:
    """CV21"""
    with pytest.raises(InvalidRequest) as refusal:
        decode_json(msgspec.json.Decoder().decode, body)
    assert str(refusal.value) == f"the body is not valid JSON: {what}"


def test_a_value_in_a_large_text_is_not_looked_up() -> None:
    """ER1: the message does without it."""
    body = b'{"records":[{"data":"%b","tag":7}]}' % (b"x" * 100_000)
    with pytest.raises(InvalidRequest) as refusal:
        decode_json(msgspec.json.Decoder(WriteIn).decode, body)
    assert str(refusal.value) == "records[0].tag must be a string or null, not a number"


def test_of_a_field_that_comes_twice_no_other_value_is_shown() -> None:
    """CV20"""
    with pytest.raises(InvalidRequest) as refusal:
        decode_json(msgspec.json.Decoder(ConfigIn).decode, b'{"ttl_ms":"no","ttl_ms":5}')
    assert str(refusal.value) == "ttl_ms must be a whole number, not a string"


def test_a_long_value_is_cut() -> None:
    with pytest.raises(InvalidRequest) as refusal:
        decode_json(msgspec.json.Decoder(ConfigIn).decode, b'{"type":"%b"}' % (b"y" * 5000))
    assert len(str(refusal.value)) < 150


@given(st.text(max_size=80))
def test_any_text_can_be_shown_and_compared(text: str) -> None:
    assert isinstance(msgspec.json.decode(quoted(text).encode()), str)
    assert nearest(text, ["log", "queue"]) in (None, "log", "queue")
    assert nearest(text, ["log", "queue"], 0.0) in ("log", "queue")


@given(
    st.recursive(
        st.none()
        | st.booleans()
        | st.integers()
        | st.floats(allow_nan=False, allow_infinity=False)
        | st.text(st.characters(codec="utf-8", exclude_characters="`$"), max_size=5),  # a message quotes what was sent
        lambda inner: (
            st.lists(inner, max_size=3)
            | st.dictionaries(
                st.sampled_from(["records", "data", "tag", "config", "type", "node", "topics", "a"]), inner, max_size=4
            )
        ),
    )
)
@pytest.mark.parametrize("kind", [WriteIn, ConfigIn, DiffIn, WatchIn, RouterIn])
def test_no_message_speaks_of_pythons_types(kind: type[Struct], value: object) -> None:
    """ER1: whatever is sent."""
    decode, text = msgspec.json.Decoder(kind).decode, msgspec.json.encode(value)
    try:
        decode(text)
    except msgspec.MsgspecError as error:
        message = fault_in(error, text, decode)
        assert message and "`" not in message and " at $" not in message, message
