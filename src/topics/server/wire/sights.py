"""What is asked and answered about the whole: lists of topics with details (OB1), the server's history (OB2).

Owns the query fields of lists, and cursors of walks: beside the last name they hold which walk it is, and how far it
has come. Must not know: how an order is made, who is calling.
"""

from base64 import urlsafe_b64encode
from typing import Any, Final, get_args

import msgspec
from msgspec import UNSET, Struct, UnsetType

from topics.engine.answers import TopicDetail, TopicState
from topics.engine.instance import TopicFilter
from topics.errors import InvalidRequest
from topics.faults import quoted
from topics.model import Durability, TopicType
from topics.server.seeing.history import HISTORY_MS_DEFAULT, HISTORY_MS_MAX, Sample
from topics.server.wire.replies import Performance, TopicListed, topic_listed
from topics.server.wire.requests import Parameters, decode_cursor, unpacked

BY_NAME: Final = "name"
ORDERS: Final = (BY_NAME, "-written_rate", "-bytes", "-count", "-lost_total", "-ready")
TYPES: Final = get_args(TopicType)
CLASSES: Final = get_args(Durability)
PLACE_DIGITS_MAX: Final = 9

_decode_members = msgspec.json.Decoder(dict[str, Any]).decode


class JobCounts(Struct):
    """`dead`: what waits in the dead_letter topic, from whatever queue; null if there is none that the key may name."""

    ready: int
    in_flight: int
    delayed: int
    dead: int | None
    paused: bool


class CursorCounts(Struct):
    """The named cursors of a topic; `max_lag` is 0 if there are none."""

    count: int
    max_lag: int


class TopicDetailed(TopicListed, kw_only=True, rename={"durability": "class"}):
    """A topic in a list; from `type` on only with `detail`. Rates are records per second, of the last 60 s."""

    type: TopicType | UnsetType = UNSET
    durability: Durability | UnsetType = UNSET
    written_rate: float | UnsetType = UNSET
    read_rate: float | UnsetType = UNSET
    oldest_ts: int | None | UnsetType = UNSET
    newest_ts: int | None | UnsetType = UNSET
    lost_total: int | UnsetType = UNSET
    deleted_total: int | UnsetType = UNSET
    queue: JobCounts | UnsetType = UNSET
    cursors: CursorCounts | UnsetType = UNSET


class TopicList(Struct, kw_only=True):
    topics: list[TopicDetailed]
    next_cursor: str | UnsetType = UNSET
    performance: Performance


class Stats(Struct):
    """What happened, the oldest sample first."""

    interval_ms: int
    samples: list[Sample]
    performance: Performance


def topic_plain(state: TopicState, with_epoch: bool = False) -> TopicDetailed:
    """A topic without details."""
    return TopicDetailed(*msgspec.structs.astuple(topic_listed(state, with_epoch)))


def topic_detailed(detail: TopicDetail, allowed: tuple[str, ...], with_epoch: bool = False) -> TopicDetailed:
    """A topic, for a key that may name what begins with one of `allowed`; none = anything."""
    state, totals = detail.state, detail.totals
    config, jobs = state.config, state.queue
    dead = detail.dead_letters
    if allowed and config.dead_letter is not None and not config.dead_letter.startswith(allowed):
        dead = None
    return TopicDetailed(
        state.topic,
        state.head_seq,
        state.earliest_seq,
        state.count,
        state.bytes,
        config.durable,
        state.effective_priority,
        state.epoch if with_epoch else UNSET,
        type=config.type,
        durability=config.durability,
        written_rate=round(totals.written_lately / 60, 3),
        read_rate=round(totals.read_lately / 60, 3),
        oldest_ts=detail.oldest_ts,
        newest_ts=detail.newest_ts,
        lost_total=state.lost_total,
        deleted_total=state.deleted_total,
        queue=UNSET if jobs is None else JobCounts(jobs.ready, jobs.in_flight, jobs.delayed, dead, state.paused),
        cursors=CursorCounts(totals.cursors, totals.cursors_lag),
    )


# --- asking


def filter_in(parameters: Parameters, allowed: tuple[str, ...]) -> TopicFilter:
    """Which topics a list is to hold."""
    return TopicFilter(
        prefix=parameters.text("prefix") or "",
        contains=parameters.text("contains") or "",
        type=_choice(parameters, "type", TYPES),
        durability=_choice(parameters, "class", CLASSES),
        allowed=allowed,
    )


def order_in(parameters: Parameters) -> Any:
    """One of ORDERS."""
    order = parameters.text("sort")
    if order is None:
        return BY_NAME
    if order not in ORDERS:
        raise InvalidRequest(f"sort is {quoted(order)}; use one of {', '.join(ORDERS)}")
    return order


def _choice(parameters: Parameters, name: str, choices: tuple[str, ...]) -> str | None:
    text = parameters.text(name)
    if not text:
        return None
    if text not in choices:
        raise InvalidRequest(f"{name} is {quoted(text)}; use one of {', '.join(choices)}")
    return text


def walk_in(parameters: Parameters) -> tuple[str, int] | None:
    """The walk that a cursor goes on with, and how far it has come; None: there is no cursor."""
    text = parameters.text("cursor")
    if not text:
        return None
    decode_cursor(text)  # it is one of a list
    walk, _, place = str(_decode_members(unpacked(text)).get("walk")).rpartition(":")
    if not walk or not place.isascii() or not place.isdigit() or len(place) > PLACE_DIGITS_MAX:
        raise InvalidRequest("cursor is of a list in another order; ask again without one")
    return walk, int(place)


def walk_cursor(after: str, walk: str, place: int) -> str:
    """The cursor of the page of a walk that begins at `place`, behind the name `after`."""
    return urlsafe_b64encode(msgspec.json.encode({"after": after, "walk": f"{walk}:{place}"})).rstrip(b"=").decode()


def history_in(parameters: Parameters, default: int = HISTORY_MS_DEFAULT) -> int:
    """How far back samples are asked for, in milliseconds."""
    given = parameters.natural("history")
    return default if given is None else min(HISTORY_MS_MAX, given)
