"""Random histories with routers: the engine and the oracle forward alike, whatever is written, lost or restarted.

The machine of test_model.py with routers among three topics: chains, fan-outs, filters, dests with caps, with an
expiry, that refuse, that are written to directly. After every step both sides forward all they can. Cycles, and two
routers into a topic that is a source itself, have tests of their own: with caps in them, what is lost depends on which
router comes first.
"""

import asyncio
from dataclasses import dataclass, replace
from typing import Any

import msgspec
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
from topics.core.routing import table
from topics.core.topic import blocks, live, log, pages, parts
from topics.model import RouterDefinition, TopicConfig
from topics.settings import Settings
from topics.testing.oracle import Oracle

NAMES = ["a", "b", "c"]
ROUTERS = ["r1", "r2", "r3"]
TOPOLOGIES = {
    "chain": ["ab", "bc"],
    "fan-out": ["ab", "ac"],
    "twice": ["ab", "ab"],
    "long chain": ["ab", "bc", "ca"],  # the last one is refused
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
)
routers = st.builds(PutRouter, st.sampled_from(ROUTERS), topics, topics, definitions, st.booleans())
appends = st.builds(
    Append, topics, batches, node=st.none(), key=st.none(), create=st.none(), config=st.none() | configs
)


class RouterMachine(Machine):
    """One instance of topics with routers, and its oracle."""

    def __init__(self) -> None:
        super().__init__()

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
        if isinstance(command, PutRouter) and self.is_join_in_a_chain(command):
            return
        await super().play(command)
        await self.forward()

    def is_join_in_a_chain(self, command: PutRouter) -> bool:
        """Whether a topic with two routers into it would be a source, too."""
        routes = [(route.source, route.dest) for name, route in self.oracle.routers().items() if name != command.name]
        routes.append((command.source, command.dest))
        dests = [dest for _, dest in routes]
        return any(dests.count(source) > 1 for source, _ in routes)

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

    async def forward(self) -> None:
        """Let both sides see the clock and forward all they can."""
        for name in self.oracle.names():
            self.oracle.expire(name, self.now)
            self.engine._ledger.current(name)
        self.oracle.forward_all(self.now)
        await forwarded(self.engine)

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


async def forwarded(engine: Any) -> None:
    """Let the forwarder come as far as it can; blocked routers are tried once more."""
    forwarder = engine.forwarder
    for router in list(forwarder.blocked.by_id):
        if router in engine.state.routers.by_id:
            forwarder._add(engine.state.routers.by_id[router])
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
    """The same with pages of 4 rows or few bytes, at whose borders a step through segments ends.

    No caps, and one router into each dest: where a dest evicts or refuses, or two routers share one, what becomes of
    which record depends on the size of steps, and the oracle takes all in one.
    """

    page_rows = 4

    def __init__(self) -> None:
        super().__init__()
        self.patch.setattr(pages, "PAGE_BYTES", 30)

    async def play(self, command: Any) -> None:
        if isinstance(command, PutRouter):
            routes = self.oracle.routers().items()
            if any(route.dest == command.dest for name, route in routes if name != command.name):
                return
        elif getattr(command, "config", None) is not None:
            command = replace(command, config=msgspec.structs.replace(command.config, cap_records=0, cap_bytes=0))
        await super().play(command)


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
