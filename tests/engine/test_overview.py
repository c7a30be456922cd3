"""Topics at a glance: no turn of the loop looks at all of them, and the order of names follows what comes and goes."""

import asyncio
from collections.abc import Awaitable
from itertools import pairwise

import pytest

from tests.effort import is_quick, turns_measured
from topics.engine.engine import Engine
from topics.engine.instance import TopicFilter
from topics.settings import Settings
from topics.testing.clock import ManualClock
from topics.testing.disk import MemoryDisk

MANY = 20_000
TURN_S = 0.05  # the bound of LM10, for ten times as many on a machine of this kind
EPHEMERAL = {"durability": "ephemeral"}


def opened() -> Engine:
    settings = Settings(max_topics=0)
    return Engine.open("memory", settings, clock=ManualClock(), disk=MemoryDisk(), background=False)


async def names(engine: Engine, count: int = 1000) -> list[str]:
    found, has_more, after = list[str](), True, ""
    while has_more:
        states, has_more = await engine.overview.states_after(after, count)
        found += [state.topic for state in states]
        after = found[-1] if found else ""
    return found


async def test_the_list_follows_what_comes_and_goes() -> None:
    """TP10, CV15: one, many, deleted ones, one that is deleted and comes again."""
    async with opened() as engine:
        assert await names(engine) == []
        made: set[str] = set()
        for step in ("a", "c", "b"):
            await engine.put_topic(step, EPHEMERAL)
            made.add(step)
            assert await names(engine) == sorted(made)
        for n in range(1500):
            await engine.put_topic(f"t{n * 7919 % 1500}", EPHEMERAL)
            made.add(f"t{n}")
        assert await names(engine, 100) == sorted(made)
        await engine.delete_topic("b")
        assert await names(engine) == sorted(made - {"b"})
        await engine.delete_topic("a")
        await engine.put_topic("a", EPHEMERAL)
        await engine.put_topic("z", EPHEMERAL)
        assert await names(engine) == sorted(made - {"b"} | {"z"})
        for name in made - {"a", "b"}:
            await engine.delete_topic(name)
        assert await names(engine) == ["a", "z"]


@pytest.mark.slow
async def test_topics_that_come_and_go_during_a_walk_of_many_turns() -> None:
    """OB1: what was there all the time comes exactly once, whatever else happens."""
    async with opened() as engine:
        steady = {f"s{n:05}" for n in range(3000 if is_quick() else 9000)}
        for name in steady:
            await engine.put_topic(name, EPHEMERAL)
        is_over = False

        async def meddle() -> None:
            number = 0
            while not is_over:
                number += 1
                await engine.put_topic(f"m{number}", EPHEMERAL)
                if number % 2:
                    await engine.delete_topic(f"m{number // 2}")
                await asyncio.sleep(0)

        meddling = asyncio.create_task(meddle())
        for order in ("-bytes", "-written_rate"):
            walk = await engine.overview.begin(order, TopicFilter())  # type: ignore[arg-type]
            found, place = list[str](), 0
            while place is not None:
                details, place = await engine.overview.go_on(walk, place, 1000, TopicFilter())  # type: ignore[assignment]
                found += [detail.state.topic for detail in details]
            assert len(found) == len(set(found)) and steady <= set(found)
        by_name = await names(engine)
        assert all(low < high for low, high in pairwise(by_name)) and steady <= set(by_name)
        is_over = True
        await meddling


async def calls(engine: Engine) -> list[tuple[str, Awaitable[object]]]:
    overview = engine.overview
    walk = await overview.begin("-count", TopicFilter(type="log"))
    return [
        ("first", overview.details_after("", 100)),
        ("thousand", overview.details_after("", 1000)),
        ("nothing", overview.details_after("", 100, TopicFilter(contains="nothing"))),
        ("class", overview.details_after("", 100, TopicFilter(durability="fsync"))),
        ("order", overview.begin("-bytes", TopicFilter())),
        ("page", overview.go_on(walk, MANY // 2, 1000, TopicFilter())),
        ("active", overview.most_active(1000)),
        ("lags", engine.survey.cursor_lags(1000)),
    ]


@pytest.mark.full
async def test_no_turn_looks_at_all_topics() -> None:
    """OB1, HM6, LM10"""
    async with opened() as engine:
        for n in range(MANY):
            await engine.put_topic(f"t{n * 7919 % MANY:06}", EPHEMERAL)
        for what, call in await calls(engine):
            with turns_measured() as turns:
                await asyncio.sleep(0)
                await call
            assert turns.worst_s < TURN_S, what
