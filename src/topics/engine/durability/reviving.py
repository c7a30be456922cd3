"""Makes a data directory of what a backup holds: recovers it once, and says in its log what a restore changes.

Whoever read from the source may have seen more than the backup has: seqs that the restored topics will hand out again,
for other records. So every topic gets an epoch that it has never had, neither at the source nor by another restore: a
random leap ahead of all numbers in use. With the epochs kept, a topic that hands out seqs ahead of a sync announces
what it had reserved as lost, as after a power loss, unless the source was stopped gracefully.
"""

from topics.clock import Clock
from topics.core import entries
from topics.core.apply import apply
from topics.core.entries import AnyEntry, EpochRaised
from topics.core.state import State
from topics.engine.durability.catalogue import Catalogue
from topics.errors import Damaged
from topics.storage.disk import Disk
from topics.storage.wal import Wal


def revive(disk: Disk, clock: Clock, *, leap: int) -> State:
    """Recover the directory and begin a log file with what changes; epochs rise above `leap` more than any, 0: not.

    Blocking, and as damaged as the files are: a refusal is that of a start.
    """
    catalogue, wal = Catalogue(disk), Wal(disk, clock)
    recovery = catalogue.load()
    for _ in recovery.replay():
        pass
    if recovery.missing_log:
        raise Damaged(f"{disk.path}/{recovery.missing_log}", 0, "this log file is missing")
    state = recovery.state
    state.next_id += leap
    changes: list[AnyEntry] = recovery.announce_losses(clock.now_ms(), has_lost_power=not leap)
    if leap:
        raised = [EpochRaised(topic.id, epoch) for epoch, topic in enumerate(state.topics.values(), state.next_id)]
        for entry in raised:
            apply(state, entry)
        changes += raised
    recovery.log.repair()
    wal.begin(recovery.log.next_number, entries.encode(changes, clock.now_ms()), recovery.log.end)
    catalogue.announce_log(wal.number)
    wal.close()
    return state
