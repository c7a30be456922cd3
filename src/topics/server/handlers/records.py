"""Records: append and delete (WR, ID, DL).

Appending is the hottest path of the server. Small writes wait for the end of the turn in which they came, when those to
one topic are committed together (writing/turn.py); all others climb the ladder (writing/ladder.py) one by one.
"""

import asyncio
from typing import TYPE_CHECKING, Final

from msgspec import UNSET

from topics.core.topic.records import CUT_BYTES, Batch, RecordIn, WriteIn, check_batch
from topics.errors import InvalidRequest, Refusal
from topics.faults import quoted
from topics.server.call import Call
from topics.server.handlers.writing.ladder import Checked, HttpWrite, key_of
from topics.server.handlers.writing.turn import PLAIN_QUERIES, WRITE_BYTES_MAX
from topics.server.transport.encoding import JSON_TYPE, NDJSON_TYPE
from topics.server.transport.exchange import Request
from topics.server.wire.bulk import ArrowRows, ndjson_in
from topics.server.wire.large import LARGE_BYTES
from topics.server.wire.rendered import record_answer
from topics.server.wire.replies import RecordsDeleted, SyncPerformance
from topics.server.wire.requests import delete_in, seq_in_path, write_in

if TYPE_CHECKING:
    from topics.server.app import App

KEY_HEADERS: Final = frozenset((b"idempotency-key", b"idempotency-mismatch"))


def append(call: Call) -> None:
    request = call.request
    if len(request.body) > LARGE_BYTES:
        call.app.spawn(_append_large(call), call)
        return
    is_json = call.media == JSON_TYPE
    if (
        is_json
        and len(request.body) <= WRITE_BYTES_MAX
        and request.query in PLAIN_QUERIES
        and KEY_HEADERS.isdisjoint(request.headers)
    ):
        call.app.writes.add(call)
        return
    header = request.headers.get(b"idempotency-key")
    checked: Checked = None
    if is_json:
        given = write_in(request.body, call.app.settings)
    elif call.media == NDJSON_TYPE:
        given = _bulk_in(call, ndjson_in(request.body, call.app.settings))
    else:
        given, checked = _arrow_in(call, header)
    refuses = _refuses(request)
    HttpWrite(call).submit(call.name, given, request.body if is_json else None, header, checked, refuses=refuses)


async def _append_large(call: Call) -> None:
    """Append what takes long to decode and check: that is done by a thread, one at a time (LM10)."""
    app, header = call.app, call.request.headers.get(b"idempotency-key")
    async with app.decoding:
        if call.exchange.is_lost:
            raise InvalidRequest("the client was gone before its body was decoded")
        given, checked = await asyncio.get_running_loop().run_in_executor(None, _decode_large, call)
    config = app.engine.config_of(call.name)
    if isinstance(checked, Batch) and (config is None or config.durability != "ephemeral"):
        await app.engine.make_room(len(checked.body))
    call.check_key()
    if not app.is_serving:
        raise app.unavailable()
    body = call.request.body or None
    HttpWrite(call).submit(call.name, given, body, header, checked, refuses=_refuses(call.request))


def _decode_large(call: Call) -> tuple[WriteIn, Checked]:
    """Decode and check a large write; blocking. Its body is let go of unless it is kept as it is, or its config is yet
    to be looked at: what replaces it may be as large."""
    settings, request = call.app.settings, call.request
    header = request.headers.get(b"idempotency-key")
    checked: Checked = None
    if call.media == JSON_TYPE:
        given = write_in(request.body, settings)
    elif call.media == NDJSON_TYPE:
        given = _bulk_in(call, ndjson_in(request.body, settings))
    else:
        given, checked = _arrow_in(call, header)
    text = [request.body if call.media == JSON_TYPE else None]
    if given.config is None:
        request.body = b""
    if checked is not None:
        return given, checked
    try:
        batch = check_batch(given.records, given.node, key_of(given, header), settings, text.pop())
    except Refusal as refusal:
        return given, refusal  # other checks come first
    return given, batch


def is_synced(app: "App", name: str) -> bool:
    """Whether writes to a topic wait for a sync."""
    config = app.engine.config_of(name)
    return config is not None and config.durability == "fsync"


def _refuses(request: Request) -> bool:
    """Whether a header says that other records under a known key are refused (ID9)."""
    header = request.headers.get(b"idempotency-mismatch")
    if header is None:
        return False
    if header != b"refuse":
        shown = quoted(header.decode("latin-1"))
        raise InvalidRequest(f"the header Idempotency-Mismatch is {shown}; it must be refuse, or left out")
    return True


def _bulk_in(call: Call, records: list[RecordIn]) -> WriteIn:
    """A write whose body holds only records; the rest is in the query."""
    parameters = call.parameters
    return WriteIn(
        records,
        parameters.text("node"),
        parameters.text("idempotency_key"),
        parameters.flag("create", True) if parameters.text("create") is not None else None,
        None,
        parameters.flag("disable_backpressure", False),
    )


def _arrow_in(call: Call, header: bytes | None) -> tuple[WriteIn, Checked]:
    """A write of Arrow rows, checked if that can be done by columns, in a step of bounded length; else with its
    records."""
    body = call.request.body
    rows = ArrowRows.read(body, call.app.settings)
    given = _bulk_in(call, [])
    is_small = len(body) <= CUT_BYTES
    checked = rows.batch(key_of(given, header)) if is_small and given.node is None else None
    if checked is None:
        given.records = rows.records()
    return given, checked


async def delete_records(call: Call) -> None:
    before_seq, match, epoch, is_dry = delete_in(call.request.body)
    selected_ms = call.total_ms
    done = await call.app.engine.delete(call.name, before_seq=before_seq, match=match, epoch=epoch, dry_run=is_dry)
    total_ms = call.total_ms
    is_waiting = done.deleted and not is_dry and is_synced(call.app, call.name)
    fsync_ms = total_ms - selected_ms if is_waiting else 0.0
    answer = RecordsDeleted(
        topic=done.topic,
        deleted=done.deleted,
        earliest_seq=done.earliest_seq,
        head_seq=done.head_seq,
        count=done.count,
        bytes=done.bytes,
        dry_run=True if is_dry else UNSET,
        deleted_bytes=done.deleted_bytes if is_dry else UNSET,
        performance=SyncPerformance(round(total_ms, 3), round(fsync_ms, 3)),
    )
    call.answer(200, answer)


async def show_record(call: Call) -> None:
    seq = seq_in_path(call.item)
    async with call.exchange.room(call.app.settings.max_record_bytes):
        result = await call.app.engine.reading.record(call.name, seq)
    call.respond(200, record_answer(result, call.total_ms))
