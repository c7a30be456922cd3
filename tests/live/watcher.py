"""One SSE connection as the client sees it: bytes in, and whether they are what the contract allows.

Owns the parsing of the answer (HTTP/1.1, chunked), and the cursors that the connection must stand at. Must not know:
sockets, sessions, time.

A connection begins at cursors that its client knows (`start`), or not (a topic that is not in it: then its first
frame says where it stands). From there on each topic must come without a hole: every seq is in a record frame, or in
the range of a tombstone, or is one that may be missing (`load.may_be_missing`); and none comes twice. What breaks
that raises `Broken`.
"""

from base64 import urlsafe_b64decode
from typing import Final

import msgspec

from tests.live.load import RING_CAP, Answer, is_exact, kind, may_be_missing, take_answer

TERMINAL: Final = frozenset((408, 409, 410, 500, 503))
RETRY: Final = b"retry: 2000"


class Broken(Exception):
    """The server has broken the contract."""


class Data(msgspec.Struct):
    n: int


class Record(msgspec.Struct):
    seq: int = msgspec.field(name="$seq")
    data: Data
    node: str | None = msgspec.field(name="$node", default=None)


class RecordFrame(msgspec.Struct):
    topic: str
    records: list[Record]
    from_seq: int
    to_seq: int
    head_seq: int


class Tombstone(msgspec.Struct):
    topic: str
    reason: str
    gap_from: int
    gap_to: int
    earliest_seq: int
    head_seq: int


class CaughtUp(msgspec.Struct):
    topic: str
    head_seq: int


class Error(msgspec.Struct):
    code: int
    error: str
    retry_after_ms: int = 0
    topics: list[str] = []


FRAMES: Final = {
    kind: msgspec.json.Decoder(type_)
    for kind, type_ in {
        b"record": RecordFrame,
        b"tombstone": Tombstone,
        b"caught-up": CaughtUp,
        b"error": Error,
    }.items()
}
_id = msgspec.json.Decoder(dict[str, int])


def positions(event_id: bytes) -> dict[str, int]:
    """The cursors in an id (SS14)."""
    return _id.decode(urlsafe_b64decode(event_id + b"=" * (-len(event_id) % 4)))


class Watcher:
    def __init__(self, topics: frozenset[str], node: str | None, start: dict[str, int]) -> None:
        self.cursors = dict(start)
        self.refusal: Answer | None = None  # the answer, if it is no stream
        self.id = b""  # the last one received
        self.code = 0  # of the error frame that ends the stream
        self.is_ended = False  # in good order
        self.may_have_stalled = False  # for whoever stops reading: the server may have noticed
        self.frames = self.records = self.tombstones = self.advice = 0
        self._topics = topics
        self._node = node
        self._is_open = False
        self._received = bytearray()  # not yet parsed
        self._text = bytearray()  # of the stream, not yet a whole block
        self._is_begun = False  # the retry block was there
        self._seen: set[str] = set()  # topics of which a frame was there
        self._caught_up: set[str] = set()

    def feed(self, data: bytes) -> None:
        self._received += data
        if not self._is_open:
            self._open()
        if self._is_open:
            self._take_chunks()

    def has_all(self, heads: dict[str, int]) -> bool:
        """Whether it was told that it is at these heads, in all its topics."""
        return all(
            self._is_passed(topic, self.cursors.get(topic, -1), heads[topic]) and topic in self._caught_up
            for topic in self._topics
        )

    def __str__(self) -> str:
        opened = "open" if self._is_open else "not open"
        return f"{opened}, {self.frames} frames, {bytes(self._received[:200])!r} and {bytes(self._text[:200])!r} unread"

    # --- the answer

    def _open(self) -> None:
        head_end = self._received.find(b"\r\n\r\n")
        if head_end < 0:
            return
        head = bytes(self._received[:head_end]).lower()
        if not head.startswith(b"http/1.1 200 "):
            self.refusal = take_answer(self._received)
            return
        if (
            b"\r\ncontent-type: text/event-stream; charset=utf-8" not in head
            or b"transfer-encoding: chunked" not in head
        ):
            raise Broken(f"the stream opens with {head!r}")
        del self._received[: head_end + 4]
        self._is_open = True

    def _take_chunks(self) -> None:
        received, at = self._received, 0
        while not self.is_ended and (line_end := received.find(b"\r\n", at)) >= 0:
            size = int(received[at:line_end], 16)
            end = line_end + 2 + size
            if len(received) < end + 2:
                break
            self._text += received[line_end + 2 : end]
            self.is_ended = size == 0
            at = end + 2
        del received[:at]
        self._take_blocks()
        if self.is_ended and (self._text or received):
            raise Broken(f"the stream ends within a frame: {bytes(self._text)!r}, {bytes(received)!r}")

    def _take_blocks(self) -> None:
        end = self._text.rfind(b"\n\n")
        if end >= 0:
            blocks = bytes(self._text[:end]).split(b"\n\n")
            del self._text[: end + 2]
            for block in blocks:
                self._take(block)

    # --- frames

    def _take(self, block: bytes) -> None:
        if self.code:
            raise Broken(f"the stream goes on after error {self.code}: {block!r}")
        if not self._is_begun:
            if block != RETRY:
                raise Broken(f"the stream begins with {block!r}")
            self._is_begun = True
        elif not block.startswith(b": hb "):
            self._take_event(block.split(b"\n"))

    def _take_event(self, lines: list[bytes]) -> None:
        event_id = lines.pop(0).removeprefix(b"id: ") if lines[0].startswith(b"id: ") else b""
        if len(lines) != 2 or not lines[0].startswith(b"event: ") or not lines[1].startswith(b"data: "):
            raise Broken(f"no frame: {lines!r}")
        frame = FRAMES[lines[0][7:]].decode(lines[1][6:])
        self.frames += 1
        if isinstance(frame, Error):
            self._take_error(frame, event_id)
            return
        if frame.topic not in self._topics:
            raise Broken(f"nobody asked for {frame.topic}")
        if isinstance(frame, RecordFrame):
            self._take_records(frame)
        elif isinstance(frame, Tombstone):
            self._take_tombstone(frame)
        else:
            self._take_caught_up(frame)
        self._seen.add(frame.topic)
        self._take_id(event_id, frame.topic)

    def _take_records(self, frame: RecordFrame) -> None:
        topic, node = frame.topic, self._node
        cursor = self.cursors.setdefault(topic, frame.from_seq)
        seqs = [record.seq for record in frame.records]
        stretch = range(cursor + 1, frame.to_seq + 1)
        if is_exact(topic, node):
            is_right = seqs == list(stretch) and frame.from_seq == cursor
        else:
            present = set(seqs)
            is_right = (
                seqs == sorted(present)
                and cursor <= frame.from_seq < seqs[0]
                and seqs[-1] <= frame.to_seq
                and all(seq in present or may_be_missing(topic, node, seq) for seq in stretch)
            )
        if not is_right or frame.to_seq > frame.head_seq:
            raise Broken(f"{topic} stands at {cursor}, and there come {_ranges(seqs)} in {_head(frame)}")
        for record in frame.records:
            if record.data.n != record.seq or (node is not None and record.node == node):
                raise Broken(f"{topic}: {record}, for {node}")
        self.records += len(seqs)
        self.cursors[topic] = frame.to_seq

    def _take_tombstone(self, frame: Tombstone) -> None:
        topic = frame.topic
        cursor = self.cursors.setdefault(topic, frame.gap_from - 1)
        is_true = (
            kind(topic) == "ring"
            and frame.gap_from == cursor + 1 <= frame.gap_to
            and frame.gap_to + 1 == frame.earliest_seq == frame.head_seq - RING_CAP + 1
        )
        reasons = {"cap" if topic in self._seen else "from_seq_too_old"}
        if self.may_have_stalled:
            reasons.add("from_seq_too_old")
        if not is_true or frame.reason not in reasons:
            raise Broken(f"{topic} stands at {cursor}, and there comes {frame}; not {reasons}?")
        self.tombstones += 1
        self.cursors[topic] = frame.gap_to

    def _take_caught_up(self, frame: CaughtUp) -> None:
        cursor = self.cursors.setdefault(frame.topic, frame.head_seq)
        if not self._is_passed(frame.topic, cursor, frame.head_seq) or cursor > frame.head_seq:
            raise Broken(f"{frame.topic} stands at {cursor}, and there comes {frame}")
        self.cursors[frame.topic] = frame.head_seq
        self._caught_up.add(frame.topic)

    def _take_id(self, event_id: bytes, topic: str) -> None:
        """The id is where the frame ends, and where all other topics stand."""
        told = positions(event_id)
        if told.keys() != self._topics or told[topic] != self.cursors[topic]:
            raise Broken(f"{topic} stands at {self.cursors[topic]}, and the id says {told}")
        for other, cursor in told.items():
            known = self.cursors.get(other)
            if known is not None and (cursor < known or not self._is_passed(other, known, cursor)):
                raise Broken(f"{other} stands at {known}, and the id of a frame of {topic} says {told}")
            self.cursors[other] = cursor
        self.id = event_id

    def _take_error(self, frame: Error, event_id: bytes) -> None:
        if event_id:
            raise Broken(f"{frame} has an id")
        if frame.code in TERMINAL:
            self.code = frame.code
        elif frame.code == 429:
            self.advice += 1
        else:
            raise Broken(f"{frame} is not known")

    def _is_passed(self, topic: str, cursor: int, seq: int) -> bool:
        """Whether everything in (cursor, seq] may be missing."""
        return cursor >= seq or (
            not is_exact(topic, self._node)
            and cursor >= 0
            and all(may_be_missing(topic, self._node, missing) for missing in range(cursor + 1, seq + 1))
        )


def _head(frame: RecordFrame) -> str:
    return f"from_seq {frame.from_seq}, to_seq {frame.to_seq}, head_seq {frame.head_seq}"


def _ranges(seqs: list[int]) -> str:
    """`1-5, 7` for messages."""
    ranges: list[list[int]] = []
    for seq in seqs:
        if ranges and ranges[-1][1] == seq - 1:
            ranges[-1][1] = seq
        else:
            ranges.append([seq, seq])
    return ", ".join(f"{first}-{last}" if first < last else str(first) for first, last in ranges)
