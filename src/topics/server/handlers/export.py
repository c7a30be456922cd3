"""Downloads: a topic's live records as one Arrow stream (additive), or their seqs alone, as runs (LV1); and the data
directory as a backup (BK1).

What was lost of a topic is in its stream's schema metadata. What is in a backup is up to the engine.
"""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import aclosing
from functools import partial
from typing import Final

from topics.errors import Forbidden
from topics.server.auth import ADMIN
from topics.server.call import Call
from topics.server.transport.encoding import ARROW_TYPE
from topics.server.transport.exchange import Stream
from topics.server.wire.replies import LiveRuns
from topics.server.wire.requests import backup_in, seq

BACKUP_TYPE = "application/vnd.topics.backup"
BACKUP_SCOPES = frozenset((ADMIN,))
PART_BYTES: Final = 1024 * 1024  # of a download, about


async def export(call: Call) -> None:
    _, parts = await call.app.engine.export(call.name, *_range(call))
    stream = call.start_stream(ARROW_TYPE.encode(), survives_eof=True)
    if call.request.method != "HEAD":
        while await _is_wanted(call, stream) and (part := await _next(call, parts)) is not None:
            stream.write(part)
    stream.end()
    call.finish(200)


async def live(call: Call) -> None:
    shown, runs, through = await call.app.engine.reading.live_runs(call.name, *_range(call))
    answer = LiveRuns(
        shown.topic,
        shown.epoch,
        shown.head_seq,
        shown.earliest_seq,
        shown.after,
        through,
        [list(run) for run in runs],
        shown.lost,
        call.performance(),
    )
    call.answer(200, answer)


def _range(call: Call) -> tuple[int, int | None, int | None]:
    """What is asked for: above which seq, up to which one, of which instance."""
    after, last, epoch = (call.parameters.natural(name) for name in ("after", "last", "epoch"))
    for name, number in (("after", after), ("last", last), ("epoch", epoch)):
        if number is not None:
            seq(name, number)
    return after or 0, last, epoch


async def back_up(call: Call) -> None:
    if call.key.prefixes:
        raise Forbidden("a backup holds every topic, and this key may name only some")
    asked = backup_in(call.request.body)
    stop = call.stop if asked.follow else None
    stream = call.start_stream(BACKUP_TYPE.encode(), survives_eof=not asked.follow)
    async with aclosing(call.app.engine.backup_stream(set(asked.have), stop)) as parts:
        next_part = partial(anext, parts, None) if asked.follow else partial(_next, call, parts)  # or it may take hours
        while await _is_wanted(call, stream) and (part := await next_part()) is not None:
            stream.write(part)
            if call.key.prefixes or not call.key.permits(BACKUP_SCOPES, ()):
                stream.abort()  # the key has changed (AU17)
                break
    stream.end()
    call.finish(200)


class _Sleeper:
    """Whoever waits for a stream, whatever it is told."""

    def __init__(self, wake: Callable[[], None]) -> None:
        self.stream_writable = self.stream_closed = wake


async def _next(call: Call, parts: AsyncIterator[bytes]) -> bytes | None:
    """The next part, once there is room for it; None: that was all."""
    async with call.exchange.room(PART_BYTES):
        return await anext(parts, None)


async def _is_wanted(call: Call, stream: Stream) -> bool:
    """Wait until the client takes more; only then is it made. False: the client is gone.

    A key that is gone ends the export in its midst (AU17), which nobody can take for its end.
    """
    while stream.is_blocked and not stream.is_closed and call.is_still_allowed:
        writable = asyncio.get_running_loop().create_future()

        def wake(_: object = None, future: "asyncio.Future[None]" = writable) -> None:
            if not future.done():
                future.set_result(None)

        stream.owner = _Sleeper(wake)
        if not call.stop.done():
            call.stop.add_done_callback(wake)
        await writable
        call.stop.remove_done_callback(wake)
    call.check_key()
    return not stream.is_closed
