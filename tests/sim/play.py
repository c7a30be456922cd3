"""A server in memory under clients that pipeline: every turn of the loop follows from a seed.

    play = Play(seed, disk)
    await play.run()              # to the end, or to the death of the disk
    check(play.told, await play.look(), "alive")

Owns the clients' connections, in what slices their requests go out and when, and what happens beside them:
checkpoints, ticks, clients that stop reading for a while or break off. Must not know: what is right.

The server has neither sockets nor time: the clock stands still, but for long polls that nothing else ends.
"""

import asyncio
import math
import random
from collections import deque
from collections.abc import Callable, Coroutine, Iterable
from dataclasses import dataclass, field
from typing import Any, TypeVar

from tests.pipelining.clients import Answer, Client, Events, Http1, Http2, Request, WebSocket
from tests.pipelining.look import Found, Look, look
from tests.pipelining.told import Told
from tests.pipelining.workload import TOPICS, WAIT_MS, Workload
from topics.engine import Engine
from topics.errors import StorageError
from topics.server.main import Server
from topics.settings import Settings
from topics.testing.clock import ManualClock
from topics.testing.disk import Crashed, Hook, Interruption, MemoryDisk, Operation
from topics.testing.wire import Line, Wire

T = TypeVar("T")

SEGMENT_MAX_EVENTS = (3, 20, 1000)  # by seed: long checkpoints, and short ones that come more often
CACHE_BYTES = (1 << 27, 3000)  # by seed: everything stays in memory, or few pages of segments do
HIGH_BYTES = 2000  # a client that does not read is noticed after a few answers
BURSTS = (4, 8, 16, 100)  # most requests that are asked at once
STREAMED = ("log.fsync", "log.disk", "log.memory", "source", "copy", "copy.capped", "jobs.dead", "fleeting.dead")
TURNS_MAX = 20_000  # no play takes as many turns of the loop
IDLE_TURNS_MAX = 40  # without a byte in either direction; then time passes, if anyone waits for that
IDLE_PAUSES_MAX = 20
RETRY_MS = 5001  # after which a router that was blocked by a failure has been tried again


class Hung(AssertionError):
    """Requests are neither answered nor refused (G15)."""


class Lifeline:
    """A hook that cuts the wire at the moment at which the process dies: a dead one says nothing any more."""

    def __init__(self, point: Hook) -> None:
        self.point = point
        self.wire: Wire | None = None

    def __call__(self, disk: MemoryDisk, operation: Operation) -> Interruption | None:
        interruption = self.point(disk, operation)
        if interruption is not None and isinstance(interruption.error, Crashed) and self.wire is not None:
            self.wire.cut()
        return interruption


class Host:
    """A server in memory, on a disk."""

    def __init__(self, disk: MemoryDisk, clock: ManualClock, seed: int, life: int = 0) -> None:
        self.disk = disk
        self._before = asyncio.all_tasks()
        settings = Settings(segment_max_events=SEGMENT_MAX_EVENTS[seed % len(SEGMENT_MAX_EVENTS)])
        self.engine = Engine.open("memory", settings, disk=disk, clock=clock, background=False)
        self.engine.queues._next_number = (life + 1) << 58  # else lease ids, and so the sizes of requests, are random
        self.engine._cache.bytes_max = CACHE_BYTES[seed % len(CACHE_BYTES)]
        self.server = Server.open(settings, engine=self.engine, source=lambda: 0.0)
        self.server.app.delivery.rounds.slice_s = math.inf  # of real time
        self.wire = Wire(self.server.listener.connections, high_bytes=HIGH_BYTES)
        for hook in disk.hooks:
            if isinstance(hook, Lifeline):
                hook.wire = self.wire

    async def end(self) -> None:
        """kill -9: whatever is on the disk stays, and nothing goes on."""
        self.wire.cut()
        self.disk.is_dead = True
        await ended(self._before)

    async def look(self, looking: Look[T]) -> T:
        """Carry out a look over a connection of its own."""
        line, client = self.wire.connect(), Http1(1 << 30)
        answers: list[Answer] | None = None
        while True:
            try:
                asked = looking.send(answers)  # type: ignore[arg-type]
            except StopIteration as end:
                line.end()
                return end.value  # type: ignore[no-any-return]
            line.send(b"".join([client.ask(request) for request in asked]))
            answers = []
            for _ in range(TURNS_MAX):
                answers += client.receive(line.take())  # type: ignore[arg-type]
                if len(answers) == len(asked):
                    break
                await asyncio.sleep(0)
            else:
                raise Hung(f"of {len(asked)} requests {len(answers)} are answered")


@dataclass(eq=False)
class Talker:
    """A client and its connection."""

    name: str
    client: Client
    line: Line
    slices: deque[bytes] = field(default_factory=deque)  # to be sent
    blocked_turns: int = 0  # for which it does not read
    is_leaving: bool = False  # it asks no more, and ends its side when all is sent


class Play:
    """One life of a server. `calls` is how many requests are made, `told` what was told in the lives before."""

    def __init__(
        self,
        seed: int,
        disk: MemoryDisk | None = None,
        *,
        life: int = 0,
        calls: int = 400,
        told: Told | None = None,
        clock: ManualClock | None = None,
    ) -> None:
        self.seed = seed
        self.disk = disk or MemoryDisk()
        self.clock = clock or ManualClock()
        self.told = told or Told()
        self.rng = random.Random(f"{seed} {life}")
        self.workload = Workload(self.rng, f"r{life}")
        self.host = Host(self.disk, self.clock, seed, life)
        self.talkers: list[Talker] = []
        self.checkpoints = 0
        self.dropped: set[Request] = set()  # asked on connections that broke
        self._life = life
        self._wanted = calls
        self._calls = 0  # to be asked yet
        self._eagerness = self.rng.choice((0.1, 0.9, 0.9))  # to begin the next checkpoint
        self._breaks = self.rng.choice((0, 1, 2, 4))  # connections that the clients end
        self._tasks: set[asyncio.Task[None]] = set()
        self._idle_turns = self._idle_pauses = 0

    # --- from the beginning to the end

    async def run(self) -> None:
        """Play until every request is answered, or the disk is dead; then clients have what was sent by then."""
        await self.finished(self._run())
        if self.disk.is_dead:
            await self.host.end()
            for talker in self.talkers:
                self._hear(talker)

    async def finished(self, work: Coroutine[Any, Any, T]) -> T | None:
        """The result of `work`; None if the disk died before. Then nothing that was begun goes on."""
        before = asyncio.all_tasks()
        task = asyncio.ensure_future(work)
        for _ in range(TURNS_MAX):
            if task.done() or self.disk.is_dead:
                break
            await asyncio.sleep(0)
        is_dead, is_done = self.disk.is_dead, task.done()
        if is_dead or not is_done:
            await ended(before)
        if is_dead and not (is_done and not task.cancelled() and isinstance(task.exception(), AssertionError)):
            return None
        if not is_done:
            raise Hung(f"nothing comes to an end: {self._in_flight()}")
        return task.result()

    async def _run(self) -> None:
        await self.host.server.recover()
        first = self._open("h0", Http1(64))
        while setup := self.told.undone(self.workload.setup()):
            self._say(first, setup)
            while first.client.in_flight or first.slices:
                self._turn()
                await asyncio.sleep(0)
        first.client.window = self.rng.randint(2, 32)
        self._open_others()
        self._calls = self._wanted
        while self._calls > 0 or self._is_busy():
            self._turn()
            self._beside()
            await asyncio.sleep(0)
        while self._tasks:  # noqa: ASYNC110 - checkpoints end by themselves
            await asyncio.sleep(0)

    def _open_others(self) -> None:
        rng = self.rng
        for number in range(1, rng.randint(2, 3)):
            self._open(f"h{number}", Http1(rng.randint(2, 32)))
        self._open("ws", WebSocket(rng.choice((4, 32, 100)), rng_sample(rng, STREAMED, 3)))
        self._open("v2", Http2(rng.randint(2, 32)))
        self._open("sse", Events(rng_sample(rng, STREAMED, 3)))
        queue = rng.choice(("jobs", "steady"))
        self._open("work", Events(queue=queue, node=f"{queue}.stream", jobs_max=2))

    def _open(self, name: str, client: Client) -> Talker:
        talker = Talker(name, client, self.host.wire.connect())
        talker.slices.extend(self._sliced(client.open()))
        self.talkers.append(talker)
        return talker

    async def settle(self) -> None:
        """Let everything come that is under way; routers that a failure has blocked are tried again."""
        if self.told.is_faulty:
            self.clock.advance(RETRY_MS)
        self._idle_turns = 0
        while self._idle_turns < IDLE_TURNS_MAX:
            for talker in self.talkers:
                talker.line.unblock()
            self._turn()
            await asyncio.sleep(0)

    async def check_streams(self, found: Found) -> None:
        """Whoever follows a topic is sent all of it (SS9, WS6); whoever has left is gone."""
        await self.settle()
        for talker in self.talkers:
            assert talker.line.is_lost == talker.is_leaving, f"{talker.name}: {talker.line.is_lost}"
            for name in talker.client.topics:
                unsent = found[name].records.keys() - self.told.streamed[talker.name, name] if name in TOPICS else ()
                assert not unsent, f"{talker.name} of {name} was not sent {sorted(unsent)}"

    async def look(self) -> Found:
        found = await self.finished(self.host.look(look()))
        assert found is not None
        return found

    # --- turns

    def _turn(self) -> None:
        """Everyone hears what has come, sends a little, and perhaps asks something."""
        has_moved = False
        for talker in list(self.talkers):
            has_moved |= self._hear(talker)
            if not talker.slices and self._calls > 0 and talker.client.room > 0 and self.rng.random() < 0.2:
                count = min(self.rng.randint(1, min(talker.client.room, self.rng.choice(BURSTS))), self._calls)
                self._calls -= count
                asked = [self.workload.next(talker.name, talker.client.takes) for _ in range(count)]
                self._say(talker, asked)
            if talker.slices and self.rng.random() < 0.8:
                talker.line.send(*(talker.slices.popleft() for _ in range(min(2, len(talker.slices)))))
                has_moved = True
            if talker.is_leaving and not talker.slices:
                talker.line.end()
            self._stall(talker)
        self._pass_time(has_moved)

    def _hear(self, talker: Talker) -> bool:
        data = talker.line.take()
        for heard in talker.client.receive(data):
            self.told.heard(heard, talker.name)
            self.workload.heard(heard)
        owed = talker.client.owed()
        if owed:
            talker.slices.append(owed)
        return bool(data)

    def _say(self, talker: Talker, requests: Iterable[Request]) -> None:
        """Ask all of these at once, in slices that need not end where a request does."""
        data = b""
        for request in requests:
            self.told.asked(request)
            data += talker.client.ask(request)
        talker.slices.extend(self._sliced(data))

    def _sliced(self, data: bytes) -> list[bytes]:
        cuts = sorted(self.rng.randint(0, len(data)) for _ in range(self.rng.choice((0, 0, 1, 2, 4))))
        return [data[start:stop] for start, stop in zip([0, *cuts], [*cuts, len(data)], strict=True) if stop > start]

    def _stall(self, talker: Talker) -> None:
        """Now and then a client does not read for some turns."""
        if talker.blocked_turns:
            talker.blocked_turns -= 1
            if not talker.blocked_turns:
                talker.line.unblock()
        elif self.rng.random() < 0.01:
            talker.blocked_turns = self.rng.randint(1, 20)
            talker.line.block()

    def _pass_time(self, has_moved: bool) -> None:
        """Long polls end by time if nothing else happens."""
        self._idle_turns = 0 if has_moved else self._idle_turns + 1
        if self._idle_turns > IDLE_TURNS_MAX:
            self._idle_turns = 0
            self._idle_pauses += 1
            if self._idle_pauses > IDLE_PAUSES_MAX:
                raise Hung(f"not answered: {self._in_flight()}")
            self.clock.advance(WAIT_MS + 1)

    def _in_flight(self) -> dict[str, list[Request]]:
        return {talker.name: asked for talker in self.talkers if (asked := talker.client.unanswered)}

    def _is_busy(self) -> bool:
        return any(talker.slices or talker.client.in_flight for talker in self.talkers)

    # --- what happens beside them

    def _beside(self) -> None:
        if not self._tasks and self.rng.random() < self._eagerness:
            self.checkpoints += 1
            self._start(self.host.engine.checkpoint)
        draw = self.rng.random()
        if draw < 0.03:
            self._start(self.host.engine.tick)
        elif draw < 0.05 and self._breaks:
            self._breaks -= 1
            talker = self.rng.choice(self.talkers)
            if isinstance(talker.client, Http1) and self.rng.random() < 0.5:
                talker.client.window, talker.is_leaving = 0, True
            else:
                self._drop(talker)
            if not isinstance(talker.client, Events):
                self._open(f"again{self._breaks}", Http1(self.rng.randint(2, 32)))

    def _start(self, work: Callable[[], Coroutine[Any, Any, None]]) -> None:
        async def tried() -> None:
            try:
                await work()
            except (StorageError, OSError):
                if not self.told.is_faulty:
                    raise

        task = asyncio.ensure_future(tried())
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def _drop(self, talker: Talker) -> None:
        """A connection breaks, whatever is under way on it; what it had asked stays unanswered."""
        self._hear(talker)
        self.dropped |= set(talker.client.unanswered)
        talker.line.drop()
        self.talkers.remove(talker)
        if talker.name == "work":
            for queue in ("jobs", "steady"):
                self.told.hung_up(f"{queue}.stream")
            self.workload.held = [job for job in self.workload.held if not job.node.endswith(".stream")]


def rng_sample(rng: random.Random, names: tuple[str, ...], count: int) -> tuple[str, ...]:
    return tuple(rng.sample(names, count))


async def ended(before: "set[asyncio.Task[Any]]") -> None:
    """End every task that was begun since; one that has not run yet first takes over what it was to run."""
    for _ in range(50):
        others = [task for task in asyncio.all_tasks() - before if not task.done()]
        if not others:
            return
        await asyncio.sleep(0)
        for task in others:
            task.cancel()


def quiet() -> list[BaseException]:
    """What a dead process leaves behind ends in Crashed, and nobody hears of it; everything else is listed."""
    strays: list[BaseException] = []

    def note(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        error = context.get("exception")
        if error is not None and not isinstance(error, Crashed):
            strays.append(error)

    asyncio.get_running_loop().set_exception_handler(note)
    return strays
