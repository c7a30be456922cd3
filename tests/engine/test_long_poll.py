"""A reader waits for news and gets it: never late, never for nothing."""

import asyncio

import pytest

from tests.core.engine_adapter import open_gap
from tests.engine.running import begun, data, running, seqs, turns
from topics.errors import TopicNotFound
from topics.model import WAIT_MS_MAX, Durability
from topics.testing.clock import ManualClock
from topics.testing.disk import MemoryDisk
from topics.testing.patience import PATIENCE_S


@pytest.mark.parametrize("durability", ["ephemeral", "memory", "disk", "fsync"])
async def test_a_write_at_any_moment_of_a_poll_ends_it(durability: Durability) -> None:
    """S7, DF8, DF10: the write lands between the poll's read and its wait, 1000 times."""
    async with running() as engine, asyncio.timeout(PATIENCE_S):
        await engine.put_topic("t", {"durability": durability})
        for number in range(1000):
            poll = asyncio.create_task(engine.read("t", number, wait_ms=WAIT_MS_MAX))
            await turns(number % 9)
            await engine.append("t", data(number))
            answer = await poll
            assert [(record.seq, bytes(record.data)) for record in answer.records] == [(number + 1, b"%d" % number)]
            assert answer.caught_up


async def test_each_of_many_polls_is_woken() -> None:
    """DF8, DF10"""
    async with running() as engine, asyncio.timeout(PATIENCE_S):
        await engine.put_topic("t")
        polls = await begun(*[engine.read("t", wait_ms=1000) for _ in range(50)])
        await engine.append("t", data(1))
        assert [len((await poll).records) for poll in polls] == [1] * 50
        assert engine._ledger.listeners.by_topic == {}


async def test_own_node_writes_do_not_end_a_poll_but_move_its_cursor() -> None:
    """S7, DF8, DF10, ND2: nor do records that are deleted before the poll sees them."""
    clock = ManualClock()
    async with running(clock=clock) as engine:
        await engine.put_topic("t")
        [poll] = await begun(engine.read("t", wait_ms=1000, nodes=["me"]))
        await engine.append("t", data(1, 2, node="me"))
        await asyncio.gather(engine.append("t", data(3)), engine.delete("t", before_seq=9))
        await turns()
        assert not poll.done()
        clock.advance(1000)
        answer = await poll
        assert (answer.records, answer.next_from_seq, answer.caught_up, answer.tombstone) == ([], 3, True, None)


async def test_a_foreign_record_ends_a_poll_that_passed_over_own_ones() -> None:
    """DF8, DF10"""
    async with running() as engine, asyncio.timeout(PATIENCE_S):
        await engine.put_topic("t")
        [poll] = await begun(engine.read("t", wait_ms=1000, nodes=["me"]))
        await engine.append("t", data(1, node="me"))
        await turns()
        await engine.append("t", data(2, node="you"))
        assert [record.seq for record in (await poll).records] == [2]


async def test_deleting_the_topic_ends_a_poll_with_not_found() -> None:
    """S7, DF8"""
    async with running() as engine, asyncio.timeout(PATIENCE_S):
        await engine.put_topic("t")
        [poll] = await begun(engine.read("t", wait_ms=1000))
        await engine.delete_topic("t")
        with pytest.raises(TopicNotFound):
            await poll


async def test_a_topic_recreated_behind_a_polls_back_opens_with_a_tombstone_or_not_found() -> None:
    """DF8, TM11: never a silent restart."""
    async with running() as engine, asyncio.timeout(PATIENCE_S):
        await engine.append("t", data(1, 2))
        [poll] = await begun(engine.read("t", 2, wait_ms=1000))
        await asyncio.gather(engine.delete_topic("t"), engine.append("t", data(3, 4, 5)))
        try:
            answer = await poll
        except TopicNotFound:
            return
        assert answer.tombstone is not None and answer.tombstone.reason == "recreated"
        assert [record.seq for record in answer.records] == [1, 2, 3]


async def test_a_gap_ends_a_poll_with_its_tombstone() -> None:
    """DF8, TM16"""
    async with running() as engine, asyncio.timeout(PATIENCE_S):
        await engine.append("t", data(1))
        [poll] = await begun(engine.read("t", 1, wait_ms=1000))
        await open_gap(engine, "t", 3, "source_trim")
        tombstone = (await poll).tombstone
        assert tombstone is not None
        assert (tombstone.gap_from, tombstone.gap_to, tombstone.reason) == (2, 4, "source_trim")


async def test_a_poll_ends_at_its_deadline_and_no_sooner() -> None:
    """DF8, CV25"""
    clock = ManualClock()
    async with running(clock=clock) as engine:
        await engine.append("t", data(1))
        [poll] = await begun(engine.read("t", 1, wait_ms=1000))
        clock.advance(999)
        await turns()
        assert not poll.done()
        clock.advance(1)
        answer = await poll
        assert (answer.count, answer.next_from_seq, answer.head_seq, answer.caught_up) == (0, 1, 1, True)
        assert clock.waits == 0


async def test_a_poll_waits_no_longer_than_thirty_seconds() -> None:
    """DF1"""
    clock = ManualClock()
    async with running(clock=clock) as engine:
        await engine.put_topic("t")
        [poll] = await begun(engine.read("t", wait_ms=10**9))
        clock.advance(30_000)
        assert (await poll).count == 0


@pytest.mark.parametrize(
    ("after", "why"), [(0, "a record"), (5, "a cursor above head"), (1, "not caught up behind the limit")]
)
async def test_a_poll_that_has_something_to_say_answers_at_once(after: int, why: str) -> None:
    """DF8"""
    async with running() as engine, asyncio.timeout(PATIENCE_S):
        await engine.append("t", data(1, 2, 3))
        answer = await engine.read("t", after, 1, wait_ms=1000)
        assert answer.count, why


async def test_a_poll_of_an_absent_topic_is_not_found_at_once() -> None:
    """DF7"""
    async with running() as engine:
        with pytest.raises(TopicNotFound):
            await engine.read("t", wait_ms=1000)
        assert await engine.topic_names() == []


async def test_a_cancelled_poll_leaves_no_listener_behind() -> None:
    async with running() as engine:
        await engine.put_topic("t")
        [poll] = await begun(engine.read("t", wait_ms=1000))
        assert len(engine._ledger.listeners.by_topic) == 1
        poll.cancel()
        await turns()
        assert engine._ledger.listeners.by_topic == {}


async def test_an_expired_poll_shows_what_the_clock_took_meanwhile() -> None:
    """DF10, TM7: the answer at the deadline is made anew."""
    clock = ManualClock()
    async with running(clock=clock) as engine:
        await engine.append("t", data(1), config={"ttl_ms": 500})
        [poll] = await begun(engine.read("t", 1, wait_ms=1000))
        clock.advance(1000)
        assert (await poll).earliest_seq == 2


async def test_a_poll_on_an_fsync_topic_hears_of_a_record_only_when_it_is_synced() -> None:
    """WR10, DF8, G13"""
    disk = MemoryDisk()
    async with running(disk) as engine:
        await engine.put_topic("t", {"durability": "fsync"})
        disk.hold_syncs()
        [poll, _] = await begun(engine.read("t", wait_ms=1000), engine.append("t", data(1)))  # type: ignore[arg-type]
        assert not poll.done()
        disk.release_syncs()
        assert [record.seq for record in (await poll).records] == [1]
        assert await seqs(engine, "t") == [1]
