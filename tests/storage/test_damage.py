"""Damage to a real data directory: harmless, repaired, or refused with file and place; never a wrong record.

Each directory is made by a script of the crash tests, so that its history is known. Then every
byte of every file is changed in turn, every file is cut at every length, and every file goes.
"""

import asyncio
from collections.abc import Iterator
from functools import cache

import pytest

from tests.crash.check import Aftermath, every_loss_is_announced, moment_of, routers_of
from tests.crash.history import observe
from tests.crash.run import Run
from tests.crash.script import Append, Checkpoint, Delete, Drop, Put, Restart, Script, records
from tests.crash.scripts import DISK, FSYNC, eq
from tests.effort import stride
from topics.core.topic import reservation
from topics.errors import Damaged, StorageError, UnusableDirectory
from topics.storage import wal
from topics.testing.disk import MemoryDisk

Files = dict[str, bytes]

WRITES = [
    Append("a", records("1@x", "2/n", "3@y/n", "4@x"), config=FSYNC, key="k1"),
    Append("b", records("1@x", "2"), config={**DISK, "cap_records": 3}),
    Append("gone", records("1")),
    Delete("a", match=eq("x")),
    Append("b", records("3", "4"), key="k2"),
    Drop("gone"),
]
MORE = [
    Append("a", records("5@x", "6")),
    Delete("a", before=3),
    Put("b", {**DISK, "cap_records": 2}),
    Append("c", records("1 ünïcödé 🦉"), config=DISK),
]

DIRECTORIES = {
    "log only": Script("log only", [*WRITES, Restart("kill"), *MORE]),
    "closed": Script("closed", [*WRITES, Restart(), *MORE, Restart(), Append("a", records("7")), Restart()]),
    "both": Script(
        "both", [*WRITES, Checkpoint(), *MORE, Checkpoint(), Append("a", records("7", "8")), Delete("a", 6)]
    ),
}
SAMPLED_STEP = 41 * min(3, stride())  # one place in so many is tried


@pytest.fixture(autouse=True)
def small_bounds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wal, "AHEAD_BYTES", 700)
    monkeypatch.setattr(reservation, "RESERVE", 8)


@cache
def built(name: str) -> tuple[Run, Files]:
    """A directory, and the run that made it. A closed one was closed by the script's last step."""
    script = DIRECTORIES[name]
    run = Run(script)
    is_closed = isinstance(script.steps[-1], Restart)
    if is_closed:
        run = Run(Script(name, script.steps[:-1]))

    async def play() -> Files:
        await run.play()
        if is_closed and run.engine is not None:
            await run.engine.close()
        return run.disk.files()

    return run, asyncio.run(play())


def newest_log(files: Files) -> str:
    return max((name for name in files if name.startswith("log-")), default="")


async def look(run: Run, files: Files, boot: int) -> tuple[int | None, StorageError | None]:
    """Open and read everything. Gives the number of the commit whose state it is, or how it was refused."""
    is_closed = isinstance(DIRECTORIES[run.script.name].steps[-1], Restart)
    aftermath = Aftermath(run.script.name, is_power_loss=boot != 1, may_be_clean=is_closed)
    engine = run.open(MemoryDisk(files, boot=boot))
    try:
        await engine.start()
        seen = await observe(engine)
    except StorageError as refusal:
        return None, refusal
    number, oracle = moment_of(run.history, seen, routers_of(engine), run.clock.now_ms(), aftermath)
    every_loss_is_announced(oracle, seen)
    return number, None


async def check(name: str, changed: str, files: Files, what: str, *, may_lose_tail: bool) -> None:
    run, _ = built(name)
    for boot in (1, 2):
        number, refusal = await look(run, files, boot)
        where = f"{name}: {changed}: {what}, boot {boot}"
        if refusal is not None:
            assert isinstance(refusal, Damaged | UnusableDirectory), f"{where}: {refusal!r}"
            assert "-0000" in str(refusal), f"{where}: the refusal names no file: {refusal}"
            if isinstance(refusal, Damaged):
                assert f"damaged at offset {refusal.offset}" in str(refusal), where
        elif not may_lose_tail:
            assert number == len(run.history.commits), f"{where}: only {number} commits are left, silently"


def flips(content: bytes, step: int) -> Iterator[tuple[int, bytes]]:
    for offset in range(0, len(content), step):
        mask = 0x5A if offset % 3 else 1 << offset % 8  # not 0xFF, which makes a delete flag of 0, and nobody can tell
        yield offset, content[:offset] + bytes([content[offset] ^ mask]) + content[offset + 1 :]


@pytest.mark.parametrize("name", DIRECTORIES)
async def test_an_intact_directory_opens_with_all_that_was_acked(name: str) -> None:
    """ST8: in the same boot and in another."""
    run, files = await asyncio.to_thread(built, name)
    for boot in (1, 2):
        number, refusal = await look(run, files, boot)
        assert (number, refusal) == (len(run.history.commits), None)
    kinds = {file.split("-")[0] for file in files}
    assert kinds == ({"log", "snapshot"} if name == "log only" else {"log", "segment", "snapshot"})


async def sweep_bytes(name: str, step: int) -> None:
    _, files = await asyncio.to_thread(built, name)
    for changed, content in files.items():
        for offset, hurt in flips(content, step):
            may_lose_tail = changed == newest_log(files)
            await check(name, changed, {**files, changed: hurt}, f"byte {offset}", may_lose_tail=may_lose_tail)


async def sweep_lengths(name: str, step: int) -> None:
    _, files = await asyncio.to_thread(built, name)
    for changed, content in files.items():
        for size in range(0, len(content), step):
            may_lose_tail = changed == newest_log(files)
            cut = {**files, changed: content[:size]}
            await check(name, changed, cut, f"cut to {size}", may_lose_tail=may_lose_tail)


@pytest.mark.parametrize("name", DIRECTORIES)
async def test_some_changed_bytes_are_harmless_or_found(name: str) -> None:
    """ST12, G5: a sample of the full sweep below."""
    await sweep_bytes(name, SAMPLED_STEP)


@pytest.mark.parametrize("name", DIRECTORIES)
async def test_files_cut_at_some_lengths_are_harmless_or_found(name: str) -> None:
    """ST12, G5: a sample of the full sweep below."""
    await sweep_lengths(name, SAMPLED_STEP)


@pytest.mark.full
@pytest.mark.parametrize("name", DIRECTORIES)
async def test_any_changed_byte_is_harmless_or_found(name: str) -> None:
    """ST12, G5: only the last frames of the newest log file may be lost, as a torn tail."""
    await sweep_bytes(name, 1)


@pytest.mark.full
@pytest.mark.parametrize("name", DIRECTORIES)
async def test_files_cut_at_any_length_are_harmless_or_found(name: str) -> None:
    """ST12, G5"""
    await sweep_lengths(name, 1)


@pytest.mark.parametrize("name", DIRECTORIES)
async def test_a_missing_file_is_found(name: str) -> None:
    """ST12, G5: all but the newest log file, of which no other file knows."""
    run, files = await asyncio.to_thread(built, name)
    for missing in files:
        rest = {file: content for file, content in files.items() if file != missing}
        for boot in (1, 2):
            number, refusal = await look(run, rest, boot)
            if missing != newest_log(files):
                assert refusal is not None or number == len(run.history.commits), missing
                assert refusal is None or "-0000" in str(refusal)


@pytest.mark.parametrize("name", ["closed", "both"])
@pytest.mark.parametrize("kind", ["snapshot", "segment"])
async def test_all_files_of_a_kind_missing_are_no_empty_start(name: str, kind: str) -> None:
    """ST12, G5"""
    run, files = await asyncio.to_thread(built, name)
    rest = {file: content for file, content in files.items() if not file.startswith(kind)}
    _, refusal = await look(run, rest, boot=1)
    assert isinstance(refusal, Damaged)


async def test_a_refused_start_changes_nothing() -> None:
    """ST11, ST12: the directory is as it was, for whoever repairs it."""
    run, files = await asyncio.to_thread(built, "both")
    for changed in files:
        if changed != newest_log(files):
            hurt = {**files, changed: files[changed][:20]}
            disk = MemoryDisk(hurt)
            with pytest.raises(StorageError):
                await run.open(disk).start()
            assert (disk.files(), disk.operations) == (hurt, [])


async def test_a_torn_tail_is_cut_and_logged(caplog: pytest.LogCaptureFixture) -> None:
    """ST8"""
    run, files = await asyncio.to_thread(built, "log only")
    name = newest_log(files)
    torn = files[name].rstrip(b"\0")[:-3]
    number, refusal = await look(run, {**files, name: torn}, boot=2)
    assert (number, refusal) == (len(run.history.commits) - 1, None)
    assert f"{name}: cut at offset" in caplog.text
