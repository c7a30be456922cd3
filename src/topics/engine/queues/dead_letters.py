"""Records that leave one topic for another: dead letters, and their way back.

Owns the order in which the two halves of a move are logged and applied, so that a record is in one of the two topics
whatever fails. Must not know: which records move, and why.

- Both topics are logged: one frame. A crash leaves both halves or none.
- Only the dest is logged: the record leaves the source when the dest's frame is as durable as its class asks. Until
  then it is *moving*: still in the source, and to be left alone.
- Only the source is logged: the copy is in the dest at once. If the source's frame then fails, the copy is taken back.
- Neither is: both at once.

A dest that does not exist is created with defaults, in the same frame.
"""

from collections.abc import Sequence, Set
from contextlib import suppress
from functools import partial

from topics.clock import Clock
from topics.core import decide
from topics.core.decide import Append, Appending, Caps
from topics.core.entries import AnyEntry, Deleted
from topics.core.queue.letters import batch_of_copies
from topics.core.state import Topic
from topics.core.topic.blocks import BLOCK
from topics.core.topic.records import RecordIn
from topics.engine.gate import Gate, Gates
from topics.engine.ledger import Ledger
from topics.errors import CommitFailed

NOTHING: frozenset[int] = frozenset()
Copies = tuple[str, int, Appending]  # dest, its epoch, and what was appended


class Moves:
    """Moves records within one instance."""

    def __init__(self, ledger: Ledger, gates: Gates, clock: Clock, caps: Caps) -> None:
        self._ledger = ledger
        self._gates = gates
        self._clock = clock
        self._caps = caps
        self._moving: dict[int, set[int]] = {}  # topic id → seqs

    def moving(self, topic: Topic) -> Set[int]:
        """The seqs of a topic that are about to leave it."""
        return self._moving.get(topic.id, NOTHING)

    def move(
        self, source: Topic, seqs: Sequence[int], records: list[RecordIn], dest: str, also: Sequence[AnyEntry] = ()
    ) -> Gate:
        """Append `records` to `dest` and delete `seqs`, which they are made of, from `source`. `also` goes with that.

        A Refusal of the dest or a CommitFailed: nothing has changed. The move may be shown once the gate is open.
        """
        ledger = self._ledger
        target = ledger.current(dest)
        command = Append(dest, batch_of_copies(records), create=True)
        added, done = decide.append(ledger.state, command, self._clock.now_ms(), self._caps)
        taken = [deletion(source, seqs), *also]
        if source.is_logged or (target is not None and not target.is_logged):
            ledger.commit([*added, *taken])
        else:
            ledger.commit(added)
            self._take_later(source, seqs, taken, ledger.state.topics[dest])
        target = ledger.state.topics[dest]
        own = self._gates.of(source)
        if source.is_logged and not target.is_logged:
            self._gates.when_open(own, partial(self._take_back_if, (dest, target.epoch, done)))
        return own.join(self._gates.of(target))

    def _take_later(self, source: Topic, seqs: Sequence[int], taken: list[AnyEntry], dest: Topic) -> None:
        """Let the source lose its records when the dest has them for sure."""
        moving = self._moving.setdefault(source.id, set())
        moving.update(seqs)

        def settled(failure: CommitFailed | None) -> None:
            moving.difference_update(seqs)
            if not moving:
                self._moving.pop(source.id, None)
            if failure is None and self._ledger.state.by_id.get(source.id) is source:
                with suppress(CommitFailed):  # the record is in both topics then, and moves again
                    self._ledger.commit(taken)

        self._gates.when_open(self._gates.of(dest), settled)

    def _take_back_if(self, copies: Copies, failure: CommitFailed | None) -> None:
        """If the move failed, the source still has what was copied: delete the copies."""
        dest, epoch, done = copies
        topic = self._ledger.state.topics.get(dest)
        if failure is not None and topic is not None and topic.epoch == epoch and not topic.is_logged:
            self._ledger.commit([deletion(topic, range(done.first, done.last + 1))])


def _bits(masks: dict[int, int]) -> int:
    return sum([mask.bit_count() for mask in masks.values()])


def deletion(topic: Topic, seqs: Sequence[int]) -> Deleted:
    """The entry that deletes these. Damaged: what it would have to look at cannot be read."""
    masks: dict[int, int] = {}
    for seq in seqs:
        number = seq // BLOCK
        masks[number] = masks.get(number, 0) | 1 << seq % BLOCK
    count = topic.log.measure(0, masks.items()) if topic.log.has_sealed else _bits(masks)
    blocks = [(number, mask.to_bytes((mask.bit_length() + 7) // 8, "little")) for number, mask in masks.items()]
    return Deleted(topic.id, 0, blocks, count)
