"""Syncs by the kernel's own queue: in order, failing together, given up when they hang; and where there is none."""

import asyncio
import errno
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.storage.outside import LOOPS, descriptors, run, without_kernel_queue
from topics.client import Client
from topics.storage.disk import RealDisk, RealFile
from topics.storage.syncing.kernel import KernelQueue
from topics.testing.server import ServerProcess

INSTEAD = "a helper process syncs instead"
POLL_ADD = 6  # an operation of the kernel that answers once something can be read


def has_queue() -> bool:
    async def main() -> None:
        KernelQueue(asyncio.get_running_loop()).end()

    try:
        run(main())
    except OSError:
        return False
    return True


pytestmark = pytest.mark.skipif(not has_queue(), reason="this kernel has no queue")


@pytest.fixture
def queued(tmp_path: Path) -> Iterator[RealDisk]:
    disk = RealDisk(tmp_path / "data", sync="kernel")
    yield disk
    disk.close()


@pytest.fixture
def fifo(queued: RealDisk) -> RealFile:
    """A file that cannot be synced."""
    os.mkfifo(Path(queued.path) / "fifo", 0o600)
    return queued.open("fifo")


@pytest.fixture
def slow(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """The kernel ends a sync of a fifo only once something is written to it."""
    monkeypatch.setattr(KernelQueue, "operation", POLL_ADD)
    return monkeypatch


@pytest.mark.parametrize("loop", LOOPS)
def test_the_kernel_syncs_without_a_helper(queued: RealDisk, loop: str) -> None:
    async def main() -> None:
        file = queued.create("a")
        for _ in range(20):  # more than the rings hold
            file.write(0, b"x")
            await queued.sync(file)
        assert queued.helper_pid is None

    run(main(), loop)


def test_a_file_whose_sync_failed_fails_those_that_wait(queued: RealDisk, fifo: RealFile) -> None:
    """ST4: the kernel reports a lost write once, so a sync asked for before that was known must fail, too."""

    async def main() -> None:
        file = queued.create("a")
        await queued.sync(file)
        before = descriptors()
        for _ in range(3):
            syncs = [queued.sync(one) for one in (fifo, file, fifo, file, fifo)]
            results = await asyncio.gather(*syncs, return_exceptions=True)
            numbers = [result.errno if isinstance(result, OSError) else None for result in results]
            assert numbers == [errno.EINVAL, None, errno.EIO, None, errno.EIO]
        assert descriptors() == before

    run(main())


@pytest.mark.parametrize("loop", LOOPS)
def test_syncs_wait_for_the_one_before_and_the_loop_for_none(
    queued: RealDisk, fifo: RealFile, slow: pytest.MonkeyPatch, loop: str
) -> None:
    """G15: and a file that waits may be closed."""

    async def main() -> None:
        before = descriptors()
        others = [queued.create(f"f{n}") for n in range(5)]
        ended: list[int] = []

        async def sync(number: int, file: RealFile) -> None:
            await queued.sync(file)
            ended.append(number)

        syncs = [asyncio.ensure_future(sync(number, file)) for number, file in enumerate([fifo, *others])]
        for _ in range(100):
            await asyncio.sleep(0)
        assert ended == []
        for other in others:
            other.close()
        os.write(fifo.fileno(), b"x")
        await asyncio.gather(*syncs)
        assert ended == [0, 1, 2, 3, 4, 5]
        assert descriptors() == before + 1  # the queue

    run(main(), loop)


def test_a_sync_that_is_under_way_from_one_look_to_the_next_is_given_up(
    queued: RealDisk, fifo: RealFile, slow: pytest.MonkeyPatch
) -> None:
    """SC3: what may not have been done is never reported as done; what comes next is done by a new queue."""

    async def main() -> None:
        file = queued.create("a")
        for _ in range(3):
            await queued.sync(file)
            queued.kill_if_silent()
        before = descriptors()
        pending = [asyncio.ensure_future(queued.sync(one)) for one in (fifo, file)]
        await asyncio.sleep(0)
        queued.kill_if_silent()
        await asyncio.sleep(0)
        assert not any(one.done() for one in pending)
        queued.kill_if_silent()
        for result in await asyncio.gather(*pending, return_exceptions=True):
            assert isinstance(result, OSError) and "given up" in str(result)
        os.write(fifo.fileno(), b"x")  # too late: nobody hears of it
        slow.undo()
        await queued.sync(file)
        assert descriptors() == before

    run(main())


def test_closing_the_disk_fails_pending_syncs(queued: RealDisk, fifo: RealFile, slow: pytest.MonkeyPatch) -> None:
    """G15: nothing hangs."""

    async def main() -> None:
        pending = [asyncio.ensure_future(queued.sync(fifo)) for _ in range(2)]
        await asyncio.sleep(0)
        queued.close()
        for result in await asyncio.gather(*pending, return_exceptions=True):
            assert isinstance(result, OSError)

    run(main())


def test_two_loops_at_once_are_refused(queued: RealDisk) -> None:
    file = queued.create("a")

    async def main() -> None:
        await queued.sync(file)
        with pytest.raises(RuntimeError, match="one event loop at a time"):
            await asyncio.to_thread(lambda: run(queued.sync(file)))
        await queued.sync(file)

    run(main())


@pytest.mark.parametrize("loop", LOOPS)
def test_where_the_kernel_refuses_a_helper_syncs(queued: RealDisk, loop: str) -> None:
    async def main() -> None:
        before = descriptors()
        file = queued.create("a")
        await queued.sync(file)
        assert queued.helper_pid is not None
        await queued.sync(file)
        file.close()
        assert descriptors() == before + 1  # the socket of the helper

    without_kernel_queue(lambda: run(main(), loop))


@pytest.mark.process
def test_a_server_in_a_container_that_forbids_the_queue_stores_as_any_other(tmp_path: Path) -> None:
    """DU4, G1: over the wire, with the helper; and after a kill with the kernel's queue."""
    server = ServerProcess(tmp_path)
    without_kernel_queue(server.start)
    try:
        with Client(server.url) as client:
            for number in range(3):
                client.append("t", [{"data": number}], config={"durability": "fsync"})
        assert server.output.count(INSTEAD) == 1
        server.kill()
        server.start()
        with Client(server.url) as client:
            client.append("t", [{"data": 3}])
            assert [bytes(record.data) for record in client.diff("t").records] == [b"0", b"1", b"2", b"3"]
        assert server.output.count(INSTEAD) == 1
    finally:
        if server.process is not None:
            server.kill()
