"""Reading the log back: a torn tail is cut, anything else that is wrong stops the start, with file and offset."""

from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.effort import swept
from tests.storage.outside import descriptors
from topics.errors import Damaged, UnusableDirectory
from topics.storage import frames
from topics.storage.disk import RealDisk
from topics.storage.frames import FileHeader
from topics.storage.log_files import Replay, name_of, number_in
from topics.testing.disk import MemoryDisk

SAME_BOOT, OTHER_BOOT = "boot-1", "boot-0"
START = frames.position_of(1, 0)


def log_file(
    number: int,
    payloads: Sequence[bytes],
    *,
    boot_id: str = OTHER_BOOT,
    cut: int = 0,
    synced: int = 0,
    ahead: int = 100,
) -> bytes:
    """A log file; its first frame says that all before `synced` was synced, the others that nothing new was."""
    data = frames.encode_header(FileHeader(number, boot_id, cut))
    for payload in payloads:
        data += frames.encode_frame(payload, frames.position_of(number, len(data)), synced)
    return data + bytes(ahead)


def end_of(file: bytes) -> int:
    return len(file.rstrip(b"\0"))


def replayed(disk: MemoryDisk, start: int = START, void: frozenset[int] = frozenset()) -> tuple[list[bytes], Replay]:
    log = Replay(disk, start, void)
    return [bytes(frame.payload) for frame in log.read()], log


ONE = log_file(1, [b"a", b"bb", b"ccc"])
ONE_END = frames.position_of(1, end_of(ONE))
TWO = log_file(2, [b"d", b"ee"], synced=ONE_END)
FIRST = len(frames.encode_header(FileHeader(1, OTHER_BOOT, 0)))  # offset of the first frame


def test_an_empty_directory_has_no_log() -> None:
    payloads, log = replayed(MemoryDisk())
    assert (payloads, log.files, log.orphans, log.boot_id, log.next_number) == ([], [], [], None, 1)


def test_frames_come_in_order_across_files() -> None:
    """ST8"""
    payloads, log = replayed(MemoryDisk({name_of(1): ONE, name_of(2): TWO}))
    assert payloads == [b"a", b"bb", b"ccc", b"d", b"ee"]
    assert (log.torn, log.boot_id, log.next_number) == (None, OTHER_BOOT, 3)
    assert log.bytes_done == log.bytes_total == len(ONE) + len(TWO)
    assert frames.offset_of(log.end) == end_of(TWO)


def test_reading_leaves_no_file_open(tmp_path: Path) -> None:
    (tmp_path / name_of(1)).write_bytes(ONE)
    (tmp_path / name_of(2)).write_bytes(TWO)
    disk = RealDisk(tmp_path, create=False)
    before = descriptors()
    for _ in range(3):
        assert len(list(Replay(disk, START).read())) == 5
    assert descriptors() == before
    disk.close()


def test_files_below_the_start_are_superfluous() -> None:
    payloads, log = replayed(MemoryDisk({name_of(1): b"whatever", name_of(2): TWO}), frames.position_of(2, 0))
    assert payloads == [b"d", b"ee"]
    assert log.orphans == [name_of(1)]


def cut_short(size: int, boot_id: str) -> MemoryDisk:
    return MemoryDisk({name_of(1): log_file(1, [b"a", b"bb", b"ccc"], boot_id=boot_id)[:size]})


@pytest.mark.parametrize("boot_id", [SAME_BOOT, OTHER_BOOT])
@swept("size", range(FIRST, len(ONE)))
def test_a_newest_file_cut_at_any_length_loses_its_torn_tail_only(size: int, boot_id: str) -> None:
    """ST8, G5: and the tail is cut off, so that the next start finds the file whole."""
    disk = cut_short(size, boot_id)
    payloads, log = replayed(disk)
    ends = [FIRST + 25, FIRST + 51, FIRST + 78]
    assert payloads == [b"a", b"bb", b"ccc"][: sum(end <= size for end in ends)]
    log.repair()
    again, second = replayed(disk)
    assert (again, second.torn) == (payloads, None)
    if not payloads:
        assert disk.names() == []


@swept("size", range(FIRST))
def test_a_newest_file_without_a_whole_header_was_never_in_force(size: int) -> None:
    disk = cut_short(size, OTHER_BOOT)
    payloads, log = replayed(disk)
    assert (payloads, log.orphans, log.next_number) == ([], [name_of(1)], 1)


def hurt(file: bytes, offset: int) -> bytes:
    return file[:offset] + bytes([file[offset] ^ 0x10]) + file[offset + 1 :]


@swept("offset", range(FIRST, FIRST + 78))
def test_damage_in_an_older_file_is_refused_with_file_and_offset(offset: int) -> None:
    """ST12, G5"""
    start = max(start for start in (FIRST, FIRST + 25, FIRST + 51) if start <= offset)
    with pytest.raises(Damaged, match=f"memory/{name_of(1)}: damaged at offset {start}"):
        replayed(MemoryDisk({name_of(1): hurt(ONE, offset), name_of(2): TWO}))


@swept("offset", range(FIRST))
def test_a_damaged_header_of_an_older_file_is_refused(offset: int) -> None:
    """ST12"""
    with pytest.raises((Damaged, UnusableDirectory), match=name_of(1)):
        replayed(MemoryDisk({name_of(1): hurt(ONE, offset), name_of(2): TWO}))


@swept("size", range(end_of(ONE)))
def test_an_older_file_that_was_cut_short_is_refused(size: int) -> None:
    """ST12, G5: also where the cut lies between two frames; the next file's first frame says where it ended."""
    with pytest.raises(Damaged, match=f"{name_of(1)}: damaged at offset"):
        replayed(MemoryDisk({name_of(1): ONE[:size], name_of(2): TWO}))


def test_zeros_over_the_end_of_an_older_file_are_damage() -> None:
    """ST12"""
    blank = ONE[: FIRST + 51] + bytes(len(ONE) - FIRST - 51)
    with pytest.raises(Damaged, match=f"{name_of(1)}: damaged at offset {FIRST + 51}: the frames from here on"):
        replayed(MemoryDisk({name_of(1): blank, name_of(2): TWO}))


@pytest.mark.parametrize(("boot_id", "synced"), [(SAME_BOOT, 0), (OTHER_BOOT, frames.position_of(1, FIRST + 51))])
def test_a_bad_frame_that_had_been_synced_or_written_whole_is_no_torn_tail(boot_id: str, synced: int) -> None:
    """ST12: a later frame proves it: by being there in the same boot, or by knowing of the sync."""
    data = frames.encode_header(FileHeader(1, boot_id, 0))
    start = len(data)
    for payload in (b"a", b"bb", b"ccc"):
        data += frames.encode_frame(payload, frames.position_of(1, len(data)), synced if payload == b"ccc" else 0)
    with pytest.raises(Damaged, match=f"damaged at offset {start + 25}: a frame is not valid"):
        replayed(MemoryDisk({name_of(1): hurt(data, start + 30)}))


def misplaced(payloads: Sequence[bytes], boot_id: str, shift: int = 100) -> bytes:
    """A file whose frames, from the second one on, were encoded for places `shift` bytes further on."""
    data = log_file(1, payloads[:1], boot_id=boot_id, ahead=0)
    for payload in payloads[1:]:
        data += frames.encode_frame(payload, frames.position_of(1, len(data) + shift), 0)
    return data + bytes(100)


@pytest.mark.parametrize("payloads", [[b"a", b"bb"], [b"a", b"bb", b"ccc"], [b"a", b"FRME", b"d" * 500, b"", b"e"]])
def test_frames_that_are_whole_and_in_the_wrong_place_are_damage_under_the_same_boot(payloads: list[bytes]) -> None:
    """ST12, ST17, G5: nothing that was written can be lost there, so such a file is no torn tail to be cut off."""
    with pytest.raises(Damaged, match=f"{name_of(1)}: damaged at offset {FIRST + 25}: a frame is not valid"):
        replayed(MemoryDisk({name_of(1): misplaced(payloads, SAME_BOOT)}))


def test_frames_behind_one_that_was_cut_off_are_damage_under_the_same_boot() -> None:
    """ST12, ST17: the first of them lacks its end, but what follows was not written before it."""
    data = misplaced([b"a", b"bb\0", b"ccc"], SAME_BOOT)
    with pytest.raises(Damaged, match=f"damaged at offset {FIRST + 25}: a frame is not valid"):
        replayed(MemoryDisk({name_of(1): data}))


@pytest.mark.parametrize("payload", [b"x" * 60, b"FRME" * 20, log_file(1, [b"a", b"bb"], ahead=0)])
def test_a_write_that_was_cut_off_anywhere_is_a_torn_tail_whatever_its_payload_looks_like(payload: bytes) -> None:
    """ST8, G5: a record may hold the bytes of a frame."""
    whole = log_file(1, [b"a", payload + b"."], boot_id=SAME_BOOT, ahead=0)
    for size in range(FIRST + 26, len(whole)):
        payloads, log = replayed(MemoryDisk({name_of(1): whole[:size] + bytes(len(whole) - size + 100)}))
        assert (payloads, log.torn) == ([b"a"], (name_of(1), FIRST + 25)), size


def test_after_a_power_loss_frames_in_the_wrong_place_are_part_of_the_torn_tail() -> None:
    """ST8: sectors may be old or new there, and nothing says that the place had been synced."""
    payloads, log = replayed(MemoryDisk({name_of(1): misplaced([b"a", b"bb", b"ccc"], OTHER_BOOT)}))
    assert (payloads, log.torn) == ([b"a"], (name_of(1), FIRST + 25))


def test_after_a_power_loss_frames_behind_a_lost_one_are_part_of_the_torn_tail() -> None:
    """ST8, G2: survivors are a prefix."""
    lost = ONE[: FIRST + 25] + bytes(26) + ONE[FIRST + 51 :]
    payloads, log = replayed(MemoryDisk({name_of(1): lost}))
    assert (payloads, log.torn) == ([b"a"], (name_of(1), FIRST + 25))


@pytest.mark.parametrize("missing", [1, 2])
def test_a_missing_file_is_refused(missing: int) -> None:
    """ST12"""
    files = {name_of(1): ONE, name_of(2): TWO, name_of(3): log_file(3, [b"f"])}
    del files[name_of(missing)]
    with pytest.raises(Damaged, match=f"{name_of(missing)}: damaged at offset 0: this log file is missing"):
        replayed(MemoryDisk(files))


def test_a_file_under_another_number_is_refused() -> None:
    """ST12"""
    with pytest.raises(Damaged, match="missing"):
        replayed(MemoryDisk({name_of(1): TWO}))


def test_a_newer_version_is_refused_and_named_as_such() -> None:
    newer = ONE[:8] + b"\2" + ONE[9:]
    with pytest.raises(UnusableDirectory, match=f"memory/{name_of(1)}: it is of version 2"):
        replayed(MemoryDisk({name_of(1): newer}))


def test_a_file_that_only_looks_like_a_log_is_refused() -> None:
    with pytest.raises(UnusableDirectory, match="log-backup"):
        replayed(MemoryDisk({name_of(1): ONE, "log-backup": b""}))
    assert number_in(name_of(17)) == 17


def test_a_file_that_was_not_started_is_removed_and_its_number_used_again() -> None:
    """ST8: a crash before the first frame leaves such a file."""
    disk = MemoryDisk({name_of(1): ONE, name_of(2): log_file(2, [])})
    payloads, log = replayed(disk)
    assert (payloads, log.orphans, log.next_number) == ([b"a", b"bb", b"ccc"], [name_of(2)], 2)
    log.repair()
    assert disk.names() == [name_of(1)]


def test_a_file_that_was_not_started_between_others_is_damage() -> None:
    """ST12"""
    with pytest.raises(Damaged, match=f"{name_of(2)}: damaged at offset .*: the first frame is not valid"):
        replayed(MemoryDisk({name_of(1): ONE, name_of(2): log_file(2, []), name_of(3): log_file(3, [b"f"])}))


def test_frames_behind_a_cut_do_not_count() -> None:
    """ST4: what a failed write or sync left is never replayed, valid or not."""
    cut = frames.position_of(1, FIRST + 25)
    after = log_file(2, [b"", b"kept"], cut=cut, synced=cut)
    for first in (ONE, hurt(ONE, FIRST + 30), ONE[: FIRST + 40]):
        payloads, _ = replayed(MemoryDisk({name_of(1): first, name_of(2): after}))
        assert payloads == [b"a", b"", b"kept"]
    with pytest.raises(Damaged, match=name_of(1)):
        replayed(MemoryDisk({name_of(1): hurt(ONE, FIRST + 2), name_of(2): after}))


def test_frames_that_the_caller_names_void_do_not_count() -> None:
    """ST4"""
    payloads, _ = replayed(MemoryDisk({name_of(1): ONE}), void=frozenset([frames.position_of(1, FIRST + 25)]))
    assert payloads == [b"a", b"ccc"]


def test_repair_makes_what_was_replayed_durable_before_it_removes_anything() -> None:
    """ST8: what the next reader sees must not be lost to the next power loss."""
    disk = MemoryDisk()
    file = disk.create(name_of(1))
    disk.sync_directory()
    file.write(0, ONE)
    disk.create(name_of(2)).write(0, b"not started")
    _, log = replayed(disk)
    log.repair()
    payloads, _ = replayed(disk.power_loss("lost"))
    assert payloads == [b"a", b"bb", b"ccc"]
    kinds = [operation.kind for operation in disk.operations]
    assert kinds.index("remove") > kinds.index("sync_directory", 2)
