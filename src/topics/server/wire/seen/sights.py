"""What answers to those who look around say: topics in lists (OB1), the server's history (OB2), losses, single records,
named cursors. One struct per answer, as in `replies`.
"""

from typing import Literal

import msgspec
from msgspec import UNSET, Struct, UnsetType

from topics.engine.answers import CursorState, TopicDetail, TopicState
from topics.model import Durability, Record, TopicType
from topics.server.seeing.history import Sample
from topics.server.wire.replies import Performance, TopicListed, topic_listed


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
    memory_bytes: int | UnsetType = UNSET


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
    state = detail.state
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
        written_rate=round(detail.written_lately / 60, 3),
        read_rate=round(detail.read_lately / 60, 3),
        oldest_ts=detail.oldest_ts,
        newest_ts=detail.newest_ts,
        lost_total=state.lost_total,
        deleted_total=state.deleted_total,
        queue=UNSET if jobs is None else JobCounts(jobs.ready, jobs.in_flight, jobs.delayed, dead, state.paused),
        cursors=CursorCounts(detail.cursors, detail.cursors_lag),
        memory_bytes=detail.memory_bytes,
    )


# --- records, losses, named cursors


class RecordShown(Struct):
    topic: str
    epoch: int
    record: Record
    performance: Performance


class LossShown(Struct):
    """A range that was lost, and when; some of its seqs may have been deleted before."""

    gap_from: int
    gap_to: int
    reason: Literal["cap", "ttl", "mixed", "source_trim"]
    ts: int


class LossList(Struct):
    topic: str
    losses: list[LossShown]
    performance: Performance


class CursorListed(Struct):
    topic: str
    name: str
    seq: int
    epoch: int
    lag: int
    lost: int
    seconds_until_loss: float | None
    updated_ts: int


class CursorShown(CursorListed, kw_only=True):
    """`created` in the answer to a PUT."""

    created: bool | UnsetType = UNSET
    performance: Performance


class CursorList(Struct, kw_only=True):
    topic: str
    cursors: list[CursorListed]
    next_cursor: str | UnsetType = UNSET
    performance: Performance


class CursorGone(Struct):
    topic: str
    name: str
    deleted: bool
    performance: Performance


def cursor_listed(state: CursorState) -> CursorListed:
    return CursorListed(*msgspec.structs.astuple(state))


def cursor_shown(state: CursorState, performance: Performance, created: bool | UnsetType = UNSET) -> CursorShown:
    return CursorShown(*msgspec.structs.astuple(state), created=created, performance=performance)
