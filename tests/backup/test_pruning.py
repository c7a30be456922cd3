"""Pruning a backup, whoever else is at work there; and backups that mend what is damaged (BK1)."""

import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.backup.copies import engine_on, objects, restored, seen
from tests.effort import stride
from topics.backup import copying, layout, pruning
from topics.backup.copying import back_up, back_up_and_audit
from topics.backup.layout import Point
from topics.backup.places import DirectoryPlace, Unwritable, open_place
from topics.backup.points import Backup
from topics.backup.pruning import Keep, Pruned, kept_of, prune
from topics.backup.receiving import Receiver
from topics.backup.sources import DirectorySource
from topics.engine import Engine
from topics.engine.durability.shipping import BadStream
from topics.errors import Damaged
from topics.testing.clock import ManualClock


async def points_of(path: Path, dest: Path, count: int = 4) -> tuple[dict[str, Any], ManualClock]:
    """A directory, and a backup of it with so many points, each with files that the next one does not need."""
    clock = ManualClock()
    async with engine_on(path, clock) as engine:
        for turn in range(count):
            await change(engine, turn)
            await engine.backup(str(dest))
            clock.advance(3_600_000)
        return await seen(engine), clock


async def change(engine: Engine, turn: int) -> None:
    await engine.append("orders", [{"data": {"turn": turn, "n": n}, "tag": f"t{n % 3}"} for n in range(130)])
    await engine.delete("orders", before_seq=130 * turn - 20)
    await engine.checkpoint()
    await engine.append("orders", [{"data": "in the log"}])


def pruned(dest: Path, keep: Keep, clock: ManualClock, **options: Any) -> Pruned:
    return prune(open_place(str(dest)), keep, clock, **{"young_ms": 0, **options})


def sound(dest: Path, name: str = "") -> bool:
    place = open_place(str(dest))
    check = copying.audit(place, name or max(Backup(place).points))
    return not [fault for fault in check.faults if fault.is_certain]


@pytest.mark.parametrize("keep", [Keep(count=2), Keep(since_ms=ManualClock().now_ms() + 3 * 3_600_000 - 1)])
async def test_a_prune_leaves_what_the_kept_points_need_and_nothing_else(tmp_path: Path, keep: Keep) -> None:
    """BK1: by number, and by time, where the last point before that time stays, too."""
    dest = tmp_path / "b"
    there, clock = await points_of(tmp_path / "data", dest)
    (dest / "notes.txt").write_text("mine")
    (dest / "segments" / "mine.txt").write_text("mine")
    before = {path: path.read_bytes() for path in objects(dest)}
    dry = pruned(dest, keep, clock, is_dry=True)
    assert {path: path.read_bytes() for path in objects(dest)} == before
    done = pruned(dest, keep, clock)
    assert (len(done.kept), len(done.removed)) == (2, 2) and done.objects > 4
    assert (dry.kept, dry.removed, dry.objects, dry.bytes) == (done.kept, done.removed, done.objects, done.bytes)
    assert (dest / "notes.txt").exists() and (dest / "segments" / "mine.txt").exists()
    assert {path.name for path in (dest / "points").iterdir()} == set(done.kept), "and no notice"
    assert all(sound(dest, name) for name in done.kept)
    assert pruned(dest, keep, clock).objects == 0
    for path in objects(dest):
        assert path.read_bytes() == before[path]
    restored(dest, tmp_path / "r")
    async with engine_on(tmp_path / "r", clock) as engine:
        assert await seen(engine) == there


async def test_the_newest_point_of_each_source_stays(tmp_path: Path) -> None:
    """BK1: two servers may be backed up into one place."""
    dest, clock = tmp_path / "b", ManualClock()
    for name in ("one", "two"):
        async with engine_on(tmp_path / name, clock) as engine:
            for turn in range(2):
                await change(engine, turn)
                place = open_place(str(dest), writes=True)
                await copying.receive(engine.backup_stream, str(dest), name, audits=False)
                place.close()
                clock.advance(1000)
    done = pruned(dest, Keep(since_ms=clock.now_ms() + 10**9), clock)
    assert (len(done.kept), len(done.removed)) == (2, 2)
    assert all(sound(dest, name) for name in done.kept)


def test_which_points_are_kept() -> None:
    points = {f"p{n}": Point("s", 1000 * n, 0, 0, 0, [], [], []) for n in range(5)}
    for since, first in ((0, 0), (1, 0), (1000, 1), (2500, 2), (10**9, 4)):
        assert kept_of(points, Keep(since_ms=since)) == {f"p{n}" for n in range(first, 5)}
    for count in (1, 3, 5, 99):
        assert kept_of(points, Keep(count=count)) == {f"p{n}" for n in range(max(0, 5 - count), 5)}


async def test_objects_that_were_put_lately_are_left_alone(tmp_path: Path) -> None:
    """BK1: a backup that is being made may count on them."""
    dest = tmp_path / "b"
    _, clock = await points_of(tmp_path / "data", dest)
    done = pruned(dest, Keep(count=1), clock, young_ms=3_600_000)
    assert (done.objects, len(done.removed)) == (0, 3) and done.objects_left > 4
    assert pruned(dest, Keep(count=1), clock).objects == done.objects_left


async def test_what_cannot_be_pruned_is_refused(tmp_path: Path) -> None:
    _, clock = await points_of(tmp_path / "data", tmp_path / "b", 2)
    async with engine_on(tmp_path / "data", clock) as engine:
        for name in ("b.tar", "b.tar.gz"):
            await engine.backup(str(tmp_path / name))
            with pytest.raises(Unwritable, match="is an archive"):
                pruned(tmp_path / name, Keep(count=1), clock)
    description = min((tmp_path / "b").rglob("point-*.json"))
    description.write_text("{}")
    before = objects(tmp_path / "b")
    with pytest.raises(Damaged, match=description.name):
        pruned(tmp_path / "b", Keep(count=1), clock)
    assert objects(tmp_path / "b") == before


class Forgetful(DirectoryPlace):
    """A place that does not always list what it has."""

    def __init__(self, path: Path) -> None:
        super().__init__(str(path), creates=False)
        self.forgotten = ""

    def sizes(self) -> dict[str, int]:
        return {path: size for path, size in super().sizes().items() if path != self.forgotten}

    def put(self, path: str, data: bytes) -> None:
        super().put(path, data)
        self.forgotten = max(path for path in super().sizes() if layout.point_in(path))


async def test_a_place_that_leaves_a_point_out_loses_nothing(tmp_path: Path) -> None:
    """BK1"""
    dest = tmp_path / "b"
    _, clock = await points_of(tmp_path / "data", dest)
    with pytest.raises(Unwritable, match="does not list point"):
        prune(Forgetful(dest), Keep(count=2), clock, young_ms=0)
    assert sound(dest)
    assert pruned(dest, Keep(count=1), clock).objects > 4


class Died(Exception):
    pass


class Mortal(DirectoryPlace):
    """A directory whose user dies before one of its changes."""

    def __init__(self, path: Path, left: int) -> None:
        super().__init__(str(path), creates=False)
        self.left = left

    def _live(self) -> None:
        if not self.left:
            raise Died
        self.left -= 1

    def put(self, path: str, data: bytes) -> None:
        self._live()
        super().put(path, data)

    def remove(self, path: str) -> None:
        self._live()
        super().remove(path)


async def test_a_prune_that_is_killed_anywhere_is_finished_by_the_next_one(tmp_path: Path) -> None:
    """BK1"""
    there, clock = await points_of(tmp_path / "data", tmp_path / "whole")
    pruned(tmp_path / "whole", Keep(count=4), clock)
    shutil.copytree(tmp_path / "whole", tmp_path / "pruned")
    pruned(tmp_path / "pruned", Keep(count=1), clock)
    wanted = {path.relative_to(tmp_path / "pruned") for path in objects(tmp_path / "pruned")}
    for left in range(0, 1000, stride()):
        dest = tmp_path / f"b{left}"
        shutil.copytree(tmp_path / "whole", dest)
        try:
            prune(Mortal(dest, left), Keep(count=1), clock, young_ms=0)
            break
        except Died:
            pass
        assert sound(dest)
        async with engine_on(tmp_path / "data", clock) as engine:
            receiver = Receiver(open_place(str(dest), writes=True), "again")
            receiver.begin()
            assert receiver.have is not None and await seen(engine) == there
        pruned(dest, Keep(count=1), clock)
        found = {path.relative_to(dest) for path in objects(dest)}
        assert {path for path in found if not str(path).startswith(pruning.NOTICES)} == wanted
        shutil.rmtree(dest)
    else:
        raise AssertionError("a prune has fewer changes")


class Watched(DirectoryPlace):
    """A directory whose user is disturbed before, or after, its description of a point is put."""

    def __init__(self, path: Path, disturb: Callable[[], object], *, after: bool) -> None:
        super().__init__(str(path), creates=True)
        self._disturb, self._after, self.count = disturb, after, 0

    def put(self, path: str, data: bytes) -> None:
        is_point = path.endswith(".json") and path.startswith("points/")
        if is_point and not self._after and not self.count:
            self.count += 1
            self._disturb()
        super().put(path, data)
        if is_point and self._after and not self.count:
            self.count += 1
            self._disturb()


@pytest.mark.parametrize("after", [False, True])
@pytest.mark.parametrize("is_unfinished", [False, True])
async def test_a_prune_around_the_description_of_a_point_takes_nothing_from_it(
    tmp_path: Path, after: bool, is_unfinished: bool
) -> None:
    """BK1: what a killed backup has left counts for the next one, and as nothing for a prune."""
    dest = tmp_path / "b"
    _, clock = await points_of(tmp_path / "data", dest, 1)
    async with engine_on(tmp_path / "data", clock) as engine:
        await change(engine, 1)
        await engine.backup(str(dest))
    (newest,) = [
        path for path in dest.rglob("point-*.json") if path.parent.name == max(Backup(open_place(str(dest))).points)
    ]
    newest.unlink()  # as if the second backup had been killed at its end

    def disturb() -> None:
        left = 2 if is_unfinished else 10**6  # it dies behind its notice and one object
        try:
            prune(Mortal(dest, left), Keep(count=1), clock, young_ms=0)
        except Died:
            pass

    place = Watched(dest, disturb, after=after)
    source, receiver = DirectorySource(tmp_path / "data", clock), Receiver(place, "test")
    if is_unfinished and not after:  # nobody knows that it is dead
        with pytest.raises(BadStream, match="is being pruned, or was until lately"):
            back_up(source, receiver)
        for notice in (dest / "points").glob("prune-*"):
            os.utime(notice, (0, 0))
    shipped, check = back_up_and_audit(source, receiver, place)
    assert place.count and not [fault for fault in check.faults if fault.is_certain]
    restored(dest, tmp_path / "r")
    assert shipped.point in Backup(open_place(str(dest))).points


class Disturbed(DirectorySource):
    """A source in the middle of whose stream something happens."""

    def __init__(self, path: Path, clock: ManualClock, at: int, disturb: Callable[[], object]) -> None:
        super().__init__(path, clock)
        self._at, self._do = at, disturb
        self.count = 0

    def stream(self, have: set[str], *, follows: bool = False) -> Iterator[bytes]:
        for data in super().stream(have, follows=follows):
            if self.count == self._at:
                self._do()
            self.count += 1
            yield data


async def test_a_prune_in_the_middle_of_a_backup_costs_time_and_nothing_else(tmp_path: Path) -> None:
    """BK1: at each step of the stream, and with no regard for what was put lately."""
    _, clock = await points_of(tmp_path / "data", tmp_path / "b", 2)
    async with engine_on(tmp_path / "data", clock) as engine:
        await change(engine, 2)
    at = 0
    while True:
        dest = tmp_path / f"b{at}"
        shutil.copytree(tmp_path / "b", dest)
        source = Disturbed(tmp_path / "data", clock, at, lambda dest=dest: pruned(dest, Keep(count=1), clock))  # type: ignore[misc]
        place = open_place(str(dest), writes=True)
        shipped = back_up(source, Receiver(place, "test"))
        assert sound(dest, shipped.point)
        shutil.rmtree(dest)
        if source.count <= at:
            break
        at += stride()


def flipped(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-1])


def emptied(path: Path) -> None:
    path.write_bytes(b"")


@pytest.mark.parametrize("damage", [flipped, cut, emptied, Path.unlink], ids=["flipped", "cut", "emptied", "missing"])
@pytest.mark.parametrize("is_embedded", [True, False])
async def test_what_is_damaged_is_shipped_again_by_the_next_backup(
    tmp_path: Path, damage: Callable[[Path], None], is_embedded: bool
) -> None:
    """BK1: each kind of object in turn; the copy is sound afterwards, and the objects are what they were."""
    clock, dest = ManualClock(), tmp_path / "b"
    async with engine_on(tmp_path / "data", clock) as engine:
        await change(engine, 0)
        await change(engine, 1)
        await engine.delete("orders", before_seq=140)
        await engine.checkpoint()
        await engine.append("orders", [{"data": "last"}])
        await engine.backup(str(dest))
        kinds = {path.parent.name.partition("T")[0] + path.name[:3]: path for path in objects(dest)}
        assert len(kinds) == 5, "segments, flags, snapshots, log, point"
        for kind, path in kinds.items():
            whole = path.read_bytes()
            damage(path)
            clock.advance(1000)
            if is_embedded:
                await engine.backup(str(dest))
            else:
                place = open_place(str(dest), writes=True)
                back_up_and_audit(DirectorySource(tmp_path / "data", clock), Receiver(place, "test"), place)
            assert sound(dest)
            if "log" not in kind and "poi" not in kind:
                assert path.read_bytes() == whole
            else:
                path.write_bytes(whole)  # the newest point does without it
        there = await seen(engine)
    restored(dest, tmp_path / "r")
    async with engine_on(tmp_path / "r", clock) as engine:
        assert await seen(engine) == there
