"""What became of every seq: losses, single records, and the running totals of topics (LS, RC1).

Nothing here counts as a read, and nothing changes. Must not know: metrics, or any other form in which totals are shown.
"""

from collections.abc import Callable

from topics.clock import Clock
from topics.core.state import Topic
from topics.core.topic import losses, walk
from topics.core.topic.losses import Loss
from topics.core.topic.pages import Cache, Projection
from topics.core.topic.walk import Query
from topics.engine.answers import RecordResult, TopicTotals, topic_totals
from topics.engine.gate import Gate, Gates
from topics.engine.ledger import Ledger
from topics.errors import NotFound, TopicNotFound
from topics.model import BATCH_BYTES_DEFAULT

WHOLE = Projection(True, True, True)


class Totals:
    """What an instance holds, and what became of the rest."""

    def __init__(
        self, ledger: Ledger, gates: Gates, make_copies: Callable[[Topic], None], clock: Clock, cache: Cache
    ) -> None:
        self._ledger = ledger
        self._gates = gates
        self._make_copies = make_copies  # that routers owe a topic (DF9)
        self._clock = clock
        self._cache = cache

    async def losses(self, name: str, limit: int) -> list[Loss]:
        """What a topic has lost, the newest first, at most `limit`."""

        def look(takes_what_is_warm: bool) -> tuple[list[Loss], Gate]:
            topic = self._current(name)
            return losses.newest_first(topic.log.losses, limit), self._gates.of(topic)

        return await self._gates.shown(name, look)

    async def record(self, name: str, seq: int) -> RecordResult:
        """One live record. NotFound: it was deleted, lost, or never written."""

        def look(takes_what_is_warm: bool) -> tuple[RecordResult, Gate]:
            topic = self._current(name)
            log = topic.log
            if not log.is_live(seq):
                raise _missing(topic, seq)
            plan = walk.read(log, Query(seq - 1, 1, BATCH_BYTES_DEFAULT, projection=WHOLE), topic.epoch, self._cache)
            return RecordResult(name, topic.epoch, b"".join(plan.texts())), self._gates.of(topic)

        return await self._gates.shown(name, look)

    def of(self, name: str) -> TopicTotals | None:
        """The running totals of a topic, at the end of the log; None: there is no such topic."""
        topic = self._ledger.state.topics.get(name)
        return None if topic is None else topic_totals(topic, self._clock.now_ms())

    def _current(self, name: str) -> Topic:
        topic = self._ledger.current(name)
        if topic is None:
            raise TopicNotFound(name)
        self._make_copies(topic)
        return topic


def _missing(topic: Topic, seq: int) -> NotFound:
    """The refusal of a record that is not live."""
    reason, said = "not_written", "was never written"
    if 0 < seq <= topic.log.head:
        is_lost = losses.reason_of(topic.log.losses, seq) is not None
        reason, said = ("lost", "is lost") if is_lost else ("deleted", "was deleted")
    return NotFound(f'record {seq} of topic "{topic.name}" {said}', topic=topic.name, seq=seq, reason=reason)
