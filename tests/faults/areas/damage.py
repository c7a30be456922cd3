"""Bytes that rot, files that are cut, swapped or gone, and directories that somebody half removed."""

from collections.abc import Callable

from tests.crash.run import finished
from tests.faults import check
from tests.faults.case import Area, Play
from tests.faults.disks import changed, cut, flipped, like, replaced, same_boot, without
from tests.faults.lab import Lab
from topics.engine.durability.recovery import Contents
from topics.errors import Damaged, StorageError
from topics.storage.frames import Frame, decode_header, position_of, scan
from topics.storage.segments import FileRef, name_of
from topics.storage.snapshots import Snapshots
from topics.testing.disk import MemoryDisk

ROT = Area("Bit rot")
FILES = Area("Files cut, swapped and gone")

Hurt = Callable[[MemoryDisk], MemoryDisk]


async def filled(lab: Lab, *, is_closed: bool = False) -> MemoryDisk:
    """A directory with a base, deltas, segments and a log of many frames."""
    await lab.begin()
    await lab.checkpoint()
    for _ in range(3):
        await lab.append("fsync", 2)
        await lab.append("disk", 2)
    if is_closed:
        await lab.engine.close()
    return lab.disk.kill()


def log_of(disk: MemoryDisk) -> str:
    return like(disk, "log-")[-1]


def base_of(disk: MemoryDisk) -> str:
    return next(name for name in like(disk, "snapshot-") if name.endswith(".base"))


def delta_of(disk: MemoryDisk, *, first: bool = False) -> str:
    deltas = [name for name in like(disk, "snapshot-") if name.endswith(".delta")]
    return deltas[0 if first else -1]


def frame_at(disk: MemoryDisk, number: int) -> tuple[int, int]:
    """Where a frame of the newest log starts, and where its payload does; -1 is the last one."""
    data = memoryview(disk.files()[log_of(disk)])
    header, offset = decode_header(bytes(data[:4096]))
    frames = [one for one in scan(data, header.number, offset) if isinstance(one, Frame)]
    start = frames[number].position - position_of(header.number, 0)
    return start, start + 24


def refused(hurt: Hurt, name: Callable[[MemoryDisk], str], *, is_closed: bool = False) -> Play:
    """The start is refused by this name, nothing is changed, and the check names it, too."""

    async def play(lab: Lab) -> None:
        disk = await filled(lab, is_closed=is_closed)
        named = name(disk)
        harmed = hurt(disk)
        assert harmed.files() != disk.files()
        lab.strikes += 1
        await lab.refused_at_start(harmed, named)

    return play


def never_wrong(hurt: Hurt, name: Callable[[MemoryDisk], str]) -> Play:
    """The start or the reads of some topics are refused by this name; all else is there as it was written."""

    async def play(lab: Lab) -> None:
        disk = await filled(lab)
        named, harmed = name(disk), hurt(disk)
        lab.strikes += 1
        said = [f"{one.file}: {one.message}" for one in check.Directory(harmed.kill()).check().faults]
        assert any(named in one for one in said), f"G5: the check says {said}"
        engine = lab.open(harmed)
        refusals = 0
        await finished(engine.start())
        for topic, told in lab.told.topics.items():
            try:
                answer = await finished(engine.read(topic, limit=1000))
            except Damaged as refusal:
                assert named in str(refusal), refusal  # noqa: PT017
                refusals += 1
                continue
            for record in answer.records:
                assert told.written.get(record.seq, bytes(record.data)) == bytes(record.data), "G2"
        assert refusals, "G5: nothing was refused"
        harmed.is_dead = True

    return play


def harmless(hurt: Hurt) -> Play:
    async def play(lab: Lab) -> None:
        disk = hurt(await filled(lab))
        lab.strikes += 1
        await lab.recover(disk)

    return play


ROT.add("log: magic", "a bit of the file's first bytes", "G5", refused(lambda d: flipped(d, log_of(d), 3), log_of))
ROT.add(
    "log: version",
    "the version becomes one of the future",
    "G5",
    refused(lambda d: changed(d, log_of(d), 8, b"\x63"), log_of),
)
ROT.add(
    "log: length of the header",
    "the header claims to be longer",
    "G5",
    refused(lambda d: flipped(d, log_of(d), 12), log_of),
)
ROT.add(
    "log: boot id", "a bit of the boot id in the header", "G5", refused(lambda d: flipped(d, log_of(d), 28), log_of)
)
ROT.add(
    "log: first frame",
    "a bit in the payload of the first frame",
    "G5",
    refused(lambda d: flipped(d, log_of(d), frame_at(d, 0)[1]), log_of),
)
ROT.add(
    "log: length of a frame",
    "a frame in the middle claims to be longer",
    "G5",
    refused(lambda d: flipped(d, log_of(d), frame_at(d, 2)[0] + 4), log_of),
)
ROT.add(
    "log: sync mark of a frame",
    "a bit of the position that a frame says was synced",
    "G5",
    refused(lambda d: flipped(d, log_of(d), frame_at(d, 2)[0] + 8), log_of),
)
ROT.add(
    "log: checksum of a frame",
    "a bit of a frame's checksum",
    "G5",
    refused(lambda d: flipped(d, log_of(d), frame_at(d, 2)[0] + 16), log_of),
)
ROT.add(
    "log: payload of a frame",
    "a bit of a frame's payload, in the middle",
    "G5 G2",
    refused(lambda d: flipped(d, log_of(d), frame_at(d, 3)[1] + 20), log_of),
)
ROT.add(
    "log: last frame",
    "a bit of the last frame, under the boot that wrote it",
    "G5 G1",
    refused(lambda d: flipped(d, log_of(d), frame_at(d, -1)[1] + 5), log_of),
)
ROT.add(
    "log: zeros behind the end",
    "a byte in the zeros that were written ahead",
    "G5",
    harmless(lambda d: flipped(d, log_of(d), -5000)),
)
ROT.add(
    "log: a frame becomes void",
    "the magic of a frame in the middle becomes that of a void one by one byte",
    "G5 G1",
    refused(lambda d: flipped(d, log_of(d), frame_at(d, 2)[0]), log_of),
)
ROT.add(
    "log: a frame twice",
    "a frame's bytes lie in the place of the next one",
    "G5 G2",
    refused(
        lambda d: changed(
            d, log_of(d), frame_at(d, 3)[0], d.files()[log_of(d)][frame_at(d, 2)[0] : frame_at(d, 2)[0] + 40]
        ),
        log_of,
    ),
)
ROT.add(
    "log: a sector of zeros",
    "512 bytes in the middle are zeros",
    "G5",
    refused(lambda d: changed(d, log_of(d), frame_at(d, 1)[0], bytes(512)), log_of),
)
ROT.add(
    "snapshot: magic", "a bit of the base's first bytes", "G5 G6", refused(lambda d: flipped(d, base_of(d), 2), base_of)
)
ROT.add(
    "snapshot: version",
    "the version becomes one of the future",
    "G5",
    refused(lambda d: changed(d, base_of(d), 8, b"\x63"), base_of),
)
ROT.add(
    "snapshot: length",
    "the base claims another length",
    "G5 G6",
    refused(lambda d: flipped(d, base_of(d), 12), base_of),
)
ROT.add(
    "snapshot: checksum",
    "a bit of the base's checksum",
    "G5 G6",
    refused(lambda d: flipped(d, base_of(d), 21), base_of),
)
ROT.add(
    "snapshot: an item",
    "a bit in the middle of the base",
    "G5 G6",
    refused(lambda d: flipped(d, base_of(d), len(d.files()[base_of(d)]) // 2), base_of),
)
ROT.add(
    "snapshot: an item of a delta",
    "a bit in the middle of the newest delta",
    "G5 G6",
    refused(lambda d: flipped(d, delta_of(d), len(d.files()[delta_of(d)]) // 2), delta_of),
)
ROT.add(
    "snapshot: its last byte",
    "the last bit of the newest delta",
    "G5 G6",
    refused(lambda d: flipped(d, delta_of(d), -1, 1), delta_of),
)


def first_file(disk: MemoryDisk) -> FileRef:
    """The segment with the records of the first topic."""
    contents = Contents(Snapshots(disk).load() or {})
    return contents.files[contents.pieces[0].file]


def column(disk: MemoryDisk, name: str, which: str = "values") -> tuple[str, int]:
    """A segment, and where a column of it lies."""
    ref = first_file(disk)
    return name_of(ref.number), getattr(ref.columns[name], which)[0]


def checksum_at(disk: MemoryDisk) -> int:
    """Where the checksum of a column lies in the schema of a segment."""
    return disk.files()[segment_of(disk)].index(first_file(disk).columns["data"].checksum.encode())


def rotten(name: str, which: str = "values") -> Hurt:
    def hurt(disk: MemoryDisk) -> MemoryDisk:
        return flipped(disk, *column(disk, name, which))

    return hurt


def segment_of(disk: MemoryDisk) -> str:
    return column(disk, "data")[0]


for _column, _text in (
    ("data", "the text of a record"),
    ("tag", "a tag"),
    ("seq", "a seq"),
    ("ts", "a time"),
    ("topic", "the id of a topic"),
    ("tag_order", "the order of tags"),
):
    ROT.add(f"segment: {_column}", f"a bit of {_text}", "G5 G2", never_wrong(rotten(_column), segment_of))
ROT.add(
    "segment: where texts end",
    "a bit of the offsets of the data column",
    "G5 G2",
    never_wrong(rotten("data", "offsets"), segment_of),
)
ROT.add(
    "segment: a delete mark", "a mark that is neither live nor deleted", "G5 G9", refused(rotten("deleted"), segment_of)
)
ROT.add(
    "segment: its head",
    "a bit of the checksums in the schema",
    "G5",
    refused(lambda d: flipped(d, segment_of(d), checksum_at(d), 1), segment_of),
)


# --- cut, swapped, gone

FILES.add(
    "log cut in the middle",
    "the newest log ends in the middle of a frame, under the boot that wrote it",
    "G5 G1",
    refused(lambda d: cut(d, log_of(d), frame_at(d, 2)[1]), log_of),
)
FILES.add(
    "log cut behind its last frame",
    "the zeros behind the last frame are gone",
    "G5 G1",
    refused(lambda d: cut(d, log_of(d), len(d.files()[log_of(d)].rstrip(b"\0"))), log_of),
)
FILES.add(
    "log cut between frames",
    "the newest log ends behind its third frame",
    "G5 G1",
    refused(lambda d: cut(d, log_of(d), frame_at(d, 3)[0]), log_of),
)
FILES.add("log empty", "the newest log has no byte", "G5 G1", refused(lambda d: cut(d, log_of(d), 0), log_of))
FILES.add("log gone", "the newest log is gone", "G5 G1", refused(lambda d: without(d, [log_of(d)]), log_of))
FILES.add(
    "log under another number",
    "the newest log has a number that is none of its own",
    "G5",
    refused(
        lambda d: replaced(without(d, [log_of(d)]), **{"log-0000000077": d.files()[log_of(d)]}), lambda d: "log-0000000"
    ),
)
FILES.add(
    "log of another server",
    "a log from another directory lies in the place of this one",
    "G5 G2",
    refused(lambda d: replaced(d, **{log_of(d): d.files()[log_of(d)][:35] + bytes(4000)}), log_of),
)
FILES.add(
    "snapshot cut",
    "the base is cut in the middle",
    "G5 G6",
    refused(lambda d: cut(d, base_of(d), len(d.files()[base_of(d)]) // 2), base_of),
)
FILES.add(
    "snapshot cut in its header",
    "ten bytes of the newest delta are left",
    "G5 G6",
    refused(lambda d: cut(d, delta_of(d), 10), delta_of),
)
FILES.add(
    "snapshot grown",
    "bytes behind the end of the base",
    "G5 G6",
    refused(lambda d: replaced(d, **{base_of(d): d.files()[base_of(d)] + b"x"}), base_of),
)
FILES.add(
    "base gone",
    "the deltas have lost their base",
    "G5 G6",
    refused(lambda d: without(d, [base_of(d)]), lambda d: "snapshot-"),
)
FILES.add(
    "delta gone",
    "a delta in the middle of the chain is gone",
    "G5 G6",
    refused(
        lambda d: without(d, [delta_of(d, first=True)]),
        lambda d: delta_of(d, first=True),
    ),
)
FILES.add(
    "deltas swapped",
    "two deltas lie under each other's names",
    "G5 G6",
    refused(
        lambda d: replaced(
            d,
            **dict(
                zip(like(d, "snapshot-")[-2:], [d.files()[n] for n in reversed(like(d, "snapshot-")[-2:])], strict=True)
            ),
        ),
        lambda d: "snapshot-",
    ),
)
FILES.add(
    "segment cut", "a segment is cut by one byte", "G5 G7", refused(lambda d: cut(d, segment_of(d), -1), segment_of)
)
FILES.add("segment empty", "a segment has no byte", "G5 G7", refused(lambda d: cut(d, segment_of(d), 0), segment_of))
FILES.add("segment gone", "a segment is gone", "G5 G7", refused(lambda d: without(d, [segment_of(d)]), segment_of))
FILES.add(
    "segments swapped",
    "a segment lies in the place of another one",
    "G5 G2",
    refused(
        lambda d: replaced(d, **{segment_of(d): d.files()[next(n for n in like(d, "segment-") if n != segment_of(d))]}),
        segment_of,
    ),
)
FILES.add(
    "segment grown",
    "bytes behind the end of a segment",
    "G5",
    refused(lambda d: replaced(d, **{segment_of(d): d.files()[segment_of(d)] + b"x" * 9}), segment_of),
)
FILES.add(
    "only logs left",
    "somebody removed snapshots and segments",
    "G5",
    refused(lambda d: without(d, [*like(d, "snapshot-"), *like(d, "segment-")]), lambda d: "log-"),
)
FILES.add(
    "only snapshots left",
    "somebody removed logs and segments",
    "G5",
    refused(lambda d: without(d, [*like(d, "log-"), *like(d, "segment-")]), lambda d: "-0000"),
)
FILES.add(
    "only segments left",
    "somebody removed logs and snapshots",
    "G5",
    refused(lambda d: without(d, [*like(d, "log-"), *like(d, "snapshot-")]), lambda d: "segment-"),
)
FILES.add(
    "segments removed",
    "somebody removed all segments",
    "G5 G7",
    refused(lambda d: without(d, like(d, "segment-")), lambda d: "segment-"),
)
FILES.add(
    "snapshots removed",
    "somebody removed all snapshots",
    "G5 G6",
    refused(lambda d: without(d, like(d, "snapshot-")), lambda d: "-0000"),
)
FILES.add(
    "segments removed after a stop",
    "a graceful stop, then somebody removed all segments",
    "G5 G7",
    refused(lambda d: without(d, like(d, "segment-")), lambda d: "segment-", is_closed=True),
)
FILES.add(
    "snapshots removed after a stop",
    "a graceful stop, then somebody removed all snapshots",
    "G5 G6",
    refused(lambda d: without(d, like(d, "snapshot-")), lambda d: "-0000", is_closed=True),
)
FILES.add(
    "newest delta gone after a stop",
    "a graceful stop, then its snapshot is gone",
    "G5 G6",
    refused(lambda d: without(d, [delta_of(d)]), lambda d: "-0000", is_closed=True),
)
FILES.add(
    "half of the files gone",
    "every second file is gone",
    "G5",
    refused(lambda d: without(d, sorted(d.files())[::2]), lambda d: "-0000"),
)
FILES.add(
    "a log that is none",
    "a file log-backup lies in the directory",
    "G5",
    refused(lambda d: replaced(d, **{"log-backup": b"x"}), lambda d: "log-backup"),
)
FILES.add(
    "a snapshot that is none",
    "a file snapshot-old.base lies in the directory",
    "G5",
    refused(lambda d: replaced(d, **{"snapshot-old.base": b"x"}), lambda d: "snapshot-old.base"),
)
FILES.add(
    "files of others",
    "files of other programs lie in the directory",
    "G5",
    harmless(lambda d: same_boot({**d.files(), "README": b"mine", "core": bytes(99)})),
)


@FILES.case(
    "a refused start is none", "the base rots, the start is refused, the base is restored from a backup", "G1 G4"
)
async def _(lab: Lab) -> None:
    disk = await filled(lab)
    harmed = flipped(disk, base_of(disk), 40)
    lab.strikes += 1
    try:
        await finished(lab.open(harmed).start())
        raise AssertionError("G5: the start was not refused")
    except StorageError:
        pass
    restored = MemoryDisk({**harmed.files(), base_of(disk): disk.files()[base_of(disk)]}, boot=1)
    await lab.recover(restored)
