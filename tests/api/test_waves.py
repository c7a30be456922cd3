"""The same bytes to many sockets at once: every one gets all of them, once and in order, whatever the others do."""

import socket
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import pytest

from tests.api.clients.events import EVENTS, connect, follow, open_stream, watch
from tests.api.clients.transcript import Client
from tests.api.clients.websocket import Socket
from tests.api.conftest import Start
from tests.storage.outside import without_kernel_queue
from topics.testing.patience import PATIENCE_S
from topics.uring.sends import AT_ONCE, Sends

Ends = tuple[socket.socket, socket.socket]


@pytest.fixture
def ends() -> Iterator[Callable[[int], list[Ends]]]:
    """Makes pairs of sockets, of which the first does not block."""
    with ExitStack() as stack:

        def pairs(count: int) -> list[Ends]:
            made = [socket.socketpair() for _ in range(count)]
            for ours, theirs in made:
                stack.enter_context(ours).setblocking(False)
                stack.enter_context(theirs).settimeout(PATIENCE_S)
            return made

        yield pairs


def confined(sends: Sends) -> Sends:
    """Without the kernel's queue."""

    def refused() -> Sends:
        with socket.socket() as one, socket.socket() as other:
            sends.send([one.fileno(), other.fileno()], b"")
        return sends

    return without_kernel_queue(refused)


@pytest.fixture(params=["at once", "one by one"])
def sends(request: pytest.FixtureRequest) -> Iterator[Sends]:
    made = Sends() if request.param == "at once" else confined(Sends())
    yield made
    made.close()


def descriptors(pairs: list[Ends]) -> list[int]:
    return [ours.fileno() for ours, _ in pairs]


def fill(end: socket.socket) -> int:
    """Send until no more is taken; how many bytes."""
    sent = 0
    try:
        while True:
            sent += end.send(b"x" * 4096)
    except BlockingIOError:
        return sent


def test_every_socket_gets_all_bytes_in_order(sends: Sends, ends: Callable[[int], list[Ends]]) -> None:
    """SS21: more calls than the rings have places, of every size."""
    pairs = ends(AT_ONCE)
    for number in range(3 * AT_ONCE):
        count, data = number % AT_ONCE + 1, b"%d," % number
        assert sends.send(descriptors(pairs[:count]), data) == []
        assert {theirs.recv(100) for _, theirs in pairs[:count]} == {data}


def test_a_socket_that_is_full_or_gone_takes_nothing_and_the_others_all(
    sends: Sends, ends: Callable[[int], list[Ends]]
) -> None:
    """SS19"""
    pairs = ends(5)
    fill(pairs[1][0])
    pairs[3][1].close()
    assert sorted(sends.send(descriptors(pairs), b"news")) == [(1, 0), (3, 0)]
    assert [pairs[number][1].recv(100) for number in (0, 2, 4)] == [b"news"] * 3


def test_a_socket_takes_what_it_has_room_for(sends: Sends, ends: Callable[[int], list[Ends]]) -> None:
    """SS19"""
    pairs = ends(2)
    news = bytes(range(256)) * 16384
    short = dict(sends.send(descriptors(pairs), news))
    for number, (ours, theirs) in enumerate(pairs):
        ours.close()
        received = b"".join(iter(lambda end=theirs: end.recv(1 << 20), b""))  # type: ignore[misc]
        assert received == news[: short[number]]


@pytest.mark.parametrize("durability", ["disk", "fsync"])
def test_many_watchers_get_every_record_once_and_in_order(start: Start, durability: str) -> None:
    """SS9, SS21: more of them than are sent to at once, over SSE, with epochs or not, and over WebSocket."""
    server = start()
    api = Client(server.address)
    api.put("/v0/topics/t", {"durability": durability})
    api.put("/v0/topics/other", {})
    with ExitStack() as stack:
        streams = [stack.enter_context(follow(api, "t")) for _ in range(AT_ONCE + 2)]
        with_epochs = stack.enter_context(open_stream(api, watch(api, "t"), query="?epochs=true"))
        both = stack.enter_context(follow(api, "t", "other"))
        sockets = [stack.enter_context(Socket(server.address)) for _ in range(3)]
        for one in sockets:
            one.follow("t")
        written: list[Any] = []
        for number in range(6):
            api.write("t", number)
            written.append(number)
            for stream in (*streams, with_epochs, both):
                while (event := stream.next()).kind != "record":
                    assert event.kind == "caught-up" and number == 0, event
                assert event.payloads == [number] and event.at["t"] == number + 1
                assert ("$epochs" in event.at) is (stream is with_epochs)
                assert ("other" in event.at) is (stream is both)
        for one in sockets:
            assert one.data(6) == written


def test_a_watcher_that_does_not_read_misses_nothing_and_delays_nobody(start: Start) -> None:
    """SS19: frames that are shared, until one of the watchers takes no more."""
    server = start()
    api = Client(server.address)
    api.put("/v0/topics/t", {})
    with ExitStack() as stack:
        slow = stack.enter_context(connect(api, watch(api, "t"), EVENTS, receive_buffer_bytes=4096))
        quick = [stack.enter_context(follow(api, "t")) for _ in range(3)]
        for stream in quick:
            stream.expect("caught-up")
        filler, count = "x" * 20_000, 0
        while not server.run(lambda: any(reader.is_blocked for reader in server.server.app.registry)):
            api.write("t", [count, filler])
            count += 1
            assert [stream.records(1) for stream in quick] == [[[count - 1, filler]]] * 3
        assert slow.head().status == 200
        slow.expect("caught-up")
        found: list[int] = []
        while len(found) < count:
            event = slow.next()
            if event.kind == "record":
                found += [number for number, _ in event.payloads]
        assert found == list(range(count))
