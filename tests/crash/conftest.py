"""All tests of crashes run with small bounds."""

from collections.abc import Iterator

import pytest

from tests.crash import bounds


@pytest.fixture(autouse=True, scope="module")
def small_bounds() -> Iterator[None]:
    with bounds.small_bounds():
        yield
