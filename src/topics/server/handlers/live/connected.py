"""Who is connected, and ending a connection (OB3). For keys that may see everything: admin, without prefixes."""

from functools import partial
from typing import Any, Final

from msgspec import UNSET

from topics.errors import CommitFailed, Forbidden
from topics.server.call import Call
from topics.server.live.registry import Entry
from topics.server.wire.queries import encode_cursor
from topics.server.wire.replies import ConnectionGone, ConnectionList, ConnectionListed

NAMES_MAX: Final = 5000  # a page ends behind the connection with which it has as many


def list_connections(call: Call) -> None:
    """A page, in the order of ids. A reader's lag is shown only once the records it lags behind may be shown."""
    _check_key(call)
    app = call.app
    size = call.parameters.page_size()
    entries = app.registry.after(call.parameters.cursor(), size + 1)
    gate = app.engine.gate(None)
    shown: list[ConnectionListed] = []
    names = 0
    for entry in entries[:size]:
        if names >= NAMES_MAX:
            break
        followed = entry.member.followed()
        names += len(followed)
        for name in followed:
            gate = gate.join(app.engine.gate(name))
        shown.append(_shown(call, entry, followed))
    cursor = encode_cursor(shown[-1].id) if len(entries) > len(shown) else UNSET
    app.engine.when_open(gate, partial(_answer, call, shown, cursor))


def _shown(call: Call, entry: Entry, followed: dict[str, int]) -> ConnectionListed:
    return ConnectionListed(
        id=entry.id,
        kind=entry.kind,
        key=entry.key.name,
        remote=entry.remote,
        topics=sorted(followed),
        lag=sum(followed.values()),
        held_bytes=entry.member.buffered,
        age_ms=call.app.registry.age_ms(entry),
    )


def _answer(call: Call, shown: list[ConnectionListed], cursor: Any, failure: CommitFailed | None) -> None:
    if failure is None:
        call.answer(200, ConnectionList(connections=shown, next_cursor=cursor, performance=call.performance()))
    else:
        call.refuse(failure)


def close_connection(call: Call) -> None:
    _check_key(call)
    deleted = call.app.registry.dismiss(call.name)
    call.answer(200, ConnectionGone(deleted, call.performance()))


def _check_key(call: Call) -> None:
    if call.key.prefixes:
        raise Forbidden("this key is limited to prefixes; connections are shown to keys that may name every topic")
