"""Checkpoints, and what they reclaim: every step fails, or is the last one of the process."""

from typing import NamedTuple

from tests.faults.case import Area, Play
from tests.faults.disks import AFTER, Dies, like
from tests.faults.lab import Lab
from topics.testing.disk import Faulty, Kind

CHECKPOINT = Area("Checkpoint: segments and snapshots")
RECLAIM = Area("Reclaim")


class Step(NamedTuple):
    kind: Kind
    name: str
    at: int
    is_write: bool = False


STEPS = {
    "next log file made": Step("create", "log-*", 0),
    "next log file filled with zeros": Step("write", "log-*", 0, True),
    "next log file synced": Step("sync", "log-*", 0),
    "last log file synced": Step("sync", "log-*", 1),
    "first frame of the next log file": Step("write", "log-*", 1, True),
    "log announced: file written": Step("write", "snapshot-*", 0, True),
    "log announced: renamed": Step("rename", "snapshot-*", 0),
    "segment made": Step("create", "segment-*", 0),
    "segment written": Step("write", "segment-*.arrow", 0, True),
    "segment synced": Step("sync", "segment-*", 0),
    "second segment written": Step("write", "segment-*.arrow", 1, True),
    "directory synced behind segments": Step("sync_directory", "", 2),
    "delete marks written": Step("write", "segment-0000000003.arrow", 0, True),
    "delete marks synced": Step("sync", "segment-0000000003.arrow", 0),
    "snapshot made": Step("create", "snapshot-*", 1),
    "snapshot written": Step("write", "snapshot-*", 1, True),
    "snapshot synced": Step("sync", "snapshot-*", 1),
    "snapshot renamed": Step("rename", "snapshot-*", 1),
    "directory synced behind the snapshot": Step("sync_directory", "", 3),
    "old log removed": Step("remove", "log-*", 0),
}


async def checkpoint_due(lab: Lab) -> None:
    """There is something to seal, and something sealed to mark as deleted."""
    await lab.begin()
    await lab.delete("fsync", before=4)


def fails_at(step: Step) -> Play:
    async def play(lab: Lab) -> None:
        await checkpoint_due(lab)
        lab.inject(Faulty(step.kind, step.at, name=step.name, part=30 if step.is_write else 0))
        await lab.checkpoint()
        await lab.holds()
        lab.heal()
        await lab.append("fsync", 2)
        await lab.afterwards("kill")
        assert await lab.checkpoint(), "the next checkpoint failed"
        await lab.holds()
        await lab.afterwards("lost", "stop")

    return play


def dies_at(step: Step) -> Play:
    async def play(lab: Lab) -> None:
        await checkpoint_due(lab)
        lab.inject(Dies(step.kind, step.name, step.at, part=30 if step.is_write else 0))
        await lab.checkpoint()
        assert lab.disk.is_dead
        await lab.afterwards()

    return play


for _name, _step in STEPS.items():
    _cut = "EIO after 30 bytes" if _step.is_write else "EIO"
    _how = "after 30 bytes of it" if _step.is_write else "before it"
    CHECKPOINT.add(f"{_name}, fails", _cut, "G1 G2 G6 G9", fails_at(_step))
    CHECKPOINT.add(f"{_name}, dies", f"the process dies {_how}", "G1 G4 G6 G7 G9", dies_at(_step))


@CHECKPOINT.case(
    "dies behind the rename", "the process dies after the snapshot was renamed, before anything is synced", "G6 G1"
)
async def _(lab: Lab) -> None:
    await checkpoint_due(lab)
    lab.inject(Dies("rename", "snapshot-*", 1, part=AFTER))
    await lab.checkpoint()
    await lab.afterwards()


@CHECKPOINT.case("no snapshot ever works", "EIO from every rename of a snapshot", "G1 G6 G15")
async def _(lab: Lab) -> None:
    await checkpoint_due(lab)
    lab.inject(Faulty("rename", times=None, name="snapshot-*"))
    for _ in range(3):
        await lab.checkpoint()
        await lab.append("fsync")
    await lab.holds()
    await lab.afterwards("kill", "lost")


@CHECKPOINT.case("writes while it fails", "a segment cannot be written while appends go on", "G1 G2")
async def _(lab: Lab) -> None:
    await checkpoint_due(lab)
    lab.inject(Faulty("write", times=2, name="segment-*"))
    await lab.checkpoint()
    for name in ("fsync", "disk", "memory"):
        assert await lab.append(name, 2)
    await lab.checkpoint()
    await lab.holds()
    lab.heal()
    assert await lab.checkpoint()
    await lab.afterwards("kill", "lost", "stop")


# --- what is not needed any more


@RECLAIM.case("log not removed", "EIO from every remove: old logs stay, and harm nobody", "G4 G9 G10")
async def _(lab: Lab) -> None:
    await checkpoint_due(lab)
    lab.inject(Faulty("remove", times=None))
    for _ in range(3):
        await lab.checkpoint()
        await lab.append("fsync")
        await lab.delete("fsync", before=max(lab.told.topics["fsync"].written))
    await lab.holds()
    await lab.afterwards("kill", "lost", "kept")


@RECLAIM.case("log removed by somebody else", "a log file that is due to be removed is gone already", "G1 G15")
async def _(lab: Lab) -> None:
    await checkpoint_due(lab)
    before = like(lab.disk, "log-")
    lab.inject(Faulty("remove", name="log-*"))
    await lab.checkpoint()
    lab.heal()
    left = [name for name in before if name in lab.disk.names()]
    for name in left[:1]:
        lab.disk.remove(name)
    await lab.append("fsync")
    await lab.checkpoint()
    await lab.holds()
    await lab.afterwards("kill", "stop")


@RECLAIM.case("dead segments not removed", "EIO from the removal of segments whose records are all deleted", "G9 G10")
async def _(lab: Lab) -> None:
    await checkpoint_due(lab)
    await lab.checkpoint()
    lab.inject(Faulty("remove", times=None, name="segment-*"))
    for name in ("fsync", "disk", "memory"):
        await lab.delete(name, before=100)
    await lab.drop("capped")
    await lab.drop("ephemeral")
    await lab.drop("aged")
    for _ in range(4):
        await lab.append("fsync")
        await lab.checkpoint()
    await lab.holds()
    await lab.afterwards("kill", "lost")


@RECLAIM.case("dies while segments go", "the process dies before the first dead segment is removed", "G9 G7")
async def _(lab: Lab) -> None:
    await checkpoint_due(lab)
    await lab.checkpoint()
    lab.inject(Dies("remove", "segment-*"))
    for name in ("fsync", "disk", "memory"):
        await lab.delete(name, before=100)
    for name in ("capped", "aged", "ephemeral", "dead"):
        if not lab.disk.is_dead and name != "dead":
            await lab.drop(name)
    for _ in range(6):
        if not lab.disk.is_dead:
            await lab.append("fsync")
            await lab.delete("fsync", before=100)
        if not lab.disk.is_dead:
            await lab.checkpoint()
    await lab.afterwards("kill", "lost", "kept")


@RECLAIM.case("orphan segment", "a segment that no snapshot names lies in the directory", "G2 G7")
async def _(lab: Lab) -> None:
    await checkpoint_due(lab)
    await lab.checkpoint()
    first = like(lab.disk, "segment-")[0]
    image = lab.disk.files()[first]
    orphan = lab.disk.kill()
    file = orphan.create("segment-0000000900.arrow")
    file.write(0, image)
    lab.strikes += 1
    await lab.recover(orphan)
    assert "segment-0000000900.arrow" not in orphan.files()


@RECLAIM.case("half a snapshot", "a snapshot under its temporary name, cut in the middle", "G6")
async def _(lab: Lab) -> None:
    await checkpoint_due(lab)
    left = lab.disk.kill()
    image = left.files()[like(left, "snapshot-")[-1]]
    left.create("snapshot-0000000099.delta.tmp").write(0, image[: len(image) // 2])
    lab.strikes += 1
    await lab.recover(left)


@RECLAIM.case(
    "log of the future not started", "a next log file of zeros, as a crash before its first frame leaves it", "G4 G5"
)
async def _(lab: Lab) -> None:
    await checkpoint_due(lab)
    left = lab.disk.kill()
    left.create("log-0000000003").write(0, bytes(5000))
    lab.strikes += 1
    await lab.recover(left)


@RECLAIM.case("obsolete snapshot", "the base and deltas of before are there, too, as a crash leaves them", "G6")
async def _(lab: Lab) -> None:
    await checkpoint_due(lab)
    lab.inject(Faulty("remove", times=None, name="snapshot-*"))
    from topics.storage import snapshots

    most, snapshots.DELTAS_MAX = snapshots.DELTAS_MAX, 2
    try:
        for _ in range(6):
            await lab.append("fsync")
            await lab.checkpoint()
        assert len([name for name in lab.disk.names() if name.endswith(".base")]) > 1
        await lab.afterwards("kill", "lost")
    finally:
        snapshots.DELTAS_MAX = most
