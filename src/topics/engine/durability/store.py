"""The data directory of an engine: its log, its catalogue of files, and the checkpoints that keep recovery short.

Starts recovery, and one checkpoint at a time; `recovery` and `checkpoint` know how these go, `catalogue` which files
are in force.
"""

import asyncio
import logging
from collections.abc import Callable
from errno import ENOSPC
from functools import partial
from math import inf
from os import strerror

from topics.clock import Clock
from topics.core import entries
from topics.core.apply import apply
from topics.core.entries import AnyEntry, EpochRaised
from topics.core.state import State
from topics.core.topic.parts import Part
from topics.engine.durability.catalogue import Catalogue
from topics.engine.durability.checkpoint import Checkpoint, SegmentWriter
from topics.engine.durability.sealing import Sealer
from topics.settings import Settings
from topics.storage import segments
from topics.storage.disk import Disk, RealDisk
from topics.storage.log_files import Replay
from topics.storage.reserve import KEPT_FOR_RELEASE, NO_SPACE
from topics.storage.wal import Wal

REPLAY_SLICE_BYTES = 256 * 1024  # of the log replayed before others get their turn
RELEASE_BYTES_MAX = 1024 * 1024  # of records sealed to let go of what is dead on a full disk

logger = logging.getLogger("topics.engine.durability.store")


class Store:
    """Log, snapshots and segments of one data directory."""

    def __init__(self, disk: Disk, clock: Clock, settings: Settings) -> None:
        self._disk = disk
        self._clock = clock
        self._settings = settings
        self._sealer = Sealer(disk, clock)
        self.catalogue = Catalogue(disk)
        self.wal = Wal(disk, clock)
        self.progress = 0.0  # of replay, 0.0 to 1.0
        self.replayed_frames = 0
        self.end_at = inf  # monotonic: when checkpoints have to be done, because the engine is being closed

    def close(self) -> None:
        """Close the files. No checkpoint may be under way."""
        self.wal.close()
        self._sealer.close()

    def kill_silent_helpers(self) -> None:
        """Kill helpers that owe an answer since the last call; what they were asked fails, or is done without them."""
        self._sealer.kill_if_silent()
        if isinstance(self._disk, RealDisk):
            self._disk.kill_if_silent()

    def expect_checkpoint(self) -> None:
        """A large checkpoint will be due soon: start who helps with it."""
        self._sealer.started()

    async def recover(self) -> State:
        """The state as of the end of the log; the log is open for writing. Refuses without changing anything."""
        await self._disk.run(segments.schema)  # imports pyarrow now, rather than when the first segment is written
        recovery = self.catalogue.load()
        log, slice_end = recovery.log, REPLAY_SLICE_BYTES
        for _ in recovery.replay():
            if log.bytes_done > slice_end:
                slice_end = log.bytes_done + REPLAY_SLICE_BYTES
                self.progress = log.bytes_done / max(1, log.bytes_total)
                await asyncio.sleep(0)
        recovery.check_log()
        losses = recovery.announce_losses(self._clock.now_ms())
        if log.torn is not None:
            logger.warning("%s: cut at offset %d, where a torn write began", *log.torn)
        await self._disk.run(lambda: self._begin(log, entries.encode(losses, self._clock.now_ms())))
        await self.wal.warm_up()
        self.progress = 1.0
        self.replayed_frames = recovery.frames
        return recovery.state

    def _begin(self, log: Replay, payload: bytes) -> None:
        """Make the directory fit for writing: the log's end, its next file, and nothing that is not in force."""
        log.repair()
        superfluous = [*self.catalogue.snapshots.obsolete(), *self.catalogue.superfluous()]
        for name in superfluous:  # first: a checkpoint that was cut off by a kill may have filled the disk
            self._disk.remove(name)
        if superfluous:
            self._disk.sync_directory()
        self.wal.begin_or_wait(log.next_number, payload, log.end)
        self.catalogue.flagged_at = self.wal.end
        self._announce_log()
        self._set_space_aside()

    def _set_space_aside(self) -> None:
        try:
            self._disk.set_space_aside()
        except OSError as error:
            self.wal.note_full(error)

    @property
    def is_log_announced(self) -> bool:
        """Whether the snapshot knows the file that the log is written to."""
        return self.wal.is_read_only or self.catalogue.announced_log >= self.wal.number

    async def announce_log(self) -> None:
        """Let the snapshot know the file that the log is written to. No checkpoint may be under way."""
        await self._disk.run(self._announce_log)

    def _announce_log(self) -> None:
        if self.is_log_announced:
            return
        try:
            self.catalogue.announce_log(self.wal.number)
        except OSError as error:
            if error.errno not in NO_SPACE:
                raise
            self.wal.note_full(error)
            if self._disk.use_reserved_space():
                self.catalogue.announce_log(self.wal.number)

    def rebuild(self, void: frozenset[int]) -> State:
        """The state without the frames in `void`, after the log failed. Blocking."""
        recovery = self.catalogue.load(void)
        for _ in recovery.replay():
            pass
        return recovery.state

    @property
    def unsealed_bytes(self) -> int:
        """Log that was appended in this run and lies behind no checkpoint: its records are in memory."""
        return self.wal.bytes_appended - self.catalogue.sealed_bytes

    async def checkpoint(
        self, current: Callable[[], State], on_sealed: Callable[[Part], None], is_last: bool = False
    ) -> None:
        """Make recovery start here. `on_sealed` is told of parts that a sealed one replaces.

        `current` gives the state. It is asked for once the log has rolled: a failure before that replaces the state.
        On a full disk, what is dead is let go of first; then there may be room to seal what is not.
        """
        if not self.wal.is_full:
            try:
                await self._new_checkpoint(self.catalogue.sparse_files).take(current, on_sealed, is_last)
                self.wal.unsealable = None
                return
            except OSError as error:
                if error.errno not in NO_SPACE:
                    raise
                self.wal.note_full(error)
        self.wal.unsealable = OSError(ENOSPC, strerror(ENOSPC))  # the space kept back is for this alone meanwhile
        try:
            await self._checkpoint_when_full(current, on_sealed, is_last)
        except OSError as error:
            if error.errno in NO_SPACE:
                self.wal.note_full(error)
            raise
        finally:
            self.catalogue.maps.shrink()
            await self._disk.run(self._set_space_aside)

    async def _checkpoint_when_full(
        self, current: Callable[[], State], on_sealed: Callable[[Part], None], is_last: bool
    ) -> None:
        """Let go of what is dead, with all of the reserve if need be; then seal; then rewrite what fits."""
        for kept_bytes in (KEPT_FOR_RELEASE, 0):
            await self._disk.run(partial(self._disk.use_reserved_space, kept_bytes))
            try:
                await self._new_checkpoint(set, RELEASE_BYTES_MAX).take(current, on_sealed, is_last=False)
                break
            except OSError as error:
                if error.errno not in NO_SPACE or not kept_bytes:
                    raise
        self.catalogue.maps.shrink()  # a file that is removed has its space for as long as it is mapped
        await self._new_checkpoint(set).take(current, on_sealed, is_last)
        self.wal.unsealable = None
        tried: set[int] = set()
        while not is_last and self.wal.is_full and (files := self.reducible_files()) != tried:
            try:
                await self._new_checkpoint(self.reducible_files).take(current, on_sealed, is_last)
            except OSError as error:
                if error.errno not in NO_SPACE:
                    raise
                return
            self.catalogue.maps.shrink()
            tried = files  # each one makes room for the next

    def reducible_files(self) -> set[int]:
        """Files that are worth rewriting while the disk is full."""
        return self.catalogue.reducible_files(self.free_bytes / 2)

    @property
    def free_bytes(self) -> float:
        """What the disk has room for."""
        try:
            return self._disk.free_bytes
        except OSError:
            return inf

    def _new_checkpoint(self, find_sparse: Callable[[], set[int]], releases_bytes: int | None = None) -> Checkpoint:
        writer = SegmentWriter(self._disk, self.catalogue, self._sealer, self._settings)
        return Checkpoint(
            self._disk,
            self.catalogue,
            self.wal,
            writer,
            self._clock,
            lambda: self.end_at,
            find_sparse,
            releases_bytes,
        )


def revive(disk: Disk, clock: Clock, *, leap: int) -> State:
    """Make a data directory of what a backup holds: recover it once, and say in its log what a restore changes.

    Whoever read from the source may have seen more than the backup has: seqs that the restored topics will hand out
    again, for other records. So every topic gets an epoch that it has never had, neither at the source nor by another
    restore: a random `leap` ahead of all numbers in use. With the epochs kept (0), a topic that hands out seqs ahead of
    a sync announces what it had reserved as lost, as after a power loss, unless the source was stopped gracefully.

    Blocking. Refuses what a start would refuse.
    """
    catalogue, wal = Catalogue(disk), Wal(disk, clock)
    recovery = catalogue.load()
    for _ in recovery.replay():
        pass
    recovery.check_log()
    state = recovery.state
    state.next_id += leap
    changes: list[AnyEntry] = recovery.announce_losses(clock.now_ms(), has_lost_power=not leap)
    if leap:
        raised = [EpochRaised(topic.id, epoch) for epoch, topic in enumerate(state.topics.values(), state.next_id)]
        for entry in raised:
            apply(state, entry)
        changes += raised
    recovery.log.repair()
    wal.begin(recovery.log.next_number, entries.encode(changes, clock.now_ms()), recovery.log.end)
    catalogue.announce_log(wal.number)
    wal.close()
    return state
