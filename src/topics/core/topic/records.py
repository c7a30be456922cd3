"""Records as they are written: the body of a write, decoded, checked and made canonical.

A write's body is kept as received: in memory, in the log, until its records are sealed. `data` and `meta` stay JSON
text (msgspec.Raw). This module owns the decoder that every later reader of such a body uses, and the few cases in which
a body is rewritten before it is kept (CV26, waste).

A body that passed `parse_write` is valid JSON, valid UTF-8, and holds no line break inside `data` or `meta`.
"""

from array import array
from collections.abc import Iterable, Iterator, Sequence
from operator import attrgetter
from sys import getrecursionlimit, setrecursionlimit
from threading import Lock
from typing import Annotated, Literal, Protocol

import msgspec
import xxhash
from msgspec import UNSET, Meta, Raw, Struct, UnsetType

from topics.core.memory import LAYOUT
from topics.core.topic.config import ConfigIn
from topics.errors import BatchTooLarge, InvalidRequest, RecordTooLarge
from topics.faults import fault_in
from topics.model import SEQ_MAX, check_utf8

META_KEYS_MAX = 64
KEY_CHARACTERS_MAX = 256
NESTED_BYTES_MIN = 1000  # a shorter body cannot be nested so deeply that it matters
STACK_MARGIN = 300  # frames that later readers of a body have beyond those of its first one
DELAY_MS_MAX = 86_400_000
LOOKED_AT_BYTES_MAX = 512  # per record, of a body that is searched for delays
CUT_BYTES = 2 * 1024 * 1024  # a body of more is kept in pieces
PIECE_BYTES = 512 * 1024
STEP_RECORDS = 8  # of a large body that are encoded at once: each may be as large as a record may be
WASTE_BYTES_MAX = 4096  # a body this much larger than twice its records is rewritten


BARE_HEAD, BARE_BETWEEN, BARE_END = map(len, (b'{"records":[{"data":', b'},{"data":', b"}]}"))

NO_META = Raw()
Natural = Annotated[int, Meta(ge=0)]


class RecordIn(Struct, gc=False, omit_defaults=True):
    """One record of a write. `meta` is empty or `null` when there is none. The last two are for jobs of a queue."""

    data: Raw
    tag: str | None = None
    node: str | None = None
    meta: Raw = NO_META
    delay_ms: Natural | UnsetType = UNSET  # claimable so long after the write
    deliver_at: Natural | UnsetType = UNSET  # claimable from this time on


class Body(Struct, gc=False, omit_defaults=True):
    """What a stored body means. All other fields of a write are ignored here."""

    records: list[RecordIn]
    node: str | None = None  # for records without one of their own


class WriteIn(Struct, gc=False):
    """All fields of a write."""

    records: list[RecordIn]
    node: str | None = None
    idempotency_key: str | None = None
    create: bool | None = None
    config: ConfigIn | None = None
    disable_backpressure: bool = False
    on_mismatch: Literal["refuse"] | UnsetType = UNSET  # refuse other records under a key that is known


class Limits(Protocol):
    """What one write may hold; `Settings` has these."""

    @property
    def max_batch_records(self) -> int: ...
    @property
    def max_record_bytes(self) -> int: ...
    @property
    def max_meta_bytes(self) -> int: ...
    @property
    def max_tag_bytes(self) -> int: ...
    @property
    def max_node_bytes(self) -> int: ...


class Layout(Struct, gc=False, frozen=True, array_like=True):
    """Where the texts of a body are that was made from columns; see `LaidRows`. Known in memory only."""

    tags: bytes
    nodes: bytes

    @property
    def weight(self) -> int:
        """What it weighs in memory."""
        return LAYOUT + len(self.tags) + len(self.nodes)


class Batch(Struct, gc=False):
    """The records of one write, checked: what an Append carries and the log keeps."""

    body: bytes  # JSON, decodable as Body
    sizes: "array[int]"  # size in bytes of each record: its data text plus its meta text
    has_tags: bool
    has_delays: bool = False  # some record is not claimable at once
    digest: int = 0  # of the records, if they come under an idempotency key; 0 = none
    pieces: "list[tuple[bytes, array[int]]] | None" = None  # a large body cut for memory, with the sizes of each piece
    layout: Layout | None = None  # of the body, if it was made from columns


_GONE = RecordIn(NO_META)

decode_body = msgspec.json.Decoder(Body).decode
_decode_write = msgspec.json.Decoder(WriteIn).decode
_decode_meta = msgspec.json.Decoder(dict[str, Raw]).decode
_encode = msgspec.json.Encoder().encode
_delay_of, _start_of = attrgetter("delay_ms"), attrgetter("deliver_at")


def parse_write(body: bytes, limits: Limits) -> tuple[WriteIn, Batch]:
    """Decode and check the JSON body of a write."""
    write = decode_json(_decode_write, body)
    return write, check_batch(write.records, write.node, write.idempotency_key, limits, body)


def check_batch(
    records: list[RecordIn], node: str | None, key: str | None, limits: Limits, body: bytes | None = None
) -> Batch:
    """Check records against the limits of a write (WR3). `body` is the text they came from, if it is JSON."""
    if not records:
        raise InvalidRequest("records is empty; a write needs at least one record")
    if len(records) > limits.max_batch_records:
        raise BatchTooLarge(f"records has {len(records)} records, at most {limits.max_batch_records}")
    if key is not None and len(key) > KEY_CHARACTERS_MAX:
        raise InvalidRequest(f"idempotency_key has {len(key)} characters, at most {KEY_CHARACTERS_MAX}")
    if node is not None:
        _check_text("node", node, limits.max_node_bytes)
    given, is_clean = body, body is not None and b"\n" not in body and b"\r" not in body
    if not is_clean:
        size = sum([len(record.data) for record in records]) if body is None else len(body)
        if size <= CUT_BYTES:
            body = _without_breaks(records, node, body)
        elif _join_lines_of_many(records):
            body = None
    sizes, has_tags = _check_record(records[0], limits) if len(records) == 1 else _check_records(records, limits, body)
    size_bytes = sum(sizes)
    is_bare = body is not None and len(body) == bare_bytes(1, len(sizes), size_bytes)
    if body is not None and len(body) > 2 * size_bytes + WASTE_BYTES_MAX:
        body = None
    if len(records) > 1 and (size_bytes if body is None else len(body)) > CUT_BYTES:
        return _large_batch(records, node, key, body, sizes, has_tags)
    if body is None:
        body = bytes(memoryview(_encode(Body(records, node))))  # as in `batch_of`
    has_delays = not is_bare and _may_have_delays(body, len(sizes)) and _have_delays(records)
    own = None if body is given else body
    return Batch(body, sizes, has_tags, has_delays, 0 if key is None else digest_of(records, node, has_delays, own))


def _large_batch(
    records: list[RecordIn], node: str | None, key: str | None, body: bytes | None, sizes: "array[int]", has_tags: bool
) -> Batch:
    """A batch whose body is kept in pieces. Nothing is done in one step that takes as long as the body is large, and
    `records` are gone afterwards: what they are made of is let go as the pieces are made (LM10, LM11)."""
    has_delays = _have_delays(records)
    digest = 0 if key is None else _digest_of_many(records, node, has_delays)
    texts: list[bytes] = []
    counts: list[array[int]] = []
    for start, stop in _stretches(sizes):
        texts.append(_encode(records[start:stop])[1:-1])
        counts.append(sizes[start:stop])
        records[start:stop] = [_GONE] * (stop - start)
    records.clear()
    opening, closing = _encode(Body([], node)).split(b"[]")
    if body is None:
        # All of them are `bytes`: where they are joined, other threads may run.
        parts = [part for text in texts for part in (b",", text)]
        body = b"".join((opening, b"[", *parts[1:], b"]", closing))
        del parts
    pieces = []
    for n, count in enumerate(counts):
        pieces.append((b"%b[%b]%b" % (opening, texts[n], closing), count))
        texts[n] = b""
    return Batch(body, sizes, has_tags, has_delays, digest, pieces)


def digest_of(records: Sequence[RecordIn], node: str | None, has_delays: bool, own: bytes | None = None) -> int:
    """64 bits that records have in common that are stored alike, however they were sent (ID9). Never 0.

    Two spellings of one record are made one: a node of its own or the batch's, a meta that is null or left out, a delay
    of nothing or none. `own` is the text of their Body, if it was encoded here.
    """
    return digest_of_text(_stored_text(records, node, has_delays, own))


def digest_of_text(text: bytes | memoryview) -> int:
    """The same of a list of records as it is stored."""
    return xxhash.xxh3_64_intdigest(text) or 1


def _digest_of_many(records: Sequence[RecordIn], node: str | None, has_delays: bool) -> int:
    """The same of a large body, some records at a time."""
    digest = xxhash.xxh3_64(b"[")
    for start in range(0, len(records), STEP_RECORDS):
        text = _stored_text(records[start : start + STEP_RECORDS], node, has_delays)
        digest.update(memoryview(text)[1:-1])
        digest.update(b"," if start + STEP_RECORDS < len(records) else b"]")
    return digest.intdigest() or 1


def _stored_text(records: Sequence[RecordIn], node: str | None, has_delays: bool, own: bytes | None = None) -> bytes:
    text = _encode(records) if own is None else own[len(b'{"records":') : -1]  # but for a node, which follows them
    if node is not None or has_delays or b'"meta":null' in text:
        text = _encode([_as_stored(record, node) for record in records])
    return text


def _as_stored(record: RecordIn, node: str | None) -> RecordIn:
    meta, delay_ms = meta_of(record), record.delay_ms
    return RecordIn(
        record.data,
        record.tag,
        node if record.node is None else record.node,
        NO_META if meta is None else meta,
        UNSET if delay_ms is UNSET or not delay_ms else min(delay_ms, DELAY_MS_MAX),
        record.deliver_at or UNSET,
    )


def _stretches(sizes: "array[int]") -> Iterator[tuple[int, int]]:
    """Rows of about PIECE_BYTES: whoever reads some of the records decodes no more than that."""
    start = 0
    while start < len(sizes):
        stop, size = start, 0
        while stop < len(sizes) and (stop == start or size + sizes[stop] <= PIECE_BYTES):
            size += sizes[stop]
            stop += 1
        yield start, stop
        start = stop


def batch_of(records: Sequence[RecordIn], node: str | None, limits: Limits, key: str | None = None) -> Batch:
    """A batch from records made in this process; their `data` and `meta` must be JSON text."""
    body = bytes(memoryview(_encode(Body(list(records), node))))  # an encoder's bytes may hold on to a larger block
    return check_batch(decode_json(decode_body, body).records, node, key, limits, body)


def decode_json(decode: "msgspec.json.Decoder[object].decode", body: bytes):  # type: ignore[no-untyped-def, valid-type]
    """Decode a body; what is wrong with it becomes an InvalidRequest that says where."""
    try:
        if not body.isascii():
            check_utf8(body)
        if len(body) < NESTED_BYTES_MIN:
            return decode(body)
        with short_stack:  # whoever decodes the body later, from deeper down, finds room for it
            return decode(body)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError, ValueError) as error:
        raise InvalidRequest(fault_in(error, body, decode)) from None


class _ShortStack:
    """While some thread is in here, the stack of all is shorter by STACK_MARGIN."""

    __slots__ = ("_inside", "_lock")

    def __init__(self) -> None:
        self._inside = 0
        self._lock = Lock()

    def __enter__(self) -> None:
        with self._lock:
            if not self._inside:
                setrecursionlimit(getrecursionlimit() - STACK_MARGIN)
            self._inside += 1

    def __exit__(self, *error: object) -> None:
        with self._lock:
            self._inside -= 1
            if not self._inside:
                setrecursionlimit(getrecursionlimit() + STACK_MARGIN)


short_stack = _ShortStack()


def bare_bytes(writes: int, count: int, size_bytes: int) -> int:
    """The size of the bodies of so many writes whose `count` records have nothing but data, of `size_bytes` in all.

    No body is smaller. So bodies of this size have no tag, no meta, no whitespace around the data, nothing else at all.
    """
    return writes * (BARE_HEAD + BARE_END) + (count - writes) * BARE_BETWEEN + size_bytes


def meta_of(record: RecordIn) -> Raw | None:
    """The record's meta text, or None; a null meta is no meta."""
    meta = record.meta
    return meta if len(meta) > 4 or (len(meta) and bytes(meta) != b"null") else None


def claimable_from(record: RecordIn, ts: int) -> int:
    """When a job written at `ts` may be handed out; `ts` or less = at once."""
    if record.deliver_at is not UNSET:
        return record.deliver_at
    return ts if record.delay_ms is UNSET else ts + min(record.delay_ms, DELAY_MS_MAX)


def _may_have_delays(body: bytes, count: int) -> bool:
    """A look at a short text is faster than one at each record."""
    has_escapes = b"\\" in body and b"\\u" in body
    return len(body) > LOOKED_AT_BYTES_MAX * count or b'"del' in body or has_escapes


def _have_delays(records: Sequence[RecordIn]) -> bool:
    """Whether some record has a delay; if so, all of them are checked."""
    if len(records) == 1:
        if records[0].delay_ms is UNSET and records[0].deliver_at is UNSET:
            return False
    elif list(map(_delay_of, records)).count(UNSET) + list(map(_start_of, records)).count(UNSET) == 2 * len(records):
        return False
    for index, record in enumerate(records):
        if record.delay_ms is not UNSET and record.deliver_at is not UNSET:
            raise InvalidRequest(f"records[{index}] has delay_ms and deliver_at; give one of them")
        if record.deliver_at is not UNSET and record.deliver_at > SEQ_MAX:
            raise InvalidRequest(f"records[{index}].deliver_at is {record.deliver_at}; it must be at most 2^64-1")
    return True


def _check_record(record: RecordIn, limits: Limits) -> tuple["array[int]", bool]:
    """`_check_records` for a write of one record, the most frequent case."""
    size = len(record.data)
    if record.tag is not None:
        _check_texts("tag", (record.tag,), limits.max_tag_bytes)
    if record.node is not None:
        _check_texts("node", (record.node,), limits.max_node_bytes)
    if len(record.meta):
        size += _check_meta(0, record, limits)
    if size > limits.max_record_bytes:
        raise RecordTooLarge(f"records[0] is {size} bytes, at most {limits.max_record_bytes}")
    return array("I", (size,)), record.tag is not None


def _check_records(records: Sequence[RecordIn], limits: Limits, body: bytes | None) -> tuple["array[int]", bool]:
    """The sizes of the records, and whether any has a tag. `body` is their text, if there is one."""
    sizes = array("I", [len(record.data) for record in records])
    is_bare = body is not None and len(body) == bare_bytes(1, len(sizes), sum(sizes))
    has_tags = not is_bare and _check_fields(records, sizes, limits)
    if max(sizes) > limits.max_record_bytes:
        index = next(i for i, size in enumerate(sizes) if size > limits.max_record_bytes)
        raise RecordTooLarge(f"records[{index}] is {sizes[index]} bytes, at most {limits.max_record_bytes}")
    return sizes, has_tags


def _check_fields(records: Sequence[RecordIn], sizes: "array[int]", limits: Limits) -> bool:
    """Check what records have besides data, and add it to their sizes; gives whether any has a tag.

    Whole columns first: most have nothing to check.
    """
    count = len(records)
    tags, nodes = [record.tag for record in records], [record.node for record in records]
    has_tags = tags.count(None) < count
    if has_tags and 4 * max(map(len, filter(None, tags)), default=0) > limits.max_tag_bytes:
        _check_texts("tag", tags, limits.max_tag_bytes)
    if nodes.count(None) < count and 4 * max(map(len, filter(None, nodes)), default=0) > limits.max_node_bytes:
        _check_texts("node", nodes, limits.max_node_bytes)
    if [record.meta for record in records].count(NO_META) < count:
        for index, record in enumerate(records):
            sizes[index] += _check_meta(index, record, limits)
    return has_tags


def _check_texts(field: str, texts: Sequence[str | None], bytes_max: int) -> None:
    for index, text in enumerate(texts):
        if text is not None and len(text) * 4 > bytes_max:
            _check_text(f"records[{index}].{field}", text, bytes_max)


def _check_meta(index: int, record: RecordIn, limits: Limits) -> int:
    """The size of a record's meta; 0 for null."""
    meta = meta_of(record)
    if meta is None:
        return 0
    if not bytes(meta).startswith(b"{"):
        raise InvalidRequest(f"records[{index}].meta is not an object")
    if len(meta) > limits.max_meta_bytes:
        raise InvalidRequest(f"records[{index}].meta is {len(meta)} bytes, at most {limits.max_meta_bytes}")
    if len(meta) > 3 * META_KEYS_MAX and (keys := len(_decode_meta(meta))) > META_KEYS_MAX:
        raise InvalidRequest(f"records[{index}].meta has {keys} keys, at most {META_KEYS_MAX}")
    return len(meta)


def _check_text(field: str, text: str, bytes_max: int) -> None:
    size = len(text.encode())
    if size > bytes_max:
        raise InvalidRequest(f"{field} is {size} bytes, at most {bytes_max}")


def _without_breaks(records: list[RecordIn], node: str | None, body: bytes | None) -> bytes | None:
    """The text to keep of records that may have line breaks; None: it is to be made anew. A text that has none of them
    is the rule, and one look at all of it is faster than one at each record."""
    text = bytes(memoryview(_encode(Body(records, node))))  # as in `batch_of`
    if (b"\n" in text or b"\r" in text) and _join_lines(records):
        return None
    return text if body is None else body


def _join_lines_of_many(records: Sequence[RecordIn]) -> bool:
    """The same for a large body, some records at a time."""
    changed = False
    for start in range(0, len(records), STEP_RECORDS):
        some = records[start : start + STEP_RECORDS]
        text = _encode(some)
        if b"\n" in text or b"\r" in text:
            changed = _join_lines(some) or changed
    return changed


def _join_lines(records: Iterable[RecordIn]) -> bool:
    """Strip the whitespace between tokens where a line break stands there (CV26). True if anything changed."""
    changed = False
    for record in records:
        for field in ("data", "meta"):
            text = bytes(getattr(record, field))
            if b"\n" in text or b"\r" in text:
                setattr(record, field, Raw(msgspec.json.format(text, indent=-1)))
                changed = True
    return changed
