"""An instance in numbers, for metrics, probes and history: what it holds, what goes through it, its room on disk."""

from collections import Counter

from msgspec.structs import replace

from topics.engine.answers import InstanceCounters
from topics.engine.ledger import Ledger
from topics.storage.disk import Disk


class Figures:
    """The numbers of one instance."""

    def __init__(self, ledger: Ledger, disk: Disk) -> None:
        self._ledger = ledger
        self._disk = disk

    @property
    def topic_count(self) -> int:
        """How many topics there are."""
        return len(self._ledger.state.topics)

    def counters(self) -> InstanceCounters:
        """What the metrics show of the whole: what there is now, and what the log has done since the start."""
        state = self._ledger.state
        by_class: Counter[str] = Counter(topic.config.durability for topic in state.topics.values())
        queues = [topic for topic in state.topics.values() if topic.is_queue]
        for topic in queues:
            self._ledger.pass_time(topic)
        leases = sum(len(topic.queue.leases) for topic in queues)
        wal = self._ledger.wal
        return InstanceCounters(
            len(state.topics),
            by_class,
            len(state.routers),
            state.records,
            state.bytes,
            len(queues),
            leases,
            replace(wal.counters, fsync_buckets=[*wal.counters.fsync_buckets]),
            wal.queue_depth,
            wal.is_read_only,
        )

    def flows(self) -> tuple[int, int, int]:
        """How many records were written, handed out and, by whatever reason, lost so far.

        The numbers grow; they fall only when the log failed and was read back.
        """
        state = self._ledger.state
        return state.written, self._ledger.read_total, state.lost

    def disk_room(self) -> tuple[int | None, int | None]:
        """What the disk has room for, and how large it is; None: it does not say."""
        try:
            return self._disk.free_bytes, self._disk.total_bytes
        except OSError:
            return None, None

    def count_full(self) -> None:
        """A write had to wait because the server is at its limit; for the metrics."""
        self._ledger.wal.counters.full_total += 1
