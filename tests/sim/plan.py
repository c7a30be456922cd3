"""What a seed says: how many lives the server has, what breaks in each, how each ends, who its clients are.

Pure data. A plan can be made smaller without another seed (`smaller`), which is how a failing history is cut down.
"""

import errno
import random
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Literal

from tests.pipelining.check import End
from topics.testing.disk import CrashAt, Faulty

CLIENTS = ("h1", "h2", "v2", "ws", "sse", "work")
# What happens beside the requests: `time` passes, clients `break` off, leave one `half` sent, do not read (`stall`).
EVENTS = ("checkpoint", "tick", "time", "break", "half", "stall", "slow", "sweep")


@dataclass(frozen=True)
class Fault:
    """A disk that fails now and then."""

    kind: Literal["write", "sync", "create", "rename"]
    at: int
    times: int
    error: int
    part: int

    def hook(self) -> Faulty:
        name = "log-*" if self.kind in ("write", "sync") else "*"
        return Faulty(self.kind, self.at, times=self.times, error=self.error, part=self.part, name=name)

    def __str__(self) -> str:
        return f"{self.kind} {self.at} fails {self.times} times: {errno.errorcode[self.error]} after {self.part} bytes"


@dataclass(frozen=True)
class LifePlan:
    """One life of the server: requests, what fails, and how it ends, if no crash comes before."""

    calls: int
    end: End  # alive: does not occur
    crash: int | None = None  # at this operation of the disk
    mode: Literal["before", "torn", "after"] = "before"
    part: int | None = None
    faults: tuple[Fault, ...] = ()
    stops_at: int = 0  # a graceful stop comes when so many requests are left to be asked
    outcome: int = 0  # what a loss of power leaves
    pause_ms: int = 0  # before the next life

    def point(self) -> CrashAt | None:
        return None if self.crash is None else CrashAt(self.crash, self.mode, part=self.part)

    def __str__(self) -> str:
        crash = "" if self.crash is None else f", crash {self.mode} operation {self.crash}"
        stop = f" at {self.stops_at} requests before the end" if self.end == "stop" else ""
        return f"{self.calls} requests{crash}{''.join(f', {fault}' for fault in self.faults)}, then {self.end}{stop}"


@dataclass(frozen=True)
class Plan:
    seed: int
    lives: tuple[LifePlan, ...]
    clients: tuple[str, ...] = CLIENTS
    events: tuple[str, ...] = EVENTS

    def __str__(self) -> str:
        return "; ".join(f"life {number}: {life}" for number, life in enumerate(self.lives))


def plan_of(seed: int) -> Plan:
    rng = random.Random(f"plan {seed}")
    lives = tuple(_life(rng) for _ in range(rng.choice((1, 2, 2, 3))))
    events = tuple(event for event in EVENTS if rng.random() < 0.85)
    clients = tuple(client for client in CLIENTS if rng.random() < 0.75)
    return Plan(seed, lives, clients, events)


def _life(rng: random.Random) -> LifePlan:
    calls = rng.choice((30, 60, 100, 150))
    ends: tuple[End, ...] = ("kill", "kill", "power loss", "power loss", "stop")
    crash = rng.randrange(4, 60 + calls) if rng.random() < 0.6 else None
    return LifePlan(
        calls,
        rng.choice(ends),
        crash,
        rng.choice(("before", "torn", "after")),
        rng.choice((None, 1, 20, 300)),
        _faults(rng),
        rng.choice((0, rng.randint(0, calls))),
        rng.randrange(1 << 30),
        rng.choice((0, 50, 3000, 9000)),
    )


def _faults(rng: random.Random) -> tuple[Fault, ...]:
    """At most two failures of the log in a row: if nothing can be written at all, a refused write cannot be undone."""
    count = rng.choice((0, 0, 0, 1, 1, 2))
    return tuple(_fault(rng, 2 if count == 1 else 1) for _ in range(count))


def _fault(rng: random.Random, times_max: int) -> Fault:
    kind = rng.choice(("write", "write", "sync", "sync", "create", "rename"))
    at = rng.randrange(0, {"write": 80, "sync": 40, "create": 12, "rename": 4}[kind])
    part = rng.choice((0, 10, 200)) if kind == "write" else 0
    times = rng.choice((1, 5)) if kind in ("create", "rename") else rng.randint(1, times_max)
    return Fault(kind, at, times, rng.choice((errno.EIO, errno.ENOSPC)), part)  # type: ignore[arg-type]


def smaller(plan: Plan) -> Iterator[Plan]:
    """Plans with a little less in them, the smallest first."""
    lives = plan.lives
    for number in range(len(lives)):
        if len(lives) > 1:
            yield replace(plan, lives=lives[:number] + lives[number + 1 :])
    for number, life in enumerate(lives):
        for cut in _shorter(life):
            yield replace(plan, lives=(*lives[:number], cut, *lives[number + 1 :]))
    for client in plan.clients:
        yield replace(plan, clients=tuple(one for one in plan.clients if one != client))
    for event in plan.events:
        yield replace(plan, events=tuple(one for one in plan.events if one != event))


def _shorter(life: LifePlan) -> Iterator[LifePlan]:
    for fault in life.faults:
        yield replace(life, faults=tuple(one for one in life.faults if one is not fault))
    if life.crash is not None:
        yield replace(life, crash=None)
    for calls in (life.calls // 2, life.calls * 4 // 5, life.calls - 1):
        if 0 < calls < life.calls:
            yield replace(life, calls=calls, stops_at=min(life.stops_at, calls))
