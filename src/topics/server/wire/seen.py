"""What answers about losses, single records and named cursors say. One struct per answer, as in replies.py."""

from typing import Literal

import msgspec
from msgspec import UNSET, Struct, UnsetType

from topics.engine.answers import CursorState, RecordResult
from topics.model import Record
from topics.server.wire.replies import Performance


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


def record_answer(result: RecordResult, total_ms: float) -> bytes:
    """The answer to GET record; the record is a ready text."""
    return b'{"topic":"%b","epoch":%d,"record":%b,"performance":{"server_total_ms":%.3f}}' % (
        result.topic.encode(),
        result.epoch,
        result.text,
        total_ms,
    )
