"""Streams of jobs over SSE: connections that work for a queue (WK).

Owns the frames of the streams and their ends. Which jobs a stream gets is decided by the engine, which sees it as
a `Worker`; a stream takes no jobs while its client does not read. Must not know: how a stream is opened.

Invariants: a stream takes up a slot of `Slots.streams`; when it ends, however it ends, the leases delivered on it, and
only those, are released.
"""

from typing import Final

from topics.engine.answers import Claimed
from topics.engine.instance import Instance, Worker
from topics.errors import TopicsError
from topics.server.auth import READ, WRITE, Key
from topics.server.live.outlet import Wheel
from topics.server.live.pressure import RETRY_AFTER_MS
from topics.server.live.registry import Registry
from topics.server.live.sse import RETRY, EventStream, Opening, heartbeat
from topics.server.slots import Slots

HEARTBEAT_MS: Final = 15_000
CLAIMS: Final = frozenset((READ, WRITE))


class WorkStreams:
    """The streams of jobs of one server."""

    def __init__(self, engine: Instance, slots: Slots, wheel: Wheel, registry: Registry) -> None:
        self.engine = engine
        self.wheel = wheel
        self.registry = registry
        self._slots = slots
        self.jobs_total = 0  # sent so far

    def open(self, name: str, key: Key, worker: tuple[str, int, int | None], opening: Opening) -> "WorkStream":
        """Open a stream for the jobs of a queue. Throttled: no slot is free."""
        self._slots.take_stream(key)
        try:
            stream = WorkStream(self, name, key, opening)
        except BaseException:
            self._slots.give_stream(key)
            raise
        stream.begin(name, _Worker(stream, *worker))
        return stream

    def ended(self, stream: "WorkStream") -> None:
        self._slots.give_stream(stream.key)


class _Worker(Worker):
    """A stream as the engine sees it."""

    __slots__ = ("stream",)

    def __init__(self, stream: "WorkStream", node: str, jobs_max: int, lease_ms: int | None) -> None:
        super().__init__(node, jobs_max, lease_ms)
        self.stream = stream

    @property
    def can_take(self) -> bool:
        return not self.stream.is_over and not self.stream.is_stuck()

    def deliver(self, claimed: Claimed) -> None:
        self.stream.send_jobs(claimed)

    def dismissed(self, error: TopicsError) -> None:
        self.stream.finish(self.stream.error(error.status, error.message))

    def paced(self) -> None:
        self.stream.paced()


class WorkStream(EventStream):
    """One open stream."""

    __slots__ = ("_entry_id", "_error_name", "_name", "_stream", "_streams", "_worker", "key")

    def __init__(self, streams: WorkStreams, name: str, key: Key, opening: Opening) -> None:
        super().__init__(streams.wheel)
        self.key = key
        self._name = name
        self._streams = streams
        self._error_name = opening.error_name
        self._stream = opening.start()
        self._entry_id = streams.registry.enter(self, "work", key, opening.peer)

    def begin(self, name: str, worker: Worker) -> None:
        self._worker = worker
        self._open(RETRY + heartbeat(self.wheel.clock.now_ms()))
        self._streams.engine.add_worker(name, worker)

    def check_key(self) -> None:
        if not self.key.permits(CLAIMS, (self._name,)):
            self.unauthorized()

    def followed(self) -> dict[str, int]:
        """The queue, and how many of its jobs nobody works on."""
        queue = self._streams.engine.follow(self._name)
        return {self._name: 0 if queue is None else queue.ready_jobs}

    @property
    def heartbeat_ms(self) -> int:
        return HEARTBEAT_MS

    # --- what the transport says

    def stream_writable(self) -> None:
        self.unblocked()
        self._streams.engine.resume_worker(self._worker)

    # --- frames

    def send_jobs(self, claimed: Claimed) -> None:
        if self.is_over:
            return
        self._streams.jobs_total += len(claimed.texts)
        topic = self._name.encode()
        frames = [
            b'id: %d\nevent: job\ndata: {"topic":"%b",%b\n\n' % (seq, topic, text[1:])
            for (seq, *_), text in zip(claimed.leases, claimed.texts, strict=True)
        ]
        self._write(b"".join(frames))

    def paced(self) -> None:
        advice = self.error(429, "paced under pressure", retry_after_ms=RETRY_AFTER_MS, topics=[self._name])
        self._write(advice)

    def stream_closed(self) -> None:
        if not self.is_over:
            self.is_over = True
            self.wheel.discard(self)
            self._streams.registry.leave(self._entry_id)
            self._streams.engine.remove_worker(self._worker)
            del self._worker  # which refers to this stream
            self._streams.ended(self)
