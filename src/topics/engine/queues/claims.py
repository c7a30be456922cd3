"""Queues: jobs are handed out under leases, and acked, given back or kept longer.

Owns passes over a queue: which claimers get which jobs, and what becomes of jobs that were handed out too often. The
places of jobs are the core's (core/queue.py), commits and the gate the ledger's. Must not know: HTTP, streams beyond
`Claimer`.

A pass picks jobs, renders them, and leases them, without an await; so a job is leased only if its text is at hand. A
page that is not raises Cold before anything has changed, and the pass is made again. With `claim_jitter_ms` the
claims of a window form a cohort, which one pass serves; without it a claim is a pass of its own.

Leases of a queue that does not keep them are applied and not logged. An ack is a delete. What fails in the log leaves
its jobs claimable: their leases are ended once the state is the one that holds.
"""

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from heapq import nsmallest
from secrets import randbits

from topics.clock import Clock
from topics.core.entries import AnyEntry, DeadLettered, Leased, Released
from topics.core.queue.letters import Job, decode_job, letter, origin, restored
from topics.core.state import Topic
from topics.core.topic.log import Log
from topics.core.topic.pages import JOB, Cache, Cold, Page, Projection
from topics.core.topic.parts import PAGE_ROWS, Chunk, Part
from topics.core.topic.records import RecordIn
from topics.engine.answers import Claimed, LeaseView, Redriven, Settled
from topics.engine.gate import Gate, Gates
from topics.engine.ledger import Ledger
from topics.engine.loading import Loader
from topics.engine.queues.dead_letters import Moves, deletion
from topics.errors import CommitFailed, NoDeadLetter, NotAQueue, Refusal, StorageError, TopicNotFound
from topics.model import TagMatch
from topics.storage.wal import Callback

LOADS_MAX = 16  # pages loaded for one pass before it takes what is warm
HAND_BYTES_MAX = 8 * 1024 * 1024  # texts of the jobs that one claimer gets in a pass; the first job always fits
REDRIVE_RECORDS_MAX = 100  # in one frame
REDRIVE_BYTES_MAX = 1024 * 1024
_ALL = Projection(tags=True)

Texts = dict[int, bytearray]
Doomed = tuple[int, int, int]  # seq, lease number, deliveries of a job that is about to go
UNDELIVERED = 0

logger = logging.getLogger("topics.engine.queues.claims")


class Claimer:
    """Someone who wants jobs: a claim, or a stream of jobs."""

    __slots__ = ("lease_ms", "node", "wanted")

    def __init__(self, node: str, wanted: int, lease_ms: int | None = None) -> None:
        self.node = node
        self.wanted = wanted  # jobs it takes in the next pass
        self.lease_ms = lease_ms  # None = as the topic says

    @property
    def is_gone(self) -> bool:
        return False


class Queues:
    """The queues of one instance."""

    def __init__(
        self,
        ledger: Ledger,
        gates: Gates,
        clock: Clock,
        moves: Moves,
        cache: Cache,
        loader: Loader,
        make_copies: Callable[[Topic], None],
    ) -> None:
        self.on_change: Callable[[int], None] = lambda topic_id: None  # jobs of a topic may have become claimable
        self._ledger = ledger
        self._gates = gates
        self._clock = clock
        self._moves = moves
        self._cache = cache
        self._loader = loader
        self._make_copies = make_copies  # that routers owe a topic (DF9)
        self._doomed: deque[tuple[Gate, int, list[Doomed]]] = deque()  # jobs that go when the gate is open
        self._next_number = randbits(46) << 16  # of a lease; those of an earlier start are others

    def queue(self, name: str) -> Topic:
        """A queue by its name, as it is now."""
        topic = self._ledger.current(name)
        if topic is None:
            raise TopicNotFound(name)
        if topic.config.type != "queue":
            raise NotAQueue(name)
        topic.queue.settle(self._clock.now_ms())
        return topic

    def claimable(self, name: str) -> Topic:
        """A queue with all that was committed upstream of it. Cold: that takes longer."""
        topic = self.queue(name)
        if topic.id in self._ledger.state.routers.incoming:
            self._make_copies(topic)
        return topic

    # --- handing out

    def claim_now(self, name: str, claimer: Claimer, *, is_hasty: bool = False) -> tuple[Claimed, Gate]:
        """Hand jobs out to one claimer; see `hand_out`."""
        hands, gate = self.hand_out(self.claimable(name), (claimer,), is_hasty=is_hasty)
        return hands[0], gate

    def hand_out(
        self, topic: Topic, claimers: Sequence[Claimer], *, is_hasty: bool = False
    ) -> tuple[list[Claimed], Gate]:
        """One pass: a job for each claimer in turn, while they want more and there are some.

        The result may be shown once the gate is open (`when_shown`). Cold: load what is missing and try again; with
        `is_hasty` the pass does with the jobs whose pages are there, if the first one's is.
        """
        queue, now = topic.queue, self._clock.now_ms()
        wanted = sum([claimer.wanted for claimer in claimers])
        picked = queue.pick(topic.log, wanted)
        gate = self._send_letters(topic, picked, wanted) if queue.exhausted else None
        texts = self._texts(topic.log, picked, is_hasty)
        hands: list[list[int]] = [picked[: len(texts)]] if len(claimers) == 1 else _dealt(list(texts), claimers)
        decided: list[AnyEntry] = []
        answers: list[Claimed] = []
        ready = queue.ready(topic.log.count) - len(self._moves.moving(topic))
        for claimer, hand in zip(claimers, hands, strict=True):
            claimed = self._lease(topic, claimer, _fitting(sorted(hand), texts), texts, now, decided)
            ready -= len(claimed.texts)
            answers.append(claimed)
        if decided:
            self._ledger.commit(decided)
        for claimed in answers:
            claimed.ready = ready
        own = self._gates.of(topic)
        return answers, own if gate is None else own.join(gate)

    def _lease(
        self,
        topic: Topic,
        claimer: Claimer,
        seqs: list[int],
        texts: Texts,
        now: int,
        decided: list[AnyEntry],
    ) -> Claimed:
        """What one claimer gets; the entry that leases it joins `decided`."""
        lease_ms = topic.config.lease_ms if claimer.lease_ms is None else claimer.lease_ms
        deadline, number, counts = now + lease_ms, self._next_number, topic.queue.deliveries
        leases: list[tuple[int, int, int, int]] = []
        items: list[bytes] = []
        for seq in seqs:
            deliveries = counts.get(seq, 0) + 1
            leases.append((seq, number, deadline, deliveries))
            head = b'{"$seq":%d,"lease_id":"lease_%x","deadline":%d,"deliveries":%d,'
            items.append(head % (seq, number, deadline, deliveries) + texts[seq])
            number += 1
        self._next_number = number
        if leases:
            decided.append(Leased(topic.id, claimer.node, leases))
        return Claimed(topic.name, topic.id, items, [lease[:2] for lease in leases], 0)

    def _texts(self, log: Log, seqs: Sequence[int], is_hasty: bool) -> Texts:
        """The jobs' texts by seq, each without `{"$seq":n,` at its start."""
        texts: Texts = {}
        part: Part | None = None
        page: Page | None = None
        for seq in seqs:
            if part is None or not part.first <= seq <= part.last:
                part, page = log.part_at(seq), None
                assert part is not None, "a job that is not in the log"
            row = seq - part.first if type(part) is Chunk else part.row_from(seq)
            if page is None or not page.start <= row < page.start + PAGE_ROWS:
                try:
                    page = self._cache.page(part, row, JOB)
                except Cold:
                    if is_hasty and texts:
                        return texts
                    raise
            row -= page.start
            start = page.ends[row - 1] if row else 0
            texts[seq] = page.text[start + 9 + len(str(seq)) : page.ends[row] - 1]
        return texts

    def when_shown(self, claimed: Claimed, gate: Gate, callback: Callback) -> None:
        """Call back when what was handed out may be shown. If it may not, nobody holds it."""

        def settled(failure: CommitFailed | None) -> None:
            if failure is not None:
                self._free_untold(claimed)
            callback(failure)

        self._gates.when_open(gate, settled)

    async def claim(self, name: str, claimer: Claimer) -> Claimed:
        """Hand jobs out to one claimer, at once."""
        async with self._gates.refusing(name):
            claimed, gate = await self._loader.until_warm(
                lambda hasty: self.claim_now(name, claimer, is_hasty=hasty), LOADS_MAX
            )
        await self.shown(claimed, gate)
        return claimed

    async def shown(self, claimed: Claimed, gate: Gate) -> None:
        try:
            await self._gates.wait_open(gate)
        except CommitFailed:
            self._free_untold(claimed)
            raise

    # --- giving back

    def ack(
        self, name: str, node: str, seqs: Sequence[int], numbers: Sequence[int | None] | None
    ) -> tuple[Settled, Gate]:
        """Complete jobs: those that the node holds are deleted."""
        topic = self.queue(name)
        queue = topic.queue
        held, skipped = queue.held(node, seqs, numbers)
        if held:
            doomed = [(seq, queue.leases[seq][0], queue.deliveries[seq]) for seq in held]
            try:
                self._ledger.commit([deletion(topic, held)])
            except CommitFailed:
                self._free(topic.id, doomed)
                raise
            self._note_doomed(topic, self._gates.of(topic), doomed)
            self.on_change(topic.id)
        return self._settled(topic, held, skipped)

    def nack(
        self, name: str, node: str, seqs: Sequence[int], numbers: Sequence[int | None] | None, delay_ms: int
    ) -> tuple[Settled, Gate]:
        """Give jobs back: they are claimable again after a delay."""
        topic = self.queue(name)
        leases = topic.queue.leases
        held, skipped = topic.queue.held(node, seqs, numbers)
        if held:
            start = self._clock.now_ms() + delay_ms if delay_ms else 0
            self._ledger.commit([Released(topic.id, [(seq, leases[seq][0], start) for seq in held])])
            self.on_change(topic.id)
        return self._settled(topic, held, skipped)

    def extend(
        self, name: str, node: str, seqs: Sequence[int], numbers: Sequence[int | None] | None, lease_ms: int
    ) -> tuple[Settled, Gate]:
        """Keep jobs longer: until `lease_ms` from now."""
        topic = self.queue(name)
        queue = topic.queue
        held, skipped = queue.held(node, seqs, numbers)
        deadline = self._clock.now_ms() + lease_ms
        if held:
            leases = [(seq, queue.leases[seq][0], deadline, queue.deliveries[seq]) for seq in held]
            self._ledger.commit([Leased(topic.id, node, leases)])
            self.on_change(topic.id)
        return self._settled(topic, held, skipped, deadline)

    def release(self, topic_id: int, leases: Iterable[tuple[int, int]]) -> None:
        """End leases whose holder is gone; those that are no longer what they were are left alone."""
        topic = self._ledger.state.by_id.get(topic_id)
        held = topic.queue.leases if topic is not None else {}
        own = [(seq, number, 0) for seq, number in leases if seq in held and held[seq][0] == number]
        if topic is not None and own:
            released = [Released(topic.id, own)]
            try:
                self._ledger.commit(released)
            except CommitFailed:
                self._ledger.apply_only(released)
            self.on_change(topic.id)

    def _settled(self, topic: Topic, done: list[int], skipped: list[int], deadline: int = 0) -> tuple[Settled, Gate]:
        queue = topic.queue
        ready, in_flight = queue.ready(topic.log.count), len(queue.leases)
        return Settled(topic.name, done, skipped, ready, in_flight, deadline), self._gates.of(topic)

    # --- what failed

    def _note_doomed(self, topic: Topic, gate: Gate, jobs: list[Doomed]) -> None:
        """Keep what is known of jobs that are about to go until it is sure that they do."""
        doomed = self._doomed
        while doomed and self._gates.is_passed(doomed[0][0]):
            doomed.popleft()
        if topic.is_logged:
            doomed.append((gate, topic.id, jobs))

    def _free_untold(self, claimed: Claimed) -> None:
        """End leases that the claimer was never told of."""
        self._free(claimed.topic_id, [(seq, number, UNDELIVERED) for seq, number in claimed.leases])

    def rebuilt(self) -> None:
        """The log failed, and the state was rebuilt: jobs that are there after all are nobody's (QU11)."""
        doomed, self._doomed = self._doomed, deque()
        for _, topic_id, jobs in doomed:
            self._free(topic_id, jobs)

    def _free(self, topic_id: int, jobs: list[Doomed]) -> None:
        topic = self._ledger.state.by_id.get(topic_id)
        if topic is not None:
            for seq, number, deliveries in jobs:
                if deliveries == UNDELIVERED and not topic.keeps_leases:
                    topic.queue.undeliver(seq, number)
                topic.queue.remember(seq, deliveries, topic.log)
            self.release(topic_id, [(seq, number) for seq, number, _ in jobs])

    # --- dead letters

    def _send_letters(self, topic: Topic, picked: Sequence[int], wanted: int) -> Gate | None:
        """Move jobs that were handed out too often; one that cannot be moved now is tried again (QU14, QU15)."""
        gate = None
        for seq in topic.queue.due_letters(picked, wanted):
            dead_letter = topic.config.dead_letter
            assert dead_letter is not None, "jobs are exhausted only where there is a dead-letter topic"
            if seq in self._moves.moving(topic):
                continue
            deliveries = topic.queue.deliveries[seq]
            record = letter(self._job(topic.log, seq), topic.name, deliveries, seq)
            try:
                gate = self._moves.move(topic, [seq], [record], dead_letter, [DeadLettered(topic.id, 1)])
            except (Refusal, StorageError) as error:
                logger.info('job %d of "%s" stays, "%s" does not take it: %s', seq, topic.name, dead_letter, error)
                break
            self._note_doomed(topic, gate, [(seq, 0, deliveries)])
        return gate

    def _job(self, log: Log, seq: int) -> Job:
        part = log.part_at(seq)
        assert part is not None, "a job that is not in the log"
        row = part.row_from(seq)
        return decode_job(self._cache.page(part, row, _ALL).slice(row, row + 1))

    async def redrive(self, name: str, match: TagMatch | None = None, most: int | None = None) -> Redriven:
        """Dead letters of a queue become its jobs again, at most so many. All of it happens, or a first part."""
        topic = self.queue(name)
        dead_letter = topic.config.dead_letter
        if dead_letter is None:
            raise NoDeadLetter(name)
        source = self._ledger.current(dead_letter)
        moved = remaining = cursor = 0
        head = 0 if source is None else source.log.head
        room, refusal, gate = REDRIVE_RECORDS_MAX, None, self._gates.of(topic)
        while source is not None and self._ledger.state.by_id.get(source.id) is source and cursor < head:
            is_over = refusal is not None or moved == most
            count = room if most is None or is_over else min(room, most - moved)
            try:
                seqs, records, end = self._letters_of(source, name, match, cursor, head, count)
                if seqs and not is_over:
                    gate = self._moves.move(source, seqs, records, name)
                    self.on_change(topic.id)
            except Cold as cold:
                await self._loader.load(cold.missing)
            except Refusal as error:
                if len(seqs) == 1:
                    refusal = error
                room = max(1, len(seqs) // 2)
            else:
                cursor = end
                moved, remaining = (moved, remaining + len(seqs)) if is_over else (moved + len(seqs), remaining)
                await asyncio.sleep(0)
        await self._gates.wait_open(gate)
        if refusal is not None and not moved:
            raise refusal
        return Redriven(name, dead_letter, moved, remaining)

    def _letters_of(
        self, source: Topic, queue: str, match: TagMatch | None, after: int, last: int, most: int
    ) -> tuple[list[int], list[RecordIn], int]:
        """Some letters of a queue above a cursor and up to `last`: seqs, the jobs they were, the cursor behind them."""
        seqs: list[int] = []
        records: list[RecordIn] = []
        size = examined = 0
        for seq in source.log.live_after(after):
            if seq > last:
                break
            if len(seqs) == most or size > REDRIVE_BYTES_MAX or examined == PAGE_ROWS:
                return seqs, records, after
            job = self._job(source.log, seq)
            after, examined = seq, examined + 1
            is_wanted = match is None or match.matches(job.tag)
            if is_wanted and origin(job) == queue and seq not in self._moves.moving(source):
                seqs.append(seq)
                records.append(restored(job))
                size += len(job.data) + len(job.meta)
        return seqs, records, last

    # --- looking

    async def leases(self, name: str, after: int, count: int) -> tuple[list[LeaseView], bool]:
        """Up to `count` leases of jobs above `after`, ascending; and whether there are more."""

        def look(takes_what_is_warm: bool) -> tuple[list[LeaseView], Gate]:
            topic = self.queue(name)
            leases, deliveries = topic.queue.leases, topic.queue.deliveries
            seqs = nsmallest(count + 1, (seq for seq in leases if seq > after))
            return [LeaseView(seq, *leases[seq][1:], deliveries[seq]) for seq in seqs], self._gates.of(topic)

        views = await self._gates.shown(name, look)
        return views[:count], len(views) > count


def _fitting(seqs: list[int], texts: Texts) -> list[int]:
    """As many of the jobs as one claimer gets at a time."""
    if sum(map(len, texts.values())) <= HAND_BYTES_MAX:
        return seqs
    size = 0
    for index, seq in enumerate(seqs):
        size += len(texts[seq])
        if size > HAND_BYTES_MAX and index:
            return seqs[:index]
    return seqs


def _dealt(seqs: list[int], claimers: Sequence[Claimer]) -> list[list[int]]:
    """One job for each in turn, while they want more."""
    hands: list[list[int]] = [[] for _ in claimers]
    wanting = [index for index, claimer in enumerate(claimers) if claimer.wanted]
    at = 0
    while at < len(seqs) and wanting:
        for index in wanting[: len(seqs) - at]:
            hands[index].append(seqs[at])
            at += 1
        wanting = [index for index in wanting if len(hands[index]) < claimers[index].wanted]
    return hands
