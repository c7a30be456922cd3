"""What happened in a simulated history, line by line, for people: kept cheaply, written out when something is wrong."""

from typing import Any, NamedTuple

from topics.testing.clock import ManualClock

START_MS = ManualClock().now_ms()
LINE_MAX = 240


class Line(NamedTuple):
    ms: int
    life: int
    who: str
    what: str
    detail: Any

    def __str__(self) -> str:
        text = f"{self.life} {self.ms - START_MS:>7} {self.who:<8} {self.what:<8} {self.detail}"
        return text if len(text) <= LINE_MAX else f"{text[: LINE_MAX - 1]}…"


class Trace:
    """Lines with the life and the time in ms at which they happened."""

    def __init__(self, clock: ManualClock) -> None:
        self.lines: list[Line] = []
        self.life = 0
        self._clock = clock

    def add(self, who: str, what: str, detail: Any = "") -> None:
        self.lines.append(Line(self._clock.now_ms(), self.life, who, what, detail))

    def about(self, topics: set[str], most: int) -> list[str]:
        """The last lines that concern these topics, or what happens to the server; none named: all."""
        told = [line for line in self.lines if line.who == "server" or not topics or _names(str(line.detail), topics)]
        return [str(line) for line in told[-most:]]


def _names(text: str, topics: set[str]) -> bool:
    return any(f"{mark}{topic}{end}" in text for topic in topics for mark in "/\" '" for end in "/\" '")
