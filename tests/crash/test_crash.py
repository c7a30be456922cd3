"""The sweep: crash at every file operation of every script, in every way; recover, check, recover again."""

import asyncio
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import TypeVar

import pytest

from tests.crash.check import Aftermath, check_recovered, is_same_state, keys_and_seqs_go_on
from tests.crash.history import Seen, observe
from tests.crash.run import Run, finished
from tests.crash.script import Script
from tests.crash.scripts import SCRIPTS
from tests.effort import is_quick, tries
from topics.engine import Engine
from topics.testing.disk import (
    CrashAt,
    MemoryDisk,
    Operation,
    OrderMonitor,
    crash_points,
    installed_before_remove,
    synced_before_rename,
)

T = TypeVar("T")

SAMPLED_POINTS = tries(13)  # crash points per script
SAMPLED_POINTS_IN_RECOVERY = 0 if is_quick() else 3  # those of them at which recovery crashes, too


def monitor() -> OrderMonitor:
    return OrderMonitor([synced_before_rename(), installed_before_remove("snapshot-*[!p]"), entry_before_frames])


def entry_before_frames(disk: MemoryDisk, operation: Operation) -> str | None:
    """ST5: a log file gets its first frame only when its directory entry is synced."""
    is_frame = operation.kind == "write" and operation.name.startswith("log-") and operation.offset > 0
    return "its directory entry is not synced" if is_frame and not disk.is_entry_synced(operation.name) else None


async def operations_of(script: Script) -> list[Operation]:
    """The file operations of a run without a crash, over all restarts."""
    made: list[Operation] = []

    def note(disk: MemoryDisk, operation: Operation) -> None:
        made.append(operation)

    run = Run(script, [note])
    await run.play()
    run.history.check_answers()
    assert run.engine is not None
    await run.engine.close()
    return made


async def recovered(run: Run, disk: MemoryDisk) -> Engine:
    engine = run.open(disk)
    await finished(engine.start(), lambda: disk.is_dead)
    return engine


async def check_crash(script: Script, point: CrashAt, seeds: Iterable[int], depth: int) -> None:
    """Crash there, and look at all that may come of it. `depth` is how often recovery itself crashes."""
    run, order = Run(script, [point]), monitor()
    run.disk.hooks.append(order)
    await run.play()
    if not run.disk.is_dead and run.engine is not None:
        run.stop = "gracefully"
        await finished(run.engine.close(), lambda: run.disk.is_dead)
    order.check()
    for name, after in run.disk.aftermaths(seeds):
        is_second = run.stop in ("lost", "kept", "torn")
        aftermath = Aftermath(name, "power" in name or is_second, False, run.stop == "gracefully", is_second)
        with noted(f"script {script.name!r}, {point}, {name}"):
            await check_aftermath(run, after, aftermath, depth)


async def check_aftermath(run: Run, disk: MemoryDisk, aftermath: Aftermath, depth: int) -> None:
    crashed_before = disk.kill()
    engine = await recovered(run, disk)
    oracle = await check_recovered(run.history, engine, run.clock, aftermath)
    seen = await observe(engine)
    operations = len(disk.operations)
    again = await recovered(run, disk.kill())
    is_same_state(seen, await observe(again))
    await keys_and_seqs_go_on(run.history, oracle, again, run.clock)
    if depth:
        await check_crashes_in_recovery(run, crashed_before, operations, seen, aftermath, depth)


async def check_crashes_in_recovery(
    run: Run, disk: MemoryDisk, operations: int, seen: Seen, aftermath: Aftermath, depth: int
) -> None:
    """G4: a crash inside recovery, and another recovery, give the same state."""
    for n in range(0, operations, depth):
        for mode in ("before", "torn", "after"):
            dying = disk.kill()
            dying.hooks.append(CrashAt(n, mode))
            await recovered(run, dying)
            for name, after in dying.aftermaths(seeds=[n]):
                with noted(f"recovery crashed {mode} {n}, then {name}"):
                    engine = await recovered(run, after)
                    if name == "kill" or (aftermath.is_power_loss and not aftermath.may_be_clean):
                        is_same_state(seen, await observe(engine))
                    else:
                        later = replace(aftermath, is_power_loss=True)
                        await check_recovered(run.history, engine, run.clock, later)


@contextmanager
def noted(where: str) -> Iterator[None]:
    """Let a failure say where it happened."""
    try:
        yield
    except BaseException as error:
        error.add_note(where)
        raise


def quiet() -> None:
    """Tasks of a dead process end in Crashed, and nobody hears of it."""
    asyncio.get_running_loop().set_exception_handler(lambda loop, context: None)


def ids(scripts: Sequence[Script]) -> list[str]:
    return [script.name for script in scripts]


def spread(points: Sequence[T], count: int) -> list[T]:
    """So many of the points, evenly over all of them."""
    return [points[(2 * n + 1) * len(points) // (2 * count)] for n in range(count)]


@pytest.mark.parametrize("script", SCRIPTS, ids=ids(SCRIPTS))
async def test_without_a_crash_every_answer_is_the_oracles(script: Script) -> None:
    """DU1, DU5, DU9, S13, S16: the scripts themselves, with their restarts, do what the oracle does."""
    quiet()
    assert len(await operations_of(script)) > 20


@pytest.mark.parametrize("script", SCRIPTS, ids=ids(SCRIPTS))
async def test_after_a_crash_at_some_operations_nothing_promised_is_lost(script: Script) -> None:
    """G1, G2, G3, G4, G6, G8, G9, G10, G12, G13, TM15: a sample of the full sweep below."""
    quiet()
    points = list(crash_points(await operations_of(script)))
    for point in spread(points, SAMPLED_POINTS):
        await check_crash(script, point, seeds=[point.n], depth=0)
    for point in spread(points, SAMPLED_POINTS_IN_RECOVERY):
        await check_crash(script, point, seeds=[], depth=5)


@pytest.mark.full
@pytest.mark.parametrize("script", SCRIPTS, ids=ids(SCRIPTS))
async def test_after_a_crash_at_any_operation_nothing_promised_is_lost(script: Script) -> None:
    """G1, G2, G3, G4, G6, G7, G8, G9, G10, G12, G13: every operation, every way to crash there.

    So these hold after any crash, too: DL4, DL8, DL9, DU1, DU2, DU3, DU4, DU5, DU7, DU8, DU9, DU10, ID8, S6, S13,
    S16, ST5, ST7, ST8, ST9, ST10, TM12, TM14, TM15, TP13, TP16, WR4, WR9, WR10.
    """
    quiet()
    for point in crash_points(await operations_of(script)):
        await check_crash(script, point, seeds=[point.n, -point.n], depth=0)


@pytest.mark.full
@pytest.mark.parametrize("script", SCRIPTS, ids=ids(SCRIPTS))
async def test_a_crash_inside_recovery_changes_nothing(script: Script) -> None:
    """G4, ST8: after a crash at every eighth point, recovery itself crashes at each of its own operations."""
    quiet()
    for point in list(crash_points(await operations_of(script)))[::8]:
        await check_crash(script, point, seeds=[], depth=1)
