"""What a script is made of: operations that the engine carries out and the oracle predicts.

An operation's `commits` say what it commits, in the order of the log, each as a change of
the oracle; the engine commits within the same turn of the loop in which it is called.
"""

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import msgspec

from topics.core.topic.config import ConfigIn, resolve
from topics.engine import Engine
from topics.model import RouterDefinition, TagMatch, TopicConfig
from topics.testing.disk import Outcome
from topics.testing.oracle import Oracle, Write

Config = dict[str, Any]
Change = Callable[[Oracle, int], Any]  # what a commit does to the oracle at a time; gives the answer


def config_of(name: str, given: Config, oracle: Oracle) -> TopicConfig:
    current = oracle.state(name, 0).config if name in oracle.names() else None
    return resolve(name, msgspec.convert(given, ConfigIn), current)


class Operation:
    """Something asked of the engine. `topic` is the one that it looks at, if any."""

    topic: str

    def changes(self) -> list[Change]:
        return []

    async def carry_out(self, engine: Engine) -> Any:
        raise NotImplementedError


@dataclass
class Put(Operation):
    topic: str
    config: Config = field(default_factory=dict)

    def changes(self) -> list[Change]:
        return [lambda oracle, now: oracle.put_topic(self.topic, config_of(self.topic, self.config, oracle), now)]

    async def carry_out(self, engine: Engine) -> bool:
        created, _ = await engine.put_topic(self.topic, self.config)
        return created


@dataclass
class Drop(Operation):
    topic: str

    def changes(self) -> list[Change]:
        return [lambda oracle, now: oracle.delete_topic(self.topic, now)]

    async def carry_out(self, engine: Engine) -> bool:
        return await engine.delete_topic(self.topic)


@dataclass
class Append(Operation):
    topic: str
    records: Sequence[dict[str, Any]]
    key: str | None = None
    config: Config | None = None

    def changes(self) -> list[Change]:
        encode = msgspec.json.encode

        def change(oracle: Oracle, now: int) -> tuple[int, int, bool, bool]:
            writes = [
                Write(
                    encode(record["data"]),
                    record.get("tag"),
                    record.get("node"),
                    encode(record["meta"]) if "meta" in record else None,
                )
                for record in self.records
            ]
            config = None if self.config is None else config_of(self.topic, self.config, Oracle())
            done = oracle.append(self.topic, writes, now, key=self.key, config=config)
            return done.first, done.last, done.created, done.deduped

        return [change]

    async def carry_out(self, engine: Engine) -> tuple[int, int, bool, bool]:
        done = await engine.append(self.topic, self.records, key=self.key, config=self.config)
        return done.first_seq, done.last_seq, done.created, done.deduped


@dataclass
class Delete(Operation):
    topic: str
    before: int | None = None
    match: TagMatch | None = None

    def changes(self) -> list[Change]:
        return [lambda oracle, now: oracle.delete(self.topic, now, before_seq=self.before, match=self.match).deleted]

    async def carry_out(self, engine: Engine) -> int:
        return (await engine.delete(self.topic, before_seq=self.before, match=self.match)).deleted


@dataclass
class PutCursor(Operation):
    topic: str
    cursor: str
    seq: int

    def changes(self) -> list[Change]:
        return [lambda oracle, now: oracle.put_cursor(self.topic, self.cursor, self.seq, now)]

    async def carry_out(self, engine: Engine) -> bool:
        return (await engine.cursors.put(self.topic, self.cursor, self.seq))[0]


@dataclass
class Read(Operation):
    """A reader that tells what it saw: from then on it must not vanish (WR10)."""

    topic: str

    async def carry_out(self, engine: Engine) -> list[tuple[int, bytes]]:
        answer = await engine.read(self.topic)
        return [(record.seq, bytes(record.data)) for record in answer.records]


@dataclass
class Route(Operation):
    """A router; `topic` is its dest, and everything that its source has is forwarded after every operation."""

    name: str
    source: str
    topic: str
    match: TagMatch | None = None
    preserve_tag: bool = True

    def changes(self) -> list[Change]:
        definition = RouterDefinition(preserve_tag=self.preserve_tag, match=self.match)
        return [lambda oracle, now: oracle.put_router(self.name, self.source, self.topic, definition)]

    async def carry_out(self, engine: Engine) -> bool:
        created, _ = await engine.put_router(
            self.name, self.source, self.topic, match=self.match, preserve_tag=self.preserve_tag
        )
        return created


@dataclass
class Unroute(Operation):
    name: str
    topic: str  # the router's dest

    def changes(self) -> list[Change]:
        return [lambda oracle, now: oracle.delete_router(self.name)]

    async def carry_out(self, engine: Engine) -> bool:
        return await engine.delete_router(self.name)


@dataclass
class Checkpoint(Operation):
    topic: str = ""

    async def carry_out(self, engine: Engine) -> None:
        await engine.checkpoint()


@dataclass
class Tick(Operation):
    """What runs in the background: expiry, syncs, a checkpoint if it is due."""

    topic: str = ""

    async def carry_out(self, engine: Engine) -> None:
        await engine.tick()


@dataclass
class Advance:
    """Let time pass."""

    ms: int


@dataclass
class StepClock:
    """Set the wall clock, by so much from where it is."""

    ms: int


@dataclass
class Together:
    """Operations that are under way at the same time; `turns` of the loop lie between their starts."""

    operations: Sequence[Operation]
    turns: int = 0


@dataclass
class Restart:
    """Stop and start again: gracefully, by kill -9, or by losing power."""

    how: Literal["gracefully", "kill"] | Outcome = "gracefully"


Step = Operation | Advance | StepClock | Together | Restart
Awaited = Awaitable[Any]


@dataclass(frozen=True)
class Script:
    name: str
    steps: Sequence[Step]
    segment_max_events: int = 3


def records(*texts: str) -> list[dict[str, Any]]:
    """Records by shorthand: `"x"` has data x; `"x@a:1"` has the tag a:1, too; `"x@a:1/n"` also a node and a meta."""
    made = []
    for text in texts:
        data, _, rest = text.partition("@")
        tag, _, node = rest.partition("/")
        record: dict[str, Any] = {"data": {"v": data}}
        if tag:
            record["tag"] = tag
        if node:
            record |= {"node": node, "meta": {"from": node}}
        made.append(record)
    return made
