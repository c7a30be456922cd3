"""The files of the log: created ahead of their first frame, and read back, every frame that counts and nothing else.

A log file is *started* once its first frame is valid; before that moment it is not in force and may be removed. When a
file was started, all earlier ones were complete and synced, and its first frame says where they end. So in an earlier
file anything but valid frames followed by zeros is damage (ST12).

In the newest file a bad frame is either a torn tail, to be cut off (ST8), or damage. Under the boot that wrote the
file, nothing that was written gets lost: a torn tail is the first part of a write, and anything else is damage. After a
power loss each sector may be old or new: then a bad frame is damage only if a later frame proves that its place had
been synced before.
"""

from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing, nullcontext, suppress
from typing import NamedTuple

from topics.errors import Damaged, UnusableDirectory
from topics.storage import frames
from topics.storage.disk import Disk, File
from topics.storage.reserve import KEPT_FOR_RELEASE, NO_SPACE

PREFIX = "log-"
UNFINISHED = "log-restore-unfinished"  # no log file: while it is there, no server may start
AHEAD_BYTES_MIN = 64 * 1024  # zeros in a new file, if the disk is full
STEP_BYTES = 4 * 1024 * 1024  # more than this is written in several turns of the loop
PADDING_BYTES = frames.FRAME_OVERHEAD_BYTES  # zeros that follow the last frame at least


def create(
    disk: Disk,
    number: int,
    cut: int,
    payload_bytes: int,
    ahead_bytes: int,
    on_full: Callable[[OSError], None],
    *,
    at_any_cost: bool = True,
) -> tuple[File, int]:
    """A new file, not started yet, and the position of its first frame. Its directory entry is durable (ST5).

    It has room for a first payload and so many bytes ahead. On a full disk these are fewer, of the space that is kept
    back if need be, and `on_full` is told. `at_any_cost`: of all of that space, and of its inode.
    """
    fewer = min(ahead_bytes, AHEAD_BYTES_MIN)
    attempts = ((ahead_bytes, -1), (fewer, -1), (fewer, KEPT_FOR_RELEASE), (0, 0))
    for ahead, kept_bytes in attempts if at_any_cost else attempts[:-1]:
        if kept_bytes >= 0:
            disk.use_reserved_space(kept_bytes)
        try:
            return _create(disk, number, cut, ahead + payload_bytes)
        except OSError as error:
            if error.errno not in NO_SPACE:
                raise
            on_full(error)
            failure = error
    raise failure


def _create(disk: Disk, number: int, cut: int, ahead_bytes: int) -> tuple[File, int]:
    name = name_of(number)
    if name in disk.names():
        disk.remove(name)
    file = disk.create(name)
    header = frames.encode_header(frames.FileHeader(number, disk.boot_id, cut, is_padded=True))
    try:
        file.write(0, header + bytes(ahead_bytes + frames.FRAME_OVERHEAD_BYTES + PADDING_BYTES))
        file.sync()
        disk.sync_directory()
    except OSError:
        file.close()
        with suppress(OSError):
            disk.remove(name)
        raise
    return file, frames.position_of(number, len(header))


def write_in_steps(file: File, offset: int, parts: Sequence[bytes], size: int) -> Iterator[None]:
    """Write parts of this size one behind the other: all at once, or some at each step if they are large."""
    if size <= STEP_BYTES:
        file.write(offset, parts[0] if len(parts) == 1 else b"".join(parts))
        return iter(())
    return _steps(file, offset, parts)


def _steps(file: File, offset: int, parts: Sequence[bytes]) -> Iterator[None]:
    for part in parts:
        for start in range(0, len(part), STEP_BYTES):
            some = memoryview(part)[start : start + STEP_BYTES]
            file.write(offset, some)
            offset += len(some)
            yield


def read_payload(disk: Disk, position: int, end: int) -> bytes:
    """Read back the payload of a frame that was written."""
    with closing(disk.open(name_of(frames.number_of(position)), writable=False)) as file:
        return file.read(frames.offset_of(position), end - position)[frames.FRAME_OVERHEAD_BYTES :]


def mark_void(disk: Disk, positions: Iterable[int], opened: File | None) -> None:
    """Try to keep frames whose commit failed from ever being replayed; if this fails, the first of them may be.

    `opened` is a log file that is open: for the frames in it no descriptor is needed.
    """
    by_name: dict[str, list[int]] = {}
    for position in sorted(positions, reverse=True):
        by_name.setdefault(name_of(frames.number_of(position)), []).append(frames.offset_of(position))
    for name, offsets in by_name.items():
        is_opened = opened is not None and opened.name == name
        with suppress(OSError), nullcontext(opened) if is_opened else closing(disk.open(name)) as file:
            assert file is not None
            for offset in offsets:
                file.write(*frames.void_mark(offset))
            file.sync()


class StartedFile(NamedTuple):
    """A log file that is in force."""

    name: str
    header: frames.FileHeader
    offset: int  # of the first frame
    size_bytes: int


class Stretch(NamedTuple):
    """Frames in a row that somebody has taken as they lie in their file."""

    offset: int  # behind them
    synced: int  # what the last of them says of the log
    frames: int


# Takes frames of a file in a row: its data, its number, from which offset on, up to which. None: not even the first.
Taker = Callable[[bytes, int, int, int], Stretch | None]


class Replay:
    """The frames of the log from `start` on. After the last one, `torn` and `boot_id` are known."""

    def __init__(self, disk: Disk, start: int, skipped: frozenset[int] = frozenset()) -> None:
        self._disk = disk
        self._start = start
        self._skipped = skipped  # positions of frames whose commit failed
        self.files: list[str] = []  # of files in force
        self.orphans: list[str] = []  # files that are not in force
        self.boot_id: str | None = None  # under which the last frames were written; None = there are none
        self.next_number = frames.number_of(start)
        self.torn: tuple[str, int] | None = None  # file and offset at which the newest one must be cut
        self.end = 0  # of the frames in the last file; 0 = there is none
        self._proven = 0  # a frame says that everything below this position was synced
        self.bytes_total = 0
        self.bytes_done = 0

    def read(self) -> Iterator[frames.Frame]:
        """Every frame that counts."""
        for found in self.read_taking(lambda data, number, offset, limit: None):
            assert isinstance(found, frames.Frame)
            yield found

    def read_taking(self, take: Taker) -> Iterator[frames.Frame | Stretch]:
        """The same; but `take` may take frames in a row before they are read. It checks them, and takes valid ones."""
        names = [name for name in self._disk.names() if name.startswith(PREFIX)]
        old = [name for name in names if number_in(name) < frames.number_of(self._start)]
        self.orphans.extend(old)
        current = [name for name in names if name not in old]
        started: list[StartedFile] = []
        for name in reversed(current):
            opened = self._open(name, is_newest=not started)
            if opened is None:
                self.orphans.append(name)
                continue
            started.insert(0, opened)
        self._check_complete(started)
        if started:
            self.next_number = started[-1].header.number + 1
        self.bytes_total = sum(file.size_bytes for file in started)
        for index, file in enumerate(started):
            cut = min((later.header.cut for later in started[index + 1 :] if later.header.cut), default=0)
            yield from self._read(file, cut, take, is_newest=index == len(started) - 1)
            self.files.append(file.name)
            self.boot_id = file.header.boot_id

    def _open(self, name: str, is_newest: bool) -> StartedFile | None:
        """A started file, or None for one that was never in force."""
        data = self._data(name)
        try:
            header, offset = frames.decode_header(bytes(data[:4096]))
        except frames.NewerVersion as error:
            raise UnusableDirectory(f"{self._disk.path}/{name}: {error}") from None
        except frames.BadHeader as error:
            if not is_newest or frames.has_frame(data):
                raise Damaged(f"{self._disk.path}/{name}", 0, str(error)) from None
            return None
        first = next(iter(frames.scan(data, header.number, offset)))
        if isinstance(first, frames.Frame):
            return StartedFile(name, header, offset, len(data))
        if not is_newest or self._is_damage(data, header, first.offset):
            raise Damaged(f"{self._disk.path}/{name}", first.offset, "the first frame is not valid")
        return None

    def _check_complete(self, started: list[StartedFile]) -> None:
        expected = frames.number_of(self._start)
        for name, header, _, _ in started:
            if header.number != expected or number_in(name) != expected:
                raise Damaged(f"{self._disk.path}/{name_of(expected)}", 0, "this log file is missing")
            expected += 1

    def _read(self, file: StartedFile, cut: int, take: Taker, is_newest: bool) -> Iterator[frames.Frame | Stretch]:
        _, header, offset, _ = file
        number, data = header.number, self._data(file.name)
        raw = data.obj
        assert isinstance(raw, bytes)
        done, start = self.bytes_done, frames.position_of(number, 0)
        limit = cut - start if cut else len(raw)
        skipped = [*sorted(one - start for one in self._skipped if frames.number_of(one) == number), len(raw)]
        self._check_end(next(iter(frames.scan(data, number, offset))))
        while True:
            stretch = take(raw, number, offset, min(limit, skipped[bisect_left(skipped, offset)]))
            if stretch is not None:
                offset, self._proven = stretch.offset, stretch.synced
                self.bytes_done = done + offset
                yield stretch
                continue
            found = frames.frame_at(data, number, offset)
            if found is None:
                self._check_tail(file, data, frames.end_at(data, offset), cut, is_newest)
                break
            if cut and found.position >= cut and not found.is_void:
                self.end = found.position
                break
            offset += frames.FRAME_OVERHEAD_BYTES + len(found.payload)
            if not found.is_void:
                self.bytes_done = done + offset
                self._proven = found.synced
                if found.position not in self._skipped:
                    yield found
        self.bytes_done = done + len(data)

    def _check_tail(self, file: StartedFile, data: memoryview, end: frames.End, cut: int, is_newest: bool) -> None:
        """Check what follows the last frame of a file: damage, a torn tail or nothing."""
        name, header = file.name, file.header
        self.end = frames.position_of(header.number, end.offset)
        if is_newest and self._is_same_boot(header) and header.is_padded and len(data) < end.offset + PADDING_BYTES:
            raise Damaged(f"{self._disk.path}/{name}", len(data), "the file is cut short: zeros are missing behind")
        if not end.is_clean and not (cut and self.end >= cut):
            if not is_newest or self._is_damage(data, header, end.offset):
                raise Damaged(f"{self._disk.path}/{name}", end.offset, "a frame is not valid")
            self.torn = (name, end.offset)

    def _check_end(self, first: frames.Frame | frames.End) -> None:
        """Check that the file before the one that starts with `first` has all its frames."""
        if isinstance(first, frames.Frame) and self.end and first.synced > self.end:
            name = name_of(frames.number_of(self.end))
            raise Damaged(
                f"{self._disk.path}/{name}", frames.offset_of(self.end), "the frames from here on are missing"
            )

    def _is_damage(self, data: memoryview, header: frames.FileHeader, offset: int) -> bool:
        """Whether the bad frame at `offset` of the newest file cannot be a torn tail."""
        bad = frames.position_of(header.number, offset)
        is_same_boot = self._is_same_boot(header)
        if is_same_boot and not frames.may_be_cut_off(data, offset, header.is_padded):
            return True
        return any(is_same_boot or frame.synced > bad for frame in frames.frames_beyond(data, header.number, offset))

    def _is_same_boot(self, header: frames.FileHeader) -> bool:
        return bool(header.boot_id) and header.boot_id == self._disk.boot_id

    def _data(self, name: str) -> memoryview:
        with closing(self._disk.open(name, writable=False)) as file:
            return memoryview(file.read(0, file.size()))

    def repair(self) -> None:
        """Cut the torn tail off and make what is left durable; remove what is not in force.

        Zeros go over the tail: a file that became shorter could not be told from one that somebody cut. What may not
        have been synced is written again, if there is space: where a sync failed before, another one proves nothing.
        """
        if self.files:
            with closing(self._disk.open(self.files[-1])) as file:
                if self.torn is not None:
                    file.write(self.torn[1], bytes(file.size() - self.torn[1]))
                start = frames.offset_of(max(self._proven, frames.position_of(frames.number_of(self.end), 0)))
                try:
                    if doubtful := file.read(start, frames.offset_of(self.end) - start):
                        file.write(start, doubtful)
                except OSError as error:
                    if error.errno not in NO_SPACE:
                        raise
                file.sync()
        self._disk.sync_directory()  # the snapshot that makes files superfluous may not be synced itself
        for name in self.orphans:
            self._disk.remove(name)
        if self.orphans:
            self._disk.sync_directory()


def name_of(number: int) -> str:
    return f"{PREFIX}{number:010d}"


def number_in(name: str) -> int:
    text = name.removeprefix(PREFIX)
    if name == UNFINISHED:
        raise UnusableDirectory(
            f"a restore into this directory was interrupted ({name}); run topics restore again, with the same arguments"
        )
    if not text.isdigit():
        raise UnusableDirectory(f"{name} is not a log file of topics; move it out of the data directory")
    return int(text)
