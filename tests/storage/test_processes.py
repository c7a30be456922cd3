"""The helper process that syncs: started when needed, replaced when it dies, gone when its server is."""

import asyncio
import contextlib
import errno
import os
import signal
from pathlib import Path

import pytest

from tests.storage.outside import LOOPS, descriptors, has_ended, python, run
from topics.storage.disk import RealDisk
from topics.storage.processes import BUFFERS_MAX, SHARED_STEP_BYTES, SharedMemory


def test_the_helper_gets_a_file_once_and_lets_go_of_it_on_close(helped: RealDisk) -> None:
    async def main() -> None:
        barrier = helped.create("barrier")
        await helped.sync(barrier)
        assert helped.helper_pid is not None
        before = descriptors(helped.helper_pid)
        files = [helped.create(f"f{n}") for n in range(20)]
        for file in files * 2:
            await helped.sync(file)
        assert descriptors(helped.helper_pid) == before + 20
        for file in files[:10]:
            file.close()
        for file in files[10:]:
            await helped.run(file.close)
        await helped.sync(barrier)
        assert descriptors(helped.helper_pid) == before

    run(main())


def test_the_helper_lets_go_of_a_file_whose_sync_failed(helped: RealDisk) -> None:
    """ST4: the kernel reports a lost write once, so a sync asked for before that was known must fail, too."""
    os.mkfifo(Path(helped.path) / "fifo", 0o600)

    async def main() -> None:
        fifo, file = helped.open("fifo"), helped.create("a")
        await helped.sync(file)
        assert helped.helper_pid is not None
        before = descriptors(helped.helper_pid)
        for _ in range(3):
            first, second = await asyncio.gather(helped.sync(fifo), helped.sync(fifo), return_exceptions=True)
            assert isinstance(first, OSError) and first.errno == errno.EINVAL
            assert isinstance(second, OSError) and second.errno == errno.EIO
        assert descriptors(helped.helper_pid) == before

    run(main())


def test_a_helper_killed_in_a_sync_fails_that_sync_and_a_new_one_goes_on(helped: RealDisk) -> None:
    """ST4: what may not have been done is never reported as done."""

    async def main() -> None:
        file, other = helped.create("a"), helped.create("b")
        await helped.sync(file)
        first = helped.helper_pid
        assert first is not None
        os.kill(first, signal.SIGSTOP)
        pending = [asyncio.ensure_future(helped.sync(f)) for f in (file, other, file)]
        await asyncio.sleep(0)
        assert not any(task.done() for task in pending)
        os.kill(first, signal.SIGKILL)
        for result in await asyncio.gather(*pending, return_exceptions=True):
            assert isinstance(result, OSError) and "helper ended" in str(result)
        await helped.sync(file)
        await helped.sync(other)
        assert helped.helper_pid not in (None, first)
        with pytest.raises(ProcessLookupError):  # reaped, too
            os.kill(first, 0)

    run(main())


def test_a_helper_that_owes_an_answer_from_one_look_to_the_next_is_killed(helped: RealDisk) -> None:
    """SC3: one that answers, or has nothing to do, is left alone."""

    async def main() -> None:
        file = helped.create("a")
        for _ in range(3):
            await helped.sync(file)
            helped.kill_if_silent()
        first = helped.helper_pid
        assert first is not None
        os.kill(first, signal.SIGSTOP)
        pending = asyncio.ensure_future(helped.sync(file))
        await asyncio.sleep(0)
        helped.kill_if_silent()
        os.kill(first, signal.SIGCONT)
        await pending
        os.kill(first, signal.SIGSTOP)
        pending = asyncio.ensure_future(helped.sync(file))
        await asyncio.sleep(0)
        helped.kill_if_silent()
        assert not pending.done()
        helped.kill_if_silent()
        with pytest.raises(OSError, match="helper ended"):
            await pending
        await helped.sync(file)
        assert helped.helper_pid not in (None, first)

    run(main())


@pytest.mark.parametrize("loop", LOOPS)
def test_a_helper_killed_between_syncs_is_replaced(helped: RealDisk, loop: str) -> None:
    """ST4: at most the one sync that met the dead helper fails."""

    async def main() -> None:
        file = helped.create("a")
        await helped.sync(file)
        first = helped.helper_pid
        assert first is not None
        wait = has_ended(first)
        os.kill(first, signal.SIGKILL)
        wait()
        with contextlib.suppress(OSError):
            await helped.sync(file)
        await helped.sync(file)
        assert helped.helper_pid != first

    run(main(), loop)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_the_helper_ignores_what_a_terminal_or_service_manager_sends_to_all(helped: RealDisk, number: int) -> None:
    async def main() -> None:
        file = helped.create("a")
        syncing = asyncio.ensure_future(helped.sync(file))
        await asyncio.sleep(0)
        pid = helped.helper_pid
        assert pid is not None
        os.kill(pid, number)  # while it starts
        await syncing
        os.kill(pid, number)
        await helped.sync(file)
        assert helped.helper_pid == pid

    run(main())


def test_more_syncs_than_the_socket_holds_wait_their_turn(helped: RealDisk) -> None:
    async def main() -> None:
        files = [helped.create(f"f{n}") for n in range(100)]
        await helped.sync(files[0])
        assert helped.helper_pid is not None
        os.kill(helped.helper_pid, signal.SIGSTOP)
        syncs = [asyncio.ensure_future(helped.sync(files[n % 100])) for n in range(2000)]
        await asyncio.sleep(0)
        for file in files[50:]:
            file.close()
        os.kill(helped.helper_pid, signal.SIGCONT)
        await asyncio.gather(*syncs)
        await helped.sync(files[0])
        before_close = descriptors(helped.helper_pid)
        for file in files[1:]:
            file.close()
        await helped.sync(files[0])
        assert descriptors(helped.helper_pid) == before_close - 49

    run(main())


def test_closing_the_disk_fails_pending_syncs_and_ends_the_helper(helped: RealDisk) -> None:
    """G15: nothing hangs."""

    async def main() -> None:
        file = helped.create("a")
        await helped.sync(file)
        assert helped.helper_pid is not None
        wait = has_ended(helped.helper_pid)
        pending = asyncio.ensure_future(helped.sync(file))
        await asyncio.sleep(0)
        helped.close()
        with pytest.raises(OSError):
            await pending
        wait()

    run(main())


def test_the_helper_goes_when_its_server_is_killed(tmp_path: Path) -> None:
    source = """
import asyncio, sys
from topics.storage.disk import RealDisk
async def main():
    disk = RealDisk(sys.argv[1], sync="process")
    await disk.sync(disk.create("a"))
    print(disk.helper_pid, flush=True)
    sys.stdin.read()
asyncio.run(main())
"""
    with python(source, tmp_path) as process:
        assert process.stdout is not None
        wait = has_ended(int(process.stdout.readline()))
        process.kill()
        wait()


def test_two_loops_at_once_are_refused(helped: RealDisk) -> None:
    file = helped.create("a")

    async def main() -> None:
        await helped.sync(file)
        with pytest.raises(RuntimeError, match="one event loop at a time"):
            await asyncio.to_thread(lambda: run(helped.sync(file)))
        await helped.sync(file)

    run(main())


def test_shared_memory_holds_what_was_put_there_last_in_the_order_of_the_buffers() -> None:
    """LM10: in steps, however many buffers there are and however large they are."""
    memory = SharedMemory()
    many = [b"%d," % number for number in range(3 * BUFFERS_MAX)]
    large = [os.urandom(1000), os.urandom(SHARED_STEP_BYTES + 1), b"", os.urandom(2 * SHARED_STEP_BYTES)]
    try:
        for buffers in (many, large, [b"short"]):
            steps = list(memory.put(buffers))
            assert steps[-1] == len(b"".join(buffers))
            assert all(stop - start <= SHARED_STEP_BYTES for start, stop in zip([0, *steps], steps, strict=False))
            assert memory.view(steps[-1]) == b"".join(buffers)
        again = SharedMemory(memory.descriptor)
        assert again.view(5) == b"short"
        memory.clear()
        assert os.fstat(memory.descriptor).st_size == 0
    finally:
        memory.close()
