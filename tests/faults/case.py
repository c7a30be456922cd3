"""A case of the catalogue: its name, what is injected, which guarantees are at stake, and how it is played."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

from tests.faults.lab import Lab

Play = Callable[[Lab], Awaitable[None]]


@dataclass(frozen=True)
class Case:
    area: str
    name: str
    injects: str
    holds: tuple[str, ...]
    play: Play
    needs: str = ""  # a marker

    @property
    def id(self) -> str:
        return f"{self.area}: {self.name}"


@dataclass
class Area:
    """The cases of one area, in the order of the page."""

    title: str
    needs: str = ""  # a marker of all its cases
    cases: list[Case] = field(default_factory=list)

    def add(self, name: str, injects: str, holds: str, play: Play) -> None:
        self.cases.append(Case(self.title, name, injects, tuple(holds.split()), play, self.needs))

    def case(self, name: str, injects: str, holds: str) -> Callable[[Play], Play]:
        def added(play: Play) -> Play:
            self.add(name, injects, holds, play)
            return play

        return added
