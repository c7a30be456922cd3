"""The whole server in memory under clients that pipeline: crashes and faults of the disk while requests are in flight.

Clients of all protocols talk to it at once, in slices of requests, and checkpoints come at any moment between
(tests/pipelining). What they were told by then is held against what the next server has.
"""

import errno
import random
from collections.abc import Iterable, Iterator

import pytest

from tests.crash.test_crash import noted
from tests.effort import tries
from tests.pipelining.check import End, check, is_same, nothing_is_stuck
from tests.pipelining.look import Found, drain, look
from tests.pipelining.play import Host, Lifeline, Play, quiet
from tests.pipelining.told import Told
from topics.testing.clock import ManualClock
from topics.testing.disk import CrashAt, Faulty, MemoryDisk, Operation, crash_points

SAMPLED_SEEDS = (0, 1, 2, 4, 5, 10, 13, 20, 33, 42, 46, 51)
CRASHED_SEEDS = SAMPLED_SEEDS[3::2][: tries(5)]
FULL_SEEDS = range(100, 300)
SAMPLED_POINTS = tries(5)  # of each seed
FULL_POINTS = 40
LIVES = 4


async def end_of(play: Play) -> None:
    """Play without a crash."""
    await play.run()
    await check_end(play)


async def check_end(play: Play) -> None:
    """All is answered, and there; then the server is killed."""
    unanswered = [call for call in play.told.open_calls if call.request not in play.dropped]
    assert not unanswered, f"G15: never answered: {unanswered}"
    await play.finished(play.settle())
    found = await play.look()
    check(play.told, found, "alive")
    await play.finished(play.check_streams(found))
    await play.host.end()


async def operations_of(seed: int) -> list[Operation]:
    play = Play(seed)
    await end_of(play)
    return play.disk.operations


async def found_on(disk: MemoryDisk, clock: ManualClock, seed: int, life: int) -> Found:
    """What a server that starts on this disk has."""
    host = Host(disk, clock, seed, life)
    await host.server.recover()
    found = await host.look(look())
    await host.end()
    return found


async def check_after(disk: MemoryDisk, told: Told, clock: ManualClock, seed: int, end: End) -> Found:
    """Recover, check; recover again, and see that it is the same; claim all jobs."""
    found = await found_on(disk, clock, seed, 8)
    check(told, found, end)
    host = Host(disk.kill(), clock, seed, 9)
    await host.server.recover()
    is_same(found, await host.look(look()))
    claimed = await host.look(drain(found))
    nothing_is_stuck(found, claimed, await host.look(look()))
    await host.end()
    return found


async def check_crash(seed: int, point: CrashAt, seeds: Iterable[int]) -> None:
    """Crash there, and look at all that may come of it."""
    play = Play(seed, MemoryDisk(hooks=[Lifeline(point)]))
    with noted(f"seed {seed}, {point}"):
        await play.run()
        assert play.disk.is_dead, "this operation was not reached"
        for name, after in play.disk.aftermaths(seeds):
            with noted(name):
                await check_after(after, play.told, play.clock, seed, "kill" if name == "kill" else "power loss")


def points_of(operations: list[Operation], seed: int, most: int) -> list[CrashAt]:
    """Some of the points at which a run may crash, all kinds of operations among them."""
    points = list(crash_points(operations))
    return random.Random(seed).sample(points, min(most, len(points)))


async def check_fault(seed: int, fault: Faulty) -> int:
    """A fault that does not kill; how often it struck."""
    play = Play(seed, MemoryDisk(hooks=[fault]), told=Told(is_faulty=True))
    with noted(f"seed {seed}, a {fault.kind} fails: {fault.at}, {fault.part}, {errno.errorcode[fault.error]}"):
        await end_of(play)
        with noted("kill"):
            await check_after(play.disk.kill(), play.told, play.clock, seed, "kill")
    return fault.failed


def faults_of(seed: int, most: int) -> Iterator[Faulty]:
    rng = random.Random(seed)
    for _ in range(most):
        kind = rng.choice(("write", "write", "sync"))
        at = rng.randrange(10, 90 if kind == "write" else 40)
        yield Faulty(
            kind,  # type: ignore[arg-type]
            at,
            error=rng.choice((errno.EIO, errno.ENOSPC)),
            part=rng.choice((0, 10, 200)) if kind == "write" else 0,
            name="log-*",
        )


@pytest.mark.parametrize("seed", SAMPLED_SEEDS[: tries(12)])
async def test_clients_that_pipeline_are_told_the_truth_and_a_kill_changes_nothing(seed: int) -> None:
    """ST17, S5, G1, G3, G8, G9, G11, G12, G13, G15, WR10, DU3: all is answered, exact, and there after a kill."""
    strays = quiet()
    play = Play(seed)
    await end_of(play)
    assert play.checkpoints, "nothing came between the requests"
    await check_after(play.disk.kill(), play.told, play.clock, seed, "kill")
    assert strays == []


async def test_a_play_is_repeated_exactly() -> None:
    """Else a crash point of one run would be none of the next."""
    quiet()
    assert await operations_of(1) == await operations_of(1)


@pytest.mark.parametrize("seed", CRASHED_SEEDS)
async def test_a_crash_under_pipelined_requests_loses_nothing_promised(seed: int) -> None:
    """ST17, G1, G2, G3, G4, G8, G9, G11, G12, G13, WR10, DU3, DU4: a sample of the full sweep below."""
    quiet()
    for point in points_of(await operations_of(seed), seed, SAMPLED_POINTS):
        await check_crash(seed, point, seeds=[point.n])


@pytest.mark.parametrize("seed", CRASHED_SEEDS)
async def test_a_disk_that_fails_under_pipelined_requests_ends_them_all(seed: int) -> None:
    """ST17, ST4, ER7, G15, WR10: what was refused is absent, what was acked is there, now and after a kill."""
    strays = quiet()
    assert sum([await check_fault(seed, fault) for fault in faults_of(seed, SAMPLED_POINTS)]) > 0
    assert strays == []


@pytest.mark.parametrize("seed", range(tries(4)))
async def test_life_after_life_nothing_told_is_ever_contradicted(seed: int) -> None:
    """ST17, G3, G9, G11, G12, DU10, S5: kills in series on one disk; clients go on where they were cut off."""
    quiet()
    rng, disk, told, clock = random.Random(seed), MemoryDisk(), Told(), ManualClock()
    held = []
    for life in range(LIVES):
        play = Play(seed, disk, life=life, calls=200, told=told, clock=clock)
        play.workload.held = [job for job in held if job.seq in told.held[job.topic]]
        disk.hooks = [hook := Lifeline(CrashAt(rng.randrange(60, 250)))]
        hook.wire = play.host.wire
        with noted(f"seed {seed}, life {life}"):
            await play.run()
            if not disk.is_dead:
                await check_end(play)
            found = await check_after(disk.kill(), told, clock, seed, "kill")
            told.adopt(found)
        held, disk = play.workload.held, disk.kill()


@pytest.mark.full
@pytest.mark.parametrize("seed", FULL_SEEDS)
async def test_many_plays_are_told_the_truth(seed: int) -> None:
    """ST17, S5, G1, G3, G8, G9, G11, G12, G13, G15, WR10, DU3"""
    strays = quiet()
    play = Play(seed)
    await end_of(play)
    await check_after(play.disk.kill(), play.told, play.clock, seed, "kill")
    assert strays == []


@pytest.mark.full
@pytest.mark.parametrize("seed", range(100, 110))
async def test_a_crash_at_many_operations_under_pipelined_requests_loses_nothing_promised(seed: int) -> None:
    """ST17, G1, G2, G3, G4, G8, G9, G11, G12, G13, WR10, DU3, DU4"""
    quiet()
    for point in points_of(await operations_of(seed), seed, FULL_POINTS):
        await check_crash(seed, point, seeds=[point.n, -point.n])


@pytest.mark.full
@pytest.mark.parametrize("seed", range(100, 110))
async def test_many_faults_under_pipelined_requests_end_in_an_error_and_in_nothing_else(seed: int) -> None:
    """ST17, ST4, ER7, G15, WR10"""
    strays = quiet()
    assert sum([await check_fault(seed, fault) for fault in faults_of(seed, FULL_POINTS)]) > 0
    assert strays == []
