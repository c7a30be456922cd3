"""Sealing: which rows go where, and the helper process that does the work."""

import asyncio
import gc
import logging
import os
import signal
from array import array
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import Raw
from msgspec.structs import replace

import topics
from topics.core.topic.parts import Chunk, Part
from topics.core.topic.records import NO_META, Layout, RecordIn, batch_of
from topics.engine import Engine
from topics.engine.durability import checkpoint
from topics.engine.durability.sealing import (
    FILES_MAX,
    LARGE_BYTES_MIN,
    PACKAGE_ROOT,
    REST_SECONDS,
    PartRows,
    PiecePlan,
    Sealer,
    encode,
    plan,
)
from topics.engine.instance import SILENT_MS
from topics.settings import Settings
from topics.storage import processes
from topics.storage.disk import RealDisk
from topics.storage.segments import SegmentFile, SegmentPiece
from topics.testing.clock import ManualClock
from topics.testing.disk import Faulty, MemoryDisk
from topics.testing.patience import POLL_S

SETTINGS = Settings()


def chunk_of(first: int, *writes: int, tagged: bool = False, is_folded: bool = True) -> Chunk:
    """A chunk of writes with that many records each."""
    chunk, seq = Chunk(first), first
    for number, count in enumerate(writes):
        records = [
            RecordIn(
                Raw(b'{"n":%d}' % (seq + i)),
                f"t{(seq + i) % 7}" if tagged and (seq + i) % 3 else None,
                f"node{i}" if i % 2 else None,
                Raw(b'{"m":"%d"}' % i) if i % 5 == 0 else NO_META,
            )
            for i in range(count)
        ]
        batch = batch_of(records, "all" if number % 2 else None, SETTINGS)
        chunk.append(batch.body, batch.sizes, 1000 + number, batch.has_tags)
        seq += count
    if is_folded:
        chunk.fold()
    return chunk


def laid_chunk(first: int, count: int) -> Chunk:
    """A chunk of a write that was made from columns."""
    fields = [(f',"tag":"t{n % 7}"' if n % 3 else "", f',"node":"é{n}"') for n in range(count)]
    rows = ",".join(f'{{"data":{n}{tag}{node}}}' for n, (tag, node) in enumerate(fields))
    tags, nodes = (array("i", [len(field[n].encode()) for field in fields]).tobytes() for n in (0, 1))
    chunk = Chunk(first)
    body, sizes = f'{{"records":[{rows}]}}'.encode(), array("I", [len(str(n)) for n in range(count)])
    chunk.append(body, sizes, 1000, True, Layout(tags, nodes))
    assert chunk.laid() is not None
    return chunk


def without_layout(part: Part) -> Part:
    if not isinstance(part, Chunk):
        return part
    return Chunk.from_image(replace(part.image(), layout=None), memoryview(b"".join(part.bodies)))


def rows_of(pieces: list[PiecePlan]) -> list[tuple[int, int]]:
    """Every row of the plan, as first seq of its part and row."""
    return [
        (rows.part.first, row)
        for piece in pieces
        for rows in piece.rows
        for start, stop in rows.runs
        for row in range(start, stop)
    ]


runs_of_100 = st.sets(st.integers(0, 100), min_size=2, max_size=12).map(
    lambda ends: list(zip(sorted(ends)[::2], sorted(ends)[1::2], strict=False))
)


datas = st.sampled_from(
    [b"1", b"null", b'{"a":"\xc3\xa4"}', b'"},{\\"data\\":"', b'[{"data":1},{"data":2}]', b'"' + b"x" * 300 + b'"']
)


@given(st.lists(st.lists(datas, min_size=1, max_size=60), min_size=1, max_size=5), st.data())
def test_records_with_nothing_but_data_are_sealed_as_if_they_were_decoded(
    writes: list[list[bytes]], data: st.DataObject
) -> None:
    """CV6: whatever their text looks like, and whichever of them are left."""
    chunk = Chunk(7)
    for number, texts in enumerate(writes):
        batch = batch_of([RecordIn(Raw(text)) for text in texts], None, SETTINGS)
        chunk.append(batch.body, batch.sizes, 1000 + number, batch.has_tags)
    folded = Chunk.from_image(chunk.image(), memoryview(b"".join(chunk.bodies)))
    ends = sorted(data.draw(st.sets(st.integers(0, chunk.count), min_size=2, max_size=6)))
    runs = list(zip(ends[::2], ends[1::2], strict=False))
    assert folded.laid() is not None
    apart = PartRows(chunk if len(writes) > 1 else decoded(chunk), runs)
    image, file, pieces = encode(1, [(3, [PartRows(folded, runs)])])
    as_decoded = encode(1, [(3, [apart])])
    assert bytes(image) == bytes(as_decoded[0])
    assert (file, pieces) == as_decoded[1:]


def decoded(chunk: Chunk) -> Chunk:
    """The same chunk, with a text that is not known by its size: its rows are decoded."""
    apart = Chunk(chunk.first)
    body = b" ".join(bytes(body) for body in chunk.bodies) + b" "
    apart.append(body, chunk.sizes(0, chunk.count), chunk.timestamps[0], False)
    return apart


@given(st.lists(runs_of_100, min_size=1, max_size=4), st.integers(1, 40), st.integers(20, 2000))
def test_a_plan_has_every_row_once_in_order_and_keeps_its_bounds(
    runs: list[list[tuple[int, int]]], count_max: int, bytes_max: int
) -> None:
    """ST6"""
    parts = [(chunk_of(1 + 100 * n, *[10] * 10), some) for n, some in enumerate(runs)]
    pieces = list(plan(7, parts, count_max, bytes_max))
    expected = [(part.first, row) for part, some in parts for start, stop in some for row in range(start, stop)]
    assert rows_of(pieces) == expected
    for piece in pieces:
        assert piece.topic == 7
        assert piece.count == len(rows_of([piece])) <= count_max
        assert piece.size_bytes == sum(
            rows.part.bytes_before(stop) - rows.part.bytes_before(start)
            for rows in piece.rows
            for start, stop in rows.runs
        )
    assert all(piece.count == count_max or piece.size_bytes >= bytes_max for piece in pieces[:-1])


@pytest.mark.parametrize(
    "is_folded", [True, pytest.param(False, marks=pytest.mark.slow)], ids=["folded", "as received"]
)
async def test_the_helper_makes_the_same_file_as_is_made_on_the_spot(tmp_path: Path, is_folded: bool) -> None:
    """ST6: from chunks, parts of them, and pieces of an earlier segment; by layouts, where these are known."""
    disk = RealDisk(tmp_path)
    old_image, old_ref, (old_piece,) = encode(1, [(7, [PartRows(chunk_of(1, 50, tagged=True), [(0, 50)])])])
    file = disk.create("segment-0000000001.arrow")
    file.write(0, old_image)
    file.close()
    sealed = SegmentPiece(SegmentFile(disk, old_ref), old_piece)
    chunk = chunk_of(51, 700, 1, 1, 900, tagged=True, is_folded=is_folded)
    pieces = [
        PiecePlan(7, [PartRows(sealed, [(0, 3), (5, 50)]), PartRows(chunk, [(0, 10), (500, 1100), (1101, 1602)])]),
        PiecePlan(9, [PartRows(chunk_of(1, 3), [(1, 2)])]),
        PiecePlan(10, [PartRows(laid_chunk(1, 40), [(0, 7), (9, 40)]), PartRows(laid_chunk(41, 2000), [(0, 2000)])]),
    ]
    decoded = [
        (piece.topic, [PartRows(without_layout(rows.part), rows.runs) for rows in piece.rows]) for piece in pieces
    ]
    sealer = Sealer(disk, ManualClock())
    try:
        helped = await sealer.encode(2, pieces, is_large=True)
        assert sealer.helper_pid is not None
        again = await sealer.encode(2, pieces, is_large=True)
        inline = await sealer.encode(2, pieces, is_large=False)
    finally:
        sealer.close()
        disk.close()
    assert bytes(helped[0]) == bytes(again[0]) == bytes(inline[0]) == bytes(encode(2, decoded)[0])
    assert helped[1:] == again[1:] == inline[1:]
    assert [(ref.topic, ref.count) for ref in helped[2]] == [(7, 48 + 10 + 600 + 501), (9, 1), (10, 2038)]


@pytest.mark.slow
async def test_a_checkpoint_of_many_small_records_goes_through_the_helper(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """ST7, LM10"""
    monkeypatch.setattr(checkpoint, "LARGE_ROWS_MIN", 20)
    async with Engine.open(str(tmp_path), background=False) as engine:
        for count, has_helper in ((19, False), (20, True)):
            await engine.append("t", [{"data": 1}] * count)
            await engine.checkpoint()
            assert (engine._ledger.store._sealer.helper_pid is not None) is has_helper
        assert await everything(engine) == list(range(1, 40))


@pytest.mark.slow
async def test_a_large_checkpoint_goes_through_the_helper_and_ends_with_the_engine(tmp_path: Path) -> None:
    """ST7"""
    async with Engine.open(str(tmp_path), background=False) as engine:
        await fill(engine)
        await engine.checkpoint()
        pid = engine._ledger.store._sealer.helper_pid
        assert pid is not None and is_running(pid)
        assert await everything(engine) == list(range(1, COUNT + 1))
    assert not is_running(pid)
    async with Engine.open(str(tmp_path), background=False) as engine:
        assert await everything(engine) == list(range(1, COUNT + 1))


@pytest.mark.slow
async def test_a_helper_that_dies_is_done_without_for_a_minute(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """ST7: then it is started again."""
    clock = ManualClock()
    async with Engine.open(str(tmp_path), background=False, clock=clock) as engine:
        await fill(engine)
        await engine.checkpoint()
        pid = engine._ledger.store._sealer.helper_pid
        assert pid is not None
        os.kill(pid, signal.SIGKILL)
        await fill(engine)
        await engine.checkpoint()
        assert "records are sealed without it" in caplog.text
        assert engine._ledger.store._sealer.helper_pid is None
        assert all(isinstance(part, SegmentPiece) for part in engine.state.topics["t"].log.parts)
        clock.advance(round(REST_SECONDS * 1000))
        await fill(engine)
        await engine.checkpoint()
        assert engine._ledger.store._sealer.helper_pid not in (None, pid)
        assert await everything(engine) == list(range(1, 3 * COUNT + 1))


@pytest.mark.slow
async def test_a_helper_that_hangs_does_not_hold_up_the_end(tmp_path: Path) -> None:
    """SC3, ST7: the last checkpoint is taken without it."""
    clock = ManualClock()
    async with Engine.open(str(tmp_path), background=False, clock=clock) as engine:
        await fill(engine)
        await engine.checkpoint()
        pid = engine._ledger.store._sealer.helper_pid
        assert pid is not None
        os.kill(pid, signal.SIGSTOP)
        await fill(engine)
        closing = asyncio.ensure_future(engine.close(within_s=3600))
        while not closing.done():
            # time is over for this helper, and not for one that is only slow, nor for a sync
            if is_running(pid) and engine.wal._syncing is None:
                clock.advance(SILENT_MS)
            await asyncio.wait([closing], timeout=POLL_S)
        await closing
    assert not is_running(pid)
    async with Engine.open(str(tmp_path), background=False) as engine:
        assert engine._ledger.store.replayed_frames == 0
        assert await everything(engine) == list(range(1, 2 * COUNT + 1))


@pytest.mark.slow
@pytest.mark.parametrize("dies", [False, True], ids=["helper lives", "helper dies"])
async def test_many_files_of_a_checkpoint_are_under_way_at_once_and_stay_in_order(tmp_path: Path, dies: bool) -> None:
    """ST6, ST7, G1: also if the helper dies at work; then all of them are made without it."""
    settings = Settings(segment_max_events=100)
    async with Engine.open(str(tmp_path), settings, background=False) as engine:
        await fill(engine)
        checkpoint_under_way = asyncio.ensure_future(engine.checkpoint())
        sealer = engine._ledger.store._sealer
        if dies:
            while sealer.helper_pid is None:  # noqa: ASYNC110
                await asyncio.sleep(0)
            os.kill(sealer.helper_pid, signal.SIGKILL)
        await checkpoint_under_way
        assert (sealer.helper_pid is None) is dies
        parts = engine.state.topics["t"].log.parts
        assert len(parts) > FILES_MAX and all(isinstance(part, SegmentPiece) for part in parts)
        assert [part.first for part in parts] == sorted(part.first for part in parts)
        assert await everything(engine) == list(range(1, COUNT + 1))
    async with Engine.open(str(tmp_path), settings, background=False) as engine:
        assert await everything(engine) == list(range(1, COUNT + 1))


async def test_files_of_a_checkpoint_that_fail_together_are_one_failure(caplog: pytest.LogCaptureFixture) -> None:
    """ST7, ER7: the checkpoint tells of it, none of them is left unheard, and the next one succeeds."""
    caplog.set_level(logging.CRITICAL + 1, "topics")  # a record that is kept would keep the failure, and its tasks
    disk, fault, unheard = MemoryDisk(), Faulty("create", name="segment-*", times=2), list[object]()
    asyncio.get_running_loop().set_exception_handler(lambda _, context: unheard.append(context["message"]))
    settings = Settings(segment_max_events=10)
    async with Engine.open("memory", settings, disk=disk, clock=ManualClock(), background=False) as engine:
        await engine.append("t", [{"data": n} for n in range(100)])
        disk.hooks.append(fault)
        with pytest.raises(OSError, match="segment-"):
            await engine.checkpoint()
        assert fault.failed == 2
        await engine.checkpoint()
        assert len(await everything(engine)) == 100
    gc.collect()  # a failure that nobody heard of is told when its task goes
    assert not unheard


@pytest.mark.slow
async def test_files_of_different_sizes_that_are_asked_for_at_once_get_their_own_images(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """ST6, G2: a large one takes more turns of the loop on its way to the helper than a small one behind it."""
    monkeypatch.setattr(processes, "SHARED_STEP_BYTES", 1000)
    disk = RealDisk(tmp_path)
    sealer = Sealer(disk, ManualClock())
    chunks = [chunk_of(1, count) for count in (900, 3, 500, 1)]
    plans = [[PiecePlan(7, [PartRows(chunk, [(0, chunk.count)])])] for chunk in chunks]
    try:
        images = await asyncio.gather(*[sealer.encode(n, pieces, is_large=True) for n, pieces in enumerate(plans)])
        assert sealer.helper_pid is not None
        for number, (pieces, helped) in enumerate(zip(plans, images, strict=True)):
            inline = await sealer.encode(number, pieces, is_large=False)
            assert bytes(helped[0]) == bytes(inline[0])
            assert helped[1:] == inline[1:]
    finally:
        sealer.close()
        disk.close()


@pytest.mark.slow
async def test_a_helper_is_started_before_a_large_checkpoint_is_due(tmp_path: Path) -> None:
    """ST7: its half second does not hold up the checkpoint."""
    settings = Settings(cache_bytes=2 * LARGE_BYTES_MIN)
    async with Engine.open(str(tmp_path), settings, background=False) as engine:
        sealer = engine._ledger.store._sealer
        await engine.append("t", [{"data": RECORD}] * 100)
        await engine.tick()
        assert sealer.helper_pid is None
    settings = Settings(cache_bytes=8 * LARGE_BYTES_MIN)
    async with Engine.open(str(tmp_path), settings, background=False) as engine:
        sealer = engine._ledger.store._sealer
        await fill(engine)
        await engine.tick()
        assert sealer.helper_pid is not None
        assert engine.checkpoints().taken == 0


RECORD = "x" * 2000
COUNT = LARGE_BYTES_MIN // len(RECORD) + 1000


async def fill(engine: Engine) -> None:
    for first in range(0, COUNT, 500):
        await engine.append("t", [{"data": RECORD}] * min(500, COUNT - first))


async def everything(engine: Engine) -> list[int]:
    found: list[int] = []
    while not (answer := await engine.read("t", found[-1] if found else 0, 1000)).caught_up or answer.records:
        found += [record.seq for record in answer.records]
    return found


def is_running(pid: int) -> bool:
    return Path(f"/proc/{pid}").exists()


def test_the_helper_is_told_where_the_package_lies() -> None:
    """Also where that is not on the module search path, but only in the working directory."""
    assert Path(PACKAGE_ROOT) == Path(topics.__file__).parents[1]


class SlowClock(ManualClock):
    """A clock on which every look takes a second."""

    def monotonic(self) -> float:
        self.advance(1000)
        return super().monotonic()


async def test_a_last_checkpoint_of_very_many_files_is_given_up_and_the_log_is_replayed(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """SC3, ST7: a stop is bounded."""
    disk, settings = MemoryDisk(), Settings(segment_max_events=1)
    engine = Engine.open("memory", settings, disk=disk, clock=SlowClock(), background=False)
    await engine.start()
    await engine.append("t", [{"data": n} for n in range(100)])
    await engine.close()
    assert "the last checkpoint failed: it takes longer than a stop allows" in caplog.text
    assert not [name for name in disk.kill().names() if name.startswith("segment-")]
    async with Engine.open("memory", settings, disk=disk.kill(), clock=ManualClock(), background=False) as again:
        assert (await again.topic_state("t")).count == 100
