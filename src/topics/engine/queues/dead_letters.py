"""Dead letters on their way: from a queue to its dead-letter topic, and back.

Owns the order in which the two halves of a move are logged and applied, so that a record is in one of the two topics
whatever fails. Which records move, and what they become, is decided in the core (core/queue/letters.py).

- Both topics are logged: one frame. A crash leaves both halves or none.
- Only the dest is logged: the record leaves the source when the dest's frame is as durable as its class asks. Until
  then it is *moving*: still in the source, and to be left alone.
- Only the source is logged: the copy is in the dest at once. If the source's frame then fails, the copy is taken back.
- Neither is: both at once.

A dest that does not exist is created with defaults, in the same frame.
"""

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Sequence, Set
from contextlib import suppress
from functools import partial
from itertools import islice

from topics.core.decide import deletion
from topics.core.queue import letters
from topics.core.queue.leasing import Deleting
from topics.core.queue.letters import Letters, Move, StoredJob, Trial
from topics.core.state import Topic
from topics.engine.answers import Moved, Redriven
from topics.engine.gate import Gate, Hall
from topics.errors import CommitFailed, InvalidRequest, NoDeadLetter, Refusal, StorageError, TopicNotFound
from topics.model import TagMatch

REDRIVE_RECORDS_MAX = 100  # in one frame
NOTHING: frozenset[int] = frozenset()

logger = logging.getLogger("topics.engine.queues.dead_letters")


class DeadLetters:
    """Moves jobs between the queues of one instance and their dead-letter topics."""

    def __init__(self, hall: Hall, note_deleting: Callable[[Topic, Gate, list[Deleting]], None]) -> None:
        self._ledger, self._gates, self._clock, self._caps = hall.ledger, hall.gates, hall.clock, hall.caps
        self._loader, self._cache = hall.loader, hall.cache
        self._note_deleting = note_deleting  # jobs leave their queue once the gate is open
        self._moving: dict[int, set[int]] = {}  # topic id → seqs

    def moving(self, topic: Topic) -> Set[int]:
        """The seqs of a topic that are about to leave it."""
        return self._moving.get(topic.id, NOTHING)

    def send(self, topic: Topic, seqs: Sequence[int]) -> Gate | None:
        """Move jobs that were handed out too often; one that cannot be moved now is tried again (QU14, QU15)."""
        gate, dest = None, topic.config.dead_letter
        assert dest is not None, "jobs are exhausted only where there is a dead-letter topic"
        for seq in seqs:
            if seq in self.moving(topic):
                continue
            job, deliveries = letters.stored(self._cache, topic.log, seq), topic.queue.deliveries[seq]
            self._ledger.current(dest)
            try:
                now, caps = self._clock.now_ms(), self._caps
                gate = self._commit(letters.dead_letter(self._ledger.state, topic, seq, job, now, caps))
            except (Refusal, StorageError) as error:
                logger.info('job %d of "%s" stays, "%s" does not take it: %s', seq, topic.name, dest, error)
                break
            self._note_deleting(topic, gate, [(seq, 0, deliveries)])
        return gate

    async def redrive(self, topic: Topic, match: TagMatch | None, count_max: int | None, *, dry_run: bool) -> Redriven:
        """Turn dead letters of a queue back into jobs, at most `count_max`. All of it happens, or a first part.

        With `dry_run`, none of it: the same letters are found, and held against the room that the queue has.
        """
        ledger, name, dead_letter = self._ledger, topic.name, topic.config.dead_letter
        if dead_letter is None:
            raise NoDeadLetter(name)
        source = ledger.current(dead_letter)
        head = 0 if source is None else source.log.head
        moved = moved_bytes = remaining = cursor = 0
        room, is_full, refusal, gate = REDRIVE_RECORDS_MAX, False, None, self._gates.of(topic)
        trial = Trial(ledger.state, topic, self._caps) if dry_run else None

        def find(takes_what_is_warm: bool) -> Letters | None:
            """Some letters from the cursor on; None: the queue or its dead-letter topic is gone."""
            by_id = ledger.state.by_id
            if source is None or by_id.get(source.id) is not source or by_id.get(topic.id) is not topic:
                return None
            return letters.letters_of(name, source.log, self._cache, match, cursor, head, count, self.moving(source))

        while source is not None and cursor < head:
            is_over = is_full or refusal is not None or moved == count_max
            count = REDRIVE_RECORDS_MAX if is_over else room if count_max is None else min(room, count_max - moved)
            found, taken = await self._loader.until_warm(find), 0
            if found is None:
                break
            if found.seqs and not is_over:
                ledger.current(name)
                try:
                    if trial is None:
                        now, caps = self._clock.now_ms(), self._caps
                        gate = self._commit(letters.redrive(ledger.state, source, found, name, now, caps))
                    taken = len(found.seqs) if trial is None else trial.taken(found)
                except Refusal as error:
                    refusal = error if len(found.seqs) == 1 else None
                    room = max(1, len(found.seqs) // 2)
                    continue
            cursor, is_full = found.end, is_full or (not is_over and taken < len(found.seqs))
            moved += taken
            moved_bytes += sum(map(letters.size_of, found.jobs[:taken]))
            remaining += len(found.seqs) - taken
            await asyncio.sleep(0)
        await self._gates.wait_open(gate)
        if not moved and (refusal is not None or ledger.state.by_id.get(topic.id) is not topic):
            raise refusal or TopicNotFound(name)
        return Redriven(name, dead_letter, moved, remaining, moved_bytes)

    async def move(self, topic: Topic, seqs: Sequence[int], dest: str) -> Moved:
        """Jobs that nobody holds go to another topic, as they are. All of it happens, or a first part."""
        name, done, skipped, gate = topic.name, list[int](), list[int](), self._gates.of(topic)
        waiting, room = deque(dict.fromkeys(seqs)), REDRIVE_RECORDS_MAX
        while waiting:
            batch = list(islice(waiting, room))
            jobs = await self._loader.until_warm(partial(self._free_jobs, topic, batch))
            if jobs is None:
                break
            _check_move(topic, dest, self._ledger.current(dest))
            try:
                if jobs:
                    counts = [(seq, 0, topic.queue.deliveries.get(seq, 0)) for seq in jobs]
                    now, caps, state = self._clock.now_ms(), self._caps, self._ledger.state
                    gate = self._commit(letters.moved(state, topic, list(jobs), list(jobs.values()), dest, now, caps))
                    self._note_deleting(topic, gate, counts)
            except Refusal:
                if len(batch) == 1 and not done:
                    raise
                if len(batch) == 1:
                    break  # the rest stays
                room = max(1, len(batch) // 2)
                continue
            done += jobs
            skipped += [seq for seq in batch if seq not in jobs]
            for _ in batch:
                waiting.popleft()
            await asyncio.sleep(0)
        await self._gates.wait_open(gate)
        return Moved(name, dest, done, sorted([*skipped, *waiting]))

    def _free_jobs(self, topic: Topic, seqs: list[int], takes_what_is_warm: bool) -> dict[int, StoredJob] | None:
        """Those of these jobs that nobody holds; None: the queue is gone."""
        if self._ledger.current(topic.name) is not topic:
            return None
        log, leases, moving = topic.log, topic.queue.leases, self.moving(topic)
        free = [seq for seq in seqs if log.is_live(seq) and seq not in leases and seq not in moving]
        return {seq: letters.stored(self._cache, log, seq) for seq in free}

    # --- the two halves

    def _commit(self, move: Move) -> Gate:
        """Commit a move, which may be shown once the gate is open. CommitFailed: nothing has changed."""
        ledger, gates, source = self._ledger, self._gates, move.source
        before = ledger.state.topics.get(move.dest)
        if source.is_logged or (before is not None and not before.is_logged):
            ledger.commit([*move.added, *move.taken])
        else:
            ledger.commit(move.added)
            self._take_later(move)
        dest = ledger.state.topics[move.dest]
        if source.is_logged and not dest.is_logged:
            gates.when_open(gates.of(source), lambda failure: self._take_back_if(failure, move, dest.epoch))
        return gates.of(source).join(gates.of(dest))

    def _take_later(self, move: Move) -> None:
        """Remove the records from the source once the dest certainly has them."""
        source, moving = move.source, self._moving.setdefault(move.source.id, set())
        moving.update(move.seqs)

        def opened(failure: CommitFailed | None) -> None:
            moving.difference_update(move.seqs)
            if not moving:
                self._moving.pop(source.id, None)
            if failure is None and self._ledger.state.by_id.get(source.id) is source:
                with suppress(CommitFailed):  # the record is in both topics then, and moves again
                    self._ledger.commit(move.taken)

        self._gates.when_open(self._gates.of_name(move.dest), opened)

    def _take_back_if(self, failure: CommitFailed | None, move: Move, epoch: int) -> None:
        """If the move failed, the source still has what was copied: delete the copies."""
        dest = self._ledger.state.topics.get(move.dest)
        if failure is not None and dest is not None and dest.epoch == epoch and not dest.is_logged:
            self._ledger.commit([deletion(dest, range(move.appended.first, move.appended.last + 1))])


def _check_move(queue: Topic, name: str, dest: Topic | None) -> None:
    """Jobs are handed out until they have left: a move that takes time (see above) is not made with those."""
    if name == queue.name:
        raise InvalidRequest(f'dest is "{name}", the queue itself; name another topic')
    if not queue.is_logged and (dest is None or dest.is_logged):
        raise InvalidRequest("jobs of an ephemeral queue can be moved to an ephemeral topic that exists, and no other")
