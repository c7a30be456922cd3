"""Changes that callers wait for: topics created, configured and removed, queues paused, records deleted.

Each call decides a command, commits what was decided, and returns when that may be shown; a dry run decides the same
and commits nothing. Must not know: the jobs of queues, and of routers only which ones a topic takes with it when it
goes.
"""

import asyncio
from collections.abc import Callable, Sequence
from contextlib import nullcontext

from topics.core import decide
from topics.core.decide import Delete, DeleteTopic, PutTopic
from topics.core.entries import AnyEntry, Deleted, Evicted, Expired
from topics.core.state import Topic
from topics.core.topic.blocks import Blocks
from topics.core.topic.config import ConfigIn
from topics.engine.answers import DeleteResult, TopicPut
from topics.engine.durability.checkpoint import SLICE_SECONDS
from topics.engine.gate import Hall
from topics.errors import CommitFailed, EpochMismatch, InvalidRequest, TopicNotFound
from topics.model import TagMatch, TopicConfig


class Changes:
    """What callers change in the topics of an instance, appends aside."""

    def __init__(self, hall: Hall) -> None:
        self._ledger, self._gates, self._clock, self._caps = hall.ledger, hall.gates, hall.clock, hall.caps
        self._selecting = asyncio.Lock()  # one delete by tag at a time: another one's memo of a topic is not disturbed

    async def delete(
        self, name: str, before_seq: int | None, match: TagMatch | None, epoch: int | None, dry_run: bool
    ) -> DeleteResult:
        """Delete live records; see the engine's."""
        if before_seq is None and match is None:
            raise InvalidRequest("a delete needs before_seq or match")
        async with self._selecting if match is not None else nullcontext():
            topic, result = await self._delete(name, before_seq, match, epoch, dry_run)
        await self._gates.wait_open(self._gates.of(topic))
        return result

    async def _delete(
        self, name: str, before_seq: int | None, match: TagMatch | None, epoch: int | None, dry_run: bool
    ) -> tuple[Topic, DeleteResult]:
        ledger = self._ledger
        topic = ledger.current(name)
        generation = ledger.wal.generation
        blocks = await self._select(topic, match, before_seq) if match is not None and topic is not None else None
        if generation != ledger.wal.generation:
            raise CommitFailed("the disk failed meanwhile")
        async with self._gates.refusing(name):
            if topic is None or ledger.state.topics.get(name) is not topic:
                raise TopicNotFound(name)
            if epoch is not None and epoch != topic.epoch:
                raise EpochMismatch(name, topic.epoch, epoch)
        decided = decide.delete(ledger.state, Delete(name, before_seq, blocks))
        if dry_run:
            return topic, _previewed(topic, decided)
        count, size = topic.log.count, topic.log.bytes
        if decided:
            ledger.commit(decided)
        log = topic.log
        gone, gone_bytes = count - log.count, size - log.bytes
        return topic, DeleteResult(name, gone, log.earliest, log.head, log.count, log.bytes, gone_bytes)

    async def _select(self, topic: Topic, match: TagMatch, before_seq: int | None) -> Blocks:
        """The seqs that a tag predicate selects now, found in slices of time."""
        bound = topic.log.head + 1 if before_seq is None else min(before_seq, topic.log.head + 1)
        selected: Blocks = {}
        slice_end = self._clock.monotonic() + SLICE_SECONDS
        for blocks in topic.log.matching(match, bound):
            for number, mask in blocks.items():
                selected[number] = selected.get(number, 0) | mask
            if self._clock.monotonic() > slice_end:
                await asyncio.sleep(0)
                slice_end = self._clock.monotonic() + SLICE_SECONDS
        return selected

    # --- topics

    async def put_topic(
        self,
        name: str,
        config: ConfigIn,
        amend: Callable[[ConfigIn, TopicConfig | None], ConfigIn] = lambda given, present: given,
        *,
        dry_run: bool = False,
    ) -> TopicPut:
        """Create a topic or replace its config; with `dry_run`, say what that would do (DR1).

        `amend` gets what is given and the config that is about to be replaced, if any, and gives what is to count.
        """
        topic = await self._ledger.changes.when_unchanging(name)
        async with self._gates.refusing(name):
            command = PutTopic(name, amend(config, None if topic is None else topic.config))
            decided, resolved = decide.put_topic(self._ledger.state, command, self._clock.now_ms(), self._caps)
        lost = max((entry.last for entry in decided if isinstance(entry, Expired | Evicted)), default=0)
        records = size = 0
        if topic is not None and lost:
            records, size = topic.log.count_through(lost), topic.log.bytes_through(lost)
        if decided and not dry_run:
            await self._ledger.changes.commit(topic, decided)
        await self._gates.wait_open(self._gates.of_name(name))
        return TopicPut(topic is None, resolved, records, size)

    async def pause(self, name: str, paused: bool) -> None:
        """Pause a queue, or let it go on; see the engine's."""
        ledger = self._ledger
        topic = await ledger.changes.when_unchanging(name)
        async with self._gates.refusing(name):
            decided = decide.pause(ledger.state, name, paused)
        if decided:
            await ledger.changes.commit(topic, decided)
        await self._gates.wait_open(self._gates.of_name(name))

    async def remove_topic(self, name: str, if_empty: bool, epoch: int | None) -> list[tuple[str, str, str]] | None:
        """Delete a topic; see the engine's."""
        ledger = self._ledger
        topic = await ledger.changes.when_unchanging(name)
        by_id, touching = ledger.state.by_id, () if topic is None else ledger.state.routers.of(topic.id)
        routers = sorted((one.name, by_id[one.source].name, by_id[one.dest].name) for one in touching)
        async with self._gates.refusing(name):
            decided = decide.delete_topic(ledger.state, DeleteTopic(name, if_empty, epoch))
        if decided:
            await ledger.changes.commit(topic, decided)
        await self._gates.wait_open(self._gates.of(None))
        return routers if decided else None


def _previewed(topic: Topic, decided: Sequence[AnyEntry]) -> DeleteResult:
    """The answer that a decided delete would get."""
    log, gone, gone_bytes, earliest = topic.log, 0, 0, topic.log.earliest
    for entry in decided:
        assert isinstance(entry, Deleted), "a delete only deletes"
        blocks = {number: int.from_bytes(mask, "little") for number, mask in entry.blocks}
        gone, (gone_bytes, earliest) = entry.count, log.after_delete(entry.before, blocks)
    return DeleteResult(topic.name, gone, earliest, log.head, log.count - gone, log.bytes - gone_bytes, gone_bytes)
