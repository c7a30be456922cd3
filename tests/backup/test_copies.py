"""Backups and restores of a real directory, made by an engine in this process (BK1, BK2)."""

import asyncio
import random
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.backup.copies import directory_backup, engine_on, objects, restored, seen
from tests.effort import tries
from topics.backup import copying
from topics.backup.places import Unwritable, open_place
from topics.backup.points import Backup, NoSuchPoint
from topics.backup.receiving import Receiver
from topics.engine import Engine
from topics.errors import Damaged, DirectoryLocked, UnusableDirectory
from topics.model import TagMatch
from topics.reader import open_directory
from topics.storage import log_files
from topics.testing.clock import ManualClock
from topics.testing.disk import MemoryDisk

WHERE = ["b", "b.tar", "b.tar.gz", "b.tar.zst"]


async def busy(engine: Engine, clock: ManualClock, turns: int = 6) -> None:
    """A bit of everything, with checkpoints between."""
    await engine.put_topic("queue", {"type": "queue", "leases_durable": True, "durability": "fsync"})
    await engine.put_topic("capped", {"cap_records": 150})
    await engine.put_topic("gone", {})
    for turn in range(turns):
        records = [{"data": {"turn": turn, "n": n}, "tag": f"t{n % 3}", "meta": {"m": n}} for n in range(70)]
        await engine.append("orders", records, node="a", key=f"key-{turn}")
        await engine.append("capped", records)
        await engine.append("queue", [{"data": n} for n in range(5)])
        await engine.append("gone", [{"data": n} for n in range(30)])
        if turn == 1:
            await engine.put_router("orders->copy", "orders", "copy")
        claimed = await engine.claim("queue", f"node-{turn}", 3)
        await engine.ack("queue", f"node-{turn}", [claimed.leases[0][0]])
        await engine.delete("orders", match=TagMatch("Eq", "t1"), before_seq=40 * turn)
        clock.advance(1000)
        if turn in (1, 3):
            await engine.checkpoint()
    await engine.delete_topic("gone")


@pytest.mark.parametrize("where", WHERE)
async def test_a_backup_restored_is_what_was_there(tmp_path: Path, where: str) -> None:
    """BK1, BK2: records, losses, config, routers, keys of idempotency and leases come along."""
    clock = ManualClock()
    async with engine_on(tmp_path / "data", clock) as engine:
        await busy(engine, clock)
        shipped = await engine.backup(str(tmp_path / where))
        there = await seen(engine)
        await engine.append("orders", [{"data": "later"}])
    assert shipped.points == 1 and shipped.files > 0
    done = restored(tmp_path / where, tmp_path / "restored")
    assert (done.topics, done.raised, done.check.faults) == (4, True, [])
    async with engine_on(tmp_path / "restored", clock) as engine:
        assert await seen(engine) == there
        again = await engine.append("orders", [{"data": 1}], key="key-5")
        assert again.deduped


@pytest.mark.parametrize("is_stopped", [True, False])
async def test_a_directory_is_backed_up_beside_its_server_or_without_one(tmp_path: Path, is_stopped: bool) -> None:
    """BK1"""
    clock = ManualClock()
    async with engine_on(tmp_path / "data", clock) as engine:
        await busy(engine, clock)
        there = await seen(engine)
        if not is_stopped:
            directory_backup(tmp_path / "data", tmp_path / "b", clock)
    if is_stopped:
        directory_backup(tmp_path / "data", tmp_path / "b", clock)
    restored(tmp_path / "b", tmp_path / "restored")
    async with engine_on(tmp_path / "restored", clock) as engine:
        assert await seen(engine) == there


async def test_a_second_backup_ships_only_what_is_new_and_both_can_be_restored(tmp_path: Path) -> None:
    """BK1"""
    clock = ManualClock()
    async with engine_on(tmp_path / "data", clock) as engine:
        await busy(engine, clock)
        await engine.checkpoint()
        first = await engine.backup(str(tmp_path / "b"))
        there = await seen(engine)
        before = {path: path.read_bytes() for path in objects(tmp_path / "b")}
        same = await engine.backup(str(tmp_path / "b"))
        assert (same.files, same.bytes) == (0, 0)
        clock.advance(1000)
        moment = clock.now_ms()
        clock.advance(1000)
        await engine.append("orders", [{"data": "new"}])
        await engine.delete("orders", before_seq=200)
        second = await engine.backup(str(tmp_path / "b"))
        assert 0 < second.bytes < 2000 < first.bytes and second.files == 0
        await engine.checkpoint()
        third = await engine.backup(str(tmp_path / "b"))
        now = await seen(engine)
    assert 0 < third.bytes < first.bytes
    assert {path: path.read_bytes() for path in before} == before, "what is there is never changed"
    restored(tmp_path / "b", tmp_path / "as-of", until=moment)
    async with engine_on(tmp_path / "as-of", clock) as engine:
        assert await seen(engine) == there
    restored(tmp_path / "b", tmp_path / "newest")
    async with engine_on(tmp_path / "newest", clock) as engine:
        assert await seen(engine) == now


async def test_a_restore_stops_at_the_last_commit_not_after_a_time(tmp_path: Path) -> None:
    """BK1: whatever the commits are; also deletes, acks and topics that go, which have no time of their own."""
    clock = ManualClock()
    moments: list[tuple[int, dict[str, Any]]] = []
    async with engine_on(tmp_path / "data", clock) as engine:

        async def step(work: Any) -> None:
            await work
            moments.append((clock.now_ms(), await seen(engine)))
            clock.advance(random.Random(len(moments)).choice([1, 40, 5000]))

        await step(engine.append("a", [{"data": n} for n in range(50)]))
        await step(engine.delete("a", before_seq=20))
        await step(engine.put_topic("q", {"type": "queue", "leases_durable": True}))
        await step(engine.append("q", [{"data": 1}, {"data": 2}]))
        await step(engine.claim("q", "w", 1))
        await step(engine.ack("q", "w", [1]))
        await step(engine.put_router("r", "a", "copy"))
        await step(engine.append("a", [{"data": 51}]))
        await step(engine.delete_router("r"))
        await step(engine.put_topic("a", {"cap_records": 5}))
        await step(engine.delete_topic("a"))
        await step(engine.append("a", [{"data": "anew"}]))
        await engine.backup(str(tmp_path / "b"))
    for index, (moment, there) in enumerate(moments):
        path = tmp_path / f"restored-{index}"
        restored(tmp_path / "b", path, until=moment)
        async with engine_on(path, ManualClock(moment)) as engine:
            assert await seen(engine) == there, index
    with pytest.raises(NoSuchPoint, match="begins at"):
        restored(tmp_path / "b", tmp_path / "early", until=moments[0][0] - 1)


async def test_a_point_reaches_back_to_its_checkpoint_and_not_behind_it(tmp_path: Path) -> None:
    """BK1: flags of deletes that a checkpoint has set are never taken back by a restore to a time before."""
    clock = ManualClock()
    async with engine_on(tmp_path / "data", clock) as engine:
        await engine.append("a", [{"data": n} for n in range(50)])
        await engine.checkpoint()
        clock.advance(1000)
        early = clock.now_ms()
        clock.advance(1000)
        await engine.delete("a", before_seq=20)
        await engine.checkpoint()
        clock.advance(1000)
        late, there = clock.now_ms(), await seen(engine)
        clock.advance(1000)
        await engine.delete_topic("a")
        await engine.backup(str(tmp_path / "b"))
    with pytest.raises(NoSuchPoint):
        restored(tmp_path / "b", tmp_path / "early", until=early)
    assert not (tmp_path / "early").exists()
    restored(tmp_path / "b", tmp_path / "late", until=late)
    async with engine_on(tmp_path / "late", clock) as engine:
        assert await seen(engine) == there


async def test_a_restore_raises_every_epoch_unless_told_not_to(tmp_path: Path) -> None:
    """BK2: a reader with the epoch of before is told, also by a second restore."""
    clock = ManualClock()
    async with engine_on(tmp_path / "data", clock) as engine:
        for name in ("fsync", "disk", "memory", "ephemeral"):
            await engine.put_topic(name, {"durability": name})
            await engine.append(name, [{"data": 1}, {"data": 2}])
        epochs = {name: (await engine.topic_state(name)).epoch for name in await engine.topic_names()}
        await engine.backup(str(tmp_path / "b"))
    seen_epochs: list[dict[str, int]] = [epochs]
    for index in range(2):
        restored(tmp_path / "b", tmp_path / f"r{index}")
        async with engine_on(tmp_path / f"r{index}", clock) as engine:
            seen_epochs.append({name: (await engine.topic_state(name)).epoch for name in epochs})
            answer = await engine.read("disk", after=2, epoch=epochs["disk"])
            assert answer.tombstone is not None and answer.tombstone.reason == "recreated"
            assert [record.seq for record in answer.records] == [1, 2]
            assert (await engine.append("disk", [{"data": 3}])).first_seq == 3
    for name in epochs:
        assert len({found[name] for found in seen_epochs}) == 3, name
        assert min(found[name] for found in seen_epochs[1:]) > max(epochs.values())
    restored(tmp_path / "b", tmp_path / "same", raises_epochs=False)
    async with engine_on(tmp_path / "same", clock) as engine:
        assert {name: (await engine.topic_state(name)).epoch for name in epochs if name != "ephemeral"} == {
            name: epoch for name, epoch in epochs.items() if name != "ephemeral"
        }
        assert (await engine.append("fsync", [{"data": 3}])).first_seq == 3
        above = (await engine.append("disk", [{"data": 3}])).first_seq
        assert above > 65_536, "seqs that the source may have handed out since are not handed out again"


async def test_a_restored_directory_goes_on_and_can_be_backed_up_into_the_same_place(tmp_path: Path) -> None:
    """BK1: numbers of files that both have mean different files; names tell them apart."""
    clock = ManualClock()
    async with engine_on(tmp_path / "data", clock) as engine:
        await busy(engine, clock)
        await engine.backup(str(tmp_path / "b"))
        await engine.append("orders", [{"data": "first life"} for _ in range(300)])
        await engine.checkpoint()
        await engine.backup(str(tmp_path / "b"))
        first = await seen(engine)
        clock.advance(1000)
    restored(tmp_path / "b", tmp_path / "second", until=clock.now_ms() - 2000)
    async with engine_on(tmp_path / "second", clock) as engine:
        await engine.append("orders", [{"data": "second life"} for _ in range(300)])
        await engine.checkpoint()
        await engine.backup(str(tmp_path / "b"))
        second = await seen(engine)
    restored(tmp_path / "b", tmp_path / "r2")
    async with engine_on(tmp_path / "r2", clock) as engine:
        assert await seen(engine) == second
    restored(tmp_path / "b", tmp_path / "r1", until=clock.now_ms() - 1000)
    async with engine_on(tmp_path / "r1", clock) as engine:
        assert await seen(engine) == first


async def test_writes_go_on_while_a_backup_is_taken(tmp_path: Path) -> None:
    """BK1: the copy is what there was at one position: a first part of what was written, without holes."""
    clock = ManualClock()
    async with engine_on(tmp_path / "data", clock) as engine:
        await busy(engine, clock)
        is_over = False

        async def write() -> int:
            count = 0
            while not is_over:
                await engine.append("a", [{"data": count}])
                await engine.append("b", [{"data": count}])
                count += 1
                if count % 50 == 0:
                    await engine.checkpoint()
            return count

        writing = asyncio.create_task(write())
        copies = []
        for index in range(tries(5)):
            await engine.append("mark", [{"data": index}])
            copies.append(await engine.backup(str(tmp_path / f"b{index}")))
        is_over = True
        count = await writing
    for index, _ in enumerate(copies):
        restored(tmp_path / f"b{index}", tmp_path / f"r{index}")
        async with engine_on(tmp_path / f"r{index}", clock) as engine:
            heads = {name: (await engine.topic_state(name)).head_seq for name in ("mark", "a", "b")}
            assert heads["mark"] == index + 1
            assert 0 <= heads["a"] - heads["b"] <= 1 and heads["a"] <= count


def audited(dest: Path, point: str) -> str:
    """What the audit of a copy has to say."""
    try:
        return str(copying.audit(open_place(str(dest)), point).faults)
    except Damaged as error:
        return str(error)


Damage = Callable[[Path], None]


def flipped(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-1])


@pytest.mark.parametrize("damage", [flipped, cut, Path.unlink], ids=["flipped", "cut", "missing"])
async def test_a_damaged_backup_is_refused_by_name(tmp_path: Path, damage: Damage) -> None:
    """BK1: each object in turn; nothing is restored, and the audit of the copy says the same."""
    clock = ManualClock()
    async with engine_on(tmp_path / "data", clock) as engine:
        await busy(engine, clock)
        await engine.checkpoint()
        await engine.append("orders", [{"data": 1}])
        shipped = await engine.backup(str(tmp_path / "b"))
    kinds = {path.parent.name.partition("T")[0] + path.name[:3]: path for path in objects(tmp_path / "b")}
    assert len(kinds) == 5, "segments, flags, snapshots, log, point"
    for path in kinds.values():
        whole = path.read_bytes()
        damage(path)
        is_gone = path.name.startswith("point-") and not path.exists()
        with pytest.raises((Damaged, UnusableDirectory), match="no backup" if is_gone else path.name):
            restored(tmp_path / "b", tmp_path / "r")
        assert is_gone or path.name in audited(tmp_path / "b", shipped.point)
        assert not (tmp_path / "r" / "restoring").exists()
        path.write_bytes(whole)
    restored(tmp_path / "b", tmp_path / "r")


async def test_a_hole_in_the_log_is_named(tmp_path: Path) -> None:
    """BK1"""
    async with engine_on(tmp_path / "data") as engine:
        for n in range(3):
            await engine.append("a", [{"data": n}])
            await engine.backup(str(tmp_path / "b"))
    logs = [path for path in objects(tmp_path / "b") if path.name.startswith("log-")]
    logs[1].unlink()
    with pytest.raises(Damaged, match=f"{logs[1].name}.*this object is missing"):
        restored(tmp_path / "b", tmp_path / "r")


@pytest.mark.parametrize("content", ["file", "directory", "data"])
async def test_a_directory_that_is_not_empty_is_refused(tmp_path: Path, content: str) -> None:
    async with engine_on(tmp_path / "data") as engine:
        await engine.append("a", [{"data": 1}])
        await engine.backup(str(tmp_path / "b"))
        target = tmp_path / "target"
        if content == "data":
            target = tmp_path / "data"
        else:
            target.mkdir()
            (target / "x").mkdir() if content == "directory" else (target / "x").write_text("x")
        before = sorted(path.name for path in target.iterdir())
        with pytest.raises(UnusableDirectory, match="is not empty"):
            restored(tmp_path / "b", target)
        assert sorted(path.name for path in target.iterdir()) == before


async def test_an_unfinished_restore_is_no_data_directory_and_is_done_again(tmp_path: Path) -> None:
    """BK2: a server refuses it, and says what to do."""
    async with engine_on(tmp_path / "data") as engine:
        await engine.append("a", [{"data": 1}])
        await engine.backup(str(tmp_path / "b"))
        there = await seen(engine)
    target = tmp_path / "target"
    (target / "restoring").mkdir(parents=True)
    (target / log_files.UNFINISHED).touch()
    (target / "log-0000000001").write_bytes(b"half")
    with pytest.raises(UnusableDirectory, match="restore into this directory was interrupted"):
        async with engine_on(target):
            pass
    restored(tmp_path / "b", target)
    assert not (target / log_files.UNFINISHED).exists() and not (target / "restoring").exists()
    async with engine_on(target) as engine:
        assert await seen(engine) == there
        with pytest.raises((DirectoryLocked, UnusableDirectory)):
            restored(tmp_path / "b", target)


def test_a_place_without_a_backup_is_refused(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    with pytest.raises(UnusableDirectory, match="there is nothing"):
        Backup(open_place(str(tmp_path / "empty")))
    with pytest.raises(UnusableDirectory, match="no such file"):
        open_place(str(tmp_path / "absent.tar"))
    with pytest.raises(UnusableDirectory, match="not a directory"):
        open_place(str(tmp_path / "absent"))
    (tmp_path / "cut.tar").write_bytes(b"\1" * 700)
    with pytest.raises(Damaged, match=r"cut\.tar"):
        open_place(str(tmp_path / "cut.tar"))
    (tmp_path / "cut.tar.zst").write_bytes(b"\1" * 700)
    with pytest.raises(Damaged, match=r"cut\.tar\.zst"):
        open_place(str(tmp_path / "cut.tar.zst"))


@pytest.mark.parametrize(
    ("name", "kind"), [("../out", tarfile.REGTYPE), ("/out", tarfile.REGTYPE), ("in", tarfile.SYMTYPE)]
)
def test_an_archive_unpacks_files_of_its_own_and_nothing_else(tmp_path: Path, name: str, kind: bytes) -> None:
    """BK1"""
    with tarfile.open(tmp_path / "b.tar.gz", "w:gz") as tar:
        member = tarfile.TarInfo(name)
        member.type, member.linkname = kind, "/etc"
        tar.addfile(member)
    with pytest.raises(Damaged, match="is no file of a backup"):
        restored(tmp_path / "b.tar.gz", tmp_path / "r")


def test_an_archive_is_written_once(tmp_path: Path) -> None:
    (tmp_path / "b.tar").write_bytes(b"precious")
    with pytest.raises(Unwritable, match="is there already"):
        open_place(str(tmp_path / "b.tar"), writes=True)
    assert (tmp_path / "b.tar").read_bytes() == b"precious"
    place = open_place(str(tmp_path / "c.tar"), writes=True)
    place.put("points/x", b"1")
    place.close()
    assert not (tmp_path / "c.tar").exists(), "an archive that is not finished has no name"


def test_a_uri_is_shown_without_its_secret() -> None:
    with pytest.raises(UnusableDirectory) as refused:
        open_place("nosuch://KEY:SECRET@bucket/path?token=SECRET")
    assert "SECRET" not in str(refused.value) and "bucket" in str(refused.value)


async def test_a_directory_of_today_opens_with_frames_that_have_no_time(tmp_path: Path) -> None:
    """A log without the times of commits is replayed as ever: the mark is skipped, and not asked for."""
    disk = MemoryDisk()
    async with Engine.open("memory", disk=disk, clock=ManualClock(), background=False) as engine:
        await engine.append("a", [{"data": 1}])
    assert not open_directory_of(disk).check().faults


def open_directory_of(disk: MemoryDisk) -> Any:
    from topics.reader import Directory

    return Directory(disk.kill())


def test_the_reader_refuses_an_unfinished_restore(tmp_path: Path) -> None:
    (tmp_path / log_files.UNFINISHED).touch()
    (tmp_path / "log-0000000001").touch()
    with pytest.raises(UnusableDirectory, match="interrupted"), open_directory(tmp_path) as directory:
        directory.pin()


async def test_a_follower_gets_new_points_in_its_stream_and_every_moment_can_be_restored(tmp_path: Path) -> None:
    """BK1: a checkpoint and ten minutes later there is a new base; the log goes on without a hole."""
    clock = ManualClock()
    moments: list[tuple[int, dict[str, Any]]] = []
    async with engine_on(tmp_path / "data", clock) as engine:
        receiver = Receiver(open_place(str(tmp_path / "b"), writes=True), "test")
        receiver.begin()
        stop = asyncio.get_running_loop().create_future()

        async def receive() -> None:
            async for data in engine.backup_stream(receiver.have, stop):
                receiver.feed(data)

        receiving = asyncio.create_task(receive())
        for turn in range(9):
            await engine.append("a", [{"data": [turn, n]} for n in range(150)])
            await engine.delete("a", before_seq=100 * turn)
            moments.append((clock.now_ms(), await seen(engine)))
            clock.advance(1)
            while receiver.shipped.position < engine.wal.end:
                clock.advance(500)
                await asyncio.sleep(0.001)
            if turn % 3 == 1:
                await engine.checkpoint()
                clock.advance(600_000)
        stop.set_result(None)
        await receiving
    assert receiver.shipped.points == 4
    for index, (moment, there) in enumerate(moments):
        restored(tmp_path / "b", tmp_path / f"r{index}", until=moment)
        async with engine_on(tmp_path / f"r{index}", ManualClock(moment)) as engine:
            assert await seen(engine) == there, index
