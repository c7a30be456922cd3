"""What the clients ask, from a seed: every kind of request that changes something or shows it, on several topics.

Owns the topics of a run (`TOPICS`, `ROUTERS`) and the choice of the next request, which follows from the seed and from
the answers so far (heads to read from, jobs to settle, keys to repeat). Must not know: protocols, what is right.

The data of each record says who wrote it: `<round>.<client>.<request>.<record>`, with padding behind it.
"""

import random
from collections.abc import Sequence
from typing import Any, NamedTuple

from tests.pipelining.clients import Answer, Heard, Request

DAY_MS = 86_400_000  # no lease and no idempotency key ends during a run
KEYS = {"idempotency_window_ms": DAY_MS}
QUEUE = {"type": "queue", "lease_ms": DAY_MS} | KEYS
LOGS = ("log.fsync", "log.disk", "log.memory", "log.ephemeral")  # records are deleted from these only
SOURCES = ("source", "source.fleeting", "capped")
CAP = 6
AGING = ("aging", "aging.fsync")  # records expire
LOSSY = ("capped", "copy.capped", *AGING, "copy.aging")  # records are lost while the server runs, and announced
QUEUES = ("jobs", "steady", "strict", "fleeting")
BRIEF = ("brief", "brief.kept")  # queues whose leases end by time
LEASE_MS = 2000
BOUND = 8
TOPICS: dict[str, dict[str, Any]] = {
    "log.fsync": {"durability": "fsync"} | KEYS,
    "log.disk": {"durability": "disk"} | KEYS,
    "log.memory": {"durability": "memory"} | KEYS,
    "log.ephemeral": {"durability": "ephemeral"} | KEYS,
    "source": KEYS,
    "source.fleeting": {"durability": "ephemeral"} | KEYS,
    "capped": {"cap_records": CAP} | KEYS,
    "copy": {},
    "copy.fsync": {"durability": "fsync"},
    "copy.ephemeral": {"durability": "ephemeral"},
    "copy.fleeting": {},
    "copy.capped": {},
    "jobs": {"max_deliveries": 2, "dead_letter": "jobs.dead"} | QUEUE,
    "steady": {"durability": "fsync", "leases_durable": True} | QUEUE,
    "strict": {"leases_durable": True, "max_deliveries": 2, "dead_letter": "strict.dead"} | QUEUE,
    "strict.dead": {"durability": "ephemeral"},
    "fleeting": {"durability": "ephemeral", "max_deliveries": 2, "dead_letter": "fleeting.dead"} | QUEUE,
}
BRIEF_QUEUE = {"type": "queue", "lease_ms": LEASE_MS, "max_deliveries": 3} | KEYS
TIMED: dict[str, dict[str, Any]] = {  # for a workload on a clock by hand
    "aging": {"ttl_ms": 4000} | KEYS,
    "aging.fsync": {"ttl_ms": 6000, "durability": "fsync"} | KEYS,
    "copy.aging": {},
    "bounded": {"cap_records": BOUND, "discard": "reject"} | KEYS,
    "brief": {"dead_letter": "brief.dead"} | BRIEF_QUEUE,
    "brief.kept": {"dead_letter": "brief.kept.dead", "leases_durable": True, "durability": "fsync"} | BRIEF_QUEUE,
}
DEAD = {  # most of them come with a letter
    "jobs": "jobs.dead",
    "strict": "strict.dead",
    "fleeting": "fleeting.dead",
    "brief": "brief.dead",
    "brief.kept": "brief.kept.dead",
}
ROUTERS = {  # dest → source, guarantee
    "copy": ("source", "at_least_once"),
    "copy.fsync": ("source", "exactly_once"),
    "copy.ephemeral": ("source", "at_least_once"),
    "copy.fleeting": ("source.fleeting", "at_least_once"),
    "copy.capped": ("capped", "at_least_once"),
    "copy.aging": ("aging", "at_least_once"),
}
READ_TIMED = (*AGING, "copy.aging", "bounded", "brief", "brief.dead", "brief.kept.dead")
READ = (*(name for name in (*LOGS, *SOURCES, *ROUTERS, *DEAD.values()) if name not in READ_TIMED), "jobs", "steady")
CLASSES = ("fsync", "disk", "memory", "ephemeral")
TAGS = ("a", "b", "c")
WEIGHTS = {
    "append": 40,
    "batch": 12,
    "keyed": 6,
    "repeat": 6,
    "lazy": 3,
    "put": 3,
    "drop": 1,
    "delete_before": 2,
    "delete_tag": 3,
    "diff": 8,
    "wait": 3,
    "claim": 12,
    "ack": 8,
    "nack": 6,
}
WRITES = ("append", "batch", "keyed", "repeat", "lazy")
REPEATED_MAX = 20  # keyed writes that may still be repeated
WAIT_MS = 1000


def config_of(topic: str) -> dict[str, Any]:
    """The config that a topic is created with, whoever does it; a dead-letter topic gets the default."""
    if topic.startswith("new."):
        return {"durability": topic.split(".")[1]} | KEYS
    return TOPICS.get(topic) or TIMED.get(topic, {})


def class_of(topic: str) -> str:
    return str(config_of(topic).get("durability", "disk"))


class Job(NamedTuple):
    """A job that was handed out and is not settled yet."""

    topic: str
    node: str
    seq: int
    lease_id: str


class Workload:
    """`name` is that of the round: what one has written no other writes. `is_timed`: on a clock by hand."""

    def __init__(self, rng: random.Random, name: str, *, pad_max: int = 40, is_timed: bool = False) -> None:
        self.held: list[Job] = []
        self.keyed: list[Request] = []  # writes that may be repeated
        self.topics = TOPICS | TIMED if is_timed else TOPICS
        self._logs = (*LOGS, "bounded") if is_timed else LOGS
        self._queues = (*QUEUES, *BRIEF, *BRIEF) if is_timed else QUEUES
        self._written = (*LOGS, *LOGS, *SOURCES, *self._queues, *((*AGING, "bounded") if is_timed else ()))
        self._read = (*READ, *READ_TIMED) if is_timed else READ
        self._rng = rng
        self._name = name
        self._pad_max = pad_max
        self._count = 0
        self._heads: dict[str, int] = {}  # the highest seq that was told, by topic
        self._new: list[str] = []  # topics that come into being by a write or a PUT of this round

    def setup(self) -> list[Request]:
        """What comes before all else; the same in every round."""
        puts = [Request("put", name, config_of(name), "PUT") for name in self.topics]
        routers = {dest: router for dest, router in ROUTERS.items() if dest in self.topics}
        for dest, (source, guarantee) in routers.items():
            body = {"source": source, "dest": dest, "guarantee": guarantee}
            puts.append(Request("router", dest, body, "PUT", f"/routers/{source}->{dest}"))
        return puts

    def heard(self, heard: Heard) -> None:
        """Learn from an answer, or from what was pushed."""
        if not isinstance(heard, Answer):
            if heard.event == "job":
                job = heard.body
                self.held.append(Job(job["topic"], f"{job['topic']}.stream", job["$seq"], job["lease_id"]))
            return
        request, status, body = heard
        if status >= 300:
            return
        head = body.get("head_seq", 0)
        self._heads[request.topic] = max(self._heads.get(request.topic, 0), head)
        if request.kind == "claim":
            node = (request.body or {})["node"]
            self.held += [Job(request.topic, node, job["$seq"], job["lease_id"]) for job in body["claimed"]]
        if request.kind == "extend":
            asked = request.body or {}
            jobs = [(seq, one) for seq, one in zip(asked["seqs"], asked["lease_ids"], strict=True)]
            self.held += [Job(request.topic, asked["node"], *job) for job in jobs if str(job[0]) in body["deadlines"]]

    def next(self, client: str, takes: Sequence[str] = ()) -> Request:
        """What a client asks next."""
        kinds = WRITES if takes else tuple(WEIGHTS)
        kind = self._rng.choices(kinds, [WEIGHTS[kind] for kind in kinds])[0]
        self._count += 1
        if kind in WRITES:
            return self._write(kind, client)
        if kind in ("ack", "nack") and self.held:
            is_extending = kind == "nack" and len(self.topics) > len(TOPICS) and self._rng.random() < 0.3
            return self._settle("extend" if is_extending else kind)
        if kind in ("delete_before", "delete_tag"):
            return self._delete(kind)
        if kind in ("diff", "wait"):
            return self._diff(is_waiting=kind == "wait")
        if kind == "drop" and self._new:
            return Request("drop", self._rng.choice(self._new), None, "DELETE")
        if kind == "put":
            name = self._new_name()
            return Request("put", name, config_of(name), "PUT")
        body = {"node": client, "max": self._rng.randint(1, 4)}
        topic = self._rng.choice(self._queues)
        return Request("claim", topic, body, path=f"/topics/{topic}/claim")

    def _write(self, kind: str, client: str) -> Request:
        if kind == "repeat" and self.keyed:
            first = self._rng.choice(self.keyed)
            return Request("write", first.topic, first.body)
        count = self._rng.randint(2, 6) if kind == "batch" else 1
        body: dict[str, Any] = {"records": [self._record(client, number) for number in range(count)]}
        topic = self._new_name() if kind == "lazy" else self._rng.choice(self._written)
        if topic in self._new:
            body["config"] = config_of(topic)
        elif kind == "keyed":
            body["idempotency_key"] = f"{self._name}.{client}.{self._count}"
        request = Request("write", topic, body)
        if kind == "keyed":
            self.keyed = [*self.keyed, request][-REPEATED_MAX:]
        return request

    def _record(self, client: str, number: int) -> dict[str, Any]:
        padding = "x" * self._rng.choice((0, 8, self._pad_max))
        record: dict[str, Any] = {"data": f"{self._name}.{client}.{self._count}.{number}:{padding}"}
        if self._rng.random() < 0.5:
            record["tag"] = self._rng.choice(TAGS)
        return record

    def _new_name(self) -> str:
        """The name of a topic that is new, or that another client is about to create as well (TP14)."""
        if self._new and self._rng.random() < 0.4:
            return self._rng.choice(self._new[-3:])
        name = f"new.{self._rng.choice(CLASSES)}.{self._name}.{self._count}"
        self._new.append(name)
        return name

    def _delete(self, kind: str) -> Request:
        topic = self._rng.choice(self._logs)
        head = self._heads.get(topic, 0)
        if kind == "delete_before":
            body: dict[str, Any] = {"before_seq": self._rng.randint(0, max(1, head * 3 // 4))}
        else:
            body = {"match": self._rng.choice(TAGS)}
        return Request("delete", topic, body, path=f"/topics/{topic}/delete")

    def _diff(self, *, is_waiting: bool) -> Request:
        topic = self._rng.choice(self._logs if is_waiting else self._read)
        head = self._heads.get(topic, 0)
        body: dict[str, Any] = {"from_seq": head if is_waiting else self._rng.randint(0, head), "include_tags": True}
        if is_waiting:
            body["wait_ms"] = WAIT_MS
        return Request("diff", topic, body, path=f"/topics/{topic}/diff")

    def _settle(self, kind: str) -> Request:
        """Ack, nack or extend some of the jobs that one node holds of one queue."""
        first = self._rng.choice(self.held)
        alike = {job.seq: job for job in self.held if (job.topic, job.node) == (first.topic, first.node)}
        taken = list(alike.values())[: self._rng.randint(1, 3)]
        self.held = [job for job in self.held if job not in taken]
        body = {"node": first.node, "seqs": [job.seq for job in taken], "lease_ids": [job.lease_id for job in taken]}
        if kind == "extend":
            body["lease_ms"] = LEASE_MS if first.topic in BRIEF else DAY_MS
        return Request(kind, first.topic, body, path=f"/topics/{first.topic}/{kind}")
