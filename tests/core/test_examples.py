"""The contract's examples, played on the real engine: from memory, from segments, across restarts, in every class."""

from collections.abc import Iterator
from typing import Any

import pytest

from tests.core.engine_adapter import EngineAdapter
from tests.core.examples import EXAMPLES, PLENTY, Example, Put, run
from tests.effort import stride
from topics.model import Durability
from topics.settings import Settings

LOGGED: list[Durability] = ["memory", "disk", "fsync"]
SETTINGS = Settings(max_limit=PLENTY)
SMALL_SEGMENTS = Settings(max_limit=PLENTY, segment_max_events=3)


@pytest.fixture
def adapter(request: pytest.FixtureRequest) -> Iterator[EngineAdapter]:
    adapter = EngineAdapter(*request.param)
    yield adapter
    adapter.close()


def is_ephemeral(example: Example) -> bool:
    return any(isinstance(step, Put) and step.config.durability == "ephemeral" for step in example.steps)


def has_restart(example: Example) -> bool:
    return any(type(step).__name__ == "Restart" for step in example.steps)


def adapters(settings: Settings, after: str, classes: list[Durability]) -> Any:
    params = [(settings, after, durability) for durability in classes]
    return pytest.mark.parametrize("adapter", params, ids=classes, indirect=True)


@pytest.mark.parametrize("example", EXAMPLES, ids=str)
@adapters(SETTINGS, "nothing", LOGGED[:: stride()])
def test_the_engine_keeps_the_example_with_all_records_in_memory(example: Example, adapter: EngineAdapter) -> None:
    """E1, E2, E3, E4, E5, E6, E7, E8, E9, E10, E11, E12, S1, S13, S19, S20, S25,
    TM1, TM2, TM3, TM4, TM5, TM6, TM7, TM8, TM9, TM10, TM11, TM12, TM14, TM16, TM17, TP7, TP12, TP16, TP17,
    WR7, WR11, WR12, WR13, ID1, ID4, ID5, ID6, ID7, DF3, DF4, DF5, DF6, ND1, ND2, ND3, DL2, DL3, DL4, DL5"""
    run(example, adapter)


@pytest.mark.parametrize("example", EXAMPLES, ids=str)
@adapters(SMALL_SEGMENTS, "checkpoint", LOGGED[:: stride()])
def test_the_engine_keeps_the_example_with_all_records_in_segments(example: Example, adapter: EngineAdapter) -> None:
    """TM8, TM9, DL4, DL5: a checkpoint after every step."""
    run(example, adapter)


@pytest.mark.parametrize("example", [example for example in EXAMPLES if not is_ephemeral(example)], ids=str)
@adapters(SMALL_SEGMENTS, "restart", LOGGED[:: stride()])
def test_the_engine_keeps_the_example_across_a_restart_after_every_step(
    example: Example, adapter: EngineAdapter
) -> None:
    """TM14, TP16, ID8, DU3, DU4, G9, G10"""
    run(example, adapter)


@pytest.mark.parametrize("example", [example for example in EXAMPLES if not has_restart(example)], ids=str)
@adapters(SETTINGS, "nothing", ["ephemeral"])
def test_an_ephemeral_topic_keeps_the_example_while_the_process_runs(example: Example, adapter: EngineAdapter) -> None:
    """DU1"""
    run(example, adapter)


@pytest.mark.parametrize("example", [example for example in EXAMPLES if not has_restart(example)], ids=str)
@adapters(SMALL_SEGMENTS, "checkpoint", ["ephemeral"])
def test_a_checkpoint_leaves_an_ephemeral_topic_as_it_is(example: Example, adapter: EngineAdapter) -> None:
    """DU1: checkpoints keep its head, and none of its records."""
    run(example, adapter)
    assert not [name for name in adapter.disk.names() if name.startswith("segment-")]
