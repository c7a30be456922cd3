"""Small writes that come in one turn of the loop: those to one topic are one append, in one frame of the log.

Owns the writes that have come and are not decided yet. Must not know: how a request came, what the log does.

A write waits for the end of the turn in which it came, when the loop has gone through what the sockets brought. Those
to one topic are then a *run*: their records are checked, logged and applied as those of one write, and each write is
answered for its own seqs. Nobody can tell in which order requests came that were in flight at the same time, so a run
is what writes one by one could have been. The log writes in the same turn: a lone write waits no longer than without
this.

Each write has its own fate. What is wrong with one of a run, or with all of them together, sends each up the ladder
alone, and there it is refused for itself. A key, a config, and a topic that is not there go alone as well.

Invariant: every write that was added is answered once, or climbs the ladder once.
"""

import asyncio
import logging
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Final

from msgspec import UNSET, Struct

from topics.core.topic.records import RecordIn, WriteIn, check_batch
from topics.engine.answers import WriteResult
from topics.engine.instance import Append
from topics.errors import CommitFailed, TopicsError
from topics.server.call import Call
from topics.server.handlers.writing.ladder import HttpWrite, performance
from topics.server.wire.rendered import write_answer
from topics.server.wire.requests import write_in

if TYPE_CHECKING:
    from topics.server.app import App

logger = logging.getLogger("topics.server")

PLAIN_QUERIES: Final = (b"", b"return_seqs=false")  # the latter: the answer is without the list of seqs
WRITE_BYTES_MAX: Final = 16 * 1024  # the body of a write that waits for others
TURN_WRITES_MAX: Final = 512  # done in one turn; the others wait for the next (LM10) …
TURN_BYTES_MAX: Final = 256 * 1024  # … as those whose bodies would be more than this …
TURN_S: Final = 0.005  # … and those that are not begun after so long
RUN_RECORDS_MAX: Final = 512


class Run(Struct):
    """Writes to one topic that are one append."""

    calls: list[Call] = []
    counts: list[int] = []  # how many records each has
    records: list[RecordIn] = []

    def add(self, call: Call, given: WriteIn) -> None:
        records = given.records
        if given.node is not None:
            for record in records:
                if record.node is None:
                    record.node = given.node
        self.calls.append(call)
        self.counts.append(len(records))
        self.records += records


class WriteTurn:
    """What waits for the end of this turn."""

    def __init__(self, app: "App") -> None:
        self._app = app
        self._waiting: list[Call] = []
        self._late_at = 0.0  # no further write is begun in this turn

    def add(self, call: Call) -> None:
        """Take a write of JSON with a plain query and without a header that concerns its key."""
        if not self._waiting:
            self._end_soon()
        self._waiting.append(call)

    def _end_soon(self) -> None:
        asyncio.get_running_loop().call_soon(self._end)

    def _end(self) -> None:
        """The turn is over. Only the event loop is further up the stack (ST17)."""
        calls, self._waiting = self._waiting, []
        self._late_at = self._app.clock.monotonic() + TURN_S
        if len(calls) > 1 and (count := _share(calls)) < len(calls):
            calls, self._waiting = calls[:count], calls[count:]
            self._end_soon()
        if len(calls) == 1:
            _alone(calls[0])
        else:
            by_topic: dict[str, list[Call]] = {}
            for call in calls:
                by_topic.setdefault(call.name, []).append(call)
            for name, group in by_topic.items():
                self._write(name, group)
        self._app.engine.end_turn()

    def _write(self, name: str, calls: Sequence[Call]) -> None:
        """Write what has come for one topic."""
        app = self._app
        go_alone = len(calls) == 1 or app.engine.config_of(name) is None or app.pressure.is_refusing
        run, records_max = Run(), min(RUN_RECORDS_MAX, app.settings.max_batch_records)
        for n, call in enumerate(calls):
            if app.clock.monotonic() > self._late_at:
                self._put_off(calls[n:])
                break
            given = _decoded(call)
            if given is None:
                continue
            is_slowed = app.pressure.slows(len(call.request.body))
            if go_alone or is_slowed or not _is_plain(given, records_max, app.settings.max_node_bytes):
                _alone(call, given)
                continue
            if len(run.records) + len(given.records) > records_max:
                self._commit(name, run)
                run = Run()
            run.add(call, given)
        if run.calls:
            self._commit(name, run)

    def _put_off(self, calls: Sequence[Call]) -> None:
        """Leave writes to the next turn: this one has taken long enough."""
        if not self._waiting:
            self._end_soon()
        self._waiting[:0] = calls

    def _commit(self, name: str, run: Run) -> None:
        engine, clock = self._app.engine, self._app.clock
        try:
            result, gate = engine.append_now(Append(name, check_batch(run.records, None, None, self._app.settings)))
        except TopicsError:
            for call in run.calls:
                _alone(call)
            return
        except Exception as error:
            _refuse(run.calls, error)
            return
        submitted_at = clock.monotonic()
        engine.when_open(gate, lambda failure: self._opened(run, result, submitted_at, failure))

    def _opened(self, run: Run, result: WriteResult, submitted_at: float, failure: CommitFailed | None) -> None:
        """The log has the run, as durable as its class asks, or has failed: answer."""
        if failure is not None:
            _refuse(run.calls, failure)
            return
        started = run.calls[0].started  # that of the first, which waited longest
        took = performance(self._app, result.topic, started, submitted_at)
        topic, first = result.topic.encode(), result.first_seq
        bodies = []
        for call, count in zip(run.calls, run.counts, strict=True):
            last = first + count - 1
            bodies.append(write_answer(topic, first, last, last, took, with_seqs=not call.request.query))
            first += count
        _tell(run.calls, _answer, bodies)


def _share(calls: Sequence[Call]) -> int:
    """How many of these writes are done in one turn."""
    left = TURN_BYTES_MAX
    for count, call in enumerate(calls[:TURN_WRITES_MAX]):
        left -= len(call.request.body)
        if left < 0:
            return max(1, count)
    return min(len(calls), TURN_WRITES_MAX)


def _is_plain(given: WriteIn, records_max: int, node_bytes_max: int) -> bool:
    """Whether a write is nothing but its records, and few enough of them. A node that may be too long is not looked at
    where all records have their own."""
    return (
        given.idempotency_key is None
        and given.config is None
        and given.on_mismatch is UNSET
        and (given.node is None or 4 * len(given.node) <= node_bytes_max)
        and 0 < len(given.records) <= records_max
    )


def _decoded(call: Call) -> WriteIn | None:
    """What a body says; None: nothing that could be written, and that is answered."""
    try:
        return write_in(call.request.body, call.app.settings)
    except Exception as error:
        _refuse([call], error)
    return None


def _alone(call: Call, given: WriteIn | None = None) -> None:
    """Send a write up the ladder by itself."""
    given = given or _decoded(call)
    if given is not None:
        try:
            HttpWrite(call).submit(call.name, given, call.request.body)
        except Exception as error:
            _refuse([call], error)


def _refuse(calls: Sequence[Call], error: Exception) -> None:
    """Tell that writes were refused, or that the server itself has failed."""
    tell: Callable[[Call, Any], None] = Call.refuse if isinstance(error, TopicsError) else Call.fail
    _tell(calls, tell, [error] * len(calls))


def _answer(call: Call, body: bytes) -> None:
    call.respond(200, body)


def _tell(calls: Sequence[Call], tell: Callable[[Call, Any], None], what: Sequence[Any]) -> None:
    """Tell each what has become of its write; if telling one fails, the others are still told."""
    for call, one in zip(calls, what, strict=True):
        try:
            tell(call, one)
        except Exception:
            logger.exception("somebody could not be told what became of a write")
