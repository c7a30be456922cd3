"""The write-ahead log: frames in, positions out, and word when a position is written or synced.

Everything runs on the event loop. `append` buffers a frame and knows its position at once; all frames of one turn of
the loop go out in one write, at the end of the turn, or in steps over several turns if they are large (LM10); one sync
at a time runs off the loop, and what gathers meanwhile shares the next one. No timer is involved (ST3).

Space is written ahead as zeros, so `append` meets a full disk before anything has changed. If a write or sync fails all
the same, every frame that waited for it fails. The log then goes on in a fresh file, which says from where on earlier
frames do not count. What was acked already is the first frame of that file (payloads may be joined), so the file is in
force with all of it or not at all. If even that fails, the log is read-only (ST4) until `attend`, which is called in
the background, gets it to go on (HM7). What frees space is taken on a full disk, too, as long as the space lasts that
the disk keeps back for it; other frames are taken again once that space is back (ST16).

Who is called back, and when (ST17). Whoever appends, flushes or rolls may be in the middle of a change, and so is the
log itself while it rolls. So a write or a sync only notes who is due and whether it failed; `_end_turn` acts on that,
as the last thing in a turn of the event loop that is the log's own. An answer, and whatever it sets off, finds the log
whole: `written`, `end` and the buffer agree, and the state is rebuilt before anyone hears of a failure.

Invariants
- The buffer ends at `end`. It starts at `written` or, while a roll holds it back, behind the new file's first frame.
  A write in steps belongs to it until its last step: `written` is always between two frames.
- A frame is written to the file, and at the position, that it was encoded for.
- Between a failure and the turn that deals with it, no frame is taken.
"""

import asyncio
import logging
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import lru_cache, partial

from topics.clock import Clock
from topics.errors import CommitFailed
from topics.storage import frames, log_files
from topics.storage.disk import Disk, File
from topics.storage.log_files import PADDING_BYTES
from topics.storage.log_progress import READ_ONLY, Callback, Counters, DiskFull, Obstacle, Progress, resolve
from topics.storage.reserve import KEPT_FOR_FILES, NO_SPACE

__all__ = ["READ_ONLY", "Callback", "DiskFull", "Obstacle", "Wal", "resolve", "write_zeros_ahead"]

AHEAD_BYTES = 1024 * 1024  # zeros written at a time
ATTEMPT_SECONDS = 1.0  # between attempts of a read-only log to go on
UNSYNCED_BYTES_MAX = 8 * 1024 * 1024  # more than this is synced unasked
QUEUE_BYTES_MAX = 64 * 1024 * 1024  # frames that may wait for the disk

logger = logging.getLogger("topics.wal")

_zeros = lru_cache(1)(bytes)  # made once: memory that was read as zeros is slow to write to when it is used again


class Wal(Progress):
    """The log's writing end."""

    def __init__(self, disk: Disk, clock: Clock) -> None:
        super().__init__()
        self._disk = disk
        self._clock = clock
        self.counters = Counters()
        self.bytes_since_roll = 0
        self.bytes_appended = 0  # since the start
        self.on_progress: Callable[[], None] = lambda: None  # `written` or `synced` has moved
        self.on_failure: Callable[[frozenset[int]], None] = lambda void: None  # these frames do not count
        self._file: File | None = None
        self.number = 0  # of the file that is written to; 0: the log has not begun
        self._ahead = 0  # offset up to which the file was filled with zeros
        self._buffer: list[bytes] = []
        self._buffered_bytes = 0  # with those of the write that is under way
        self._steps: Iterator[None] | None = None  # what is left of a write that is done in steps …
        self._step_bytes = 0  # … all of whose bytes are so many
        self._failure: OSError | None = None  # dealt with at the end of a turn
        self._flushing: asyncio.Handle | None = None  # a turn that will write what is buffered
        self._is_end_scheduled = False
        self._is_held = False
        self._syncing: asyncio.Future[None] | None = None  # done when the sync that runs is over
        self.generation = 0  # rises with each failure; the end of a sync from before is ignored
        self._creating = threading.Lock()  # a file is created by a roll, off the loop, or after a failure, on it
        self._refusal: str | None = None  # why no more frames are taken
        self._go_on: Callable[[], None] = lambda: None  # what a read-only log has to do to go on
        self._attempt_at = 0.0

    # --- files

    def begin(self, number: int, payload: bytes, synced: int, cut: int = 0) -> None:
        """Go on in file `number`, whose first frame holds `payload`. Blocking.

        Earlier files are synced, and end at `synced`. Their frames from `cut` on do not count; 0 = all count.
        """
        self.synced = synced
        file, start = log_files.create(self._disk, number, cut, len(payload), AHEAD_BYTES, self.note_full)
        frame = frames.encode_frame(payload, start, synced)
        file.write(frames.offset_of(start), frame)
        file.sync()
        self._append_to(file, number, start + len(frame))
        self.written = self.synced = self.end

    def begin_or_wait(self, number: int, payload: bytes, synced: int) -> None:
        """Begin; on a disk that is too full for that, be read-only until there is space. Blocking."""
        try:
            self.begin(number, payload, synced)
        except OSError as error:
            if error.errno not in NO_SPACE:
                raise
            self.written = self.end = self.synced
            self._latch(error, lambda: self.begin(number, payload, synced))

    def _append_to(self, file: File, number: int, position: int) -> None:
        """Frames go to `file` from now on, the next one at `position`."""
        assert not self._buffer and self._steps is None, "frames that were encoded for one file must not go to another"
        self._file, self.number, self.end = file, number, position
        self._ahead = file.size()
        self.bytes_since_roll = 0

    async def roll(self, used: int | None = None) -> int:
        """Go on in a new file. Gives the position at which it starts; everything below it is synced.

        A file that is short goes on if the log is used from an earlier one on, `used`: whoever rolls again and again
        in vain, on a full disk, must not fill the disk with empty files.
        """
        generation, number, old = self.generation, self.number + 1, self._file
        if old is None or self.is_read_only:
            raise CommitFailed(READ_ONLY)
        if used is not None and frames.number_of(used) < self.number and self.bytes_since_roll < AHEAD_BYTES:
            return frames.position_of(self.number, 0)

        def create() -> tuple[File, int]:
            with self._creating:
                self._check_generation(generation)
                return log_files.create(self._disk, number, 0, 0, AHEAD_BYTES, self.note_full, at_any_cost=False)

        file, start = await self._disk.run(create)
        try:
            await self.wait_synced(self.end)
            self._check_generation(generation)
            self._write_buffer()
            if self._failure is not None:
                await self._dealt_with_failure()
            self._check_generation(generation)
        except CommitFailed:
            file.close()
            raise
        self._is_held = True
        self._end_turn_soon()
        try:
            await self._start_rolled(old, file, number, start)
        except OSError as error:
            self._fail_soon(error, generation)
            await self._dealt_with_failure()
        finally:
            self._is_held = False
            old.close()
            self._schedule_flush()
        self._check_generation(generation)
        self.counters.rotations += 1
        return start

    async def _start_rolled(self, old: File, file: File, number: int, start: int) -> None:
        """Sync the old file to its end, then start the new one; frames appended meanwhile wait for it."""
        generation, last = self.generation, self.written
        marker = frames.encode_frame(b"", start, last)
        self._append_to(file, number, start + len(marker))
        if self._syncing is not None:
            await asyncio.wait([self._syncing])
        await self._disk.sync(old)
        self._check_generation(generation)
        self._synced_to(last)
        self._end_turn_soon()

        def write_marker() -> None:
            file.write(frames.offset_of(start), marker)
            file.sync()

        await self._disk.run(write_marker)
        self._check_generation(generation)
        self._written_to(start + len(marker))
        self._synced_to(self.written)
        self._end_turn_soon()

    def _check_generation(self, generation: int) -> None:
        if generation != self.generation or self._failure is not None:
            raise CommitFailed("the log failed meanwhile")

    async def warm_up(self) -> None:
        """Sync once off the loop, so that the first commit does not wait for a helper to start."""
        if self._file is not None:
            await self._disk.sync(self._file)

    def close(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None

    # --- appending

    @property
    def fill(self) -> float:
        """How much waits to be written, as a fraction of what may wait."""
        return self._buffered_bytes / QUEUE_BYTES_MAX

    def refuse(self, why: str) -> None:
        """Take no more frames."""
        self._refusal = why

    def append(
        self, payload: bytes | list[bytes], needs_sync: bool, depends_on: int = 0, *, frees: bool = False
    ) -> int:
        """Buffer one frame. Gives the position at its end. CommitFailed: nothing was taken.

        Its ack waits until it is synced itself, or all below `depends_on` is; if the log fails before, it is void.
        `frees`: it makes space, so it is taken on a full disk, too. A payload in parts is not copied.
        """
        if self._refusal is not None:
            raise CommitFailed(self._refusal)
        if self._failure is not None:
            raise CommitFailed(f"the disk failed: {self._failure}")
        position = self.end
        if isinstance(payload, bytes):
            parts = [frames.encode_frame(payload, position, self.synced)]
            size = len(parts[0])
        else:
            parts = frames.encode_parts(payload, position, self.synced)
            size = sum(map(len, parts))
        end = position + size
        needed = frames.offset_of(end) + PADDING_BYTES
        if needed > self._ahead or self._full is not None:
            self._make_room(needed, frees)
        self._buffer += parts
        self._buffered_bytes += size
        if needs_sync:
            self._sync_wanted = end
            depends_on = end
        self._unsynced.append((position, end, depends_on))
        self.end = end
        self.bytes_since_roll += size
        self.bytes_appended += size
        self.counters.frames += 1
        if self._flushing is None:
            self._schedule_flush()
        return end

    def _make_room(self, offset: int, frees: bool) -> None:
        """Have zeros up to `offset`, so that later writes cannot meet a full disk.

        On a full disk only what frees space gets them, of the space that was kept back; others once that is back.
        """
        try:
            if self._full is not None and not frees:
                self._check_reserve()
            try:
                self._fill_ahead(offset)
            except OSError as error:
                if not (frees and error.errno in NO_SPACE and self._disk.use_reserved_space(KEPT_FOR_FILES)):
                    raise
                self.note_full(error)
                self._fill_ahead(offset)
        except OSError as error:
            if error.errno not in NO_SPACE:
                raise CommitFailed(f"no space can be reserved in the log: {error}") from error
            self.note_full(error)
            raise DiskFull(f"the disk is full, no space can be reserved in the log: {error}") from error
        if not frees:
            self._full = None

    def _check_reserve(self) -> None:
        """Raise OSError unless all the space is kept back that should be, and a checkpoint has room."""
        if self.unsealable is not None:
            raise OSError(*self.unsealable.args)
        self._disk.set_space_aside()

    def _fill_ahead(self, offset: int) -> None:
        """Write zeros at least up to `offset`. Of a disk that becomes full by that, all that is left is taken."""
        while offset > self._ahead:
            assert self._file is not None
            try:
                self._file.write(self._ahead, _zeros(AHEAD_BYTES))
            except OSError:
                self._ahead = max(self._ahead, self._file.size())
                if offset > self._ahead:
                    raise
            else:
                self._ahead += AHEAD_BYTES

    # --- obstacles

    def attend(self) -> None:
        """Examine the directory, and try to overcome what stands in the way of writes. Called every now and then."""
        file = self._file if self._latched is None else None  # a read-only log has one that failed, if any
        if file is not None and not self._missing and (missing := self._disk.missing(file)):
            self._missing = missing
            self._refusal = f"{missing} was removed while the server was running; nothing can be stored any more"
            logger.critical("%s", self._refusal)
        if self._missing or (self._latched is None and self._full is None):
            return
        if self._clock.monotonic() - self._attempt_at < ATTEMPT_SECONDS:
            return
        self._attempt_at = self._clock.monotonic()
        try:
            if self._latched is not None:
                self._resume()
            if self._full is not None:
                self._check_reserve()
                self._fill_ahead(frames.offset_of(self.end) + AHEAD_BYTES)
                self._full = None
                logger.info("the disk has space again; writes are taken")
        except OSError as error:
            logger.debug("writes are still impossible: %s", error)

    def _latch(self, error: OSError, go_on: Callable[[], None]) -> None:
        """Be read-only until `go_on` succeeds."""
        self.is_read_only, self._refusal, self._latched, self._go_on = True, READ_ONLY, error, go_on
        self._attempt_at = self._clock.monotonic()

    def _resume(self) -> None:
        """Go on in a fresh file after all; the state is read back, without what was refused."""
        try:
            self._go_on()
        except OSError as error:
            self._latched = error
            raise
        self.is_read_only, self._refusal, self._latched = False, None, None
        self.generation += 1
        logger.warning("the log goes on in a fresh file; writes are taken again")
        self.on_failure(frozenset())

    def _schedule_flush(self) -> None:
        if self._buffer or self._steps is not None:
            self._flushing = asyncio.get_running_loop().call_soon(self._flush_turn)

    def _flush_turn(self) -> None:
        self._flushing = None
        if not self._is_held:
            self._write_buffer(in_steps=True)
        self._end_turn()
        if self._steps is not None and self._flushing is None:
            self._schedule_flush()

    def flush(self) -> None:
        """Write what is buffered, unless a roll holds it back. Waiters are told in a later turn."""
        if (self._buffer or self._steps is not None) and not self._is_held:
            self._write_buffer()
            self._end_turn_soon()

    def _write_buffer(self, in_steps: bool = False) -> None:
        """Write what is buffered; if it is much and that may be done `in_steps`, only some of it."""
        if self._file is None or self._failure is not None:
            return
        while self._steps is not None or self._buffer:
            assert self.written + self._buffered_bytes == self.end, "the buffer does not start where the file ends"
            try:
                if self._steps is None:
                    parts, self._buffer, self._step_bytes = self._buffer, [], self._buffered_bytes
                    self.counters.queue_depth_peak = max(self.counters.queue_depth_peak, self.queue_depth)
                    offset = frames.offset_of(self.written)
                    if self._step_bytes > log_files.STEP_BYTES:
                        self._begin_write()
                    self._steps = log_files.write_in_steps(self._file, offset, parts, self._step_bytes)
                while next(self._steps, self) is None:
                    if in_steps:
                        return
            except OSError as error:
                self._failure = error
                return
            self._steps = None
            self._buffered_bytes -= self._step_bytes
            self._written_to(self.written + self._step_bytes)
            self.counters.batches += 1
            self.counters.bytes_written += self._step_bytes
        if self._needs_sync or self.written - self.synced > UNSYNCED_BYTES_MAX:
            self.start_sync()

    # --- turns of the log's own

    def _end_turn_soon(self) -> None:
        """Schedule a turn of the log's own: the caller may be in the middle of something."""
        if not self._is_end_scheduled:
            self._is_end_scheduled = True
            asyncio.get_running_loop().call_soon(self._end_turn_later)

    def _end_turn_later(self) -> None:
        self._is_end_scheduled = False
        self._end_turn()

    def _end_turn(self) -> None:
        """Tell those who are due, and deal with a failure. Only the event loop may be further up the stack."""
        due, self._due = self._due, []
        _call_back(due, None)
        self.on_progress()
        if self._failure is not None:
            self._fail(self._failure)

    # --- syncing

    def start_sync(self) -> None:
        """Sync what is written, now or as soon as the sync that runs is over."""
        is_stopped = self.is_read_only or self._is_held or self._failure is not None
        if self._syncing is None and self.written > self.synced and not is_stopped:
            assert self._file is not None
            self._syncing = asyncio.get_running_loop().create_future()
            ended = partial(self._sync_ended, self.generation, self.written, self._clock.monotonic())
            self._disk.start_sync(self._file, ended)

    def _sync_ended(self, generation: int, target: int, started: float, failure: OSError | None) -> None:
        """For the disk, in a turn of its own. A roll may have gone on in another file meanwhile."""
        if self._syncing is not None:
            self._syncing.set_result(None)
            self._syncing = None
        if failure is not None:
            self._fail_soon(failure, generation)
        elif generation == self.generation:
            self.counters.add_fsync(round((self._clock.monotonic() - started) * 1e6))
            self._synced_to(target)
        if self._needs_sync:
            self.start_sync()
        self._end_turn()

    # --- failing

    def _fail_soon(self, error: OSError, generation: int) -> None:
        """Note a failure of the log, unless the log has failed before and goes on in another file by now."""
        if generation == self.generation and self._failure is None:
            self._failure = error
            self._end_turn_soon()

    async def _dealt_with_failure(self) -> None:
        """Wait for the turn that deals with a failure."""
        self._end_turn_soon()
        await asyncio.sleep(0)

    def _fail(self, error: OSError) -> None:
        """Fail every commit that waits, and go on in a fresh file, or latch read-only (ST4).

        The state is rebuilt first: whoever hears of the failure finds the state that holds.
        """
        logger.error("the log failed: %s; every waiting commit is refused", error)
        self._failure = None
        self.generation += 1
        void = frozenset(
            position for position, end, needed in self._unsynced if needed > self.synced or end > self.written
        )
        kept = [(position, end) for position, end, _ in self._unsynced if position not in void]
        waiters = self._take_waiters()
        self._buffer, self._buffered_bytes, self._steps = [], 0, None
        self._unsynced.clear()
        failed, synced, number = self._file, self.synced, frames.number_of(self.written) + 1

        def go_on() -> None:
            payload = b"".join([log_files.read_payload(self._disk, position, end) for position, end in kept])
            with self._creating:
                self.begin(number, payload, synced, cut=synced)
            if failed is not None:
                failed.close()

        try:
            go_on()
        except OSError as second:
            logger.critical("the log cannot go on in a new file: %s; it is read-only for now", second)
            self._latch(second, go_on)
            self.end = self.written
            log_files.mark_void(self._disk, void, failed)
        self.on_failure(void)
        _call_back(waiters, CommitFailed(f"the disk failed: {error}"))


async def write_zeros_ahead(wal: Wal, size: int) -> None:
    """Have room in the log for a frame of this size, made in turns of the loop: its append then finds it.

    A disk that is full is met by the append.
    """
    with suppress(OSError):
        while wal._file is not None and wal._full is None and not wal.is_read_only:
            wanted = frames.offset_of(wal.end) + size + PADDING_BYTES
            if wanted <= wal._ahead:
                return
            wal._fill_ahead(min(wanted, wal._ahead + log_files.STEP_BYTES))
            await asyncio.sleep(0)


def end_turn(wal: Wal) -> None:
    """Write what is buffered, and tell those who are due, now rather than in the turn that was asked for.

    For a caller that is a turn of its own: nothing but the event loop may be further up the stack.
    """
    if wal._flushing is not None:
        wal._flushing.cancel()
        wal._flush_turn()


def _call_back(callbacks: list[Callback], failure: CommitFailed | None) -> None:
    """Call each callback; if one fails, the others are still called."""
    for callback in callbacks:
        try:
            callback(failure)
        except Exception:
            logger.exception("a callback of the log failed")
