"""Forwarding in the engine: frames, shared bodies, classes, gates, failures, fairness, segments, restarts."""

import asyncio
from typing import Any

import pytest

from tests.engine.running import begun, data, open_engine, running, seqs, texts, tick, turns
from topics.core.routing import steps
from topics.core.topic import reservation
from topics.core.topic.parts import Chunk
from topics.engine import Engine
from topics.engine.routers.blocked import RETRY_MS_MIN
from topics.engine.routers.walks import SHARED_MIN
from topics.errors import CommitFailed
from topics.model import TagMatch
from topics.settings import Settings
from topics.testing.clock import ManualClock
from topics.testing.disk import Capacity, Faulty, MemoryDisk


async def route(engine: Engine, *ends: str, **definition: Any) -> None:
    """Routers `ab`, `bc` …, each from the topic of its first letter to that of its second."""
    for pair in ends:
        await engine.put_router(pair, pair[0], pair[1], **definition)


def bodies(engine: Engine, name: str) -> list[Any]:
    return [body for part in engine.state.topics[name].log.parts if isinstance(part, Chunk) for body in part.bodies]


async def frames_of(engine: Engine, source: str, *values: Any) -> int:
    """Frames in the log for one write to a source, its copies included."""
    before = engine.wal.counters.frames
    await engine.append(source, data(*values))
    await turns()
    return engine.wal.counters.frames - before


# --- the log


async def test_one_write_costs_the_same_frames_whatever_the_fan_out() -> None:
    """RT9"""
    frames = []
    for fan_out in (1, 10, 1000):
        async with running() as engine:
            for number in range(fan_out):
                await engine.put_router(f"r{number}", "s", f"d{number}")
            written = engine.wal.counters.bytes_written
            frames.append(await frames_of(engine, "s", "x" * 10_000))
            assert all(engine.state.topics[f"d{n}"].log.count == 1 for n in range(fan_out))
            assert engine.wal.counters.bytes_written - written < 10_000 + 500 * fan_out, "no payload is logged again"
    assert frames == [2, 2, 2]


async def test_dests_share_the_body_that_was_written() -> None:
    """RT9, RT10: no copy in memory, nor after a restart."""
    disk = MemoryDisk()
    async with running(disk) as engine:
        await route(engine, "ab", "ac", "bd", "ae")
        await engine.put_router("ae", "a", "e", preserve_node=False)
        await engine.append("a", data(1, 2, 3))
        await turns()
        (body,) = bodies(engine, "a")
        assert all(bodies(engine, name) == [body] and bodies(engine, name)[0] is body for name in "bcde")
    async with running(disk.kill()) as engine:
        assert await texts(engine, "d") == [b"1", b"2", b"3"]


async def test_a_crash_restores_copies_from_the_source_s_frames() -> None:
    """RT9, RT20, ST8: also what is deleted at the source, or its topic gone, by then."""
    disk = MemoryDisk()
    engine = open_engine(disk)
    await engine.start()
    await route(engine, "ab", "bc", "xy")
    await engine.append("a", data(1, 2, tag="t"))
    await engine.append("x", data("x"))
    await turns()
    await engine.delete("a", before_seq=2)
    await engine.delete("b", match=TagMatch("Eq", "t"))
    await engine.delete_topic("x")
    await engine.append("a", data(3))
    await turns()
    async with running(disk.kill()) as again:
        assert (await seqs(again, "a"), await seqs(again, "b"), await seqs(again, "c")) == ([2, 3], [3], [1, 2, 3])
        assert await texts(again, "y") == [b'"x"']
        assert [bytes(r.data) for r in (await again.read("c")).records] == [b"1", b"2", b"3"]


@pytest.mark.parametrize("turns_between", range(0, 60, 3))
async def test_a_checkpoint_that_runs_meanwhile_loses_no_copy(turns_between: int) -> None:
    """RT13, RT20, ST7, G14: topics are captured one after the other while copies are made, and sources cleared."""
    disk = MemoryDisk()
    engine = open_engine(disk)
    await engine.start()
    await route(engine, "ab", "bc", "zd")
    await engine.append("a", data(0))
    await engine.append("z", data("z0"))
    checkpoint = asyncio.create_task(engine.checkpoint())
    for number in range(1, 5):
        await turns(turns_between // 4)
        await engine.append("a", data(number))
        await engine.append("z", data(f"z{number}"))
        await engine.delete("a", before_seq=number + 1)
        await engine.delete("b", before_seq=number)
    await engine.delete_topic("z")
    await turns()
    totals = {name: (router.cursor, router.total) for name, router in engine.state.routers.by_name.items()}
    for is_over in (False, True):
        if is_over:
            await checkpoint
        async with running(disk.kill()) as again:
            assert await texts(again, "c") == [b"0", b"1", b"2", b"3", b"4"]
            assert await seqs(again, "d") == [1, 2, 3, 4, 5]
            assert await texts(again, "a") == [b"4"]
            routers = again.state.routers.by_name.items()
            assert {name: (router.cursor, router.total) for name, router in routers} == totals
            await again.append("a", data(5))
            assert await texts(again, "c", 5) == [b"5"]


async def test_a_router_name_used_again_is_another_router() -> None:
    """RT3, RT8, RT23"""
    disk = MemoryDisk()
    engine = open_engine(disk)
    await engine.start()
    await route(engine, "ab")
    await engine.append("a", data(1))
    await turns()
    await engine.checkpoint()
    await engine.delete_router("ab")
    await engine.append("a", data(2))
    await engine.put_router("ab", "a", "c")
    await engine.append("a", data(3))
    await turns()
    async with running(disk.kill()) as again:
        assert (await texts(again, "b"), await texts(again, "c")) == ([b"1"], [b"3"])
        assert (await again.router("ab")).forwarded_total == 1


# --- classes and the gate


async def test_a_copy_of_an_unsynced_record_is_shown_when_the_record_is_synced() -> None:
    """RT24, WR10: an fsync source and a disk dest; the copy is made at once all the same."""
    disk = MemoryDisk()
    async with running(disk) as engine:
        await engine.put_topic("a", {"durability": "fsync"})
        await route(engine, "ab")
        disk.hold_syncs()
        write, read = await begun(engine.append("a", data(1)), engine.read("b"))
        assert engine.state.topics["b"].log.head == 1
        assert not write.done() and not read.done()
        disk.release_syncs()
        await turns()
        assert [record.seq for record in read.result().records] == [1]


@pytest.mark.parametrize("kind", ["disk", "memory"])
async def test_a_copy_in_an_fsync_dest_is_shown_when_it_is_synced(kind: str) -> None:
    """RT24, RT17, DU6"""
    disk = MemoryDisk()
    async with running(disk) as engine:
        await engine.put_topic("a", {"durability": kind})
        await engine.put_topic("b", {"durability": "fsync"})
        await route(engine, "ab")
        disk.hold_syncs()
        await engine.append("a", data(1))
        (read,) = await begun(engine.read("b"))
        assert not read.done()
        disk.release_syncs()
        await turns()
        assert read.result().count == 1
        assert engine.wal.synced >= engine.state.topics["b"].notes.synced_at


async def test_a_long_poll_on_an_fsync_dest_needs_no_other_sync() -> None:
    """DF8, RT9: the forwarder asks for the sync itself."""
    async with running() as engine:
        await engine.put_topic("b", {"durability": "fsync"})
        await route(engine, "ab")
        (read,) = await begun(engine.read("b", wait_ms=30_000))
        await engine.append("a", data(1))
        await turns()
        assert read.result().count == 1


async def test_copies_of_an_ephemeral_source_are_logged_themselves() -> None:
    """S28, RT24, DU6"""
    disk = MemoryDisk()
    engine = open_engine(disk)
    await engine.start()
    await engine.put_topic("a", {"durability": "ephemeral"})
    await engine.put_topic("b", {"durability": "fsync"})
    await route(engine, "ab")
    await engine.append("a", data(1, 2, 3))
    await engine.read("b")
    async with running(disk.power_loss("lost")) as again:
        assert (await seqs(again, "b"), await texts(again, "b")) == ([1, 2, 3], [b"1", b"2", b"3"])


async def test_a_source_that_came_back_shorter_still_forwards_its_next_record() -> None:
    """S15, RT22"""
    disk = MemoryDisk()
    engine = open_engine(disk)
    await engine.start()
    await engine.put_topic("a", {"durability": "ephemeral"})
    await route(engine, "ab")
    await engine.append("a", data(1, 2, 3))
    await engine.read("b")
    async with running(disk.kill()) as again:
        assert (await again.topic_state("a")).head_seq == 0
        await again.append("a", data(4))
        assert await texts(again, "b") == [b"1", b"2", b"3", b"4"]


async def test_a_dest_in_memory_gets_what_is_there_for_good() -> None:
    """RT24, WR10: it could not take a copy back if the source's sync failed."""
    disk = MemoryDisk()
    async with running(disk) as engine:
        await engine.put_topic("a", {"durability": "fsync"})
        await engine.put_topic("b", {"durability": "ephemeral"})
        await route(engine, "ab")
        disk.hold_syncs()
        write, read = await begun(engine.append("a", data(1)), engine.read("b"))
        assert (engine.state.topics["b"].log.head, read.done(), write.done()) == (0, False, False)
        disk.release_syncs()
        await turns()
        assert (write.result().head_seq, read.result().count) == (1, 1)
        before = engine.wal.counters.frames
        await engine.append("a", data(2))
        assert (await seqs(engine, "b"), engine.wal.counters.frames - before) == ([1, 2], 1)


async def test_a_busy_fsync_source_does_not_starve_a_dest_in_memory() -> None:
    """RT9: there is always a write that is not synced yet."""
    disk = MemoryDisk()
    async with running(disk) as engine:
        await engine.put_topic("a", {"durability": "fsync"})
        await engine.put_topic("b", {"durability": "ephemeral"})
        await route(engine, "ab")
        writes: list[asyncio.Task[Any]] = []
        for number in range(50):
            writes.append(asyncio.create_task(engine.append("a", data(number))))
            await asyncio.sleep(0)
            await asyncio.sleep(0)
        assert any(not write.done() for write in writes)
        assert engine.state.topics["b"].log.head > 5
        await asyncio.gather(*writes)
        assert len(await seqs(engine, "b")) == 50


async def test_a_dest_in_memory_goes_on_where_it_was_after_the_log_failed() -> None:
    """RT13, ST4"""
    disk = MemoryDisk()
    async with running(disk) as engine:
        await engine.put_topic("b", {"durability": "ephemeral"})
        await engine.put_topic("f", {"durability": "fsync"})
        await route(engine, "ab")
        await engine.append("a", data(1, 2))
        assert await seqs(engine, "b") == [1, 2]
        disk.hooks.append(Faulty("sync", name="log-*"))
        with pytest.raises(CommitFailed):
            await engine.append("f", data(1))
        await engine.append("a", data(3))
        assert await texts(engine, "b") == [b"1", b"2", b"3"]


async def test_when_the_source_s_sync_fails_the_copy_never_was() -> None:
    """RT24, ST4, ER7, G2"""
    disk = MemoryDisk()
    async with running(disk) as engine:
        await engine.put_topic("a", {"durability": "fsync"})
        await route(engine, "ab", "bc")
        await engine.append("a", data(1))
        await turns()
        disk.hooks.append(Faulty("sync", name="log-*"))
        with pytest.raises(CommitFailed):
            await engine.append("a", data("fails"))
        await turns()
        assert (await texts(engine, "b"), await texts(engine, "c")) == ([b"1"], [b"1"])
        await engine.append("b", data("direct"))
        await engine.append("a", data(2))
        assert await texts(engine, "c") == [b"1", b'"direct"', b"2"]
        again = open_engine(disk.kill())
        await again.start()
        assert await texts(again, "c") == [b"1", b'"direct"', b"2"]


async def test_a_log_that_takes_nothing_blocks_routers_until_it_does() -> None:
    """RT15: no space; then there is."""
    disk, clock = MemoryDisk(), ManualClock()
    async with running(disk, clock) as engine:
        await engine.put_topic("a", {"durability": "ephemeral"})
        await route(engine, "ab")
        disk.hooks.append(full := Capacity(disk.used_bytes))
        await engine.append("a", data("x" * 600_000, "y" * 600_000))  # more than the log has written ahead
        await turns()
        assert (await engine.router("ab")).state == "blocked"
        assert "no space" in ((await engine.router("ab")).blocked_by or "")
        disk.hooks.remove(full)
        clock.advance(60)
        await turns()
        assert [text[:2] for text in await texts(engine, "b", bytes_max=4_000_000)] == [b'"x', b'"y']
        assert (await engine.router("ab")).state == "running"


# --- losses


async def test_what_expires_before_it_was_copied_is_a_hole() -> None:
    """RT12, TM7, TM12"""
    clock = ManualClock()
    async with running(clock=clock) as engine:
        await engine.put_topic("a", {"ttl_ms": 100})
        await engine.put_topic("b", {"cap_records": 1, "discard": "reject"})
        await route(engine, "ab")
        await engine.append("a", data(1, 2, 3, 4))
        await turns()
        await engine.delete("a", before_seq=3)
        clock.advance(101)
        await engine.append("a", data(5))
        await engine.put_topic("b", {})
        first, second = await engine.read("b"), await engine.read("b", 1)
        assert [record.seq for record in first.records] == [1] and not first.caught_up
        assert second.tombstone is not None
        lost = (second.tombstone.gap_from, second.tombstone.gap_to, second.tombstone.reason)
        assert lost == (2, 3, "source_trim"), "3 and 4; 2 was deleted, which is nobody's loss"
        assert [bytes(record.data) for record in second.records] == [b"5"]


async def test_what_a_source_lost_with_the_power_is_a_hole_as_soon_as_its_router_can_go_on(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """RT12, RT15, DF9, DU10, HM7: until then readers of the dest are not kept waiting, and told what is there."""
    monkeypatch.setattr(reservation, "RESERVE", 8)
    disk, clock = MemoryDisk(), ManualClock()
    engine = open_engine(disk, clock)
    await engine.start()
    await engine.put_topic("b", {"durability": "fsync"})  # it loses nothing of its own
    await route(engine, "ab")
    disk = disk.power_loss("lost")
    async with running(disk, clock) as again:
        assert (await again.topic_state("a")).head_seq == 8
        disk.hooks.append(Faulty("sync", name="log-*", times=2))  # the log, and the file in which it was to go on
        before = await again.read("b")
        assert (before.head_seq, before.tombstone, before.caught_up) == (0, None, True)
        assert again.obstacle() is not None and (await again.router("ab")).state == "blocked"
        clock.advance(1001)
        await tick(again)
        clock.advance(1001)
        await turns()
        after = await again.read("b", before.next_from_seq)
        assert after.tombstone is not None
        assert (after.tombstone.gap_from, after.tombstone.gap_to, after.tombstone.reason) == (1, 8, "source_trim")
        assert (await again.append("a", data("next"))).first_seq == 9
        assert (await seqs(again, "b", 8), await texts(again, "b", 8)) == ([9], [b'"next"'])


async def test_a_tighter_config_of_the_source_leaves_holes_at_once() -> None:
    """RT12, TP7"""
    async with running() as engine:
        await engine.put_topic("b", {"cap_records": 1, "discard": "reject"})
        await route(engine, "ab")
        await engine.append("a", data(1, 2, 3, 4))
        await turns()
        await engine.put_topic("a", {"cap_records": 1})
        assert [(gap.first, gap.last) for gap in engine.state.topics["b"].log.gaps] == [(2, 3)]
        assert engine.state.routers.by_name["ab"].cursor == 3


async def test_a_batch_larger_than_its_source_leaves_a_hole_for_what_was_never_there() -> None:
    """RT12, WR12"""
    async with running() as engine:
        await engine.put_topic("a", {"cap_records": 2})
        await route(engine, "ab")
        await engine.append("a", data(1, 2, 3, 4, 5))
        answer = await engine.read("b")
        assert answer.tombstone is not None
        assert (answer.tombstone.gap_from, answer.tombstone.gap_to) == (1, 3)
        assert [(record.seq, bytes(record.data)) for record in answer.records] == [(4, b"4"), (5, b"5")]


async def test_a_hole_goes_down_the_chain() -> None:
    """RT12, TM16"""
    async with running() as engine:
        await engine.put_topic("a", {"cap_records": 2})
        await route(engine, "ab", "bc")
        await engine.append("a", data(1, 2, 3, 4, 5))
        answer = await engine.read("c")
        assert answer.tombstone is not None and answer.tombstone.reason == "source_trim"
        assert (answer.tombstone.gap_from, answer.tombstone.gap_to, answer.count) == (1, 3, 2)


async def test_holes_in_a_cycle_end_at_the_hop_cap() -> None:
    """RT16, RT12"""
    async with running() as engine:
        await engine.put_topic("a", {"cap_records": 2})
        await route(engine, "ab", "ba", allow_cycle=True)
        await engine.append("a", data(1, 2, 3))
        await turns(1000)
        assert not engine.forwarder.is_busy
        heads = [engine.state.topics[name].log.head for name in "ab"]
        await turns(1000)
        assert [engine.state.topics[name].log.head for name in "ab"] == heads


async def test_the_dest_s_caps_and_expiry_govern_the_copies() -> None:
    """RT17, RT10"""
    clock = ManualClock()
    async with running(clock=clock) as engine:
        await engine.put_topic("b", {"cap_records": 2, "ttl_ms": 100})
        await route(engine, "ab")
        await engine.append("a", data(1, 2, 3))
        assert (await texts(engine, "b"), len(await texts(engine, "a"))) == ([b"2", b"3"], 3)
        clock.advance(101)
        assert (await texts(engine, "b"), len(await texts(engine, "a"))) == ([], 3)


# --- exactly once


async def test_losses_by_copies_have_the_time_at_which_they_happened() -> None:
    """LS1, RT12, RT17: also if the clock has gone back; the copies themselves do not go back in time."""
    clock = ManualClock()
    async with running(clock=clock) as engine:
        await engine.put_topic("b", {"cap_records": 1})
        await route(engine, "ab", "bc")
        await engine.append("a", data(1))
        written_at = clock.now_ms()
        await turns()
        clock.set(written_at - 2000)
        await engine.append("a", data(2, 3))
        (copy,) = (await engine.read("b")).records
        assert copy.ts == written_at
        assert [(one.first, one.last, one.ts) for one in await engine.reading.losses("b", 9)] == [
            (1, 2, written_at - 2000)
        ]
        assert [(one.first, one.last, one.ts) for one in await engine.reading.losses("c", 9)] == [
            (2, 2, written_at - 2000)
        ]


async def test_a_cursor_behind_a_hole_knows_how_many_sealed_records_were_lost_above_it() -> None:
    """NC3, LS1: not those that were deleted, on either side of the hole."""
    clock = ManualClock()
    async with running(clock=clock) as engine:
        await engine.put_topic("a", {"cap_records": 1})
        await engine.put_topic("b", {"ttl_ms": 50})
        await route(engine, "ab")
        await engine.append("b", [*data(1), *data(2, 3, 4, 5, tag="done"), *data(6)])
        await engine.append("a", data("lost", "lost", 9))
        await engine.topic_state("b")
        await engine.append("b", [*data(10, tag="done"), *data(11, 12, 13, 14)])
        await engine.delete("b", match=TagMatch("Eq", "done"))
        await engine.checkpoint()
        clock.advance(100)
        cursors = [(await engine.cursors.put("b", "r", seq))[1] for seq in (8, 6, 0)]
        assert [cursor.lost for cursor in cursors] == [5, 7, 9]


async def test_exactly_once_skips_what_has_a_live_copy_and_nothing_else() -> None:
    """RT14, RT19: the cursor is set back, as a lost write of it would."""
    disk = MemoryDisk()
    async with running(disk) as engine:
        await route(engine, "ab", guarantee="exactly_once")
        await engine.append("a", data(1, 2, 3, 4))
        await engine.read("b")
        await engine.append("b", data("direct"))
        await engine.delete("b", before_seq=2)
        await engine.checkpoint()
    async with running(disk.kill()) as engine:
        router = engine.state.routers.by_name["ab"]
        router.cursor = 0
        await engine.append("a", data(5))
        assert await texts(engine, "b") == [b"2", b"3", b"4", b'"direct"', b"1", b"5"]
        assert router.total == 4 + 3 + 2


async def test_at_least_once_may_copy_again() -> None:
    """RT13"""
    async with running() as engine:
        await route(engine, "ab")
        await engine.append("a", data(1))
        await engine.read("b")
        engine.state.routers.by_name["ab"].cursor = 0
        await engine.append("a", data(2))
        assert await texts(engine, "b") == [b"1", b"1", b"2"]


# --- the background


async def test_a_router_with_a_long_backlog_leaves_the_others_their_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    """RT9: one step each, in turn."""
    monkeypatch.setattr(steps, "STEP_RECORDS", 10)
    async with running() as engine:
        await engine.put_topic("b", {"cap_records": 1, "discard": "reject"})
        await route(engine, "ab", "cd")
        await engine.append("a", data(*range(500)))
        await turns()
        order: list[str] = []
        engine.listen(engine.state.topics["b"].id, lambda: order.append("b"))
        engine.listen(engine.state.topics["d"].id, lambda: order.append("d"))
        engine.forwarder._is_running = False
        await engine.put_topic("b", {})
        await engine.append("c", data(1))
        engine.forwarder.start()
        await turns(300)
        assert order.index("d") <= 2
        assert engine.state.topics["b"].log.head == 500


async def test_routers_that_lag_read_segments_and_log_their_copies() -> None:
    """RT20, RT24, DF9: what was sealed long ago is no longer in the log."""
    disk = MemoryDisk()
    settings = Settings(segment_max_events=5)
    engine = open_engine(disk, settings=settings)
    await engine.start()
    await engine.put_topic("b", {"cap_records": 1, "discard": "reject"})
    await route(engine, "ab", match=TagMatch("Glob", "x"))
    for number in range(20):
        await engine.append("a", data(number, tag=f"{'xy'[number % 2]}{number}"))
    await engine.checkpoint()
    await engine.delete("a", match=TagMatch("Eq", "x4"))
    await engine.put_topic("b", {})
    wanted = [b"%d" % number for number in range(0, 20, 2) if number != 4]
    assert await texts(engine, "b") == wanted
    await engine.delete("a", before_seq=100)
    await engine.checkpoint()
    async with running(disk.kill(), settings=settings) as again:
        assert (await texts(again, "b"), await texts(again, "a")) == (wanted, [])


async def test_damage_in_a_segment_blocks_the_router_that_needs_it() -> None:
    """RT15, ST12"""
    disk = MemoryDisk()
    async with running(disk) as engine:
        await engine.put_topic("b", {"cap_records": 1, "discard": "reject"})
        await route(engine, "ab")
        await engine.append("a", data("one", "two"))
        await turns()
        await engine.checkpoint()
        name = next(name for name in disk.names() if name.startswith("segment-") or "seg" in name)
        file = disk.open(name)
        content = file.read(0, file.size())
        at = content.index(b'"two"')
        file.write(at, b'"twx"')
        await engine.put_topic("b", {})
        await turns()
        router = await engine.router("ab")
        assert (router.state, router.lag) == ("blocked", 1)
        assert "damaged" in (router.blocked_by or "")


async def test_patience_with_a_blocked_router_doubles() -> None:
    """RT15"""
    clock = ManualClock()
    async with running(clock=clock) as engine:
        await engine.put_topic("b", {"cap_records": 1, "discard": "reject"})
        await route(engine, "ab")
        await engine.append("a", data(1, 2))
        await turns()
        blocked = engine.forwarder.blocked.by_id
        (router_id,) = blocked
        delays = []
        for _ in range(9):
            delays.append(blocked[router_id].delay_ms)
            clock.advance(int(blocked[router_id].delay_ms) + 1)
            await turns()
        assert delays == [50, 100, 200, 400, 800, 1600, 3200, 5000, 5000]


@pytest.mark.parametrize("durability", ["disk", "ephemeral"])
async def test_a_router_whose_last_record_is_lost_is_no_longer_blocked(durability: str) -> None:
    """RT12, RT15, RT17: it has nothing left to wait for."""
    clock = ManualClock()
    async with running(clock=clock) as engine:
        await engine.put_topic("a", {"durability": "fsync", "ttl_ms": 50})
        await engine.put_topic("b", {"cap_records": 1, "discard": "reject", "durability": durability})
        await route(engine, "ab")
        await engine.append("a", data(1, 2))
        await turns()
        assert (await engine.router("ab")).state == "blocked"
        clock.advance(100)
        await turns()
        router = await engine.router("ab")
        assert (router.state, router.lag, router.blocked_by) == ("running", 0, None)
        await turns()
        assert not engine.forwarder.blocked.by_id and not engine.forwarder.lasting


async def test_a_blocked_router_goes_on_when_its_dest_comes_to_be_in_memory_and_has_room() -> None:
    """RT15, RT24: it waits for the sync of that change, and is not forgotten then."""
    disk = MemoryDisk()
    async with running(disk) as engine:
        await engine.put_topic("b", {"cap_records": 1, "discard": "reject"})
        await route(engine, "ab")
        await engine.append("a", data(1, 2))
        await turns()
        assert engine.forwarder.blocked.by_id
        disk.hold_syncs()
        (change,) = await begun(engine.put_topic("b", {"durability": "ephemeral"}))
        assert engine.state.topics["b"].log.count == 1
        disk.release_syncs()
        await change
        await turns()
        assert (engine.state.topics["b"].log.count, engine.forwarder.blocked.by_id) == (2, {})


async def test_a_sync_that_a_blocked_router_waited_for_keeps_nothing_waiting() -> None:
    """RT15, RT24: once the dest in memory may have more, nobody waits for that, blocked or not."""
    disk, clock = MemoryDisk(), ManualClock()
    async with running(disk, clock) as engine:
        await engine.put_topic("a", {"durability": "fsync"})
        await engine.put_topic("b", {"cap_records": 1, "discard": "reject", "durability": "ephemeral"})
        await route(engine, "ab")
        await engine.append("a", data(1, 2))
        await turns()
        disk.hold_syncs()
        await begun(engine.append("a", data(3)))
        clock.advance(RETRY_MS_MIN)
        await turns()
        assert engine.forwarder.blocked.by_id and engine.forwarder.lasting
        disk.release_syncs()
        await turns()
        assert engine.forwarder.blocked.by_id and not engine.forwarder.lasting
        await engine.delete("b", before_seq=2)
        assert await texts(engine, "b") == [b"2"]


async def test_a_stop_drains_chains_and_what_waits_for_a_sync() -> None:
    """SC3"""
    disk = MemoryDisk()
    async with running(disk) as engine:
        await engine.put_topic("c", {"durability": "ephemeral"})
        await engine.put_topic("a", {"durability": "fsync"})
        await route(engine, "ab", "bc", "cd")
        engine.forwarder._is_running = False
        await engine.append("a", data(1, 2, 3))
    async with running(disk.kill()) as engine:
        assert {name: topic.log.head for name, topic in engine.state.topics.items()} == dict.fromkeys("cabd", 3)
        assert await texts(engine, "d") == [b"1", b"2", b"3"]


async def test_a_deleted_router_stops_at_once_and_leaves_its_copies() -> None:
    """RT3, RT18"""
    async with running() as engine:
        await route(engine, "ab")
        await engine.append("a", data(1))
        await turns()
        engine.forwarder._is_running = False
        await engine.append("a", data(2))
        await engine.delete_router("ab")
        engine.forwarder.start()
        await turns()
        assert await texts(engine, "b") == [b"1"]


async def test_copies_pass_reservations_like_writes(monkeypatch: pytest.MonkeyPatch) -> None:
    """DU10, RT17: no acked seq of a dest is handed out again after a loss of power."""
    monkeypatch.setattr(reservation, "RESERVE", 8)
    disk = MemoryDisk()
    engine = open_engine(disk)
    await engine.start()
    await route(engine, "ab")
    for number in range(40):
        await engine.append("a", data(number))
        shown = (await engine.read("b", number)).records[-1].seq
    assert shown == 40
    async with running(disk.power_loss("lost")) as again:
        state = await again.topic_state("b")
        assert state.head_seq >= 40
        assert (await again.append("b", data("next"))).first_seq > 40


async def test_what_is_deleted_after_another_router_has_looked_is_not_copied() -> None:
    """RT9, DL1: routers share what one of them has found, but not what is gone meanwhile."""
    async with running() as engine:
        await route(engine, "ab", "ac")
        forwarder = engine.forwarder
        forwarder._is_running = False
        await engine.append("a", data(1, 2, 3))
        first, second = engine.state.routers.by_name.values()
        step = forwarder.step(first)
        assert step is not None
        forwarder.commit([step])
        await engine.append("a", data(4))
        await engine.delete("a", before_seq=3)
        step = forwarder.step(second)
        assert step is not None
        forwarder.commit([step])
        assert list(engine.state.topics["b"].log.live_after(0)) == [1, 2, 3]
        assert [bytes(record.data) for record in (await engine.read("c", 0)).records] == [b"3", b"4"]


async def test_a_router_shares_what_another_has_found_though_the_source_has_grown() -> None:
    """RT9"""
    async with running() as engine:
        await route(engine, "ab", "ac")
        forwarder = engine.forwarder
        forwarder._is_running = False
        await engine.append("a", data(*range(SHARED_MIN)))
        first, second = engine.state.routers.by_name.values()
        one = forwarder.step(first)
        await engine.append("a", data(4))
        other = forwarder.step(second)
        assert one is not None and other is not None
        assert one.entries[0].batches is other.entries[0].batches  # type: ignore[union-attr]
        forwarder.commit([one, other])
        assert [bytes(record.data) for record in (await engine.read("c", 0)).records] == [
            *(b"%d" % n for n in range(SHARED_MIN)),
            b"4",
        ]


async def test_a_blocked_router_does_not_overtake_an_older_one_into_its_dest() -> None:
    """RT9, RT15: the room that a loss at the source leaves goes to the router that was created first."""
    async with running() as engine:
        await engine.put_topic("a", {"cap_records": 3})
        await engine.put_topic("b", {"cap_bytes": 60, "discard": "reject"})
        for name in ("first", "second"):
            await engine.put_router(name, "a", "b")
        await engine.append("a", data("x" * 30, 1, "y" * 8))
        await turns()
        assert [router.cursor for router in engine.state.routers.by_name.values()] == [3, 0]
        await engine.append("a", data("y" * 8, "x" * 30, "y" * 8))
        await turns()
        assert [router.cursor for router in engine.state.routers.by_name.values()] == [4, 3]


async def test_a_router_forwards_what_was_there_before_the_next_one_into_its_dest(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """RT9: in several steps, between which other dests have their turn."""
    monkeypatch.setattr(steps, "STEP_RECORDS", 2)
    async with running() as engine:
        for name, dest in (("first", "b"), ("second", "b"), ("other", "c")):
            await engine.put_router(name, "a", dest)
        await engine.append("a", data(1, 2, 3, 4, 5))
        await turns()
        engine.forwarder.check()
        assert await texts(engine, "b") == [b"%d" % number for number in (1, 2, 3, 4, 5, 1, 2, 3, 4, 5)]
        assert await texts(engine, "c") == [b"1", b"2", b"3", b"4", b"5"]


class Ticking(ManualClock):
    """Each look at it takes a little time, so that a slice of time comes to its end."""

    def monotonic(self) -> float:
        self._passed_ms += 0.05  # type: ignore[assignment]
        return super().monotonic()


async def test_a_read_does_not_try_again_and_again_what_the_log_refuses() -> None:
    """RT15, HM7: the router is tried again soon, not after as many doublings of its patience as fit into a slice."""
    async with running(clock=Ticking()) as engine:
        await engine.put_topic("s", {"durability": "ephemeral"})
        await route(engine, "sd")
        engine.wal.refuse("for now")
        await engine.append("s", data(1))
        await turns()
        (router,) = engine.state.routers.by_id.values()
        engine.forwarder._add(router)  # it is about to be tried again
        assert await seqs(engine, "d") == []
        (blocked,) = engine.forwarder.blocked.by_id.values()
        assert blocked.delay_ms <= 4 * RETRY_MS_MIN
