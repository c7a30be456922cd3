"""Claims and acks that come in one turn of the loop: those of a queue are decided and committed together.

Owns what has come and is not decided yet. Must not know: HTTP, what is answered.

While many ask, a claim or an ack waits for the end of the turn in which it came, when the loop has gone through what
the sockets brought: so fifty workers cost one delete, one frame and one search for jobs, not fifty. Nobody can tell in
which order requests came that were in flight at the same time. Each has its own answer and its own fate: what refuses
one does not touch the others.

Who is alone is served at once: a turn more would cost more than it saves. Whether anybody is alone is looked at every
now and then, by counting those who ask in a turn; while these are more than one, they wait for its end.

Invariant: whoever asked is told exactly once.
"""

import asyncio
import logging
from collections.abc import Callable, Sequence
from functools import partial
from typing import TypeVar

from topics.core.queue.leasing import Ack, Claimer
from topics.engine.answers import Claimed, LeaseChange
from topics.engine.gate import Gates
from topics.engine.queues.claims import Queues
from topics.errors import CommitFailed, StorageError

TURN_JOBS_MAX = 1000  # that claims may ask for in one turn; the others wait for the next
LOOK_EVERY = 16  # requests served at once after which it is looked at how many ask in a turn

T = TypeVar("T")
ToldAck = Callable[[LeaseChange | None, Exception | None], None]
ToldClaim = Callable[[Claimed | None, Exception | None], None]

logger = logging.getLogger("topics.engine.queues.turns")


class Turns:
    """What waits for the end of this turn, by the name of the queue."""

    def __init__(self, queues: Queues, gates: Gates) -> None:
        self._queues = queues
        self._gates = gates
        self._acks: dict[str, list[tuple[Ack, ToldAck]]] = {}
        self._claims: dict[str, list[tuple[Claimer, ToldClaim]]] = {}
        self._is_due = False  # the end of this turn will be noticed
        self._asked = 0  # since that is so
        self._is_crowded = False  # more than one has asked in the last turn that was looked at
        self._unseen = 0  # served at once since then

    def ack(self, name: str, ack: Ack, told: ToldAck) -> None:
        """Complete jobs. `told` gets what was done when that may be shown, or why nothing was."""
        if not self._is_due and not self._is_crowded:
            self._ack_now(name, ack, told)
            return
        self._acks.setdefault(name, []).append((ack, told))
        self._wait()

    def claim(self, name: str, claimer: Claimer, told: ToldClaim) -> None:
        """Hand jobs out. `told` gets them when they may be shown, or why there are none: Cold, a refusal, a failure."""
        if not self._is_due and not self._is_crowded:
            self._claim_now(name, claimer, told)
            return
        self._claims.setdefault(name, []).append((claimer, told))
        self._wait()

    def ack_waiting(self, name: str) -> None:
        """Have the acks of a queue done that came before now: a worker that acks and leaves has acked."""
        waiting = self._acks.pop(name, None)
        if waiting is not None:  # the caller may be in the middle of a change: nobody is told before it is over (ST17)
            asyncio.get_running_loop().call_soon(self._ack(name, waiting))

    # --- alone

    def _ack_now(self, name: str, ack: Ack, told: ToldAck) -> None:
        self._look()
        try:
            changed, gate = self._queues.ack(name, *ack)
        except Exception as error:
            told(None, error)
            return
        self._gates.when_open(gate, lambda failure: told(changed if failure is None else None, failure))

    def _claim_now(self, name: str, claimer: Claimer, told: ToldClaim) -> None:
        self._look()
        try:
            hands, gate = self._queues.hand_out_each(name, (claimer,))
        except Exception as error:
            told(None, error)
            return
        self._queues.when_shown(hands, gate, lambda failure: told(hands[0] if failure is None else None, failure))

    def _look(self) -> None:
        """Somebody is served at once: see whether others ask in this turn, if it is time to."""
        self._unseen += 1
        if self._unseen >= LOOK_EVERY:
            self._asked += 1
            self._end_soon()

    # --- the end of a turn

    def _wait(self) -> None:
        """Somebody waits for the end of this turn."""
        self._asked += 1
        if not self._is_due:
            self._end_soon()

    def _end_soon(self) -> None:
        self._is_due = True
        asyncio.get_running_loop().call_soon(self._end)

    def _end(self) -> None:
        """The turn is over. Only the event loop is further up the stack (ST17).

        Claims come first: behind acks they would have to wait until the log has those.
        """
        self._is_due, self._is_crowded, self._asked, self._unseen = False, self._asked > 1, 0, 0
        acks, self._acks = self._acks, {}
        claims, self._claims = self._claims, {}
        for name, claiming in claims.items():
            self._claim(name, claiming)
        for name, acking in acks.items():
            self._ack(name, acking)()

    # --- acks

    def _ack(self, name: str, waiting: Sequence[tuple[Ack, ToldAck]]) -> Callable[[], None]:
        """Do acks. Gives what tells those who asked, when they may be told."""
        tellers = [told for _, told in waiting]
        try:
            changes, gate = self._queues.ack_all(name, [ack for ack, _ in waiting])
        except Exception as error:
            if len(waiting) > 1 and isinstance(error, StorageError) and not isinstance(error, CommitFailed):
                each = [self._ack(name, (one,)) for one in waiting]  # a damaged page is met by those whose jobs it has
                return partial(_call_each, each)
            return partial(_tell, tellers, [None] * len(tellers), error)
        nothing = [None] * len(tellers)
        return partial(
            self._gates.when_open,
            gate,
            lambda failure: _tell(tellers, changes if failure is None else nothing, failure),
        )

    # --- claims

    def _claim(self, name: str, waiting: list[tuple[Claimer, ToldClaim]]) -> None:
        """Serve the first of those who wait: as many as a turn may, one at least. The next turn goes on."""
        count = jobs = 0
        while count < len(waiting) and (not count or jobs + waiting[count][0].wanted <= TURN_JOBS_MAX):
            jobs += waiting[count][0].wanted
            count += 1
        tellers = [told for _, told in waiting[:count]]
        try:
            hands, gate = self._queues.hand_out_each(name, [claimer for claimer, _ in waiting[:count]])
        except Exception as error:
            _tell(tellers, [None] * count, error)
        else:
            count = len(hands)
            del tellers[count:]
            self._queues.when_shown(
                hands, gate, lambda failure: _tell(tellers, hands if failure is None else [None] * count, failure)
            )
        if count < len(waiting):
            self._claims[name] = waiting[count:] + self._claims.get(name, [])
            if not self._is_due:
                self._end_soon()


def _call_each(calls: Sequence[Callable[[], None]]) -> None:
    for call in calls:
        call()


def _tell(
    tellers: Sequence[Callable[[T | None, Exception | None], None]],
    answers: Sequence[T | None],
    error: Exception | None,
) -> None:
    """Tell each its answer; if telling one fails, the others are still told."""
    for told, answer in zip(tellers, answers, strict=True):
        try:
            told(answer, error)
        except Exception:
            logger.exception("somebody could not be told what became of jobs")
