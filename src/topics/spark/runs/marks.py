"""What a job that writes into a topic has done: units of work, begun and done, in a file that outlives it.

A unit is written under idempotency keys of its own, so one that was begun and not done is written again, and the
server appends what is missing of it. That holds while the topic remembers the keys. Hence:

- a unit that is done is never written again, however late;
- a unit that was begun is written again only while its keys are known, otherwise the job refuses to go on;
- units of an earlier instance of the topic count for nothing, and the job refuses to mix both.

Owned here: the file, and these three rules. What a unit is, the job decides. The file is replaced as a whole.
"""

import hashlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import msgspec
from msgspec import Struct

from topics.client import Client
from topics.clock import Clock, SystemClock
from topics.errors import Forbidden, InvalidRequest, TopicNotFound
from topics.spark.tables.outputs import Place
from topics.spark.writer import WINDOW_MS, WINDOW_SHORT_MS

MARGIN_MS: Final = 60_000  # keys are counted as forgotten so much earlier
FORMAT: Final = 1


def default_directory() -> str:
    return str(Path.home() / ".topics" / "jobs")


def identity(*parts: Any) -> str:
    """A short name for arguments: the same ones have the same name."""
    return hashlib.sha256(msgspec.json.encode(parts, order="sorted")).hexdigest()[:24]


class Unit(Struct, omit_defaults=True):
    """A piece of work. `what` is the job's own description of it."""

    begun_ms: int
    what: Any = None
    is_done: bool = False
    rows: int = 0


class Contents(Struct, omit_defaults=True):
    """The file."""

    format: int = FORMAT
    about: dict[str, Any] = {}
    topic: str = ""
    epoch: int = 0
    units: dict[str, Unit] = {}


@dataclass
class Ledger:
    """The units of one job, as its file has them."""

    path: Path
    contents: Contents
    clock: Clock

    @classmethod
    def open(cls, directory: str, job: str, about: dict[str, Any], clock: Clock | None = None) -> "Ledger":
        """The ledger of the job; a new one if there is none."""
        path = Path(directory) / f"{job}.json"
        contents = Contents(about=about)
        if path.exists():
            try:
                contents = msgspec.json.decode(path.read_bytes(), type=Contents)
            except msgspec.MsgspecError as error:
                raise InvalidRequest(f"{path} is not the ledger of a job: {error}") from None
        return cls(path, contents, clock or SystemClock())

    # --- units

    @property
    def rows(self) -> int:
        return sum(unit.rows for unit in self.contents.units.values())

    def is_done(self, unit: str) -> bool:
        return unit in self.contents.units and self.contents.units[unit].is_done

    def unfinished(self) -> dict[str, Unit]:
        return {name: unit for name, unit in self.contents.units.items() if not unit.is_done}

    def begin(self, unit: str, what: Any = None) -> None:
        """Note a unit before its first row is written. One that was begun before keeps its time."""
        if unit not in self.contents.units:
            self.contents.units[unit] = Unit(self.clock.now_ms(), what)
            self._save()

    def finish(self, unit: str, rows: int) -> None:
        self.contents.units[unit].is_done = True
        self.contents.units[unit].rows = rows
        self._save()

    # --- the topic

    def bind(self, client: Client, topic: str, *, sets_window: bool = False, at_least_once: bool = False) -> None:
        """Create the topic if need be, and make sure that going on leaves every row in it once."""
        window_ms, epoch, head = _prepared(client, topic, sets_window)
        if window_ms < WINDOW_SHORT_MS and not at_least_once:
            raise InvalidRequest(
                f"topic {topic} remembers idempotency keys for {window_ms} ms, too short for writing every row "
                f"exactly once: let the job set it to {WINDOW_MS} (--set-window), or take rows twice (--at-least-once)"
            )
        is_same = self.contents.epoch in (0, epoch) and head >= self.rows  # an epoch is a server's, which may be new
        if not is_same and self.contents.units:
            raise InvalidRequest(
                f"topic {topic} was deleted and created again since this job wrote to it; use another --name"
            )
        self._check_in_time(topic, window_ms, at_least_once)
        self.contents.topic, self.contents.epoch = topic, epoch

    def _check_in_time(self, topic: str, window_ms: int, at_least_once: bool) -> None:
        now = self.clock.now_ms()
        late = [unit for unit in self.unfinished().values() if now - unit.begun_ms > window_ms - MARGIN_MS]
        if late and not at_least_once:
            raise InvalidRequest(
                f"this job was interrupted {(now - late[0].begun_ms) // 1000} s ago, and topic {topic} remembers keys "
                f"for {window_ms // 1000} s: whether the rows it was writing then are in the topic cannot be told. "
                "Go on with --at-least-once, which may repeat them"
            )

    def _save(self) -> None:
        """Whole or not at all, and durably: what is noted as begun must be known after a crash of the machine."""
        Place(str(self.path.parent)).put(self.path.name, msgspec.json.encode(self.contents))


def _prepared(client: Client, topic: str, sets_window: bool) -> tuple[int, int, int]:
    """The topic's window, epoch and head."""
    try:
        state = client.state(topic, touch=False)
        if sets_window and state.config.idempotency_window_ms < WINDOW_MS:
            fields = {**msgspec.structs.asdict(state.config), "idempotency_window_ms": WINDOW_MS}
            config = client.put_topic(topic, fields).config
            return config.idempotency_window_ms, state.epoch, state.head_seq
    except TopicNotFound:
        try:
            client.put_topic(topic, idempotency_window_ms=WINDOW_MS)
        except Forbidden as error:
            raise InvalidRequest(
                f"there is no topic {topic}, and the token may not create it, which needs the scope admin: "
                f"create it before, with an idempotency_window_ms of {WINDOW_MS}"
            ) from error
        state = client.state(topic, touch=False)
    return state.config.idempotency_window_ms, state.epoch, state.head_seq
