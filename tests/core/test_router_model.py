"""Random histories with routers: the engine and the oracle forward alike, whatever is written, lost or restarted.

The machine of test_model.py with routers among three topics: chains, fan-outs, cycles, filters, dests with caps, with
an expiry, that refuse, that are written to directly. After every command the engine forwards all it can. Which router
goes on first, and how far in one step, is open, and decides what a full topic between two of them loses. So the oracle
takes the same steps, each of which must be right, and then finds nothing more to forward.
"""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import initialize, rule

from tests.core.engine_adapter import EngineAdapter
from tests.core.test_model import (
    MATCHES,
    Append,
    Command,
    Delete,
    Drop,
    Machine,
    Put,
    batches,
    profile,
)
from topics.core import decide
from topics.core.entries import Forwarding
from topics.core.routing import table
from topics.core.routing.steps import Step
from topics.core.topic import blocks, live, log, pages, parts
from topics.engine.routers.forwarder import Forwarder
from topics.model import RouterDefinition, TopicConfig
from topics.settings import Settings
from topics.testing.oracle import Oracle

NAMES = ["a", "b", "c"]
ROUTERS = ["r1", "r2", "r3"]
TOPOLOGIES = {
    "chain": ["ab", "bc"],
    "fan-out": ["ab", "ac"],
    "twice": ["ab", "ab"],
    "cycle": ["ab", "bc", "ca"],  # the last one is refused, unless it may close a cycle
    "join in a chain": ["ab", "ab", "bc"],
}
pytestmark = pytest.mark.slow

TURNS_MAX = 10_000  # of the loop; more than forwarding takes


@dataclass(frozen=True)
class PutRouter:
    name: str
    source: str
    dest: str
    definition: RouterDefinition
    create_dest: bool


@dataclass(frozen=True)
class DropRouter:
    name: str


topics = st.sampled_from(NAMES)
configs = st.builds(
    TopicConfig,
    ttl_ms=st.sampled_from([0, 0, 0, 50]),
    cap_records=st.sampled_from([0, 0, 3, 7]),
    cap_bytes=st.sampled_from([0, 0, 0, 60]),
    discard=st.sampled_from(["old", "reject"]),
    durability=st.sampled_from(["disk", "disk", "fsync", "memory", "ephemeral"]),
)
definitions = st.builds(
    RouterDefinition,
    preserve_node=st.booleans(),
    preserve_tag=st.booleans(),
    match=st.sampled_from([None, None, *MATCHES]),
    allow_cycle=st.booleans(),
)
routers = st.builds(PutRouter, st.sampled_from(ROUTERS), topics, topics, definitions, st.booleans())
appends = st.builds(
    Append, topics, batches, node=st.none(), key=st.none(), create=st.none(), config=st.none() | configs
)


class RouterMachine(Machine):
    """One instance of topics with routers, and its oracle."""

    def __init__(self) -> None:
        super().__init__()
        self.taken: list[tuple[str, int]] = []  # steps of the engine since the oracle last took them: router, cursor
        self.patch.setattr(Forwarder, "commit", noting(self.taken, Forwarder.commit))

    @initialize(
        events_max=st.sampled_from([3, 100]),
        bytes_max=st.sampled_from([100, 10_000]),
        topology=st.sampled_from(list(TOPOLOGIES)),
        kinds=st.lists(configs, min_size=3, max_size=3),
        define=definitions,
    )
    def start(  # type: ignore[override]
        self, events_max: int, bytes_max: int, topology: str, kinds: list[TopicConfig], define: RouterDefinition
    ) -> None:
        self.oracle = Oracle()
        self.adapter = EngineAdapter(Settings(segment_max_events=events_max, segment_max_bytes=bytes_max))
        for name, config in zip(NAMES, kinds, strict=True):
            self.adapter.do(self.play(Put(name, config)))
        for router, ends in zip(ROUTERS, TOPOLOGIES[topology], strict=False):
            self.adapter.do(self.play(PutRouter(router, *ends, define, True)))  # type: ignore[arg-type]

    @rule(command=routers)
    def put_router(self, command: PutRouter) -> None:
        self.adapter.do(self.play(command))  # type: ignore[arg-type]

    @rule(command=st.builds(DropRouter, st.sampled_from(ROUTERS)))
    def drop_router(self, command: DropRouter) -> None:
        self.adapter.do(self.play(command))  # type: ignore[arg-type]

    @rule(command=appends)
    def append_anywhere(self, command: Append) -> None:
        self.adapter.do(self.play(command))

    @rule(commands=st.lists(appends, min_size=2, max_size=5))
    def append_several(self, commands: list[Append]) -> None:
        for command in commands:
            self.adapter.do(self.play(command))

    @rule(commands=st.lists(st.builds(Append, st.just("a"), batches, *[st.none()] * 4), min_size=2, max_size=3))
    def fill_the_first(self, commands: list[Append]) -> None:
        for command in commands:
            self.adapter.do(self.play(command))

    @rule(command=st.builds(Put, topics, configs))
    def configure_anywhere(self, command: Put) -> None:
        self.adapter.do(self.play(command))

    @rule(command=st.builds(Delete, topics, st.integers(0, 30), st.none()))
    def delete_anywhere(self, command: Delete) -> None:
        self.adapter.do(self.play(command))

    @rule(command=st.builds(Drop, st.just("c"), st.booleans()))
    def drop_the_last(self, command: Drop) -> None:
        self.adapter.do(self.play(command))

    async def play(self, command: Command) -> None:
        await super().play(command)
        await self.forward(getattr(command, "topic", None))

    async def on_oracle(self, command: Any) -> Any:
        match command:
            case PutRouter(name, source, dest, definition, create_dest):
                return self.oracle.put_router(name, source, dest, definition, create_dest)
            case DropRouter(name):
                return self.oracle.delete_router(name)
        return await super().on_oracle(command)

    async def on_engine(self, command: Any) -> Any:
        match command:
            case PutRouter(name, source, dest, definition, create_dest):
                created, _ = await self.engine.put_router(
                    name,
                    source,
                    dest,
                    preserve_node=definition.preserve_node,
                    preserve_tag=definition.preserve_tag,
                    match=definition.match,
                    allow_cycle=definition.allow_cycle,
                    create_dest=create_dest,
                )
                return created
            case DropRouter(name):
                return await self.engine.delete_router(name)
        return await super().on_engine(command)

    async def forward(self, changed: str | None = None) -> None:
        """Let both sides see the clock and forward all they can; `changed` is the topic of the last command."""
        for name in self.oracle.names():
            self.oracle.expire(name, self.now)
            self.engine._ledger.current(name)
        await forwarded(self.engine, changed)
        self.repeat_steps()

    def repeat_steps(self) -> None:
        """Let the oracle take the steps that the engine took, in their order; there must be no more to take."""
        for name, last in self.taken:
            self.oracle.forward(name, self.now, last)
            assert self.oracle.routers()[name].cursor == last, f"{name} went on to {last}, which it cannot"
        self.taken.clear()
        reached = {name: route.cursor for name, route in self.oracle.routers().items()}
        self.oracle.forward_all(self.now)
        for name, route in self.oracle.routers().items():
            assert route.cursor == reached[name], f"{name} could go on to {route.cursor}, and does not"

    async def compare(self) -> None:
        await self.forward()
        await super().compare()
        routes = self.oracle.routers()
        assert sorted(self.engine.state.routers.by_name) == sorted(routes)
        for name, route in routes.items():
            router = self.engine.state.routers.by_name[name]
            assert (router.cursor, router.total) == (route.cursor, route.total), name
        table.check(self.engine.state)
        self.engine.forwarder.check()


def noting(taken: list[tuple[str, int]], commit: Any) -> Any:
    """`Forwarder.commit`, noting the steps."""

    def commit_noted(forwarder: Forwarder, decided: Sequence[Step]) -> None:
        own = [(step, entry.entry) for step in decided for entry in step.entries if isinstance(entry, Forwarding)]
        taken.extend((step.router.name, entry.cursor) for step, entry in own if entry.router == step.router.id)
        commit(forwarder, decided)

    return commit_noted


async def forwarded(engine: Any, changed: str | None = None) -> None:
    """Let the forwarder come as far as it can.

    Blocked routers are tried once more: what kept one may be gone from its source. A change of the dest must wake it.
    """
    forwarder, state = engine.forwarder, engine.state
    for id in list(forwarder.blocked.by_id):
        router = state.routers.by_id.get(id)
        if router is not None and state.by_id[router.dest].name != changed:
            forwarder._add(router)
    for _ in range(TURNS_MAX):
        await asyncio.sleep(0)
        if not (forwarder.is_busy or forwarder.lasting):
            return
    raise AssertionError("forwarding does not come to rest")


class TinyRouterMachine(RouterMachine):
    """The same with blocks of 8 seqs and chunks of 4 rows."""

    page_rows = parts.PAGE_ROWS

    def __init__(self) -> None:
        super().__init__()
        for module in (blocks, live, log, decide):
            self.patch.setattr(module, "BLOCK", 8)
        self.patch.setattr(parts, "PAGE_ROWS", 4)
        self.patch.setattr(pages, "PAGE_ROWS", self.page_rows)


class PagedRouterMachine(TinyRouterMachine):
    """The same with pages of 4 rows or few bytes, at whose borders a step through segments ends."""

    page_rows = 4

    def __init__(self) -> None:
        super().__init__()
        self.patch.setattr(pages, "PAGE_BYTES", 30)


TestRandomRouting = RouterMachine.TestCase
TestRandomRouting.settings = profile(25, 40)
TestRandomRoutingAtBorders = TinyRouterMachine.TestCase
TestRandomRoutingAtBorders.settings = profile(20, 40)
TestRandomRoutingByPages = PagedRouterMachine.TestCase
TestRandomRoutingByPages.settings = profile(20, 40)


@pytest.mark.full
class TestMuchRandomRouting(RouterMachine.TestCase):  # type: ignore[name-defined, misc]
    """RT8-RT13, RT15-RT19, RT22, RT23, TM12, TM16, TM17, DF9"""

    settings = profile(300, 60)


@pytest.mark.full
class TestMuchRandomRoutingAtBorders(TinyRouterMachine.TestCase):  # type: ignore[name-defined, misc]
    settings = profile(300, 60)


@pytest.mark.full
class TestMuchRandomRoutingByPages(PagedRouterMachine.TestCase):  # type: ignore[name-defined, misc]
    settings = profile(300, 60)
