"""Snapshots: a base and its deltas, installed atomically, never misread."""

import errno
from contextlib import suppress

import pytest

from topics.errors import Damaged, UnusableDirectory
from topics.storage import snapshots
from topics.storage.snapshots import Snapshots
from topics.testing.disk import (
    Capacity,
    CrashAt,
    Crashed,
    Faulty,
    MemoryDisk,
    OrderMonitor,
    crash_points,
    installed_before_remove,
    synced_before_rename,
)

CHANGES: list[dict[bytes, bytes | None]] = [
    {b"a": b"1", b"b": b"1"},
    {b"b": b"2", b"c": b"2"},
    {b"a": None, b"d": b"3"},
    {b"d": b"4"},
    {b"e": b"5" * 50, b"c": None},
]


def states() -> list[dict[bytes, bytes]]:
    """What is in force after each of CHANGES."""
    found: list[dict[bytes, bytes]] = []
    items: dict[bytes, bytes] = {}
    for change in CHANGES:
        items = {key: value for key, value in {**items, **change}.items() if value is not None}
        found.append(items)
    return found


def install(disk: MemoryDisk, count: int = len(CHANGES)) -> None:
    kept = Snapshots(disk)
    kept.load()
    for change in CHANGES[:count]:
        kept.install(change)


def loaded(disk: MemoryDisk) -> dict[bytes, bytes] | None:
    return Snapshots(disk).load()


def test_without_files_there_never_was_a_snapshot() -> None:
    assert loaded(MemoryDisk()) is None


@pytest.mark.parametrize("count", range(1, len(CHANGES) + 1))
def test_in_force_is_the_base_with_all_deltas(count: int) -> None:
    """ST7: installing one costs what changed."""
    disk = MemoryDisk()
    install(disk, count)
    assert loaded(disk) == states()[count - 1]
    assert disk.names() == [f"snapshot-{n:010d}.{'base' if n == 1 else 'delta'}" for n in range(1, count + 1)]


def test_deltas_that_have_outgrown_the_base_are_folded_into_a_new_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(snapshots, "DELTAS_MAX", 2)
    disk = MemoryDisk()
    install(disk)
    assert loaded(disk) == states()[-1]
    assert disk.names() == ["snapshot-0000000004.base", "snapshot-0000000005.delta"]


def test_large_deltas_are_folded_by_their_size(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(snapshots, "DELTA_BYTES_MIN", 30)
    disk = MemoryDisk()
    install(disk)
    assert loaded(disk) == states()[-1]
    assert [name for name in disk.names() if name.endswith("base")] == [disk.names()[0]] != ["snapshot-0000000001.base"]


def test_what_is_not_in_force_is_obsolete() -> None:
    disk = MemoryDisk()
    install(disk, 2)
    for name in ("snapshot-0000000000.delta", "snapshot-0000000009.delta.tmp"):
        disk.create(name)
    kept = Snapshots(disk)
    assert kept.load() == states()[1]
    assert kept.obsolete() == ["snapshot-0000000000.delta", "snapshot-0000000009.delta.tmp"]


def test_a_snapshot_that_was_loaded_is_continued(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(snapshots, "DELTAS_MAX", 1)
    disk = MemoryDisk()
    for change in CHANGES:
        kept = Snapshots(disk)
        kept.load()
        kept.install(change)
    assert loaded(disk) == states()[-1]


@pytest.mark.parametrize("name", ["snapshot-0000000002.delta", "snapshot-0000000003.delta"])
def test_a_missing_link_is_damage(name: str) -> None:
    """ST12, G5"""
    disk = MemoryDisk()
    install(disk, 4)
    disk.remove(name)
    with pytest.raises(Damaged, match=f"memory/{name}: damaged at offset 0: this file is missing"):
        loaded(disk)


def test_deltas_without_a_base_are_damage_and_no_empty_start() -> None:
    """ST12, G5"""
    disk = MemoryDisk()
    install(disk, 3)
    disk.remove("snapshot-0000000001.base")
    with pytest.raises(Damaged, match="its base file is missing"):
        loaded(disk)


def test_a_newer_version_is_refused_with_the_file_named() -> None:
    disk = MemoryDisk()
    install(disk, 1)
    disk.open("snapshot-0000000001.base").write(8, b"\3")
    with pytest.raises(UnusableDirectory, match=r"snapshot-0000000001\.base is of version 3"):
        loaded(disk)


def test_a_file_that_only_looks_like_a_snapshot_is_refused() -> None:
    disk = MemoryDisk()
    install(disk, 1)
    disk.create("snapshot-backup.delta")
    with pytest.raises(UnusableDirectory, match="snapshot-backup"):
        loaded(disk)


def whole() -> dict[str, bytes]:
    disk = MemoryDisk()
    install(disk, 3)
    return disk.files()


WHOLE = whole()


@pytest.mark.parametrize("name", WHOLE)
def test_a_flipped_byte_is_found_or_changes_nothing(name: str) -> None:
    """ST12, G5: never other items."""
    for offset in range(len(WHOLE[name])):
        for flip in (0x01, 0x80, 0xFF):
            content = bytearray(WHOLE[name])
            content[offset] ^= flip
            refusal = ""
            try:
                assert loaded(MemoryDisk({**WHOLE, name: bytes(content)})) == states()[2]
            except (Damaged, UnusableDirectory) as error:
                refusal = str(error)
            assert not refusal or refusal.startswith(f"memory/{name}")


@pytest.mark.parametrize("name", WHOLE)
def test_a_file_cut_short_or_grown_is_damage(name: str) -> None:
    """ST12, G5"""
    for size in range(len(WHOLE[name])):
        with pytest.raises(Damaged, match=name):
            loaded(MemoryDisk({**WHOLE, name: WHOLE[name][:size]}))
    with pytest.raises(Damaged, match=name):
        loaded(MemoryDisk({**WHOLE, name: WHOLE[name] + b"\0"}))


def test_after_a_crash_the_old_or_the_new_one_is_in_force(monkeypatch: pytest.MonkeyPatch) -> None:
    """G6: exactly one, and none is lost before its successor is there."""
    monkeypatch.setattr(snapshots, "DELTAS_MAX", 2)
    calm = MemoryDisk()
    install(calm)
    for point in crash_points(calm.operations):
        order = OrderMonitor([synced_before_rename(), installed_before_remove("snapshot-*[ea]")])
        disk = MemoryDisk(hooks=[point, order])
        kept = Snapshots(disk)
        kept.load()
        done = 0
        with suppress(Crashed):
            for change in CHANGES:
                kept.install(change)
                done += 1
        assert disk.is_dead
        order.check()
        possible = [None, *states()][done : done + 2]
        for name, after in disk.aftermaths():
            assert loaded(after) in possible, (point, name)
            again = Snapshots(after)
            again.load()
            again.install({b"z": b"9"})
            assert (loaded(after) or {})[b"z"] == b"9"


@pytest.mark.parametrize("kind", ["create", "write", "sync", "rename", "sync_directory", "remove"])
def test_a_failed_install_leaves_one_in_force_and_the_next_one_works(
    kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """G6"""
    monkeypatch.setattr(snapshots, "DELTAS_MAX", 1)
    for at in range(6):
        disk = MemoryDisk(hooks=[Faulty(kind, at, error=errno.ENOSPC)])  # type: ignore[arg-type]
        kept = Snapshots(disk)
        kept.load()
        items: dict[bytes, bytes] = {}
        for change in CHANGES:
            after = {key: value for key, value in {**items, **change}.items() if value is not None}
            number = kept.number
            try:
                kept.install(change)
            except OSError:
                if kept.number == number:
                    after = items
            items = after
            assert (loaded(disk) or {}) == items
        disk.hooks.clear()
        kept.install({b"z": b"9"})
        assert loaded(disk) == {**items, b"z": b"9"}
        assert (loaded(disk.power_loss("lost")) or {})[b"z"] == b"9"


def test_a_crash_never_leaves_a_temporary_file_in_force() -> None:
    for n in range(4):
        disk = MemoryDisk(hooks=[CrashAt(n)])
        with pytest.raises(Crashed):
            install(disk, 1)
        assert loaded(disk.kill()) is None


@pytest.mark.parametrize("content", [b"\xc0", b"\x91\x01", b"", b"\x91\x92\xc4\x01#\xc4\x01\xa1"])
def test_a_snapshot_with_a_right_checksum_and_a_wrong_content_is_damage(content: bytes) -> None:
    """ST12, G5"""
    name = "snapshot-0000000001.base"
    image = snapshots._HEADER.pack(b"TOPICSNP", 2, len(content), snapshots.xxh3_64_intdigest(content)) + content
    with pytest.raises(Damaged, match=f"{name}: damaged at offset 28: its items make no sense"):
        loaded(MemoryDisk({name: image}))


def test_a_snapshot_that_does_not_fit_leaves_nothing_and_a_delta_stands_in_for_a_base() -> None:
    """ST16, ST7: on a full disk its first part would be all the space that was left."""
    disk = MemoryDisk()
    snapshots = Snapshots(disk)
    snapshots.install({b"a": bytes(300_000)})
    disk.hooks.append(Capacity(disk.used_bytes + 400_000))
    with pytest.raises(OSError, match="No space"):
        snapshots.install({b"b": bytes(500_000)})
    assert disk.names() == snapshots.names
    snapshots.install({b"c": bytes(310_000)})
    assert [name.endswith(".delta") for name in snapshots.names] == [False, True]
    assert Snapshots(disk.kill()).load() == {b"a": bytes(300_000), b"c": bytes(310_000)}
