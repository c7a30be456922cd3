"""Entries: what was decided, in the form in which it is logged and applied.

An entry holds everything `apply` needs, so that replay reads no clock and
decides nothing. All entries of one frame are applied together.

Layout of a frame's payload: entries one after the other, each

    u8 kind | u32 length | content

kind 1 is an Appended, whose content is (little endian)

    u64 topic | u64 first | i64 ts | u32 count | u8 flags | u16 key length | key | u32 size × count | body

flags: 1 = some record has a tag, 2 = there is a key, 4 = some record has a delay. Kind 2 is the same with the digest of
the records, a u64, before the rest. Kind 3 is no entry: it says when the frame was committed (i64, epoch-milliseconds),
for frames that are not a single Appended, whose `ts` says the same. Only a restore to a point in time asks for it;
replay skips it. Kind 0 is any other entry, in MessagePack, as an array that starts with the entry's tag number.
Numbers of kinds and tags are never reused.
"""

from array import array
from collections.abc import Iterable, Iterator, Sequence
from struct import Struct as Layout
from typing import Literal

import msgspec
from msgspec import Struct

from topics.core.topic.losses import Loss
from topics.core.topic.records import Batch
from topics.errors import TopicsError
from topics.model import RouterDefinition, TopicConfig

_HEAD = Layout("<BI")
_APPENDED = Layout("<QQqIBH")
_DIGEST = Layout("<Q")
_COMMITTED = Layout("<BIq")
# A frame of one plain record, up to its body: kind, length, topic, first, ts, count, flags, key length, size.
PLAIN_FORMAT = "BIQQqIBHI"
_PLAIN = Layout("<" + PLAIN_FORMAT)
PLAIN_BYTES = _PLAIN.size
_KIND_OTHER, KIND_APPENDED, _KIND_DIGESTED, _KIND_COMMITTED = 0, 1, 2, 3
HAS_TAGS, _HAS_KEY, _HAS_DELAYS = 1, 2, 4


class UnknownEntry(TopicsError):
    """The log holds an entry that this version does not know."""


class Appended(Struct, gc=False):
    """Records `first` .. `first + len(batch.sizes) - 1` of a topic, all with one `ts`."""

    topic: int
    first: int
    ts: int
    batch: Batch
    key: str | None = None  # idempotency key

    @property
    def last(self) -> int:
        return self.first + len(self.batch.sizes) - 1


class Entry(Struct, gc=False, array_like=True, tag_field="tag"):
    """An entry other than Appended. `topic` is the numeric id of the instance."""


class TopicCreated(Entry, tag=1):
    topic: int
    name: str
    epoch: int
    config: TopicConfig


class TopicConfigured(Entry, tag=2):
    topic: int
    config: TopicConfig


class TopicDeleted(Entry, tag=3):
    topic: int


class Evicted(Entry, tag=4):
    """All live records up to `last`, itself live until now, are lost to a cap."""

    topic: int
    last: int
    ts: int = 0  # when; 0 = not known, as an older version logged it


class Expired(Entry, tag=5):
    """All live records up to `last`, itself live until now, are lost to their age."""

    topic: int
    last: int
    ts: int = 0


class Deleted(Entry, tag=6):
    """Live records below `before` are deleted, and those whose bits are set in `blocks`.

    A block is 1024 seqs, `number * 1024` and up; bit i of its mask (little
    endian bytes) stands for seq `number * 1024 + i`. `count` is how many records
    these are: when the entry is replayed, some may be marked in their segment already.
    """

    topic: int
    before: int
    blocks: list[tuple[int, bytes]]
    count: int = 0


class GapOpened(Entry, tag=7):
    """The next seqs, up to `last`, are handed out to nobody: an announced loss."""

    topic: int
    last: int
    reason: Literal["cap", "source_trim"]
    ts: int = 0


class Reserved(Entry, tag=8):
    """Seqs up to `last` may be handed out before they are synced (DU10)."""

    topic: int
    last: int


class HeadInherited(Entry, tag=9):
    """The head of a topic whose records the log does not have.

    Those up to `lost` are lost by a crash, or were before; `deleted` ones were deleted on purpose. `losses` say when
    and why, and are what there is to know if no record is left; an older version did not log them.
    """

    topic: int
    head: int
    lost: int
    deleted: int = 0
    losses: list[Loss] | None = None
    expired: int = 0
    trimmed: int = 0


class Reincarnated(Entry, tag=10):
    """A crash took an ephemeral topic's records: all up to its head are lost, and it has a new epoch."""

    topic: int
    epoch: int
    ts: int = 0


class RouterSet(Entry, tag=11):
    """A router is created, changed, or replaced by another one of its name. It goes on from `cursor` and `total`."""

    router: int  # numeric id; a name used again is another router
    name: str
    source: int
    dest: int
    definition: RouterDefinition
    cursor: int
    total: int


class RouterRemoved(Entry, tag=12):
    router: int
    name: str


class Leased(Entry, tag=13):
    """Jobs handed out, or leases given a new deadline: (seq, lease number, deadline, deliveries)."""

    topic: int
    node: str
    leases: list[tuple[int, int, int, int]]


class Released(Entry, tag=14):
    """Leases that ended without a delete: (seq, lease number, claimable from)."""

    topic: int
    leases: list[tuple[int, int, int]]


class Stamp(Struct, gc=False, frozen=True, array_like=True):
    """What an exactly_once router writes into the meta of its copies, besides ids and seqs (RT14)."""

    router: str
    source: str
    epoch: int


class Forwarded(Entry, tag=15):
    """A router has come to `cursor` of its source: records `runs` of it are copied to the head of the dest.

    The records are in the log before it or, if it `carries_records`, in the Appended behind it in its frame. The copies
    come after `lost` seqs of the dest that are handed out to nobody, for records that the source lost (RT12).
    """

    router: int
    source: int
    dest: int
    first: int  # seq of the dest at which all this starts
    ts: int  # of the copies
    lost: int
    lost_hops: int  # routers that these have passed
    runs: list[tuple[int, int, int]]  # first and last seq in the source, routers that their copies have passed
    cursor: int
    total: int
    carries_records: bool = False
    drops_node: bool = False
    drops_tag: bool = False
    stamp: Stamp | None = None

    @property
    def copied(self) -> int:
        return sum([last - first + 1 for first, last, _ in self.runs])

    @property
    def last(self) -> int:
        """The dest's head after it."""
        return self.first + self.lost + self.copied - 1


class Forwarding(Struct, gc=False):
    """A Forwarded together with the records that it copies: what is applied. The records are not logged with it."""

    entry: Forwarded
    batches: Sequence[Batch]

    @property
    def topic(self) -> int:
        return self.entry.dest

    @property
    def last(self) -> int:
        return self.entry.last


class TimePassed(Struct, gc=False):
    """It is `now`: leases and delays of a queue that are over end. Applied, and never logged: time passes anyway."""

    topic: int
    now: int


class Freed(Struct, gc=False):
    """What is known of jobs after a failure of the log: (seq, lease number, times handed out).

    Whoever holds one under that lease holds it no more, and the count is this one. Applied, and never logged: it puts
    right what the log does not have.
    """

    topic: int
    jobs: list[tuple[int, int, int]]


class KeysForgotten(Struct, gc=False):
    """The window of the `count` oldest idempotency keys of a topic is over. Applied, and never logged: time passes."""

    topic: int
    count: int


class DeadLettered(Entry, tag=20):
    """Jobs of a queue were moved to its dead-letter topic, by the other entries of the frame."""

    topic: int
    count: int


class CursorSet(Entry, tag=24):
    """A named cursor of a topic stands at `seq` (NC1)."""

    topic: int
    name: str
    seq: int
    ts: int


class CursorRemoved(Entry, tag=25):
    topic: int
    name: str


class QueuePaused(Entry, tag=26):
    """A queue hands out no jobs from now on, or hands them out again."""

    topic: int
    paused: bool


class EpochRaised(Entry, tag=40):
    """A restore gives a topic another epoch, as its seqs may have been handed out for other records; all else stays."""

    topic: int
    epoch: int


OtherEntry = (
    TopicCreated
    | TopicConfigured
    | TopicDeleted
    | Evicted
    | Expired
    | Deleted
    | GapOpened
    | Reserved
    | HeadInherited
    | Reincarnated
    | RouterSet
    | RouterRemoved
    | Leased
    | Released
    | Forwarded
    | DeadLettered
    | CursorSet
    | CursorRemoved
    | QueuePaused
    | EpochRaised
)
Unlogged = TimePassed | Freed | KeysForgotten  # changes of what only memory knows
AnyEntry = Appended | Forwarding | Unlogged | OtherEntry

CONTROL = frozenset((TopicCreated, TopicConfigured, TopicDeleted, QueuePaused, RouterSet, RouterRemoved))
UNLOGGED = frozenset((TimePassed, Freed, KeysForgotten))
LEASES = frozenset((Leased, Released))
JOBS = frozenset((Deleted, *LEASES, *UNLOGGED))  # concern one topic, whose head stays, and copy nothing
GROWING = frozenset((Appended, CursorSet, TopicCreated, RouterSet))  # take space, as copies do; others free some

_encode_other = msgspec.msgpack.Encoder().encode
_decode_other = msgspec.msgpack.Decoder(OtherEntry).decode


UNCOPIED_BYTES_MIN = 1024 * 1024  # a body of more is logged from where it is


def encode(entries: Sequence[AnyEntry], committed_ms: int = 0) -> bytes:
    """The payload of one frame. `committed_ms` is left out where a single Appended has the time, or if it is 0."""
    if len(entries) == 1 and type(entries[0]) is Appended:
        return _encode_appended(entries[0])
    parts = [_encode_one(entry) for entry in entries]
    if committed_ms and parts:
        parts.append(_COMMITTED.pack(_KIND_COMMITTED, 8, committed_ms))
    return b"".join(parts)


def payload_of(entries: Sequence[AnyEntry], committed_ms: int = 0) -> bytes | list[bytes]:
    """The same; in parts if records in it are many bytes, which are then not copied."""
    if len(entries) == 1 and type(entries[0]) is Appended and len(entries[0].batch.body) <= UNCOPIED_BYTES_MIN:
        return _encode_appended(entries[0])
    for entry in entries:
        if type(entry) is Appended and len(entry.batch.body) > UNCOPIED_BYTES_MIN:
            break
    else:
        return encode(entries, committed_ms)
    parts: list[bytes] = []
    for entry in entries:
        parts += _appended_parts(entry) if type(entry) is Appended else (_encode_one(entry),)
    if committed_ms:
        parts.append(_COMMITTED.pack(_KIND_COMMITTED, 8, committed_ms))
    return parts


def committed_ms(payload: memoryview) -> int | None:
    """When a frame was committed, by its own account; None: it does not say."""
    said: int | None = None
    written: int | None = None
    start = 0
    while start < len(payload):
        kind, size = _HEAD.unpack_from(payload, start)
        if kind == _KIND_COMMITTED:
            said = max(said or 0, _COMMITTED.unpack_from(payload, start)[2])
        elif kind in (KIND_APPENDED, _KIND_DIGESTED):
            skipped = _HEAD.size + (_DIGEST.size if kind == _KIND_DIGESTED else 0)
            written = max(written or 0, _APPENDED.unpack_from(payload, start + skipped)[2])
        start += _HEAD.size + size
    return written if said is None else said


def decode(payload: memoryview) -> Iterable[AnyEntry]:
    """The entries of one frame's payload, whose checksum was right. Most frames are one write."""
    if len(payload) > _HEAD.size:
        kind, size = _HEAD.unpack_from(payload)
        if kind == KIND_APPENDED and size == len(payload) - _HEAD.size:
            return (_decode_appended(payload[_HEAD.size :]),)
    return _decode_all(payload)


def _decode_all(payload: memoryview) -> Iterator[AnyEntry]:
    start = 0
    while start < len(payload):
        kind, size = _HEAD.unpack_from(payload, start)
        start += _HEAD.size
        content = payload[start : start + size]
        start += size
        if kind == KIND_APPENDED:
            yield _decode_appended(content)
        elif kind == _KIND_DIGESTED:
            yield _decode_appended(content[_DIGEST.size :], *_DIGEST.unpack_from(content))
        elif kind == _KIND_OTHER:
            try:
                yield _decode_other(content)
            except msgspec.ValidationError as error:
                raise UnknownEntry(f"a newer version of topics wrote this log: {error}") from None
        elif kind != _KIND_COMMITTED:
            raise UnknownEntry(f"a newer version of topics wrote this log: entry kind {kind}")


def _encode_one(entry: AnyEntry) -> bytes:
    if type(entry) is Appended:
        return _encode_appended(entry)
    content = _encode_other(entry.entry if type(entry) is Forwarding else entry)
    return _HEAD.pack(_KIND_OTHER, len(content)) + content


def _encode_appended(entry: Appended) -> bytes:
    batch = entry.batch
    if len(batch.sizes) == 1 and entry.key is None and not batch.has_delays and not batch.digest:  # most are
        body, flags = batch.body, HAS_TAGS if batch.has_tags else 0
        length = PLAIN_BYTES - _HEAD.size + len(body)
        size = batch.sizes[0]
        return _PLAIN.pack(KIND_APPENDED, length, entry.topic, entry.first, entry.ts, 1, flags, 0, size) + body
    return b"".join(_appended_parts(entry))


def _appended_parts(entry: Appended) -> tuple[bytes, ...]:
    batch = entry.batch
    sizes = batch.sizes.tobytes()
    key = b"" if entry.key is None else entry.key.encode()
    flags = (HAS_TAGS if batch.has_tags else 0) | (_HAS_KEY if entry.key is not None else 0)
    if batch.has_delays:
        flags |= _HAS_DELAYS
    head = _APPENDED.pack(entry.topic, entry.first, entry.ts, len(batch.sizes), flags, len(key))
    size = len(head) + len(key) + len(sizes) + len(batch.body)
    if batch.digest:
        digest = _HEAD.pack(_KIND_DIGESTED, size + _DIGEST.size) + _DIGEST.pack(batch.digest)
        return digest, head, key, sizes, batch.body
    return _HEAD.pack(KIND_APPENDED, size), head, key, sizes, batch.body


def _decode_appended(content: memoryview, digest: int = 0) -> Appended:
    topic, first, ts, count, flags, key_size = _APPENDED.unpack_from(content)
    sizes_start = _APPENDED.size + key_size
    body_start = sizes_start + 4 * count
    sizes = array("I")
    sizes.frombytes(content[sizes_start:body_start])
    key = str(content[_APPENDED.size : sizes_start], "utf-8") if flags & _HAS_KEY else None
    batch = Batch(bytes(content[body_start:]), sizes, bool(flags & HAS_TAGS), bool(flags & _HAS_DELAYS), digest)
    return Appended(topic, first, ts, batch, key)
