"""The gate: nothing leaves the engine before the log has come as far as the topic's class asks.

The state is that of the end of the log, which may be ahead of the disk. So an answer is made from the state at once,
together with its *gate*: the log positions that must be written (disk, memory) or synced (fsync, and topics that come,
change or go) before anyone may see the answer. If the log fails before the gate opens, the state is another one: what
was to be written is refused, what was to be shown is read again.

- `done`: change something, and say so when the change may be shown.
- `shown`: look at something, and show it when it may be shown.
- Both hold back a refusal until the state it rests on may be shown: nobody is refused for what may not be true.

Ledger, loader and gates are the hall of the engine: what each of its parts, the rooms, works through.
"""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from functools import partial
from typing import TypeVar

from msgspec import Struct
from msgspec.structs import replace

from topics.clock import Clock
from topics.core.decide import Caps
from topics.core.framing import sync_needed
from topics.core.state import Topic
from topics.core.topic.pages import Cache
from topics.engine.ledger import Ledger
from topics.engine.loading import Loader
from topics.errors import CommitFailed, Refusal
from topics.storage.wal import Callback, resolve

T = TypeVar("T")


class Gate(Struct, frozen=True, gc=False):
    """What must be true of the log before an answer made of its state may leave."""

    synced_at: int  # everything below this position is synced
    written_at: int  # everything below this one is written
    generation: int  # the log has not failed since

    def join(self, other: "Gate") -> "Gate":
        """The gate that is open when both are."""
        synced_at, written_at = max(self.synced_at, other.synced_at), max(self.written_at, other.written_at)
        return Gate(synced_at, written_at, self.generation)

    def wholly_synced(self) -> "Gate":
        """The gate that opens when all that this one asks to be written is synced."""
        return replace(self, synced_at=max(self.synced_at, self.written_at))


class Gates:
    """The gates of one instance."""

    def __init__(self, ledger: Ledger, loader: Loader) -> None:
        self._ledger = ledger
        self._loader = loader
        self._wal = ledger.wal

    def of(self, topic: Topic | None) -> Gate:
        """The gate for what was just read of a topic, or for its absence."""
        wal = self._wal
        if topic is None:
            return Gate(self._ledger.state.names_at, 0, wal.generation)
        head = topic.log.head
        needed = topic.notes.synced_at
        if head > topic.reservation.durable:
            needed = sync_needed(topic, head, wal.synced, wal.end)
        return Gate(needed, topic.notes.written_at, wal.generation)

    def of_name(self, name: str | None) -> Gate:
        """The gate for what was just found out about the topic of this name, or for its absence."""
        return self.of(None if name is None else self._ledger.state.topics.get(name))

    def is_open(self, gate: Gate) -> bool:
        """Whether what depends on the gate may be shown; writes what is buffered if only that is missing."""
        wal = self._wal
        if gate.synced_at > wal.synced:
            return False
        if gate.written_at > wal.written:
            wal.flush()
        return gate.written_at <= wal.written and gate.generation == wal.generation

    def is_passed(self, gate: Gate) -> bool:
        """Whether the log has come as far as the gate asks, also if it has failed since."""
        return gate.synced_at <= self._wal.synced and gate.written_at <= self._wal.written

    def when_open(self, gate: Gate, callback: Callback) -> None:
        """Call back when the gate is open, or with what keeps it from opening."""
        wal = self._wal
        if gate.synced_at <= wal.synced and gate.generation == wal.generation:
            if gate.written_at > wal.written:
                wal.when_written(callback)
            else:
                callback(None)
            return

        def synced(failure: CommitFailed | None) -> None:
            if failure is None and gate.written_at > wal.written:
                wal.when_written(written)
            else:
                written(failure)

        def written(failure: CommitFailed | None) -> None:
            if failure is None and gate.generation != wal.generation:
                failure = CommitFailed("the disk failed meanwhile")
            callback(failure)

        if gate.synced_at > wal.synced:
            wal.when_synced(gate.synced_at, synced)
        else:
            synced(None)

    async def wait_open(self, gate: Gate, *, at_once: bool = False) -> None:
        """Wait for a gate. `at_once`: write what is buffered rather than wait for the end of the turn."""
        if self._ledger.broken is not None:
            raise self._ledger.broken
        wal = self._wal
        if at_once and gate.written_at > wal.written and gate.synced_at <= wal.synced:
            wal.flush()
        if gate.synced_at > wal.synced or gate.written_at > wal.written or gate.generation != wal.generation:
            opened = asyncio.get_running_loop().create_future()
            self.when_open(gate, partial(resolve, opened))
            await opened

    @asynccontextmanager
    async def refusing(self, name: str | None) -> AsyncIterator[None]:
        """Hold back a refusal raised in this block until the topic's state, or its absence, may be shown."""
        try:
            yield
        except Refusal:
            await self.wait_open(self.of_name(name))
            raise

    async def done(self, name: str | None, change: Callable[[], tuple[T, Gate]]) -> T:
        """Change something of a topic, and give the answer when it may be shown."""
        try:  # as `refusing`, without the cost of a context manager: every write comes this way
            answer, gate = change()
        except Refusal:
            await self.wait_open(self.of_name(name))
            raise
        await self.wait_open(gate)
        return answer

    async def shown(self, name: str | None, look: Callable[[bool], tuple[T, Gate]], loads_max: int | None = None) -> T:
        """Look at a topic, and give the answer when it may be shown; look again if the log failed meanwhile.

        What is not in memory is loaded; `look` is told whether it has to do with what is (`Loader.until_warm`).
        """
        while True:
            try:
                try:
                    answer, gate = await self._loader.until_warm(look, loads_max)
                except Refusal:
                    await self.wait_open(self.of_name(name), at_once=True)
                    raise
                await self.wait_open(gate, at_once=True)
                return answer
            except CommitFailed:
                await asyncio.sleep(0)  # whoever deals with the failure has a turn first, whatever has become of it


class Hall(Struct, frozen=True):
    """What the rooms of one instance share; each takes what it needs when it is made, and nothing else."""

    ledger: Ledger
    gates: Gates
    loader: Loader
    cache: Cache
    clock: Clock
    caps: Caps
