"""The listening socket under a rush."""

import socket
from contextlib import ExitStack
from threading import Event

from topics.server.transport.listener import ACCEPTS_PER_TURN
from topics.testing.server import ServerThread

RUSH = 20 * ACCEPTS_PER_TURN


def test_a_rush_of_connections_is_taken_by_many_per_turn_of_the_loop() -> None:
    """CV16, LM10: clients that all come back at once do not queue for as many turns as they are."""
    with ServerThread() as server, ExitStack() as stack:
        connections = server.server.listener.connections
        before = connections.accepted_total
        is_held, may_go = Event(), Event()
        turns = 0

        def count() -> None:
            nonlocal turns
            if connections.accepted_total < before + RUSH:
                turns += 1
                server._loop.call_soon(count)

        def hold() -> None:
            is_held.set()
            may_go.wait()
            count()

        server._loop.call_soon_threadsafe(hold)
        is_held.wait()
        for _ in range(RUSH):
            stack.enter_context(socket.create_connection(server.address))
        may_go.set()
        server.until(lambda: connections.accepted_total == before + RUSH)
        assert turns <= 10
