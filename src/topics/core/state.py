"""The state: everything an instance of topics knows, and nothing that changes it.

`apply` (see apply.py) is the only function that changes what is logged here; `decide` reads it. Pure: no clock, no I/O.

The state is that of the end of the log. What of it may be shown to anyone is the engine's business (its gate).
"""

from itertools import islice, takewhile
from typing import NamedTuple

from topics.core.memory import of_key
from topics.core.queue.jobs import Queue
from topics.core.rates import Pace
from topics.core.routing.copies import HopRun, SkippedAppends, Stamps
from topics.core.routing.table import Routers
from topics.core.topic.log import Log
from topics.core.topic.reservation import Reservation, is_reserving
from topics.model import TopicConfig

KEYS_MAX = 1_000_000  # idempotency keys remembered per topic


class KeyedWrite(NamedTuple):
    """Where a keyed write went, and when, and the digest of its records; 0 = not known."""

    first: int
    last: int
    ts: int
    digest: int = 0

    def differs(self, digest: int) -> bool:
        """Whether the records of another write under the key are others. What is not known matches anything."""
        return self.digest != digest and self.digest != 0 and digest != 0


class NamedCursor(NamedTuple):
    """How far a reader says it has come in a topic, and when it said so (NC1)."""

    seq: int
    ts: int


class Keys:
    """A topic's idempotency keys, oldest first."""

    __slots__ = ("_writes", "fresh", "weight")

    def __init__(self) -> None:
        self._writes: dict[str, KeyedWrite] = {}
        self.fresh: list[str] = []  # keys that no snapshot has yet
        self.weight = 0  # what they weigh in memory

    def __len__(self) -> int:
        return len(self._writes)

    def find(self, key: str, window_ms: int, now: int) -> KeyedWrite | None:
        """The first write under `key`, if it is still remembered."""
        written = self._writes.get(key)
        return written if written is not None and window_ms and now - written.ts <= window_ms else None

    def add(self, key: str, written: KeyedWrite, window_ms: int) -> None:
        if not window_ms:
            return
        if self._writes.pop(key, None) is None:
            self.weight += of_key(key)
        self._writes[key] = written
        self.fresh.append(key)
        while len(self._writes) > KEYS_MAX or written.ts - next(iter(self._writes.values())).ts > window_ms:
            self.drop_oldest(1)

    def count_old(self, window_ms: int, now: int, count_max: int) -> int:
        """How many of the oldest keys have a window that is over, counted up to `count_max`."""
        oldest = islice(self._writes.values(), count_max)
        return sum(1 for _ in takewhile(lambda written: now - written.ts > window_ms, oldest))

    def drop_oldest(self, count: int) -> None:
        for key in list(islice(self._writes, count)):
            del self._writes[key]
            self.weight -= of_key(key)

    def restore(self, key: str, written: KeyedWrite) -> None:
        if self._writes.pop(key, None) is None:
            self.weight += of_key(key)
        self._writes[key] = written

    def redump(self) -> None:
        """Take all keys as not dumped yet."""
        self.fresh = list(self._writes)

    def take_fresh(self) -> list[tuple[str, KeyedWrite]]:
        """The keys that no snapshot has yet; they count as dumped from now on."""
        fresh, self.fresh = self.fresh, []
        return [(key, self._writes[key]) for key in fresh if key in self._writes]


class Notes:
    """What the engine notes about a topic beside what is logged. Nothing of it is in a snapshot."""

    __slots__ = (
        "_read_due",
        "_read_pace",
        "has_unflagged",
        "key_blocks",
        "last_read_ms",
        "read_total",
        "snapshot_position",
        "synced_at",
        "written_at",
    )

    def __init__(self) -> None:
        self.written_at = 0  # below this log position all must be written before the topic may be shown
        self.synced_at = 0  # and below this one synced
        self.last_read_ms: int | None = None
        self.has_unflagged = False  # rows of segments are dead and not flagged so in their files
        self.key_blocks: list[tuple[int, int]] = []  # snapshot items that hold idempotency keys: number, newest ts
        self.snapshot_position = 0  # entries below this log position are in the snapshot that recovery started from
        self.read_total = 0  # records handed out since the start
        self._read_pace: Pace | None = None
        self._read_due = 0  # when the next sample of that total is to be taken

    def take_over(self, before: "Notes") -> None:
        """Go on with what was noted of readers before the state was read back."""
        self.last_read_ms, self.read_total = before.last_read_ms, before.read_total
        self._read_pace, self._read_due = before._read_pace, before._read_due

    def count_read(self, count: int, now: int) -> None:
        """`count` records are handed out."""
        if now >= self._read_due:
            if self._read_pace is None:
                self._read_pace = Pace()
            self._read_due = self._read_pace.sample(now, self.read_total)
        self.read_total += count

    def read_lately(self, now: int) -> int:
        """How many records were handed out in the last minute."""
        return 0 if self._read_pace is None else self._read_pace.grown(now, self.read_total)


class Topic:
    """One topic instance."""

    __slots__ = (
        "_queue",
        "config",
        "cursors",
        "epoch",
        "hops",
        "id",
        "keys",
        "log",
        "name",
        "notes",
        "paused",
        "referable_after",
        "reservation",
        "stamps",
        "weight",
    )

    def __init__(self, id: int, name: str, epoch: int, config: TopicConfig) -> None:
        self.id = id
        self.name = name
        self.epoch = epoch
        self.config = config
        self.log = Log()
        self.keys = Keys()
        self.cursors: dict[str, NamedCursor] = {}
        self._queue: Queue | None = None
        self.paused = False  # a queue that hands out no jobs for now
        self.reservation = Reservation()
        self.notes = Notes()
        # Of routers: copies that not all routers out of this topic have passed; what exactly_once has copied here.
        self.hops: list[HopRun] = []
        self.stamps = Stamps()
        self.referable_after = 0  # records above this seq lie in the log, if this topic is logged
        self.weight = 0  # what it weighed in memory when it last changed (see memory.py)

    @property
    def queue(self) -> Queue:
        """Its jobs. There may be 100,000 topics that have none: the object is made when somebody asks for it."""
        if self._queue is None:
            self._queue = Queue(self.config)
        return self._queue

    @queue.setter
    def queue(self, queue: Queue | None) -> None:
        self._queue = queue

    @property
    def has_queue(self) -> bool:
        """Whether anybody has asked for the jobs."""
        return self._queue is not None

    @property
    def is_logged(self) -> bool:
        return self.config.durability != "ephemeral"

    @property
    def is_queue(self) -> bool:
        return self.config.type == "queue"

    @property
    def keeps_leases(self) -> bool:
        """Whether leases are logged."""
        return self.config.leases_durable and self.config.durability != "ephemeral"

    @property
    def reserves(self) -> bool:
        """Whether seqs are handed out ahead of a sync."""
        return is_reserving(self.config)

    @property
    def last_write_ts(self) -> int | None:
        return self.log.last_write_ts or None


class State:
    """Everything an instance of topics knows."""

    def __init__(self) -> None:
        self.topics: dict[str, Topic] = {}
        self.by_id: dict[int, Topic] = {}
        self.routers = Routers()
        self.next_id = 1  # of topic instances and routers; epochs come from here, too
        self.records = 0  # live records of all topics
        self.bytes = 0  # and their sizes
        self.memory = 0  # what the topics weigh in memory (see memory.py) …
        self.memory_beside = 0  # … and what others hold that counts against the same limit
        self.keyed: dict[int, Topic] = {}  # topics that have idempotency keys
        self.written = 0  # records appended since this state was made, replayed ones included …
        self.lost = 0  # … and seqs lost, by whatever reason
        self.gone = 0  # topics deleted since this state was made
        self.names_at = 0  # of the gate: the position at which a topic last came or went
        self.unsaved: dict[int, Topic] = {}  # topics changed, or gone, since they were last dumped
        self.unsaved_routers: dict[str, None] = {}
        self.changing: set[int] = set()  # topics with a change in the log that is not applied yet; ephemeral ones
        self.expiring: dict[int, Topic] = {}  # topics whose records have a lifetime
        self.shrunk: dict[int, Topic] = {}  # topics that may have dropped parts whose memory can be given back
        self.skipped_appends: SkippedAppends = {}  # during replay: what the state does not need, but copies may
        self.headless: set[int] = set()  # during replay: topics that left the class ephemeral; their head is not known

    def count_records(self) -> None:
        """Recount live records and their sizes."""
        self.records = sum(topic.log.count for topic in self.topics.values())
        self.bytes = sum(topic.log.bytes for topic in self.topics.values())

    def index_expiry(self, topic: Topic) -> None:
        """Note whether the records of a topic that came or changed have a lifetime."""
        if topic.config.ttl_ms:
            self.expiring[topic.id] = topic
        else:
            self.expiring.pop(topic.id, None)
