"""The server's history, at once or as a stream (OB2). It names no topic, so any key that may read sees all of it."""

from typing import Final

from topics.server.call import Call
from topics.server.handlers.live.events import check_accept, opening_of
from topics.server.live.sse import STREAM_ERROR
from topics.server.seeing.history import FINE_MS, FINE_SAMPLES
from topics.server.wire.queries import history_in
from topics.server.wire.seen.sights import Stats

TS_DIGITS_MAX: Final = 15


def show_stats(call: Call) -> None:
    history, asked_ms = call.app.history, history_in(call.parameters)
    history.take()
    interval = history.asked(asked_ms)
    samples = list(interval.ring.since(call.app.clock.now_ms() - asked_ms))
    call.answer(200, Stats(interval.length_ms, samples, call.performance()))


def open_stats(call: Call) -> None:
    """Open a stream. It begins with what the client has missed, or what it asks for of the last ten minutes."""
    app, asked_ms = call.app, min(history_in(call.parameters, 0), FINE_MS * FINE_SAMPLES)
    check_accept(call.request)
    app.history.take()
    missed = call.request.headers.get(b"last-event-id", b"")
    has_id = missed.isdigit() and len(missed) <= TS_DIGITS_MAX
    since = int(missed) if has_id else app.clock.now_ms() - asked_ms
    past = list(app.history.fine.ring.since(since)) if has_id or asked_ms else []
    app.samples.open(call.key, opening_of(call, STREAM_ERROR), past)
    call.stream_opened()
