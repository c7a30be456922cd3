"""What requests there were: by route and status, how long they took, and what was refused why (HM6).

Owns the counters; counting a request is two lookups and a search among the bounds, as every request pays for it. Must
not know: how numbers are shown, what a route does.

A request is timed from when its body is there until it is answered. One that waited because its client asked for that
(a long poll, a claim with a window) is counted, and not timed: its time says nothing of the server.
"""

from bisect import bisect_left
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from itertools import accumulate
from typing import Final

from topics.errors import StorageError, TopicFull, TopicsError
from topics.server.routes import Route

BOUNDS_S: Final = (
    *(0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025),
    *(0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0),
)
UNTIMED: Final = -1.0
NO_ROUTE: Final = "none"  # of requests for paths and methods that do not exist
STATUSES: Final = frozenset((401, 403, 429, 503))  # refusals that say something of the server or of keys


class Tally:
    """The requests of one route."""

    __slots__ = ("buckets", "name", "seconds", "statuses")

    def __init__(self, name: str) -> None:
        self.name = name
        self.statuses: defaultdict[int, int] = defaultdict(int)
        self.buckets = [0] * (len(BOUNDS_S) + 1)  # not cumulative; the last is above all bounds
        self.seconds = 0.0


class Traffic:
    """The requests of one server since its start."""

    def __init__(self, routes: Iterable[Route]) -> None:
        self._tallies = {route: Tally(f"{route.method} {route.path}") for route in routes}
        self._unrouted = Tally(NO_ROUTE)
        self.refused: Counter[str] = Counter()  # by cause

    def __iter__(self) -> Iterator[Tally]:
        """The tallies of routes that were asked for."""
        return iter([tally for tally in (*self._tallies.values(), self._unrouted) if tally.statuses])

    def count(self, route: Route, status: int, seconds: float) -> None:
        """A request was answered; `seconds` is below 0 if it is not to be timed."""
        tally = self._tallies[route]
        tally.statuses[status] += 1
        if seconds >= 0.0:
            tally.buckets[bisect_left(BOUNDS_S, seconds)] += 1
            tally.seconds += seconds

    def count_early(self, route: Route | None, status: int) -> None:
        """A request was refused by its head alone; None: it asked for no route."""
        tally = self._unrouted if route is None else self._tallies[route]
        tally.statuses[status] += 1

    def count_refusal(self, error: Exception) -> None:
        """A request or command was refused, over any protocol."""
        cause = cause_of(error)
        if cause:
            self.refused[cause] += 1

    def totals(self) -> tuple[int, int, int]:
        """How many requests there were, and how many of them were answered with 4xx and with 5xx."""
        whole = client = server = 0
        for tally in (*self._tallies.values(), self._unrouted):
            for status, count in tally.statuses.items():
                whole += count
                client += count if 400 <= status < 500 else 0
                server += count if status >= 500 else 0
        return whole, client, server

    def times(self) -> list[int]:
        """How many requests took how long, over all routes; as `Tally.buckets`."""
        return [sum(column) for column in zip(*(tally.buckets for tally in self._tallies.values()), strict=True)]


def cause_of(error: Exception) -> str:
    """Why the server refused; empty if the request itself was at fault, and would be again."""
    if isinstance(error, TopicFull):
        return "topic_full"
    if isinstance(error, StorageError):
        return "storage"
    if not isinstance(error, TopicsError) or error.status not in STATUSES:
        return ""
    if error.status == 429:
        return str(error.detail.get("limit", "pressure"))
    if "replay_progress" in error.detail:
        return "replaying"
    return str(error.detail.get("reason", error.code)) if error.status == 503 else error.code


def quantile_s(buckets: list[int], share: float) -> float | None:
    """The time below which this share of requests was answered, straight between two bounds; None: there were none."""
    count = sum(buckets)
    if not count:
        return None
    wanted = share * count
    index = bisect_left(list(accumulate(buckets)), wanted)
    if index == len(BOUNDS_S):
        return BOUNDS_S[-1]
    low = BOUNDS_S[index - 1] if index else 0.0
    within = (wanted - sum(buckets[:index])) / buckets[index]
    return low + (BOUNDS_S[index] - low) * within
