"""What clients build on: keys, leases and jobs, routers; and clocks that jump, which all of them must bear."""

import asyncio
from collections.abc import Callable

from tests.faults.areas.log import held, letters, two_dead
from tests.faults.case import Area, Play
from tests.faults.disks import AFTER, Dies
from tests.faults.lab import Lab
from topics.testing.clock import ManualClock
from topics.testing.disk import Faulty

KEYS = Area("Idempotency keys")
QUEUES = Area("Jobs and leases")
ROUTERS = Area("Routers")
CLOCKS = Area("Clocks")

HOUR_MS = 3_600_000
YEAR_MS = 365 * 24 * HOUR_MS
LOGS = "log-*"


# --- keys


@KEYS.case("racing repeats fail together", "a sync fails that three writes with one key wait for", "G12 G2")
async def _(lab: Lab) -> None:
    await lab.begin()
    lab.inject(Faulty("sync", name=LOGS))
    done = await asyncio.gather(*(lab.append("fsync", 2, key="k") for _ in range(3)))
    assert not any(done)
    assert await lab.append("fsync", 2, key="k")
    await lab.holds()
    await lab.afterwards("kill", "lost", "stop")


@KEYS.case("key without an answer", "the process dies after the frame of a keyed write was written", "G12 G8")
async def _(lab: Lab) -> None:
    await lab.begin()
    lab.inject(Dies("write", LOGS, part=AFTER))
    assert not await lab.append("fsync", 2, key="k")
    disk = lab.disk.kill()
    async with lab.running(disk, ManualClock(lab.clock.now_ms())) as engine:
        answers = [await engine.append("fsync", [{"data": "a"}, {"data": "b"}], key="k") for _ in range(2)]
        assert answers[0].first_seq == answers[1].first_seq and answers[1].deduped
        records = [bytes(one.data) for one in (await engine.read("fsync", limit=1000)).records]
        assert len(records) == len(set(records)), "G12: the batch is there twice"


@KEYS.case("key in the snapshot only", "a checkpoint, then kill: the log has nothing of the key any more", "G12")
async def _(lab: Lab) -> None:
    await lab.begin()
    await lab.append("fsync", 2, key="k")
    await lab.append("disk", 2, key="k")
    assert await lab.checkpoint()
    lab.strikes += 1
    await lab.afterwards("kill", "lost", "stop")


@KEYS.case("key of deleted records", "the records of a key are deleted, then kill", "G12 G9")
async def _(lab: Lab) -> None:
    await lab.begin()
    await lab.append("fsync", 2, key="k")
    await lab.delete("fsync", before=100)
    lab.strikes += 1
    await lab.afterwards("kill", "lost")


@KEYS.case(
    "key of a disk topic, power lost", "power goes right after a keyed write was acked from the page cache", "G12 G10"
)
async def _(lab: Lab) -> None:
    await lab.begin()
    await lab.append("disk", 2, key="k")
    await lab.append("memory", 2, key="k")
    lab.strikes += 1
    await lab.afterwards("lost", "torn", "kept")


@KEYS.case("key of a deleted topic", "a topic is deleted and made again, then kill: the key is a new one", "G12 G9")
async def _(lab: Lab) -> None:
    await lab.begin()
    await lab.append("fsync", 2, key="k")
    await lab.drop("fsync")
    await lab.put("fsync", durability="fsync")
    await lab.append("fsync", 2, key="k")
    lab.strikes += 1
    await lab.holds()
    await lab.afterwards("kill", "lost")


# --- jobs


@QUEUES.case("ack without an answer", "the process dies after the frame of an ack was written", "G11 G8")
async def _(lab: Lab) -> None:
    await lab.begin()
    lab.inject(Dies("write", LOGS, part=AFTER))
    await lab.ack("jobs", "worker", *lab.told.topics["jobs"].leases)
    await lab.afterwards()


@QUEUES.case("ack torn", "the process dies in the middle of the frame of an ack of two jobs", "G11 G8")
async def _(lab: Lab) -> None:
    await lab.begin()
    lab.inject(Dies("write", LOGS, part=40))
    await lab.ack("jobs", "worker", *lab.told.topics["jobs"].leases)
    await lab.afterwards()


@QUEUES.case("claim without an answer", "the process dies after the frame of a claim was written", "G11")
async def _(lab: Lab) -> None:
    await lab.begin()
    lab.inject(Dies("write", LOGS, part=AFTER))
    await lab.claim("jobs", "other", 2)
    await lab.afterwards()


@QUEUES.case(
    "dead letters, dies before", "the process dies before the move into the dead-letter topic is written", "G11 G8"
)
async def _(lab: Lab) -> None:
    await lab.begin()
    await two_dead(lab)
    lab.inject(Dies("write", LOGS))
    await lab.claim("jobs", "worker")
    await lab.afterwards()


@QUEUES.case(
    "dead letters, dies behind", "the process dies after the move into the dead-letter topic was written", "G11 G8"
)
async def _(lab: Lab) -> None:
    await lab.begin()
    await two_dead(lab)
    lab.inject(Dies("write", LOGS, part=AFTER))
    await lab.claim("jobs", "worker")
    await lab.afterwards()


@QUEUES.case("dead letters, write fails", "EIO when the move into the dead-letter topic is written", "G11")
async def _(lab: Lab) -> None:
    await lab.begin()
    await two_dead(lab)
    lab.inject(Faulty("write", name=LOGS))
    await lab.claim("jobs", "worker")
    lab.heal()
    await lab.claim("jobs", "worker")
    await lab.holds()
    await lab.afterwards("kill", "lost")


@QUEUES.case("redrive torn", "the process dies in the middle of the frame of a redrive", "G11 G8")
async def _(lab: Lab) -> None:
    await lab.begin()
    await letters(lab)
    lab.inject(Dies("write", LOGS, part=50))
    await lab.redrive("jobs")
    await lab.afterwards()


@QUEUES.case(
    "worker and server die", "a worker holds jobs, the server is killed, and the worker never comes back", "G11"
)
async def _(lab: Lab) -> None:
    await lab.begin()
    await lab.claim("jobs", "gone", 10)
    lab.strikes += 1
    await lab.afterwards("kill", "lost", "stop")


@QUEUES.case(
    "leases that are not durable", "the server is killed: every job of a queue without durable leases is free", "G11"
)
async def _(lab: Lab) -> None:
    await lab.begin()
    await lab.put("loose", type="queue", durability="disk", leases_durable=False, dead_letter="dead", max_deliveries=5)
    await lab.append("loose", 4)
    await lab.claim("loose", "worker", 3)
    lab.strikes += 1
    disk = lab.disk.kill()
    async with lab.running(disk, ManualClock(lab.clock.now_ms())) as engine:
        assert len((await engine.claim("loose", "other", 10)).jobs) == 4, "G11: a job is stuck"
    lab.told.topics["loose"].leases.clear()
    await lab.afterwards("kill", "stop")


@QUEUES.case(
    "delayed job", "a job that was given back with a delay is still delayed after a kill, and comes later", "G11"
)
async def _(lab: Lab) -> None:
    await lab.begin()
    seq = held(lab)
    await lab.engine.nack("jobs", "worker", [seq], delay_ms=HOUR_MS)
    lab.told.topics["jobs"].leases.pop(seq)
    lab.strikes += 1
    disk = lab.disk.kill()
    clock = ManualClock(lab.clock.now_ms())
    async with lab.running(disk, clock) as engine:
        assert seq not in [job.seq for job in (await engine.claim("jobs", "other", 10)).jobs], "it is not due yet"
        clock.advance(2 * HOUR_MS)
        assert seq in [job.seq for job in (await engine.claim("jobs", "other", 10)).jobs], "G11: it never comes"
    await lab.afterwards("kill", "lost", "stop")


@QUEUES.case(
    "leases in the snapshot only", "a checkpoint, then kill: leases and deliveries come from the snapshot", "G11"
)
async def _(lab: Lab) -> None:
    await lab.begin()
    await lab.claim("jobs", "other", 1)
    assert await lab.checkpoint()
    lab.strikes += 1
    await lab.afterwards("kill", "lost", "stop")


# --- routers


def routed(make: Callable[[], object]) -> Play:
    """Records arrive at the source of a router while something happens to what it copies."""

    async def play(lab: Lab) -> None:
        await lab.begin()
        lab.inject(make())
        for _ in range(3):
            if not lab.disk.is_dead:
                await lab.append("source", 2)
                await lab.quiet()
        lab.heal()
        if not lab.disk.is_dead:
            lab.clock.advance(10_000)
            await lab.tick()
            await lab.append("source")
            await lab.holds()
        await lab.afterwards("kill", "lost", *(() if lab.disk.is_dead else ("stop",)))  # type: ignore[arg-type]

    return play


ROUTERS.add(
    "copy not written", "EIO when the frame of a copy is written", "G14", routed(lambda: Faulty("write", 1, name=LOGS))
)
ROUTERS.add(
    "copy cut short",
    "20 bytes of the frame of a copy are written",
    "G14 G8",
    routed(lambda: Faulty("write", 1, name=LOGS, part=20)),
)
ROUTERS.add("copy not synced", "the sync behind a copy fails", "G14 G1", routed(lambda: Faulty("sync", 1, name=LOGS)))
ROUTERS.add(
    "dies before the copy",
    "the process dies before the frame of a copy is written",
    "G14",
    routed(lambda: Dies("write", LOGS, 1)),
)
ROUTERS.add(
    "dies in the copy",
    "the process dies in the middle of the frame of a copy",
    "G14 G8",
    routed(lambda: Dies("write", LOGS, 1, part=30)),
)
ROUTERS.add(
    "dies behind the copy",
    "the process dies after the frame of a copy was written",
    "G14",
    routed(lambda: Dies("write", LOGS, 1, part=AFTER)),
)
ROUTERS.add(
    "dies in a later copy",
    "the process dies before the third frame of copies",
    "G14",
    routed(lambda: Dies("write", LOGS, 4)),
)


@ROUTERS.case("checkpoint between source and copy", "a checkpoint fails while a router has copies to make", "G14 G6")
async def _(lab: Lab) -> None:
    await lab.begin()
    lab.inject(Faulty("rename", name="snapshot-*", at=1))
    await asyncio.gather(lab.append("source", 3), lab.checkpoint())
    await lab.quiet()
    await lab.holds()
    await lab.afterwards("kill", "lost", "stop")


@ROUTERS.case(
    "source deleted before the copy",
    "the process is killed after records were copied and deleted from the source",
    "G14 G9",
)
async def _(lab: Lab) -> None:
    await lab.begin()
    await lab.append("source", 3)
    await lab.quiet()
    lab.told.topics["copy"].copied |= set(lab.told.topics["source"].written.values())
    await lab.delete("source", before=100)
    lab.strikes += 1
    await lab.holds()
    await lab.afterwards("kill", "lost", "stop")


@ROUTERS.case("dest deleted", "a dest is deleted with its router, and made again, then kill", "G9 G14")
async def _(lab: Lab) -> None:
    await lab.begin()
    await lab.drop("copy")
    await lab.put("copy", durability="fsync")
    await lab.append("source", 2)
    lab.strikes += 1
    await lab.holds()
    await lab.afterwards("kill", "lost")


@ROUTERS.case(
    "dest that refuses", "the dest is full and refuses; the router waits, and copies when there is room again", "G14 G2"
)
async def _(lab: Lab) -> None:
    await lab.begin()
    await lab.put("copy", durability="fsync", cap_records=5, discard="reject")
    lab.told.topics["copy"].copied |= set(lab.told.topics["source"].written.values())
    await lab.append("source", 4)
    await lab.quiet()
    lab.strikes += 1
    state = await lab.engine.router("r")
    assert state.lag and state.state == "blocked", state
    await lab.put("copy", durability="fsync", cap_records=0)
    lab.clock.advance(10_000)
    await lab.tick()
    await lab.append("source")
    await lab.quiet()
    await lab.holds()
    await lab.afterwards("kill", "stop")


# --- clocks


def time_has_passed(lab: Lab) -> None:
    """Leases have ended, and keys are forgotten."""
    lab.told.topics["jobs"].leases.clear()
    for topic in lab.told.topics.values():
        topic.keys.clear()


def jumped(ms: int, *, restarts: bool) -> Play:
    """The wall clock jumps, under a running server or between two; then everything goes on."""

    async def play(lab: Lab) -> None:
        await lab.begin()
        before = [record.ts for record in (await lab.engine.read("fsync", limit=1000)).records]
        if restarts:
            await lab.engine.close()
            lab.disk = lab.disk.kill()
            lab.clock = ManualClock(max(0, lab.clock.now_ms() + ms))
            await lab.start()
        else:
            lab.clock.set(max(0, lab.clock.now_ms() + ms))
        lab.strikes += 1
        if ms > 0:
            time_has_passed(lab)
        for name in ("fsync", "disk", "aged"):
            assert await lab.append(name, 2)
        await lab.tick()
        assert await lab.checkpoint()
        times = [record.ts for record in (await lab.engine.read("fsync", limit=1000)).records]
        assert times == sorted(times) and times[: len(before)] == before, "WR6: times fall"
        await lab.holds()
        await lab.afterwards("kill", "lost", "stop")

    return play


for _ms, _text in (
    (-1, "back by a millisecond"),
    (-HOUR_MS, "back by an hour"),
    (-80 * YEAR_MS, "back to 1970"),
    (HOUR_MS, "ahead by an hour"),
    (10 * YEAR_MS, "ahead by ten years"),
):
    CLOCKS.add(_text, f"the wall clock is set {_text} while the server runs", "G2 G10 G11", jumped(_ms, restarts=False))
    CLOCKS.add(
        f"{_text}, in between",
        f"the wall clock is {_text} when the next server starts",
        "G2 G4 G10",
        jumped(_ms, restarts=True),
    )


@CLOCKS.case("expired stays expired", "records expire, the clock is set back by a day, the server is killed", "G9 G10")
async def _(lab: Lab) -> None:
    await lab.begin()
    lab.clock.advance(61_000)
    await lab.tick()
    assert not (await lab.engine.read("aged")).records
    lab.clock.set(lab.clock.now_ms() - 24 * HOUR_MS)
    lab.strikes += 1
    for end in ("kill", "stop"):
        if end == "stop":
            await lab.engine.close()
        async with lab.running(lab.disk.kill(), ManualClock(lab.clock.now_ms())) as engine:
            assert not (await engine.read("aged")).records, "G9: expired records are back"


@CLOCKS.case("back and forth", "the clock jumps by an hour, back and forth, between twenty writes", "G2 G3 G10")
async def _(lab: Lab) -> None:
    await lab.begin()
    for n in range(20):
        lab.clock.set(lab.clock.now_ms() + (HOUR_MS if n % 2 else -HOUR_MS))
        lab.strikes += 1
        await lab.append("fsync")
        await lab.append("disk", key=f"n{n}")
    times = [record.ts for record in (await lab.engine.read("fsync", limit=1000)).records]
    assert times == sorted(times), "WR6: times fall"
    lab.told.topics["jobs"].leases.clear()
    await lab.holds()
    await lab.afterwards("kill", "lost")


@CLOCKS.case("lease under a clock set back", "the clock is set back by an hour while a worker holds a job", "G11")
async def _(lab: Lab) -> None:
    await lab.begin()
    lab.clock.set(lab.clock.now_ms() - HOUR_MS)
    lab.strikes += 1
    assert await lab.ack("jobs", "worker", held(lab))
    await lab.holds()
    await lab.afterwards("kill", "stop")


@CLOCKS.case(
    "ahead in the midst of a failure", "a sync fails, and the clock is an hour ahead when the log goes on", "G1 G2"
)
async def _(lab: Lab) -> None:
    await lab.begin()
    lab.inject(Faulty("sync", name=LOGS))
    assert not await lab.append("fsync")
    lab.clock.set(lab.clock.now_ms() + HOUR_MS)
    time_has_passed(lab)
    assert await lab.append("fsync")
    await lab.holds()
    await lab.afterwards("kill", "lost")
