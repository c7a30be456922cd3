"""A checkpoint: what is in memory and in the log becomes segments and a snapshot, so that recovery starts later.

A `Checkpoint` lives as long as it takes:

1. The log goes on in a new file, at position P; or in the one that a checkpoint before it began in vain.
2. Every topic that changed since the last checkpoint is *captured*, one after the other, while the loop goes on: its
   item at the log's end as of then, the records it has in memory, the delete flags its segments lack. All that the log
   has of a topic is applied when the topic is captured.
3. The records are written to segments and synced, and so is the log up to the last capture. Only then are the flags
   set: a delete that the log can still lose must not be done.
4. The snapshot is installed: from now on recovery starts at P, and skips for each topic the entries below its capture.
5. Parts in memory give way to sealed ones; files no longer in force go.

If a step fails before the snapshot is in force, the checkpoint is abandoned: its topics count as changed again, and its
segments go. If the log fails, the state has been rebuilt, and nothing of this checkpoint may touch the new one. It is
also abandoned if it is not done when the engine's time to stop is over: the next start replays the log instead.

On a full disk there may be no room for all this. A checkpoint that only *releases* captures the topics that have lost
whole pieces and are cheap to capture: those that are gone, and those that have little in memory. The log stays as it
is, and so does what recovery starts from; the files in which nothing is in force any more go.
"""

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import closing, suppress
from functools import partial

import msgspec
from msgspec import Struct

from topics.clock import Clock
from topics.core import dump
from topics.core.apply import keep_references_short
from topics.core.memory import weigh
from topics.core.queue.jobs import Lease
from topics.core.state import State, Topic
from topics.core.topic.live import LiveRows
from topics.core.topic.parts import Chunk, Part
from topics.engine.durability.catalogue import Catalogue
from topics.engine.durability.recovery import Meta, file_key, piece_key
from topics.engine.durability.sealing import (
    FILES_MAX,
    LARGE_BYTES_MIN,
    LARGE_ROWS_MIN,
    Image,
    PiecePlan,
    Sealer,
    plan,
)
from topics.errors import CommitFailed
from topics.settings import Settings
from topics.storage import frames, segments
from topics.storage.disk import Disk
from topics.storage.segments import FileRef, PieceRef, Runs, SegmentFile, SegmentPiece
from topics.storage.wal import Wal

SLICE_SECONDS = 0.002  # work done on the loop before others get their turn
SEGMENT_BYTES_LIMIT = 1024 * 1024 * 1024  # Arrow's text columns have 32-bit offsets
LOOKED_AT_ROWS_MAX = 4096  # of one topic on the loop; the rows of larger ones are looked at by a thread
SMALL_FILE_BYTES_MAX = 8 * 1024 * 1024  # of a larger one, nothing else is in memory
SMALL_PIECES_MAX = 8  # a topic's small pieces are merged beyond this number …
MERGE_ROOM = 4  # … if the disk has room for so many times what is written by that


class Group(Struct):
    """Consecutive parts of a topic that become pieces of segments."""

    topic: Topic
    old: list[Part]
    rows: LiveRows  # at the capture
    new: list[SegmentPiece]


Pieces = list[tuple[Group, PiecePlan]]  # of one file
WrittenFile = tuple[Pieces, FileRef, list[PieceRef]]


class Flags(Struct):
    """Delete flags that a piece lacks."""

    piece: SegmentPiece
    rows: LiveRows  # at the capture
    floor: int  # rows below it need no flag
    dead_count: int  # rows that are dead, flagged before or now

    def set(self) -> None:
        """Set them, and sync. Blocking."""
        piece = self.piece
        runs = _complement(self.rows.runs(piece, 0, piece.count), piece.row_from(self.floor), piece.count)
        if runs:
            piece.set_deleted(runs)
            piece.flagged = self.dead_count


class SegmentWriter:
    """Writes the rows of groups as pieces of segments. Owns the numbers of the files that a checkpoint makes."""

    def __init__(self, disk: Disk, catalogue: Catalogue, sealer: Sealer, settings: Settings) -> None:
        self._disk = disk
        self._catalogue = catalogue
        self._sealer = sealer
        self._bytes_max = min(settings.segment_max_bytes, SEGMENT_BYTES_LIMIT)
        self.events_max = settings.segment_max_events
        self._numbers: list[int] = []
        self.items: dump.Items = {}  # by which the snapshot names what was written

    async def write(self, groups: Sequence[Group], check_time: Callable[[], None]) -> None:
        """Write the rows of the groups; they are durable at the end.

        Some files are under way at once: one is written while the images of the next ones are made.
        """
        parts = [part for group in groups for part in group.old]
        is_large = (
            sum(part.live_bytes for part in parts) >= LARGE_BYTES_MIN
            or sum(part.live_count for part in parts) >= LARGE_ROWS_MIN
        )
        files: deque[asyncio.Task[WrittenFile]] = deque()  # under way
        try:
            async for pieces in self._planned_files(groups):
                is_small = sum(piece.size_bytes for _, piece in pieces) <= SMALL_FILE_BYTES_MAX
                while len(files) >= (FILES_MAX if is_small else 1):
                    self._add(await files.popleft())
                check_time()
                self._numbers.append(self._catalogue.next_segment)
                self._catalogue.next_segment += 1
                files.append(asyncio.create_task(self._write_file(self._numbers[-1], pieces, is_large)))
            while files:
                self._add(await files.popleft())
        finally:
            await asyncio.gather(*files, return_exceptions=True)  # the first failure is the checkpoint's
            self._sealer.let_go()
        if self._numbers:
            await self._disk.run(self._disk.sync_directory)

    async def _planned_files(self, groups: Sequence[Group]) -> AsyncIterator[Pieces]:
        """What goes into each file."""
        pieces: Pieces = []
        count = size = 0
        for group in groups:
            live = ((part, group.rows.runs(part, 0, part.count)) for part in group.old)
            plans = plan(group.topic.id, live, self.events_max, self._bytes_max)
            is_long = sum(part.count for part in group.old) > LOOKED_AT_ROWS_MAX
            while piece := await self._disk.run(partial(next, plans, None)) if is_long else next(plans, None):
                pieces.append((group, piece))
                count, size = count + piece.count, size + piece.size_bytes
                if count >= self.events_max or size >= self._bytes_max:
                    yield pieces
                    pieces, count, size = [], 0, 0
        if pieces:
            yield pieces

    async def _write_file(self, number: int, pieces: Pieces, is_large: bool) -> WrittenFile:
        image, file, refs = await self._sealer.encode(number, [piece for _, piece in pieces], is_large=is_large)
        await self._disk.run(partial(_write, self._disk, segments.name_of(number), image))
        return pieces, file, refs

    def _add(self, written: WrittenFile) -> None:
        """Let the snapshot name a file, and the groups have its pieces. In the order of the files."""
        pieces, file_ref, refs = written
        file = self._catalogue.files[file_ref.number] = SegmentFile(self._disk, file_ref, self._catalogue.maps.add)
        self.items[file_key(file_ref.number)] = segments.encode_ref(file_ref)
        for (group, _), ref in zip(pieces, refs, strict=True):
            group.new.append(SegmentPiece(file, ref))
            self.items[piece_key(ref)] = segments.encode_ref(ref)

    def remove(self) -> None:
        """Remove what was written: no snapshot names it."""
        for number in self._numbers:
            self._catalogue.files.pop(number, None)
            with suppress(OSError):
                self._disk.remove(segments.name_of(number))


class Checkpoint:
    """One checkpoint, under way."""

    def __init__(
        self,
        disk: Disk,
        catalogue: Catalogue,
        wal: Wal,
        writer: SegmentWriter,
        clock: Clock,
        end_at: Callable[[], float],
        find_sparse: Callable[[], set[int]],
        releases_bytes: int | None = None,
    ) -> None:
        self._disk = disk
        self._catalogue = catalogue
        self._wal = wal
        self._writer = writer
        self._clock = clock
        self._end_at = end_at  # monotonic: when the engine has to be closed
        self._releases_bytes = releases_bytes  # it only releases, and may seal so much; None: it does all
        self._state = State()
        self._meta = Meta()  # what the snapshot will say of the whole
        self._generation = 0  # of the log: another one means that the state was rebuilt
        self._room = 0  # on the disk, before anything is written
        self._find_sparse = find_sparse
        self._sparse: set[int] = set()  # files to be rewritten
        self._topics: list[Topic] = []  # captured, or about to be
        self._routers: dict[str, None] = {}  # captured, by name
        self._items: dump.Items = {}  # what the snapshot will change
        self._leases: dict[bytes, dict[int, Lease]] = {}  # captured, that are to be added to these
        self._groups: list[Group] = []
        self._flags: list[Flags] = []
        self._dropped: list[SegmentPiece] = []  # pieces that had died by their topic's capture

    async def take(self, current: Callable[[], State], on_sealed: Callable[[Part], None], is_last: bool) -> None:
        """Do all steps, as `Store.checkpoint` says."""
        catalogue, wal = self._catalogue, self._wal
        releases = self._releases_bytes is not None
        start = catalogue.start if releases else await wal.roll(catalogue.start)
        if catalogue.announced_log < wal.number:
            await self._disk.run(partial(catalogue.announce_log, wal.number))
        state = self._state = current()
        if not releases:
            keep_references_short(state)
        if is_last:  # records in memory only are lost at this moment, not when their topic was last captured (LS1)
            state.unsaved |= {one.id: one for one in state.by_id.values() if one.log.count and not one.is_logged}
        self._generation, sealed_bytes, installed = wal.generation, wal.bytes_appended, catalogue.snapshots.number
        obsolete: list[PieceRef] = []
        try:
            await self._capture_all()
            await self._writer.write(self._groups, self._check_time)
            self._items.update(self._writer.items)
            await wal.wait_synced(wal.end)
            self._check_log()
            await self._write_flags()
            last_log = catalogue.announced_log
            if is_last:
                start = frames.position_of(last_log + 1, 0)
            taken_ms = catalogue.meta.taken_ms if releases else self._clock.now_ms()
            self._meta = Meta(start, state.next_id, catalogue.next_segment, is_last, last_log, taken_ms)
            self._items[dump.META] = msgspec.msgpack.encode(self._meta)
            obsolete = self._ended()
            if releases and not obsolete:
                return
            self._items.update(catalogue.ending(obsolete))
            await self._disk.run(self._install)
        finally:
            if catalogue.snapshots.number == installed:
                self._abandon()
            elif self._generation == wal.generation:
                if not releases:
                    catalogue.start, catalogue.sealed_bytes = start, sealed_bytes
                self._replace(obsolete, on_sealed)
        self._check_log()
        await self._disk.run(lambda: self._remove_superfluous(is_last))

    def _ended(self) -> list[PieceRef]:
        """The pieces that the snapshot will no longer name. One that a topic lost counts until that is captured."""
        replaced = [part for group in self._groups for part in group.old if isinstance(part, SegmentPiece)]
        uncaptured = self._state.unsaved.keys() - {topic.id for topic in self._topics}
        earlier = [ref for ref in self._catalogue.obsolete if ref.topic not in uncaptured]
        return [*earlier, *(piece.ref for piece in (*self._dropped, *replaced))]

    def _check_log(self) -> None:
        if self._generation != self._wal.generation:
            raise CommitFailed("the log failed while a checkpoint was taken")

    def _check_time(self) -> None:
        if self._clock.monotonic() > self._end_at():
            raise CommitFailed("it takes longer than a stop allows")

    # --- capturing

    async def _capture_all(self) -> None:
        """Capture every topic and router that changed, in slices of time."""
        state, self._room = self._state, self._disk.free_bytes
        for topic_id in list(state.changing):
            await self._applied(topic_id)
        if self._releases_bytes is None:
            self._mark_sparse()
            self._topics = list(state.unsaved.values())
        else:
            self._topics = self._released(self._releases_bytes)
        slice_end = self._clock.monotonic() + SLICE_SECONDS
        for topic in self._topics:
            await self._applied(topic.id)
            state.unsaved.pop(topic.id, None)
            if state.by_id.get(topic.id) is topic:
                self._capture(topic)
            else:
                self._items.update(dump.gone_topic(topic))
                self._dropped += _pieces_in((*topic.log.parts, *topic.log.dropped))
            if self._clock.monotonic() > slice_end:
                self._check_time()
                await asyncio.sleep(0)
                slice_end = self._clock.monotonic() + SLICE_SECONDS
        self._routers, state.unsaved_routers = state.unsaved_routers, {}
        self._items.update(dump.dump_routers(state, self._routers, self._wal.end))

    def _released(self, bytes_max: int) -> list[Topic]:
        """Topics that have lost pieces, as many as can be captured by sealing so much."""
        ended = {ref.topic for ref in self._catalogue.obsolete}
        lost = [one for one in self._state.unsaved.values() if one.id in ended or _pieces_in(one.log.dropped)]
        sizes = {one.id: sum(part.live_bytes for part in one.log.parts if isinstance(part, Chunk)) for one in lost}
        lost.sort(key=lambda one: sizes[one.id])
        left = bytes_max
        return [one for one in lost if (left := left - sizes[one.id]) >= 0]

    def _mark_sparse(self) -> None:
        """Let the topics be captured whose pieces lie in files of which little is in force."""
        self._sparse = self._find_sparse()
        for number in self._sparse:
            for piece in self._catalogue.pieces[number]:
                topic = self._state.by_id.get(piece.ref.topic)
                if topic is not None:
                    self._state.unsaved.setdefault(topic.id, topic)

    async def _applied(self, topic_id: int) -> None:
        """Wait while a change of a topic is in the log and not in the state: replay would take it as captured."""
        while topic_id in self._state.changing:
            await self._wal.wait_synced(self._wal.end)
            await asyncio.sleep(0)

    def _capture(self, topic: Topic) -> None:
        """Take what a topic is at this moment. Rows are looked at later, by the marks that are copied here."""
        log, rows = topic.log, topic.log.live_rows()
        self._items.update(dump.dump_topic(topic, self._wal.end, self._clock.now_ms()))
        if topic.is_logged and topic.has_queue and topic.queue.leases:
            self._leases[dump.topic_key(topic.id)] = topic.queue.leases.copy()
        if topic.notes.has_unflagged:
            topic.notes.has_unflagged = False
            for piece in _pieces_in(log.parts):
                if (dead_count := piece.count - piece.live_count) not in (0, piece.flagged):
                    self._flags.append(Flags(piece, rows, log.floor, dead_count))
        self._dropped += _pieces_in(log.dropped)
        log.dropped = [part for part in log.dropped if isinstance(part, Chunk)]
        for parts in self._unsealed(topic):
            for part in parts:
                if isinstance(part, Chunk):
                    log.fold(part)  # it does not change any more, and may be read by another thread
            self._groups.append(Group(topic, list(parts), rows, []))

    def _unsealed(self, topic: Topic) -> Iterator[list[Part]]:
        """Runs of parts to be sealed: those in memory with small pieces before them, and pieces of sparse files."""
        parts = topic.log.parts
        hot = next((n for n, part in enumerate(parts) if isinstance(part, Chunk)), len(parts))
        first = hot
        events_max = self._writer.events_max
        while first and parts[first - 1].count * 2 < events_max:
            first -= 1
        rows = sum(part.count for part in parts[first:])
        is_worthwhile = hot - first >= SMALL_PIECES_MAX or rows >= events_max
        if not is_worthwhile or sum(part.live_bytes for part in parts[first:]) * MERGE_ROOM > self._room:
            first = hot
        for piece in _pieces_in(parts[:first]):
            if piece.ref.file in self._sparse:
                yield [piece]
        if topic.is_logged and hot < len(parts):
            yield parts[first:]

    # --- writing

    async def _write_flags(self) -> None:
        """Set the delete flags that segments lack; they are durable at the end."""
        if self._flags:
            self._catalogue.flagged_at = self._wal.end
        for flags in self._flags:
            self._check_time()
            await self._disk.run(flags.set)

    # --- ending

    def _install(self) -> None:
        """Install the snapshot, unless the log has failed: then the state was rebuilt without it. Blocking."""
        self._items |= {key: dump.with_leases(self._items[key], leases) for key, leases in self._leases.items()}
        with self._catalogue.installing:
            self._check_log()
            self._catalogue.snapshots.install(self._items)
            self._catalogue.meta = self._meta

    def _replace(self, obsolete: list[PieceRef], on_sealed: Callable[[Part], None]) -> None:
        """The snapshot is in force: let the sealed parts stand in for those they were made of."""
        catalogue = self._catalogue
        catalogue.forget(obsolete)
        for group in self._groups:
            is_there = self._state.by_id.get(group.topic.id) is group.topic
            living = group.topic.log.replace(group.old, group.new, group.rows) if is_there else []
            if is_there:
                weigh(self._state, group.topic)
            for piece in group.new:
                if piece in living:
                    catalogue.put_in_force(piece)
                else:
                    catalogue.obsolete.append(piece.ref)
            for part in group.old:
                on_sealed(part)

    def _abandon(self) -> None:
        """Undo what a failed checkpoint left behind: what it captured counts as changed again, its segments go."""
        catalogue, state = self._catalogue, self._state
        if self._generation == self._wal.generation:
            catalogue.obsolete.extend(piece.ref for piece in self._dropped)
            for topic in self._topics:
                state.unsaved.setdefault(topic.id, topic)
                topic.notes.has_unflagged = True
                topic.keys.redump()
            state.unsaved_routers.update(self._routers)
        self._writer.remove()

    def _remove_superfluous(self, is_last: bool) -> None:
        """Remove the files that the installed snapshot no longer needs. Blocking."""
        with self._catalogue.installing:
            self._check_log()
            for name in self._catalogue.superfluous(keeps_last_log=is_last):
                self._disk.remove(name)


def _write(disk: Disk, name: str, image: Image) -> None:
    """Write a file; its bytes are durable at the end. Blocking."""
    with closing(disk.create(name)) as file:
        file.write(0, image)
        file.sync()


def _pieces_in(parts: Sequence[Part]) -> list[SegmentPiece]:
    return [part for part in parts if isinstance(part, SegmentPiece)]


def _complement(runs: Iterator[tuple[int, int]], first: int, count: int) -> Runs:
    """The rows of first..count that are in none of `runs`."""
    gaps, end = [], first
    for start, stop in runs:
        if end < start:
            gaps.append((end, start))
        end = max(end, stop)
    if end < count:
        gaps.append((end, count))
    return gaps
