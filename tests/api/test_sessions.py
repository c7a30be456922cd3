"""Watch sessions below the wire: what a client may have missed is told again, whatever it says it has."""

import pytest

from tests.api.test_delivery import bench, data, turns
from topics.server.auth import ANYONE
from topics.server.live.feeds import Feed, Template
from topics.server.live.registry import Registry
from topics.server.live.sessions import Session, Sessions
from topics.server.live.sse import Opening
from topics.server.slots import Slots
from topics.server.transport.exchange import Stream
from topics.server.wire.streaming import NO_POSITIONS, Positions
from topics.settings import Settings

TEMPLATE = Template.of(100, 1 << 20)


class Held(Stream):
    """A transport that has sent nothing yet; it blocks only if told to."""

    is_blocked = False

    def __init__(self) -> None:
        super().__init__()
        self.sent = b""

    @property
    def buffered(self) -> int:
        return len(self.sent)

    def write(self, data: bytes) -> None:
        self.sent += data

    def end(self, *, closes: bool = False) -> None:
        self.closed()


@pytest.mark.parametrize(
    ("told", "is_recreated"),
    [
        (NO_POSITIONS, True),
        (Positions({"t": 3}, {}), True),
        (Positions({"t": 3}, {"t": 1}), True),
        (Positions({"t": 1}, {"t": 2}), False),
    ],
)
async def test_a_recreated_topic_that_never_arrived_is_told_again(told: Positions, is_recreated: bool) -> None:
    """SS15, SS23, SS30: the session stood in the new instance already, behind records that were not sent."""
    async with bench() as b:
        await b.engine.append("t", data(1, 2, 3))
        await b.engine.delete_topic("t")
        await b.engine.append("t", data("a", "b"))
        sessions = Sessions(b.delivery, Slots(Settings()), Registry(b.engine.clock))
        session = sessions.create(ANYONE, TEMPLATE, 15_000, {"t": Feed("t", TEMPLATE, 1, 3, 3)})
        first, second = Held(), Held()
        sessions.open(session, Opening(lambda: first, ("", 0)))
        await turns()
        assert b'"recreated"' in first.sent and session.feeds["t"].epoch == 2 and session.feeds["t"].cursor == 2
        first.closed()
        sessions.open(session, Opening(lambda: second, ("", 0)), told)
        await turns()
        assert (b'"recreated"' in second.sent) is is_recreated
        assert (b'"a"' in second.sent, b'"b"' in second.sent) == (is_recreated, True)


async def test_a_session_of_one_stream_is_gone_with_it() -> None:
    """SS28, LM5"""
    async with bench() as b:
        await b.engine.append("t", data(1))
        slots, registry = Slots(Settings()), Registry(b.engine.clock)
        sessions = Sessions(b.delivery, slots, registry)
        stream = Held()
        session = Session("", ANYONE, TEMPLATE, 15_000, {"t": Feed("t", TEMPLATE, 1, 0)})
        sessions.open(session, Opening(lambda: stream, ("::1", 7)))
        assert (slots.streams, slots.sessions, len(registry)) == (1, 0, 1)
        [entry] = registry.after("", 2)
        assert (entry.kind, entry.remote) == ("events", "[::1]:7")
        registry.drain()
        assert (slots.streams, slots.sessions, len(registry)) == (0, 0, 0)
        assert b"server_shutting_down" in stream.sent and sessions.find("") is None
