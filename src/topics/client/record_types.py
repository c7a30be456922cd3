"""Records as a client writes and reads them, what watches and exports tell of them, and jobs.

`data` and `meta` are the JSON texts as they were written; `value` and `meta_value` decode them.
"""

from typing import Any, Generic, NamedTuple, TypeVar

import msgspec
from msgspec import Raw, Struct

from topics import model
from topics.client.values import decoded, shown
from topics.model import Tombstone

T = TypeVar("T")


class NewRecord(Struct, frozen=True, omit_defaults=True):
    """A record to append. `data` is anything that msgspec can encode, or a Pydantic model; a `msgspec.Raw` is taken as
    JSON text. In a queue, `delay_ms` or `deliver_at` (epoch-ms) hides the job until then."""

    data: Any
    tag: str | None = None
    node: str | None = None
    meta: Any = None
    delay_ms: int | None = None
    deliver_at: int | None = None


class Decoding:
    """What the texts of a record or a job say, decoded."""

    __slots__ = ()
    data: Raw
    meta: Raw

    @property
    def value(self) -> Any:
        """The data, decoded."""
        return decoded(self.data)

    @property
    def meta_value(self) -> dict[str, Any] | None:
        """The meta, decoded; None if there is none."""
        return decoded(self.meta)  # type: ignore[no-any-return]

    def as_type(self, kind: type[T]) -> T:
        """The data as a struct, a dataclass, a Pydantic model, or any type that msgspec knows."""
        return decoded(self.data, kind)  # type: ignore[no-any-return]


class Record(model.Record, Decoding, frozen=True):
    """A record as readers get it. With `include_data=False`, `data` is empty and `value` is None."""

    def __repr__(self) -> str:
        return f"{type(self).__name__}(seq={self.seq}, {_described(self)}data={shown(self.data)})"


class TypedRecord(Record, Generic[T], frozen=True):
    """A record of `consume(…, type=…)`: its `value` has that type. `value` raises ValueError if the data do not fit."""

    kind: type[T] | None = None

    @classmethod
    def of(cls, record: Record, kind: type[T]) -> "TypedRecord[T]":
        return cls(record.seq, record.ts, record.node, record.tag, record.data, record.meta, kind)

    @property
    def value(self) -> T:
        return decoded(self.data, self.kind)  # type: ignore[no-any-return]


class Records(Struct, frozen=True):
    """A watch delivers the next records of a topic. They cover every seq above `from_seq` and up to `to_seq`."""

    topic: str
    records: list[Record]
    from_seq: int
    to_seq: int
    head_seq: int


class Lost(Tombstone, frozen=True, kw_only=True):
    """A tombstone, and its topic: a reader missed seqs `gap_from` to `gap_to`. Consumers and watches hand it out."""

    topic: str
    missed_estimate: int = -1  # a watch does not say; then all of them

    def __post_init__(self) -> None:
        if self.missed_estimate < 0:
            msgspec.structs.force_setattr(self, "missed_estimate", self.gap_to - self.gap_from + 1)

    @classmethod
    def of(cls, topic: str, tombstone: Tombstone) -> "Lost":
        return cls(topic=topic, **msgspec.structs.asdict(tombstone))


class CaughtUp(Struct, frozen=True):
    """A watch has delivered everything that a topic has."""

    topic: str
    head_seq: int


class TopicGone(Struct, frozen=True):
    """A watched topic was deleted; the watch delivers nothing more of it."""

    topic: str
    head_seq: int
    reason: str = "deleted"


WatchEvent = Records | Lost | CaughtUp | TopicGone


class ExportInfo(NamedTuple):
    """What an export covers: every seq above `after` and up to `last` is in it, in `lost`, or was deleted."""

    topic: str
    epoch: int
    head_seq: int
    earliest_seq: int
    after: int
    last: int
    lost: tuple[Tombstone, ...]


class Job(Struct, Decoding, frozen=True, kw_only=True, rename={"seq": "$seq", "ts": "$ts", "tag": "$tag"}):
    """A record of a queue, leased until `deadline` (epoch-ms). `deliveries` counts this one."""

    seq: int
    lease_id: str
    deadline: int
    ts: int
    tag: str | None = None
    deliveries: int
    data: Raw = Raw()
    meta: Raw = Raw()

    def __repr__(self) -> str:
        delivered = f"deliveries={self.deliveries}, deadline={self.deadline}"
        return f"Job(seq={self.seq}, {_described(self)}{delivered}, data={shown(self.data)})"


def _described(one: Record | Job) -> str:
    """What a record has beyond its data, for a repr."""
    node = one.node if isinstance(one, Record) else None
    texts = [("tag", one.tag), ("node", node)]
    said = "".join(f"{name}={text!r}, " for name, text in texts if text is not None)
    return said + (f"meta={shown(one.meta)}, " if len(memoryview(one.meta)) else "")
