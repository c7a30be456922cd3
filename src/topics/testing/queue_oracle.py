"""The oracle of one queue: a naive model of its jobs, to compare the real one with.

It owns nothing but Python lists and knows nothing of the core. A job is an object with all that there is to know of
it; every question looks at all jobs. Time is told, and what it ends has ended when a call looks.

How the oracle reads what the contract leaves open:

- **Given back or fresh.** A job with a delivery count was handed out before, and comes before those without one.
- **Exhausted jobs.** A pass goes through the jobs in their order; an exhausted one that it meets is moved, or stays if
  the dead-letter topic has no room, and the pass goes on. After the first that stays no other is tried.
- **A kill** takes what was never logged: leases and delays unless they are durable, and the delivery counts since the
  last checkpoint, those of durable leases aside.
"""

from dataclasses import dataclass, field, replace

from topics.model import TopicConfig


@dataclass
class Job:
    """A live job."""

    seq: int
    ts: int
    data: int
    claimable_from: int = 0
    is_scheduled: bool = False  # its delay was written with it
    deliveries: int = 0
    counted: int = 0  # the deliveries that a kill leaves
    holder: str | None = None
    lease_id: str = ""
    deadline: int = 0

    def give_back(self, claimable_from: int = 0) -> None:
        self.holder, self.claimable_from = None, claimable_from


@dataclass
class QueueOracle:
    """A queue and its dead-letter topic; `dead_room` is how many letters still fit there, None = any number."""

    config: TopicConfig
    jobs: list[Job] = field(default_factory=list)
    head: int = 0
    letters: list[int] = field(default_factory=list)  # data of the dead letters
    dead_cap: int | None = None
    dead_lettered: int = 0
    paused: bool = False

    @property
    def seqs(self) -> list[int]:
        return [job.seq for job in self.jobs]

    def look(self, now: int) -> None:
        """What time has done."""
        ttl_ms = self.config.ttl_ms
        self.jobs = [job for job in self.jobs if not ttl_ms or now - job.ts <= ttl_ms]
        for job in self.jobs:
            if job.holder is not None and now > job.deadline:
                job.give_back()
            if job.claimable_from <= now:
                job.claimable_from, job.is_scheduled = 0, False

    def counts(self, now: int) -> tuple[int, int, int]:
        """Ready, in flight, delayed."""
        self.look(now)
        held = sum(job.holder is not None for job in self.jobs)
        delayed = sum(job.claimable_from > 0 for job in self.jobs)
        return len(self.jobs) - held - delayed, held, delayed

    def append(self, data: list[int], starts: list[int], now: int) -> bool:
        """Write jobs, each claimable from a time on; False if the queue has no room."""
        self.look(now)
        cap = self.config.cap_records
        if cap and self.config.discard == "reject" and len(self.jobs) + len(data) > cap:
            return False
        for value, start in zip(data, starts, strict=True):
            self.head += 1
            start = start if start > now else 0
            self.jobs.append(Job(self.head, now, value, start, start > 0))
        self._evict()
        return True

    def _evict(self) -> None:
        cap = self.config.cap_records
        if cap and self.config.discard == "old":
            self.jobs = self.jobs[-cap:]

    def claim(self, node: str, count: int, lease_ms: int, now: int) -> list[Job]:
        """Hand out jobs; their lease ids are not known yet."""
        self.look(now)
        if self.paused:
            return []
        claimed: list[Job] = []
        is_stuck = False
        limit = self.config.max_deliveries if self.config.dead_letter is not None else 0
        for job in sorted(self.jobs, key=lambda job: (job.deliveries == 0, job.seq)):
            if len(claimed) == count:
                break
            if job.holder is not None or job.claimable_from:
                continue
            if limit and job.deliveries >= limit:
                is_stuck = is_stuck or not self._bury(job)
                continue
            claimed.append(job)
        for job in claimed:
            job.holder, job.deadline = node, now + lease_ms
            job.deliveries += 1
            self._note(job)
        return sorted(claimed, key=lambda job: job.seq)

    def _bury(self, job: Job) -> bool:
        if self.dead_cap is not None and len(self.letters) >= self.dead_cap:
            return False
        self.letters.append(job.data)
        self.jobs.remove(job)
        self.dead_lettered += 1
        return True

    def _note(self, job: Job) -> None:
        if self.config.leases_durable:
            job.counted = job.deliveries

    def held(self, node: str, seqs: list[int], tokens: list[str], now: int) -> tuple[list[Job], list[int]]:
        """The jobs of these that the node holds under these tokens ("" = any), and the seqs of the others."""
        self.look(now)
        found: list[Job] = []
        others: list[int] = []
        for seq, token in zip(seqs, tokens, strict=True):
            job = next((job for job in self.jobs if job.seq == seq), None)
            if job is None or job in found or job.holder != node or token not in ("", job.lease_id):
                others.append(seq)
            else:
                found.append(job)
        return found, others

    def remove(self, jobs: list[Job]) -> None:
        gone = {job.seq for job in jobs}
        self.jobs = [job for job in self.jobs if job.seq not in gone]

    def redrive(self, most: int | None, now: int) -> int:
        """Letters become jobs again, as many as there is room for."""
        self.look(now)
        count = len(self.letters) if most is None else min(most, len(self.letters))
        cap = self.config.cap_records
        if cap and self.config.discard == "reject":
            count = max(0, min(count, cap - len(self.jobs)))
        back, self.letters = self.letters[:count], self.letters[count:]
        if back:
            assert self.append(back, [0] * count, now)
        return count

    def configure(self, now: int, **changes: object) -> None:
        self.look(now)
        was_durable = self.config.leases_durable
        self.config = replace_config(self.config, changes)
        self.look(now)
        self._evict()
        if self.config.leases_durable and not was_durable:
            for job in self.jobs:
                if job.holder is not None or (job.claimable_from and not job.is_scheduled):
                    job.counted = job.deliveries

    def checkpointed(self) -> None:
        for job in self.jobs:
            job.counted = job.deliveries

    def restarted(self, *, is_graceful: bool) -> None:
        """The process stopped and started again; the queue is logged."""
        if is_graceful:
            self.checkpointed()
        for job in self.jobs:
            job.deliveries = job.counted
            if not self.config.leases_durable:
                job.give_back(job.claimable_from if job.is_scheduled else 0)


def replace_config(config: TopicConfig, changes: dict[str, object]) -> TopicConfig:
    fields = {name: getattr(config, name) for name in config.__struct_fields__}
    return TopicConfig(**(fields | changes))


def snapshot(oracle: QueueOracle) -> QueueOracle:
    """A copy that goes its own way."""
    return replace(oracle, jobs=[replace(job) for job in oracle.jobs], letters=list(oracle.letters))
