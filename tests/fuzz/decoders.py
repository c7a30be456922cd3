"""Targets behind the disk: a log, a segment or a snapshot as anything may have left it.

A decoder gives what was encoded or refuses by the name of the file. The first byte of an input steers: its lowest bit
signs the file anew, so that what lies behind the checksums is reached, the next one is another boot.
"""

import re
import struct
from collections.abc import Callable, Coroutine
from functools import cache
from typing import Any, Final

from tests.fuzz import bars
from tests.fuzz.host import SETTINGS, directory, turns
from topics.engine import Engine
from topics.errors import Damaged, StorageError, UnusableDirectory
from topics.reader import Directory
from topics.storage import frames, snapshots
from topics.storage.frames import position_of
from topics.storage.log_files import Replay
from topics.storage.snapshots import Snapshots
from topics.testing.clock import ManualClock
from topics.testing.disk import MemoryDisk

FILE_BYTES_MAX: Final = 64 * 1024
RESIGN, OTHER_BOOT = 1, 2


@cache
def name_like(prefix: str) -> str:
    """The newest file of a kind."""
    return max(name for name in directory() if name.startswith(prefix))


def paid(work: Callable[[], object], sent_bytes: int) -> None:
    """Decode, within the bars. All of it is one piece, and may take as long as a start."""

    def cost() -> tuple[bars.Meter, int]:
        meter = bars.Meter()
        meter.run(work, lambda: float("-inf"))
        meter.turn_s = 0.0
        return meter, sent_bytes

    bars.check(cost)


def run(work: Coroutine[Any, Any, Any]) -> Any:
    return turns()[0].run_until_complete(work)


def log(data: bytes) -> None:
    steer, image = (data[0], data[1 : FILE_BYTES_MAX + 1]) if data else (0, b"")
    if steer & RESIGN:
        image = signed_log(image)
    boot = 2 if steer & OTHER_BOOT else 1

    def replay() -> None:
        name = "log-0000000001"
        disk = MemoryDisk({name: image}, boot=boot)
        found = replayed(disk, image)
        if found is not None:
            assert replayed(disk, image) == found, "the second reading differs from the first"
        newest = name_like("log-")
        run(start({**directory(), newest: image}, boot, newest, None, reads=not steer & RESIGN))

    paid(replay, len(image))


def replayed(disk: MemoryDisk, image: bytes) -> list[tuple[int, bytes]] | None:
    """The frames, each as it is in the file; None if they are refused."""
    log = Replay(disk, position_of(1, 0))
    found = []
    try:
        for frame in log.read():
            payload = bytes(frame.payload)
            offset = frames.offset_of(frame.position)
            encoded = frames.encode_frame(payload, frame.position, frame.synced)
            assert image[offset : offset + len(encoded)] == encoded, "a frame that was not there"
            found.append((frame.position, payload))
        log.repair()
    except (Damaged, UnusableDirectory) as refusal:
        assert "log-0000000001" in str(refusal), refusal  # noqa: PT017
        return None
    return found


def signed_log(image: bytes) -> bytes:
    """The file with all checksums right, as far as its lengths make sense."""
    out = bytearray(image)
    if len(out) < 24:
        return bytes(out)
    size = min(int.from_bytes(out[12:16], "little"), max(0, len(out) - 24))
    struct.pack_into("<8sI", out, 0, b"TOPICLOG", 1)
    struct.pack_into("<IQ", out, 12, size, frames.xxh3_64_intdigest(bytes(out[24 : 24 + size])))
    offset = 24 + size
    try:
        number = frames.decode_header(bytes(out))[0].number
    except Exception:
        return bytes(out)
    while offset + 24 <= len(out) and out[offset : offset + 4] in (b"FRME", b"VOME", b"VOID"):
        size, synced = struct.unpack_from("<IQ", out, offset + 4)
        size = min(size, len(out) - offset - 24)
        payload = bytes(out[offset + 24 : offset + 24 + size])
        if not 0 <= number < 1 << 24:
            break
        magic = bytes(out[offset : offset + 4])
        out[offset : offset + 24] = magic + frames.encode_frame(payload, position_of(number, offset), synced)[4:24]
        offset += 24 + size
    return bytes(out)


async def start(
    files: dict[str, bytes], boot: int, name: str, original: dict[str, Any] | None, *, reads: bool = True
) -> None:
    """Start, and read everything: it is refused by the file's name, or it holds.

    What was signed anew is not read: behind a right checksum texts are taken as they are.
    """
    found = await seen(MemoryDisk(files, boot=boot), name, reads=reads)
    if original is not None and found is not None:
        assert found == original, "other records than were written"


async def seen(disk: MemoryDisk, name: str, *, reads: bool = True) -> dict[str, Any] | None:
    """All records of all topics; None if the start or a read is refused."""
    engine = Engine.open("memory", SETTINGS, disk=disk, clock=ManualClock(), background=False)
    found: dict[str, Any] = {}
    try:
        await engine.start()
        for topic in await engine.topic_names() if reads else ():
            answer = await engine.read(topic, include_tags=True, limit=1000)
            found[topic] = [(r.seq, r.ts, r.node, r.tag, bytes(r.data), bytes(r.meta)) for r in answer.records]
    except StorageError as refusal:
        assert re.search(r"-\d{9,}", str(refusal)), f"the refusal names no file: {refusal}"  # noqa: PT017
        return None
    finally:
        disk.is_dead = True
    return found


@cache
def originally() -> dict[str, Any]:
    found = run(seen(MemoryDisk(directory()), ""))
    assert found
    return found  # type: ignore[no-any-return]


def segment(data: bytes) -> None:
    steer, image = (data[0], data[1 : FILE_BYTES_MAX + 1]) if data else (0, b"")
    boot = 2 if steer & OTHER_BOOT else 1
    names = sorted(name for name in directory() if name.startswith("segment-"))
    name = names[(steer >> 4) % len(names)]

    def open_and_check() -> None:
        files = {**directory(), name: image}
        run(start(files, boot, name, None if _has_other_flags(name, image) else originally()))
        try:
            Directory(MemoryDisk(files, boot=boot)).check()
        except (Damaged, UnusableDirectory) as refusal:
            assert "segment-" in str(refusal), refusal  # noqa: PT017

    paid(open_and_check, len(image))


def _has_other_flags(name: str, image: bytes) -> bool:
    """Whether the file differs from what was written in bytes 0 or 255 only: delete marks are not checked."""
    written = directory()[name]
    if len(image) < len(written):
        return False
    changed = [new for old, new in zip(written, image, strict=False) if old != new]
    return bool(changed) and set(changed) <= {0, 255}


def snapshot(data: bytes) -> None:
    steer, image = (data[0], data[1 : FILE_BYTES_MAX + 1]) if data else (0, b"")
    if steer & RESIGN and len(image) >= 28:
        content = image[28:]
        image = snapshots._HEADER.pack(b"TOPICSNP", 2, len(content), snapshots.xxh3_64_intdigest(content)) + content
    boot = 2 if steer & OTHER_BOOT else 1
    name = name_like("snapshot-")

    def load() -> None:
        alone = "snapshot-0000000001.base"
        try:
            items = Snapshots(MemoryDisk({alone: image})).load()
        except (Damaged, UnusableDirectory) as refusal:
            assert alone in str(refusal), refusal  # noqa: PT017
        else:
            again = MemoryDisk()
            Snapshots(again).install(dict(items or {}))
            assert Snapshots(again).load() == items, "what is encoded anew is not what was decoded"
        expected = None if steer & RESIGN else originally()
        run(start({**directory(), name: image}, boot, name, expected, reads=not steer & RESIGN))

    paid(load, len(image))
