"""A watch: frames out of bytes, sessions, and how to go on after a stream breaks. Knows no socket.

`Watch.steps` is a generator: it asks for operations, streams and pauses, which a watcher carries out, and emits
events. Invariant: `positions` and `epochs` lie behind the last event emitted; a watch that starts from them misses
nothing silently. A session remembers which instance of a topic it reads. When the session is lost and replaced, this
module compares the epochs and announces a topic that was deleted and created again as `recreated` (TM11). A server
that still knows how to make the session anew does so from the last id, which has the epochs, and the options in the
URL of the stream (SS27).
"""

from base64 import urlsafe_b64decode
from collections.abc import Callable, Generator, Iterator, Mapping
from typing import Any, Final
from urllib.parse import urlencode

import msgspec
from msgspec import Struct

from topics.client.errors import ClientError, NotFound, UnexpectedAnswer, WatchEnded
from topics.client.protocol import operations
from topics.client.protocol.http_parser import Request
from topics.client.protocol.operations import Operation
from topics.client.results import CaughtUp, Lost, Records, TopicGone, WatchedTopic, WatchEvent, WatchSession

SILENCE_SPARE_MS: Final = 5_000  # beyond two heartbeats
REPLACED: Final = 409
GONE: Final = 410


class SseFrame(Struct, frozen=True):
    event: str
    data: bytes
    id: str


class SseReader:
    """Cuts an event stream into frames. Skips comments, and all fields but event, id and data."""

    def __init__(self) -> None:
        self._pending: list[bytes] = []
        self._event, self._id = "", ""
        self._data: list[bytes] = []

    def feed(self, part: bytes) -> Iterator[SseFrame]:
        end = part.rfind(b"\n") + 1
        if not end:
            self._pending.append(part)
            return
        lines = b"".join((*self._pending, part[:end])).split(b"\n")
        self._pending = [part[end:]]
        for line in lines[:-1]:
            if frame := self._line(line.removesuffix(b"\r")):
                yield frame

    def _line(self, line: bytes) -> SseFrame | None:
        if not line:
            frame = SseFrame(self._event, b"\n".join(self._data), self._id) if self._data else None
            self._event, self._id, self._data = "", "", []
            return frame
        name, _, value = line.partition(b":")
        value = value.removeprefix(b" ")
        if name == b"data":
            self._data.append(value)
        elif name == b"event":
            self._event = value.decode("utf-8", "replace")
        elif name == b"id":
            self._id = value.decode("latin-1")
        return None


class StreamError(Struct, frozen=True):
    """The body of an `error` frame."""

    code: int
    error: str = ""
    retry_after_ms: int | None = None


EVENTS: Final[dict[str, type[WatchEvent]]] = {
    "record": Records,
    "tombstone": Lost,
    "caught-up": CaughtUp,
    "topic-deleted": TopicGone,
}


class Ask(Struct, frozen=True):
    """Run this operation and send its result back."""

    operation: Operation[WatchSession]


class Open(Struct, frozen=True):
    """Open this stream, and close the one before."""

    request: Request


class Read(Struct, frozen=True):
    """Read on in the stream, waiting so long at most. Send back what came; nothing at the end."""

    seconds: float


class Rest(Struct, frozen=True):
    seconds: float


class Emit(Struct, frozen=True):
    event: WatchEvent


Step = Ask | Open | Read | Rest | Emit


class Watch:
    """What is watched, and how far."""

    def __init__(
        self,
        topics: Mapping[str, int | None],
        epochs: Mapping[str, int] | None,
        options: Mapping[str, Any],
        *,
        lenient: bool,
        heartbeat_ms: int,
        retries: int,
        wait_s: Callable[[int], float],
    ) -> None:
        self.positions = dict(topics)  # None: the head at the time the session is made
        self.epochs = dict(epochs or {})
        self._options = dict(options) | {"heartbeat_ms": heartbeat_ms}
        self._query = _query(self._options)
        self._lenient = lenient
        self._silence_s = (2 * heartbeat_ms + SILENCE_SPARE_MS) / 1000
        self._retries = retries
        self._wait_s = wait_s  # before the nth try in a row
        self._wid: str | None = None
        self._id = ""  # of the last frame
        self._failures = 0  # in a row, without an event between them

    def steps(self) -> Generator[Step, Any, None]:
        """Run until every topic is gone. If a step fails, its error is thrown in at the step."""
        while self.positions:
            if self._wid is None:
                yield from self._make_session()
                continue
            try:
                yield Open(self._stream_request())
            except NotFound:
                self._wid = None
                continue
            yield from self._follow()

    def _make_session(self) -> Generator[Step, Any, None]:
        topics = {name: {"tail": True} if seq is None else {"from_seq": seq} for name, seq in self.positions.items()}
        session: WatchSession = yield Ask(
            operations.watch({**self._options, "topics": topics}, lenient=self._lenient or bool(self.epochs))
        )
        for name in [name for name in self.positions if name not in session.topics]:
            last = self.positions.pop(name)
            self.epochs.pop(name, None)
            yield Emit(TopicGone(name, last or 0))
        is_current = True
        for name, shown in session.topics.items():
            if self.epochs.setdefault(name, shown.epoch) != shown.epoch:
                self.epochs[name], self.positions[name] = shown.epoch, shown.earliest_seq - 1
                yield Emit(recreated(name, shown))
                is_current = False
            elif self.positions[name] is None:
                self.positions[name] = shown.from_seq
        if is_current:
            self._wid, self._id = session.wid, ""

    def _stream_request(self) -> Request:
        headers: tuple[tuple[str, str], ...] = (("accept", "text/event-stream"),)
        if self._id:
            headers += (("last-event-id", self._id),)
        return Request("GET", f"/v0/watch/{self._wid}?{self._query}", headers=headers)

    def _follow(self) -> Generator[Step, Any, None]:
        """Read one stream to its end."""
        frames = SseReader()
        wait_s = 0.0
        while True:
            try:
                parts = yield Read(self._silence_s)
            except UnexpectedAnswer:
                raise
            except ClientError:
                if self._failures >= self._retries:
                    raise
                break
            if not parts:
                break
            for frame in [frame for part in parts for frame in frames.feed(part)]:
                if frame.event == "error":
                    wait_s = max(wait_s, self._error(frame))
                elif kind := EVENTS.get(frame.event):
                    event = self._decoded(frame, kind)
                    self._moved(event, frame.id)
                    yield Emit(event)
        if self.positions:
            wait_s = max(wait_s, self._wait_s(self._failures) if self._failures else 0.0)
            if self._failures > self._retries:
                raise self._ended("its stream keeps ending at once")
            self._failures += 1
            if wait_s:
                yield Rest(wait_s)

    def _error(self, frame: SseFrame) -> float:
        """How many seconds to wait after an error frame. 429 is only advice; any other code ends the stream."""
        error: StreamError = self._decoded(frame, StreamError)
        if error.code == REPLACED:
            raise self._ended(f"{error.code} {error.error}")
        if error.code == GONE:
            self._wid = None
        return 0.0 if error.code == 429 else (error.retry_after_ms or 0) / 1000

    def _decoded(self, frame: SseFrame, kind: Any) -> Any:
        try:
            return msgspec.json.decode(frame.data, type=kind)
        except (msgspec.MsgspecError, UnicodeDecodeError) as error:
            path = f"/v0/watch/{self._wid}"
            raise UnexpectedAnswer(
                f"a frame {frame.event!r} cannot be read: {error}", method="GET", path=path
            ) from None

    def _moved(self, event: WatchEvent, id: str) -> None:
        self._failures = 0
        self._id = id or self._id
        if isinstance(event, TopicGone):
            self.positions.pop(event.topic, None)
            self.epochs.pop(event.topic, None)
        elif isinstance(event, Records):
            self.positions[event.topic] = event.to_seq
        elif isinstance(event, Lost):
            self.positions[event.topic] = event.earliest_seq - 1
            if event.reason == "recreated":  # the next session tells the epoch of the new instance
                self.epochs.pop(event.topic, None)
        for topic, seq in seqs_of(id).items():
            if topic in self.positions:
                self.positions[topic] = seq

    def _ended(self, how: str) -> WatchEnded:
        return WatchEnded(f"the watch has ended: {how}", method="GET", path=f"/v0/watch/{self._wid}")


def recreated(topic: str, shown: WatchedTopic) -> Lost:
    return Lost(
        topic=topic,
        reason="recreated",
        gap_from=1,
        gap_to=shown.head_seq,
        earliest_seq=shown.earliest_seq,
        head_seq=shown.head_seq,
    )


def seqs_of(id: str) -> dict[str, int]:
    """The positions that a frame's id holds, by topic (SS14); an opaque id holds none."""
    try:
        positions = msgspec.json.decode(urlsafe_b64decode(id + "=" * (-len(id) % 4)), type=dict[str, Any])
    except (ValueError, msgspec.MsgspecError):
        return {}
    return {topic: seq for topic, seq in positions.items() if isinstance(seq, int)}


def _query(options: Mapping[str, Any]) -> str:
    """The options of a session as the query of its stream, for a server that has to make the session anew."""
    fields: dict[str, Any] = {"epochs": "true"}
    for name, value in options.items():
        if name == "filter":
            fields[name] = msgspec.json.encode(["tag", "Eq", value] if isinstance(value, str) else value).decode()
        else:
            fields[name] = str(value).lower() if isinstance(value, bool) else value
    return urlencode(fields, doseq=True)
