"""Topics come, change and go; writes are admitted or refused; callers of the library are told what is wrong."""

import asyncio
from typing import Any

import pytest
from msgspec import Raw

from tests.engine.running import begun, data, open_engine, running, seqs, texts, tick, turns
from topics.core.topic.config import ConfigIn
from topics.core.topic.records import RecordIn
from topics.engine import Engine
from topics.errors import (
    BatchTooLarge,
    InvalidRequest,
    RecordTooLarge,
    Refusal,
    Throttled,
    TopicFull,
    TopicIncompatible,
    TopicNotEmpty,
    TopicNotFound,
)
from topics.model import Durability, TagMatch, TopicConfig
from topics.settings import Settings
from topics.testing.clock import ManualClock
from topics.testing.disk import MemoryDisk


async def test_a_fresh_topic_is_empty() -> None:
    """TP5, TP8"""
    async with running() as engine:
        created, config = await engine.put_topic("t", {"cap_records": 5})
        state = await engine.topic_state("t", touch=False)
        assert created and config == state.config
        assert (state.head_seq, state.earliest_seq, state.count, state.bytes) == (0, 1, 0, 0)
        assert (state.last_write_ts, state.last_read_ts) == (None, None)


async def test_putting_the_same_config_again_writes_nothing() -> None:
    """TP5"""
    disk = MemoryDisk()
    async with running(disk) as engine:
        await engine.put_topic("t", {"ttl_ms": 5})
        before = len(disk.operations)
        assert (await engine.put_topic("t", {"ttl_ms": 5}))[0] is False
        assert len(disk.operations) == before


async def test_a_put_may_build_on_the_config_that_it_replaces() -> None:
    """AU16: also if that was still on its way to the disk when the PUT came."""
    disk = MemoryDisk()
    seen: list[TopicConfig | None] = []

    def amend(given: ConfigIn, present: TopicConfig | None) -> ConfigIn:
        seen.append(present)
        return ConfigIn(ttl_ms=9)

    async with running(disk) as engine:
        assert (await engine.changes.put_topic("t", ConfigIn(ttl_ms=5), amend)).config.ttl_ms == 9
        disk.hold_syncs()
        changing = await begun(engine.put_topic("t", {"ttl_ms": 7, "cap_records": 3}))
        amending = await begun(engine.changes.put_topic("t", ConfigIn(), amend))
        disk.release_syncs()
        await asyncio.gather(*changing, *amending)
        assert [None if config is None else config.ttl_ms for config in seen] == [None, 7]


async def test_a_put_replaces_the_whole_config_but_keeps_the_type() -> None:
    """TP5"""
    async with running() as engine:
        await engine.put_topic("t", {"type": "queue", "ttl_ms": 5, "durability": "fsync"})
        _, config = await engine.put_topic("t", {"cap_records": 3})
        assert (config.type, config.ttl_ms, config.durability, config.cap_records) == ("queue", 0, "disk", 3)
        with pytest.raises(TopicIncompatible) as refusal:
            await engine.put_topic("t", {"type": "log"})
        assert refusal.value.detail == {"topic": "t", "existing_type": "queue", "requested_type": "log"}
        assert (await engine.topic_state("t")).config == config


async def test_one_of_many_concurrent_creators_sees_created() -> None:
    """TP14"""
    disk = MemoryDisk()
    async with running(disk) as engine:
        disk.hold_syncs()
        puts = await begun(*[engine.put_topic("p") for _ in range(5)])
        writes = await begun(*[engine.append("w", data(number)) for number in range(5)])
        disk.release_syncs()
        assert sorted([(await put)[0] for put in puts]) == [False] * 4 + [True]
        answers = [await write for write in writes]
        assert sorted(answer.created for answer in answers) == [False] * 4 + [True]
        assert sorted(answer.first_seq for answer in answers) == [1, 2, 3, 4, 5]
        assert await engine.topic_names() == ["p", "w"]


async def test_a_topic_is_deleted_with_all_it_owns() -> None:
    """TP11, TP12, TP16, ID1: its records, its tags, its keys; the next instance starts anew."""
    async with running() as engine:
        await engine.append("t", data(1, 2, tag="x"), key="k")
        epoch = (await engine.topic_state("t")).epoch
        assert await engine.delete_topic("t") is True
        assert await engine.delete_topic("t") is False
        assert (await engine.append("t", data(3), key="k")).first_seq == 1
        assert (await engine.delete("t", match=TagMatch("Eq", "x"))).deleted == 0
        state = await engine.topic_state("t")
        assert (state.count, state.bytes) == (1, 1)
        assert state.epoch > epoch
        assert (engine.state.records, engine.state.bytes) == (1, 1)


async def test_a_topic_with_live_records_is_not_deleted_if_empty_is_asked() -> None:
    """TP11"""
    clock = ManualClock()
    async with running(clock=clock) as engine:
        await engine.append("t", data(1, 2), config={"ttl_ms": 10})
        with pytest.raises(TopicNotEmpty) as refusal:
            await engine.delete_topic("t", if_empty=True)
        assert refusal.value.detail == {"topic": "t", "count": 2}
        clock.advance(11)
        assert await engine.delete_topic("t", if_empty=True) is True


async def test_expired_records_do_not_fill_a_cap() -> None:
    """WR13"""
    clock = ManualClock()
    async with running(clock=clock) as engine:
        await engine.put_topic("t", {"ttl_ms": 10, "cap_records": 2, "discard": "reject"})
        await engine.append("t", data(1, 2))
        with pytest.raises(TopicFull) as refusal:
            await engine.append("t", data(3))
        expected = {"topic": "t", "cap_records": 2, "cap_bytes": 0, "head_seq": 2, "earliest_seq": 1}
        assert refusal.value.detail == expected
        clock.advance(11)
        assert (await engine.append("t", data(3, 4))).first_seq == 3


async def test_a_batch_is_committed_as_a_whole_with_one_ts() -> None:
    """WR4, WR5, WR6, WR8"""
    clock = ManualClock()
    async with running(clock=clock) as engine:
        first = await engine.append("t", data(1, 2))
        assert (first.first_seq, first.last_seq, first.head_seq, first.count) == (1, 2, 2, 2)
        assert (first.created, first.deduped) == (True, False)
        earlier = clock.now_ms()
        clock.set(earlier - 500)
        assert (await engine.append("t", data(3))).created is False
        clock.set(earlier + 5)
        await engine.append("t", data(4))
        records = (await engine.read("t")).records
        assert [(record.seq, record.ts - earlier) for record in records] == [(1, 0), (2, 0), (3, 0), (4, 5)]
        assert (await engine.topic_state("t")).last_write_ts == earlier + 5


async def test_racing_writes_under_one_key_append_once() -> None:
    """ID3, ID7: the rest waits for the first and answers with its seqs."""
    disk = MemoryDisk()
    async with running(disk) as engine:
        await engine.put_topic("t", {"durability": "fsync"})
        await engine.append("t", data(0))
        disk.hold_syncs()
        racing = await begun(*[engine.append("t", data(number, 9), key="k") for number in range(4)])
        assert not any(task.done() for task in racing)
        disk.release_syncs()
        answers = [await task for task in racing]
        assert sorted(answer.deduped for answer in answers) == [False, True, True, True]
        assert {(a.first_seq, a.last_seq, a.head_seq, a.count) for a in answers} == {(2, 3, 3, 2)}
        assert len(await seqs(engine, "t")) == 3


async def test_keys_survive_a_restart_and_a_checkpoint_as_their_batch_does() -> None:
    """ID8, DU2, DU3, DU4: not those of an ephemeral topic."""
    disk, clock = MemoryDisk(), ManualClock()
    classes = ["ephemeral", "memory", "disk", "fsync"]
    async with running(disk, clock) as engine:
        for name in classes:
            await engine.append(name, data(1), key="sealed", config={"durability": name})
        await engine.checkpoint()
        for name in classes:
            await engine.append(name, data(2), key="logged")
    async with running(disk.kill(), clock) as engine:
        for name in classes:
            repeats = [await engine.append(name, data(0), key=key) for key in ("sealed", "logged")]
            deduped = name != "ephemeral"
            assert [repeat.deduped for repeat in repeats] == [deduped] * 2
            assert [repeat.first_seq for repeat in repeats] == ([1, 2] if deduped else [3, 4])


async def test_a_topic_that_became_ephemeral_forgets_its_keys_with_its_records() -> None:
    """ID8, G12, DU5, DU9"""
    disk, clock = MemoryDisk(), ManualClock()
    async with running(disk, clock) as engine:
        await engine.append("t", data(1), key="k")
        await engine.checkpoint()
        await engine.put_topic("t", {"durability": "ephemeral"})
        assert (await engine.append("t", data(1), key="k")).deduped
    disk = disk.kill()
    async with running(disk, clock) as engine:
        assert (await engine.append("t", data(1), key="k")).first_seq == 2
        await engine.put_topic("t", {"durability": "disk"})
    async with running(disk.kill(), clock) as engine:
        assert (await engine.append("t", data(1), key="k")).first_seq == 2


async def test_keys_of_an_ephemeral_topic_are_kept_once_it_is_logged() -> None:
    """ID8, DU5: its records are sealed with the next checkpoint, and so are they."""
    disk, clock = MemoryDisk(), ManualClock()
    async with running(disk, clock) as engine:
        await engine.append("t", data(1), key="k", config={"durability": "ephemeral"})
        await engine.checkpoint()
        await engine.put_topic("t", {"durability": "disk"})
    async with running(disk.kill(), clock) as engine:
        assert await seqs(engine, "t") == [1]
        assert (await engine.append("t", data(1), key="k")).deduped


@pytest.mark.parametrize("has_checkpoint", [False, True])
async def test_a_delete_is_a_moment_across_a_kill(has_checkpoint: bool) -> None:
    """S6, DL4, DL9, G9, ST9"""
    disk, clock = MemoryDisk(), ManualClock()
    engine = open_engine(disk, clock)
    await engine.start()
    await engine.append("t", data(*range(10), tag="a:x"))
    if has_checkpoint:
        await engine.checkpoint()
    assert (await engine.delete("t", match=TagMatch("Glob", "a:"))).deleted == 10
    if has_checkpoint:
        await engine.checkpoint()
    await engine.append("t", data(11, tag="a:x"))
    async with running(disk.kill(), clock) as again:
        assert await seqs(again, "t") == [11]
    await engine.close()


@pytest.mark.parametrize("durability", ["memory", "disk", "fsync"])
async def test_a_kill_takes_nothing_acked_and_pads_nothing(durability: Durability) -> None:
    """S17, S26, DU3, DU10, G1, G3, G12"""
    disk, clock = MemoryDisk(), ManualClock()
    engine = open_engine(disk, clock)
    await engine.start()
    await engine.put_topic("t", {"durability": durability})
    for number in range(100):
        await engine.append("t", data(number), key=f"k{number}")
    async with running(disk.kill(), clock) as again:
        state = await again.topic_state("t")
        assert (state.head_seq, state.count, state.evict_floor) == (100, 100, 1)
        assert again.state.topics["t"].log.gaps == []
        repeat = await again.append("t", data(0), key="k41")
        assert (repeat.first_seq, repeat.deduped) == (42, True)
        assert (await again.append("t", data(0))).first_seq == 101
    await engine.close()


async def test_payloads_come_back_byte_for_byte_from_memory_from_segments_and_after_a_restart() -> None:
    """CV6, CV26"""
    disk, clock = MemoryDisk(), ManualClock()
    payloads = [b'{"b":1.0,"a":12345678901234567890,"b":1e400}', b'[ 1 ,\t"x\\n" ]', b'{"a":\n[1, 2]}', b"null"]
    stored = [*payloads[:2], b'{"a":[1,2]}', b"null"]
    async with running(disk, clock) as engine:
        await engine.append("t", [RecordIn(Raw(text)) for text in payloads])
        assert await texts(engine, "t") == stored
        await engine.checkpoint()
        assert await texts(engine, "t") == stored
    async with running(disk.kill(), clock) as engine:
        assert await texts(engine, "t") == stored
        assert (await engine.topic_state("t")).bytes == sum(map(len, stored))


async def test_a_delete_answers_with_the_state_after_it() -> None:
    """DL6, DL1"""
    async with running() as engine:
        await engine.append("t", data(1, 22, 333, tag="x"))
        answer = await engine.delete("t", before_seq=3, match=TagMatch("Eq", "x"))
        assert (answer.deleted, answer.earliest_seq, answer.head_seq, answer.count, answer.bytes) == (2, 3, 3, 1, 3)
        with pytest.raises(InvalidRequest):
            await engine.delete("t")
        with pytest.raises(TopicNotFound):
            await engine.delete("other", before_seq=1)


async def test_a_glob_takes_a_prefix_and_no_more() -> None:
    """DL7, DL2"""
    async with running() as engine:
        for tag in ("chat-42:a", "chat-420:x", "chat-42:", "chat-42", "chat-42:é"):
            await engine.append("t", data(tag, tag=tag))
        for _ in range(2):
            assert (await engine.delete("t", match=TagMatch.parse(["tag", "Glob", "chat-42:*"]))).deleted in (3, 0)
        assert await texts(engine, "t") == [b'"chat-420:x"', b'"chat-42"']


async def test_limits_of_a_read_are_clamped() -> None:
    """DF1, LM6"""
    async with running(settings=Settings(max_limit=300)) as engine:
        await engine.append("t", data(*range(400)))
        assert (await engine.read("t", limit=0)).count == 256
        assert (await engine.read("t", limit=10**9)).count == 300
        small = await engine.read("t", bytes_max=15)
        assert (small.count, small.next_from_seq, small.lag) == (12, 12, 388)


async def test_the_default_limit_is_held_to_the_maximum_too() -> None:
    """DF1"""
    async with running(settings=Settings(max_limit=3)) as engine:
        await engine.append("t", data(*range(9)))
        assert (await engine.read("t")).count == 3


async def test_a_read_shows_the_fields_it_is_asked_for() -> None:
    """CV9, WR2"""
    async with running() as engine:
        await engine.append("t", [{"data": 1, "tag": "x", "meta": {"m": 1}}, {"data": None, "node": "own"}], node="n")
        ts = (await engine.topic_state("t")).last_write_ts

        async def text(**fields: bool) -> bytes:
            return b",".join((await engine.read("t", **fields)).texts)  # type: ignore[arg-type]

        own = b'{"$seq":2,"$ts":%d,"$node":"own","data":null}' % ts
        first = b'{"$seq":1,"$ts":%d,"$node":"n"' % ts
        assert await text() == first + b',"data":1,"meta":{"m":1}},' + own
        assert await text(include_tags=True) == first + b',"$tag":"x","data":1,"meta":{"m":1}},' + own
        assert await text(include_meta=False) == first + b',"data":1},' + own
        assert await text(include_data=False) == first + b"}," + own.replace(b',"data":null', b"")


async def test_the_number_of_topics_is_bounded() -> None:
    """WR14, LM1, LM3"""
    async with running(settings=Settings(max_topics=1)) as engine:
        await engine.put_topic("a")
        for attempt in (engine.put_topic("b"), engine.append("b", data(1))):
            with pytest.raises(Throttled) as refusal:
                await attempt  # type: ignore[misc]
            assert refusal.value.detail == {"limit": "max_topics", "max": 1}
        await engine.append("a", data(1))
        await engine.delete_topic("a")
        assert (await engine.append("b", data(1))).created


async def test_what_expired_unseen_does_not_count_against_the_total_bytes() -> None:
    """LM4"""
    clock = ManualClock()
    async with running(clock=clock, settings=Settings(max_total_bytes=10)) as engine:
        await engine.append("old", data("12345678"), config={"ttl_ms": 5})
        with pytest.raises(Throttled) as refusal:
            await engine.append("new", data(1))
        assert refusal.value.detail == {"limit": "max_total_bytes", "max": 10}
        assert await engine.topic_names() == ["old"]
        clock.advance(6)
        assert (await engine.append("new", data("12345678"))).created


REFUSED: list[tuple[str, type[Refusal], dict[str, Any]]] = [
    ("no records", InvalidRequest, {"records": []}),
    ("a record without data", InvalidRequest, {"records": [{"tag": "x"}]}),
    ("a tag that is no text", InvalidRequest, {"records": [{"data": 1, "tag": 5}]}),
    ("a node that is no text", InvalidRequest, {"records": [{"data": 1}], "node": 5}),
    ("a meta that is no object", InvalidRequest, {"records": [{"data": 1, "meta": [1]}]}),
    ("a long tag", InvalidRequest, {"records": [{"data": 1, "tag": "x" * 257}]}),
    ("a long node", InvalidRequest, {"records": [{"data": 1}], "node": "é" * 65}),
    ("a long key", InvalidRequest, {"records": [{"data": 1}], "key": "k" * 257}),
    ("a large record", RecordTooLarge, {"records": [{"data": "x" * 1024 * 1024}]}),
    ("many records", BatchTooLarge, {"records": [{"data": 1}] * 10_001}),
    ("an unknown class", InvalidRequest, {"records": [{"data": 1}], "config": {"durability": "tape"}}),
    ("a negative cap", InvalidRequest, {"records": [{"data": 1}], "config": {"cap_records": -1}}),
    ("data that is no JSON", InvalidRequest, {"records": [{"data": object()}]}),
]


@pytest.mark.parametrize(("error", "call"), [row[1:] for row in REFUSED], ids=[row[0] for row in REFUSED])
async def test_a_refused_append_creates_nothing(error: type[Refusal], call: dict[str, Any]) -> None:
    """WR3, WR14"""
    async with running() as engine:
        with pytest.raises(error) as refusal:
            await engine.append("t", **call)
        assert refusal.type is error
        assert await engine.topic_names() == []


@pytest.mark.parametrize("name", ["", "-a", "a b", "a/b", "a\n", "é", "x" * 256])
async def test_an_invalid_name_is_refused_where_it_would_create_and_not_found_elsewhere(name: str) -> None:
    """CV12"""
    async with running() as engine:
        for attempt in (engine.put_topic(name), engine.append(name, data(1))):
            with pytest.raises(InvalidRequest):
                await attempt  # type: ignore[misc]
        for lookup in (engine.read(name), engine.topic_state(name), engine.delete(name, before_seq=1)):
            with pytest.raises(TopicNotFound):
                await lookup  # type: ignore[misc]


@pytest.mark.parametrize("query", [{"after": -1}, {"limit": -1}, {"bytes_max": -1}, {"wait_ms": -1}])
async def test_a_negative_number_in_a_read_is_refused(query: dict[str, int]) -> None:
    """CV18"""
    async with running() as engine:
        await engine.append("t", data(1))
        with pytest.raises(InvalidRequest):
            await engine.read("t", **query)  # type: ignore[arg-type]


async def test_a_closed_engine_takes_nothing_more() -> None:
    """G15"""
    async with running() as engine:
        await engine.append("t", data(1))
    with pytest.raises(Exception, match="closed"):
        await engine.append("t", data(2))


async def test_an_engine_closes_twice() -> None:
    engine = Engine.open("memory", disk=MemoryDisk(), clock=ManualClock(), background=False)
    await engine.start()
    await engine.close()
    await engine.close()


async def test_reads_move_the_time_of_the_last_read() -> None:
    """TP9, DF7"""
    clock = ManualClock()
    async with running(clock=clock) as engine:
        await engine.put_topic("t")
        clock.advance(5)
        await engine.topic_state("t", touch=False)
        assert (await engine.topic_state("t", touch=False)).last_read_ts is None
        await engine.read("t")
        assert (await engine.topic_state("t", touch=False)).last_read_ts == clock.now_ms()
        clock.advance(5)
        assert (await engine.topic_state("t")).last_read_ts == clock.now_ms()


async def test_the_background_expires_what_nobody_looks_at() -> None:
    """TM7, DL10"""
    clock = ManualClock()
    async with running(clock=clock) as engine:
        await engine.append("t", data(*range(50)), config={"ttl_ms": 10})
        clock.advance(11)
        await tick(engine)
        assert (engine.state.records, engine.state.bytes) == (0, 0)


@pytest.mark.parametrize("delay", range(12))
@pytest.mark.parametrize("change", ["deletion", "class"])
async def test_a_change_of_an_ephemeral_topic_that_meets_a_checkpoint_survives_a_kill(change: str, delay: int) -> None:
    """TP13, DU5, ST9, G1"""
    disk = MemoryDisk()
    engine = open_engine(disk)
    await engine.start()
    await engine.append("t", data(1), config={"durability": "ephemeral"})
    checkpoint = asyncio.create_task(engine.checkpoint())
    await turns(delay)
    if change == "deletion":
        await engine.delete_topic("t")
    else:
        await engine.put_topic("t", {"durability": "fsync"})
        await engine.append("t", data(2))
    await checkpoint
    async with running(disk.kill()) as after:
        if change == "deletion":
            assert await after.topic_names() == []
        else:
            assert (await after.topic_state("t")).config.durability == "fsync"
            assert (await texts(after, "t"))[-1:] == [b"2"]
