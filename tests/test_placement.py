"""Where new topics go: the same for all programs, in every language."""

from pathlib import Path

import pytest

from topics import placement

A, B, C = "http://a:4000", "http://b:4000", "http://c:4000"

# As docs/scale.md has them, for implementations in other languages.
WEIGHTS = [
    (A, "orders", 3107152712265227367),
    (B, "orders", 14395906837553706125),
    (C, "orders", 743831159034291950),
    (A, "eu.1", 9598409190909855660),
    ("https://topics.example:443/eu", "a.b:c-d_e", 1610079278836634725),
]
HOMES = [("orders", B), ("clicks", C), ("eu.1", A), ("eu.2", A), ("jobs", C)]


@pytest.mark.parametrize(("server", "topic", "weight"), WEIGHTS)
def test_weights_are_those_of_the_documentation(server: str, topic: str, weight: int) -> None:
    assert placement.weight(server, topic) == weight


def test_the_documentation_has_them() -> None:
    page = (Path(__file__).parent.parent / "docs" / "scale.md").read_text()
    assert all(f"| `{server}`, `{topic}` | {weight} |" in page for server, topic, weight in WEIGHTS)
    assert all(f"| `{topic}` | `{home}` |" in page for topic, home in HOMES)


@pytest.mark.parametrize(("topic", "home"), HOMES)
def test_homes_are_those_of_the_documentation(topic: str, home: str) -> None:
    assert placement.home(topic, [A, B, C]) == home


def test_the_order_of_the_list_does_not_matter() -> None:
    for n in range(100):
        assert placement.ranked(f"t{n}", [A, B, C]) == placement.ranked(f"t{n}", [C, A, B])


def test_topics_spread_evenly() -> None:
    homes = [placement.home(f"topic-{n}", [A, B, C]) for n in range(3000)]
    assert all(900 < homes.count(server) < 1100 for server in (A, B, C))


def test_a_server_more_takes_its_share_and_moves_nothing_else() -> None:
    names = [f"topic-{n}" for n in range(1000)]
    before = {name: placement.home(name, [A, B]) for name in names}
    after = {name: placement.home(name, [A, B, C]) for name in names}
    moved = [name for name in names if before[name] != after[name]]
    assert {after[name] for name in moved} == {C}
    assert 250 < len(moved) < 420


def test_a_server_less_gives_away_its_own_topics_only() -> None:
    for n in range(300):
        first, second, _ = placement.ranked(f"t{n}", [A, B, C])
        rest = [server for server in (A, B, C) if server != first]
        assert placement.home(f"t{n}", rest) == second
