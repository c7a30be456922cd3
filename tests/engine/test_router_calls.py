"""Routers as callers put them."""

import asyncio

import pytest

from tests.engine.running import begun, running
from topics.errors import Forbidden
from topics.testing.disk import MemoryDisk


async def test_whoever_puts_over_a_router_may_look_at_its_ends_first() -> None:
    """AU15: at those of the moment at which it is replaced."""
    disk = MemoryDisk()
    seen: list[tuple[str, str]] = []

    def refuse(source: str, dest: str) -> None:
        seen.append((source, dest))
        raise Forbidden("not yours")

    async with running(disk) as engine:
        created, _ = await engine.put_router("first", "a", "b", may_replace=refuse)
        assert created and seen == []
        disk.hold_syncs()
        creating = await begun(engine.put_router("r", "a", "c"))
        replacing = await begun(engine.put_router("r", "x", "y", may_replace=refuse))
        disk.release_syncs()
        await asyncio.gather(*creating)
        with pytest.raises(Forbidden):
            await asyncio.gather(*replacing)
        assert seen == [("a", "c")]
        assert engine.router_ends("r") == ("a", "c")
        assert engine.config_of("x") is None
