"""What answers about the server as a whole say: how it is set up, what is worth a look, sums, losses of all topics
(OB4-OB8), and what a move of jobs says (QU25). One struct per answer, as in replies.py."""

from typing import Any, Final, Literal

import msgspec
from msgspec import UNSET, Struct, UnsetType

from topics.core.topic.records import decode_json
from topics.engine.answers import Branch, LossSeen, RouterState, Sums
from topics.errors import BatchTooLarge, InvalidRequest
from topics.faults import quoted
from topics.model import SEQ_MAX, Guarantee, is_topic_name
from topics.server.wire.counts import check_lists
from topics.server.wire.queries import Parameters
from topics.server.wire.replies import Performance
from topics.server.wire.requests import Natural
from topics.server.wire.seen.sights import CursorListed, LossShown

SEQS_MAX: Final = 256  # whose times are asked for at once

Level = Literal["ok", "note", "fault"]


class SettingShown(Struct):
    """A setting: its value, null if that is a secret, and where it comes from: a variable, `default` or `given`."""

    name: str
    variable: str
    value: Any
    default: Any
    origin: str
    secret: bool
    meaning: str


class CheckpointsShown(Struct):
    """The checkpoints of this process. `log_bytes` is the log since the last; the next is due at `due_bytes`, or
    `due_ms` after it if anything has changed."""

    taken: int
    failed: int
    running: bool
    last_ts: int | None
    last_ms: float | None
    failure: str | None
    log_bytes: int
    due_bytes: int
    due_ms: int


class DiskShown(Struct):
    """The disk of the data directory; `seconds_until_full` if it goes on filling as in the last hour."""

    free_bytes: int | None
    total_bytes: int | None
    seconds_until_full: float | None


class MemoryShown(Struct):
    """What the process has; what is held for connections, and at most; what is kept (LM14), at most, and by a write."""

    resident_bytes: int
    held_bytes: int
    held_bytes_max: int
    kept_bytes: int
    kept_bytes_max: int
    write_bytes_max: int


class ServerShown(Struct):
    version: str
    python: str
    uptime_ms: int
    started_ts: int
    settings: list[SettingShown]
    checkpoints: CheckpointsShown
    disk: DiskShown
    memory: MemoryShown
    performance: Performance


class Finding(Struct, frozen=True):
    """What was looked at, how it is, and what to do about it."""

    level: Level
    subject: str
    said: str
    remedy: str = ""
    topic: str | UnsetType = UNSET


class Diagnosis(Struct):
    findings: list[Finding]
    performance: Performance


class SumsShown(Struct):
    """Sums over topics; rates are records per second, of the last 60 s."""

    topics: int
    count: int
    bytes: int
    written_rate: float
    read_rate: float
    lost_total: int
    expired_total: int
    deleted_total: int
    ready: int


class BranchShown(SumsShown):
    """The topics whose names begin with `prefix`; or, with `topic`, the one of this name."""

    prefix: str
    topic: bool


class Tree(Struct, kw_only=True):
    """One step of the tree of names, below a prefix. `total` is of all that is below it, whatever the page."""

    prefix: str
    total: SumsShown
    branches: list[BranchShown]
    next_cursor: str | UnsetType = UNSET
    performance: Performance


class LossFound(LossShown):
    """A loss of some topic. `cursors` names the named cursors that stand below its end, at most 20 of `cursors_hit`."""

    topic: str
    cursors: list[str]
    cursors_hit: int


class LossFeed(Struct):
    """The newest losses of all topics; and, of each topic, the cursor that will lose next, if that is foreseen."""

    losses: list[LossFound]
    endangered: list[CursorListed]
    performance: Performance


class TimeShown(Struct):
    seq: int
    ts: int


class TimeList(Struct):
    """When records were written: of each seq that was asked for, the first live one at or above it."""

    topic: str
    times: list[TimeShown]
    performance: Performance


class RouterDetailed(Struct, kw_only=True):
    """A router in a list; from `preserve_node` on only with `detail`."""

    router: str
    source: str
    dest: str
    guarantee: Guarantee
    forwarded_total: int
    preserve_node: bool | UnsetType = UNSET
    preserve_tag: bool | UnsetType = UNSET
    filter: list[str] | None | UnsetType = UNSET
    allow_cycle: bool | UnsetType = UNSET
    lag: int | UnsetType = UNSET
    state: Literal["running", "blocked"] | UnsetType = UNSET
    blocked_by: str | UnsetType = UNSET


class RouterList(Struct, kw_only=True):
    routers: list[RouterDetailed]
    next_cursor: str | UnsetType = UNSET
    performance: Performance


class MoveIn(Struct, frozen=True):
    """The body of a move."""

    seqs: list[Natural]
    dest: str


class JobsMoved(Struct):
    """`moved` are in dest now; `skipped` are held by a worker, gone, or had no room there."""

    topic: str
    dest: str
    moved: list[int]
    skipped: list[int]
    performance: Performance


_decode_move = msgspec.json.Decoder(MoveIn).decode


def move_in(body: bytes, seqs_max: int) -> MoveIn:
    check_lists(body, claim_max=seqs_max)
    given: MoveIn = decode_json(_decode_move, body)
    if not given.seqs:
        raise InvalidRequest("seqs is empty; name at least one job")
    if len(given.seqs) > seqs_max:
        raise BatchTooLarge(f"seqs has {len(given.seqs)} entries; at most {seqs_max} are moved at once")
    if max(given.seqs) > SEQ_MAX:
        raise InvalidRequest(f"seqs holds {max(given.seqs)}; a seq is at most 2^64-1")
    if not is_topic_name(given.dest):
        raise InvalidRequest(f"dest is {quoted(given.dest)}, which is no name of a topic")
    return given


def seqs_in(parameters: Parameters) -> list[int]:
    """The seqs whose times are asked for."""
    text = parameters.text("seqs")
    if text is None:
        return []
    parts = text.split(",", SEQS_MAX)
    if len(parts) > SEQS_MAX:
        raise InvalidRequest(f"seqs has more than {SEQS_MAX} entries; ask in parts")
    for part in parts:
        if not part.isascii() or not part.isdigit() or len(part) > len(str(SEQ_MAX)):
            raise InvalidRequest(f"seqs has {quoted(part)}; it must be whole numbers with commas between")
    return [min(SEQ_MAX, int(part)) for part in parts]


def sums_shown(sums: Sums) -> SumsShown:
    return SumsShown(**_numbers(sums))


def branch_shown(branch: Branch) -> BranchShown:
    return BranchShown(prefix=branch.prefix, topic=branch.is_topic, **_numbers(branch.sums))


def _numbers(sums: Sums) -> dict[str, Any]:
    return {
        "topics": sums.topics,
        "count": sums.count,
        "bytes": sums.bytes,
        "written_rate": round(sums.written_lately / 60, 3),
        "read_rate": round(sums.read_lately / 60, 3),
        "lost_total": sums.lost,
        "expired_total": sums.expired,
        "deleted_total": sums.deleted,
        "ready": sums.ready,
    }


def loss_found(seen: LossSeen) -> LossFound:
    loss = seen.loss
    return LossFound(loss.first, loss.last, loss.reason, loss.ts, seen.topic, seen.cursors, seen.hit)


def router_listed(one: RouterState, has_details: bool) -> RouterDetailed:
    listed = RouterDetailed(
        router=one.router,
        source=one.source,
        dest=one.dest,
        guarantee=one.definition.guarantee,
        forwarded_total=one.forwarded_total,
    )
    if has_details:
        definition = one.definition
        listed.preserve_node, listed.preserve_tag = definition.preserve_node, definition.preserve_tag
        listed.filter = None if definition.match is None else list(definition.match.as_tuple())
        listed.allow_cycle, listed.lag, listed.state = definition.allow_cycle, one.lag, one.state
        listed.blocked_by = UNSET if one.blocked_by is None else one.blocked_by
    return listed
