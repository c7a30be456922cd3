"""Sweeps: one test that tries many values; and samples of values."""

import inspect

import pytest

from tests.effort import sampled, swept

TRIED: list[tuple[int, str]] = []


@swept("number", range(3))
@pytest.mark.parametrize("word", ["a", "b"])
def test_every_value_is_tried_beside_parameters_of_pytest(number: int, word: str) -> None:
    TRIED.append((number, word))
    assert TRIED[-number - 1 :] == [(n, word) for n in range(number + 1)]


def test_a_value_that_fails_is_named() -> None:
    @swept("number", [1, 2, 3])
    def is_odd(number: int) -> None:
        assert number % 2

    with pytest.raises(AssertionError) as caught:
        is_odd()
    assert caught.value.__notes__ == ["number = 2"]
    assert list(inspect.signature(is_odd).parameters) == []


def test_a_sweep_over_nothing_is_refused() -> None:
    with pytest.raises(AssertionError, match="there is no number to try"):
        swept("number", [])


@pytest.mark.parametrize("word", sampled("abc"))
def test_some_of_the_values_of_a_sample_are_for_the_full_run(word: str, request: pytest.FixtureRequest) -> None:
    assert (request.node.get_closest_marker("full") is not None) == (word == "b")
