"""Files of a data directory that are missing, cut or replaced: the start and the check both say which."""

from itertools import pairwise

import pytest

from tests.effort import stride
from tests.engine.running import data, open_engine, running
from topics.errors import CommitFailed, Damaged
from topics.reader import Directory
from topics.storage.frames import decode_header, encode_frame, position_of
from topics.storage.log_files import Replay
from topics.storage.snapshots import Snapshots
from topics.testing.disk import Faulty, MemoryDisk

FSYNC = {"durability": "fsync"}


async def killed(disk: MemoryDisk, *values: int) -> MemoryDisk:
    """What a server leaves that has written `values`, each on its own, and was killed."""
    engine = open_engine(disk)
    await engine.start()
    for value in values:
        await engine.append("t", data(value), config=FSYNC)
    left = disk.kill()
    await engine.close()
    return left


async def stopped(disk: MemoryDisk, *values: int, checkpoints: int = 0) -> MemoryDisk:
    async with running(disk) as engine:
        for value in values:
            await engine.append("t", data(value), config=FSYNC)
            if checkpoints:
                checkpoints -= 1
                await engine.checkpoint()
    return disk.kill()


async def check_refused(disk: MemoryDisk, name: str) -> None:
    """The start names the file, and changes nothing; the check names it, too."""
    before = disk.files()
    with pytest.raises(Damaged, match=name):
        await open_engine(disk.kill()).start()
    assert disk.files() == before
    said = found_in(disk.kill())
    assert any(name in one for one in said), said


def found_in(disk: MemoryDisk) -> list[str]:
    """What the check has to say, be it that nothing can be read."""
    try:
        return [f"{fault.file}: {fault.message}" for fault in Directory(disk).check().faults]
    except Damaged as refusal:
        return [str(refusal)]


def names(disk: MemoryDisk, prefix: str) -> list[str]:
    return [name for name in disk.names() if name.startswith(prefix)]


async def test_the_log_of_the_current_run_is_missed_after_a_graceful_stop_and_start() -> None:
    """ST15"""
    disk = await killed(await stopped(MemoryDisk(), 1), 2)
    newest = names(disk, "log-")[-1]
    disk.remove(newest)
    await check_refused(disk, newest)


async def test_the_first_log_of_a_directory_is_missed() -> None:
    """ST15"""
    disk = await killed(MemoryDisk(), 1)
    disk.remove("log-0000000001")
    await check_refused(disk, "log-0000000001")


async def test_the_newest_log_is_missed_after_several_kills() -> None:
    """ST15: the logs before it are whole."""
    disk = await killed(await killed(MemoryDisk(), 1), 2)
    newest = names(disk, "log-")[-1]
    assert newest == "log-0000000002"
    disk.remove(newest)
    await check_refused(disk, newest)


async def test_the_file_of_a_log_that_failed_and_went_on_is_missed() -> None:
    """ST15"""
    disk = MemoryDisk()
    engine = open_engine(disk)
    await engine.start()
    await engine.append("t", data(1), config=FSYNC)
    disk.hooks.append(Faulty("sync", name="log-*"))
    with pytest.raises(CommitFailed, match="disk failed"):
        await engine.append("t", data(2))
    await engine.append("t", data(2))
    await engine.tick()
    left = disk.kill()
    await engine.close()
    left.remove("log-0000000002")
    await check_refused(left, "log-0000000002")


async def test_a_log_that_was_cut_anywhere_is_refused_under_the_boot_that_wrote_it() -> None:
    """ST15: under the same boot nothing that was written may be missing."""
    disk = await killed(MemoryDisk(), *range(5))
    image = disk.files()["log-0000000001"]
    end = len(image.rstrip(b"\0"))
    for size in range(0, end, stride() * 3):
        cut = disk.kill()
        cut.open("log-0000000001").truncate(size)
        await check_refused(cut, "log-0000000001")


async def test_a_torn_write_is_cut_off_again_and_again() -> None:
    """ST8, ST15: what the start cuts off leaves no file that looks as if somebody had cut it."""
    disk = await killed(MemoryDisk(), 1, 2)
    image = disk.files()["log-0000000001"]
    end = len(image.rstrip(b"\0"))
    disk.open("log-0000000001").write(end - 5, bytes(5))
    for _ in range(3):
        log = Replay(disk, position_of(1, 0))
        assert list(log.read())
        log.repair()
        assert len(disk.files()["log-0000000001"]) == len(image)
    async with running(disk.kill()) as engine:
        assert (await engine.topic_state("t")).head_seq == 1


async def test_a_snapshot_in_the_place_of_another_is_refused() -> None:
    """ST15"""
    disk = await stopped(MemoryDisk(), 1, 2, 3, checkpoints=3)
    files = names(disk, "snapshot-")
    assert len(files) > 2
    for old, new in pairwise(files):
        swapped = MemoryDisk({**disk.files(), new: disk.files()[old]})
        await check_refused(swapped, new)


async def test_a_segment_in_the_place_of_another_is_refused_at_the_start() -> None:
    """ST15"""
    disk = await stopped(MemoryDisk(), 1, 2, 3, checkpoints=3)
    first, second, *_ = names(disk, "segment-")
    for old, new in ((first, second), (second, first)):
        await check_refused(MemoryDisk({**disk.files(), new: disk.files()[old]}), new)
    without = disk.files()
    del without[second]
    await check_refused(MemoryDisk(without), second)


async def test_a_directory_of_segments_alone_is_refused_and_they_stay() -> None:
    """ST12, G5: somebody removed the logs and the snapshots; what is left may be all there is."""
    disk = await stopped(MemoryDisk(), 1, 2, 3, checkpoints=3)
    rest = {name: image for name, image in disk.files().items() if name.startswith("segment-")}
    assert len(rest) > 1
    await check_refused(MemoryDisk(rest), "segment-0000000001.arrow")


@pytest.mark.parametrize("payload", [b"\x00", b"\x00\xff\xff\xff\xff"])
async def test_a_frame_with_a_right_checksum_that_makes_no_sense_is_refused_with_its_place(payload: bytes) -> None:
    """ST12, G5: whatever wrote it, the start says where."""
    disk = await killed(MemoryDisk(), 1)
    name = "log-0000000001"
    image = disk.files()[name]
    _, start = decode_header(image[:4096])
    frame = encode_frame(payload, position_of(1, start), 0)
    await check_refused(MemoryDisk({**disk.files(), name: image[:start] + frame + bytes(5000)}), name)


@pytest.mark.parametrize(
    "item", [(b"m", b"\xc0"), (b"t" + bytes(8), b"\x91\x01"), (b"f" + bytes(8), b"\xff"), (b"rx", b"")]
)
async def test_an_item_of_a_snapshot_that_makes_no_sense_is_refused_with_its_file(item: tuple[bytes, bytes]) -> None:
    """ST12, G5"""
    disk = await stopped(MemoryDisk(), 1)
    kept = Snapshots(disk)
    kept.load()
    kept.install(dict([item]))
    newest = names(disk, "snapshot-")[-1]
    with pytest.raises(Damaged, match=f"{newest}: .*make no sense"):
        await open_engine(disk.kill()).start()


async def test_a_router_in_a_snapshot_without_its_topic_is_refused() -> None:
    """ST12, G5"""
    disk = MemoryDisk()
    async with running(disk) as engine:
        await engine.put_topic("s", FSYNC)
        await engine.put_router("r", "s", "d")
        source = engine.state.topics["s"].id
    disk = disk.kill()
    kept = Snapshots(disk)
    kept.load()
    kept.install({b"t" + source.to_bytes(8, "big"): None})
    with pytest.raises(Damaged, match="router r leads from or to a topic that is not there"):
        await open_engine(disk.kill()).start()
