"""What requests say: their bodies, decoded and checked; a diff may be a query string instead.

The structs here are the request bodies of the API; the OpenAPI document is made of the same types. Fields that are
unknown are ignored (CV4); a null where a rule does not allow it is a type error (CV19). Must not know: the engine's
state, who is calling. Rules: CV3, CV18-CV23.
"""

from typing import Annotated, Final, Literal, TypeVar

import msgspec
from msgspec import UNSET, Meta, Struct, UnsetType

from topics.core.topic.config import LEASE_MS_MAX, LEASE_MS_MIN, ConfigIn
from topics.core.topic.records import DELAY_MS_MAX, WriteIn, decode_json
from topics.engine.instance import Projection, Query
from topics.errors import BatchTooLarge, InvalidRequest
from topics.model import (
    BATCH_BYTES_DEFAULT,
    BATCH_BYTES_MAX,
    LIMIT_DEFAULT,
    SEQ_MAX,
    Guarantee,
    TagMatch,
    is_topic_name,
    lease_numbers,
)
from topics.server.wire.counts import SMALL_BYTES, CountedRecord, check_lists, write_decoder
from topics.server.wire.queries import DIGITS_MAX, Parameters
from topics.settings import Settings

T = TypeVar("T")

WATCH_BATCH_BYTES_DEFAULT: Final = 256 * 1024
HEARTBEAT_MS_DEFAULT: Final = 15_000
HEARTBEAT_MS_MAX: Final = 60_000
SMALL_BODY_BYTES_MAX: Final = 4 * 1024 * 1024  # of all requests but writes
NODES_MAX: Final = 256  # ids that one reader may stand for

Natural = Annotated[int, Meta(ge=0)]
Match = str | list[str]


class PutIn(ConfigIn, frozen=True, kw_only=True):
    """The body of PUT topic: a config, and whether to say only what it would do."""

    dry_run: bool = False


class DiffIn(Struct, frozen=True):
    """The body of a diff."""

    from_seq: Natural = 0
    limit: Natural = 0
    node: str | list[str] | None = None
    include_tags: bool = False
    include_meta: bool = True
    wait_ms: Natural = 0
    max_batch_bytes: Natural = 0
    epoch: Natural | None = None
    from_ts: Natural | None = None
    filter: Match | None = None


class ClaimIn(Struct, frozen=True):
    """The body of a claim."""

    node: str
    max: Natural = 0
    lease_ms: Natural | None = None


class AckIn(Struct, frozen=True):
    """The body of an ack."""

    node: str
    seqs: list[Natural]
    lease_ids: list[str] | UnsetType = UNSET


class NackIn(Struct, frozen=True):
    """The body of a nack."""

    node: str
    seqs: list[Natural]
    lease_ids: list[str] | UnsetType = UNSET
    delay_ms: Natural = 0


class ExtendIn(Struct, frozen=True, kw_only=True):
    """The body of an extend."""

    node: str
    seqs: list[Natural]
    lease_ids: list[str] | UnsetType = UNSET
    lease_ms: Natural


class RedriveIn(Struct, frozen=True):
    """The body of a redrive."""

    match: Match | None = None
    max: Natural | UnsetType = UNSET
    dry_run: bool = False


class NothingIn(Struct, frozen=True):
    """The body of a request that says all in its path; an empty one stands for {}."""


class BackupIn(Struct, frozen=True):
    """The body of a backup; an empty one stands for {}."""

    have: list[str] = []
    follow: bool = False


class RouterIn(Struct, frozen=True):
    """The body of PUT router."""

    source: str
    dest: str
    preserve_node: bool = True
    preserve_tag: bool = True
    create_dest: bool = True
    filter: Match | None = None
    allow_cycle: bool = False
    guarantee: Guarantee = "at_least_once"


class DeleteIn(Struct, frozen=True):
    """The body of a delete."""

    before_seq: Natural | None = None
    match: Match | None = None
    epoch: Natural | None = None
    dry_run: bool = False


class CursorIn(Struct, frozen=True, kw_only=True):
    """The body of PUT cursor. `if_seq` null: there must be none."""

    seq: Natural
    epoch: Natural | None = None
    if_seq: Natural | None | UnsetType = UNSET


class WatchTopicIn(Struct, frozen=True):
    """Where to start in a topic."""

    from_seq: Natural = 0
    tail: bool = False


class WatchIn(Struct, frozen=True):
    """The body of POST /v0/watch."""

    topics: dict[str, WatchTopicIn]
    node: str | list[str] | None = None
    limit: Natural = 0
    max_batch_bytes: Natural = WATCH_BATCH_BYTES_DEFAULT
    heartbeat_ms: Natural = HEARTBEAT_MS_DEFAULT
    include_meta: bool = True
    include_tags: bool = False
    include_data: bool = True
    consistency: Literal["eventual", "strong"] = "eventual"
    cursor: str | None = None
    filter: Match | None = None


class CountedWriteIn(WriteIn, gc=False):
    """A write that may have too many records."""

    records: list[CountedRecord]  # type: ignore[assignment]


_decode_put = msgspec.json.Decoder(PutIn).decode
_decode_diff = msgspec.json.Decoder(DiffIn).decode
_decode_delete = msgspec.json.Decoder(DeleteIn).decode
_decode_named_cursor = msgspec.json.Decoder(CursorIn).decode
_decode_router = msgspec.json.Decoder(RouterIn).decode
_decode_watch = msgspec.json.Decoder(WatchIn).decode
_decode_claim = msgspec.json.Decoder(ClaimIn).decode
_decode_ack = msgspec.json.Decoder(AckIn).decode
_decode_nack = msgspec.json.Decoder(NackIn).decode
_decode_extend = msgspec.json.Decoder(ExtendIn).decode
_decode_nothing = msgspec.json.Decoder(NothingIn).decode
_decode_redrive = msgspec.json.Decoder(RedriveIn).decode
_decode_backup = msgspec.json.Decoder(BackupIn).decode
_decode_texts = msgspec.json.Decoder(list[str]).decode

write_in = write_decoder(WriteIn, CountedWriteIn)

EMPTY_DIFF: Final = DiffIn()
EMPTY_PUT: Final = PutIn()


def small_body_bytes_max(settings: Settings) -> int:
    """How large the body of a request that is no write may be (LM9)."""
    return min(SMALL_BODY_BYTES_MAX, settings.max_body_bytes)


def put_in(body: bytes) -> PutIn:
    """The body of PUT topic; an empty one stands for {}."""
    return decode_json(_decode_put, body) if body else EMPTY_PUT


def diff_in(body: bytes, settings: Settings) -> DiffIn:
    """The body of a diff; an empty one stands for {}."""
    if len(body) > SMALL_BYTES:
        check_lists(body, nodes_max=NODES_MAX, node_bytes=settings.max_node_bytes)
    return decode_json(_decode_diff, body) if body else EMPTY_DIFF


def delete_in(body: bytes) -> tuple[int | None, TagMatch | None, int | None, bool]:
    """A delete: its selectors, at least one of the two, its epoch, and whether it is a dry run."""
    given: DeleteIn = decode_json(_decode_delete, body)
    if given.before_seq is None and given.match is None:
        raise InvalidRequest("a delete needs before_seq or match")
    before = None if given.before_seq is None else seq("before_seq", given.before_seq)
    epoch = None if given.epoch is None else seq("epoch", given.epoch)
    return before, None if given.match is None else TagMatch.parse(given.match), epoch, given.dry_run


def cursor_in(body: bytes) -> CursorIn:
    """Where a named cursor is to stand (NC1)."""
    given: CursorIn = decode_json(_decode_named_cursor, body)
    for field, number in (("seq", given.seq), ("epoch", given.epoch), ("if_seq", given.if_seq)):
        if isinstance(number, int):
            seq(field, number)
    return given


def seq_in_path(text: str) -> int:
    """The seq that a path names (RC1)."""
    if not text.isascii() or not text.isdigit():
        raise InvalidRequest(f"the path names record {text[:40]!r}; a seq is a whole number")
    return seq("the seq in the path", int(text[-DIGITS_MAX:]) if len(text.lstrip("0")) <= DIGITS_MAX else SEQ_MAX + 1)


class HeldJobs(Struct, frozen=True):
    """Which jobs an ack, nack or extend is about."""

    node: str
    seqs: list[int]
    numbers: list[int | None] | None  # of their leases


def claim_in(body: bytes, settings: Settings) -> tuple[str, int, int | None]:
    """A claim: node, number of jobs at most, length of the leases (QU2)."""
    given: ClaimIn = decode_json(_decode_claim, body)
    lease_ms = None if given.lease_ms is None else lease_length(given.lease_ms)
    return worker_node(given.node, settings), min(given.max or 1, settings.max_claim), lease_ms


def ack_in(body: bytes, settings: Settings) -> HeldJobs:
    check_lists(body, claim_max=settings.max_claim)
    return _held_jobs(decode_json(_decode_ack, body), settings)


def nack_in(body: bytes, settings: Settings) -> tuple[HeldJobs, int]:
    """A nack, and for how long its jobs stay hidden."""
    check_lists(body, claim_max=settings.max_claim)
    given: NackIn = decode_json(_decode_nack, body)
    return _held_jobs(given, settings), min(given.delay_ms, DELAY_MS_MAX)


def extend_in(body: bytes, settings: Settings) -> tuple[HeldJobs, int]:
    """An extend, and the new length."""
    check_lists(body, claim_max=settings.max_claim)
    given: ExtendIn = decode_json(_decode_extend, body)
    return _held_jobs(given, settings), lease_length(given.lease_ms)


def redrive_in(body: bytes) -> tuple[TagMatch | None, int | None, bool]:
    """A redrive: which dead letters, how many at most, and whether it is a dry run."""
    given: RedriveIn = decode_json(_decode_redrive, body)
    count_max = None if isinstance(given.max, UnsetType) else given.max
    return None if given.match is None else TagMatch.parse(given.match), count_max, given.dry_run


def nothing_in(body: bytes) -> None:
    if body:
        decode_json(_decode_nothing, body)


def backup_in(body: bytes) -> BackupIn:
    return decode_json(_decode_backup, body or b"{}")  # type: ignore[no-any-return]


def worker_node(node: str, settings: Settings) -> str:
    size = len(node.encode())
    if not 0 < size <= settings.max_node_bytes:
        raise InvalidRequest(f"node is {size} bytes; it must be 1 to {settings.max_node_bytes}")
    return node


def lease_length(lease_ms: int) -> int:
    return max(LEASE_MS_MIN, min(LEASE_MS_MAX, lease_ms))


def _held_jobs(given: AckIn | NackIn | ExtendIn, settings: Settings) -> HeldJobs:
    """Check what selects jobs (QU21)."""
    seqs, lease_ids = given.seqs, given.lease_ids
    if not seqs:
        raise InvalidRequest("seqs is empty; at least one job is needed")
    if len(seqs) > settings.max_claim:
        raise BatchTooLarge(f"seqs has {len(seqs)} jobs, at most {settings.max_claim}")
    if max(seqs) > SEQ_MAX:
        raise InvalidRequest(f"seqs holds {max(seqs)}; a seq is at most 2^64-1")
    node = worker_node(given.node, settings)
    if isinstance(lease_ids, UnsetType):
        return HeldJobs(node, seqs, None)
    if len(lease_ids) != len(seqs):
        raise InvalidRequest(f"lease_ids has {len(lease_ids)} entries, seqs {len(seqs)}; each job has one")
    return HeldJobs(node, seqs, lease_numbers(lease_ids, "lease_ids"))


def router_in(body: bytes) -> tuple[RouterIn, TagMatch | None]:
    """A router: two valid topic names, and a filter written like the match of a delete."""
    given: RouterIn = decode_json(_decode_router, body)
    for field, name in (("source", given.source), ("dest", given.dest)):
        if not is_topic_name(name):
            raise InvalidRequest(f'{field} "{name[:40]}" is not a valid topic name')
    if given.source == given.dest:
        raise InvalidRequest(f'source and dest are both "{given.dest}"; they must differ')
    return given, None if given.filter is None else TagMatch.parse(given.filter, "filter")


def query_of(diff: DiffIn, settings: Settings) -> Query:
    """The read that a diff asks for; ranges are clamped (DF1)."""
    if diff.from_ts is not None:
        seq("from_ts", diff.from_ts)
    return Query(
        seq("from_seq", diff.from_seq),
        min(diff.limit or LIMIT_DEFAULT, settings.max_limit),
        min(diff.max_batch_bytes or BATCH_BYTES_DEFAULT, BATCH_BYTES_MAX),
        nodes_of(diff.node, settings),
        None if diff.filter is None else TagMatch.parse(diff.filter, "filter"),
        None if diff.epoch is None else seq("epoch", diff.epoch),
        Projection(diff.include_tags, diff.include_meta, True),
    )


def nodes_of(node: str | list[str] | None, settings: Settings) -> frozenset[str]:
    """The nodes that a reader stands for (ND1, LM8)."""
    if node is None:
        return frozenset()
    nodes = [node] if isinstance(node, str) else node
    if len(nodes) > NODES_MAX:
        raise InvalidRequest(f"node has {len(nodes)} ids, at most {NODES_MAX}")
    for one in nodes:
        if 4 * len(one) > settings.max_node_bytes and (size := len(one.encode())) > settings.max_node_bytes:
            raise InvalidRequest(f'node "{one[:40]}" is {size} bytes, at most {settings.max_node_bytes}')
    return frozenset(nodes)


def watch_in(body: bytes, settings: Settings) -> WatchIn:
    """The body of POST /v0/watch; the number of topics and the cursors are checked."""
    check_followed(body, settings)
    watch: WatchIn = decode_json(_decode_watch, body)
    check_starts(watch.topics, settings)
    return watch


def check_followed(body: bytes, settings: Settings) -> None:
    """Refuse a watch or subscribe with too many topics or nodes from its text."""
    check_lists(body, topics_max=settings.max_watch_topics, nodes_max=NODES_MAX, node_bytes=settings.max_node_bytes)


def check_starts(topics: dict[str, WatchTopicIn], settings: Settings) -> None:
    """Check what a session or a socket is to follow (SS3)."""
    if not topics:
        raise InvalidRequest("topics is empty; at least one topic is needed")
    if len(topics) > settings.max_watch_topics:
        raise InvalidRequest(f"topics has {len(topics)} topics, at most {settings.max_watch_topics}")
    for name, topic in topics.items():
        seq(f"topics.{name[:40]}.from_seq", topic.from_seq)


def seq(field: str, number: int) -> int:
    """A number that is taken exactly, not clamped (CV18)."""
    if number > SEQ_MAX:
        raise InvalidRequest(f"{field} is {number}; it must be at most 2^64-1")
    return number


def diff_of(parameters: Parameters) -> DiffIn:
    """A diff as a query string."""
    given = {name: parameters.natural(name) for name in ("from_seq", "limit", "wait_ms", "max_batch_bytes")}
    return DiffIn(
        **{name: value for name, value in given.items() if value is not None},
        node=parameters.text("node"),
        include_tags=parameters.flag("include_tags", False),
        include_meta=parameters.flag("include_meta", True),
        epoch=parameters.natural("epoch"),
        from_ts=parameters.natural("from_ts"),
        filter=_match_text(parameters.text("filter")),
    )


def _match_text(text: str | None) -> Match | None:
    """A match in a query string: a tuple as JSON; anything else is a bare tag."""
    try:
        return _decode_texts(text or "")
    except (msgspec.MsgspecError, UnicodeEncodeError):
        return text
