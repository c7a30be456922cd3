"""Dead letters: how a job looks in the dead-letter topic, how it gets there, and how it gets back (QU14).

A letter is the job with three members more at the end of its `meta`; everything else is kept to the byte. Taking the
three away again gives the job. Going either way is one decision, which gives the entries of both topics. Pure.
"""

import re
from array import array
from collections.abc import Sequence, Set
from typing import Any, NamedTuple

import msgspec
from msgspec import UNSET, Raw, Struct, UnsetType

from topics.core.decide import Append, Appending, Caps, admit, append, check_memory, check_total, deletion
from topics.core.entries import AnyEntry, DeadLettered
from topics.core.state import State, Topic
from topics.core.topic.log import Log
from topics.core.topic.pages import Cache, Projection
from topics.core.topic.parts import PAGE_ROWS
from topics.core.topic.records import NO_META, Batch, Body, RecordIn
from topics.model import TagMatch

REDRIVE_BYTES_MAX = 1024 * 1024  # in one frame
_ALL = Projection(tags=True)
FROM, DELIVERIES, SRC_SEQ = "$dead_letter_from", "$dead_letter_deliveries", "$dead_letter_src_seq"
_MEMBERS = (FROM, DELIVERIES, SRC_SEQ)
_AT_END = re.compile(
    rb',?"\$dead_letter_from":"([^"\\]*)","\$dead_letter_deliveries":"\d+","\$dead_letter_src_seq":"\d+"\}$'
)


class StoredJob(Struct, gc=False):
    """A record as a page has it, with all that is copied."""

    data: Raw
    node: str | None = msgspec.field(name="$node", default=None)
    tag: str | None = msgspec.field(name="$tag", default=None)
    meta: Raw = NO_META


class Letters(NamedTuple):
    """Dead letters of one queue: their seqs and sizes, the jobs that they were, and the cursor behind them."""

    seqs: list[int]
    sizes: list[int]
    jobs: list[RecordIn]
    end: int


class Move(NamedTuple):
    """Records that leave one topic for another: the entries of both."""

    source: Topic
    seqs: Sequence[int]
    taken: list[AnyEntry]
    dest: str
    added: list[AnyEntry]
    appended: Appending


class _Origin(Struct, gc=False):
    queue: Any = msgspec.field(name=FROM, default=UNSET)


_decode_job = msgspec.json.Decoder(StoredJob).decode
_decode_origin = msgspec.json.Decoder(_Origin).decode
_decode_meta = msgspec.json.Decoder(dict[str, Raw]).decode
_encode = msgspec.json.Encoder().encode


def stored(cache: Cache, log: Log, seq: int) -> StoredJob:
    """A live record of a log. Cold: its page is not in memory."""
    part = log.part_at(seq)
    assert part is not None, "a job that is not in the log"
    row = part.row_from(seq)
    return _decode_job(cache.page(part, row, _ALL).slice(row, row + 1))


def dead_letter(state: State, topic: Topic, seq: int, job: StoredJob, now: int, caps: Caps) -> Move:
    """Move a job that was handed out too often to the dead-letter topic."""
    dest = topic.config.dead_letter
    assert dest is not None, "no dead-letter topic"
    record = letter(job, topic.name, topic.queue.deliveries[seq], seq)
    added, done = append(state, Append(dest, batch_of_copies([record]), create=True), now, caps)
    return Move(topic, [seq], [deletion(topic, [seq]), DeadLettered(topic.id, 1)], dest, added, done)


def redrive(state: State, source: Topic, letters: Letters, queue: str, now: int, caps: Caps) -> Move:
    """Move dead letters back to the queue that they came from."""
    added, done = append(state, Append(queue, batch_of_copies(letters.jobs), create=True), now, caps)
    return Move(source, letters.seqs, [deletion(source, letters.seqs)], queue, added, done)


def moved(
    state: State, queue: Topic, seqs: Sequence[int], jobs: list[StoredJob], dest: str, now: int, caps: Caps
) -> Move:
    """Move jobs to another topic, as they are."""
    records = [RecordIn(job.data, job.tag, job.node, job.meta) for job in jobs]
    added, done = append(state, Append(dest, batch_of_copies(records), create=True), now, caps)
    return Move(queue, seqs, [deletion(queue, seqs)], dest, added, done)


def letters_of(
    queue: str, log: Log, cache: Cache, match: TagMatch | None, after: int, last: int, count_max: int, moving: Set[int]
) -> Letters:
    """Some letters of a queue above a cursor and up to `last`, but for those that are `moving` already."""
    letters = Letters([], [], [], last)
    size = examined = 0
    for seq in log.live_after(after):
        if seq > last:
            break
        if len(letters.seqs) == count_max or size > REDRIVE_BYTES_MAX or examined == PAGE_ROWS:
            return letters._replace(end=after)
        job = stored(cache, log, seq)
        after, examined = seq, examined + 1
        if (match is None or match.matches(job.tag)) and origin(job) == queue and seq not in moving:
            letters.seqs.append(seq)
            letters.sizes.append(len(job.data) + len(job.meta))
            letters.jobs.append(restored(job))
            size += letters.sizes[-1]
    return letters


class Trial:
    """A redrive that adds nothing: whether a queue would take jobs back, one after the other (DR1)."""

    def __init__(self, state: State, queue: Topic, caps: Caps) -> None:
        self._state = state
        self._queue = queue
        self._caps = caps
        self._sizes = array("I")  # of the jobs that it takes
        self._bytes = 0  # the sum of them
        self._freed = 0  # sizes of the letters that they were

    def taken(self, letters: Letters) -> int:
        """How many of these jobs the queue takes beside those before. Raises what the very first one meets."""
        for n, (job, letter_size) in enumerate(zip(letters.jobs, letters.sizes, strict=True)):
            if not self._takes(size_of(job), letter_size):
                return n
        return len(letters.jobs)

    def _takes(self, size: int, letter_size: int) -> bool:
        topic, config, one = self._queue, self._queue.config, Batch(b"", array("I", [size]), False)
        if not self._sizes:
            evicted = admit(topic.name, config, topic, one)
            check_memory(self._state, self._caps)
            if self._caps.max_total_bytes:
                check_total(self._state, topic, one, evicted, self._caps)
        elif (config.cap_bytes and size > config.cap_bytes) or not self._has_room(size):
            return False
        self._sizes.append(size)
        self._bytes += size
        self._freed += letter_size
        return True

    def _has_room(self, size: int) -> bool:
        log, config, most = self._queue.log, self._queue.config, self._caps.max_total_bytes
        if config.discard == "reject":
            count, total = log.count + len(self._sizes) + 1, log.bytes + self._bytes + size
            if 0 < config.cap_records < count or 0 < config.cap_bytes < total:
                return False
        total = self._state.bytes + self._bytes + size - self._freed
        if not most or total <= most:
            return True
        sizes = self._sizes + array("I", [size])
        evicted = log.overflow(config.cap_records, config.cap_bytes, sizes) if config.discard == "old" else 0
        gone = (log.bytes_through(evicted) if evicted else 0) + sum(sizes[: max(0, evicted - log.head)])
        return total - gone <= most


# --- text


def letter(job: StoredJob, queue: str, deliveries: int, seq: int) -> RecordIn:
    """The dead letter that a job becomes."""
    members = f'"{FROM}":"{queue}","{DELIVERIES}":"{deliveries}","{SRC_SEQ}":"{seq}"}}'
    meta = bytes(_without_members(job.meta))
    start = meta[:-1].rstrip() if meta else b"{"
    text = start + (b"" if start.endswith(b"{") else b",") + members.encode()
    return RecordIn(job.data, job.tag, job.node, Raw(text))


def origin(job: StoredJob) -> str | None:
    """The queue that a letter came from; None if it is none."""
    if not len(job.meta):
        return None
    queue: str | UnsetType | Any = _decode_origin(job.meta).queue
    return queue if isinstance(queue, str) else None


def restored(job: StoredJob) -> RecordIn:
    """The job that a letter was."""
    return RecordIn(job.data, job.tag, job.node, _without_members(job.meta))


def batch_of_copies(records: list[RecordIn]) -> Batch:
    """Records that are in another topic already, as a batch; no limit of a write applies to them."""
    body = bytes(memoryview(_encode(Body(records))))
    sizes = array("I", map(size_of, records))
    return Batch(body, sizes, any(record.tag is not None for record in records))


def size_of(record: RecordIn) -> int:
    return len(record.data) + len(record.meta)


def _without_members(meta: Raw) -> Raw:
    """The meta without the members of a letter; none if nothing is left."""
    text = bytes(meta)
    if FROM.encode() not in text:
        return meta
    found = _AT_END.search(text)
    if found is not None:
        rest = text[: found.start()] + b"}"
    else:  # something was added behind them
        members = _decode_meta(text)
        rest = _encode({name: value for name, value in members.items() if name not in _MEMBERS})
    return NO_META if rest.strip() == b"{}" else Raw(rest)
