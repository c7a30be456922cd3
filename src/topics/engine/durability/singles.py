"""Replay of single records: those of a log are taken as they lie there, many at a time.

A record that was written alone has a frame of its own. To read that as any other frame, decode its entry and apply it
takes five times as long as what is done here: frame and entry are looked at by one call, and the records of a topic
are gathered and added to its log together. The state that follows is the same (`tests/core/test_log.py`,
`tests/engine/test_singles.py`).

Only what is plain is taken: one record, without key, digest and delay, right behind the last one of a topic that is to
get it. At anything else, valid or not, this stops; the general way says what it is. What was gathered must be applied
before that (`apply`): only appends to different topics may change places.
"""

from struct import Struct as Layout

from xxhash import xxh3_64_intdigest

from topics.core.apply import replay_singles
from topics.core.entries import HAS_TAGS, KIND_APPENDED, PLAIN_BYTES, PLAIN_FORMAT
from topics.core.state import State, Topic
from topics.storage import frames
from topics.storage.frames import FRAME_MAGIC, FRAME_OVERHEAD_BYTES
from topics.storage.log_files import Stretch

STRETCH_BYTES = 256 * 1024  # of the log taken before others get their turn
GATHERED_BYTES_MAX = 4 * 1024 * 1024
WORTHWHILE = 4  # records in a row; behind fewer, so many frames are let pass, and ever more …
PAUSE_MAX = 256  # … up to this

_HEAD = Layout(frames.FRAME_FORMAT + PLAIN_FORMAT)
_ENTRY_HEAD_BYTES = 5  # kind and length of an entry


class Gathered:
    """Records of one topic that are not applied yet."""

    __slots__ = ("bodies", "first", "flags", "sizes", "timestamps", "topic")

    def __init__(self, topic: Topic, flags: int) -> None:
        self.topic = topic
        self.flags = flags
        self.first = topic.log.head + 1
        self.bodies: list[bytes] = []
        self.sizes: list[int] = []
        self.timestamps: list[int] = []


class Singles:
    """Takes plain records out of a log for the state that it is replayed into."""

    def __init__(self, state: State) -> None:
        self._state = state
        self._gathered: dict[int, Gathered] = {}  # by topic
        self._gathered_bytes = 0
        self._let_pass = 0  # so many frames are left to the general way …
        self._pause = 0  # … after the last stretch, which was not worth it

    def take(self, data: bytes, number: int, start: int, limit: int) -> Stretch | None:
        """Gather what is plain from offset `start` of a log file on, up to `limit`."""
        if self._let_pass:
            self._let_pass -= 1
            return None
        if start + _HEAD.size > limit or data[start + FRAME_OVERHEAD_BYTES] != KIND_APPENDED:
            return None
        base, offset, count, synced, seeded, seed = frames.position_of(number, 0), start, 0, -1, -1, 0
        stop = min(limit - _HEAD.size, start + STRETCH_BYTES)
        unpack, gathered, topic, flags, expected = _HEAD.unpack_from, self._gathered, -1, 0, 0
        while offset <= stop:
            head = unpack(data, offset)
            magic, size, says, checksum, kind, length, to, seq, ts, records, has, key_bytes, record_bytes = head
            if to != topic or has != flags:
                one = gathered.get(to)
                if one is None or one.flags != has:
                    one = self._begin(to, has, base | offset)
                    if one is None:
                        break
                topic, flags, bodies, sizes, timestamps = to, has, one.bodies, one.sizes, one.timestamps
                expected = one.first + len(bodies)
            end = offset + FRAME_OVERHEAD_BYTES + size
            if (
                seq != expected
                or records != 1
                or kind != KIND_APPENDED
                or magic != FRAME_MAGIC
                or length != size - _ENTRY_HEAD_BYTES
                or key_bytes
                or end > limit
                or record_bytes > size - PLAIN_BYTES
            ):
                break
            if says != seeded:
                seeded, seed = says, frames.seed_of(0, says)
            payload = data[offset + FRAME_OVERHEAD_BYTES : end]
            if xxh3_64_intdigest(payload, (base | offset) ^ seed) != checksum:
                break
            bodies.append(payload[PLAIN_BYTES:])
            sizes.append(record_bytes)
            timestamps.append(ts)
            expected += 1
            count += 1
            offset, synced = end, says
        if not count:
            return None
        self._pause = 0 if count >= WORTHWHILE else min(2 * self._pause or WORTHWHILE, PAUSE_MAX)
        self._let_pass = self._pause
        self._gathered_bytes += offset - start
        if self._gathered_bytes > GATHERED_BYTES_MAX:
            self.apply()
        return Stretch(offset, synced, count)

    def _begin(self, topic_id: int, flags: int, position: int) -> Gathered | None:
        """Gather a topic's records that have these flags from here on; None: they are to be taken one by one."""
        if topic_id in self._gathered:
            self._apply(self._gathered.pop(topic_id))
        topic = self._state.by_id.get(topic_id)
        if topic is None or position < topic.notes.snapshot_position or self._state.headless or flags & ~HAS_TAGS:
            return None
        gathered = self._gathered[topic_id] = Gathered(topic, flags)
        return gathered

    def apply(self) -> None:
        """Apply what is gathered."""
        if self._gathered:
            for one in self._gathered.values():
                self._apply(one)
            self._gathered = {}
            self._gathered_bytes = 0

    def _apply(self, one: Gathered) -> None:
        if one.bodies:
            replay_singles(self._state, one.topic, one.bodies, one.sizes, one.timestamps, bool(one.flags))
