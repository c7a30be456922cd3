"""Queues: jobs are handed out under leases, and acked, given back or kept longer.

Asks the core what is to be done (core/queue/leasing.py), commits it, and renders the answer. Owns the numbers of
leases, and what must be corrected if the log fails. Must not know: HTTP, who waits for jobs and for how long.

A pass picks jobs, renders them, and leases them, without an await; so a job is leased only if its text is in memory.
Otherwise the pass raises Cold before anything has changed, and is repeated.

Leases of a queue that does not keep them are applied and not logged. What fails in the log leaves its jobs claimable:
their leases are ended once the state is the one that holds.
"""

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from heapq import nsmallest
from itertools import chain
from secrets import randbits

from topics.core.entries import Leased
from topics.core.queue import leasing
from topics.core.queue.leasing import Ack, Change, Claimer, Deleting, Numbers
from topics.core.state import Topic
from topics.core.topic.pages import Cold
from topics.engine.answers import Claimed, LeaseChange, LeaseView, Moved, Redriven
from topics.engine.gate import Gate, Hall
from topics.engine.queues.dead_letters import DeadLetters
from topics.engine.queues.job_pages import JobPages
from topics.errors import CommitFailed, NotAQueue, TopicNotFound
from topics.model import TagMatch
from topics.storage.wal import Callback

LOADS_MAX = 16  # pages loaded for one pass before it takes what is warm
LOOKED_AT = 20_000  # leases in one turn of the loop


class Queues:
    """The queues of one instance."""

    def __init__(self, hall: Hall, make_copies: Callable[[Topic], None]) -> None:
        self._ledger, self._gates, self._clock = hall.ledger, hall.gates, hall.clock
        self._loader, self._cache = hall.loader, hall.cache
        self.on_claimable: Callable[[int], None] = lambda topic_id: None  # jobs of a topic may have become claimable
        self._make_copies = make_copies  # that routers owe a topic (DF9)
        self._letters = DeadLetters(hall, self._note_deleting)
        self._deleting: deque[tuple[Gate, int, list[Deleting]]] = deque()  # jobs that go when the gate is open
        self._listing = asyncio.Lock()  # one list of leases at a time is made
        self._next_number = randbits(46) << 16  # of a lease; those of an earlier start are others

    def queue(self, name: str) -> Topic:
        """A queue by its name, as it is now."""
        topic = self._ledger.current(name)
        if topic is None:
            raise TopicNotFound(name)
        if topic.config.type != "queue":
            raise NotAQueue(name)
        return topic

    def claimable(self, name: str) -> Topic:
        """A queue with all that was committed upstream of it. Cold: that takes longer."""
        topic = self.queue(name)
        if topic.id in self._ledger.state.routers.incoming:
            self._make_copies(topic)
        return topic

    # --- handing out

    def hand_out_each(
        self, name: str, claimers: Sequence[Claimer], *, takes_what_is_warm: bool = False
    ) -> tuple[list[Claimed], Gate]:
        """One pass for claims that come one after the other: each gets as many jobs as it wants, while there are some.

        As `hand_out`, but if a page is missing or damaged, or the texts are many bytes, only the first ones are served:
        there are fewer hands than claimers then, and one at least.
        """
        topic = self.claimable(name)
        if topic.paused:
            return self.hand_out(topic, claimers)
        queue, now, number = topic.queue, self._clock.now_ms(), self._next_number
        picked, sent = self._pick(topic, claimers, takes_what_is_warm)
        pages = JobPages(self._cache, topic.log, leasing.HAND_BYTES_MAX)
        is_mixed = bool(queue.returned or queue.overdue)
        at, size, leased, texts = 0, 0, list[Leased](), list[list[bytearray]]()
        for claimer in claimers:
            seqs = picked[at : at + claimer.wanted]
            if is_mixed:
                seqs.sort()
                picked[at : at + claimer.wanted] = seqs
            own = pages.texts(seqs, takes_what_is_warm)
            if seqs and not own:
                break
            leased.append(leasing.hand(topic, claimer, seqs[: len(own)], now, number + at))
            texts.append(own)
            at += len(own)
            size += sum(map(len, own))
            if size > leasing.HAND_BYTES_MAX or len(own) < len(seqs):  # what is left begins with what was given back
                break
        return self._hands(topic, leased, texts, sent)

    def hand_out(
        self, topic: Topic, claimers: Sequence[Claimer], *, takes_what_is_warm: bool = False
    ) -> tuple[list[Claimed], Gate]:
        """One pass: a job for each claimer in turn, while they want more and there are some.

        The result may be shown once the gate is open (`when_shown`). Cold: load what is missing and try again. With
        `takes_what_is_warm` the pass makes do with the jobs whose pages are in memory, if the first one's is.
        """
        if topic.paused:
            leased = [Leased(topic.id, claimer.node, []) for claimer in claimers]
            return self._hands(topic, leased, [()] * len(leased), None)
        picked, sent = self._pick(topic, claimers, takes_what_is_warm)
        own = JobPages(self._cache, topic.log).texts(picked, takes_what_is_warm)
        by_seq = dict(zip(picked, own, strict=False))
        leased = leasing.claim(topic, claimers, by_seq, self._clock.now_ms(), self._next_number)
        return self._hands(topic, leased, [[by_seq[lease[0]] for lease in entry.leases] for entry in leased], sent)

    def _pick(
        self, topic: Topic, claimers: Sequence[Claimer], takes_what_is_warm: bool
    ) -> tuple[list[int], Gate | None]:
        """The jobs for a pass. Those that it comes across and nobody gets any more are moved, behind this gate."""
        queue, wanted = topic.queue, sum([claimer.wanted for claimer in claimers])
        picked = queue.pick(topic.log, wanted)
        if not queue.exhausted:
            return picked, None
        try:
            return picked, self._letters.send(topic, leasing.due_letters(queue, picked, wanted))
        except Cold:
            if not takes_what_is_warm:
                raise
            return picked, None  # while the log takes no letters, their page and that of the jobs may oust each other

    def _hands(
        self, topic: Topic, leased: list[Leased], texts: Sequence[Sequence[bytearray]], sent: Gate | None
    ) -> tuple[list[Claimed], Gate]:
        """Commit the leases of a pass, and give each claimer its jobs; a paused queue has none."""
        count = sum(map(len, texts))
        if count:
            self._next_number += count
            self._ledger.commit([entry for entry in leased if entry.leases])
            topic.notes.count_read(count, self._clock.now_ms())
            self._ledger.read_total += count
        ready = topic.queue.ready(topic.log.count) - len(self._letters.moving(topic))
        hands = [_hand(topic, entry, own, ready) for entry, own in zip(leased, texts, strict=True)]
        gate = self._gates.of(topic)
        return hands, gate if sent is None else gate.join(sent)

    def when_shown(self, hands: Sequence[Claimed], gate: Gate, callback: Callback) -> None:
        """Call back when what was handed out may be shown. If it may not, nobody holds it."""

        def opened(failure: CommitFailed | None) -> None:
            if failure is not None:
                for claimed in hands:
                    self._free_unanswered(claimed)
            callback(failure)

        self._gates.when_open(gate, opened)

    async def claim(self, name: str, claimer: Claimer) -> Claimed:
        """Hand jobs out to one claimer, at once."""
        async with self._gates.refusing(name):
            hands, gate = await self._loader.until_warm(
                lambda takes_what_is_warm: self.hand_out_each(name, [claimer], takes_what_is_warm=takes_what_is_warm),
                LOADS_MAX,
            )
        await self.shown(hands[0], gate)
        return hands[0]

    async def shown(self, claimed: Claimed, gate: Gate) -> None:
        """Return when what was handed out may be shown."""
        try:
            await self._gates.wait_open(gate)
        except CommitFailed:
            self._free_unanswered(claimed)
            raise

    # --- giving back

    def ack(self, name: str, node: str, seqs: Sequence[int], numbers: Numbers) -> tuple[LeaseChange, Gate]:
        """Complete jobs: those that the node holds are deleted."""
        changes, gate = self.ack_all(name, [Ack(node, seqs, numbers)])
        return changes[0], gate

    def ack_all(self, name: str, acks: Sequence[Ack]) -> tuple[list[LeaseChange], Gate]:
        """Complete jobs of several, by one delete. What is told of the queue is how it is after all of them."""
        topic = self.queue(name)
        entries, changes = leasing.ack(topic, acks)
        queue = topic.queue
        if entries:
            leases = queue.leases
            jobs = [(seq, leases[seq][0] + seq, leases[seq][3]) for done, _ in changes for seq in done]
            try:
                self._ledger.commit(entries)
            except CommitFailed:
                self._free(topic.id, jobs)
                raise
            self.on_claimable(topic.id)
        gate = self._gates.of(topic)
        if entries:
            self._note_deleting(topic, gate, jobs)
        ready, in_flight = queue.ready(topic.log.count), len(queue.leases)
        return [LeaseChange(topic.name, done, skipped, ready, in_flight) for done, skipped in changes], gate

    def nack(
        self, name: str, node: str, seqs: Sequence[int], numbers: Numbers, delay_ms: int
    ) -> tuple[LeaseChange, Gate]:
        """Give jobs back: they are claimable again after a delay."""
        start = self._clock.now_ms() + delay_ms if delay_ms else 0
        topic = self.queue(name)
        return self._change_leases(topic, leasing.nack(topic, node, seqs, numbers, start))

    def extend(
        self, name: str, node: str, seqs: Sequence[int], numbers: Numbers, lease_ms: int
    ) -> tuple[LeaseChange, Gate]:
        """Keep jobs longer: until `lease_ms` from now."""
        topic = self.queue(name)
        return self._change_leases(topic, leasing.extend(topic, node, seqs, numbers, self._clock.now_ms() + lease_ms))

    def _change_leases(self, topic: Topic, change: Change) -> tuple[LeaseChange, Gate]:
        """Commit what a nack or extend does, and answer it."""
        if change.entries:
            self._ledger.commit(change.entries)
            self.on_claimable(topic.id)
        queue = topic.queue
        ready, in_flight = queue.ready(topic.log.count), len(queue.leases)
        changed = LeaseChange(topic.name, change.done, change.skipped, ready, in_flight, change.deadline)
        return changed, self._gates.of(topic)

    def release(self, topic_id: int, leases: Sequence[tuple[int, int]]) -> None:
        """End leases (seq, number) whose holder is gone; jobs under other leases are left alone."""
        topic = self._ledger.state.by_id.get(topic_id)
        if topic is not None and (released := leasing.release(topic, leases)):
            try:
                self._ledger.commit(released)
            except CommitFailed:
                self._ledger.commit(leasing.let_go(topic, leases))
            self.on_claimable(topic_id)

    # --- what failed

    def _note_deleting(self, topic: Topic, gate: Gate, jobs: list[Deleting]) -> None:
        """Keep what is known of jobs that are about to go until it is sure that they do."""
        deleting = self._deleting
        while deleting and self._gates.is_passed(deleting[0][0]):
            deleting.popleft()
        if topic.is_logged:
            deleting.append((gate, topic.id, jobs))

    def rebuilt(self) -> None:
        """The log failed, and the state was rebuilt: jobs that are there after all are nobody's (QU11)."""
        deleting, self._deleting = self._deleting, deque()
        for _, topic_id, jobs in deleting:
            self._free(topic_id, jobs)

    def _free(self, topic_id: int, jobs: list[Deleting]) -> None:
        """End the leases of jobs that did not go after all; how often they were handed out still counts."""
        topic = self._ledger.state.by_id.get(topic_id)
        if topic is not None:
            if known := leasing.remembered(topic, jobs):
                self._ledger.commit(known)
            self.release(topic_id, [job[:2] for job in jobs])

    def _free_unanswered(self, claimed: Claimed) -> None:
        """End leases that the claimer was never told of."""
        topic = self._ledger.state.by_id.get(claimed.topic_id)
        leases = [lease[:2] for lease in claimed.leases]
        if topic is None or topic.keeps_leases:
            self.release(claimed.topic_id, leases)
        elif void := leasing.undelivered(topic, leases):
            self._ledger.commit(void)
            self.on_claimable(topic.id)

    # --- dead letters, leases

    async def redrive(
        self, name: str, match: TagMatch | None = None, count_max: int | None = None, *, dry_run: bool = False
    ) -> Redriven:
        """Turn dead letters of a queue back into jobs: those with a matching tag, at most `count_max`.

        All of it happens, or a first part; with `dry_run` nothing: the answer says what would.
        """
        async with self._gates.refusing(name):
            return await self._letters.redrive(self.queue(name), match, count_max, dry_run=dry_run)

    async def move(self, name: str, seqs: Sequence[int], dest: str) -> Moved:
        """Move jobs that nobody holds to another topic, which is created if it does not exist."""
        async with self._gates.refusing(name):
            return await self._letters.move(self.queue(name), seqs, dest)

    async def leases(self, name: str, after: int, count: int) -> tuple[list[LeaseView], bool]:
        """Up to `count` leases of jobs above `after`, ascending; and whether there are more."""
        views: list[LeaseView] = []
        async with self._listing:
            while True:
                wanted = count + 1 - len(views)
                seqs = await self._lowest_held(name, after, wanted)
                views += await self._gates.shown(name, lambda _, seqs=seqs: self._leases_of(name, seqs))  # type: ignore[misc]
                if len(seqs) < wanted or len(views) > count:
                    return views[:count], len(views) > count
                after = seqs[-1]  # some have ended meanwhile

    async def _lowest_held(self, name: str, after: int, count: int) -> list[int]:
        """The first jobs above `after` that are held, found in turns of the loop: there may be a million."""
        topic = self._ledger.current(name)
        held, found = [] if topic is None or not topic.has_queue else list(topic.queue.leases), list[int]()
        for at in range(0, len(held), LOOKED_AT):
            found = nsmallest(count, chain(found, (seq for seq in held[at : at + LOOKED_AT] if seq > after)))
            if at + LOOKED_AT < len(held):
                await asyncio.sleep(0)
        return found

    def _leases_of(self, name: str, seqs: list[int]) -> tuple[list[LeaseView], Gate]:
        """Those of these jobs that are held now."""
        topic = self.queue(name)
        leases = topic.queue.leases
        held = [LeaseView(seq, *leases[seq][1:]) for seq in seqs if seq in leases]
        return held, self._gates.of(topic)


def _hand(topic: Topic, entry: Leased, texts: Sequence[bytearray], ready: int) -> Claimed:
    """What a claimer gets."""
    leases = entry.leases
    middle = f'","deadline":{leases[0][2]},"deliveries":' if leases else ""  # the leases of a hand end together
    items = [
        f'{{"$seq":{seq},"lease_id":"lease_{number:x}{middle}{deliveries},'.encode() + text
        for (seq, number, _, deliveries), text in zip(leases, texts, strict=True)
    ]
    return Claimed(topic.name, topic.id, items, leases, ready, topic.paused)
