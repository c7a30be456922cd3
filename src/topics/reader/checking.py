"""The check of a data directory: its files against their checksums, and all of them against each other.

Owned here: what must hold between a snapshot, the snapshots before it, its segments and the log, and the message where
it does not hold. What became of every seq is up to `accounts`.
"""

from bisect import bisect_left
from collections.abc import Mapping
from itertools import pairwise

from msgspec import Struct

from topics.core.dump import TopicItem
from topics.engine.durability.catalogue import Maps
from topics.engine.durability.recovery import Recovery
from topics.errors import Damaged, UnusableDirectory
from topics.reader.accounts import Account, accounts_of
from topics.reader.snapshot import Snapshot, floor_of, sealed_through_of
from topics.storage import log_files, segments, snapshots
from topics.storage.disk import Disk
from topics.storage.segments import LIVE, FileRef, PieceRef, SegmentFile


class Fault(Struct, frozen=True):
    """Something in a data directory that is not as it was written.

    `is_certain` is False where a delete leaves the same traces, and no account of the topic tells which it was: a piece
    that was deleted as a whole leaves the snapshot without a mark on its rows, if other topics still need the file.
    """

    file: str  # "" = what the snapshot says of a topic
    topic: str  # "" = not of one topic
    message: str
    is_certain: bool = True


class Check(Struct, frozen=True):
    """What `Directory.check` has looked at, and what it found."""

    faults: list[Fault]
    accounts: list[Account]  # of the topics that can be read as a whole, at the end of the log
    segments: int
    segment_bytes: int
    log_files: int
    log_frames: int


class Checker:
    """One check of a directory against one of its snapshots."""

    def __init__(self, disk: Disk, snapshot: Snapshot, segments: Mapping[int, SegmentFile] | None = None) -> None:
        """`segments` are files of the snapshot that the caller has opened."""
        self._disk = disk
        self._maps = Maps()
        self._opened = segments or {}
        self._snapshot = snapshot
        self._names = {item.id: item.name for item in snapshot.topics.values()}
        self._faults: list[Fault] = []
        self._files: dict[int, SegmentFile] = {}  # that are whole
        self._damaged: set[int] = set()  # topics, by id, whose pieces are not what the snapshot says
        self._unnamed: list[tuple[SegmentFile, int, list[int]]] = []  # rows in no piece: segment, topic, seqs

    def run(self) -> Check:
        by_file: dict[int, list[PieceRef]] = {number: [] for number in self._snapshot.files}
        for ref in self._snapshot.pieces:
            if ref.file in by_file:
                by_file[ref.file].append(ref)
            else:
                self._fault_of_piece(ref, "a piece names this segment, and the snapshot does not know it")
        for number, refs in by_file.items():
            self._check_file(self._snapshot.files[number], sorted(refs, key=lambda ref: ref.start))
        for item in self._snapshot.topics.values():
            self._check_topic(item)
        self._check_history()
        accounts, log_files, log_frames = self._check_log()
        self._judge(accounts)
        size_bytes = sum(file.size_bytes for file in self._snapshot.files.values())
        return Check(self._faults, list(accounts.values()), len(by_file), size_bytes, log_files, log_frames)

    def _fault(self, file: int | str, topic: int | str, message: str, *, is_certain: bool = True) -> None:
        name = segments.name_of(file) if isinstance(file, int) else file
        owner = self._names.get(topic, "") if isinstance(topic, int) else topic
        self._faults.append(Fault(name, owner, message, is_certain))

    def _fault_of_piece(self, ref: PieceRef, message: str) -> None:
        self._damaged.add(ref.topic)
        self._fault(ref.file, ref.topic, message)

    def _check_file(self, file: FileRef, refs: list[PieceRef]) -> None:
        segment = self._opened.get(file.number) or SegmentFile(self._disk, file, self._maps.add)
        try:
            topics, seqs = segment.numbers("topic", "I"), segment.numbers("seq", "Q")
            segment.flags(0, file.count)
        except Damaged as error:
            self._fault(file.number, "", str(error))
            self._damaged.update(ref.topic for ref in refs)
            return
        self._files[file.number] = segment
        if not refs:
            self._fault(file.number, "", f"the snapshot has this segment and none of its {file.count} records")
        covered = 0
        for ref in refs:
            self._check_unnamed(segment, topics, seqs, covered, ref.start)
            covered = ref.start + ref.count
            self._check_piece(file, ref, topics, seqs)
        self._check_unnamed(segment, topics, seqs, covered, file.count)
        segment.let_go()

    def _check_piece(self, file: FileRef, ref: PieceRef, topics: "memoryview[int]", seqs: "memoryview[int]") -> None:
        """Check that the rows of a piece are what the snapshot says."""
        start, stop = ref.start, ref.start + ref.count
        rows = f"rows {start} to {stop}"
        if not 0 <= start < stop <= file.count:
            self._fault_of_piece(ref, f"a piece has {rows} of {file.count}")
        elif set(topics[start:stop]) != {ref.topic}:
            self._fault_of_piece(ref, f"{rows} belong to another topic")
        elif (seqs[start], seqs[stop - 1]) != (ref.first, ref.last):
            seqs_said = f"seqs {seqs[start]} to {seqs[stop - 1]}; the snapshot says {ref.first} to {ref.last}"
            self._fault_of_piece(ref, f"{rows} have {seqs_said}")
        elif any(b <= a for a, b in pairwise(seqs[start:stop])):
            self._fault_of_piece(ref, f"{rows} are not ascending by seq")

    def _check_unnamed(
        self, segment: SegmentFile, topics: "memoryview[int]", seqs: "memoryview[int]", start: int, stop: int
    ) -> None:
        """Find rows in no piece that should be in one: not of a deleted topic, not lost, deleted or sealed again."""
        flags = segment.flags(start, stop) if stop > start else b""
        unnamed: dict[int, list[int]] = {}
        for row, flag in enumerate(flags, start):
            if flag == LIVE and topics[row] in self._names:
                unnamed.setdefault(topics[row], []).append(seqs[row])
        for topic, missing in unnamed.items():
            item = self._snapshot.topics[self._names[topic]]
            refs = self._snapshot.pieces_of(item)
            missing = [seq for seq in missing if _is_unexplained(seq, item, refs)]
            if missing:
                self._unnamed.append((segment, topic, missing))

    def _judge(self, accounts: dict[int, Account]) -> None:
        """Report the accounts that are not whole, and the rows in no piece whose topic has no whole account."""
        for account in accounts.values():
            if account.fault:
                self._fault("", account.topic, account.fault)
        for segment, topic, missing in self._unnamed:
            told = accounts.get(topic)
            if told is not None and not told.fault:
                continue  # they were deleted, as a whole piece
            message = (
                f"seqs {missing[0]} to {missing[-1]} ({len(missing)} records) are in this segment and not marked "
                "as deleted, but in no piece of the snapshot, and no loss is announced"
            )
            is_only = not any(ref.file == segment.ref.number for ref in self._snapshot.pieces)
            self._fault(segment.name, topic, message, is_certain=is_only or told is not None)

    def _check_topic(self, item: TopicItem) -> None:
        refs = self._snapshot.pieces_of(item)
        for one, other in pairwise(refs):
            if other.first <= one.last:
                self._fault_of_piece(other, f"pieces overlap at seq {other.first}")
        if refs and refs[-1].last > item.head:
            self._fault_of_piece(refs[-1], f"a piece ends at seq {refs[-1].last}, above the head {item.head}")
        if floor_of(item) > item.head + 1:
            self._fault("", item.name, f"the floor {floor_of(item)} lies above the head {item.head}")
        for gap in item.gaps:
            if not gap.first <= gap.last <= item.head:
                self._fault("", item.name, f"the gap {gap.first} to {gap.last} does not lie below the head {item.head}")

    def _check_history(self) -> None:
        """Check that watermarks and gaps never go back, from each snapshot to the next, as far as they are kept."""
        before: dict[int, TopicItem] = {}
        try:
            for name, items in snapshots.Snapshots(self._disk).history():
                now = {item.id: item for item in Snapshot([], items).topics.values()}
                for id, item in now.items():
                    if id in before and (said := _gone_back(before[id], item)):
                        self._fault(name, item.name, said)
                before = now
        except (Damaged, FileNotFoundError) as error:
            self._fault(snapshots.PREFIX + "*", "", str(error))

    def _check_log(self) -> tuple[dict[int, Account], int, int]:
        """Read all frames that recovery would read. A torn end is not damage: what was acked lies before it."""
        accounts: dict[int, Account] = {}
        recovery = None
        try:
            recovery = Recovery(self._disk, self._snapshot, self._files, unreadable=self._damaged)
            for _ in recovery.replay():
                pass
        except (Damaged, UnusableDirectory) as error:
            self._fault(log_files.PREFIX + "*", "", str(error))
        except FileNotFoundError as error:
            self._fault(str(error.filename), "", "this log file went away")
        else:
            if recovery.missing_log:
                self._fault(recovery.missing_log, "", "this log file is missing")
            else:
                accounts = accounts_of(recovery.state, self._damaged)
        return accounts, len(recovery.log.files) if recovery else 0, recovery.frames if recovery else 0


def _gone_back(before: TopicItem, now: TopicItem) -> str:
    """Which loss a newer snapshot of a topic takes back, though nothing may (TM14)."""
    for name in ("head", "evicted_last", "expired_last"):
        was, has = getattr(before, name), getattr(now, name)
        if has < was:
            return f"{name} was {was} in the snapshot before, and is {has}: an announced loss is taken back"
    for gap in before.gaps:
        if gap.last >= floor_of(now) and not any(a.first <= gap.first and gap.last <= a.last for a in now.gaps):
            return f"the gap {gap.first} to {gap.last} was announced in the snapshot before, and is not any more"
    return ""


def _is_unexplained(seq: int, item: TopicItem, refs: list[PieceRef]) -> bool:
    """Whether a record that is in no piece should be: it is not lost, not sealed again, and not still in the log."""
    if not floor_of(item) <= seq <= sealed_through_of(item) or any(gap.first <= seq <= gap.last for gap in item.gaps):
        return False
    index = bisect_left(refs, seq, key=lambda ref: ref.last)
    return index == len(refs) or refs[index].first > seq
