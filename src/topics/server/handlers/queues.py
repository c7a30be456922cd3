"""Queues: claim, ack, nack, extend, redrive, move, pause, leases, and the stream of jobs (QU, WK).

Claims and acks are hot: those that come in one turn of the loop are done together at its end. Unless something unusual
happens they need no task, and are answered when the log has what the answer depends on.
"""

from collections.abc import Callable
from functools import partial

from msgspec import UNSET

from topics.engine.answers import Claimed, LeaseChange
from topics.engine.instance import Ack, Claimer, Cold, Gate
from topics.errors import CommitFailed, Forbidden, InvalidRequest, NotAQueue, Refusal, TopicNotFound, TopicsError
from topics.model import SEQ_MAX
from topics.server.call import Call
from topics.server.handlers.live.events import check_accept, opening_of
from topics.server.handlers.records import is_synced
from topics.server.wire.queries import encode_cursor
from topics.server.wire.rendered import ack_answer, claim_answer
from topics.server.wire.replies import JobsNacked, LeaseList, LeasesExtended, LettersRedriven, QueuePaused, encode
from topics.server.wire.requests import (
    ack_in,
    claim_in,
    extend_in,
    lease_length,
    nack_in,
    nothing_in,
    redrive_in,
    worker_node,
)
from topics.server.wire.seen.surveys import JobsMoved, move_in
from topics.server.wire.streaming import error_event_in

Body = Callable[[Call, LeaseChange], bytes]  # of an answer


def claim(call: Call) -> None:
    app, asked = call.app, claim_in(call.request.body, call.app.settings)
    config = app.engine.config_of(call.name)
    if config is None or app.pressure.is_refusing or config.claim_jitter_ms:
        app.spawn(_claim_slowly(call, asked), call)
        return
    app.engine.claim_soon(call.name, Claimer(*asked), partial(_claimed, call, asked))


def _claimed(call: Call, asked: tuple[str, int, int | None], claimed: Claimed | None, error: Exception | None) -> None:
    if claimed is not None:
        call.respond(200, claim_answer(claimed, call.total_ms, 0.0))
    elif isinstance(error, Cold | Refusal):
        call.app.spawn(_claim_slowly(call, asked), call)
    else:
        _fail(call, error)


async def _claim_slowly(call: Call, asked: tuple[str, int, int | None]) -> None:
    app, throttle_ms = call.app, 0.0
    config = app.engine.config_of(call.name)
    if app.pressure.is_refusing and config is not None and config.type == "queue":
        throttle_ms = await app.pressure.park(call.stop)
    has_window = call.waits = config is not None and config.claim_jitter_ms > 0
    claimed = await app.engine.claim(call.name, *asked, stop=call.stop if has_window else None)
    call.respond(200, claim_answer(claimed, call.total_ms, throttle_ms))


# --- ack, nack and extend


def ack(call: Call) -> None:
    app = call.app
    jobs = ack_in(call.request.body, app.settings)
    app.engine.ack_soon(
        call.name, Ack(jobs.node, jobs.seqs, jobs.numbers), partial(_acked, call, app.clock.monotonic())
    )


def _acked(call: Call, asked_at: float, changed: LeaseChange | None, error: Exception | None) -> None:
    if changed is None:
        _fail(call, error)
        return
    fsync_ms = 0.0
    if changed.done and is_synced(call.app, changed.topic):
        fsync_ms = (call.app.clock.monotonic() - asked_at) * 1000
    call.respond(200, ack_answer(changed, call.total_ms, fsync_ms))


def nack(call: Call) -> None:
    jobs, delay_ms = nack_in(call.request.body, call.app.settings)
    _change(call, partial(call.app.engine.nack_now, call.name, jobs.node, jobs.seqs, jobs.numbers, delay_ms), _nacked)


def extend(call: Call) -> None:
    jobs, lease_ms = extend_in(call.request.body, call.app.settings)
    change = partial(call.app.engine.extend_now, call.name, jobs.node, jobs.seqs, jobs.numbers, lease_ms)
    _change(call, change, _extended)


def _change(call: Call, change: Callable[[], tuple[LeaseChange, Gate]], body: Body) -> None:
    """The ladder of nack and extend: change the leases of jobs that a node holds, and answer when that may be shown."""
    try:
        changed, gate = change()
    except Refusal as error:
        _refuse(call, error)
        return
    call.app.engine.when_open(gate, partial(_changed, call, changed, body))


def _changed(call: Call, changed: LeaseChange, body: Body, failure: CommitFailed | None) -> None:
    if failure is None:
        call.respond(200, body(call, changed))
    else:
        call.refuse(failure)


def _nacked(call: Call, changed: LeaseChange) -> bytes:
    done, ready, in_flight = len(changed.done), changed.ready, changed.in_flight
    return encode(JobsNacked(changed.topic, done, changed.skipped, ready, in_flight, call.performance()))


def _extended(call: Call, changed: LeaseChange) -> bytes:
    deadlines = {str(seq): changed.deadline for seq in changed.done}
    return encode(LeasesExtended(changed.topic, len(changed.done), changed.skipped, deadlines, call.performance()))


def _fail(call: Call, error: Exception | None) -> None:
    """Answer what kept a claim or an ack from being done."""
    if isinstance(error, Refusal):
        _refuse(call, error)
    elif isinstance(error, TopicsError):
        call.refuse(error)
    else:
        call.fail(error or RuntimeError("neither done nor refused"))


def _refuse(call: Call, error: Refusal) -> None:
    """Refuse once the state that the refusal depends on may be shown."""
    engine = call.app.engine
    engine.when_open(engine.gate(call.name), lambda failure: call.refuse(error if failure is None else failure))


# --- dead letters, leases


async def redrive(call: Call) -> None:
    match, count_max, is_dry = redrive_in(call.request.body)
    config = call.app.engine.config_of(call.name)
    if config is not None and config.dead_letter is not None and not call.key.may_name(config.dead_letter):
        raise Forbidden("this key may not name the dead_letter topic of this queue")
    done = await call.app.engine.redrive(call.name, match, count_max, dry_run=is_dry)
    answer = LettersRedriven(
        topic=done.topic,
        dead_letter=done.dead_letter,
        redriven=done.redriven,
        remaining=done.remaining,
        dry_run=True if is_dry else UNSET,
        redriven_bytes=done.redriven_bytes if is_dry else UNSET,
        performance=call.performance(),
    )
    call.answer(200, answer)


async def move(call: Call) -> None:
    given = move_in(call.request.body, call.app.settings.max_claim)
    call.key.check_names((given.dest,))
    done = await call.app.engine.queues.move(call.name, given.seqs, given.dest)
    call.answer(200, JobsMoved(done.topic, done.dest, done.moved, done.skipped, call.performance()))


async def pause(call: Call) -> None:
    nothing_in(call.request.body)
    await call.app.engine.pause(call.name)
    call.answer(200, QueuePaused(call.name, True, call.performance()))


async def resume(call: Call) -> None:
    nothing_in(call.request.body)
    await call.app.engine.resume(call.name)
    call.answer(200, QueuePaused(call.name, False, call.performance()))


async def list_leases(call: Call) -> None:
    parameters = call.parameters
    leases, has_more = await call.app.engine.queues.leases(call.name, _after(call), parameters.page_size())
    cursor = encode_cursor(str(leases[-1].seq)) if has_more else UNSET
    call.answer(200, LeaseList(topic=call.name, leases=leases, next_cursor=cursor, performance=call.performance()))


def _after(call: Call) -> int:
    """The seq after which a page of leases starts."""
    text = call.parameters.cursor() or "0"
    if not text.isascii() or not text.isdigit() or len(text) > len(str(SEQ_MAX)):
        raise InvalidRequest("cursor is not one that a list of leases gave")
    return int(text)


def work(call: Call) -> None:
    """Open a stream of jobs. Order of refusals (WK1): 400, 406, 404, 409, 429."""
    parameters, settings = call.parameters, call.app.settings
    node = worker_node(parameters.text("node") or "", settings)
    jobs_max = parameters.natural("max")
    if jobs_max == 0:
        raise InvalidRequest("max is 0; it must be a positive integer")
    lease_ms = parameters.natural("lease_ms")
    error_event_in(parameters)
    worker = (node, min(jobs_max or 1, settings.max_claim), None if lease_ms is None else lease_length(lease_ms))
    check_accept(call.request)
    config = call.app.engine.config_of(call.name)
    if config is None or config.type != "queue":
        _refuse(call, TopicNotFound(call.name) if config is None else NotAQueue(call.name))
    elif call.app.pressure.is_refusing:
        call.app.spawn(_work_parked(call, worker), call)
    else:
        _open(call, worker)


async def _work_parked(call: Call, worker: tuple[str, int, int | None]) -> None:
    await call.app.pressure.park(call.stop)
    _open(call, worker)


def _open(call: Call, worker: tuple[str, int, int | None]) -> None:
    app = call.app
    call.key.check_still(call.route.scopes, (call.name,))
    app.engine.check_queue(call.name)
    app.work.open(call.name, call.key, worker, opening_of(call, error_event_in(call.parameters)))
    call.stream_opened()
