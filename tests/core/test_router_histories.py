"""Histories that once set the models of routing at odds with the engine, each with the reason why both are right now.

The machine of test_router_model.py plays them step by step, and compares after each.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from tests.core.test_model import Append, Delete, OpenGap, Put
from tests.core.test_router_model import NAMES, PagedRouterMachine, RouterMachine, TinyRouterMachine
from topics.model import RouterDefinition, TagMatch, TopicConfig
from topics.testing.oracle import Write

MACHINES = [RouterMachine, TinyRouterMachine, PagedRouterMachine]


@contextmanager
def playing(kind: type[RouterMachine], topology: str, **configs: TopicConfig) -> Iterator[tuple[RouterMachine, Any]]:
    """A machine, and how commands are played on it; `configs` are those of topics that have one."""
    machine = kind()
    kinds = [configs.get(name, TopicConfig()) for name in NAMES]
    try:
        machine.start(3, 10_000, topology, kinds, RouterDefinition())

        def play(*commands: Any) -> None:
            for command in commands:
                if callable(command):
                    command()
                else:
                    machine.adapter.do(machine.play(command))
                machine.answers_are_those_of_the_oracle()

        yield machine, play
    finally:
        machine.teardown()


def append(topic: str, *data: bytes, tag: str | None = None) -> Append:
    return Append(topic, [Write(one, tag) for one in data], None, None, None, None)


@pytest.mark.parametrize("kind", MACHINES)
def test_a_put_that_makes_room_for_a_router_evicts_nothing(kind: type[RouterMachine]) -> None:
    """DR1, RT15: the topic grows at once, by copies; that is not what the dry run tells."""
    with playing(kind, "chain", b=TopicConfig(cap_records=2, discard="reject")) as (machine, play):
        play(append("a", b"1", b"2", b"3", b"4"))
        assert machine.oracle.routers()["r1"].cursor == 2
        play(Put("b", TopicConfig()))
        assert machine.oracle.routers()["r1"].cursor == 4


@pytest.mark.parametrize("kind", MACHINES)
def test_what_a_full_topic_between_two_routers_loses_depends_on_the_steps(kind: type[RouterMachine]) -> None:
    """RT6, RT9, RT12: copies from before a checkpoint and from after it are two steps, and a router may go between."""
    full = TopicConfig(cap_records=2, discard="reject")
    with playing(kind, "chain", b=full) as (machine, play):
        play(append("b", b"0", b"0"), append("a", b"1", b"2", b"3", b"4", b"5"), machine.checkpoint)
        play(append("a", b"6", b"7", b"8", b"9"), Put("b", TopicConfig(cap_records=2)))
        assert machine.oracle.routers()["r1"].cursor == 9


@pytest.mark.parametrize("kind", MACHINES)
def test_a_blocked_router_is_woken_by_its_dest_and_tried_again_for_its_source(kind: type[RouterMachine]) -> None:
    """RT12, RT15: a hole needs no room, but lies behind a record that does, until that is deleted."""
    with playing(kind, "chain", b=TopicConfig(cap_records=1, discard="reject")) as (machine, play):
        play(append("a", b"1", b"2"), OpenGap("a", 3, "cap"))
        assert machine.oracle.routers()["r1"].cursor == 1
        play(Delete("a", 0, None))
        assert machine.oracle.routers()["r1"].cursor == 5
        play(append("a", b"3"), Delete("b", 0, None))
        assert machine.oracle.routers()["r1"].cursor == 6


@pytest.mark.parametrize("kind", MACHINES)
def test_a_blocked_router_into_memory_waits_for_room_and_no_longer_for_a_sync(kind: type[RouterMachine]) -> None:
    """RT15, RT24"""
    in_memory = TopicConfig(cap_records=3, discard="reject", durability="ephemeral")
    synced = TopicConfig(durability="fsync")
    with playing(kind, "chain", a=synced, b=synced, c=in_memory) as (_, play):
        play(append("a", b"1", b"2", b"3", b"4"), append("a", b"5"))


@pytest.mark.parametrize("kind", MACHINES)
def test_a_router_goes_on_when_its_full_dest_comes_to_be_in_memory(kind: type[RouterMachine]) -> None:
    """RT15, RT24: the change of the dest wakes it, the sync of that change once more."""
    with playing(kind, "chain", b=TopicConfig(cap_records=1, discard="reject")) as (machine, play):
        play(append("a", b"1", b"2"), Put("b", TopicConfig(durability="ephemeral")))
        assert machine.oracle.routers()["r1"].cursor == 2


@pytest.mark.parametrize("kind", MACHINES)
def test_a_clock_that_goes_back_does_not_date_losses_later(kind: type[RouterMachine]) -> None:
    """LS1: neither what copies evict nor holes, which would be one with those before."""
    with playing(kind, "chain", b=TopicConfig(cap_records=2)) as (machine, play):
        play(append("a", b"1", b"2", b"3"), OpenGap("a", 1, "cap"), lambda: machine.step_wall_clock(-2000))
        play(append("a", b"4", b"5"), OpenGap("a", 1, "cap"))


@pytest.mark.parametrize("kind", MACHINES)
def test_an_ephemeral_dest_loses_its_copies_when_the_engine_stops(kind: type[RouterMachine]) -> None:
    """LS1, DU9: also if a checkpoint had captured it before."""
    with playing(kind, "chain", c=TopicConfig(durability="ephemeral")) as (machine, play):
        play(append("a", b"1", b"2"), machine.checkpoint, lambda: machine.pass_time(1), machine.restart)


@pytest.mark.parametrize("kind", MACHINES)
def test_what_expires_on_both_sides_of_a_hole_is_counted_on_each(kind: type[RouterMachine]) -> None:
    """LS1, NC3: of sealed records nothing tells which seqs were deleted before, but for the rows themselves."""
    with playing(kind, "chain", b=TopicConfig(ttl_ms=50)) as (machine, play):
        play(append("a", b"1", tag="x"), append("a", b"2", b"3", b"4", tag="y"), append("a", b"5", tag="x"))
        play(OpenGap("a", 2, "cap"), append("a", b"8", tag="y"), append("a", b"9", b"1", b"1", tag="x"))
        machine.adapter.do(machine.engine.checkpoint())
        play(Delete("b", None, TagMatch("Eq", "y")), machine.checkpoint, lambda: machine.pass_time(51))


@pytest.mark.slow
def test_a_read_that_had_its_share_of_a_turn_goes_on_where_it_ended() -> None:
    """LM13, TM11: also behind a `recreated` tombstone, where the cursor asked for is above all that it gives."""
    with playing(PagedRouterMachine, "chain") as (machine, play):
        for _ in range(15):
            machine.adapter.do(machine.play(append("a", *[b"1"] * 14, tag="x:1")))
        for _ in range(7):  # as many kinds of query
            play(machine.restart)
