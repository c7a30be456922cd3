"""Faults that do not kill: the disk fails once or for ever, and the process goes on.

Every call ends; what was acked can be read, now and after a crash as its class promises; what
failed can not, and does not come back.
"""

import errno
from collections.abc import Iterator
from itertools import count

import pytest

from tests.crash.check import Aftermath, check_recovered
from tests.crash.history import History, observe, predict
from tests.crash.run import Run, finished
from tests.crash.script import Script
from tests.crash.scripts import CHANGES, FINAL, SCRIPTS
from tests.crash.test_crash import ids, noted, operations_of, quiet, recovered, spread
from tests.effort import tries
from topics.engine import Engine
from topics.errors import Damaged, StorageError
from topics.testing.disk import Faulty, Interruption, MemoryDisk
from topics.testing.disk import Operation as FileOperation

# Of two scripts the oracle does not know the outcome: a failure undoes an expiry, or takes an ephemeral topic's records
FAULTED = [script for script in SCRIPTS if script not in (FINAL, CHANGES)]
SAMPLED_FAULTS = tries(10)  # per script


class Fault:
    """Operation `n` of the run fails, of whatever kind it is; with `is_lasting` all later ones of its kind do, too."""

    def __init__(self, n: int, *, is_lasting: bool = False, error: int = errno.EIO, part: int = 0) -> None:
        self.n, self.is_lasting, self.error, self.part = n, is_lasting, error, part
        self.kind = ""
        self.is_over = False
        self._seen = count()

    def __call__(self, disk: MemoryDisk, operation: FileOperation) -> Interruption | None:
        if self.is_over:
            return None
        number = next(self._seen)
        if number == self.n:
            self.kind = operation.kind
        if number < self.n or operation.kind != self.kind or (number > self.n and not self.is_lasting):
            return None
        return Faulty(operation.kind, error=self.error, part=self.part)(disk, operation)

    def __repr__(self) -> str:
        return f"Fault({self.n}, is_lasting={self.is_lasting}, error={errno.errorcode[self.error]}, part={self.part})"


def faults(operations: list[FileOperation]) -> Iterator[Fault]:
    for n, operation in enumerate(operations):
        for is_lasting in (False, True):
            yield Fault(n, is_lasting=is_lasting)
            if operation.kind in ("write", "create"):
                yield Fault(n, is_lasting=is_lasting, error=errno.ENOSPC)
            if operation.kind == "write":
                yield Fault(n, is_lasting=is_lasting, part=10)
                yield Fault(n, is_lasting=False, part=operation.size - 1)


async def check_fault(script: Script, fault: Fault) -> None:
    run = Run(script, [fault], is_faulty=True)
    with noted(f"script {script.name!r}, {fault} of a {fault.kind}"):
        await run.play()
        run.history.check_answers()
        assert all(call.has_ended for call in run.history.calls), "G15: a call never ended"
        is_up = run.is_up and run.start_failure is None
        if is_up:
            await finished(what_was_acked_is_there_and_what_failed_is_not(run))
        await check_what_comes_after(run, fault)
        if is_up and run.engine is not None:
            fault.is_over = True
            await finished(run.engine.close())
            with noted("closed gracefully"):
                engine = await recovered(run, run.disk.kill())
                await check_one_of(possible(run, fault), engine, run, Aftermath("closed", may_be_clean=True))


async def what_was_acked_is_there_and_what_failed_is_not(run: Run) -> None:
    """ER7, ST4: the state is that of the calls that did not fail."""
    assert run.engine is not None
    seen, oracle = await observe(run.engine), run.history.now
    assert sorted(seen) == oracle.names()
    for name, found in seen.items():
        if run.engine.wal.is_read_only and found.config.ttl_ms:
            continue  # what expires can no longer be logged, so it stays
        expected = predict(oracle, name, run.clock.now_ms())
        assert (found.config, found.head, found.records, found.told) == (
            expected.config,
            expected.head,
            expected.records,
            expected.told,
        ), name


async def check_what_comes_after(run: Run, fault: Fault) -> None:
    """A kill, and a loss of power.

    What nobody can promise: what a disk that syncs no more has after a loss of power; and that frames which
    it took, but did not sync, never come back, if it does not let them be marked as void.
    """
    for name, after in run.disk.aftermaths(seeds=[fault.n]):
        is_power_loss = "power" in name or run.stop in ("lost", "kept", "torn")
        if is_power_loss and fault.is_lasting and fault.kind in ("sync", "sync_directory"):
            continue
        with noted(name):
            engine = await recovered(run, after)
            aftermath = Aftermath(name, is_power_loss, may_be_clean=run.stop == "gracefully")
            await check_one_of(possible(run, fault), engine, run, aftermath)


def possible(run: Run, fault: Fault) -> list[History]:
    is_stuck = fault.is_lasting and fault.kind == "write"
    return [run.history, *(run.history.with_failed() if is_stuck else ())]


async def check_one_of(histories: list[History], engine: Engine, run: Run, aftermath: Aftermath) -> None:
    for number, history in enumerate(histories):
        try:
            await check_recovered(history, engine, run.clock, aftermath)
            return
        except AssertionError:
            if number == len(histories) - 1:
                raise


@pytest.mark.parametrize("script", FAULTED, ids=ids(FAULTED))
async def test_some_faults_end_in_an_error_and_in_nothing_else(script: Script) -> None:
    """ER7, ST4, G15: a sample of the full sweep below."""
    quiet()
    all_faults = list(faults(await operations_of(script)))
    for fault in spread(all_faults, SAMPLED_FAULTS):
        await check_fault(script, fault)


@pytest.mark.full
@pytest.mark.parametrize("script", FAULTED, ids=ids(FAULTED))
async def test_every_fault_ends_in_an_error_and_in_nothing_else(script: Script) -> None:
    """ER7, ST4, G15, G1, G2, DL8, WR9, WR10, TP13, ID4: every file operation fails, once and for ever."""
    quiet()
    for fault in faults(await operations_of(script)):
        await check_fault(script, fault)


async def test_a_state_that_cannot_be_read_back_after_a_failure_is_not_served() -> None:
    """ST12, G15: no spinning, no stale answers, no snapshot of what is not on the disk."""
    run = Run(Script("damaged meanwhile", []))
    await run.play()
    engine, disk = run.engine, run.disk
    assert engine is not None
    await engine.put_topic("f", {"durability": "fsync"})
    for n in range(5):
        await engine.append("f", [{"data": n}])
    name = max(name for name in disk.names() if name.startswith("log-"))
    file = disk.open(name)
    byte = file.read(200, 1)
    file.write(200, bytes([byte[0] ^ 1]))
    disk.hooks.append(Faulty("sync"))
    with pytest.raises(StorageError):
        await engine.append("f", [{"data": "fails"}])
    for call in (engine.read("f"), engine.topic_state("f"), engine.topic_names(), engine.append("f", [{"data": 1}])):
        with pytest.raises(StorageError):
            await finished(call)
    snapshots = [name for name in disk.names() if name.startswith("snapshot-")]
    await finished(engine.close())
    assert [name for name in disk.kill().names() if name.startswith("snapshot-")] == snapshots
    with pytest.raises(Damaged, match=name):
        await run.open(disk.kill()).start()
