"""The vocabulary of topics: one word per concept, used the same everywhere.

record      one immutable event of a topic: data, meta, tag, node, seq, ts
topic       a named append-only log with a config; one life of it is an instance, numbered by its epoch
queue       a topic whose records are jobs: handed out under leases, and deleted when they are done
seq         a record's number in its topic instance: 1, 2, 3 …; also a reader's cursor
head        the highest seq handed out (0 if none)
earliest    the lowest live seq (head + 1 if nothing is live)
floor       one above the highest seq lost involuntarily; a cursor below it meets a tombstone
gap         a stretch of seqs lost involuntarily above live records
loss        what took a stretch of seqs, and when: a cap, age, a crash, a source that had lost them
tombstone   what tells a reader which range it missed, and why
command     what a caller asks for (`Append`); entry: what was decided (`Appended`), logged and applied
frame       one atomic, checksummed list of entries in the log
position    a byte position in the whole log, across its files; a seq belongs to a topic, a position to the log
generation  a life of the log between two failures of its disk; what waited through a failure is void
gate        the positions that must be written or synced before an answer may be shown
reservation seqs that a topic may hand out before they are synced; those lost with the power are announced
segment     a sealed Arrow file of records; part: a run of records in memory or in a segment
page        1,024 rows of a part, rendered for readers; one that is not in memory is cold
piece       a run of rows of one topic in a segment, ascending by seq; small topics share a file
snapshot    metadata at a log position; checkpoint: sealing, taking a snapshot and trimming the log
router      a rule that copies records from a source topic into a dest; cursor: how far it, or a reader, has come
hop         one router that a copy has passed; hops are counted so that cycles end
hole        seqs of a dest handed out to nobody, because the source lost the records before they were copied
stamp       what an exactly_once router writes into its copies, so that none is made twice
lease       a job of a queue held by a node until a deadline; delivery: one handing-out of a job
crew        all who wait for the jobs of one queue: claims within a window, and workers that stay
letter      a dead letter: a job handed out too often, as it lies in the dead-letter topic
settle      to end a job's lease by an answer: ack or nack
weight      what something takes in memory, by estimate
unsaved     changed since the last checkpoint: the log has it, no snapshot does yet
node        the name of a writer or reader; tag: the key that deletes and filters match

`first`/`last` are inclusive, `start`/`stop` half-open, `after` is an exclusive cursor.
Live = stored, not evicted, not expired, not deleted.
"""

import re
from array import array
from collections.abc import Sequence
from typing import Any, Final, Literal, NamedTuple

import msgspec

from topics.errors import InvalidRequest

UTF8_STEP_BYTES: Final = 256 * 1024  # checked at a time
SEQ_MAX: Final = 2**64 - 1

TOPIC_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:-]{0,254}", re.ASCII)
ROUTER_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:>-]{0,254}", re.ASCII)
LEASE_ID: Final = re.compile(r"lease_[0-9a-f]+", re.ASCII)

TopicType = Literal["log", "queue"]
Discard = Literal["old", "reject"]
Durability = Literal["ephemeral", "memory", "disk", "fsync"]
Reason = Literal["cap", "ttl", "mixed", "recreated", "source_trim", "from_seq_too_old"]
Guarantee = Literal["at_least_once", "exactly_once"]

LIMIT_DEFAULT: Final = 256  # records of a read
BATCH_BYTES_DEFAULT: Final = 1024 * 1024  # and their sizes
BATCH_BYTES_MAX: Final = 8 * 1024 * 1024
WAIT_MS_MAX: Final = 30_000  # how long a read may wait
EXAMINED_MIN: Final = 100_000  # a read may stop after examining this many seqs, or 10 per record if it has no filter


class TopicConfig(msgspec.Struct, frozen=True, kw_only=True):
    """The 17 fields of a topic's config, resolved and clamped. `dead_letter` and `priority` may be null."""

    type: TopicType = "log"
    ttl_ms: int = 0  # 0 = records never expire
    cap_records: int = 0  # 0 = no cap
    cap_bytes: int = 0  # 0 = no cap
    discard: Discard = "old"
    durable: bool = False  # always durability == "fsync"
    durability: Durability = "disk"
    priority: int | None = None  # None = derived from recency
    auto_priority: bool = True
    auto_create: bool = True
    idempotency_window_ms: int = 120_000  # 0 = keys are not remembered
    dedupe_node: bool = True
    lease_ms: int = 30_000
    claim_jitter_ms: int = 0  # 0 = claims are served at once
    max_deliveries: int = 0  # 0 = no limit
    dead_letter: str | None = None
    leases_durable: bool = False


class TagMatch(msgspec.Struct, frozen=True):
    """The tag predicate of deletes, filters and routers: one tag, or all that start with a prefix."""

    operator: Literal["Eq", "Glob"]
    value: str  # for Glob the literal prefix, without its trailing *

    def matches(self, tag: str | None) -> bool:
        if tag is None:
            return False
        return tag == self.value if self.operator == "Eq" else tag.startswith(self.value)

    def as_tuple(self) -> tuple[str, str, str]:
        return ("tag", self.operator, self.value + ("*" if self.operator == "Glob" else ""))

    @classmethod
    def parse(cls, match: Any, field: str = "match") -> "TagMatch":
        """Read `"x"`, `["tag","Eq",x]` or `["tag","Glob","prefix*"]`."""
        if isinstance(match, str):
            return cls("Eq", match)
        if not isinstance(match, list | tuple) or len(match) != 3 or not all(isinstance(m, str) for m in match):
            raise InvalidRequest(f'{field} must be a string, ["tag","Eq",x] or ["tag","Glob","prefix*"]')
        subject, operator, value = match
        if subject != "tag":
            raise InvalidRequest(f'{field}[0] is "{subject}"; only "tag" can be matched')
        if operator == "Eq":
            return cls("Eq", value)
        if operator != "Glob":
            raise InvalidRequest(f'{field}[1] is "{operator}"; use "Eq" or "Glob"')
        if not value.endswith("*"):
            raise InvalidRequest(f'{field}[2] is "{value}"; a Glob ends in *')
        return cls("Glob", value[:-1])


class RouterDefinition(msgspec.Struct, frozen=True, array_like=True):
    """What a router does with the records of its source."""

    preserve_node: bool = True
    preserve_tag: bool = True
    match: TagMatch | None = None  # records whose tag does not match are passed over; None = all are copied
    allow_cycle: bool = False
    guarantee: Guarantee = "at_least_once"


class Tombstone(msgspec.Struct, frozen=True):
    """A range that a reader missed: `gap_from`..`gap_to`, inclusive."""

    gap_from: int
    gap_to: int
    reason: Reason
    missed_estimate: int
    earliest_seq: int
    head_seq: int


class Gap(msgspec.Struct, frozen=True, array_like=True):
    """Seqs `first`..`last`, lost above live records."""

    first: int
    last: int
    reason: Literal["cap", "source_trim"]


class Record(msgspec.Struct, frozen=True, rename={"seq": "$seq", "ts": "$ts", "node": "$node", "tag": "$tag"}):
    """A record as readers get it. `data` and `meta` are the JSON texts that were written."""

    seq: int
    ts: int
    node: str | None = None
    tag: str | None = None
    data: msgspec.Raw = msgspec.Raw()
    meta: msgspec.Raw = msgspec.Raw()


_decode_list = msgspec.json.Decoder(list[msgspec.Raw]).decode


def is_topic_name(name: str) -> bool:
    return TOPIC_NAME.fullmatch(name) is not None


def is_router_name(name: str) -> bool:
    return ROUTER_NAME.fullmatch(name) is not None


Texts = list[str | None] | None  # one per row; None: no row has one


class LaidRows(NamedTuple):
    """Rows of a part, not decoded: it is known where their texts are.

    `text` has the data of row n, then `,"tag":"…"` and `,"node":"…"` if the row has these, in which nothing is escaped.
    Before it there are sums[n] bytes of data, others[n] bytes that are none, and the tags and nodes of earlier rows.
    `tags` and `nodes` are the sizes of these fields in bytes, an i32 each, 0 where there is none; empty if no row has
    one.
    """

    first: int  # seq
    timestamps: "array[int]"
    text: bytes | memoryview
    sums: "array[int]"  # one more than there are rows
    others: "array[int]"
    tags: bytes
    nodes: bytes


class Columns(NamedTuple):
    """Some rows of a part, decoded. `datas` and `metas` are JSON texts; a column is None if no row has a value."""

    seqs: Sequence[int]
    ts: Sequence[int]
    nodes: Texts
    tags: Texts
    metas: list[msgspec.Raw | None] | None
    datas: list[msgspec.Raw]

    def select(self, runs: Sequence[tuple[int, int]]) -> "Columns":
        """Only the rows in `runs`."""
        return Columns(*(None if column is None else _select(column, runs) for column in self))  # type: ignore[arg-type]


def _select(column: Sequence[Any], runs: Sequence[tuple[int, int]]) -> Sequence[Any]:
    return [value for start, stop in runs for value in column[start:stop]]


def check_utf8(body: bytes) -> None:
    """Raise UnicodeDecodeError unless it is UTF-8. A large text as a whole could be four times its size in memory."""
    start, stop = 0, UTF8_STEP_BYTES
    while stop < len(body):
        while stop > start and body[stop] & 0xC0 == 0x80:  # within a character
            stop -= 1
        if stop == start:
            break
        body[start:stop].decode()
        start, stop = stop, stop + UTF8_STEP_BYTES
    (body[start:] if start else body).decode()


def lease_id(number: int) -> str:
    """What a worker knows a lease by."""
    return f"lease_{number:x}"


def lease_number(text: str, field: str) -> int | None:
    """The number of a lease; None for no lease at all (""), -1 for one that cannot be."""
    if not text:
        return None
    if LEASE_ID.fullmatch(text) is None:
        raise InvalidRequest(f'{field} is "{text[:40]}", which is not a lease_id')
    number = int(text[6:22], 16)
    return number if lease_id(number) == text else -1


def lease_numbers(texts: Sequence[str], field: str) -> list[int | None]:
    """The numbers of leases, each as `lease_number` gives it."""
    numbers: list[int | None] = []
    for at, text in enumerate(texts):
        try:
            number = int(text[6:22], 16)
        except ValueError:
            number = -1
        if number < 0 or f"lease_{number:x}" != text:
            numbers.append(lease_number(text, f"{field}[{at}]"))
        else:
            numbers.append(number)
    return numbers


def are_values(texts: Any) -> bool:
    """Whether each text of an Arrow array is one JSON value, without blanks around it.

    All are decoded as one list. A text could reach into its neighbour there, but then some value is longer or shorter
    than its text. RecursionError: one is nested too deeply.
    """
    import pyarrow as pa
    import pyarrow.compute as pc

    whole = pa.ListArray.from_arrays(pa.array([0, len(texts)], pa.int32()), texts)
    try:
        values = _decode_list(b"".join((b"[", pc.binary_join(whole, ",")[0].as_buffer(), b"]")))
    except msgspec.MsgspecError:
        return False
    sizes = pc.binary_length(texts)
    first, stop = 4 * sizes.offset, 4 * (sizes.offset + len(sizes))
    return array("i", map(len, values)).tobytes() == bytes(sizes.buffers()[1])[first:stop]
