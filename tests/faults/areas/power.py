"""Recovery that fails or is interrupted, power that goes, writes out of order, and disks that lie about syncs."""

import random
from typing import NamedTuple

from tests.crash.history import observe
from tests.crash.run import finished
from tests.faults import check
from tests.faults.case import Area, Play
from tests.faults.disks import Dies, Lies, only_later
from tests.faults.lab import End, Lab
from topics.errors import StorageError
from topics.testing.disk import Choose, Faulty, Kind, MemoryDisk

RECOVERY = Area("Recovery")
POWER = Area("Power loss, torn and reordered writes")
LIES = Area("Lying fsync")


class Step(NamedTuple):
    kind: Kind
    name: str
    at: int


STEPS = {
    "last log file synced": Step("sync", "log-*", 0),
    "directory synced": Step("sync_directory", "", 0),
    "new log file made": Step("create", "log-*", 0),
    "new log file written": Step("write", "log-*", 0),
    "new log file synced": Step("sync", "log-*", 1),
    "first frame written": Step("write", "log-*", 1),
    "first frame synced": Step("sync", "log-*", 2),
    "log announced": Step("rename", "snapshot-*", 0),
}


async def torn(lab: Lab, end: End) -> MemoryDisk:
    """A directory that a crash left, with a write under way."""
    await lab.begin()
    await lab.append("disk", 3)
    await lab.append("memory", 2)
    return lab.disk.kill() if end == "kill" else lab.disk.power_loss(end)  # type: ignore[arg-type]


def interrupted(step: Step, end: End) -> Play:
    """The process dies in its recovery; the next one recovers as if nothing had been."""

    async def play(lab: Lab) -> None:
        disk = await torn(lab, end)
        fault = Dies(step.kind, step.name, step.at)
        disk.hooks.append(fault)
        lab.faults.append(fault)
        await finished(lab.open(disk).start(), lambda: disk.is_dead)
        for after in (disk.kill(), disk.power_loss("torn")):
            await lab.recover(after, is_power_loss=True)

    return play


def failing(step: Step) -> Play:
    """A step of the recovery fails: the start is refused, or goes on; the next one is whole."""

    async def play(lab: Lab) -> None:
        disk = await torn(lab, "kill")
        fault = Faulty(step.kind, step.at, name=step.name or "*")
        disk.hooks.append(fault)
        lab.faults.append(fault)
        engine = lab.open(disk)
        try:
            await finished(engine.start())
        except (OSError, StorageError):
            pass
        else:
            await check.check(lab.told, engine)
            await finished(engine.close())
        disk.hooks.clear()
        await lab.recover(disk.kill())

    return play


for _name, _step in STEPS.items():
    RECOVERY.add(
        f"{_name}, dies after a kill",
        "the process dies before this step of its recovery",
        "G4 G1",
        interrupted(_step, "kill"),
    )
    RECOVERY.add(f"{_name}, fails", "EIO in this step of the recovery", "G4 G15", failing(_step))
for _name in ("last log file synced", "new log file written", "log announced"):
    RECOVERY.add(
        f"{_name}, dies after a power loss",
        "power was lost before, and the process dies in this step",
        "G4 G10",
        interrupted(STEPS[_name], "lost"),
    )


@RECOVERY.case(
    "a chain of ten kills", "ten processes in a row are killed, each right after its first write", "G1 G3 G4"
)
async def _(lab: Lab) -> None:
    await lab.begin()
    for _ in range(10):
        lab.disk, lab.strikes = lab.disk.kill(), lab.strikes + 1
        await lab.start()
        await lab.append("fsync")
        await lab.append("disk")
    await lab.afterwards("kill", "stop")


@RECOVERY.case(
    "killed in every start", "five processes die in their recovery, each a step later than the one before", "G4"
)
async def _(lab: Lab) -> None:
    disk = await torn(lab, "kill")
    for number in range(5):
        fault = Dies("write", "log-*", number % 2)
        disk.hooks = [fault]
        lab.faults.append(fault)
        await finished(lab.open(disk).start(), lambda disk=disk: disk.is_dead)  # type: ignore[misc]
        disk = disk.kill()
    await lab.recover(disk)


# --- power


def power(choose: Choose | random.Random | End, *, held: bool = False) -> Play:
    """Writes that are not synced, some perhaps under way, and the power goes."""

    async def play(lab: Lab) -> None:
        await lab.begin()
        for _ in range(3):
            await lab.append("disk", 2)
            await lab.append("memory", 3)
            await lab.delete("disk", tag="x")
        if held:
            lab.inject(Dies("sync", "log-*"))
            await lab.append("fsync", 3)
        lab.strikes += not held
        disk = lab.disk.power_loss(choose)  # type: ignore[arg-type]
        await lab.recover(disk, is_power_loss=True)

    return play


POWER.add("nothing unsynced is kept", "power loss: every write since the last sync is lost", "G1 G3 G10", power("lost"))
POWER.add("everything is kept", "power loss: all that was written is on the platter", "G1 G2", power("kept"))
POWER.add("every third write", "power loss: some sectors are new, some old, some between", "G2 G5 G10", power("torn"))
POWER.add(
    "only later writes",
    "power loss: of every two writes the second is kept and the first is not",
    "G2 G5 G10",
    power(only_later(2)),
)
POWER.add("few later writes", "power loss: one write in five is kept, out of order", "G2 G5 G10", power(only_later(5)))
POWER.add(
    "sync under way, nothing kept",
    "power goes in a sync: the frame that it covers is lost",
    "G1 G8",
    power("lost", held=True),
)
POWER.add(
    "sync under way, everything kept",
    "power goes in a sync: the frame is there, unacked",
    "G2 G8",
    power("kept", held=True),
)
POWER.add("sync under way, torn", "power goes in a sync: the frame is torn", "G2 G5 G8", power("torn", held=True))
POWER.add(
    "sync under way, out of order",
    "power goes in a sync: later sectors of the frame are there, earlier ones are not",
    "G2 G5 G8",
    power(only_later(2), held=True),
)
for _seed in range(6):
    POWER.add(
        f"at random, seed {_seed}",
        "power loss: each sector, size and name is kept or lost by chance",
        "G2 G5 G10",
        power(random.Random(_seed), held=_seed % 2 == 0),
    )


@POWER.case("twice", "power goes again in the recovery from a power loss", "G4 G10")
async def _(lab: Lab) -> None:
    first = await torn(lab, "torn")
    fault = Dies("sync", "log-*", 1)
    first.hooks.append(fault)
    lab.faults.append(fault)
    await finished(lab.open(first).start(), lambda: first.is_dead)
    await lab.recover(first.power_loss("torn"), is_power_loss=True)


@POWER.case(
    "a failed sync is in doubt", "a sync fails, and then the power goes: the platter has any part of it", "G2 G8"
)
async def _(lab: Lab) -> None:
    await lab.begin()
    lab.inject(Faulty("sync", name="log-*"))
    assert not await lab.append("fsync", 3)
    for seed in range(4):
        await lab.recover(lab.disk.power_loss(random.Random(seed)), is_power_loss=True)


# --- lies


def lied(*names: str, directory: bool = False, checkpoints: bool = False) -> Play:
    """A killed process loses nothing. Where power goes, a loss cannot be helped, but nothing false comes of it."""

    async def play(lab: Lab) -> None:
        await lab.begin()
        lab.faults.append(Lies(lab.disk, *names, directory=directory))
        await lab.append("fsync", 2)
        if checkpoints:
            await lab.checkpoint()
        await lab.append("fsync", 3)
        await lab.holds()
        await lab.afterwards("kill")
        for seed in range(4):
            await nothing_false(lab, lab.disk.power_loss(random.Random(seed)))
        await nothing_false(lab, lab.disk.power_loss("lost"))

    return play


async def nothing_false(lab: Lab, disk: MemoryDisk) -> None:
    """G2, G5: the start is refused by the name of a file, or what is there was written, under its own seq, once."""
    engine = lab.open(disk)
    try:
        await finished(engine.start())
        seen = await observe(engine)
    except StorageError as refusal:
        assert "-0000" in str(refusal), f"the refusal names no file: {refusal}"  # noqa: PT017
        return
    finally:
        disk.is_dead = True
    for name, found in seen.items():
        topic = lab.told.topics[name]
        for seq, value in check.values(found).items():
            assert topic.written.get(seq, value) == value, f"G2: {name}: seq {seq} is {value!r}"
        check.nothing_is_invented_or_doubled(name, topic, found, lab.told)


LIES.add("of the log", "fdatasync of the log does nothing", "G2 G5", lied("log-*"))
LIES.add("of segments", "fsync of segments does nothing", "G2 G5 G7", lied("segment-*", checkpoints=True))
LIES.add("of snapshots", "fsync of snapshots does nothing", "G2 G5 G6", lied("snapshot-*", checkpoints=True))
LIES.add("of the directory", "fsync of the directory does nothing", "G2 G5 G6", lied(directory=True, checkpoints=True))
LIES.add("of everything", "no fsync does anything", "G2 G5", lied("*", directory=True, checkpoints=True))
LIES.add(
    "of everything but the log",
    "only the log is synced",
    "G2 G5 G6",
    lied("se*", "sn*", directory=True, checkpoints=True),
)
