"""Callers that go on within the ack of what they asked before: no change is met in the middle of another one (ST17)."""

import asyncio
from collections import Counter
from collections.abc import Callable
from itertools import count
from typing import Any

import msgspec
import pytest

from tests.effort import stride, tries
from tests.engine.running import begun, data, open_engine, running, texts, turns
from topics.core import entries
from topics.core.decide import Append
from topics.core.topic.records import RecordIn, batch_of
from topics.engine import Engine
from topics.errors import CommitFailed
from topics.model import Durability
from topics.settings import Settings
from topics.storage import frames
from topics.storage.log_files import Replay
from topics.testing.clock import ManualClock
from topics.testing.disk import Faulty, MemoryDisk

ROUNDS = tries(10)  # checkpoints taken beside the writers


def submit(engine: Engine, name: str, value: Any, told: Callable[[int, CommitFailed | None], None]) -> None:
    """Write one record; `told` hears its seq within the log's callback, as a transport does."""
    batch = batch_of([RecordIn(msgspec.Raw(msgspec.json.encode(value)))], None, engine.settings)
    result, gate = engine.append_now(Append(name, batch))
    engine.when_open(gate, lambda failure: told(result.first_seq, failure))


class Pipelining:
    """Writes the next record of a topic within the ack, or the refusal, of the one before; several at a time."""

    def __init__(self, engine: Engine, name: str, in_flight: int) -> None:
        self._engine, self.name, self._in_flight = engine, name, in_flight
        self.acked: dict[int, int] = {}  # seq → value
        self.refused: list[int] = []
        self.is_over = False
        self._values = count()
        self.go_on()

    def go_on(self) -> None:
        self.is_over = False
        for _ in range(self._in_flight):
            self._write()

    def _write(self) -> None:
        value = next(self._values)

        def told(seq: int, failure: CommitFailed | None) -> None:
            if failure is not None:
                self.refused.append(value)
            else:
                assert seq not in self.acked, f"{self.name}: seq {seq} was handed out twice"
                self.acked[seq] = value
            if not self.is_over:
                self._write()

        try:
            submit(self._engine, self.name, value, told)
        except CommitFailed:
            self.refused.append(value)
            asyncio.get_running_loop().call_soon(self._write)


async def check(engine: Engine, clients: list[Pipelining]) -> None:
    """What was acked is there under its seq, what was refused is not, and nothing is there twice."""
    for client in clients:
        state = await engine.topic_state(client.name)
        found: list[int] = []
        while len(found) < state.head_seq:
            found += [int(text) for text in await texts(engine, client.name, len(found), limit=1000)]
        assert len(set(found)) == len(found), f"{client.name}: a record is there twice"
        there = {seq: found[seq - 1] for seq in client.acked if seq <= len(found)}
        assert there == client.acked, f"{client.name}: what was acked is gone, or another record has its seq"
        assert not set(client.refused) & set(found), f"{client.name}: what was refused is there"


def check_order(disk: MemoryDisk) -> None:
    """ST2: whatever the log says of a topic's new seqs, they begin behind all that it said before."""
    heads: Counter[int] = Counter()
    for frame in Replay(disk.kill(), frames.position_of(1, 0)).read():
        for entry in entries.decode(frame.payload):
            if isinstance(entry, entries.Appended | entries.Forwarded):
                topic = entry.topic if isinstance(entry, entries.Appended) else entry.dest
                assert entry.first == heads[topic] + 1, entry
                heads[topic] = entry.last


async def settled(clients: list[Pipelining]) -> None:
    for client in clients:
        client.is_over = True
    await turns()


@pytest.mark.parametrize("in_flight", [1, 4])
async def test_records_written_within_an_ack_survive_checkpoints_and_a_kill(in_flight: int) -> None:
    """ST17, G1, G2, G3, S5, DU3, DU4"""
    disk, clock = MemoryDisk(), ManualClock()
    async with running(disk, clock, Settings(segment_max_events=50)) as engine:
        classes: list[Durability] = ["fsync", "disk", "memory"]
        for durability in classes:
            await engine.put_topic(durability, {"durability": durability})
        clients = [Pipelining(engine, durability, in_flight) for durability in classes]
        for _ in range(ROUNDS):
            await engine.checkpoint()
            await settled(clients)
            await check(engine, clients)
            async with running(disk.kill(), clock) as after:
                await check(after, clients)
            for client in clients:
                client.go_on()
        await settled(clients)
        assert all(len(client.acked) > ROUNDS for client in clients)


@pytest.mark.parametrize("kind", ["write", "sync"])
async def test_records_written_within_a_refusal_build_on_the_state_that_holds(kind: str) -> None:
    """ST17, ST4, ER7, G1, G2: the log fails at one operation after the other, checkpoints included."""
    for at in range(0, 15, stride()):
        disk, clock = MemoryDisk(), ManualClock()
        async with running(disk, clock) as engine:
            for durability in ("fsync", "disk"):
                await engine.put_topic(durability, {"durability": durability})
            clients = [Pipelining(engine, durability, 3) for durability in ("fsync", "disk")]
            fault = Faulty(kind, at, name="log-*")  # type: ignore[arg-type]
            disk.hooks.append(fault)
            for _ in range(4):
                with_failure = (await begun(engine.checkpoint()))[0]
                await asyncio.wait([with_failure])
                with_failure.exception()
            await settled(clients)
            await check(engine, clients)
            async with running(disk.kill(), clock) as after:
                await check(after, clients)
            assert fault.failed == 1


@pytest.mark.parametrize("routers", [["ab", "cd"], ["cd", "ab"]])
async def test_a_write_within_an_ack_cannot_come_between_a_router_s_decision_and_its_commit(routers: list[str]) -> None:
    """ST17, RT9, G2: a dest in memory makes the forwarder flush while it decides for others."""
    disk, clock = MemoryDisk(), ManualClock()
    async with running(disk, clock) as engine:
        for name in "abcd":
            await engine.put_topic(name, {"durability": "ephemeral" if name == "d" else "disk"})
        for pair in routers:
            await engine.put_router(pair, pair[0], pair[1])
        heard: list[int] = []

        def write_own(seq: int, failure: CommitFailed | None) -> None:
            submit(engine, "b", "own", lambda seq, failure: heard.append(seq))

        for number in range(60):
            submit(engine, "a", "copied", lambda seq, failure: None)
            submit(engine, "c", "copied", write_own if number % 3 == 1 else lambda seq, failure: None)
            await asyncio.sleep(0)
        await turns()
        found = await texts(engine, "b")
        assert len(heard) == len(set(heard)) == 20
        assert [found[seq - 1] for seq in heard] == [b'"own"'] * 20
        assert (found.count(b'"copied"'), len(found)) == (60, 80)
        check_order(disk)
        async with running(disk.kill(), clock) as after:
            assert await texts(after, "b") == found


async def test_a_dead_letter_that_moves_while_the_log_rolls_is_in_one_place() -> None:
    """ST17, QU14, QU15, G11: the queue is in memory only, so its job leaves it within the ack of the letter."""
    disk, clock = MemoryDisk(), ManualClock()
    engine = open_engine(disk, clock)
    await engine.start()
    config = {"type": "queue", "durability": "ephemeral", "max_deliveries": 1, "dead_letter": "dead", "lease_ms": 100}
    await engine.put_topic("dead", {"durability": "disk"})
    await engine.put_topic("q", config)
    await engine.put_topic("log", {"durability": "disk"})
    writer = Pipelining(engine, "log", 2)
    for number in range(20):
        await engine.append("q", data(number))
        assert len((await engine.claim("q", "w", 1)).texts) == 1
        clock.advance(200)
        checkpoint = asyncio.ensure_future(engine.checkpoint())
        for _ in range(number % 7):
            await asyncio.sleep(0)
        assert (await engine.claim("q", "w", 1)).texts == []
        await checkpoint
        await turns()
    await settled([writer])
    expected = [b"%d" % number for number in range(20)]
    assert (await texts(engine, "dead"), await texts(engine, "q")) == (expected, [])
    async with running(disk.kill(), clock) as after:
        assert await texts(after, "dead") == expected
        await check(after, [writer])
    await engine.close()


async def test_a_change_of_an_ephemeral_topic_is_carried_out_in_the_turn_in_which_it_is_synced() -> None:
    """ST17, ST4, TP13: the log may fail in the next one, and the state is then read back with the change in it."""
    for at in range(0, 25, stride()):
        disk, clock = MemoryDisk(), ManualClock()
        async with running(disk, clock) as engine:
            await engine.put_topic("disk", {"durability": "disk"})
            writer = Pipelining(engine, "disk", 1)
            fault = Faulty("write", at, name="log-*")
            disk.hooks.append(fault)
            caps: list[int | None] = [None]  # as acked; None = there is no topic
            for number in range(6):
                cap = None if number % 3 == 2 else number + 1
                try:
                    if cap is None:
                        await engine.delete_topic("e")
                    else:
                        await engine.put_topic("e", {"durability": "ephemeral", "cap_records": cap})
                except CommitFailed:
                    continue
                caps.append(cap)
            await settled([writer])
            assert await cap_of(engine) == caps[-1], f"the write {at} fails"
            async with running(disk.kill(), clock) as after:
                assert await cap_of(after) == caps[-1], f"the write {at} fails"
            assert fault.failed == 1


async def cap_of(engine: Engine) -> int | None:
    return (await engine.topic_state("e")).config.cap_records if "e" in await engine.topic_names() else None


@pytest.mark.parametrize("between", range(5))
async def test_the_deletion_of_an_ephemeral_topic_whose_creation_fails_meanwhile_ends(between: int) -> None:
    """ST17, G15, TP13: it is logged in the turn in which it was decided, so never for a topic that is gone."""
    disk, clock = MemoryDisk(), ManualClock()
    async with running(disk, clock) as engine:
        disk.hold_syncs()
        (creating,) = await begun(engine.put_topic("e", {"durability": "ephemeral"}))
        disk.hooks.append(Faulty("sync", name="log-*"))
        disk.release_syncs()
        await turns(between)
        (deleting,) = await begun(engine.delete_topic("e"))
        assert isinstance(creating.exception(), CommitFailed)
        assert deleting.done()
        assert deleting.exception() is None or isinstance(deleting.exception(), CommitFailed)
        assert await engine.topic_names() == []
        await engine.put_topic("e", {"durability": "ephemeral"})
        async with running(disk.kill(), clock) as after:
            assert await after.topic_names() == ["e"]
