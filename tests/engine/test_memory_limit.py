"""The limit of what is kept in memory: the estimate follows the real thing, refuses growth, and lets go (LM14)."""

import gc
import os
import tracemalloc
from collections.abc import Awaitable, Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

import pytest

from tests.engine.running import data, running, seqs, tick
from topics.core.memory import used
from topics.core.topic.parts import Chunk
from topics.engine import Engine
from topics.engine.routers.blocked import RETRY_MS_MIN
from topics.errors import Throttled
from topics.model import TagMatch
from topics.settings import MIB, Settings
from topics.testing.clock import ManualClock
from topics.testing.disk import MemoryDisk
from topics.tuning import control_group_limits, memory_allowed

FACTOR: Final = 2.0  # that the estimate may be off by, either way
IN_MEMORY: Final = {"durability": "ephemeral", "cap_records": 0}
QUEUE: Final = {"type": "queue", "durability": "ephemeral"}

Flood = Callable[[Engine, int], Awaitable[object]]


async def tags(engine: Engine, n: int) -> None:
    records = [{"data": 1, "tag": f"tag-{n}-{m}" + "x" * 60} for m in range(20)]
    await engine.append("t", records)


async def tags_in_order(engine: Engine, n: int) -> None:
    """The same, with the order of tags that a delete by tag makes."""
    await tags(engine, n)
    await engine.delete("t", match=TagMatch("Eq", "none"))


async def nodes(engine: Engine, n: int) -> None:
    await engine.append("t", [{"data": 1, "node": f"node-{n}-{m}" + "x" * 60} for m in range(20)])


async def keys(engine: Engine, n: int) -> None:
    for m in range(20):
        await engine.append("logged", data(1), key=f"key-{n}-{m}" + "x" * 20)


async def tiny_records(engine: Engine, n: int) -> None:
    for _ in range(40):
        await engine.append("t", data(1))


async def large_records(engine: Engine, n: int) -> None:
    await engine.append("t", data("x" * 9_000, "y" * 9_000))


async def metas(engine: Engine, n: int) -> None:
    await engine.append("t", [{"data": 1, "meta": {f"m{m}": n}} for m in range(20)])


async def empty_topics(engine: Engine, n: int) -> None:
    for m in range(10):
        await engine.put_topic(f"empty-{n}-{m}")


async def named_cursors(engine: Engine, n: int) -> None:
    for m in range(20):
        await engine.cursors.put("logged", f"cursor-{n}-{m}", 1)


async def leases(engine: Engine, n: int) -> None:
    await engine.append("q", data(*range(50)))
    await engine.claim("q", "a worker", 50, 600_000)


async def delays(engine: Engine, n: int) -> None:
    await engine.append("q", [{"data": 1, "delay_ms": 600_000} for _ in range(50)])


async def sealed_topics(engine: Engine, n: int) -> None:
    for m in range(10):
        await engine.append(f"sealed-{n}-{m}", data(1))


FLOODS: Final[list[Flood]] = [
    tags,
    tags_in_order,
    nodes,
    keys,
    tiny_records,
    large_records,
    metas,
    empty_topics,
    named_cursors,
    leases,
    delays,
    sealed_topics,
]


async def settle(engine: Engine) -> None:
    """All is sealed that will be, and what nobody needs is given back."""
    await engine.checkpoint()
    await tick(engine)
    while engine._upkeep.freeing.parts or engine.state.shrunk:
        await tick(engine)
    gc.collect()


@pytest.mark.slow
@pytest.mark.parametrize("flood", FLOODS, ids=lambda flood: flood.__name__)
async def test_the_estimate_follows_real_memory(tmp_path: Path, flood: Flood) -> None:
    """LM14: whatever it is that there is much of."""
    engine = Engine.open(str(tmp_path), Settings(max_cursors=0, cache_bytes=MIB), background=False)
    await engine.start()
    try:
        await engine.put_topic("t", IN_MEMORY)
        await engine.put_topic("q", QUEUE)
        await engine.append("logged", data(1))
        await flood(engine, 0)
        await settle(engine)
        tracemalloc.start()
        try:
            real, estimated = -tracemalloc.get_traced_memory()[0], -used(engine.state)
            for n in range(1, 150):
                await flood(engine, n)
            await settle(engine)
            real, estimated = real + tracemalloc.get_traced_memory()[0], estimated + used(engine.state)
        finally:
            tracemalloc.stop()
        print(f"{flood.__name__}: {real} bytes, {estimated} by estimate, {estimated / real:.2f}")
        assert real / FACTOR < estimated < real * FACTOR
        for topic in engine.state.topics.values():
            topic.log.check_totals()
    finally:
        await engine.close()


# --- refusals, and what is never refused

LIMIT: Final = 3 * MIB  # a few chunks: the memory of one is given back when nothing in it is live


def limited(**more: Any) -> Settings:
    return Settings(max_memory_bytes=LIMIT, **more)


async def refused(work: Awaitable[object]) -> None:
    with pytest.raises(Throttled) as refusal:
        await work
    assert refusal.value.detail == {"limit": "max_memory_bytes", "max": LIMIT}
    assert "delete topics" in refusal.value.message


async def fill(engine: Engine, name: str = "t") -> None:
    """Write until no more is taken."""
    await engine.put_topic(name, IN_MEMORY)
    with suppress(Throttled):
        for _ in range(10_000):
            await engine.append(name, data("x" * 1000))
        pytest.fail("all of it is taken")


async def test_what_grows_is_refused_and_changes_nothing() -> None:
    """LM14, LM1, LM3"""
    async with running(settings=limited()) as engine:
        await engine.append("logged", data(1), key="known")
        await engine.cursors.put("logged", "here", 1)
        await engine.put_router("r", "logged", "copies")
        await fill(engine)
        assert LIMIT - 3000 < used(engine.state) <= LIMIT
        names = await engine.topic_names()
        large = data("x" * 3000)
        await refused(engine.append("t", large))
        await refused(engine.append("logged", large))
        await refused(engine.append("new", data(1)))
        await refused(engine.put_topic("new"))
        while used(engine.state) <= LIMIT:
            await engine.cursors.put("logged", f"c{used(engine.state)}", 1)
        await refused(engine.cursors.put("logged", "new", 1))
        await refused(engine.put_router("new", "logged", "copies"))
        assert await engine.topic_names() == names
        assert (await engine.append("logged", data(1), key="known")).deduped
        await engine.cursors.put("logged", "here", 0)
        await engine.put_topic("logged", {"cap_records": 10})
        await engine.put_router("r", "logged", "copies", preserve_tag=False)


async def test_what_frees_memory_is_never_refused() -> None:
    """LM14: jobs are claimed, acked and given back, records read and deleted; then there is room again."""
    async with running(settings=limited()) as engine:
        await engine.put_topic("q", QUEUE)
        await engine.append("q", data(*range(100)))
        await fill(engine)
        assert len((await engine.claim("q", "n", 100, 1000)).jobs) == 100
        assert used(engine.state) > LIMIT
        assert len((await engine.nack("q", "n", [1, 2])).done) == 2
        assert len((await engine.ack("q", "n", range(3, 101))).done) == 98
        assert await seqs(engine, "t", 0, limit=10) == list(range(1, 11))
        await refused(engine.append("t", data("x" * 10_000)))
        assert (await engine.delete("t", before_seq=1500)).deleted == 1499
        await engine.append("t", data("x" * 10_000))
        assert await engine.delete_topic("t")
        assert used(engine.state) < 30_000
        await fill(engine, "again")


async def test_a_topic_that_evicts_what_it_takes_goes_on() -> None:
    """LM14: unless a record is larger than those that leave."""
    async with running(settings=limited()) as engine:
        await engine.put_topic("ring", {"durability": "ephemeral", "cap_records": 2})
        await engine.append("ring", data("x" * 100, "x" * 100))
        await fill(engine)
        while used(engine.state) <= LIMIT:
            await engine.cursors.put("ring", f"c{used(engine.state)}", 1)
        assert (await engine.append("ring", data("y" * 90))).last_seq == 3
        await refused(engine.append("ring", data("y" * 1000)))


async def test_routers_wait_until_there_is_room() -> None:
    """LM14, LM4: nothing is lost, and nothing comes twice."""
    clock = ManualClock()
    async with running(clock=clock, settings=limited()) as engine:
        await engine.put_topic("copies", IN_MEMORY)
        await engine.put_router("r", "source", "copies")
        await engine.append("source", data(1))
        assert await seqs(engine, "copies") == [1]
        engine.footprint.hold(2 * LIMIT)  # as much as will ever be
        copies = engine.state.topics["copies"]
        engine.footprint.hold(-2 * LIMIT)
        await engine.append("source", data("x" * 500))
        engine.footprint.hold(2 * LIMIT)
        for _ in range(3):
            await tick(engine)
        assert copies.log.head <= 2
        engine.footprint.hold(-2 * LIMIT)
        clock.advance(RETRY_MS_MIN)
        await tick(engine)
        assert await seqs(engine, "copies") == [1, 2]


@pytest.mark.slow
async def test_keys_whose_window_is_over_are_forgotten_where_nobody_writes() -> None:
    """LM14, ID5: or a server that is full of them would stay so."""
    clock = ManualClock()
    async with running(clock=clock, settings=limited()) as engine:
        await engine.put_topic("keyed", {"idempotency_window_ms": 1000, "cap_records": 1})
        with suppress(Throttled):
            for number in range(20_000):
                await engine.append("keyed", data("x" * 10), key=f"key-{number}")
            pytest.fail("all of it is taken")
        await engine.put_topic("keyed", {"idempotency_window_ms": 1000, "cap_records": 2})
        clock.advance(1000)
        await tick(engine)
        assert len(engine.state.topics["keyed"].keys) > 2000, "a window is over only when it is"
        clock.advance(1)
        while engine.state.keyed:
            await tick(engine)
        assert len(engine.state.topics["keyed"].keys) == engine.state.topics["keyed"].keys.weight == 0
        await engine.append("keyed", data(1), key="key-1")


async def test_a_checkpoint_is_due_when_memory_is_tight() -> None:
    """LM14: what can be sealed is no reason to refuse."""
    async with running(settings=Settings(max_memory_bytes=4 * MIB)) as engine:
        for _ in range(40):
            await engine.append("logged", data("x" * 100_000, "y" * 100_000))
            await tick(engine)
        assert any(not isinstance(part, Chunk) for part in engine.state.topics["logged"].log.parts)


async def test_a_restart_weighs_what_it_finds() -> None:
    """LM14"""
    disk = MemoryDisk()
    async with running(disk) as engine:
        await engine.put_topic("q", {"type": "queue"})
        for number in range(50):
            await engine.append("q", data(1, 2), key=f"key-{number}")
            await engine.append("t", [{"data": 1, "tag": f"t{number}"}])
        before = used(engine.state)
        left = disk.kill()
    async with running(left) as engine:
        assert abs(used(engine.state) - before) < 5000
        await engine.checkpoint()
        sealed = used(engine.state)
        left = left.kill()
    async with running(left) as engine:
        assert abs(used(engine.state) - sealed) < 5000


async def test_followers_have_a_share_of_their_own() -> None:
    """LM14: writers cannot use it up, and it cannot grow beyond a quarter."""
    async with running(settings=limited()) as engine:
        await fill(engine)
        engine.footprint.check_held(LIMIT // 4)
        engine.footprint.hold(LIMIT // 4)
        with pytest.raises(Throttled):
            engine.footprint.check_held(1)
        engine.footprint.hold(-LIMIT // 4)
        engine.footprint.check_held(1)
        assert (engine.footprint.used, engine.footprint.limit) == (used(engine.state), LIMIT)


@pytest.mark.parametrize(
    ("groups", "files", "limits"),
    [
        ("0::/a/b\n", {"a/b/memory.max": "max\n", "a/memory.max": "500\n"}, [500]),
        ("0::/\n", {"memory.max": "700\n"}, [700]),
        ("9:cpu:/x\n4:memory:/x\n", {"memory/x/memory.limit_in_bytes": "900\n"}, [900]),
        ("4:memory:/docker/x\n", {"memory/memory.limit_in_bytes": "800\n"}, [800]),
        ("", {}, []),
    ],
    ids=["version 2, set above", "in a container", "version 1", "version 1 in a container", "none"],
)
def test_the_memory_of_the_control_group_counts(
    tmp_path: Path, groups: str, files: dict[str, str], limits: list[int]
) -> None:
    """LM14"""
    (tmp_path / "cgroup").write_text(groups)
    for name, text in files.items():
        (tmp_path / "fs" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "fs" / name).write_text(text)
    assert control_group_limits(str(tmp_path / "fs"), str(tmp_path / "cgroup")) == limits


def test_three_quarters_are_the_default() -> None:
    """LM14"""
    allowed = memory_allowed()
    assert 0 < allowed <= os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") * 3 // 4
    assert Engine.open("nowhere", disk=MemoryDisk()).footprint.limit == allowed


def test_a_machine_without_control_groups_allows_a_share_of_its_memory(tmp_path: Path) -> None:
    """LM14"""
    whole = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    assert memory_allowed(str(tmp_path)) == whole * 3 // 4
