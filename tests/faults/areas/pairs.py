"""Two faults in a row: the second one meets a server, or a directory, that has just had the first."""

import asyncio
import random
from collections.abc import Callable

from tests.crash.run import finished
from tests.faults.areas.damage import base_of, log_of
from tests.faults.areas.log import held, later
from tests.faults.areas.room import Tight, fill_up, used
from tests.faults.case import Area, Play
from tests.faults.disks import Dies, flipped, only_later
from tests.faults.lab import Lab
from topics.testing.clock import ManualClock
from topics.testing.disk import Faulty, Hook

PAIRS = Area("Two faults in a row")
LOGS = "log-*"


def then(first: Callable[[], Hook], second: Callable[[], Hook], *ends: str) -> Play:
    """An append meets the first fault, the next one the second; then the disk works again."""

    async def play(lab: Lab) -> None:
        await lab.begin()
        for fault in (first, second):
            lab.inject(fault())
            await lab.append("fsync", 2)
            if lab.disk.is_dead:
                break
            await lab.append("disk")
        if not lab.disk.is_dead:
            await lab.holds()
            lab.heal()
            await later(lab)
            assert await lab.append("fsync")
            await lab.holds()
        await lab.afterwards(*ends)  # type: ignore[arg-type]

    return play


WRITE: Callable[[], Hook] = lambda: Faulty("write", name=LOGS)  # noqa: E731
SHORT: Callable[[], Hook] = lambda: Faulty("write", name=LOGS, part=10)  # noqa: E731
SYNC: Callable[[], Hook] = lambda: Faulty("sync", name=LOGS)  # noqa: E731
DEATH: Callable[[], Hook] = lambda: Dies("write", LOGS, part=15)  # noqa: E731

PAIRS.add(
    "write, then sync",
    "a write of the log fails, and the first sync of the fresh file",
    "G1 G2",
    then(WRITE, SYNC, "kill", "lost"),
)
PAIRS.add(
    "sync, then short write",
    "a sync fails, then the fresh file takes ten bytes of a frame",
    "G1 G2 G5",
    then(SYNC, SHORT, "kill", "lost"),
)
PAIRS.add(
    "short write, then death",
    "a short write, then the process dies in the next frame",
    "G1 G2 G5",
    then(SHORT, DEATH, "kill", "lost", "torn"),
)
PAIRS.add(
    "sync, then death",
    "a sync fails, then the process dies in the next frame",
    "G1 G2 G5",
    then(SYNC, DEATH, "kill", "lost", "torn"),
)


@PAIRS.case("log, then checkpoint", "a sync of the log fails, then a checkpoint", "G1 G6")
async def _(lab: Lab) -> None:
    await lab.begin()
    lab.inject(SYNC())
    assert not await lab.append("fsync")
    lab.inject(Faulty("write", name="segment-*"))
    await lab.checkpoint()
    await lab.holds()
    lab.heal()
    assert await lab.checkpoint()
    await lab.afterwards("kill", "lost", "stop")


@PAIRS.case("checkpoint, then log", "a checkpoint fails when it renames, then a sync of the log", "G1 G2 G6")
async def _(lab: Lab) -> None:
    await lab.begin()
    lab.inject(Faulty("rename", name="snapshot-*", at=1))
    await lab.checkpoint()
    lab.inject(SYNC())
    assert not await lab.append("fsync", 2)
    await lab.holds()
    await lab.afterwards("kill", "lost", "stop")


@PAIRS.case("log in the midst of a checkpoint", "a sync of the log fails while a checkpoint is under way", "G1 G2 G6")
async def _(lab: Lab) -> None:
    await lab.begin()
    lab.inject(Faulty("sync", 3, name=LOGS))
    await asyncio.gather(lab.checkpoint(), *(lab.append("fsync", 2) for _ in range(4)), lab.append("disk", 2))
    for _ in range(3):
        await lab.append("fsync")
    await lab.holds()
    await lab.afterwards("kill", "lost")


@PAIRS.case(
    "log, then death in a checkpoint", "a sync fails, and the process dies in the checkpoint after it", "G1 G2 G6"
)
async def _(lab: Lab) -> None:
    await lab.begin()
    lab.inject(SYNC())
    assert not await lab.append("fsync")
    lab.inject(Dies("sync_directory", "", 1))
    await lab.checkpoint()
    await lab.afterwards()


@PAIRS.case("power, then rot", "power is lost, the server recovers; then a bit of its log rots", "G5 G1")
async def _(lab: Lab) -> None:
    await lab.begin()
    await lab.append("disk", 3)
    disk = lab.disk.power_loss("torn")
    async with lab.running(disk, ManualClock(lab.clock.now_ms())) as engine:
        for number in range(4):
            await engine.append("fsync", [{"data": f"more {number}"}])
        left = disk.kill()
    name = log_of(left)
    end = len(left.files()[name].rstrip(b"\0"))
    hurt = flipped(left, name, end - 60)
    hurt.boot_id = left.boot_id
    lab.strikes += 1
    await lab.refused_at_start(hurt, name)


@PAIRS.case("rot, then a kill", "a snapshot rots under a running server that checkpoints on, and is killed", "G5 G6")
async def _(lab: Lab) -> None:
    await lab.begin()
    name = base_of(lab.disk)
    file = lab.disk.open(name)
    byte = file.read(30, 1)
    file.write(30, bytes([byte[0] ^ 0x10]))
    lab.strikes += 1
    await lab.append("fsync", 2)
    await lab.checkpoint()
    await lab.holds()
    await lab.refused_at_start(lab.disk.kill(), name)


@PAIRS.case("full, then a failed sync", "the disk is full, then a sync of the log fails", "G1 G2")
async def _(lab: Lab) -> None:
    await lab.begin()
    lab.inject(Tight(used(lab.disk) + 4096))
    await fill_up(lab)
    lab.inject(SYNC())
    await lab.delete("fsync", before=4)
    await lab.append("fsync")
    await lab.holds()
    lab.heal()
    await later(lab)
    await later(lab)
    assert await lab.append("fsync")
    await lab.holds()
    await lab.afterwards("kill", "lost")


@PAIRS.case("full, then power", "the disk is full, a delete is taken, and the power goes", "G1 G9 G10")
async def _(lab: Lab) -> None:
    await lab.begin()
    lab.inject(Tight(used(lab.disk) + 4096))
    await fill_up(lab)
    await lab.delete("fsync", before=4)
    await lab.afterwards("lost", "torn", "kept")


@PAIRS.case("descriptors, then power", "no descriptor for a fresh log, and then the power goes", "G1 G2")
async def _(lab: Lab) -> None:
    await lab.begin()
    lab.inject(SYNC())
    lab.disk.has_descriptors = False
    assert not await lab.append("fsync", 2)
    for seed in range(3):
        await lab.recover(lab.disk.power_loss(random.Random(seed)), is_power_loss=True)


@PAIRS.case(
    "kill, then power in the recovery", "a kill, and the power goes when the next server has begun its log", "G1 G4"
)
async def _(lab: Lab) -> None:
    await lab.begin()
    await lab.append("disk", 3)
    disk = lab.disk.kill()
    fault = Dies("sync", LOGS, 2)
    disk.hooks.append(fault)
    lab.faults.append(fault)
    await finished(lab.open(disk).start(), lambda: disk.is_dead)
    for choice in ("lost", "torn", only_later(3)):
        await lab.recover(disk.power_loss(choice), is_power_loss=True)  # type: ignore[arg-type]


@PAIRS.case(
    "clock, then kill", "the clock is set back by an hour, and the process is killed in its next write", "G2 G3 G8"
)
async def _(lab: Lab) -> None:
    await lab.begin()
    lab.clock.set(lab.clock.now_ms() - 3_600_000)
    lab.inject(Dies("write", LOGS, part=30))
    await lab.append("fsync", 2)
    await lab.afterwards()


@PAIRS.case("worker gone, then the log", "a worker dies with jobs in hand, then the ack of another one fails", "G11")
async def _(lab: Lab) -> None:
    await lab.begin()
    await lab.claim("jobs", "gone", 2)
    lab.inject(SYNC())
    assert not await lab.ack("jobs", "worker", held(lab))
    lab.clock.advance(31_000)
    lab.told.topics["jobs"].leases.clear()
    assert await lab.claim("jobs", "other", 10)
    await lab.holds()
    await lab.afterwards("kill", "lost", "stop")


@PAIRS.case("router blocked, then death", "a copy fails, and the process dies when the router tries again", "G14")
async def _(lab: Lab) -> None:
    await lab.begin()
    lab.inject(Faulty("write", 1, name=LOGS))
    await lab.append("source", 2)
    await lab.quiet()
    lab.inject(Dies("write", LOGS, 1))
    lab.clock.advance(10_000)
    await lab.tick()
    if not lab.disk.is_dead:
        await lab.append("source", 2)
        await lab.quiet()
    await lab.afterwards("kill", "lost")
