"""Following: a data directory without the help of its server, and several followers at once (BK1)."""

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.backup.copies import engine_on, restored, seen
from topics.backup import copying
from topics.backup.copying import Follower
from topics.backup.places import open_place
from topics.backup.points import Backup
from topics.backup.receiving import Receiver
from topics.backup.sources import DirectorySource
from topics.engine import Engine
from topics.engine.durability.shipping import Decoder
from topics.testing.clock import ManualClock


class Steps:
    """A stream that is taken part by part; its pauses take no time."""

    def __init__(self, path: Path, dest: Path, clock: ManualClock) -> None:
        self.receiver = Receiver(open_place(str(dest), writes=True), "test")
        self.receiver.begin()
        self._source = DirectorySource(path, clock, pause=lambda seconds: clock.advance(int(seconds * 1000)))
        self._stream: Iterator[bytes] = self._source.stream(self.receiver.have, follows=True)

    def to_the_next_beat(self) -> None:
        """Take all that there is by now."""
        decoder = Decoder()
        while True:
            data = next(self._stream)
            self.receiver.feed(data)
            if any(head.kind == "beat" for head, _ in decoder.feed(data)):
                return


async def turn(engine: Engine, number: int) -> None:
    await engine.append("a", [{"data": [number, n]} for n in range(150)])
    await engine.delete("a", before_seq=100 * number)
    await engine.append("q", [{"data": number}])


async def test_a_directory_is_followed_over_checkpoints_and_restarts(tmp_path: Path) -> None:
    """BK1: every moment can be restored; what the log has is there a second later."""
    clock, path, dest = ManualClock(), tmp_path / "data", tmp_path / "b"
    moments: list[tuple[int, dict[str, Any]]] = []
    steps: Steps | None = None
    for life in range(3):
        async with engine_on(path, clock) as engine:
            if not life:
                await engine.put_topic("q", {"type": "queue"})
            if steps is None:
                steps = Steps(path, dest, clock)
            for number in range(4):
                await turn(engine, 4 * life + number)
                moments.append((clock.now_ms(), await seen(engine)))
                clock.advance(1)
                await engine.wal.wait_synced(engine.wal.end)
                if number:
                    steps.to_the_next_beat()
                if number == 1:
                    await engine.checkpoint()
                    clock.advance(600_000)
            steps.to_the_next_beat()
        steps.to_the_next_beat()  # of a directory that nobody uses
        steps.to_the_next_beat()
    assert steps is not None and steps.receiver.shipped.points > 3
    for index, (moment, there) in enumerate(moments):
        restored(dest, tmp_path / f"r{index}", until=moment)
        async with engine_on(tmp_path / f"r{index}", ManualClock(moment)) as engine:
            assert await seen(engine) == there, index


async def test_a_directory_that_nobody_uses_is_followed_in_peace(tmp_path: Path) -> None:
    """BK1: one point, and beats."""
    clock = ManualClock()
    async with engine_on(tmp_path / "data", clock) as engine:
        await turn(engine, 0)
    steps = Steps(tmp_path / "data", tmp_path / "b", clock)
    for _ in range(5):
        steps.to_the_next_beat()
    assert (steps.receiver.shipped.points, steps.receiver.shipped.ts) == (1, clock.now_ms())


async def test_two_followers_into_one_place_do_not_hurt_each_other(tmp_path: Path) -> None:
    """BK1: each has points of its own; objects are the same, whoever puts them."""
    clock, dest = ManualClock(), tmp_path / "b"
    async with engine_on(tmp_path / "data", clock) as engine:
        stop = asyncio.get_running_loop().create_future()
        receivers = [Receiver(open_place(str(dest), writes=True), "test") for _ in range(2)]

        async def receive(receiver: Receiver) -> None:
            receiver.begin()
            async for data in engine.backup_stream(receiver.have, stop):
                receiver.feed(data)

        receiving = [asyncio.create_task(receive(receiver)) for receiver in receivers]
        moments: list[tuple[int, dict[str, Any]]] = []
        for number in range(6):
            await turn(engine, number)
            moments.append((clock.now_ms(), await seen(engine)))
            clock.advance(1)
            while min(receiver.shipped.position for receiver in receivers) < engine.wal.end:
                clock.advance(500)
                await asyncio.sleep(0.001)
            if number % 3 == 1:
                await engine.checkpoint()
                clock.advance(600_000)
        stop.set_result(None)
        await asyncio.gather(*receiving)
    place = open_place(str(dest))
    for name in Backup(place).points:
        assert not [fault for fault in copying.audit(place, name).faults if fault.is_certain]
    assert len(Backup(place).points) == sum(receiver.shipped.points for receiver in receivers) > 3
    for index, (moment, there) in enumerate(moments):
        restored(dest, tmp_path / f"r{index}", until=moment)
        async with engine_on(tmp_path / f"r{index}", ManualClock(moment)) as engine:
            assert await seen(engine) == there, index


class Enough(Exception):
    pass


async def test_a_follower_ships_damaged_objects_again(tmp_path: Path) -> None:
    """BK1"""
    clock, dest = ManualClock(), tmp_path / "b"
    async with engine_on(tmp_path / "data", clock) as engine:
        await turn(engine, 0)
        await engine.checkpoint()
        await engine.backup(str(dest))
    (segment, *_) = sorted((dest / "segments").iterdir())
    whole = segment.read_bytes()
    segment.write_bytes(whole[:-1] + b"?")
    place = open_place(str(dest), writes=True)
    receiver = Receiver(place, "test")
    source = DirectorySource(tmp_path / "data", clock, pause=lambda seconds: None)
    follower, names = Follower(source, receiver, clock), set[str]()

    def changed() -> None:
        if receiver.shipped.point and receiver.shipped.point not in names:
            names.add(receiver.shipped.point)
            damaged, _ = copying.audit_or_find(place, receiver.shipped.point)
            if not damaged:
                raise Enough
            follower.mend(damaged)

    with pytest.raises(Enough):
        follower.run(changed, lambda seconds: None)
    assert len(names) == 2 and segment.read_bytes() == whole
