"""Helpers that are killed or stopped, rights that are missing, limits of the system, a second server: for real."""

import asyncio
import os
import signal
from collections.abc import Callable
from pathlib import Path

from tests.faults.case import Area, Play
from tests.faults.lab import Lab
from tests.faults.real import Real, acked, child, directory, read, refused, stopped
from tests.storage.outside import has_ended
from topics.engine import Engine
from topics.errors import DirectoryLocked
from topics.testing.clock import ManualClock

HELPERS = Area("Helpers", "process")
RIGHTS = Area("Permissions, limits and a second server", "process")


def killed(pid: int | None) -> None:
    assert pid is not None
    wait = has_ended(pid)
    os.kill(pid, signal.SIGKILL)
    wait()


@HELPERS.case("sync helper killed", "the sync helper gets SIGKILL between two appends", "G1 G2")
async def _(lab: Lab) -> None:
    async with Real.started() as real:
        await real.appends(3, "before")
        killed(real.disk.helper_pid)
        lab.strikes += 1
        await real.appends(3, "after")
        await real.settle()


@HELPERS.case("sync helper killed in a sync", "the sync helper gets SIGKILL while an append waits for it", "G1 G2 G15")
async def _(lab: Lab) -> None:
    async with Real.started() as real:
        await real.appends(3, "before")
        pid = real.disk.helper_pid
        assert pid is not None
        os.kill(pid, signal.SIGSTOP)
        append = asyncio.ensure_future(real.append("fsync", "in a sync"))
        for _ in range(20):
            await asyncio.sleep(0)
        assert not append.done(), "acked without a sync"
        os.kill(pid, signal.SIGKILL)
        lab.strikes += 1
        assert not await append, "acked by a sync that may never have been"
        await real.settle()


@HELPERS.case("sync helper stopped", "the sync helper gets SIGSTOP, and SIGCONT when appends wait for it", "G1 G15")
async def _(lab: Lab) -> None:
    async with Real.started() as real:
        await real.appends(3, "before")
        pid = real.disk.helper_pid
        assert pid is not None
        os.kill(pid, signal.SIGSTOP)
        lab.strikes += 1
        appends = [asyncio.ensure_future(real.append("fsync", f"stopped {n}")) for n in range(5)]
        for _ in range(20):
            await asyncio.sleep(0)
        assert not any(append.done() for append in appends), "acked without a sync"
        os.kill(pid, signal.SIGCONT)
        assert all(await asyncio.gather(*appends))


@HELPERS.case("sync helper killed again and again", "the sync helper gets SIGKILL five times", "G1 G2")
async def _(lab: Lab) -> None:
    async with Real.started() as real:
        for round in range(5):
            await real.settle()
            killed(real.disk.helper_pid)
            lab.strikes += 1
            await real.appends(2, f"round {round}")
        await real.settle()


@HELPERS.case("sealing helper killed", "the sealing helper gets SIGKILL before a checkpoint", "G1 G6")
async def _(lab: Lab) -> None:
    async with Real.started() as real:
        await real.seal("first")
        killed(real.sealer_pid)
        lab.strikes += 1
        await real.seal("second")
        real.clock.advance(61_000)
        await real.seal("third")
        assert real.sealer_pid is not None, "it was not started again"


@HELPERS.case("sealing helper killed at work", "the sealing helper gets SIGKILL while it seals", "G1 G6 G15")
async def _(lab: Lab) -> None:
    async with Real.started() as real:
        await real.seal("first")
        pid = real.sealer_pid
        assert pid is not None
        os.kill(pid, signal.SIGSTOP)
        sealing = asyncio.ensure_future(real.seal("second"))
        for _ in range(200):
            await asyncio.sleep(0)
        killed(pid)
        lab.strikes += 1
        await sealing


@HELPERS.case("both killed", "both helpers get SIGKILL at once", "G1 G2 G6")
async def _(lab: Lab) -> None:
    async with Real.started() as real:
        await real.seal("first")
        killed(real.sealer_pid)
        killed(real.disk.helper_pid)
        lab.strikes += 1
        await real.appends(3, "after")
        await real.settle()
        await real.seal("second")


# --- rights and limits


def newest(path: Path, pattern: str) -> Path:
    return max(path.glob(pattern))


def without_right(pattern: str, mode: int) -> Play:
    """The start is refused, and says why; with the right back, everything is there."""

    async def play(lab: Lab) -> None:
        with directory() as path:
            first = await child(path, 5)
            assert acked(first) == [0, 1, 2, 3, 4]
            harmed = path if pattern == "." else newest(path, pattern)
            before = harmed.stat().st_mode
            harmed.chmod(mode)
            lab.strikes += 1
            said = stopped(await child(path, 3))
            assert ("Permission denied" in said or "may not read and write" in said) and str(path) in said, said
            harmed.chmod(before)
            again = await child(path, 1)
            assert read(again) == 6, "G1: what was acked is not there"

    return play


RIGHTS.add(
    "directory not writable",
    "the data directory belongs to the server, without the right to write",
    "G1 G4",
    without_right(".", 0o555),
)
RIGHTS.add("directory not readable", "the data directory cannot be entered", "G1 G4", without_right(".", 0o000))
RIGHTS.add("log not readable", "the newest log cannot be read", "G1 G5", without_right("log-*", 0o000))
RIGHTS.add(
    "snapshot not readable", "the newest snapshot cannot be read", "G1 G5 G6", without_right("snapshot-*", 0o000)
)
RIGHTS.add("log not writable", "the newest log can be read, and not written", "G1 G4", without_right("log-*", 0o444))


def limited(limit: Callable[[Path], str], count: int, size: int) -> Play:
    """Some writes are refused by a limit of the process; the next process has what was acked, and nothing else."""

    async def play(lab: Lab) -> None:
        with directory() as path:
            said = await child(path, count, size, limit(path))
            if said[0][0] == "stopped":
                lab.strikes += 1
                assert read(await child(path, 1)) == 1
                return
            assert refused(said), "the limit was never reached"
            lab.strikes += len(refused(said))
            assert read(said) <= len(acked(said)), "ER7: a refused write can be read"
            assert read(await child(path, 0)) == len(acked(said)), "G1, G2: not what was acked"

    return play


RIGHTS.add(
    "largest file",
    "RLIMIT_FSIZE: the log cannot grow above 1.2 MB (EFBIG)",
    "G1 G2",
    limited(lambda _: "RLIMIT_FSIZE=1200000", 12, 200_000),
)
RIGHTS.add(
    "no file at all",
    "RLIMIT_FSIZE of 100 bytes: nothing can be written",
    "G4 G15",
    limited(lambda _: "RLIMIT_FSIZE=100", 3, 10),
)
RIGHTS.add(
    "few descriptors",
    "RLIMIT_NOFILE: hardly a descriptor is left for the server",
    "G1 G15",
    limited(lambda _: "RLIMIT_NOFILE=12", 3, 10),
)


@RIGHTS.case("second server", "a second server starts on the directory of a running one", "G2 G3")
async def _(lab: Lab) -> None:
    async with Real.started() as real:
        await real.appends(2, "first")
        try:
            await Engine.open(str(real.path), clock=ManualClock(), background=False).start()
            raise AssertionError("ST11: two servers on one directory")
        except DirectoryLocked:
            lab.strikes += 1
        await real.appends(2, "then")


@RIGHTS.case("second server, lock removed", "the lock file is removed, then a second server starts", "G2 G3")
async def _(lab: Lab) -> None:
    async with Real.started() as real:
        await real.appends(2, "first")
        for lock in real.path.glob("lock"):
            lock.unlink()
        try:
            await Engine.open(str(real.path), clock=ManualClock(), background=False).start()
            raise AssertionError("ST14: two servers on one directory")
        except DirectoryLocked:
            lab.strikes += 1
        await real.appends(2, "then")


@RIGHTS.case("a directory where a file should be", "a directory lies where the next log is to be made", "G1 G15")
async def _(lab: Lab) -> None:
    with directory() as path:
        assert len(acked(await child(path, 3))) == 3
        (path / "log-0000000002").mkdir()
        lab.strikes += 1
        assert "log-0000000002" in stopped(await child(path, 1))
        (path / "log-0000000002").rmdir()
        assert read(await child(path, 1)) == 4
