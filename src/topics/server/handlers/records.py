"""Records: append and delete (WR, ID, DL).

Appending is the hottest path of the server. A write that meets nothing unusual runs to its end without a task: decode,
check, submit, and answer from the log's callback. Whatever is unusual (a refusal, pressure) goes on in a task.
"""

from functools import partial
from typing import TYPE_CHECKING

from msgspec import UNSET

from topics.core.decide import Append
from topics.core.topic.config import ConfigIn, resolve
from topics.core.topic.records import WriteIn, check_batch
from topics.engine.answers import WriteResult
from topics.errors import CommitFailed, InvalidRequest, Refusal, TopicNotFound
from topics.model import is_topic_name
from topics.server.auth import ADMIN, Key
from topics.server.call import Call
from topics.server.handlers.topics import check_dead_letter
from topics.server.transport.encoding import JSON_TYPE, NDJSON_TYPE
from topics.server.wire.bulk import arrow_in, ndjson_in
from topics.server.wire.replies import RecordsDeleted, SyncPerformance, write_answer
from topics.server.wire.requests import delete_in, write_in

if TYPE_CHECKING:
    from topics.server.app import App

ADMIN_SCOPE = frozenset((ADMIN,))


def append(call: Call) -> None:
    request, app = call.request, call.app
    is_json = call.media == JSON_TYPE
    write = write_in(request.body) if is_json else _bulk_in(call)
    if write.config is not None:
        check_config(call.key, call.name, write.config, is_used=call.name not in app.engine.state.topics)
    key = write.idempotency_key
    if key is None and b"idempotency-key" in request.headers:
        key = _header_key(call) or None
    batch = check_batch(write.records, write.node, key, app.settings, request.body if is_json else None)
    command = Append(call.name, batch, key, write.create, write.config)
    if app.pressure.is_refusing:
        app.spawn(_append_parked(call, command, write), call)
        return
    try:
        result, gate = app.engine.submit(command)
    except Refusal:
        app.spawn(_append_again(call, command, 0.0), call)
        return
    app.engine.when_open(gate, partial(_appended, call, result, app.clock.monotonic(), 0.0))


def _appended(
    call: Call, result: WriteResult, submitted_at: float, throttle_ms: float, failure: CommitFailed | None
) -> None:
    """The log has the write, as durable as its class asks."""
    if failure is not None:
        call.refuse(failure)
        return
    with_seqs = not call.request.query or call.parameters.flag("return_seqs", True)
    body = timed_answer(call.app, result, call.started, submitted_at, throttle_ms, with_seqs)
    call.respond(201 if result.created else 200, body)


def timed_answer(
    app: "App", result: WriteResult, started: float, submitted_at: float, throttle_ms: float, with_seqs: bool
) -> bytes:
    """The answer to a write that is as durable as its class asks, with the times it took."""
    now = app.clock.monotonic()
    total_ms = append_ms = (now - started) * 1000
    fsync_ms = 0.0
    if is_synced(app, result.topic):
        fsync_ms = (now - submitted_at) * 1000
        append_ms -= fsync_ms
    if throttle_ms:
        append_ms -= throttle_ms
    return write_answer(result, with_seqs, total_ms, append_ms, fsync_ms, throttle_ms)


async def _append_again(call: Call, command: Append, throttle_ms: float) -> None:
    """What was refused is decided once more, and told when what it depends on may be shown."""
    submitted_at = call.app.clock.monotonic()
    result = await call.app.engine.append_batch(command)
    _appended(call, result, submitted_at, throttle_ms, None)


async def _append_parked(call: Call, command: Append, write: WriteIn) -> None:
    check_target(call.app, call.name, write)
    call.app.engine.wal.counters.submit_full += 1
    throttle_ms = await call.app.pressure.park(call.stop, for_ever=write.disable_backpressure)
    await _append_again(call, command, throttle_ms)


def check_target(app: "App", name: str, write: WriteIn) -> None:
    """What comes before pressure in the order of refusals: 404, or 400 for a bad name (WR14)."""
    if name in app.engine.state.topics:
        return
    auto_create = write.config.auto_create if write.config is not None else UNSET
    if not (write.create if write.create is not None else auto_create is not False):
        raise TopicNotFound(name)
    if not is_topic_name(name):
        raise InvalidRequest(f'"{name}" is not a valid topic name')


def check_config(key: Key, name: str, config: ConfigIn, *, is_used: bool) -> None:
    """An inline config is checked before the records, and needs more than write if it will count (AU7, AU8)."""
    resolve(name, config)
    if is_used:
        key.check_scopes(ADMIN_SCOPE)
    check_dead_letter(key, config)


def is_synced(app: "App", name: str) -> bool:
    topic = app.engine.state.topics.get(name)
    return topic is not None and topic.config.durability == "fsync"


def _header_key(call: Call) -> str:
    try:
        return call.request.headers[b"idempotency-key"].decode()
    except UnicodeDecodeError:
        raise InvalidRequest("the header Idempotency-Key is not UTF-8") from None


def _bulk_in(call: Call) -> WriteIn:
    """A write whose body is only records; the rest comes as query."""
    parameters, body = call.parameters, call.request.body
    return WriteIn(
        ndjson_in(body) if call.media == NDJSON_TYPE else arrow_in(body, call.app.settings.max_batch_records),
        parameters.text("node"),
        parameters.text("idempotency_key"),
        parameters.flag("create", True) if parameters.text("create") is not None else None,
        None,
        parameters.flag("disable_backpressure", False),
    )


async def delete_records(call: Call) -> None:
    before_seq, match, epoch = delete_in(call.request.body)
    selected_ms = call.total_ms
    done = await call.app.engine.delete(call.name, before_seq=before_seq, match=match, epoch=epoch)
    total_ms = call.total_ms
    fsync_ms = total_ms - selected_ms if done.deleted and is_synced(call.app, call.name) else 0.0
    performance = SyncPerformance(round(total_ms, 3), round(fsync_ms, 3))
    call.answer(
        200,
        RecordsDeleted(done.topic, done.deleted, done.earliest_seq, done.head_seq, done.count, done.bytes, performance),
    )
