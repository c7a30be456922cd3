"""What GETs of streams say: ids that come back, and how a stream without a session is to read (SS14, SS27-SS30).

Owns the reading of ids, and the query fields of streams, each of which is checked: what a field cannot be is refused by
its name, its value and what is allowed. Must not know: the engine's state, who is calling.

An id is the unpadded base64url of a JSON map topic → seq. The key EPOCHS, which no topic can have, holds a map
topic → epoch.
"""

from collections.abc import Collection, Iterable
from typing import Final
from urllib.parse import parse_qsl

import msgspec
from msgspec import Struct

from topics.errors import InvalidRequest
from topics.model import SEQ_MAX
from topics.server.wire.queries import Parameters, unpacked
from topics.server.wire.requests import (
    HEARTBEAT_MS_DEFAULT,
    NODES_MAX,
    Match,
    Natural,
    WatchIn,
    WatchTopicIn,
    check_starts,
    seq,
)
from topics.settings import Settings

EPOCHS: Final = "$epochs"
ANOTHER_EPOCH: Final = 0  # that of no topic
ID_BYTES_MAX: Final = 1024 * 1024  # one of 256 topics has up to 96 KiB, and twice that with their epochs
FLAGS: Final = {"true": True, "1": True, "false": False, "0": False}
CONSISTENCIES: Final = ("eventual", "strong")
ERROR_EVENTS: Final = ("error", "stream-error")
SHOWN_MAX: Final = 40  # characters of a refused value that are repeated

_decode_id = msgspec.json.Decoder(dict[str, Natural | dict[str, Natural]]).decode
_decode_list = msgspec.json.Decoder(list[object]).decode


class Positions(Struct, frozen=True):
    """What a client says it has received: cursors by topic, and the instances they belong to, where it knows them."""

    cursors: dict[str, int]
    epochs: dict[str, int]

    def lowest(self, other: "Positions") -> "Positions":
        """What a client that sends both certainly has. A topic placed in two instances is in neither."""
        cursors, epochs = {**self.cursors}, {**self.epochs}
        for name, cursor in other.cursors.items():
            cursors[name] = min(cursor, cursors.get(name, cursor))
        for name, epoch in other.epochs.items():
            epochs[name] = epoch if epochs.get(name, epoch) == epoch else ANOTHER_EPOCH
        return Positions(cursors, epochs)


NO_POSITIONS: Final = Positions({}, {})


def decode_positions(text: str) -> Positions:
    """The positions in an id of a stream, in any of the spellings of CV15."""
    if len(text) > ID_BYTES_MAX:
        raise InvalidRequest(f"cursor is {len(text)} bytes long, at most {ID_BYTES_MAX}")
    try:
        given = _decode_id(unpacked(text))
        epochs = given.pop(EPOCHS, {})
        if not isinstance(epochs, dict):
            raise ValueError(f"{EPOCHS} in it is no map")
        cursors = {name: cursor for name, cursor in given.items() if isinstance(cursor, int)}
        if len(cursors) < len(given):
            raise ValueError("a seq in it is no number")
        if any(number > SEQ_MAX for number in (*cursors.values(), *epochs.values())):
            raise ValueError("a seq in it is above 2^64-1")
    except (msgspec.MsgspecError, RecursionError):
        raise InvalidRequest("cursor is not an id that a stream gave: it holds something else") from None
    except ValueError as error:
        raise InvalidRequest(f"cursor is not an id that a stream gave: {error}") from None
    return Positions(cursors, epochs)


def positions_in(texts: Iterable[str | None]) -> list[Positions]:
    """The positions in those of these ids that can be read; the others are ignored (SS15)."""
    found = []
    for text in texts:
        try:
            found.append(decode_positions(text or ""))
        except InvalidRequest:
            continue
    return found


# --- the fields of a query


def values_of(query: bytes, name: str) -> list[str]:
    """All values of a field that may come more than once."""
    pairs = parse_qsl(query.decode("latin-1"), keep_blank_values=True, errors="replace")
    return [value for field, value in pairs if field == name]


def topics_in(query: bytes, settings: Settings) -> list[str]:
    """The names in `topics`, each once, in the order given."""
    given = values_of(query, "topics")
    if not given:
        raise InvalidRequest("topics is missing; it names the topics to follow, with commas between them")
    text = ",".join(given)
    topics_max = settings.max_watch_topics
    if text.count(",") >= topics_max and len(set(text.split(","))) > topics_max:
        raise InvalidRequest(f"topics names {len(set(text.split(',')))} topics, at most {topics_max}")
    names = list(dict.fromkeys(text.split(",")))
    if "" in names:
        raise InvalidRequest(f"topics is {text[:SHOWN_MAX]!r}; a name in it is empty: use names with commas between")
    return names


def stream_in(query: bytes, parameters: Parameters, names: Collection[str], settings: Settings) -> WatchIn:
    """The fields of a stream without a session, as a POST /v0/watch of these topics would say them (SS28)."""
    start = WatchTopicIn(seq("from_seq", parameters.natural("from_seq") or 0), _flag(parameters, "tail", False))
    heartbeat_ms = parameters.natural("heartbeat_ms")
    consistency, nodes = parameters.text("consistency"), values_of(query, "node")
    if len(nodes) > NODES_MAX:
        raise InvalidRequest(f"node comes {len(nodes)} times, at most {NODES_MAX}")
    if consistency is not None and consistency not in CONSISTENCIES:
        raise _none_of("consistency", consistency, CONSISTENCIES)
    asked = WatchIn(
        topics=dict.fromkeys(names, start),
        node=nodes or None,
        limit=parameters.natural("limit") or 0,
        heartbeat_ms=HEARTBEAT_MS_DEFAULT if heartbeat_ms is None else heartbeat_ms,
        include_meta=_flag(parameters, "include_meta", True),
        include_tags=_flag(parameters, "include_tags", False),
        include_data=_flag(parameters, "include_data", True),
        consistency="strong" if consistency == "strong" else "eventual",
        filter=_predicate(parameters.text("filter")),
    )
    check_starts(asked.topics, settings)
    return asked


def error_event_in(parameters: Parameters) -> bytes:
    """What a stream calls its frame `error` (SS29)."""
    text = parameters.text("error_event")
    if text is not None and text not in ERROR_EVENTS:
        raise _none_of("error_event", text, ERROR_EVENTS)
    return (text or ERROR_EVENTS[0]).encode()


def _flag(parameters: Parameters, name: str, default: bool) -> bool:
    text = parameters.text(name)
    if text is None:
        return default
    if text not in FLAGS:
        raise _none_of(name, text, FLAGS)
    return FLAGS[text]


def _predicate(text: str | None) -> Match | None:
    """A bare tag, or the JSON of a tuple; a JSON array that is no tuple of texts is left to be refused."""
    if text == "":
        raise InvalidRequest('filter is empty; use a tag, ["tag","Eq",x] or ["tag","Glob","prefix*"]')
    try:
        return _decode_list(text or "")  # type: ignore[return-value]
    except (msgspec.MsgspecError, UnicodeEncodeError, RecursionError):
        return text


def _none_of(field: str, text: str, allowed: Iterable[str]) -> InvalidRequest:
    return InvalidRequest(f"{field} is {text[:SHOWN_MAX]!r}; use {' or '.join(allowed)}")
