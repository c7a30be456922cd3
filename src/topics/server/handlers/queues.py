"""Queues: claim, ack, nack, extend, redrive, leases, and the stream of jobs (QU, WK).

Claim and ack are hot: one that meets nothing unusual runs to its end without a task, and is answered when the log
has what it depends on.
"""

from functools import partial

from msgspec import UNSET

from topics.core.topic.pages import ColdPage
from topics.engine.answers import Claimed, Settled
from topics.engine.queues.claims import Claimer
from topics.errors import CommitFailed, InvalidRequest, NotAQueue, Refusal, TopicNotFound
from topics.model import SEQ_MAX
from topics.server.call import Call
from topics.server.handlers.records import is_synced
from topics.server.handlers.watch import check_accept
from topics.server.live.sse import EVENT_STREAM, STREAM_HEADERS
from topics.server.wire.replies import JobsNacked, LeaseList, LeasesExtended, LettersRedriven, ack_answer, claim_answer
from topics.server.wire.requests import (
    ack_in,
    claim_in,
    encode_cursor,
    extend_in,
    lease_length,
    nack_in,
    redrive_in,
    worker_node,
)


def claim(call: Call) -> None:
    app = call.app
    claimer = Claimer(*claim_in(call.request.body, app.settings))
    topic = app.engine.state.topics.get(call.name)
    if topic is None or app.pressure.is_refusing or topic.config.claim_jitter_ms:
        app.spawn(_claim_slowly(call, claimer), call)
        return
    try:
        claimed, gate = app.engine.queues.claim_now(call.name, claimer)
    except (ColdPage, Refusal):
        app.spawn(_claim_slowly(call, claimer), call)
        return
    app.engine.queues.when_shown(claimed, gate, partial(_claimed, call, claimed, 0.0))


def _claimed(call: Call, claimed: Claimed, throttle_ms: float, failure: CommitFailed | None) -> None:
    if failure is not None:
        call.refuse(failure)
    else:
        call.respond(200, claim_answer(claimed, call.total_ms, throttle_ms))


async def _claim_slowly(call: Call, claimer: Claimer) -> None:
    app, throttle_ms = call.app, 0.0
    topic = app.engine.state.topics.get(call.name)
    if app.pressure.is_refusing and topic is not None and topic.is_queue:
        throttle_ms = await app.pressure.park(call.stop)
    has_window = topic is not None and topic.config.claim_jitter_ms > 0
    claimed = await app.engine.workers.claim(call.name, claimer, call.stop if has_window else None)
    _claimed(call, claimed, throttle_ms, None)


def ack(call: Call) -> None:
    app = call.app
    held = ack_in(call.request.body, app.settings)
    asked_at = app.clock.monotonic()
    try:
        settled, gate = app.engine.queues.ack(call.name, held.node, held.seqs, held.numbers)
    except Refusal as error:
        _refuse(call, error)
        return
    app.engine.when_open(gate, partial(_acked, call, settled, asked_at))


def _acked(call: Call, settled: Settled, asked_at: float, failure: CommitFailed | None) -> None:
    if failure is not None:
        call.refuse(failure)
        return
    fsync_ms = 0.0
    if settled.done and is_synced(call.app, settled.topic):
        fsync_ms = (call.app.clock.monotonic() - asked_at) * 1000
    call.respond(200, ack_answer(settled, call.total_ms, fsync_ms))


def nack(call: Call) -> None:
    app = call.app
    held, delay_ms = nack_in(call.request.body, app.settings)
    try:
        settled, gate = app.engine.queues.nack(call.name, held.node, held.seqs, held.numbers, delay_ms)
    except Refusal as error:
        _refuse(call, error)
        return
    app.engine.when_open(gate, partial(_nacked, call, settled))


def _nacked(call: Call, settled: Settled, failure: CommitFailed | None) -> None:
    if failure is not None:
        call.refuse(failure)
        return
    done, ready, in_flight = len(settled.done), settled.ready, settled.in_flight
    call.answer(200, JobsNacked(settled.topic, done, settled.skipped, ready, in_flight, call.performance()))


def extend(call: Call) -> None:
    app = call.app
    held, lease_ms = extend_in(call.request.body, app.settings)
    try:
        settled, gate = app.engine.queues.extend(call.name, held.node, held.seqs, held.numbers, lease_ms)
    except Refusal as error:
        _refuse(call, error)
        return
    app.engine.when_open(gate, partial(_extended, call, settled))


def _extended(call: Call, settled: Settled, failure: CommitFailed | None) -> None:
    if failure is not None:
        call.refuse(failure)
        return
    deadlines = {str(seq): settled.deadline for seq in settled.done}
    done = len(settled.done)
    call.answer(200, LeasesExtended(settled.topic, done, settled.skipped, deadlines, call.performance()))


def _refuse(call: Call, error: Refusal) -> None:
    """Refuse when what it depends on may be shown."""
    engine = call.app.engine
    gate = engine.gate(engine.state.topics.get(call.name))
    engine.when_open(gate, lambda failure: call.refuse(error if failure is None else failure))


async def redrive(call: Call) -> None:
    match, most = redrive_in(call.request.body)
    topic = call.app.engine.state.topics.get(call.name)
    if topic is not None and topic.config.dead_letter is not None:
        call.key.check_names((topic.config.dead_letter,))
    done = await call.app.engine.redrive(call.name, match, most)
    call.answer(200, LettersRedriven(done.topic, done.dead_letter, done.redriven, done.remaining, call.performance()))


async def list_leases(call: Call) -> None:
    parameters = call.parameters
    leases, has_more = await call.app.engine.queues.leases(call.name, _after(call), parameters.page_size())
    cursor = encode_cursor(str(leases[-1].seq)) if has_more else UNSET
    call.answer(200, LeaseList(topic=call.name, leases=leases, next_cursor=cursor, performance=call.performance()))


def _after(call: Call) -> int:
    """The seq behind which a page of leases starts."""
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
    worker = (node, min(jobs_max or 1, settings.max_claim), None if lease_ms is None else lease_length(lease_ms))
    check_accept(call.request)
    topic = call.app.engine.state.topics.get(call.name)
    if topic is None or not topic.is_queue:
        _refuse(call, TopicNotFound(call.name) if topic is None else NotAQueue(call.name))
    elif call.app.pressure.is_refusing:
        call.app.spawn(_work_parked(call, worker), call)
    else:
        _open(call, worker)


async def _work_parked(call: Call, worker: tuple[str, int, int | None]) -> None:
    await call.app.pressure.park(call.stop)
    _open(call, worker)


def _open(call: Call, worker: tuple[str, int, int | None]) -> None:
    app = call.app
    app.engine.queues.queue(call.name)
    app.work.open(call.name, call.key, worker, lambda: call.start_stream(EVENT_STREAM, STREAM_HEADERS))
    call.finish(200)
    request = call.request  # lives as long as the stream
    request.headers, request.repeated = {}, ()
    request.target = request.query = b""
