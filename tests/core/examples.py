"""The contract's worked examples (E1..E12), scenarios (S…) and corners (C…) as data.

An example is a list of steps. `run` plays them on an `Adapter`, which says how the system
under test puts, appends, deletes, reads and moves its clock; the oracle and the real core
each have one and must both satisfy every example. Answers are given in the oracle's words.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from topics.errors import RecordTooLarge, Refusal, TopicFull, TopicIncompatible, TopicNotFound
from topics.model import Gap, Reason, TagMatch, TopicConfig
from topics.testing.oracle import Deleted, GapReason, Read, TopicView, Write, Written

TOPIC = "t"
PLENTY = 1_000_000


class Adapter(Protocol):
    """The system under test: one instance with its own clock. Refusals are raised."""

    def put(self, topic: str, config: TopicConfig) -> bool:
        """Create or reconfigure; True = created."""

    def drop(self, topic: str) -> bool:
        """Delete the topic; True = there was one."""

    def append(
        self, topic: str, records: Sequence[Write], *, key: str | None, create: bool | None, config: TopicConfig | None
    ) -> Written:
        """Write one batch."""

    def delete(self, topic: str, *, before_seq: int | None, match: TagMatch | None) -> Deleted:
        """Delete records."""

    def open_gap(self, topic: str, size: int, reason: GapReason) -> None:
        """Lose the next `size` seqs."""

    def read(
        self,
        topic: str,
        after: int,
        *,
        limit: int,
        bytes_max: int,
        nodes: Collection[str],
        epoch: int | None,
        filter: TagMatch | None,
    ) -> Read:
        """Read above a cursor."""

    def state(self, topic: str) -> TopicView:
        """The topic's state."""

    def move_clock(self, ms: int) -> None:
        """Move the clock, back if negative."""

    def restart(self) -> None:
        """Stop gracefully and start again."""


@dataclass
class Run:
    """What steps share: the system under test, and the epoch of the topic dropped last."""

    adapter: Adapter
    old_epoch: int | None = None


class Step(Protocol):
    def play(self, run: Run) -> None: ...


@dataclass(frozen=True)
class Example:
    name: str  # E… worked example, S… scenario, C… corner
    title: str  # a sentence, then the contract ids
    steps: Sequence[Step]

    def __str__(self) -> str:
        return self.name


def run(example: Example, adapter: Adapter) -> None:
    shared = Run(adapter)
    for number, step in enumerate(example.steps, 1):
        try:
            step.play(shared)
        except AssertionError as failure:
            raise AssertionError(f"{example.name} {example.title}, step {number}: {step}\n{failure}") from None


def expect(what: str, got: object, want: object) -> None:
    if got != want:
        raise AssertionError(f"{what} is {got!r}, should be {want!r}")


def batch(count: int, tag: str | None = None, node: str | None = None, bytes: int = 10) -> list[Write]:
    """`count` records of `bytes` bytes each."""
    return [Write(b'"' + b"x" * (bytes - 2) + b'"', tag=tag, node=node)] * count


class Put:
    """PUT with these config fields."""

    def __init__(self, **fields: Any) -> None:
        self.config = TopicConfig(**fields)

    def __repr__(self) -> str:
        return f"Put({self.config})"

    def play(self, run: Run) -> None:
        run.adapter.put(TOPIC, self.config)


@dataclass(frozen=True)
class Append:
    """Write one batch; its first seq, or the seqs and head of the write it repeats."""

    records: Sequence[Write]
    first: int
    key: str | None = None
    create: bool | None = None
    config: TopicConfig | None = None
    deduped: bool = False
    head: int | None = None  # None = the last seq of the batch

    def play(self, run: Run) -> None:
        answer = run.adapter.append(TOPIC, self.records, key=self.key, create=self.create, config=self.config)
        last = self.first + len(self.records) - 1
        expect("(first, last)", (answer.first, answer.last), (self.first, last))
        expect("(count, deduped)", (answer.count, answer.deduped), (len(self.records), self.deduped))
        expect("head", answer.head, last if self.head is None else self.head)


@dataclass(frozen=True)
class Delete:
    deleted: int
    before_seq: int | None = None
    match: Any = None  # as on the wire

    def play(self, run: Run) -> None:
        match = None if self.match is None else TagMatch.parse(self.match)
        answer = run.adapter.delete(TOPIC, before_seq=self.before_seq, match=match)
        expect("deleted", answer.deleted, self.deleted)


@dataclass(frozen=True)
class OpenGap:
    size: int
    reason: GapReason = "source_trim"

    def play(self, run: Run) -> None:
        run.adapter.open_gap(TOPIC, self.size, self.reason)


@dataclass(frozen=True)
class Clock:
    ms: int

    def play(self, run: Run) -> None:
        run.adapter.move_clock(self.ms)


@dataclass(frozen=True)
class Drop:
    def play(self, run: Run) -> None:
        run.old_epoch = run.adapter.state(TOPIC).epoch
        expect("deleted", run.adapter.drop(TOPIC), True)


@dataclass(frozen=True)
class Restart:
    def play(self, run: Run) -> None:
        run.adapter.restart()


@dataclass(frozen=True)
class Refused:
    """A step that is refused."""

    error: type[Refusal]
    step: Step

    def play(self, run: Run) -> None:
        try:
            self.step.play(run)
        except Refusal as refusal:
            expect("the refusal", type(refusal), self.error)
        else:
            raise AssertionError(f"not refused with {self.error.__name__}")


@dataclass(frozen=True)
class Diff:
    """One read and its answer."""

    after: int
    records: Sequence[int]
    tombstone: tuple[int, int, Reason | None] | None = None  # gap_from, gap_to, reason; None = any, as it may be (TM15)
    next: int | None = None  # None = head, so caught up
    earliest: int | None = None  # None = not looked at
    limit: int = PLENTY
    bytes_max: int = PLENTY
    nodes: Collection[str] = ()
    filter: Any = None  # as on the wire
    old_epoch: bool = False

    def play(self, run: Run) -> None:
        answer = run.adapter.read(
            TOPIC,
            self.after,
            limit=self.limit,
            bytes_max=self.bytes_max,
            nodes=self.nodes,
            epoch=run.old_epoch if self.old_epoch else None,
            filter=None if self.filter is None else TagMatch.parse(self.filter),
        )
        expect("records", answer.seqs, list(self.records))
        self.check_tombstone(answer)
        expect("next", answer.next, answer.head if self.next is None else self.next)
        expect("caught_up", answer.caught_up, answer.next == answer.head)
        expect("lag", answer.lag, answer.head - answer.next)
        if self.earliest is not None:
            expect("earliest", answer.earliest, self.earliest)

    def check_tombstone(self, answer: Read) -> None:
        got, want = answer.tombstone, self.tombstone
        expect("tombstone's range", got and (got.gap_from, got.gap_to), want and want[:2])
        if want and want[2]:
            expect("reason", got and got.reason, want[2])
        if got:
            resumes_at = answer.earliest if got.reason == "recreated" else got.gap_to + 1
            expect("missed_estimate", got.missed_estimate, got.gap_to - got.gap_from + 1)
            expect("tombstone's earliest and head", (got.earliest_seq, got.head_seq), (resumes_at, answer.head))


@dataclass(frozen=True)
class Drain:
    """Read on until caught up: every call makes progress, and these records come, once each (DF4, DF6)."""

    records: Sequence[int]
    limit: int
    nodes: Collection[str] = ()

    def play(self, run: Run) -> None:
        cursor, is_caught_up, seqs = 0, False, list[int]()
        while not is_caught_up:
            answer = run.adapter.read(
                TOPIC, cursor, limit=self.limit, bytes_max=PLENTY, nodes=self.nodes, epoch=None, filter=None
            )
            expect("progress", answer.caught_up or answer.next > cursor, True)
            cursor, is_caught_up = answer.next, answer.caught_up
            seqs += answer.seqs
        expect("records", seqs, list(self.records))


class State:
    """These fields of the topic's state."""

    def __init__(self, **fields: Any) -> None:
        self.fields = fields

    def __repr__(self) -> str:
        return f"State({self.fields})"

    def play(self, run: Run) -> None:
        state = run.adapter.state(TOPIC)
        for name, value in self.fields.items():
            expect(name, getattr(state, name), value)


WORKED_EXAMPLES = [
    Example(
        "E1",
        "what a cap took is announced to cursors below the floor (TM1, TM3, TM4, TM10)",
        [
            Put(cap_records=3),
            Append(batch(5), first=1),
            Diff(0, [3, 4, 5], tombstone=(1, 2, "cap"), earliest=3),
            Diff(1, [3, 4, 5], tombstone=(2, 2, "cap")),
            Diff(2, [3, 4, 5]),
            Diff(3, [4, 5]),
        ],
    ),
    Example(
        "E2",
        "a deleted prefix is silent (TM9, DL5)",
        [Put(), Append(batch(5), first=1), Delete(2, before_seq=3), Diff(0, [3, 4, 5], earliest=3)],
    ),
    Example(
        "E3",
        "a cap counts live records only and takes the oldest live ones (TM10)",
        [
            Put(cap_records=4),
            Append(batch(4), first=1),
            Delete(2, before_seq=3),
            Append(batch(6), first=5),
            Diff(0, [7, 8, 9, 10], tombstone=(1, 6, "cap")),
        ],
    ),
    Example(
        "E4",
        "what expired is announced (TM5, TM7)",
        [
            Put(ttl_ms=1000),
            Append(batch(3), first=1),
            Clock(600),
            Append(batch(1), first=4),
            Clock(500),
            Diff(0, [4], tombstone=(1, 3, "ttl")),
        ],
    ),
    Example(
        "E5",
        "a range that both cap and age took from is mixed (TM5)",
        [
            Put(cap_records=2, ttl_ms=1000),
            Append(batch(4), first=1),
            Put(ttl_ms=1000),
            Clock(600),
            Append(batch(1), first=5),
            Clock(500),
            Diff(0, [5], tombstone=(1, 4, "mixed")),
            Diff(2, [5], tombstone=(3, 4, "ttl")),
        ],
    ),
    Example(
        "E6",
        "a deleted stretch behind a loss belongs to the range, and is silent by itself (TM4, TM8, TM9)",
        [
            Put(cap_records=3),
            Append(batch(5), first=1),
            Delete(2, before_seq=5),
            Diff(0, [5], tombstone=(1, 4, "cap")),
            Diff(1, [5], tombstone=(2, 4, "cap")),
            Diff(2, [5]),
        ],
    ),
    Example(
        "E7",
        "a topic that expired entirely says so and is caught up (TM2, TM7)",
        [
            Put(ttl_ms=1000),
            Append(batch(3), first=1),
            Clock(1001),
            Diff(0, [], tombstone=(1, 3, "ttl"), next=3, earliest=4),
        ],
    ),
    Example(
        "E8",
        "deleted records do not fill a cap (TM8, TM10)",
        [
            Put(cap_records=4),
            Append(batch(4), first=1),
            Delete(4, before_seq=5),
            Append(batch(2), first=5),
            Diff(0, [5, 6]),
        ],
    ),
    Example(
        "E9",
        "the floor stands behind the last record that was live when lost (TM1, TM8, TM9)",
        [
            Put(ttl_ms=1000),
            Append(batch(1), first=1),
            Append(batch(1, tag="x"), first=2),
            Delete(1, match="x"),
            Clock(600),
            Append(batch(1), first=3),
            Clock(500),
            Diff(1, [3]),
            Diff(0, [3], tombstone=(1, 2, "ttl")),
        ],
    ),
    Example(
        "E10",
        "a cursor above head belongs to an older instance (TM11)",
        [
            Put(),
            Append(batch(5), first=1),
            Drop(),
            Append(batch(1), first=1),
            Diff(5, [1], tombstone=(1, 1, "recreated"), next=1),
        ],
    ),
    Example(
        "E11",
        "recreated and empty (TM11)",
        [Put(), Append(batch(5), first=1), Drop(), Put(), Diff(5, [], tombstone=(1, 0, "recreated"), next=0)],
    ),
    Example(
        "E12",
        "a gap in mid-log stops the read before it and opens the next one (TM12, TM16)",
        [
            Put(),
            Append(batch(10), first=1),
            OpenGap(5),
            Append(batch(1), first=16),
            Diff(0, range(1, 11), next=10),
            Diff(10, [16], tombstone=(11, 15, "source_trim")),
        ],
    ),
]

SCENARIOS = [
    Example(
        "S1",
        "deleted is not evicted (TM8, TM10)",
        [
            Put(cap_records=4),
            Append(batch(4), first=1),
            Delete(4, before_seq=5),
            Append(batch(2), first=5),
            Diff(0, [5, 6]),
            State(floor=1, earliest=5, count=2),
        ],
    ),
    Example(
        "S2",
        "a hole in mid-log leaves earliest alone (TM16, RT12)",
        [
            Put(),
            Append(batch(10), first=1),
            OpenGap(5),
            Append(batch(1), first=16),
            Diff(0, range(1, 11), next=10, earliest=1),
            Diff(10, [16], tombstone=(11, 15, "source_trim"), earliest=1),
            State(head=16, count=11, floor=1, gaps=[Gap(11, 15, "source_trim")]),
        ],
    ),
    Example(
        "S6",
        "a delete is a moment: it reaches nothing written later (DL4)",
        [
            Put(),
            Append(batch(10, tag="a:x"), first=1),
            Delete(10, match=["tag", "Glob", "a:*"]),
            Append(batch(1, tag="a:x"), first=11),
            Diff(0, [11]),
            Restart(),
            Diff(0, [11], earliest=11),
        ],
    ),
    Example(
        "S13",
        "expiry is final (TM14)",
        [
            Put(ttl_ms=1000),
            Append(batch(3), first=1),
            Clock(1001),
            Diff(0, [], tombstone=(1, 3, "ttl")),
            Clock(-1000),
            Diff(0, [], tombstone=(1, 3, "ttl")),
            Put(ttl_ms=100_000),
            Diff(0, [], tombstone=(1, 3, "ttl")),
            Restart(),
            Diff(0, [], tombstone=(1, 3, None), earliest=4),
        ],
    ),
    Example(
        "S19",
        "empty is not done: caught_up is the signal (DF4, DF6, ND2)",
        [
            Put(),
            Append(batch(2000, node="me"), first=1),
            Append(batch(1, node="other"), first=2001),
            Drain([2001], limit=10, nodes=["me"]),
            Diff(0, [], filter="none", next=2001),
        ],
    ),
    Example(
        "S20",
        "reject never evicts, not even when a PUT lowers the cap (TP17)",
        [
            Put(type="queue", discard="reject", cap_records=10),
            Append(batch(10), first=1),
            Put(type="queue", discard="reject", cap_records=5),
            State(count=10, floor=1),
            Refused(TopicFull, Append(batch(1), first=11)),
            Delete(5, before_seq=6),
            Refused(TopicFull, Append(batch(1), first=11)),
            Delete(1, before_seq=7),
            Append(batch(1), first=11),
            State(count=5, floor=1, head=11),
        ],
    ),
    Example(
        "S25",
        "a star is a star in a bare string and a wildcard in a Glob (DL2)",
        [
            Put(),
            Append([*batch(1, tag="job*"), *batch(1, tag="job-1")], first=1),
            Delete(1, match="job*"),
            Diff(0, [2]),
            Append([*batch(1, tag="job*"), *batch(1, tag="job-1")], first=3),
            Delete(3, match=["tag", "Glob", "job*"]),
            Diff(0, []),
        ],
    ),
    Example(
        "S27",
        "a refused write creates no topic (WR12, WR14)",
        [
            Refused(RecordTooLarge, Append(batch(1, bytes=11), first=1, config=TopicConfig(cap_bytes=10))),
            Refused(TopicNotFound, State()),
        ],
    ),
    Example(
        "S29",
        "two lives, one name: the old epoch restarts the cursor (TM11, TP12, TP16)",
        [
            Put(),
            Append(batch(5), first=1),
            Diff(0, range(1, 6), next=5),
            Drop(),
            Put(),
            Append(batch(10), first=1),
            Diff(5, range(1, 11), tombstone=(1, 10, "recreated"), old_epoch=True),
            Diff(5, range(6, 11)),
        ],
    ),
]

CORNERS = [
    Example(
        "C1",
        "a gap behind a deleted prefix is announced although earliest lies above it (TM9, TM16)",
        [
            Put(),
            Append(batch(3), first=1),
            OpenGap(2),
            Append(batch(1), first=6),
            Delete(3, before_seq=4),
            Diff(0, [], next=3, earliest=6),
            Diff(2, [], next=3),
            Diff(3, [6], tombstone=(4, 5, "source_trim")),
            Diff(4, [6], tombstone=(5, 5, "source_trim")),
            Diff(5, [6]),
        ],
    ),
    Example(
        "C2",
        "a floor tombstone covers the gaps below earliest; at the floor the gap speaks for itself (TM5, TM17)",
        [
            Put(),
            Append(batch(3), first=1),
            OpenGap(2),
            Append(batch(2), first=6),
            Put(cap_records=2),
            Diff(0, [6, 7], tombstone=(1, 5, "cap"), earliest=6),
            Diff(2, [6, 7], tombstone=(3, 5, "cap")),
            Diff(3, [6, 7], tombstone=(4, 5, "source_trim")),
            State(floor=4, gaps=[Gap(4, 5, "source_trim")]),
            Put(cap_records=1),
            Diff(3, [7], tombstone=(4, 6, "cap")),
            State(floor=7, gaps=[]),
        ],
    ),
    Example(
        "C3",
        "between floor and gap a deleted stretch stays silent (TM9, TM16)",
        [
            Put(cap_records=4),
            Append(batch(6), first=1),
            OpenGap(2, "cap"),
            Delete(4, before_seq=7),
            Append(batch(1), first=9),
            Diff(0, [9], tombstone=(1, 8, "cap"), earliest=9),
            Diff(2, [], next=6),
            Diff(6, [9], tombstone=(7, 8, "cap")),
        ],
    ),
    Example(
        "C4",
        "neighbouring gaps merge if of one reason, else each is announced by its own read (TM16, TM17)",
        [
            Put(),
            OpenGap(1),
            OpenGap(2),
            OpenGap(2, "cap"),
            State(head=5, earliest=6, floor=1, gaps=[Gap(1, 3, "source_trim"), Gap(4, 5, "cap")]),
            Diff(0, [], tombstone=(1, 3, "source_trim"), next=3, earliest=6),
            Diff(3, [], tombstone=(4, 5, "cap"), next=5),
            Diff(5, []),
        ],
    ),
    Example(
        "C5",
        "a filtered or limited walk stops before a gap, too, with nothing collected (TM16, ND2)",
        [
            Put(),
            Append(batch(3, node="me"), first=1),
            OpenGap(1),
            Append(batch(2, node="other"), first=5),
            Diff(0, [], nodes=["me"], next=3),
            Diff(3, [5], nodes=["me"], limit=1, tombstone=(4, 4, "source_trim"), next=5),
            Diff(0, [1, 2, 3], limit=3, next=3),
        ],
    ),
    Example(
        "C6",
        "all expired below a gap at the end of the log: one range up to head (TM2, TM4)",
        [
            Put(ttl_ms=1000),
            Append(batch(2), first=1),
            OpenGap(2),
            Clock(1001),
            Diff(0, [], tombstone=(1, 4, "ttl"), next=4, earliest=5),
            Diff(2, [], tombstone=(3, 4, "source_trim"), next=4),
        ],
    ),
    Example(
        "C7",
        "recreated wins over floor and gap, and its cursor is earliest - 1 (TM6, TM11)",
        [
            Put(),
            Drop(),
            Put(cap_records=1),
            OpenGap(2),
            Append(batch(2), first=3),
            Diff(0, [4], tombstone=(1, 4, "recreated"), old_epoch=True),
            Diff(4, [4], tombstone=(1, 4, "recreated"), old_epoch=True),
            Diff(5, [4], tombstone=(1, 4, "recreated")),
            Diff(4, []),
        ],
    ),
    Example(
        "C8",
        "the byte budget stops ahead of what does not fit, but the first record always fits (DF5)",
        [
            Put(),
            Append(batch(4, bytes=10), first=1),
            Diff(0, [1, 2], bytes_max=20, next=2),
            Diff(0, [1], bytes_max=19, next=1),
            Diff(0, [1], bytes_max=1, next=1),
            Delete(1, before_seq=2),
            Append(batch(1, bytes=100), first=5),
            Diff(0, [2, 3, 4], bytes_max=100, next=4),
            Diff(4, [5], bytes_max=10),
        ],
    ),
    Example(
        "C9",
        "a limited read stops at its last record, not behind what it would skip next (DF3, DF5)",
        [
            Put(),
            Append([*batch(1), *batch(2, node="me"), *batch(1)], first=1),
            Diff(0, [1], limit=1, nodes=["me"], next=1),
            Diff(1, [4], limit=1, nodes=["me"]),
        ],
    ),
    Example(
        "C10",
        "dedupe_node:false switches the node filter off; no node is never an own one (ND1, ND3)",
        [
            Put(),
            Append([*batch(1, node="me"), *batch(1), *batch(1, node="")], first=1),
            Diff(0, [2, 3], nodes=["me"]),
            Diff(0, [2], nodes=["me", ""]),
            Put(dedupe_node=False),
            Diff(0, [1, 2, 3], nodes=["me", ""]),
        ],
    ),
    Example(
        "C11",
        "a tag filter skips silently, untagged records included",
        [
            Put(cap_records=4),
            Append([*batch(2, tag="a:1"), *batch(1), *batch(1, tag="b"), *batch(1, tag="a:2")], first=1),
            Diff(0, [2, 5], filter=["tag", "Glob", "a:*"], tombstone=(1, 1, "cap")),
            Diff(1, [4], filter="b"),
            Diff(1, [2], filter="a:1", limit=1, next=2),
        ],
    ),
    Example(
        "C12",
        "under old a batch above the caps keeps its newest records, the rest is cap loss (WR12)",
        [
            Put(cap_bytes=25),
            Append(batch(1), first=1),
            Append(batch(4), first=2),
            Diff(0, [4, 5], tombstone=(1, 3, "cap")),
            State(bytes=20, count=2),
            Refused(RecordTooLarge, Append(batch(1, bytes=26), first=6)),
            Put(cap_records=3),
            Append(batch(5), first=6),
            Diff(0, [8, 9, 10], tombstone=(1, 7, "cap")),
        ],
    ),
    Example(
        "C13",
        "under reject too large for an empty topic is 400, too large for now is 422 (WR11, WR12)",
        [
            Put(discard="reject", cap_records=3, cap_bytes=50),
            Refused(RecordTooLarge, Append(batch(4), first=1)),
            Refused(RecordTooLarge, Append(batch(1, bytes=51), first=1)),
            Refused(RecordTooLarge, Append(batch(2, bytes=26), first=1)),
            Append(batch(3), first=1),
            Refused(TopicFull, Append(batch(1), first=4)),
            State(head=3, count=3),
        ],
    ),
    Example(
        "C14",
        "expired records do not fill a cap, and dying of age is not dying of the cap (WR13, TM10)",
        [
            Put(discard="reject", cap_records=2, ttl_ms=1000),
            Append(batch(2), first=1),
            Clock(1000),
            Refused(TopicFull, Append(batch(1), first=3)),
            Clock(1),
            Append(batch(1), first=3),
            Put(cap_records=1, ttl_ms=1000),
            Clock(1001),
            Append(batch(1), first=4),
            Diff(0, [4], tombstone=(1, 3, "ttl")),
        ],
    ),
    Example(
        "C15",
        "a changed cap or TTL acts at once, and loosening brings nothing back (TP7, TM14)",
        [
            Put(),
            Append(batch(4), first=1),
            Put(cap_records=3),
            State(count=3, floor=2, earliest=2),
            Put(),
            Clock(10),
            Put(ttl_ms=9),
            State(count=0, floor=5, earliest=5, head=4),
            Put(),
            Diff(0, [], tombstone=(1, 4, "mixed")),
            Diff(1, [], tombstone=(2, 4, "ttl")),
        ],
    ),
    Example(
        "C16",
        "at a PUT the old TTL acts first, then the new one, then the cap (TP7, TM7, TM10)",
        [
            Put(ttl_ms=10),
            Append(batch(1), first=1),
            Clock(11),
            Put(ttl_ms=1000),
            State(count=0, floor=2),
            Append(batch(1), first=2),
            Clock(11),
            Append(batch(1), first=3),
            Put(ttl_ms=10, cap_records=1),
            Diff(0, [3], tombstone=(1, 2, "ttl")),
        ],
    ),
    Example(
        "C17",
        "switching from reject to old evicts at that moment (TP17)",
        [
            Put(discard="reject", cap_records=3),
            Append(batch(3), first=1),
            Put(discard="reject", cap_records=1),
            State(count=3, floor=1),
            Put(discard="old", cap_records=1),
            State(count=1, floor=3, earliest=3),
        ],
    ),
    Example(
        "C18",
        "a repeated key answers the first write, full topic or not, until the window is over (ID1, ID5, ID6, ID7)",
        [
            Put(discard="reject", cap_records=3, idempotency_window_ms=1000),
            Append(batch(2), first=1, key="k"),
            Append(batch(1), first=3),
            Clock(1000),
            Append(batch(2), first=1, key="k", head=2, deduped=True),
            Delete(3, before_seq=9),
            Clock(1),
            Append(batch(2), first=4, key="k"),
            Append(batch(2), first=4, key="k", deduped=True),
        ],
    ),
    Example(
        "C19",
        "a key belongs to the instance, and window 0 remembers none (ID1)",
        [
            Put(),
            Append(batch(1), first=1, key="k"),
            Drop(),
            Append(batch(1), first=1, key="k"),
            Put(idempotency_window_ms=0),
            Append(batch(1), first=2, key="j"),
            Append(batch(1), first=3, key="j"),
            Put(),
            Append(batch(1), first=4, key="j"),
            Append(batch(1), first=4, key="j", deduped=True),
        ],
    ),
    Example(
        "C20",
        "a refused write leaves no key behind (ID4)",
        [
            Put(discard="reject", cap_records=1),
            Append(batch(1), first=1),
            Refused(TopicFull, Append(batch(1), first=2, key="k")),
            Delete(1, before_seq=2),
            Append(batch(1), first=2, key="k"),
        ],
    ),
    Example(
        "C21",
        "create decides, then the inline config's auto_create; an existing topic ignores both (WR7)",
        [
            Refused(TopicNotFound, Append(batch(1), first=1, create=False)),
            Refused(TopicNotFound, Append(batch(1), first=1, config=TopicConfig(auto_create=False))),
            Append(batch(1), first=1, create=True, config=TopicConfig(auto_create=False, cap_records=2)),
            Append(batch(1), first=2, create=False, config=TopicConfig(cap_records=9)),
            State(count=2, config=TopicConfig(auto_create=False, cap_records=2)),
        ],
    ),
    Example(
        "C22",
        "selectors of a delete must both hold, and beyond head means all present (DL2, DL3)",
        [
            Put(),
            Append([*batch(2, tag="a"), *batch(1), *batch(2, tag="a")], first=1),
            Delete(0, before_seq=0),
            Delete(2, before_seq=3, match="a"),
            State(count=3, earliest=3, floor=1),
            Delete(3, before_seq=99),
            Delete(0, before_seq=99),
            State(count=0, bytes=0, earliest=6, head=5, floor=1),
            Append(batch(1), first=6),
            Diff(0, [6], earliest=6),
        ],
    ),
    Example(
        "C23",
        "the type of a topic stays (TP5)",
        [
            Put(type="queue"),
            Refused(TopicIncompatible, Put()),
            State(config=TopicConfig(type="queue"), head=0, earliest=1, count=0, bytes=0, last_write_ts=None),
        ],
    ),
    Example(
        "C24",
        "a graceful stop takes an ephemeral topic's records, loudly, and keeps its head (DU1, DU9)",
        [
            Put(durability="ephemeral"),
            Append(batch(3), first=1),
            Append(batch(1, tag="x"), first=4),
            Delete(1, match="x"),
            Restart(),
            State(head=4, floor=4, earliest=5, count=0),
            Diff(0, [], tombstone=(1, 4, None)),
            Diff(3, []),
            Append(batch(1), first=5),
            Diff(3, [5]),
        ],
    ),
]

EXAMPLES = [*WORKED_EXAMPLES, *SCENARIOS, *CORNERS]
