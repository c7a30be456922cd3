"""The data directory of an engine: recovery, and the checkpoints that keep it short.

Here the state meets its files: which segment holds which part, which files
are in force, from where the log counts. The steps of a checkpoint:

1. The log goes on in a new file, at position P.
2. Every topic that changed since the last checkpoint is *captured*, one after
   the other, while the loop goes on: its item at the log's end as of then, the
   records it has in memory, the delete flags its segments lack. All that the
   log has of a topic is applied when it is captured.
3. The records are written to segments and synced, and so is the log up to the
   last capture. Only then are the flags set: a delete that the log can still
   lose must not be done.
4. The snapshot is installed: from now on recovery starts at P, and skips for
   each topic the entries below its own capture.
5. Parts in memory give way to sealed ones; files no longer in force go.

Recovery is the way back: snapshot, segments, then `replay` over the log.
"""

import asyncio
import logging
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import suppress
from functools import partial

import msgspec
from msgspec import Struct

from topics.clock import Clock
from topics.core import dump, entries
from topics.core.apply import apply, end_replay, keep_references_short, replay
from topics.core.entries import AnyEntry, GapOpened, Reincarnated
from topics.core.routing.copies import MissingRecord
from topics.core.routing.table import lowered_cursors
from topics.core.state import State, Topic
from topics.core.topic.parts import Chunk, Part, Sealed
from topics.engine.durability.attaching import attach_part, begin_accounts, sealed_part
from topics.engine.durability.sealing import JOB_BYTES_MIN, PiecePlan, Sealer, plan
from topics.errors import CommitFailed, Damaged, UnusableDirectory
from topics.settings import Settings
from topics.storage import frames, segments
from topics.storage.disk import Disk
from topics.storage.log_files import Replay
from topics.storage.log_files import name_of as log_name
from topics.storage.log_files import number_in as log_number
from topics.storage.segments import FileRef, PieceRef, SegmentFile, SegmentRows
from topics.storage.snapshots import Snapshots
from topics.storage.wal import Wal

SLICE_SECONDS = 0.002  # work done on the loop before others get their turn
REPLAY_SLICE_BYTES = 256 * 1024  # of the log replayed before others get their turn
SEGMENT_BYTES_LIMIT = 1024 * 1024 * 1024  # Arrow's text columns have 32-bit offsets
SMALL_PIECES_MAX = 8  # a topic's small pieces are merged beyond this number
SPARSE_FACTOR = 4  # a file this much larger than what is in force of it is rewritten

logger = logging.getLogger("topics.engine.durability.store")


class Meta(Struct, array_like=True):
    """The snapshot's item on the whole instance."""

    start: int  # log position at which recovery starts
    next_id: int
    next_segment: int
    is_clean: bool  # taken at a graceful stop


class Group(Struct):
    """Consecutive parts of a topic that become pieces of segments."""

    topic: Topic
    old: list[Part]
    live: list[list[tuple[int, int]]]  # runs of the live rows of each part, at the capture
    new: list[Part]


class Capture(Struct):
    """What a checkpoint took of one topic."""

    items: dump.Items
    groups: list[Group]
    flags: list[tuple[Sealed, list[tuple[int, int]], int]]  # part, rows to be flagged, rows that are dead
    dropped: list[Sealed]  # parts that had died by then


class Store:
    """Snapshots, log and segments of one data directory."""

    def __init__(self, disk: Disk, clock: Clock, settings: Settings) -> None:
        self._disk = disk
        self._clock = clock
        self._settings = settings
        self._segment_bytes_max = min(settings.segment_max_bytes, SEGMENT_BYTES_LIMIT)
        self._snapshots = Snapshots(disk)
        self._installing = threading.Lock()  # a snapshot is installed off the loop, and loaded after a failure on it
        self._sealer = Sealer(disk)
        self.wal = Wal(disk, clock)
        self.progress = 0.0  # of replay, 0.0 to 1.0
        self.replayed_frames = 0
        self._sealed_bytes = 0  # of the log, at the last checkpoint
        self._start = frames.position_of(1, 0)
        self._next_segment = 1
        self._files: dict[int, SegmentFile] = {}  # that the snapshot names
        self._pieces: dict[int, set[Sealed]] = {}  # pieces in force, by file
        self._obsolete: list[PieceRef] = []  # pieces in the snapshot that nothing refers to any more
        self._captured: list[Topic] = []  # by the checkpoint under way
        self._captured_routers: dict[str, None] = {}  # the same, by name
        self._sparse: set[int] = set()  # files that the checkpoint under way rewrites

    def close(self) -> None:
        """Let go of the files. No checkpoint may be under way."""
        self.wal.close()
        self._sealer.close()

    # --- recovery

    async def recover(self) -> State:
        """The state as of the end of the log; the log is open for writing. Refuses without changing anything."""
        await self._disk.run(segments.warm_up)
        state, log, meta = self._load(frozenset())
        is_clean = meta is None or meta.is_clean
        replayed_bytes = 0
        for frame in log.read():
            self._replay_frame(state, frame)
            replayed_bytes += len(frame.payload)
            if replayed_bytes > REPLAY_SLICE_BYTES:
                replayed_bytes = 0
                self.progress = log.bytes_done / max(1, log.bytes_total)
                await asyncio.sleep(0)
        if not is_clean and not log.files:
            raise Damaged(f"{self._disk.path}/{log_name(frames.number_of(self._start))}", 0, "this log file is missing")
        is_clean = is_clean and log.boot_id is None
        is_same_boot = bool(self._disk.boot_id) and log.boot_id == self._disk.boot_id
        end_replay(state)
        closing = list(_losses(state, is_clean, has_lost_power=not is_clean and not is_same_boot))
        for entry in closing:
            apply(state, entry)
        lowered = list(lowered_cursors(state))
        for entry in lowered:
            apply(state, entry)
        if log.torn is not None:
            logger.warning("%s: cut at offset %d, a torn write was behind it", *log.torn)
        await self._disk.run(lambda: self._begin(log, entries.encode([*closing, *lowered])))
        await self.wal.warm_up()
        self.progress = 1.0
        return state

    def rebuild(self, void: frozenset[int]) -> State:
        """The state without the frames in `void`, after the log failed. Blocking."""
        with self._installing:
            self._files.clear()
            self._pieces.clear()
            self._obsolete.clear()
            state, log, _ = self._load(void)
        for frame in log.read():
            self._replay_frame(state, frame)
        end_replay(state)
        return state

    def _load(self, void: frozenset[int]) -> tuple[State, Replay, Meta | None]:
        items = self._snapshots.load()
        meta = None
        if items is not None:
            meta = msgspec.msgpack.decode(items[dump.META], type=Meta)
            self._start = meta.start
            self._next_segment = max(self._next_segment, meta.next_segment)
        state = dump.load(items or {})
        if meta is not None:
            state.next_id = max(state.next_id, meta.next_id)
        self._attach(state, items or {})
        state.records, state.bytes = dump.totals(state.topics.values())
        return state, Replay(self._disk, self._start, void), meta

    def _attach(self, state: State, items: dict[bytes, bytes]) -> None:
        """Give the topics the parts that lie in segments."""
        for key in sorted(items):
            if key.startswith(b"f"):
                file = segments.decode_file(items[key])
                self._files[file.number] = SegmentFile(self._disk, file)
                self._next_segment = max(self._next_segment, file.number + 1)
            elif key.startswith(b"s"):
                ref = segments.decode_piece(items[key])
                topic, part = state.by_id.get(ref.topic), sealed_part(ref, self._files[ref.file])
                if topic is not None and topic.is_logged and attach_part(topic.log, part):
                    self._pieces.setdefault(ref.file, set()).add(part)
                else:
                    self._obsolete.append(ref)
        begin_accounts(state)

    def _replay_frame(self, state: State, frame: frames.Frame) -> None:
        try:
            for entry in entries.decode(frame.payload):
                replay(state, entry, frame.position)
        except entries.UnknownEntry as error:
            name = log_name(frames.number_of(frame.position))
            raise UnusableDirectory(
                f"{self._disk.path}/{name}: offset {frames.offset_of(frame.position)}: {error}"
            ) from None
        except MissingRecord as error:
            name = log_name(frames.number_of(frame.position))
            raise Damaged(f"{self._disk.path}/{name}", frames.offset_of(frame.position), str(error)) from None
        self.replayed_frames += 1

    def _begin(self, log: Replay, payload: bytes) -> None:
        log.repair()
        self.wal.begin(log.next_number, payload, log.end)
        orphans = [*self._snapshots.obsolete(), *self._orphan_segments()]
        for name in orphans:
            self._disk.remove(name)
        if orphans:
            self._disk.sync_directory()

    def _orphan_segments(self) -> list[str]:
        """Segment files that the snapshot does not name."""
        numbers = {name: segments.number_in(name) for name in self._disk.names()}
        return [name for name, number in numbers.items() if number is not None and number not in self._files]

    # --- checkpoint

    @property
    def unsealed_bytes(self) -> int:
        """Log that was appended in this run and lies behind no checkpoint: its records are in memory."""
        return self.wal.bytes_appended - self._sealed_bytes

    async def checkpoint(
        self, current: Callable[[], State], on_sealed: Callable[[Part], None], is_last: bool = False
    ) -> None:
        """Make recovery start here. `on_sealed` is told of parts that a sealed one replaces.

        `current` gives the state. It is asked for once the log has rolled: a failure before that replaces the state.
        """
        start = await self.wal.roll()
        state = current()
        keep_references_short(state)
        generation, appended, number = self.wal.generation, self.wal.bytes_appended, self._snapshots.number
        files: list[FileRef] = []
        captures: list[Capture] = []
        groups: list[Group] = []
        obsolete: list[PieceRef] = []
        try:
            async for capture in self._captures(state):
                captures.append(capture)
            items, groups = await self._write(captures, files)
            await self.wal.wait_synced(self.wal.end)
            self._check(generation)
            await self._write_flags(captures)
            if is_last:
                start = frames.position_of(frames.number_of(start) + 1, 0)
            items[dump.META] = msgspec.msgpack.encode(Meta(start, state.next_id, self._next_segment, is_last))
            obsolete = self._end_pieces(captures, items)
            await self._disk.run(lambda: self._put_in_force(items, generation))
        finally:
            if self._snapshots.number == number:
                self._abandon(state, generation, files, captures)
            elif generation == self.wal.generation:
                self._start = start
                self._sealed_bytes = appended
                self._install(state, groups, obsolete, on_sealed)
        self._check(generation)
        await self._disk.run(lambda: self._remove_obsolete(generation, is_last))

    def _put_in_force(self, items: dump.Items, generation: int) -> None:
        """Install the snapshot, unless the log has failed: then the state was rebuilt without it. Blocking."""
        with self._installing:
            self._check(generation)
            self._snapshots.install(items)

    def _check(self, generation: int) -> None:
        if generation != self.wal.generation:
            raise CommitFailed("the log failed while a checkpoint was taken")

    async def _captures(self, state: State) -> AsyncIterator[Capture]:
        """Capture every dirty topic, in slices of time."""
        for topic_id in list(state.changing):
            await self._applied(state, topic_id)
        self._mark_sparse(state)
        self._captured = list(state.dirty.values())
        self._captured_routers = {}
        slice_end = self._clock.monotonic() + SLICE_SECONDS
        for topic in self._captured:
            await self._applied(state, topic.id)
            state.dirty.pop(topic.id, None)
            is_gone = state.by_id.get(topic.id) is not topic
            yield _gone(topic) if is_gone else self._capture(topic)
            if self._clock.monotonic() > slice_end:
                await asyncio.sleep(0)
                slice_end = self._clock.monotonic() + SLICE_SECONDS
        self._captured_routers, state.dirty_routers = state.dirty_routers, {}
        if self._captured_routers:
            yield Capture(dump.dump_routers(state, self._captured_routers, self.wal.end), [], [], [])

    async def _applied(self, state: State, topic_id: int) -> None:
        """Wait while a change of a topic is in the log and not in the state: replay would take it as captured."""
        while topic_id in state.changing:
            await self.wal.wait_synced(self.wal.end)
            await asyncio.sleep(0)

    def _capture(self, topic: Topic) -> Capture:
        log = topic.log
        items = dump.dump_topic(topic, self.wal.end, self._clock.now_ms())
        flags = []
        if topic.sealed_dirty:
            topic.sealed_dirty = False
            for part in log.parts:
                if isinstance(part, Sealed) and (dead := part.count - part.live_count) not in (0, part.flagged):
                    runs = _complement(log.live_runs(part, 0, part.count), part.row_from(log.floor), part.count)
                    if runs:
                        flags.append((part, runs, dead))
        dropped = [part for part in log.dropped if isinstance(part, Sealed)]
        log.dropped = [part for part in log.dropped if isinstance(part, Chunk)]
        groups = [self._group(topic, parts) for parts in self._unsealed(topic)]
        return Capture(items, groups, flags, dropped)

    def _unsealed(self, topic: Topic) -> Iterator[list[Part]]:
        """Runs of parts to be sealed: those in memory with small pieces before them, and pieces of sparse files."""
        parts = topic.log.parts
        hot = next((n for n, part in enumerate(parts) if isinstance(part, Chunk)), len(parts))
        first = hot
        while first and parts[first - 1].count * 2 < self._settings.segment_max_events:
            first -= 1
        rows = sum(part.count for part in parts[first:])
        if hot - first < SMALL_PIECES_MAX and rows < self._settings.segment_max_events:
            first = hot
        for part in parts[:first]:
            if isinstance(part, Sealed) and self._file_of(part) in self._sparse:
                yield [part]
        if topic.is_logged and hot < len(parts):
            yield parts[first:]

    def _group(self, topic: Topic, parts: list[Part]) -> Group:
        for part in parts:
            if isinstance(part, Chunk):
                part.fold()  # it does not change any more, and may be read by another thread
        live = [list(topic.log.live_runs(part, 0, part.count)) for part in parts]
        return Group(topic, list(parts), live, [])

    async def _write(self, captures: list[Capture], files: list[FileRef]) -> tuple[dump.Items, list[Group]]:
        """Write segments; they are durable at the end."""
        items: dump.Items = {}
        groups = [group for capture in captures for group in capture.groups]
        is_large = sum(part.live_bytes for group in groups for part in group.old) >= JOB_BYTES_MIN
        pieces: list[tuple[Group, PiecePlan]] = []
        count = size = 0
        for group, piece in self._pieces_of(groups):
            pieces.append((group, piece))
            count, size = count + piece.count, size + piece.size_bytes
            if count >= self._settings.segment_max_events or size >= self._segment_bytes_max:
                await self._write_file(pieces, items, files, is_large)
                pieces, count, size = [], 0, 0
        if pieces:
            await self._write_file(pieces, items, files, is_large)
        for capture in captures:
            items.update(capture.items)
        if files:
            await self._disk.run(self._disk.sync_directory)
        return items, groups

    def _pieces_of(self, groups: list[Group]) -> Iterator[tuple[Group, PiecePlan]]:
        """The groups' rows as pieces within the bounds of a segment."""
        for group in groups:
            parts = zip(group.old, group.live, strict=True)
            for piece in plan(group.topic.id, parts, self._settings.segment_max_events, self._segment_bytes_max):
                yield group, piece

    async def _write_file(
        self, pieces: list[tuple[Group, PiecePlan]], items: dump.Items, files: list[FileRef], is_large: bool
    ) -> None:
        number = self._next_segment
        self._next_segment += 1
        image, file_ref, refs = await self._sealer.encode(number, [piece for _, piece in pieces], is_large=is_large)

        def write() -> None:
            file = self._disk.create(segments.name_of(number))
            try:
                file.write(0, image)
                file.sync()
            finally:
                file.close()

        await self._disk.run(write)
        files.append(file_ref)
        self._files[number] = SegmentFile(self._disk, file_ref)
        items[_file_key(number)] = segments.encode_ref(file_ref)
        for (group, _), ref in zip(pieces, refs, strict=True):
            group.new.append(sealed_part(ref, self._files[ref.file]))
            items[_piece_key(ref)] = segments.encode_ref(ref)

    async def _write_flags(self, captures: list[Capture]) -> None:
        """Set the delete flags that segments lack; they are durable at the end."""
        for part, runs, dead in (flag for capture in captures for flag in capture.flags):
            rows = part.sealed
            assert isinstance(rows, SegmentRows)
            await self._disk.run(partial(rows.set_deleted, runs))
            part.flagged = dead

    def _end_pieces(self, captures: list[Capture], items: dump.Items) -> list[PieceRef]:
        """End the items of pieces, and of files, that nothing refers to any more. Gives the pieces."""
        obsolete = [*self._obsolete]
        for capture in captures:
            obsolete.extend(_ref_of(part) for part in capture.dropped)
            obsolete.extend(_ref_of(part) for group in capture.groups for part in group.old if isinstance(part, Sealed))
        for ref in obsolete:
            items[_piece_key(ref)] = None
        gone = {_piece_key(ref) for ref in obsolete}
        for number in {ref.file for ref in obsolete}:
            if all(_piece_key(_ref_of(part)) in gone for part in self._pieces.get(number, ())):
                items[_file_key(number)] = None
        return obsolete

    def _install(
        self, state: State, groups: list[Group], obsolete: list[PieceRef], on_sealed: Callable[[Part], None]
    ) -> None:
        """Let the sealed parts stand in for those they were made of."""
        self._obsolete = []
        for ref in obsolete:
            self._forget(ref)
        for group in groups:
            is_there = state.by_id.get(group.topic.id) is group.topic
            living = group.topic.log.replace(group.old, group.new) if is_there else []
            for part in group.new:
                assert isinstance(part, Sealed)
                if part in living:
                    self._pieces.setdefault(self._file_of(part), set()).add(part)
                else:
                    self._obsolete.append(_ref_of(part))
            for part in group.old:
                on_sealed(part)

    def _forget(self, ref: PieceRef) -> None:
        pieces = self._pieces.get(ref.file, set())
        pieces -= {part for part in pieces if _ref_of(part) == ref}
        if not pieces:
            self._pieces.pop(ref.file, None)
            self._files.pop(ref.file, None)

    def _abandon(self, state: State, generation: int, files: list[FileRef], captures: list[Capture]) -> None:
        """Undo what a failed checkpoint left behind: its topics are dirty again, its segments go."""
        if generation == self.wal.generation:
            self._obsolete.extend(_ref_of(part) for capture in captures for part in capture.dropped)
            for topic in self._captured:
                state.dirty.setdefault(topic.id, topic)
                topic.sealed_dirty = True
                topic.keys.redump()
            state.dirty_routers.update(self._captured_routers)
        for file in files:
            self._files.pop(file.number, None)
            with suppress(OSError):
                self._disk.remove(segments.name_of(file.number))

    def _remove_obsolete(self, generation: int, is_last: bool) -> None:
        """Remove the files that the installed snapshot no longer needs. Blocking.

        A graceful stop leaves the last log file, empty as it is: should the snapshot get lost, it shows that.
        """
        with self._installing:
            self._check(generation)
            first = frames.number_of(self._start) - is_last
            old_logs = [name for name in self._disk.names() if name.startswith("log-") and log_number(name) < first]
            for name in [*old_logs, *self._orphan_segments()]:
                self._disk.remove(name)

    # --- sparse files

    def _mark_sparse(self, state: State) -> None:
        """Find files of which little is in force, and mark the topics whose pieces they hold."""
        self._sparse = set()
        for number, pieces in self._pieces.items():
            if sum(part.live_count for part in pieces) * SPARSE_FACTOR < self._files[number].ref.count:
                self._sparse.add(number)
                for part in pieces:
                    topic = state.by_id.get(_ref_of(part).topic)
                    if topic is not None:
                        state.dirty.setdefault(topic.id, topic)

    def adopt(self, parts: list[Part]) -> None:
        """Keep the sealed ones of `parts` in force: their topic was not rebuilt and goes on reading them."""
        sealed = [part for part in parts if isinstance(part, Sealed)]
        for part in sealed:
            ref = _ref_of(part)
            self._pieces.setdefault(ref.file, set()).add(part)
            self._obsolete = [other for other in self._obsolete if other != ref]

    def is_in_force(self, part: Sealed) -> bool:
        """Whether `part` is what its topic's records are read from, not one that a checkpoint replaced."""
        return part in self._pieces.get(self._file_of(part), ())

    def _file_of(self, part: Sealed) -> int:
        return _ref_of(part).file


def _losses(state: State, is_clean: bool, has_lost_power: bool) -> Iterator[AnyEntry]:
    """What a stop took without being asked: announced by these entries (DU9, DU10)."""
    next_id = state.next_id
    for topic in state.topics.values():
        if not topic.is_logged and not is_clean:
            yield Reincarnated(topic.id, next_id)
            next_id += 1
        elif topic.reserves and has_lost_power and topic.reservation.last > topic.log.head:
            yield GapOpened(topic.id, topic.reservation.last, "cap")  # the next write reserves anew


def _gone(topic: Topic) -> Capture:
    """What a checkpoint notes of a topic that was deleted."""
    parts = [part for part in (*topic.log.parts, *topic.log.dropped) if isinstance(part, Sealed)]
    return Capture(dump.gone_topic(topic), [], [], list(parts))


def _file_key(number: int) -> bytes:
    return b"f" + number.to_bytes(8, "big")


def _piece_key(ref: PieceRef) -> bytes:
    return b"s" + ref.topic.to_bytes(8, "big") + ref.first.to_bytes(8, "big") + ref.file.to_bytes(8, "big")


def _ref_of(part: Part) -> PieceRef:
    assert isinstance(part, Sealed) and isinstance(part.sealed, SegmentRows)
    return part.sealed.ref


def _complement(runs: Iterator[tuple[int, int]], first: int, count: int) -> list[tuple[int, int]]:
    """The rows of first..count that are in none of `runs`."""
    gaps, end = [], first
    for start, stop in runs:
        if end < start:
            gaps.append((end, start))
        end = max(end, stop)
    if end < count:
        gaps.append((end, count))
    return gaps
