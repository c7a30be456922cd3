"""One life of a simulated server under its clients: every turn of the loop follows from the plan.

    play = Play(plan, life, disk, told, clock, trace)
    await play.run(began)         # to the end, or to the death of the disk

Owns the clients' connections, in what slices their requests go out and when, and what happens beside them: checkpoints,
ticks, time that passes, clients that stop reading for a while, break off, or leave a request half sent, a graceful
stop. Must not know: what is right.
"""

import asyncio
import random
from collections import deque
from collections.abc import Callable, Coroutine, Iterable
from dataclasses import dataclass, field
from typing import Any

from tests.pipelining.clients import Client, Events, Http1, Http2, Request, WebSocket
from tests.pipelining.look import Found, look, states
from tests.pipelining.told import Told
from tests.pipelining.workload import BRIEF, Workload, class_of
from tests.sim.plan import Plan
from tests.sim.trace import Trace
from tests.sim.world import IDLE_MS, IDLE_PAUSES_MAX, IDLE_TURNS_MAX, SILENT_TURNS_MAX, TURNS_MAX, Host, Hung, SlowDisk
from topics.errors import CommitFailed, StorageError
from topics.testing.clock import ManualClock
from topics.testing.disk import Faulty
from topics.testing.wire import Line

BURSTS = (4, 8, 16, 100)  # most requests that are asked at once
STREAMED = ("log.fsync", "log.disk", "log.memory", "source", "copy", "copy.capped", "copy.aging", "jobs.dead", "aging")
RETRY_MS = 5001  # after which a router that was blocked by a failure has been tried again
STOP_TURNS = 30  # in which clients still ask, although the server stops
LEAVING_PAUSES_MAX = 6  # without any work that shows, for whoever leaves; less than SILENT_TURNS_MAX in all


@dataclass(eq=False)
class Talker:
    """A client and its connection."""

    name: str
    client: Client
    line: Line
    slices: deque[bytes] = field(default_factory=deque)  # to be sent
    unsent: deque[tuple[int, Request]] = field(default_factory=deque)  # requests, and where each ends in all bytes
    asked_bytes: int = 0
    sent_bytes: int = 0
    blocked_turns: int = 0  # for which it does not read
    is_leaving: bool = False  # it asks no more, and ends its side when all is sent


class Play:
    """One life of a server, on what the lives before have left; `told` is what was told in them."""

    def __init__(
        self,
        plan: Plan,
        number: int,
        disk: SlowDisk,
        told: Told,
        clock: ManualClock,
        trace: Trace,
        before: "Play | None",
    ) -> None:
        self.life = plan.lives[number]
        self.disk, self.told, self.clock, self.trace = disk, told, clock, trace
        self.rng = random.Random(f"{plan.seed} {number}")
        self.workload = Workload(self.rng, f"r{number}", is_timed=True)
        keyed = [] if before is None else before.workload.keyed
        self.workload.keyed = [request for request in keyed if class_of(request.topic) != "ephemeral"]
        self._held = [] if before is None else before.workload.held  # as far as the clients know
        self.talkers: list[Talker] = []
        self.forsaken: set[Request] = set()  # asked on connections that ended
        self._plan = plan
        self._calls = 0  # to be asked yet
        self._eagerness = self.rng.choice((0.05, 0.4, 0.9))  # to begin the next checkpoint
        self._breaks = self.rng.choice((0, 1, 2, 4))  # connections that the clients end
        self._tasks: set[asyncio.Task[None]] = set()
        self._idle_turns = self._silent_turns = self._idle_pauses = self._operations = 0
        self._stopping: asyncio.Task[None] | None = None
        self._is_time_still = False
        self.is_cut_short = False  # a stop comes while requests are in flight
        slowness = self.rng.choice((1, 3, 12)) if "slow" in plan.events else 0
        disk_rng = random.Random(f"disk {plan.seed} {number}")
        disk.turns = lambda: disk_rng.randint(0, slowness)
        self.host = Host(disk, clock, plan.seed, number)

    # --- from the beginning to the end

    async def run(self, began: Callable[[Found], None]) -> None:
        """Play until every request is answered and the server stands still, or has stopped, or the disk is dead.

        `began` gets what the server has when it starts. At the end clients have what was sent by then.
        """
        await self.host.finished(self._run(began))
        if self.disk.is_dead:
            await self.host.end()
            for talker in self.talkers:
                self._hear(talker)

    async def _run(self, began: Callable[[Found], None]) -> None:
        await self.host.server.recover()
        self.trace.add("server", "is ready")
        began(await self._first_look())
        self.workload.held = [job for job in self._held if job.seq in self.told.held[job.topic]]
        first = self._open("h0", Http1(64))
        await self._set_up(first)
        first.client.window = self.rng.randint(2, 32)
        self._open_others()
        self._calls = self.life.calls
        while self._calls > 0 or self._is_busy():
            self._turn()
            self._beside()
            await asyncio.sleep(0)
            self.is_cut_short = self.life.end == "stop" and 0 < self._calls <= self.life.stops_at
            if self.is_cut_short:
                return
        while self._tasks:
            self._pass_time(has_moved=False)
            await asyncio.sleep(0)

    async def _set_up(self, first: Talker) -> None:
        """Have all topics and routers; a disk that fails does so for a while only."""
        for _ in range(IDLE_PAUSES_MAX):
            setup = self.told.undone(self.workload.setup())
            if not setup:
                return
            puts = [request for request in setup if request.kind == "put"]  # a router would create what it lacks
            self._say(first, puts or setup)
            while first.client.in_flight or first.slices:
                self._turn()
                await asyncio.sleep(0)
            if self.told.is_faulty:
                self.clock.advance(IDLE_MS)
                self._start(self.host.engine.tick)
        raise Hung(f"refused for ever: {setup}")

    def _open_others(self) -> None:
        rng = self.rng
        makers: dict[str, Callable[[], Client]] = {
            "h1": lambda: Http1(rng.randint(2, 32)),
            "h2": lambda: Http1(rng.randint(2, 8)),
            "v2": lambda: Http2(rng.randint(2, 32)),
            "ws": lambda: WebSocket(rng.choice((4, 32, 100)), tuple(rng.sample(STREAMED, 3))),
            "sse": lambda: Events(tuple(rng.sample(STREAMED, 3))),
            "work": lambda: self._worker(rng.choice(("jobs", "steady", "brief"))),
        }
        for name in self._plan.clients:
            self._open(name, makers[name]())

    def _worker(self, queue: str) -> Events:
        return Events(queue=queue, node=f"{queue}.stream", jobs_max=2)

    def _open(self, name: str, client: Client) -> Talker:
        talker = Talker(name, client, self.host.wire.connect())
        self.trace.add(name, "connect", ", ".join(client.topics))
        self._queue(talker, client.open())
        self.talkers.append(talker)
        return talker

    async def _first_look(self) -> Found:
        """What the server has when it starts. While the disk fails routers are held (RT15), and reads do not wait for
        them (DF9): what their sources have lost is in the dests, as holes (RT12), only once they go on."""
        failed, found = -1, Found()
        while failed != self._failed():
            failed = self._failed()
            await self._get_over_failures(failed)
            found = await self.host.look(look())
        return found

    async def _get_over_failures(self, failed: int) -> None:
        """The log goes on; if operations of the disk have failed, routers that were held are tried again."""
        await self._get_over_obstacles()
        for _ in range(2 if failed else 0):
            await self._tick_after(RETRY_MS)

    async def _get_over_obstacles(self) -> None:
        """Wait until writes are possible (HM7): until then routers cannot go on either."""
        for _ in range(IDLE_PAUSES_MAX):
            if self.host.engine.obstacle() is None:
                return
            await self._tick_after(IDLE_MS)
        raise Hung(f"the disk works, and yet: {self.host.engine.obstacle()}")

    async def _tick_after(self, ms: int) -> None:
        self.clock.advance(ms)
        self._start(self.host.engine.tick)
        while self._tasks:  # noqa: ASYNC110 - they end by themselves
            await asyncio.sleep(0)

    async def settle(self) -> None:
        """Let everything come that is under way; after a failure the log goes on, and routers are tried again."""
        failed = -1
        while failed != self._failed():
            failed = self._failed()
            await self._get_over_failures(failed)
            await self.host.look(states(BRIEF))  # leases that have ended are found by a look
            self._idle_turns, self._is_time_still = 0, True
            patience = LEAVING_PAUSES_MAX
            while self._idle_turns < IDLE_TURNS_MAX:
                for talker in self.talkers:
                    talker.line.unblock()
                self._turn()
                if self._idle_turns == IDLE_TURNS_MAX and patience and self._is_leaving():
                    self._idle_turns, patience = 0, patience - 1
                await asyncio.sleep(0)
            self._is_time_still = False

    def _is_leaving(self) -> bool:
        """Whether the server still works for somebody who leaves; what it reads for him is no work that shows."""
        return any(talker.is_leaving and not talker.line.is_lost for talker in self.talkers)

    def _failed(self) -> int:
        """How many operations of the disk have failed."""
        return sum(hook.failed for hook in self.disk.hooks if isinstance(hook, Faulty))

    async def stop(self) -> None:
        """A graceful stop; clients go on for a while."""
        self.trace.add("server", "stop")
        self.told.is_stopping = True
        self._release_streams()
        self._stopping = asyncio.ensure_future(self.host.server.close())
        for turn in range(TURNS_MAX):
            if self._stopping.done():
                break
            if turn == STOP_TURNS:
                self._calls = 0
            self._turn()
            await asyncio.sleep(0)
        self._stopping.result()
        for talker in self.talkers:
            self._hear(talker)

    def unanswered(self) -> list[Request]:
        """What the server owes an answer to (G15)."""
        return [call.request for call in self.told.open_calls if call.request not in self.forsaken]

    async def check_streams(self, found: Found) -> None:
        """Whoever follows a topic is sent all of it (SS9, WS6); whoever has left is gone."""
        await self.settle()
        for talker in self.talkers:
            assert talker.line.is_lost == talker.is_leaving, f"{talker.name}: {talker.line.is_lost}"
            for name in talker.client.topics:
                there = found[name].records.keys() if name in self.workload.topics else set()
                unsent = there - self.told.streamed[talker.name, name]
                assert not unsent, f"{talker.name} of {name} was not sent {sorted(unsent)}"

    # --- turns

    def _turn(self) -> None:
        """Everyone hears what has come, sends a little, and perhaps asks something."""
        has_moved = False
        for talker in list(self.talkers):
            has_moved |= self._hear(talker)
            if talker.line.is_lost and not talker.is_leaving:
                self._lost(talker)
                continue
            if not talker.slices and self._calls > 0 and talker.client.room > 0 and self.rng.random() < 0.2:
                count = min(self.rng.randint(1, min(talker.client.room, self.rng.choice(BURSTS))), self._calls)
                self._calls -= count
                self._say(talker, [self.workload.next(talker.name, talker.client.takes) for _ in range(count)])
            if talker.slices and self.rng.random() < 0.8:
                self._send(talker)
                has_moved = True
            if talker.is_leaving and not talker.slices:
                talker.line.end()
            self._stall(talker)
        self._pass_time(has_moved)

    def _hear(self, talker: Talker) -> bool:
        data = talker.line.take()
        for heard in talker.client.receive(data):
            self.trace.add(talker.name, "heard", heard)
            self.told.heard(heard, talker.name)
            self.workload.heard(heard)
        self._queue(talker, talker.client.owed())
        return bool(data)

    def _say(self, talker: Talker, requests: Iterable[Request]) -> None:
        """Ask all of these at once, in slices that need not end where a request does."""
        data, start = b"", talker.asked_bytes
        for request in requests:
            self.trace.add(talker.name, "asks", request)
            self.told.asked(request)
            data += talker.client.ask(request)
            talker.unsent.append((start + len(data), request))
        self._queue(talker, data)

    def _queue(self, talker: Talker, data: bytes) -> None:
        if data:
            cuts = sorted(self.rng.randint(0, len(data)) for _ in range(self.rng.choice((0, 0, 1, 2, 4))))
            bounds = zip([0, *cuts], [*cuts, len(data)], strict=True)
            talker.slices.extend(data[start:stop] for start, stop in bounds if stop > start)
            talker.asked_bytes += len(data)

    def _send(self, talker: Talker) -> None:
        slices = [talker.slices.popleft() for _ in range(min(2, len(talker.slices)))]
        talker.line.send(*slices)
        talker.sent_bytes += sum(map(len, slices))
        while talker.unsent and talker.unsent[0][0] <= talker.sent_bytes:
            talker.unsent.popleft()

    def _stall(self, talker: Talker) -> None:
        """Now and then a client does not read for some turns."""
        if talker.blocked_turns:
            talker.blocked_turns -= 1
            if not talker.blocked_turns:
                talker.line.unblock()
        elif "stall" in self._plan.events and self.rng.random() < 0.01:
            talker.blocked_turns = self.rng.randint(1, 20)
            talker.line.block()

    def _pass_time(self, has_moved: bool) -> None:
        """Time passes by itself, and if nothing else happens."""
        is_working = len(self.disk.operations) != self._operations
        self._operations = len(self.disk.operations)
        self._silent_turns = 0 if has_moved else self._silent_turns + 1
        self._idle_turns = 0 if has_moved or is_working else self._idle_turns + 1
        if self._idle_turns > IDLE_TURNS_MAX or self._silent_turns > SILENT_TURNS_MAX:
            self._idle_turns = self._silent_turns = 0
            self._idle_pauses += 1
            if self._idle_pauses > IDLE_PAUSES_MAX:
                raise Hung(f"not answered: {self._in_flight()}")
            self.clock.advance(IDLE_MS)
        elif "time" in self._plan.events and not self._is_time_still:
            draw = self.rng.random()
            if draw < 0.005:
                self.clock.advance(self.rng.randint(500, 4000))
            elif draw < 0.2:
                self.clock.advance(self.rng.randint(1, 20))

    def _in_flight(self) -> dict[str, list[Request]]:
        return {talker.name: asked for talker in self.talkers if (asked := talker.client.unanswered)}

    def _is_busy(self) -> bool:
        return any(talker.slices or set(talker.client.unanswered) - self.forsaken for talker in self.talkers)

    # --- what happens beside them

    def _beside(self) -> None:
        events, draw = self._plan.events, self.rng.random()
        if "checkpoint" in events and not self._tasks and self.rng.random() < self._eagerness:
            self.trace.add("server", "checkpoint")
            self._start(self.host.engine.checkpoint)
        if draw < 0.04 and "tick" in events:
            self._start(self.host.engine.tick)
        elif draw < 0.05 and "sweep" in events:
            self.host.server.listener.sweep()
        elif draw < 0.07 and self._breaks and ("break" in events or "half" in events):
            self._breaks -= 1
            self._break(self.rng.choice(self.talkers))

    def _start(self, work: Callable[[], Coroutine[Any, Any, None]]) -> None:
        async def tried() -> None:
            try:
                await work()
            except (StorageError, OSError) as error:
                is_given_up = self._stopping is not None and isinstance(error, CommitFailed)
                if not self.told.is_faulty and not is_given_up:  # a stop that is short of time gives a checkpoint up
                    raise

        task = asyncio.ensure_future(tried())
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def _break(self, talker: Talker) -> None:
        """A client goes: after all its answers, in the middle of a request, or the connection breaks."""
        is_http1 = isinstance(talker.client, Http1)
        if is_http1 and self.rng.random() < 0.3:
            talker.client.window, talker.is_leaving = 0, True
        elif is_http1 and "half" in self._plan.events and self.rng.random() < 0.6:
            self._leave_half_sent(talker)
        elif "break" in self._plan.events:
            self._hear(talker)
            talker.line.drop()
            self._lost(talker)
            return
        self._open(f"{talker.name}'", Http1(self.rng.randint(2, 32)))

    def _leave_half_sent(self, talker: Talker) -> None:
        """Send no more than is sent: a request of which the end is missing has not been made."""
        for _, request in talker.unsent:
            self.told.withdrawn(request)
            self.forsaken.add(request)
        self.trace.add(talker.name, "leaves", f"with {len(talker.unsent)} requests not sent")
        talker.unsent.clear()
        talker.slices.clear()
        talker.client.window, talker.is_leaving = 0, True
        self.forsaken |= set(talker.client.unanswered)

    def _lost(self, talker: Talker) -> None:
        """A connection is gone, whatever was under way on it; what it had asked stays unanswered."""
        self.trace.add(talker.name, "is gone")
        for _, request in talker.unsent:
            self.told.withdrawn(request)
        self.forsaken |= set(talker.client.unanswered)
        self.talkers.remove(talker)
        if self._stopping is not None:
            return
        if talker.name == "work":
            self._release_streams()
        elif talker.client.topics:
            self._follow_on(talker)
        else:
            self._open(f"{talker.name}'", Http1(self.rng.randint(2, 32)))

    def _release_streams(self) -> None:
        """The jobs of a stream that ends are nobody's."""
        for queue in ("jobs", "steady", "brief"):
            self.told.hung_up(f"{queue}.stream")
        self.workload.held = [job for job in self.workload.held if not job.node.endswith(".stream")]

    def _follow_on(self, talker: Talker) -> None:
        """Another connection goes on where the one before was cut off."""
        starts = {topic: self.told.cursor(talker.name, topic) for topic in talker.client.topics}
        kind = self.rng.choice((WebSocket, Events))
        client = WebSocket(8, tuple(starts), starts) if kind is WebSocket else Events(tuple(starts), starts=starts)
        self._open(talker.name, client)
