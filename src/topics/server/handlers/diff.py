"""Diff: read above a cursor, and wait there for news (DF, ND).

A read whose records are in memory and may be shown is answered without a task.
"""

from functools import partial

import msgspec

from topics.engine.instance import Cold, Query
from topics.errors import TopicNotFound
from topics.model import WAIT_MS_MAX
from topics.server.call import Call
from topics.server.wire.rendered import diff_answer
from topics.server.wire.requests import DiffIn, diff_in, diff_of, query_of


def diff(call: Call) -> None:
    _read(call, diff_in(call.request.body, call.app.settings))


def get_diff(call: Call) -> None:
    """A diff as a query string, for browsers and curl."""
    _read(call, diff_of(call.parameters))


def _read(call: Call, asked: DiffIn) -> None:
    app, query = call.app, query_of(asked, call.app.settings)
    if asked.wait_ms or asked.from_ts is not None or app.pressure.is_refusing or not call.exchange.has_room:
        app.spawn(_read_slowly(call, query, asked), call)
        return
    try:
        result, gate = app.engine.read_in_turn(call.name, query)
    except (Cold, TopicNotFound):
        app.spawn(_read_slowly(call, query, asked), call)
        return
    if app.engine.is_open(gate):
        call.respond(200, diff_answer(result, call.total_ms, 0.0))
    else:
        app.spawn(_read_slowly(call, query, asked), call)


async def _read_slowly(call: Call, query: Query, asked: DiffIn) -> None:
    engine, throttle_ms = call.app.engine, 0.0
    if call.app.pressure.is_refusing:
        throttle_ms = await call.app.pressure.park(call.stop)
    if asked.from_ts is not None and engine.config_of(call.name) is not None:
        cursor = engine.cursor_before(call.name, asked.from_ts)
        query = msgspec.structs.replace(query, after=max(query.after, cursor))
    wait_ms = min(asked.wait_ms, WAIT_MS_MAX)
    call.waits = bool(wait_ms)
    stop, room = call.stop if wait_ms else None, partial(call.exchange.room, query.bytes_max)
    result = await engine.reading.read_query(call.name, query, wait_ms, stop, room)
    call.check_key()
    call.respond(200, diff_answer(result, call.total_ms, throttle_ms))
