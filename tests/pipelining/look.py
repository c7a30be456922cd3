"""What a server has, seen through its HTTP API alone: every topic, every record, every tombstone, every lease.

A look is a generator: it yields requests that may be asked together, in this order on one connection, and is sent
their answers; its value is what was found. So it serves any client, on any wire. Must not know: what is right.
"""

from collections.abc import Generator, Iterable
from dataclasses import dataclass, field
from typing import Any, NamedTuple, TypeVar

from tests.pipelining.clients import Answer, Request

T = TypeVar("T")
Look = Generator[list[Request], list[Answer], T]

PAGE = 1000


class Record(NamedTuple):
    data: str
    tag: str | None
    meta: dict[str, str]
    ts: int = 0


class Lease(NamedTuple):
    node: str
    deadline: int


@dataclass
class TopicFound:
    state: dict[str, Any]
    records: dict[int, Record] = field(default_factory=dict)
    lost: set[int] = field(default_factory=set)  # seqs that tombstones announce
    leases: dict[int, Lease] = field(default_factory=dict)

    @property
    def head(self) -> int:
        return int(self.state["head_seq"])

    @property
    def epoch(self) -> int:
        return int(self.state["epoch"])

    @property
    def missing(self) -> set[int]:
        """Seqs without a record and without a tombstone."""
        return set(range(1, self.head + 1)) - self.records.keys() - self.lost

    @property
    def is_queue(self) -> bool:
        return bool(self.state["type"] == "queue")

    def as_text(self, *, with_epoch: bool) -> str:
        """All that recovering again must not change."""
        state = {name: self.state[name] for name in ("head_seq", "earliest_seq", "count", "bytes", "config")}
        lasting = (self.epoch, sorted(self.lost)) if with_epoch else ()
        return repr((lasting, state, sorted(self.records.items()), sorted(self.leases.items())))


Found = dict[str, TopicFound]


def look() -> Look[Found]:
    """Everything."""
    names = yield from _names()
    found: Found = {}
    asked = [request for name in names for request in (diff(name, 0), state(name))]  # copies are made by the diff
    answers = iter((yield asked))
    for name in names:
        read, stated = next(answers), next(answers)
        found[name] = TopicFound(_ok(stated))
        while not _add(found[name], _ok(read)):
            (read,) = yield [diff(name, read.body["next_from_seq"])]
    queues = [name for name in names if found[name].is_queue]
    for name, listed in zip(queues, (yield [leases(name) for name in queues]), strict=True):
        assert "next_cursor" not in _ok(listed), "more leases than a page has"
        found[name].leases = {one["$seq"]: Lease(one["node"], one["deadline"]) for one in listed.body["leases"]}
    return found


def states(names: Iterable[str]) -> Look[None]:
    """The state of some topics, for what a look at it does to them."""
    yield [state(name) for name in names]


def _names() -> Look[list[str]]:
    names: list[str] = []
    cursor = ""
    while True:
        (listed,) = yield [Request("list", "", None, "GET", f"/topics?page_size={PAGE}{cursor}")]
        names += [topic["topic"] for topic in _ok(listed)["topics"]]
        if "next_cursor" not in listed.body:
            return names
        cursor = f"&cursor={listed.body['next_cursor']}"


def _add(found: TopicFound, answer: dict[str, Any]) -> bool:
    """Add what a diff has shown; whether that was all."""
    gap = answer["tombstone"]
    if gap is not None:
        found.lost.update(range(gap["gap_from"], gap["gap_to"] + 1))
    for record in answer["records"]:
        assert record["$seq"] not in found.records, f"a record twice in one reading: {record}"
        found.records[record["$seq"]] = Record(
            record["data"], record.get("$tag"), record.get("meta", {}), record["$ts"]
        )
    return bool(answer["caught_up"])


def drain(found: Found) -> Look[dict[str, set[int]]]:
    """Claim all that can be claimed of every queue; the seqs that were handed out."""
    claimed: dict[str, set[int]] = {}
    for name in [name for name, topic in found.items() if topic.is_queue]:
        claimed[name] = set()
        jobs: list[dict[str, Any]] = [{}]
        while jobs:
            (answer,) = yield [
                Request("claim", name, {"node": "last", "max": PAGE}, path=f"/topics/{name}/claim"),
            ]
            jobs = _ok(answer)["claimed"]
            seqs = {job["$seq"] for job in jobs}
            assert not seqs & claimed[name], f"{name}: handed out twice: {sorted(seqs & claimed[name])}"
            claimed[name] |= seqs
    return claimed


def diff(name: str, after: int) -> Request:
    body = {"from_seq": after, "limit": PAGE, "include_tags": True}
    return Request("diff", name, body, path=f"/topics/{name}/diff")


def state(name: str) -> Request:
    return Request("state", name, None, "GET")


def leases(name: str) -> Request:
    return Request("leases", name, None, "GET", f"/topics/{name}/leases?page_size={PAGE}")


def _ok(answer: Answer) -> dict[str, Any]:
    assert 200 <= answer.status < 300, answer
    return answer.body
