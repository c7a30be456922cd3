"""The delivery core with an engine and readers of its own: who shares a read, who is served when, what is held back."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from itertools import pairwise
from typing import Any

import pytest

from tests.engine.running import begun, data, running, turns
from tests.engine.test_cold_reads import CountingDisk
from topics.engine import Engine
from topics.model import Durability
from topics.server.live.delivery import Delivery
from topics.server.live.feeds import Feed, Push, Reader, Template
from topics.server.live.outlet import NEVER
from topics.server.live.pressure import Pressure
from topics.settings import Settings
from topics.testing.clock import ManualClock
from topics.testing.disk import Faulty, MemoryDisk
from topics.testing.patience import PATIENCE_S

TEMPLATE = Template.of(256, 1 << 20)
STRONG = Template.of(256, 1 << 20, is_strong=True)


class Recorder(Reader):
    """Writes down what it is given. `takes` says how many frames it takes before it is blocked."""

    __slots__ = ("frames", "log", "pushes", "takes")

    def __init__(self, delivery: Delivery, log: list[Any] | None = None) -> None:
        super().__init__(delivery.wheel)
        self.frames: list[Any] = []
        self.pushes: list[Push] = []
        self.log = log if log is not None else []  # topics in the order of their frames, over all readers
        self.takes = NEVER

    @property
    def is_blocked(self) -> bool:
        return self.takes <= 0

    @property
    def buffered(self) -> int:
        return 0

    def beat(self, now: int) -> int:
        return NEVER

    def too_slow(self) -> None:
        self.frames.append("too slow")

    def tombstone(self, feed: Feed, push: Push, is_first: bool) -> None:
        lost = push.result.tombstone
        assert lost is not None and feed.cursor == push.start
        self._add(feed, ("lost", lost.gap_from, lost.gap_to))

    def records(self, feed: Feed, push: Push) -> None:
        assert feed.cursor == push.result.next_from_seq
        self.pushes.append(push)
        self._add(feed, [record.seq for record in push.result.records])

    def caught_up(self, feed: Feed, push: Push) -> None:
        self._add(feed, "caught up")

    def topic_deleted(self, feed: Feed) -> None:
        self._add(feed, ("deleted", feed.name, feed.head))

    def paced(self, topics: Sequence[str], retry_after_ms: int) -> None:
        assert retry_after_ms > 0
        self.frames.append(("paced", *topics))

    def failed(self, error: BaseException) -> None:
        self.frames.append("failed")

    def _add(self, feed: Feed, frame: Any) -> None:
        self.frames.append(frame)
        self.log.append(feed.name)
        self.takes -= 1

    def take(self) -> list[Any]:
        taken, self.frames = self.frames, []
        return taken


def seqs(reader: Recorder, topic: str = "t") -> list[int]:
    """All that a reader got of a topic."""
    return [record.seq for push in reader.pushes if push.result.topic == topic for record in push.result.records]


class Bench:
    """An engine, its delivery, and a pressure that is set by hand."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self.level = 0.0
        self.pressure = Pressure(engine.clock, lambda: 0.0, lambda: self.level)
        self.delivery = Delivery(engine, self.pressure)
        self.delivery.rounds.slice_s = 60.0  # a busy machine changes nothing

    def press(self, level: float) -> None:
        self.level = level
        self.pressure.measure()

    def follow(self, *names: str, cursor: int = 0, template: Template = TEMPLATE, **fields: Any) -> Recorder:
        reader = Recorder(self.delivery, **fields)
        feeds = [Feed(name, template, self.engine.state.topics[name].epoch, cursor) for name in names]
        self.delivery.add(reader, *feeds)
        return reader


@asynccontextmanager
async def bench(
    disk: MemoryDisk | None = None, clock: ManualClock | None = None, **settings: Any
) -> AsyncIterator[Bench]:
    async with running(disk, clock, Settings(**settings)) as engine:
        one = Bench(engine)
        yield one
        await one.delivery.stop()
        await turns()


# --- sharing


async def test_readers_that_stand_at_the_same_cursor_share_one_read() -> None:
    """SS21"""
    async with bench() as b:
        await b.engine.put_topic("t")
        readers = [b.follow("t") for _ in range(100)]
        await b.engine.append("t", data(1))
        await turns()
        assert len({id(reader.pushes[-1]) for reader in readers}) == 1
        late = b.follow("t", cursor=1)
        await turns()
        await b.engine.append("t", data(2))
        await turns()
        assert late.pushes[-1] is readers[0].pushes[-1]
        assert readers[0].pushes[-1].record_json is late.pushes[-1].record_json


async def test_readers_with_nodes_of_their_own_share_what_none_of_them_wrote() -> None:
    """SS21, ND1"""
    async with bench() as b:
        await b.engine.put_topic("t")
        templates = [Template.of(256, 1 << 20, frozenset((f"n{n}",))) for n in range(10)]
        readers = [b.follow("t", template=template) for template in templates]
        await b.engine.append("t", data(1, node="n3"))
        await b.engine.append("t", data(2, 3))
        await turns()
        others = [reader for n, reader in enumerate(readers) if n != 3]
        assert len({id(reader.pushes[-1]) for reader in others}) == 1
        assert [seqs(reader) for reader in others] == [[1, 2, 3]] * 9
        assert seqs(readers[3]) == [2, 3]


async def test_different_templates_and_cursors_do_not_share() -> None:
    """SS21"""
    async with bench() as b:
        await b.engine.append("t", data(1, 2, 3))
        first, second, third = b.follow("t"), b.follow("t", cursor=1), b.follow("t", template=Template.of(2, 1 << 20))
        await turns()
        assert first.take() == [[1, 2, 3], "caught up"]
        assert second.take() == [[2, 3], "caught up"]
        assert third.take() == [[1, 2], [3], "caught up"]


# --- no wake-up is lost, nothing comes twice


@pytest.mark.parametrize("durability", ["ephemeral", "memory", "disk", "fsync"])
async def test_a_write_at_any_moment_of_joining_is_delivered_once(durability: Durability) -> None:
    """DF10, SS9, WR10"""
    async with bench() as b:
        await b.engine.put_topic("t", {"durability": durability})
        for number in range(300):
            reader = b.follow("t", cursor=number)
            [write] = await begun_after(number % 7, b.engine.append("t", data(number)))
            await write
            await turns(20)
            assert [frame for frame in reader.take() if frame != "caught up"] == [[number + 1]]
            b.delivery.close(reader)
        assert b.delivery._hubs == {} and b.engine._ledger.listeners.by_topic == {}


async def begun_after(count: int, *work: Any) -> "list[asyncio.Task[Any]]":
    await turns(count)
    return [asyncio.create_task(one) for one in work]


async def test_many_writers_and_readers_see_every_record_in_order() -> None:
    """WR5, SS9"""
    async with bench() as b:
        for name in ("a", "b"):
            await b.engine.put_topic(name)
        readers = [b.follow("a", "b") for _ in range(5)]
        await asyncio.gather(*[b.engine.append(name, data(n)) for n in range(200) for name in ("a", "b")])
        await turns()
        for reader in readers:
            for name in ("a", "b"):
                assert seqs(reader, name) == list(range(1, 201))


# --- the gate


async def test_nothing_is_pushed_before_it_is_as_durable_as_its_class_asks() -> None:
    """WR10"""
    disk = MemoryDisk()
    async with bench(disk) as b:
        await b.engine.put_topic("t", {"durability": "fsync"})
        reader = b.follow("t")
        await turns()
        assert reader.take() == ["caught up"]
        disk.hold_syncs()
        [write] = await begun(b.engine.append("t", data(1)))
        late = b.follow("t")
        await turns()
        assert (reader.take(), late.take(), write.done()) == ([], [], False)
        disk.release_syncs()
        await write
        await turns()
        assert (reader.take(), late.take()) == ([[1]], [[1], "caught up"])


async def test_a_reader_that_writes_itself_is_served_though_no_moment_finds_everything_synced() -> None:
    """SS19, ND1: each time a sync ends, the next write is waiting for its own."""
    disk = MemoryDisk()
    async with bench(disk) as b:
        await b.engine.put_topic("t", {"durability": "fsync"})
        reader = b.follow("t", template=Template.of(256, 1 << 20, frozenset(("me",))))
        await turns()
        disk.hold_syncs()
        for _ in range(4):
            await begun(b.engine.append("t", data("mine", node="me")), b.engine.append("t", data("theirs")))
            disk.release_syncs()
            disk.hold_syncs()
            await begun(b.engine.append("t", data("mine", node="me")))
        assert len(seqs(reader)) > 1
        disk.release_syncs()
        await turns()
        assert seqs(reader) == [2, 5, 8, 11]


async def test_what_fails_to_be_synced_is_never_pushed() -> None:
    """WR10, ER7: a read that was held is made anew."""
    disk = MemoryDisk()
    async with bench(disk) as b:
        await b.engine.put_topic("t", {"durability": "fsync"})
        await b.engine.append("t", data(1))
        disk.hold_syncs()
        writes = await begun(b.engine.append("t", data("lost")))
        reader = b.follow("t")
        await turns()
        assert reader.take() == []
        disk.hooks.append(Faulty("sync"))
        disk.release_syncs()
        results = await asyncio.gather(*writes, return_exceptions=True)
        assert isinstance(results[0], Exception)
        await turns()
        assert reader.take() == [[1], "caught up"]
        await b.engine.append("t", data(2))
        await turns()
        assert reader.take() == [[2]]
        assert bytes(reader.pushes[-1].result.records[0].data) == b"2"


@pytest.mark.parametrize("durability", ["memory", "disk"])
async def test_strong_readers_get_only_what_is_synced(durability: Durability) -> None:
    """SS18: and the sync is not waited for longer than it takes."""
    disk = MemoryDisk()
    async with bench(disk) as b:
        await b.engine.put_topic("t", {"durability": durability})
        strong, eventual = b.follow("t", template=STRONG), b.follow("t")
        await turns()
        assert (strong.take(), eventual.take()) == (["caught up"], ["caught up"])
        disk.hold_syncs()
        await b.engine.append("t", data(1))
        late = b.follow("t", template=STRONG)
        await turns()
        assert (strong.take(), eventual.take(), late.take()) == ([], [[1]], [])
        assert disk.held_syncs == 1
        disk.release_syncs()
        await turns()
        assert (strong.take(), eventual.take(), late.take()) == ([[1]], [], [[1], "caught up"])


async def test_ephemeral_topics_count_as_synced() -> None:
    """SS18"""
    disk = MemoryDisk()
    async with bench(disk) as b:
        await b.engine.put_topic("t", {"durability": "ephemeral"})
        strong = b.follow("t", template=STRONG)
        disk.hold_syncs()
        await b.engine.append("t", data(1))
        await turns()
        assert strong.take()[-1] in ("caught up", [1])
        assert seqs(strong) == [1]


async def test_a_deletion_is_told_when_it_is_synced_and_not_if_it_fails() -> None:
    """SS12, TP13, ER7"""
    disk = MemoryDisk()
    async with bench(disk) as b:
        await b.engine.append("t", data(1))
        reader = b.follow("t")
        await turns()
        assert reader.take() == [[1], "caught up"]
        disk.hold_syncs()
        [deletion] = await begun(b.engine.delete_topic("t"))
        late = Recorder(b.delivery)
        b.delivery.add(late, Feed("t", TEMPLATE, 1, 0, 1))
        await turns()
        assert (reader.take(), late.take()) == ([], [])
        disk.hooks.append(Faulty("sync"))
        disk.release_syncs()
        [failure] = await asyncio.gather(deletion, return_exceptions=True)
        assert isinstance(failure, Exception)
        await turns()
        assert (reader.take(), late.take()) == ([], [[1], "caught up"])
        await b.engine.append("t", data(2))
        await b.engine.delete_topic("t")
        await turns()
        assert reader.take()[-1] == late.take()[-1] == ("deleted", "t", 2)
        assert reader.feeds == late.feeds == {} and b.delivery._hubs == {}


async def test_records_in_segments_are_brought_in_and_delivered() -> None:
    """SS9: the pages of a cold backlog are loaded off the loop."""
    async with bench(cache_bytes=1 << 20) as b:
        for n in range(40):
            await b.engine.append("t", data(*[[n, "x" * 800]] * 100))
        await b.engine.checkpoint()
        readers = [b.follow("t"), b.follow("t", cursor=1500), b.follow("t", template=STRONG)]
        async with asyncio.timeout(PATIENCE_S):
            while not all(reader.frames and reader.frames[-1] == "caught up" for reader in readers):
                await turns(1)
        for reader, first in zip(readers, (1, 1501, 1), strict=True):
            assert seqs(reader) == list(range(first, 4001))


@pytest.mark.slow
async def test_readers_who_are_far_behind_are_carried_along_together() -> None:
    """SS21: with a cache of one page, each page is loaded about once for all of them, and not once for each."""
    disk = CountingDisk()
    pages, rows = 8, 1024
    async with bench(disk, cache_bytes=1 << 20) as b, asyncio.timeout(PATIENCE_S):
        for n in range(pages * rows // 256):
            await b.engine.append("t", data(*[[n, "x" * 800]] * 256))
        await b.engine.checkpoint()
        before = disk.works
        cursors = [n * pages * rows // 40 for n in range(40)]
        readers = [b.follow("t", cursor=cursor) for cursor in cursors]
        while not all(reader.frames and reader.frames[-1] == "caught up" for reader in readers):
            await turns(1)
        for reader, cursor in zip(readers, cursors, strict=True):
            assert seqs(reader) == list(range(cursor + 1, pages * rows + 1))
        assert disk.works - before <= 2 * pages


# --- slow readers


async def test_a_blocked_reader_is_not_read_for_and_goes_on_where_it_stood() -> None:
    """SS19"""
    async with bench() as b:
        await b.engine.put_topic("t")
        slow, quick = b.follow("t"), b.follow("t")
        await turns()
        slow.takes = 1
        for n in range(5):
            await b.engine.append("t", data(n))
            await turns()
        assert slow.take() == ["caught up", [1]]
        assert quick.take() == ["caught up", [1], [2], [3], [4], [5]]
        slow.takes = NEVER
        b.delivery.writable(slow)
        await turns()
        assert slow.take() == [[2, 3, 4, 5]]


async def test_a_long_backlog_is_delivered_in_turns() -> None:
    """PR4: one read per round, so that a neighbour with little to say is not kept waiting."""
    async with bench() as b:
        for name in ("long", "short"):
            await b.engine.put_topic(name)
        await b.engine.append("long", data(*range(100)))
        log: list[str] = []
        b.follow("long", template=Template.of(10, 1 << 20), log=log)
        b.follow("short", log=log)
        await b.engine.append("short", data(1))
        await turns()
        assert log.index("short") <= 2 and log.count("long") == 11


async def test_a_steady_flow_reaches_all_of_many_readers() -> None:
    """PR4: a round that takes several turns is finished before the next one."""
    async with bench() as b:
        await b.engine.put_topic("t", {"durability": "ephemeral"})
        readers = [b.follow("t", template=Template.of(1, 1 << 20)) for _ in range(200)]
        await turns()
        b.delivery.rounds.slice_s = 0.0
        for n in range(60):
            await b.engine.append("t", data(n))
            await turns(1)
            assert len(b.delivery.rounds.ready) <= 1
        assert all(reader.pushes for reader in readers)
        await turns(2000)
        assert [seqs(reader) for reader in readers] == [list(range(1, 61))] * 200


# --- order under pressure


async def dirty(b: Bench, priorities: dict[str, int]) -> list[str]:
    """Follow topics, let all of them have news in the same turn, and serve one per turn; the order they came in."""
    log: list[str] = []
    for name, priority in priorities.items():
        await b.engine.put_topic(name, {"priority": priority, "durability": "ephemeral"})
        b.follow(name, log=log)
    await turns()
    log.clear()
    b.delivery.rounds.slice_s = 0.0
    for name in priorities:
        await b.engine.append(name, data(1))
    await turns()
    return log


async def test_topics_that_queue_up_are_served_by_priority() -> None:
    """PR4: the first was served before there was a queue."""
    async with bench() as b:
        assert await dirty(b, {"a": 0, "b": -5, "c": 7, "d": 7, "e": 1000}) == ["a", "e", "c", "d", "b"]


async def test_without_a_queue_order_is_first_come_first_served() -> None:
    """PR3, PR4"""
    async with bench() as b:
        log: list[str] = []
        for name, priority in (("a", -9), ("b", 0), ("c", 9)):
            await b.engine.put_topic(name, {"priority": priority, "durability": "ephemeral"})
            b.follow(name, log=log)
        await turns()
        log.clear()
        for name in ("b", "a", "c"):
            await b.engine.append(name, data(1))
        await turns()
        assert log == ["b", "a", "c"]


async def test_waiting_raises_a_topic_until_it_is_served() -> None:
    """PR4: nothing starves under a stream of more important news."""
    clock = ManualClock()
    async with bench(clock=clock) as b:
        log: list[str] = []
        for name, priority in (("first", 0), ("low", -1000), ("high", 1000), ("higher", 1000)):
            await b.engine.put_topic(name, {"priority": priority, "durability": "ephemeral"})
            b.follow(name, log=log)
        await turns()
        log.clear()
        b.delivery.rounds.slice_s = 0.0
        for name in ("first", "low", "high", "higher"):
            await b.engine.append(name, data(0))
        rounds = 0
        while "low" not in log:
            await turns(1)
            clock.advance(100)
            rounds += 1
            for name in ("high", "higher"):
                await b.engine.append(name, data(rounds))
            assert rounds < 1000
        assert log.count("high") + log.count("higher") >= 10, "it had to wait, being less important"


# --- pressure


async def test_rising_pressure_makes_fewer_and_larger_frames() -> None:
    """PR5"""
    clock = ManualClock()
    async with bench(clock=clock) as b:
        await b.engine.put_topic("t")
        reader = b.follow("t")
        await turns()
        reader.take()
        b.press(0.3)
        for n in range(5):
            await b.engine.append("t", data(n))
            await turns()
        assert reader.take() == []
        clock.advance(50)
        await turns()
        assert reader.take() == [[1, 2, 3, 4, 5]]
        b.press(0.0)
        await b.engine.append("t", data(5))
        await turns()
        assert reader.take() == [[6]]


async def test_a_backlog_does_not_wait_for_pressure_to_fall() -> None:
    """PR5: its frames are full already."""
    clock = ManualClock()
    async with bench(clock=clock) as b:
        await b.engine.append("t", data(*range(10)))
        b.press(0.4)
        reader = b.follow("t", template=Template.of(2, 1 << 20))
        await turns()
        assert reader.take() == []
        clock.advance(50)
        await turns()
        assert reader.take() == [[1, 2], [3, 4], [5, 6], [7, 8], [9, 10], "caught up"]


async def calm(clock: ManualClock) -> None:
    """Let what waits a little under pressure happen."""
    for _ in range(3):
        await turns()
        clock.advance(50)
    await turns()


async def test_topics_of_negative_priority_are_held_back_with_one_word_per_episode() -> None:
    """PR5, PR6: with hysteresis, and nothing is lost."""
    clock = ManualClock()
    async with bench(clock=clock) as b:
        for name, priority in (("low", -1), ("lower", -2), ("plain", 0)):
            await b.engine.put_topic(name, {"priority": priority})
        reader, other = b.follow("low", "lower", "plain"), b.follow("plain")
        await turns()
        reader.take(), other.take()
        b.press(0.5)
        for n in range(3):
            for name in ("low", "lower", "plain"):
                await b.engine.append(name, data(n))
            await calm(clock)
        assert reader.take()[0] in ([1], ("paced", "low", "lower"))
        assert [frame for frame in other.take() if isinstance(frame, tuple)] == []
        b.press(0.3)
        await b.engine.append("low", data(3))
        await calm(clock)
        assert reader.take() == [], "the episode is not over yet"
        b.press(0.2)
        await turns()
        assert reader.take() == [[1, 2, 3, 4], [1, 2, 3]]
        b.press(0.9)
        await b.engine.append("low", data(4))
        await calm(clock)
        assert reader.take() == [("paced", "low", "lower")], "another episode"
        b.press(0.0)
        await turns()
        assert reader.take() == [[5]]


async def test_a_reader_that_joins_or_leaves_during_an_episode_is_no_trouble() -> None:
    """PR6"""
    clock = ManualClock()
    async with bench(clock=clock) as b:
        await b.engine.put_topic("low", {"priority": -1})
        await b.engine.append("low", data(1))
        b.press(1.0)
        leaving, staying = b.follow("low"), b.follow("low")
        await calm(clock)
        assert leaving.take() == staying.take() == [("paced", "low")]
        late = b.follow("low")
        await calm(clock)
        assert late.take() == [("paced", "low")]
        b.delivery.close(leaving)
        b.delivery.close(late)
        b.press(0.0)
        await turns()
        assert (leaving.take(), staying.take()) == ([], [[1], "caught up"])
        b.press(1.0)
        await b.engine.append("low", data(2))
        await calm(clock)
        b.delivery.close(staying)
        b.press(0.0)
        await turns()
        assert b.delivery._hubs == {} and not len(b.delivery.rounds.ready)


async def test_a_topic_whose_priority_rises_is_no_longer_held_back() -> None:
    """PR5, TP5"""
    clock = ManualClock()
    async with bench(clock=clock) as b:
        await b.engine.put_topic("t", {"priority": -1})
        reader = b.follow("t")
        await turns()
        reader.take()
        b.press(0.6)
        await b.engine.append("t", data(1))
        await calm(clock)
        assert reader.take() == [("paced", "t")]
        await b.engine.put_topic("t", {"priority": 1})
        await calm(clock)
        assert reader.take() == [[1]]


async def test_the_deletion_of_a_topic_that_is_held_back_is_told_at_once() -> None:
    """SS12, PR5"""
    clock = ManualClock()
    async with bench(clock=clock) as b:
        await b.engine.put_topic("t", {"priority": -1})
        reader = b.follow("t")
        await turns()
        reader.take()
        b.press(0.6)
        await b.engine.append("t", data(1))
        await calm(clock)
        assert reader.take() == [("paced", "t")]
        await b.engine.delete_topic("t")
        await calm(clock)
        assert reader.take() == [("deleted", "t", 1)]


# --- time


async def test_a_reader_blocked_for_too_long_is_told_once() -> None:
    """SS26"""
    clock = ManualClock()
    async with bench(clock=clock) as b:
        await b.engine.append("t", data(1))
        reader = b.follow("t")
        reader.takes = 0
        await turns()
        seen = []
        for _ in range(130):
            clock.advance(250)
            await turns(5)
            seen.append(reader.is_stalled)
        assert reader.take() == ["too slow"]
        assert seen[18] is False and seen[20] is True
        assert [a for a, b_ in pairwise(seen) if a and not b_] == []
