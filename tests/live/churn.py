"""Very many SSE clients that come, read, stall, vanish and come back, each checking what it gets.

    python -m tests.live.churn '{"address": [HOST, PORT], "topics": [...], "clients": 100, "seed": 1, "stall_s": 6}'

The process prints a line when every client has its first stream, and goes on until a line comes in: the heads of all
topics as JSON, which are final then. Every client must reach them; the process closes all connections and prints a
`Report`. One epoll loop, plain sockets, a heap of what is due. `Watcher` judges what is received; here is only what a
client does, and which ends it may meet.

A client (`Client`) has a session and one connection at a time (`Link`), or two while one replaces the other. It keeps
the ids it has received (`ids`); none of them is ahead of the session, so that resuming with any of them must go on
exactly there. After a resume without an id it knows nothing until the first frame.
"""

import heapq
import json
import random
import resource
import select
import socket
import struct
import sys
import time
from collections import Counter, deque
from collections.abc import Callable
from typing import Any, Final

import msgspec

from tests.live.load import OWNERS, Address, Answer, kind, request_bytes, take_answer
from tests.live.watcher import Broken, Watcher, positions
from topics.testing.patience import PATIENCE_S

RST: Final = struct.pack("ii", 1, 0)  # SO_LINGER: close at once
TOO_SLOW_S: Final = 30.0  # SS26
LIFE_S: Final = 4.0  # between two deeds of a client, on average
PAUSE_S: Final = 0.5  # before a client comes back, on average
IDS_MAX: Final = 40
BROKEN_MAX: Final = 20
RECEIVE_BYTES: Final = 1 << 18

DEEDS: Final = {"fin": 4, "rst": 4, "half-close": 1, "stall": 4, "take over": 2}
RESUMES: Final = {"last id": 6, "cursor": 2, "older id": 2, "no id": 1}


class Report(msgspec.Struct):
    broken: list[str]  # what must not be
    late: list[str]  # clients that did not reach the heads
    sessions: int  # created
    counts: dict[str, int]
    cpu_s: float


class Link:
    """A connection of a client: it asks for a session first (`watcher` is None), or for a stream at once."""

    def __init__(self, client: "Client", opening: bytes, watcher: Watcher | None) -> None:
        self.client = client
        self.watcher = watcher
        self.opening: bytes | None = opening  # to be sent once it is connected
        self.received = bytearray()  # of the answer that creates the session
        self.is_reading = True
        self.opened_at = time.monotonic()
        self.stalled_at = 0.0
        self.may_be_cut_off = False  # it did not read for too long
        self.is_replaced = False
        self.is_leaving = False  # half-closed
        self.socket = socket.socket()
        self.socket.setblocking(False)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    @property
    def is_streaming(self) -> bool:
        return self.watcher is not None and self.opening is None


class Client:
    def __init__(self, churn: "Churn", number: int) -> None:
        self.churn = churn
        self.number = number
        self.random = random.Random(f"{churn.seed}.{number}")
        self.link: Link | None = None
        self.is_done = False
        self.has_streamed = False
        self.ids: deque[bytes] = deque(maxlen=IDS_MAX)
        self.url = ""
        self.topics: frozenset[str] = frozenset()
        self.node: str | None = None
        self._is_planning = False
        self._asked: dict[str, int | None] = {}  # where the session is to start; None = at the head

    # --- coming

    def begin(self) -> None:
        """A new session."""
        choose = self.random
        cursor = self.ids[-1] if self.ids and choose.random() < 0.3 else b""
        names = positions(cursor) if cursor else choose.sample(self.churn.topics, choose.choice((1, 1, 1, 2, 3)))
        self.node = f"owner-{choose.randrange(OWNERS)}" if choose.random() < 0.5 else None
        self.ids.clear()
        topics = {name: self._start(name) for name in names}
        body: dict[str, Any] = {"topics": topics, "limit": choose.choice((0, 10, 1000)), "heartbeat_ms": 1000}
        self._asked = {name: None if start.get("tail") else start["from_seq"] for name, start in topics.items()}
        if cursor:
            body["cursor"] = cursor.decode()
            self._asked = dict(positions(cursor))
        if self.node is not None:
            body["node"] = self.node
        self.topics = frozenset(topics)
        self._connect(request_bytes("POST", "/v0/watch", body), None)

    def _start(self, topic: str) -> dict[str, Any]:
        head = self.churn.seen.get(topic, 0)
        way = self.random.uniform(0.3, 0.5) if kind(topic) == "deep" else self.random.random()
        if way < 0.4:
            return {"tail": True}
        return {"from_seq": 0 if way < 0.5 else self.random.randint(max(0, head - 1000), head)}

    def resume(self) -> None:
        """The session goes on."""
        how = self.random.choices(list(RESUMES), list(RESUMES.values()))[0] if self.ids else "no id"
        if self.churn.heads is not None and self.ids:
            how = "last id"
        self.churn.counts[f"resumed by {how}"] += 1
        if how == "older id":
            for _ in range(self.random.randrange(len(self.ids))):
                self.ids.pop()
        if how == "no id":
            self.ids.clear()
        self._connect(*self._stream(how))

    def _stream(self, how: str) -> tuple[bytes, Watcher]:
        last = self.ids[-1].decode() if self.ids else ""
        query = f"?cursor={last}" if how == "cursor" else ""
        headers = [f"Last-Event-ID: {last}"] if how in ("last id", "older id") else []
        start = positions(self.ids[-1]) if self.ids else {}
        watcher = Watcher(self.topics, self.node, start)
        watcher.may_have_stalled = self.churn.is_calm
        return request_bytes("GET", self.url + query, None, "Accept: text/event-stream", *headers), watcher

    def _connect(self, opening: bytes, watcher: Watcher | None) -> None:
        self.link = Link(self, opening, watcher)
        self.churn.open(self.link)

    def created(self, link: Link, answer: Answer) -> None:
        """The session is there: ask for its stream, on the same connection."""
        if answer.status == 429:
            self.churn.counts["throttled"] += 1
            self.churn.close(link)
            self.link = None
            self.churn.after(answer.retry_after_s, self.begin)
            return
        session = msgspec.json.decode(answer.body)
        if answer.status != 200 or session["topics"].keys() != self.topics:
            raise Broken(f"{sorted(self.topics)}: {answer}")
        start = {topic: state["from_seq"] for topic, state in session["topics"].items()}
        for topic, asked in self._asked.items():
            if start[topic] != (session["topics"][topic]["head_seq"] if asked is None else asked):
                raise Broken(f"{self._asked} was asked for: {session}")
        self.churn.sessions += 1
        self.url = session["stream_url"]
        opening, link.watcher = self._stream("")
        link.watcher.cursors = start
        link.socket.sendall(opening)

    # --- being there

    def heard(self, link: Link) -> None:
        """Something was received on the stream."""
        watcher = link.watcher
        assert watcher is not None
        if link.is_replaced:
            return
        if watcher.refusal is not None:
            self._refused(link, watcher.refusal)
            return
        if not self.has_streamed and watcher.frames:
            self.has_streamed = True
            self.churn.first_streams += 1
            self.do_something_later()
        if watcher.id and (not self.ids or self.ids[-1] != watcher.id):
            self.ids.append(watcher.id)
            for topic, cursor in watcher.cursors.items():
                self.churn.seen[topic] = max(self.churn.seen.get(topic, 0), cursor)
        heads = self.churn.heads
        if heads is not None and not self.is_done and watcher.has_all(heads):
            self.is_done = True
            self.churn.done += 1

    def _refused(self, link: Link, answer: Answer) -> None:
        if answer.status != 429:
            raise Broken(f"the stream is refused: {answer}")
        self.churn.counts["throttled"] += 1
        self.churn.close(link)
        self.link = None
        self.churn.after(answer.retry_after_s, self.resume)

    def do_something_later(self) -> None:
        if not self._is_planning and not self.churn.is_calm:
            self._is_planning = True
            self.churn.after(self.random.expovariate(1 / LIFE_S), self._do_something)

    def _do_something(self) -> None:
        link = self.link
        self._is_planning = False
        if self.churn.heads is not None:
            return
        is_there = link is not None and link.is_streaming and link.is_reading and not link.is_leaving
        if link is None or not is_there or (not self.ids and self.random.random() < 0.8):
            self.do_something_later()
            return
        deed = self.random.choices(list(DEEDS), list(DEEDS.values()))[0]
        self.churn.counts[deed] += 1
        if deed == "stall":
            self._stall(link)
        elif deed == "take over":
            link.is_replaced = True
            self.resume()
            self.do_something_later()
        elif deed == "half-close":
            link.is_leaving = True
            link.socket.shutdown(socket.SHUT_WR)
        else:
            self.leave(link, rst=deed == "rst")

    def leave(self, link: Link, *, rst: bool) -> None:
        self.churn.close(link, rst=rst)
        self.come_back()

    def come_back(self) -> None:
        self.link = None
        again = self.resume if self.random.random() < 0.75 else self.begin
        self.churn.after(self.random.expovariate(1 / PAUSE_S), again)
        self.do_something_later()

    def _stall(self, link: Link) -> None:
        """Stop reading for a while."""
        stall_s = self.random.choice((0.2, 1.0, 3.0, self.churn.stall_s))
        link.stalled_at = time.monotonic()
        self.churn.mute(link)
        self.churn.after(stall_s, lambda: self._read_on(link))

    def _read_on(self, link: Link) -> None:
        if link.is_reading or self.link is not link:
            return
        assert link.watcher is not None
        link.may_be_cut_off = time.monotonic() - link.stalled_at >= TOO_SLOW_S - 1
        link.watcher.may_have_stalled = True
        if self.churn.heads is None and self.random.random() < 0.3:
            self.churn.counts["left while stalled"] += 1
            self.leave(link, rst=self.random.random() < 0.5)
        else:
            self.churn.unmute(link)
            self.do_something_later()

    def hurry(self) -> None:
        """The heads are known: get there."""
        if self.link is not None and not self.link.is_reading:
            self._read_on(self.link)
        if self.link is not None and self.link.watcher is not None:
            self.heard(self.link)

    # --- the end of a connection

    def ended(self, link: Link, *, in_order: bool) -> None:
        """The server has ended it: `in_order` with the last chunk, else by closing the connection."""
        watcher = link.watcher
        code = watcher.code if watcher is not None else 0
        self.churn.counts[f"ended with {code}"] += 1
        self.churn.close(link)
        if link.is_replaced:
            if code != 409 and not link.may_be_cut_off:
                raise Broken(f"a stream was replaced, and ends with {code}, {in_order=}")
            return
        if not link.is_leaving and not (link.may_be_cut_off and code in (0, 408)):
            age_s = time.monotonic() - link.opened_at
            raise Broken(f"a connection of {age_s:.1f} s ends with {code}, {in_order=}, {watcher}, {link.received!r}")
        self.come_back()

    def __str__(self) -> str:
        watcher = self.link.watcher if self.link is not None else None
        return f"client {self.number} of {sorted(self.topics)}, at {watcher.cursors if watcher else None}"


class Churn:
    def __init__(
        self, address: Address, topics: list[str], clients: int, seed: int, stall_s: float = 0.0, is_calm: bool = False
    ) -> None:
        """`is_calm`: clients only read; they may be too slow for what is written, though."""
        self.topics = topics
        self.seed = seed
        self.is_calm = is_calm
        self.stall_s = stall_s  # the longest stall
        self.heads: dict[str, int] | None = None  # final, once known
        self.seen: dict[str, int] = {}  # topic → a seq known to exist
        self.sessions = self.first_streams = self.done = 0
        self.counts: Counter[str] = Counter()
        self._address = address
        self._broken: list[str] = []
        self._links: dict[int, Link] = {}
        self._timers: list[tuple[float, int, Callable[[], None]]] = []
        self._timer_count = 0
        self._epoll = select.epoll()
        self._clients = [Client(self, number) for number in range(clients)]

    # --- for the clients

    def after(self, wait_s: float, call: Callable[[], None]) -> None:
        self._timer_count += 1
        heapq.heappush(self._timers, (time.monotonic() + wait_s, self._timer_count, call))

    def open(self, link: Link) -> None:
        link.socket.connect_ex(self._address)
        self._links[link.socket.fileno()] = link
        self._epoll.register(link.socket.fileno(), select.EPOLLOUT)

    def mute(self, link: Link) -> None:
        link.is_reading = False
        self._epoll.unregister(link.socket.fileno())

    def unmute(self, link: Link) -> None:
        link.is_reading = True
        self._epoll.register(link.socket.fileno(), select.EPOLLIN)

    def close(self, link: Link, *, rst: bool = False) -> None:
        if link.socket.fileno() >= 0:
            self._count(link)
            if link.is_reading:
                self.mute(link)
            del self._links[link.socket.fileno()]
            if rst:
                link.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RST)
            link.socket.close()

    def _count(self, link: Link) -> None:
        if link.watcher is not None:
            for what in ("frames", "records", "tombstones", "advice"):
                self.counts[what] += getattr(link.watcher, what)

    # --- the loop

    def run(self, commands: int) -> Report:
        """Until all clients have reached the heads that come in by `commands`, a descriptor."""
        self._epoll.register(commands, select.EPOLLIN)
        for client in self._clients:
            self.after(client.random.random(), client.begin)
        is_told, deadline = False, float("inf")
        while self.done < len(self._clients) and time.monotonic() < deadline and len(self._broken) < BROKEN_MAX:
            for descriptor, event in self._epoll.poll(self._wait_s()):
                if descriptor == commands:
                    self._epoll.unregister(commands)
                    deadline = time.monotonic() + PATIENCE_S
                    self._finish()
                elif (link := self._links.get(descriptor)) is not None:
                    self._guard(link.client, lambda link=link, event=event: self._ready(link, event))
            self._run_timers()
            if not is_told and self.first_streams == len(self._clients):
                is_told = True
                print("all are there", flush=True)
        return self._end()

    def _wait_s(self) -> float:
        return max(0.0, min(self._timers[0][0] - time.monotonic(), 1.0)) if self._timers else 1.0

    def _run_timers(self) -> None:
        now = time.monotonic()
        while self._timers and self._timers[0][0] <= now:
            call = heapq.heappop(self._timers)[2]
            self._guard(getattr(call, "__self__", None), call)

    def _guard(self, client: Client | None, call: Callable[[], None]) -> None:
        try:
            call()
        except (Broken, OSError, ValueError, KeyError, msgspec.MsgspecError) as error:
            self._broken.append(f"{client}: {type(error).__name__}: {error}")
            if client is not None and client.link is not None:
                self.close(client.link)
                client.link = None

    def _ready(self, link: Link, event: int) -> None:
        if link.opening is not None:
            failure = link.socket.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
            if failure:
                raise OSError(failure, "no connection")
            link.socket.sendall(link.opening)
            link.opening = None
            self._epoll.modify(link.socket.fileno(), select.EPOLLIN)
            return
        try:
            data = link.socket.recv(RECEIVE_BYTES)
        except ConnectionError:
            data = b""
        if not data:
            link.client.ended(link, in_order=False)
        elif link.watcher is None:
            link.received += data
            answer = take_answer(link.received)
            if answer is not None:
                link.client.created(link, answer)
        else:
            link.watcher.feed(data)
            link.client.heard(link)
            if link.watcher.is_ended:
                link.client.ended(link, in_order=True)

    # --- the end

    def _finish(self) -> None:
        self.heads = json.loads(sys.stdin.readline())
        for client in self._clients:
            self._guard(client, client.hurry)

    def _end(self) -> Report:
        late = [str(client) for client in self._clients if not client.is_done]
        for number, link in enumerate(list(self._links.values())):
            self.close(link, rst=number % 2 == 0)
        used = resource.getrusage(resource.RUSAGE_SELF)
        return Report(self._broken, late, self.sessions, dict(self.counts), used.ru_utime + used.ru_stime)


if __name__ == "__main__":
    resource.setrlimit(resource.RLIMIT_NOFILE, (resource.getrlimit(resource.RLIMIT_NOFILE)[1],) * 2)
    wanted = json.loads(sys.argv[1])
    churn = Churn(tuple(wanted.pop("address")), **wanted)
    print(msgspec.json.encode(churn.run(sys.stdin.fileno())).decode(), flush=True)
