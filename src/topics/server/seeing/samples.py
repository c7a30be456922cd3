"""Streams of samples: the server's history as it is made, over SSE (OB2).

Owns the frames and the ends of these streams. Must not know: how a stream is opened, how a sample is taken.

A sample's id is its ts, so a client that comes back is sent what it has missed, as far as that is kept. A client that
does not read misses samples; there is no backlog.
"""

from typing import Final

import msgspec

from topics.server.auth import READ, Key
from topics.server.live.outlet import Wheel
from topics.server.live.registry import Registry
from topics.server.live.sse import RETRY, EventStream, Opening
from topics.server.seeing.history import History, Sample
from topics.server.slots import Slots

HEARTBEAT_MS: Final = 15_000
READS: Final = frozenset((READ,))

_encode = msgspec.json.Encoder().encode


def frame_of(sample: Sample) -> bytes:
    return b"id: %d\nevent: sample\ndata: %b\n\n" % (sample.ts, _encode(sample))


class SampleStreams:
    """The streams of samples of one server. What they share is rendered once."""

    def __init__(self, history: History, slots: Slots, wheel: Wheel, registry: Registry) -> None:
        self.wheel = wheel
        self.registry = registry
        self._slots = slots
        self._open: set[SampleStream] = set()
        history.listeners.add(self._sampled)

    def open(self, key: Key, opening: Opening, past: list[Sample]) -> None:
        """Open a stream that begins with samples of the past. Throttled: no slot is free."""
        self._slots.take_stream(key)
        try:
            stream = SampleStream(self, key, opening)
        except BaseException:
            self._slots.give_stream(key)
            raise
        self._open.add(stream)
        stream.begin(past)

    def ended(self, stream: "SampleStream") -> None:
        self._open.discard(stream)
        self._slots.give_stream(stream.key)

    def _sampled(self, sample: Sample) -> None:
        if self._open:
            frame = frame_of(sample)
            for stream in list(self._open):
                stream.send(frame)


class SampleStream(EventStream):
    """One open stream."""

    __slots__ = ("_entry_id", "_error_name", "_stream", "_streams", "key")

    def __init__(self, streams: SampleStreams, key: Key, opening: Opening) -> None:
        super().__init__(streams.wheel)
        self.key = key
        self._streams = streams
        self._error_name = opening.error_name
        self._stream = opening.start()
        self._entry_id = streams.registry.enter(self, "events", key, opening.peer)

    def begin(self, past: list[Sample]) -> None:
        self._open(b"".join((RETRY, *map(frame_of, past))))

    def send(self, frame: bytes) -> None:
        if not self.is_over and not self.is_stuck():
            self._write(frame)

    def check_key(self) -> None:
        if not self.key.permits(READS, ()):
            self.unauthorized()

    def followed(self) -> dict[str, int]:
        """No topics."""
        return {}

    @property
    def heartbeat_ms(self) -> int:
        return HEARTBEAT_MS

    def stream_writable(self) -> None:
        self.unblocked()

    def stream_closed(self) -> None:
        if not self.is_over:
            self.is_over = True
            self.wheel.discard(self)
            self._streams.registry.leave(self._entry_id)
            self._streams.ended(self)
