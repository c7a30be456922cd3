"""The sweep with routers: copies keep their seqs whatever crashes, and none is a link to its source.

The scripts forward after every operation, and time passes between them: a copy that was lost and made again would
have another time, so that the state would be that after no commit.
"""

import asyncio
import errno
import json
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from tests.crash.script import Script
from tests.crash.scripts import ROUTED_SCRIPTS
from tests.crash.test_crash import SAMPLED_POINTS, check_crash, ids, noted, operations_of, quiet, spread
from tests.crash.test_faults import Fault
from tests.effort import stride
from topics.engine import Engine
from topics.errors import StorageError
from topics.testing.clock import ManualClock
from topics.testing.disk import MemoryDisk, crash_points


@pytest.mark.parametrize("script", ROUTED_SCRIPTS, ids=ids(ROUTED_SCRIPTS))
async def test_without_a_crash_every_answer_is_the_oracles(script: Script) -> None:
    """RT9, RT10, RT12, RT15, RT20, RT21, RT22, RT24, DU6: the scripts themselves, with their restarts."""
    quiet()
    assert len(await operations_of(script)) > 20


@pytest.mark.parametrize("script", ROUTED_SCRIPTS, ids=ids(ROUTED_SCRIPTS))
async def test_after_a_crash_at_some_operations_copies_are_where_they_were(script: Script) -> None:
    """G14, RT9, RT13, RT20, RT21, RT22, RT24, ST8, S3, S4, S15, S28: a sample of the full sweep below."""
    quiet()
    points = list(crash_points(await operations_of(script)))
    for point in spread(points, SAMPLED_POINTS):
        await check_crash(script, point, seeds=[point.n], depth=0)


@pytest.mark.full
@pytest.mark.parametrize("script", ROUTED_SCRIPTS, ids=ids(ROUTED_SCRIPTS))
async def test_after_a_crash_at_any_operation_copies_are_where_they_were(script: Script) -> None:
    """G14, RT9, RT13, RT20, RT21, RT22, RT24, ST8, S3, S4, S15, S28"""
    quiet()
    for point in crash_points(await operations_of(script)):
        await check_crash(script, point, seeds=[point.n, -point.n], depth=0)


SETTINGS = {"s": "fsync", "w": "disk", "e": "ephemeral", "f": "fsync", "d": "disk", "m": "ephemeral"}


async def play_with_faults(
    disk: MemoryDisk, clock: ManualClock, fault: Fault | None
) -> tuple[Engine, dict[str, list[int]]]:
    """Writes to three sources, each tried again until it is acked. Gives what was acked, by source."""
    engine = Engine.open("x", disk=disk, clock=clock, background=False)
    await engine.start()
    if fault is not None:
        disk.hooks.append(fault)
    for name, durability in SETTINGS.items():
        await persist(lambda name=name, kind=durability: engine.put_topic(name, {"durability": kind}))
    for pair in ("sf", "sd", "sm", "we", "eg"):
        await persist(lambda pair=pair: engine.put_router(pair, pair[0], pair[1]))
    acked: dict[str, list[int]] = {"s": [], "w": []}
    for number in range(6):
        for name, done in acked.items():
            await persist(lambda name=name, n=number: engine.append(name, [{"data": n}]))
            done.append(number)
        clock.advance(10_000)
        if number == 2:
            await persist(engine.checkpoint)
    return engine, acked


async def persist(work: Callable[[], Awaitable[Any]]) -> None:
    """Do it again until the disk takes it."""
    for _ in range(5):
        try:
            await work()
            return
        except (StorageError, OSError):
            continue
    raise AssertionError("the disk fails once only")


async def data_of(engine: Engine, name: str) -> list[int]:
    return [json.loads(bytes(record.data)) for record in (await engine.read(name)).records]


async def check_single_fault(fault: Fault | None, restarts: bool) -> int:
    """Whatever fails once, every record that was acked is copied to every dest, once and in order."""
    disk, clock = MemoryDisk(), ManualClock()
    engine, acked = await play_with_faults(disk, clock, fault)
    operations = len(disk.operations)
    for _ in range(10):
        clock.advance(10_000)
        await asyncio.sleep(0)
    assert [await data_of(engine, name) for name in "fdm"] == [acked["s"]] * 3
    assert [await data_of(engine, name) for name in "eg"] == [acked["w"]] * 2
    if restarts:
        again = Engine.open("x", disk=disk.kill(), clock=clock, background=False)
        await again.start()
        assert [await data_of(again, name) for name in "fd"] == [acked["s"]] * 2
        # What an ephemeral topic had is copied into it again, and on from there (G14)
        assert list(dict.fromkeys(await data_of(again, "g"))) == acked["w"]
    await engine.close()
    return operations


@pytest.mark.parametrize("part", [0, 10])
@pytest.mark.parametrize("error", [errno.EIO, errno.ENOSPC], ids=errno.errorcode.get)
async def test_whatever_fails_once_each_acked_record_is_copied_once(error: int, part: int) -> None:
    """RT13, RT15, RT24, ST4, ER7, G14"""
    quiet()
    operations = await check_single_fault(None, restarts=True)
    for n in range(0, operations, stride()):
        with noted(f"operation {n} fails"):
            await check_single_fault(Fault(n, error=error, part=part), restarts=True)
