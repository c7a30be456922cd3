"""The log: every kind of change while a write or a sync fails, and logs that go on, stand still, or come back."""

import asyncio
import errno
from collections.abc import Awaitable, Callable
from typing import NamedTuple

from tests.faults.case import Area, Play
from tests.faults.lab import Lab
from topics.storage.wal import ATTEMPT_SECONDS
from topics.testing.disk import Faulty

CHANGES = Area("Changes")
LOG = Area("Log")

Act = Callable[[Lab], Awaitable[bool]]
LOGS = "log-*"
ALL_BUT_ONE_BYTE = 1 << 30


class Action(NamedTuple):
    act: Act
    is_synced: bool = True  # it waits for a sync, not for a write only
    prepare: Act | None = None


def held(lab: Lab) -> int:
    """A job that the worker holds."""
    return min(lab.told.topics["jobs"].leases)


async def fresh_ends(lab: Lab) -> bool:
    return await lab.put("new.source") and await lab.put("new.dest")


async def two_dead(lab: Lab) -> bool:
    """Jobs that were handed out too often become letters with the next claim."""
    for _ in range(2):
        lab.clock.advance(31_000)
        lab.told.topics["jobs"].leases.clear()
        await lab.claim("jobs", "worker", 10)
    lab.clock.advance(31_000)
    lab.told.topics["jobs"].leases.clear()
    return True


async def letters(lab: Lab) -> bool:
    await two_dead(lab)
    return await lab.claim("jobs", "worker", 1)


ACTIONS = {
    "append": Action(lambda lab: lab.append("fsync")),
    "append of a batch": Action(lambda lab: lab.append("fsync", 3)),
    "append with a key": Action(lambda lab: lab.append("fsync", 2, key="new")),
    "append to a disk topic": Action(lambda lab: lab.append("disk", 2), False),
    "append to a memory topic": Action(lambda lab: lab.append("memory"), False),
    "append that evicts": Action(lambda lab: lab.append("capped", 3)),
    "append that makes its topic": Action(lambda lab: lab.append("lazy")),
    "delete below a seq": Action(lambda lab: lab.delete("fsync", before=5)),
    "delete by tag": Action(lambda lab: lab.delete("disk", tag="x"), False),
    "creation of a topic": Action(lambda lab: lab.put("new", durability="disk", cap_records=7)),
    "change of a config": Action(lambda lab: lab.put("disk", durability="disk", cap_records=50)),
    "change of a class": Action(lambda lab: lab.put("disk", durability="fsync")),
    "change to ephemeral": Action(lambda lab: lab.put("disk", durability="ephemeral")),
    "deletion of a topic": Action(lambda lab: lab.drop("memory")),
    "deletion of an ephemeral topic": Action(lambda lab: lab.drop("ephemeral")),
    "claim": Action(lambda lab: lab.claim("jobs", "other", 2)),
    "ack": Action(lambda lab: lab.ack("jobs", "worker", held(lab))),
    "nack": Action(lambda lab: lab.nack("jobs", "worker", held(lab))),
    "extend": Action(lambda lab: lab.extend("jobs", "worker", held(lab))),
    "redrive": Action(lambda lab: lab.redrive("jobs"), prepare=letters),
    "creation of a router": Action(lambda lab: lab.route("r2", "new.source", "new.dest"), prepare=fresh_ends),
    "deletion of a router": Action(lambda lab: lab.unroute("r")),
}
GUARANTEES = {
    "claim": "G11",
    "ack": "G9 G11",
    "nack": "G11",
    "extend": "G11",
    "redrive": "G11",
    "append with a key": "G12",
}
FAULTS: dict[str, tuple[str, Callable[[], Faulty]]] = {
    "write fails": ("EIO before the first byte is written to the log", lambda: Faulty("write", name=LOGS)),
    "short write": ("the log takes 20 bytes of the frame, then EIO", lambda: Faulty("write", name=LOGS, part=20)),
    "sync fails": ("EIO from fdatasync of the log, once", lambda: Faulty("sync", name=LOGS)),
}


def change_under(action: Action, fault: Callable[[], Faulty]) -> Play:
    async def play(lab: Lab) -> None:
        await lab.begin()
        if action.prepare is not None:
            await action.prepare(lab)
        lab.inject(fault())
        assert not await action.act(lab), "it was acked, although the disk failed"
        await lab.holds()
        assert await action.act(lab), "the log did not go on"
        await lab.holds()
        await lab.afterwards("kill", "lost")

    return play


for _name, _action in ACTIONS.items():
    for _fault, (_injects, _make) in FAULTS.items():
        if _action.is_synced or _fault != "sync fails":
            _holds = "G1 G2 G15 " + GUARANTEES.get(_name, "G8" if "batch" in _name else "")
            CHANGES.add(f"{_name}, {_fault}", _injects, _holds, change_under(_action, _make))


# --- the log as a whole


def refused_then(*faults: Callable[[], Faulty], ends: tuple[str, ...] = ("kill", "lost", "kept")) -> Play:
    """An append is refused by these faults, all at once; then the disk works again and the log goes on by itself."""

    async def play(lab: Lab) -> None:
        await lab.begin()
        lab.inject(*(fault() for fault in faults))
        assert not await lab.append("fsync", 2)
        await lab.holds()
        lab.heal()
        await later(lab)
        assert await lab.append("fsync"), "the log did not go on"
        await lab.holds()
        await lab.afterwards(*ends)  # type: ignore[arg-type]

    return play


async def later(lab: Lab) -> None:
    lab.clock.advance(round(ATTEMPT_SECONDS * 1000) + 1)
    await lab.tick()
    await lab.tick()


def failing(kind: str, error: int = errno.EIO, **options: object) -> Callable[[], Faulty]:
    return lambda: Faulty(kind, name=LOGS, error=error, **options)  # type: ignore[arg-type]


SYNC = failing("sync")
LOG.add(
    "all but one byte",
    "the last byte of a frame is not written",
    "G2 G5",
    refused_then(failing("write", part=ALL_BUT_ONE_BYTE)),
)
LOG.add("one byte", "a frame's first byte is all that is written", "G2 G5", refused_then(failing("write", part=1)))
LOG.add(
    "head of a frame", "a frame's head is written, its payload is not", "G2 G5", refused_then(failing("write", part=24))
)
LOG.add(
    "sync out of space",
    "ENOSPC from fdatasync: delayed allocation failed",
    "G1 G2",
    refused_then(failing("sync", errno.ENOSPC)),
)
LOG.add("quota", "EDQUOT from a write of the log", "G1 G2", refused_then(failing("write", errno.EDQUOT)))
LOG.add(
    "interrupted device",
    "ENXIO from fdatasync: the device is gone, and comes back",
    "G1 G2",
    refused_then(failing("sync", errno.ENXIO, times=3)),
)
LOG.add(
    "remounted read-only",
    "EROFS from every write, sync and create, until it is writable again",
    "G1 G2 G15",
    refused_then(*(failing(kind, errno.EROFS, times=None) for kind in ("write", "sync", "create"))),
)
LOG.add(
    "permission withdrawn",
    "EACCES from every create and EIO from the sync before it",
    "G1 G2",
    refused_then(SYNC, failing("create", errno.EACCES, times=None)),
)
LOG.add(
    "no fresh file",
    "a sync fails, and the log's next file cannot be created",
    "G1 G2 G15",
    refused_then(SYNC, failing("create", times=None)),
)
LOG.add(
    "fresh file not written",
    "a sync fails, and so does every write after it",
    "G1 G2",
    refused_then(SYNC, failing("write", times=None)),
)
LOG.add("fresh file not synced", "every sync of any log file fails", "G1 G2", refused_then(failing("sync", times=None)))
LOG.add(
    "fresh file not in its directory",
    "a sync fails, and the directory's sync, too",
    "G1 G2",
    refused_then(SYNC, lambda: Faulty("sync_directory", times=None)),
)
LOG.add(
    "fresh file half written",
    "a sync fails, and 30 bytes of the next file's header are written",
    "G2 G5",
    refused_then(SYNC, failing("write", part=30, times=None)),
)
LOG.add(
    "old file not removed",
    "a sync fails, the next file, too, and what is left of it cannot be removed",
    "G2 G5",
    refused_then(failing("sync", times=2), failing("remove", times=None)),
)


@LOG.case("write behind a failure", "a sync fails while a disk write is between its turns", "G1 G2 G15")
async def _(lab: Lab) -> None:
    await lab.begin()
    lab.disk.hold_syncs()
    lab.inject(SYNC())
    failing_append = asyncio.ensure_future(lab.append("fsync"))
    await asyncio.sleep(0)
    await lab.append("disk", 2)
    lab.disk.release_syncs()
    assert not await failing_append
    for _ in range(3):
        await lab.append("disk")
    await lab.holds()
    await lab.afterwards("kill", "lost")


@LOG.case("many in one sync", "one sync fails that twenty appends of four topics wait for", "G1 G2 G8 G15")
async def _(lab: Lab) -> None:
    await lab.begin()
    lab.inject(SYNC())
    names = ("fsync", "capped", "source", "fsync")
    done = await asyncio.gather(*(lab.append(names[n % 4], 2) for n in range(20)))
    assert not any(done), "acked by a sync that failed"
    await lab.holds()
    await lab.afterwards("kill", "lost", "torn")


@LOG.case("readers held by a sync", "a sync fails that readers wait for", "G13 G2")
async def _(lab: Lab) -> None:
    await lab.begin()
    lab.disk.hold_syncs()
    lab.inject(SYNC())
    append = asyncio.ensure_future(lab.append("fsync", 2))
    await asyncio.sleep(0)
    reads = [asyncio.ensure_future(lab.read("fsync")) for _ in range(3)]
    await asyncio.sleep(0)
    lab.disk.release_syncs()
    assert not await append
    await asyncio.gather(*reads)
    await lab.holds()
    await lab.afterwards("kill", "lost")


@LOG.case("reads while read-only", "no sync and no create works: reads of every class go on", "G1 G13 G15")
async def _(lab: Lab) -> None:
    await lab.begin()
    lab.inject(failing("sync", times=None)(), failing("create", times=None)())
    assert not await lab.append("fsync")
    assert not await lab.append("disk")
    assert not await lab.delete("disk", before=4)
    for name in ("fsync", "disk", "memory", "ephemeral"):
        await lab.read(name)
    await lab.holds()
    await lab.afterwards("kill")


@LOG.case(
    "killed while read-only", "the log stands still, and the process is killed before the disk works again", "G1 G2"
)
async def _(lab: Lab) -> None:
    await lab.begin()
    lab.inject(SYNC(), failing("create", times=None)())
    assert not await lab.append("fsync", 2)
    await lab.afterwards("kill")


@LOG.case("stopped while read-only", "the log stands still, and the server is stopped gracefully", "G1 G2 G6")
async def _(lab: Lab) -> None:
    await lab.begin()
    lab.inject(SYNC(), failing("create", times=None)())
    assert not await lab.append("fsync", 2)
    await lab.afterwards("stop")


@LOG.case("failure after failure", "every second sync fails, ten times over", "G1 G2 G12")
async def _(lab: Lab) -> None:
    await lab.begin()
    for n in range(10):
        lab.inject(SYNC())
        assert not await lab.append("fsync", key=f"round {n}")
        assert await lab.append("fsync", key=f"round {n}")
        await lab.append("disk")
    await lab.holds()
    await lab.afterwards()


@LOG.case(
    "unsynced records come along", "a sync fails above acked records of disk topics that were never synced", "G1 G9"
)
async def _(lab: Lab) -> None:
    await lab.begin()
    await lab.append("disk", 3)
    await lab.append("memory", 3)
    await lab.delete("memory", before=4)
    lab.inject(SYNC())
    assert not await lab.append("fsync")
    await lab.holds()
    await lab.afterwards("kill", "kept")
