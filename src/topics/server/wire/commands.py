"""What is said over a WebSocket: the commands of clients, decoded and checked, and the frames of the server as JSON.

The counterpart of `requests` and `replies`; what HTTP has as well (writes, reads, matches) is decoded by the same code.
Must not know: sockets, the engine's state, who is calling. Rules: WS2-WS7, Appendix A.11.
"""

from collections.abc import Iterable, Mapping
from typing import Any, Final, NamedTuple

import msgspec
from msgspec import UNSET, Raw, Struct, UnsetType

from topics.core.topic.records import Batch, WriteIn, check_batch, decode_json
from topics.errors import InvalidRequest, PayloadTooLarge, Refusal, TopicsError
from topics.server.wire.counts import CountedRecord, write_decoder
from topics.server.wire.large import NoObject, put_together, take_apart
from topics.server.wire.replies import WatchedTopic, encode
from topics.server.wire.requests import (
    Match,
    Natural,
    WatchTopicIn,
    check_followed,
    check_starts,
    small_body_bytes_max,
)
from topics.settings import Settings

NO_ID: Final = Raw()


class InvalidJson(InvalidRequest):
    """The message is not JSON at all."""

    code = "invalid_json"


class UnsupportedMessage(InvalidRequest):
    """The message is binary."""

    code = "unsupported_message"


class CommandIn(Struct, gc=False):
    """What every command has."""

    op: Any = None
    request_id: Raw = NO_ID


class PublishIn(WriteIn, gc=False, kw_only=True):
    """A write, and what HTTP has in the path and query."""

    topic: str
    return_seqs: bool = True


class CountedPublishIn(PublishIn, gc=False, kw_only=True):
    """A publish that may have too many records."""

    records: list[CountedRecord]  # type: ignore[assignment]


class LargeIn(NamedTuple):
    """A large command, decoded and checked beside the loop."""

    command: CommandIn
    publish: PublishIn | Refusal | None = None  # if it is one
    batch: Batch | Refusal | None = None  # its records


class SubscribeIn(Struct, frozen=True):
    topic: str | UnsetType = UNSET
    from_seq: Natural = 0
    tail: bool = False
    topics: dict[str, WatchTopicIn] | UnsetType = UNSET
    node: str | list[str] | None = None
    limit: Natural = 0
    max_batch_bytes: Natural = 0
    include_data: bool = True
    include_tags: bool = False
    include_meta: bool = True
    lenient: bool = False
    filter: Match | None = None


class UnsubscribeIn(Struct, frozen=True):
    topic: str | UnsetType = UNSET
    topics: list[str] | UnsetType = UNSET


_decode_command = msgspec.json.Decoder(CommandIn).decode
_decode_publish = msgspec.json.Decoder(PublishIn).decode
publish_in = write_decoder(PublishIn, CountedPublishIn)
_decode_subscribe = msgspec.json.Decoder(SubscribeIn).decode
_decode_unsubscribe = msgspec.json.Decoder(UnsubscribeIn).decode
_decode_any = msgspec.json.Decoder(Raw).decode


# --- commands


def command_in(text: bytes) -> CommandIn:
    """The fields that every command has. The whole text is checked to be JSON."""
    try:
        return decode_json(_decode_command, text)  # type: ignore[no-any-return]
    except InvalidRequest as fault:
        try:
            decode_json(_decode_any, text)
        except InvalidRequest as error:
            raise _invalid_json(error) from None
        raise InvalidRequest(fault.message.replace("the body", "the message")) from None


def large_in(text: bytes, settings: Settings) -> LargeIn:
    """A command that takes long to decode. Blocking; other threads have their turns between two records (LM10)."""
    try:
        apart = take_apart(text, settings, goes_on=True)
    except NoObject as fault:
        raise InvalidRequest(fault.message.replace("the body", "the message")) from None
    except InvalidRequest as fault:
        raise _invalid_json(fault) from None
    command = command_in(apart.rest)
    if command.op != "publish":
        return LargeIn(command)
    try:
        publish: PublishIn = put_together(_decode_publish, apart)
    except Refusal as refusal:
        return LargeIn(command, refusal)
    try:
        return LargeIn(
            command, publish, check_batch(publish.records, publish.node, publish.idempotency_key, settings, text)
        )
    except Refusal as refusal:
        return LargeIn(command, publish, refusal)  # other checks come first


def _invalid_json(fault: InvalidRequest) -> InvalidJson:
    return InvalidJson(fault.message.replace("the body", "the message"))


def subscribe_in(text: bytes, settings: Settings) -> tuple[SubscribeIn, dict[str, WatchTopicIn]]:
    """A subscribe, and where to start in each topic."""
    _check_size(text, settings)
    check_followed(text, settings)
    given: SubscribeIn = decode_json(_decode_subscribe, text)
    if isinstance(given.topic, str) == isinstance(given.topics, dict):
        raise InvalidRequest("subscribe needs either topic or topics")
    if isinstance(given.topics, dict):
        starts = given.topics
    else:
        starts = {str(given.topic): WatchTopicIn(given.from_seq, given.tail)}
    check_starts(starts, settings)
    return given, starts


def unsubscribe_in(text: bytes, settings: Settings) -> list[str]:
    """The topics to leave, each once."""
    _check_size(text, settings)
    given: UnsubscribeIn = decode_json(_decode_unsubscribe, text)
    if isinstance(given.topic, str) == isinstance(given.topics, list):
        raise InvalidRequest("unsubscribe needs either topic or topics")
    return list(dict.fromkeys(given.topics if isinstance(given.topics, list) else [str(given.topic)]))


def _check_size(text: bytes, settings: Settings) -> None:
    bytes_max = small_body_bytes_max(settings)
    if len(text) > bytes_max:
        raise PayloadTooLarge(f"the message is {len(text)} bytes; one that is no publish may have {bytes_max}")


# --- frames, as JSON


def opened(op: bytes, request_id: Raw) -> bytes:
    """The beginning of a frame, up to its first own field."""
    if not len(request_id):
        return b'{"op":"%b"' % op
    return b'{"op":"%b","request_id":%b' % (op, bytes(request_id))


def pong(request_id: Raw) -> bytes:
    return opened(b"pong", request_id) + b"}"


def ack(request_id: Raw, answer: bytes) -> bytes:
    """`answer` is the whole answer to a write over HTTP."""
    return opened(b"ack", request_id) + b"," + answer[1:]


def subscribed(request_id: Raw, topics: Mapping[str, WatchedTopic]) -> bytes:
    return b'%b,"topics":%b}' % (opened(b"subscribed", request_id), encode(topics))


def unsubscribed(request_id: Raw, topics: Iterable[str]) -> bytes:
    return b'%b,"topics":%b}' % (opened(b"unsubscribed", request_id), encode(list(topics)))


def error(failure: TopicsError, request_id: Raw = NO_ID) -> bytes:
    return failed(failure.code, failure.message or failure.code, failure.detail, request_id)


def failed(code: str, message: str, detail: Mapping[str, Any] | None = None, request_id: Raw = NO_ID) -> bytes:
    said = b'%b,"code":%b,"message":%b' % (opened(b"error", request_id), encode(code), encode(message))
    return b'%b,"detail":%b}' % (said, encode(detail)) if detail else said + b"}"
