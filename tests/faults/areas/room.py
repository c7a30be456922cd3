"""Disks that are full or read-only, descriptors that are gone, directories that are removed under the server."""

import errno

from tests.crash.run import finished
from tests.faults.areas.log import later
from tests.faults.case import Area, Play
from tests.faults.disks import Dies
from tests.faults.lab import Lab
from topics.storage.reserve import RESERVE_BYTES
from topics.testing.disk import Capacity, Faulty, MemoryDisk
from topics.testing.space import Space

FULL = Area("Disk full and read-only")
GONE = Area("Descriptors and directories")

BIG = 400_000


class Tight(Capacity):
    """A disk of a size, which counts how often there was no room."""

    failed = 0

    def check(self, disk: Space, more: int) -> None:
        try:
            super().check(disk, more)
        except OSError:
            self.failed += 1
            raise


def used(disk: MemoryDisk) -> int:
    return disk.used_bytes


async def fill_up(lab: Lab, name: str = "fsync") -> None:
    """Write until something is refused."""
    for _ in range(60):
        if not await lab.append(name, bytes_each=BIG):
            return
    raise AssertionError("the disk never became full")


def full_for(name: str) -> Play:
    async def play(lab: Lab) -> None:
        await lab.begin()
        lab.inject(Tight(used(lab.disk) + 4096))
        await fill_up(lab, name)
        await lab.holds()
        assert await lab.delete(name, before=5), "ST16: a delete is refused"
        await lab.holds()
        lab.heal()
        await later(lab)
        assert await lab.append(name, bytes_each=BIG), "the log did not go on"
        await lab.holds()
        await lab.afterwards("kill", "lost")

    return play


for _name in ("fsync", "disk", "memory"):
    FULL.add(
        f"log of {_name} appends",
        f"no room for the next append to the topic {_name}; deletes are taken",
        "G1 G2 G9",
        full_for(_name),
    )


@FULL.case("acks are taken", "the disk is full: jobs can be acked, and new ones are refused", "G9 G11")
async def _(lab: Lab) -> None:
    await lab.begin()
    lab.inject(Tight(used(lab.disk) + 4096))
    await fill_up(lab)
    assert not await lab.append("jobs", bytes_each=BIG)
    assert await lab.ack("jobs", "worker", *lab.told.topics["jobs"].leases), "ST16: an ack is refused"
    await lab.holds()
    await lab.afterwards("kill", "lost")


@FULL.case("topics can be deleted", "the disk is full: a topic is deleted, and its space is given back", "G1 G9")
async def _(lab: Lab) -> None:
    await lab.begin()
    for _ in range(8):
        await lab.append("memory", bytes_each=BIG)
    await lab.checkpoint()
    lab.inject(Tight(used(lab.disk) + 4096))
    await fill_up(lab)
    assert await lab.drop("memory"), "ST16: the deletion of a topic is refused"
    await later(lab)
    await later(lab)
    assert await lab.append("fsync", bytes_each=1000), "no space came back"
    await lab.holds()
    await lab.afterwards("kill", "lost")


def full_checkpoint(pattern: str, kind: str) -> Play:
    """Nothing like this can be written for lack of room."""

    async def play(lab: Lab) -> None:
        await lab.begin()
        lab.inject(Faulty(kind, times=None, error=errno.ENOSPC, name=pattern))  # type: ignore[arg-type]
        await lab.checkpoint()
        await lab.append("fsync")
        await lab.holds()
        await lab.afterwards("kill")
        lab.heal()
        await later(lab)
        assert await lab.append("fsync")
        assert await lab.checkpoint()
        await lab.afterwards("lost", "stop")

    return play


FULL.add("no room for segments", "ENOSPC from every write of a segment", "G1 G6", full_checkpoint("segment-*", "write"))
FULL.add(
    "no room for snapshots", "ENOSPC from every write of a snapshot", "G1 G6", full_checkpoint("snapshot-*", "write")
)
FULL.add("no room for a log", "ENOSPC from every new log file", "G1 G6", full_checkpoint("log-*", "create"))
FULL.add(
    "no room for names", "ENOSPC from every create: the directory cannot grow", "G1 G6", full_checkpoint("*", "create")
)


def starts_full(*, has_reserve: bool, room: int) -> Play:
    """A crash on a full disk: the next server starts and reads; it writes once there is room."""

    async def play(lab: Lab) -> None:
        await lab.begin()
        disk = lab.disk.kill()
        disk.reserved_bytes = RESERVE_BYTES * has_reserve
        tight = Tight(used(disk) + room)
        disk.hooks.append(tight)
        lab.faults.append(tight)
        lab.disk = disk
        await lab.start()
        await lab.holds_restarted()
        assert not await lab.append("fsync", bytes_each=BIG)
        if has_reserve:
            assert await lab.delete("fsync", before=4), "ST16: a delete is refused"
        tight.size += 64 * 1024 * 1024
        await later(lab)
        assert await lab.append("fsync", bytes_each=BIG), "the log did not go on"
        lab.heal()
        await lab.afterwards("kill", "lost")

    return play


FULL.add(
    "start with a reserve",
    "the disk is full at the start, and the reserve is there",
    "G1 G4",
    starts_full(has_reserve=True, room=100),
)
FULL.add(
    "start without a reserve",
    "the disk is full at the start, and the reserve was used up",
    "G1 G4",
    starts_full(has_reserve=False, room=100),
)
FULL.add("start without a byte", "not a byte is free at the start", "G1 G4", starts_full(has_reserve=False, room=0))


@FULL.case("start on a read-only disk", "EROFS from all that the start does; then it is mounted anew", "G1 G4 G15")
async def _(lab: Lab) -> None:
    await lab.begin()
    disk = lab.disk.kill()
    kinds = ("write", "sync", "create", "rename", "remove", "sync_directory")
    for kind in kinds:
        fault = Faulty(kind, times=None, error=errno.EROFS)  # type: ignore[arg-type]
        disk.hooks.append(fault)
        lab.faults.append(fault)
    before = disk.files()
    try:
        await finished(lab.open(disk).start())
    except Exception as refusal:
        assert isinstance(refusal, OSError) or "Read-only" in str(refusal), refusal  # noqa: PT017
    assert disk.files() == before, "a disk that is read-only was changed"
    disk.hooks.clear()
    await lab.recover(disk.kill())


@FULL.case(
    "full, then killed",
    "the disk is full, an append is refused, the process is killed and starts on the full disk",
    "G1 G2 G4",
)
async def _(lab: Lab) -> None:
    await lab.begin()
    lab.inject(Tight(used(lab.disk) + 4096))
    await fill_up(lab)
    await lab.afterwards("kill", heals=False)


# --- descriptors and directories


@GONE.case("none for a fresh log", "a sync fails, and no descriptor is left for the next file (EMFILE)", "G1 G2 G15")
async def _(lab: Lab) -> None:
    await lab.begin()
    lab.inject(Faulty("sync", name="log-*"))
    lab.disk.has_descriptors = False
    assert not await lab.append("fsync", 2)
    killed = lab.disk.kill()
    lab.disk.has_descriptors = True
    await later(lab)
    assert await lab.append("fsync")
    await lab.holds()
    await lab.afterwards("kill", "lost")
    assert killed.files()


@GONE.case("none, and killed", "no descriptor is left, a write is refused, and the process is killed", "G1 G2")
async def _(lab: Lab) -> None:
    await lab.begin()
    lab.inject(Faulty("sync", name="log-*"))
    lab.disk.has_descriptors = False
    assert not await lab.append("fsync", 2)
    await lab.afterwards("kill")


@GONE.case("none for a checkpoint", "no descriptor is left when a checkpoint begins", "G1 G6")
async def _(lab: Lab) -> None:
    await lab.begin()
    lab.disk.has_descriptors = False
    lab.strikes += not await lab.checkpoint()
    lab.disk.has_descriptors = True
    await later(lab)
    assert await lab.append("fsync")
    assert await lab.checkpoint()
    await lab.holds()
    await lab.afterwards("kill", "lost", "stop")


@GONE.case("none for a cold read", "no descriptor is left for a segment that is not in memory", "G2 G15")
async def _(lab: Lab) -> None:
    await lab.begin()
    await lab.checkpoint()
    disk = lab.disk.kill()
    engine = lab.open(disk)
    await finished(engine.start())
    disk.has_descriptors = False
    for name in ("fsync", "disk"):
        try:
            answer = await finished(engine.read(name, limit=1000))
        except Exception as refusal:
            assert isinstance(refusal, OSError) or "descriptor" in str(refusal).lower(), refusal  # noqa: PT017
            lab.strikes += 1
        else:
            written = lab.told.topics[name].written
            assert all(written[record.seq] == bytes(record.data) for record in answer.records)
    disk.has_descriptors = True
    for name in ("fsync", "disk"):
        assert (await finished(engine.read(name, limit=1000))).records
    disk.is_dead = True


@GONE.case("none at the start", "no descriptor is left when the server starts", "G4 G15")
async def _(lab: Lab) -> None:
    await lab.begin()
    disk = lab.disk.kill()
    disk.has_descriptors = False
    before = disk.files()
    try:
        await finished(lab.open(disk).start())
    except Exception:
        lab.strikes += 1
    assert disk.files() == before
    disk.has_descriptors = True
    await lab.recover(disk.kill())


@GONE.case("directory removed", "the data directory is removed while the server runs", "G1 G13 G15")
async def _(lab: Lab) -> None:
    await lab.begin()
    lab.disk.is_removed = True
    lab.strikes += 1
    await lab.tick()
    for name in ("fsync", "disk", "memory"):
        assert not await lab.append(name), "ST14: acked into a directory that is gone"
    assert not await lab.put("new")
    await lab.holds()


@GONE.case("directory removed and back", "the data directory is moved away and back while the server runs", "G1 G2")
async def _(lab: Lab) -> None:
    await lab.begin()
    lab.disk.is_removed = True
    lab.strikes += 1
    await lab.tick()
    assert not await lab.append("fsync")
    lab.disk.is_removed = False
    await later(lab)
    await lab.append("fsync")
    await lab.holds()
    await lab.afterwards("kill", "stop")


@GONE.case("log removed, then stopped", "the log is removed while the server runs; it is stopped gracefully", "G1 G6")
async def _(lab: Lab) -> None:
    await lab.begin()
    lab.disk.remove(max(name for name in lab.disk.names() if name.startswith("log-")))
    lab.strikes += 1
    await lab.tick()
    assert not await lab.append("fsync"), "ST14: acked into a file that is gone"
    await lab.afterwards("stop")


@GONE.case("log removed, then killed", "the log is removed while the server runs; it is killed", "G5 G1")
async def _(lab: Lab) -> None:
    await lab.begin()
    newest = max(name for name in lab.disk.names() if name.startswith("log-"))
    lab.disk.remove(newest)
    lab.strikes += 1
    await lab.tick()
    assert not await lab.append("fsync")
    await lab.refused_at_start(lab.disk.kill(), newest)


@GONE.case(
    "segments removed under it", "all segments are removed while the server runs; it goes on and is killed", "G5 G2"
)
async def _(lab: Lab) -> None:
    await lab.begin()
    await lab.checkpoint()
    for name in [name for name in lab.disk.names() if name.startswith("segment-")]:
        lab.disk.remove(name)
        lab.strikes += 1
    assert await lab.append("fsync")
    await lab.refused_at_start(lab.disk.kill(), "segment-")


@GONE.case("snapshot removed under it", "the snapshots are removed while the server runs; it is killed", "G5 G6")
async def _(lab: Lab) -> None:
    await lab.begin()
    await lab.checkpoint()
    for name in [name for name in lab.disk.names() if name.startswith("snapshot-")]:
        lab.disk.remove(name)
        lab.strikes += 1
    await lab.append("fsync")
    await lab.refused_at_start(lab.disk.kill(), "-0000")


@GONE.case(
    "a crash in the midst of it",
    "no descriptor is left, and the process dies when it marks what failed as void",
    "G1 G2",
)
async def _(lab: Lab) -> None:
    await lab.begin()
    lab.inject(Faulty("sync", name="log-*"))
    lab.inject(Dies("sync", "log-*", 1))
    lab.disk.has_descriptors = False
    await lab.append("fsync", 2)
    lab.disk.has_descriptors = True
    await lab.afterwards("kill")
