"""WebSockets of a real process: kill -9 and resume, and the end by a signal."""

import json
import random
import threading
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from websockets.exceptions import ConnectionClosed
from websockets.sync.client import ClientConnection, connect

from topics.testing.patience import PATIENCE_S
from topics.testing.server import ServerProcess

ROUNDS = 5


def open_socket(server: ServerProcess) -> ClientConnection:
    host, port = server.address
    return connect(f"ws://{host}:{port}/v0/ws", max_size=None, ping_interval=None)


def receive(ws: ClientConnection) -> dict[str, Any]:
    message: dict[str, Any] = json.loads(ws.recv(PATIENCE_S))
    return message


def ask(ws: ClientConnection, **command: Any) -> dict[str, Any]:
    ws.send(json.dumps(command))
    return receive(ws)


class Publisher(threading.Thread):
    """Publishes numbers, several ahead of their acks, until the connection breaks. Keeps what was acked."""

    def __init__(self, server: ServerProcess, topic: str, first: int) -> None:
        super().__init__(daemon=True)
        self._server = server
        self._topic = topic
        self.next = first
        self.acked: dict[int, int] = {}  # number → seq

    def run(self) -> None:
        try:
            with open_socket(self._server) as ws:
                while True:
                    batch = range(self.next, self.next + 20)
                    self.next = batch.stop
                    for number in batch:
                        records = [{"data": number}]
                        command = {"op": "publish", "topic": self._topic, "request_id": number, "records": records}
                        ws.send(json.dumps(command))
                    for number in batch:
                        ack = receive(ws)
                        assert (ack["op"], ack["request_id"]) == ("ack", number), ack
                        self.acked[number] = ack["first_seq"]
        except (ConnectionClosed, OSError, EOFError):
            return


class Subscriber:
    """Follows a topic over any number of connections, from where it stands. Every seq must come once, in order."""

    def __init__(self, topic: str) -> None:
        self.topic = topic
        self.last = 0
        self.seen: dict[int, int] = {}  # seq → number

    def follow(self, server: ServerProcess, *, until: int | None = None, count: int = 0) -> None:
        """Take records until one of this seq, or as many, or the connection breaks."""
        with open_socket(server) as ws:
            answer = ask(ws, op="subscribe", topic=self.topic, from_seq=self.last)
            assert answer["op"] == "subscribed", answer
            stop = len(self.seen) + count if count else None
            while (until is None or self.last < until) and (stop is None or len(self.seen) < stop):
                self.take(receive(ws))

    def take(self, message: dict[str, Any]) -> None:
        assert message["op"] in ("record", "caught_up"), message
        if message["op"] == "record":
            assert message["from_seq"] == self.last
            for record in message["records"]:
                assert record["$seq"] == self.last + 1, "a gap, or a record that came twice"
                self.last = record["$seq"]
                self.seen[self.last] = record["data"]


@pytest.mark.parametrize("durability", ["disk", "fsync"])
def test_a_subscriber_that_resumes_after_kill_9_has_no_gap_and_no_duplicate(tmp_path: Path, durability: str) -> None:
    """WS3, WR10, DU3, DU4, G1, G2, G13: and what was acked is there, at its seq."""
    choice = random.Random(durability)
    subscriber, acked, first = Subscriber("t"), dict[int, int](), 0
    server = ServerProcess(tmp_path)
    with server.start():
        with open_socket(server) as ws:
            ack = ask(ws, op="publish", topic="t", records=[{"data": -1}], config={"durability": durability})
            assert ack["created"] is True
        for _ in range(ROUNDS):
            publisher = Publisher(server, "t", first)
            publisher.start()
            subscriber.follow(server, count=choice.randrange(1, 400))
            server.kill()
            publisher.join(PATIENCE_S)
            assert not publisher.is_alive()
            first = publisher.next
            acked |= publisher.acked
            server.start()
        with open_socket(server) as ws:
            head = ask(ws, op="publish", topic="t", records=[{"data": -2}])["head_seq"]
        subscriber.follow(server, until=head)
        assert subscriber.last == head == len(subscriber.seen)
        for number, seq in acked.items():
            assert subscriber.seen[seq] == number
        numbers = [number for number in subscriber.seen.values() if number >= 0]
        assert len(set(numbers)) == len(numbers) and numbers == sorted(numbers)
        assert server.stop() == 0


def test_at_sigterm_sockets_are_told_and_the_process_ends(tmp_path: Path) -> None:
    """WS10, SC3"""
    server = ServerProcess(tmp_path)
    with server.start(), ExitStack() as stack:
        sockets = [stack.enter_context(open_socket(server)) for _ in range(5)]
        assert ask(sockets[0], op="publish", topic="t", records=[{"data": 1}])["op"] == "ack"
        for ws in sockets:
            assert ask(ws, op="subscribe", topic="t")["op"] == "subscribed"
            assert [receive(ws)["op"], receive(ws)["op"]] == ["record", "caught_up"]
        assert server.stop() == 0
        for ws in sockets:
            assert receive(ws)["code"] == "server_shutting_down"
            with pytest.raises(ConnectionClosed):
                ws.recv(PATIENCE_S)
            assert ws.protocol.close_code == 1001
    assert "Traceback" not in server.output


def test_the_client_library_keeps_a_connection_alive_by_pings(tmp_path: Path) -> None:
    """WS8"""
    with ServerProcess(tmp_path).start() as server, open_socket(server) as ws:
        for _ in range(3):
            assert ws.ping().wait(PATIENCE_S)
        assert ask(ws, op="ping") == {"op": "pong"}
