"""Trying again: when, how often, how late, and never so that a record is written twice."""

import socket
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from tests.client.conftest import Connect, Pausing, Script, Skipping, Start, answer
from topics import errors
from topics.client import ApiError, ClientError, ConnectionFailed, DeadlineExceeded, UnexpectedAnswer
from topics.testing.patience import PATIENCE_MS, PATIENCE_S
from topics.testing.server import ServerProcess, ServerThread

WRITTEN = answer(
    b'{"topic":"t","first_seq":1,"last_seq":1,"head_seq":1,"count":1,"created":false,"deduped":false,'
    b'"performance":{"server_total_ms":0.1},"a field of tomorrow":1}'
)


def refusal(status: str, code: str, detail: str = "{}", *headers: str) -> bytes:
    return answer(
        b'{"error":{"code":"%b","message":"no","detail":%b}}' % (code.encode(), detail.encode()), status, *headers
    )


def state(window_ms: int) -> bytes:
    return answer(
        b'{"topic":"t","epoch":1,"type":"log","head_seq":0,"earliest_seq":1,"next_seq":1,"count":0,"bytes":0,'
        b'"config":{"idempotency_window_ms":%d},"effective_priority":0,"last_write_ts":null,"last_read_ts":null}'
        % window_ms
    )


def first_lines(requests: list[bytes]) -> list[str]:
    return [request.split(b"\r\n")[0].decode().removesuffix(" HTTP/1.1") for request in requests]


def hang_up(connection: socket.socket) -> None:
    """Read the request, and end without an answer."""
    connection.settimeout(PATIENCE_S)
    connection.recv(65536)


def test_a_cap_is_waited_for_as_long_as_the_server_says(start: Start, connect: Connect) -> None:
    """ER5, LM1"""
    server = start(max_topics=1)
    helper = connect(server.address)
    helper.put_topic("first")
    clock = Skipping(lambda: None, lambda: helper.delete_topic("first"))
    assert connect(server.address, clock=clock).append("second", [{"data": 1}]).created
    assert len(clock.pauses) == 2 and all(1.0 <= pause <= 1.25 for pause in clock.pauses)


def test_a_server_that_is_starting_is_waited_for(start: Start, connect: Connect) -> None:
    """HM2, ER5"""
    server = start(starts=False)
    clock = Skipping(lambda: None, server.recover)
    assert connect(server.address, clock=clock).append("t", [{"data": 1}], idempotent=False).count == 1
    assert len(clock.pauses) == 2


def test_a_refusal_is_raised_when_its_wait_would_pass_the_deadline(start: Start, connect: Connect) -> None:
    server = start(starts=False)
    clock = Skipping()
    with pytest.raises(errors.NotReady) as caught:
        connect(server.address, clock=clock, timeout_ms=900).put_topic("t")
    assert clock.pauses == []
    assert isinstance(caught.value, ApiError) and caught.value.retry_after_ms == 1000
    server.recover()


def test_a_call_is_tried_no_oftener_than_it_may(start: Start, connect: Connect) -> None:
    server = start(starts=False)
    clock = Skipping()
    with pytest.raises(errors.NotReady):
        connect(server.address, clock=clock, retries=3).put_topic("t")
    assert len(clock.pauses) == 3
    server.recover()


def test_closing_a_client_ends_its_pauses(start: Start, connect: Connect) -> None:
    server = start(starts=False)
    clock = Pausing()
    client = connect(server.address, clock=clock)
    with ThreadPoolExecutor(1) as thread:
        call = thread.submit(client.put_topic, "t")
        assert clock.begun.wait(PATIENCE_S)
        client.close()
        with pytest.raises(ClientError, match="the client was closed while it waited to try again"):
            call.result(PATIENCE_S)
    server.recover()


def test_a_wait_in_milliseconds_is_more_exact_than_the_header(script: Script, connect: Connect) -> None:
    """ER4"""
    busy = refusal("429 Too Many Requests", "throttled", '{"retry_after_ms":200}', "retry-after: 1")
    server = script([busy, WRITTEN])
    clock = Skipping()
    connect(server.address, clock=clock).append("t", [{"data": 1}])
    assert len(clock.pauses) == 1 and 0.2 <= clock.pauses[0] <= 0.25


def test_a_server_that_is_away_is_tried_with_growing_pauses(connect: Connect) -> None:
    with socket.create_server(("127.0.0.1", 0)) as closed:
        address = closed.getsockname()
    clock = Skipping()
    with pytest.raises(
        ConnectionFailed, match=f"PUT /v0/topics/t: cannot connect to http://127.0.0.1:{address[1]}"
    ) as e:
        connect(address, clock=clock, retries=8).put_topic("t")
    assert e.value.was_sent is False
    limits = [min(2.0, 0.05 * 2**n) for n in range(8)]
    assert len(clock.pauses) == 8
    assert all(most / 2 <= pause <= most for pause, most in zip(clock.pauses, limits, strict=True))


@pytest.mark.parametrize("status", ["400 Bad Request", "500 Internal Server Error", "422 Unprocessable"])
def test_other_errors_are_raised_at_once(script: Script, connect: Connect, status: str) -> None:
    server = script([refusal(status, "internal")])
    clock = Skipping()
    with pytest.raises(ApiError):
        connect(server.address, clock=clock).append("t", [{"data": 1}])
    assert clock.pauses == []


@pytest.mark.parametrize("call", ["diff", "put_topic", "delete_topic", "state", "delete_records"])
def test_a_call_that_may_be_repeated_is_when_the_connection_breaks(script: Script, connect: Connect, call: str) -> None:
    server = script(hang_up, [refusal("404 Not Found", "topic_not_found")])
    arguments = {"before_seq": 1} if call == "delete_records" else {}
    with pytest.raises(errors.TopicNotFound):
        getattr(connect(server.address, clock=Skipping()), call)("t", **arguments)


def test_an_append_is_repeated_under_the_same_key_once_the_window_is_known(script: Script, connect: Connect) -> None:
    """ID1"""
    keys: list[bytes] = []

    def lose(connection: socket.socket) -> None:
        keys.append(server.read(connection).partition(b'"idempotency_key":"')[2][:32])

    def ask_and_write(connection: socket.socket) -> None:
        server.says(state(120_000))(connection)
        lose(connection)
        connection.sendall(WRITTEN)

    server = script(lose, ask_and_write)
    connect(server.address, clock=Skipping()).append("t", [{"data": 1}])
    write = "POST /v0/topics/t?return_seqs=false"
    assert first_lines(server.requests) == [write, "GET /v0/topics/t?touch=false", write]
    assert keys[0] == keys[1] and len(keys[0]) == 32


def test_a_write_whose_answer_was_lost_is_there_once(
    server: ServerThread, script: Script, connect: Connect, topic: str
) -> None:
    """ID1, ID3: the server carried the first attempt out; what the client got to know is the second one."""

    def relay(connection: socket.socket, request: bytes) -> bytes:
        with socket.create_connection(server.address) as upstream:
            upstream.sendall(request.replace(b"\r\n", b"\r\nconnection: close\r\n", 1))
            return b"".join(iter(lambda: upstream.recv(65536), b""))

    def lose(connection: socket.socket) -> None:
        assert relay(connection, proxy.read(connection)).startswith(b"HTTP/1.1 201")

    def pass_on(connection: socket.socket) -> None:
        connection.sendall(relay(connection, proxy.read(connection)))

    proxy = script(lose, pass_on, pass_on)
    written = connect(proxy.address, clock=Skipping()).append(topic, [{"data": 1}, {"data": 2}])
    assert (list(written.seqs), written.deduped) == ([1, 2], True)
    assert connect(server.address).state(topic).count == 2


def test_an_append_without_a_key_is_not_repeated_once_it_was_sent(script: Script, connect: Connect) -> None:
    server = script(hang_up)
    with pytest.raises(ConnectionFailed) as caught:
        connect(server.address, clock=Skipping()).append("t", [{"data": 1}], idempotent=False)
    assert caught.value.was_sent is True


def test_a_claim_is_not_repeated_once_it_was_sent(script: Script, connect: Connect) -> None:
    server = script(hang_up)
    with pytest.raises(ConnectionFailed):
        connect(server.address, clock=Skipping()).claim("t", "n")


def test_an_append_is_not_repeated_where_keys_are_not_remembered(script: Script, connect: Connect) -> None:
    """ID1: a window of 0 is off."""
    server = script(hang_up, [state(0)])
    with pytest.raises(ConnectionFailed) as caught:
        connect(server.address, clock=Skipping()).append("t", [{"data": 1}])
    assert caught.value.was_sent is True


def test_an_append_is_not_repeated_behind_the_window(script: Script, connect: Connect) -> None:
    """ID1: counted from the first attempt, however many follow."""
    server = script(hang_up, [state(100), refusal("503 Service Unavailable", "not_ready", "{}", "retry-after: 1")])
    clock = Skipping()
    with pytest.raises(ConnectionFailed) as caught:
        connect(server.address, clock=clock).append("t", [{"data": 1}])
    assert caught.value.was_sent is True and isinstance(caught.value.__cause__, errors.NotReady)
    assert len(clock.pauses) == 1


def test_a_refusal_that_settles_what_became_of_an_append_is_raised(script: Script, connect: Connect) -> None:
    """ID5: a repeat is answered even by a full topic, so one that is refused was not appended before."""
    server = script(hang_up, [state(120_000), refusal("422 Unprocessable", "topic_full")])
    with pytest.raises(errors.TopicFull):
        connect(server.address, clock=Skipping()).append("t", [{"data": 1}])


def test_a_topic_that_is_not_there_yet_has_the_window_of_the_write(script: Script, connect: Connect) -> None:
    """ID1, WR7"""
    absent = refusal("404 Not Found", "topic_not_found")
    server = script(hang_up, [absent, WRITTEN], hang_up, [absent])
    client = connect(server.address, clock=Skipping())
    client.append("t", [{"data": 1}])
    with pytest.raises(ConnectionFailed):
        client.append("t", [{"data": 1}], config={"idempotency_window_ms": 0})


@pytest.mark.parametrize("window_ms", [0, 120_000])
def test_a_key_that_may_not_read_the_window_needs_to_be_told(script: Script, connect: Connect, window_ms: int) -> None:
    """AU6, ID1"""
    forbidden = refusal("403 Forbidden", "forbidden")
    server = script(hang_up, [forbidden, WRITTEN] if window_ms else [forbidden])
    client = connect(server.address, clock=Skipping(), window_ms=window_ms)
    if window_ms:
        assert client.append("t", [{"data": 1}]).count == 1
    else:
        with pytest.raises(ConnectionFailed):
            client.append("t", [{"data": 1}])


@pytest.mark.parametrize("status", ["502 Bad Gateway", "503 Service Unavailable", "504 Gateway Timeout"])
def test_a_proxys_error_leaves_open_what_happened(script: Script, connect: Connect, status: str) -> None:
    page = answer(b"<html>", status)
    server = script([page, state(120_000), WRITTEN, page])
    client = connect(server.address, clock=Skipping())
    assert client.append("t", [{"data": 1}]).count == 1
    with pytest.raises(UnexpectedAnswer, match=f"status {status[:3]} with a body that this API does not send"):
        client.append("t", [{"data": 1}], idempotent=False)


class Killer(threading.Thread):
    """Kills a server and starts it again on the same port, while a client goes on writing."""

    def __init__(self, server: ServerProcess) -> None:
        super().__init__()
        self._server = server
        self.start()

    def run(self) -> None:
        self._server.kill()
        self._server.start()


@pytest.mark.process
def test_every_record_is_there_once_though_the_server_is_killed_again_and_again(
    connect: Connect, tmp_path: Path
) -> None:
    """ID1, ID8, DU3"""
    with ServerProcess(tmp_path) as server:
        server.environ["TOPICS_PORT"] = str(server.address[1])
        client = connect(server.address, retries=1000, timeout_ms=PATIENCE_MS)
        written: list[Any] = []
        for _ in range(3):
            killer = Killer(server)
            while killer.is_alive():
                data = [[len(written), k] for k in range(50)]
                client.append("t", [{"data": value} for value in data])
                written += data
            killer.join()
        items = [item.value for item in client.consume("t", follow=False)]
    assert items == written


def test_a_deadline_ends_a_call_to_a_server_that_says_nothing(script: Script, connect: Connect) -> None:
    def stall(connection: socket.socket) -> None:
        server.read(connection)
        assert connection.recv(1) == b""  # until the client gives up

    server = script(stall)
    with pytest.raises(DeadlineExceeded, match="GET /v0/topics/t: no answer in time") as caught:
        connect(server.address, timeout_ms=1000).state("t")
    assert caught.value.was_sent is True


@pytest.mark.parametrize("timeout", [None, 5, 90])
def test_unless_told_otherwise_the_time_decides_how_often_a_call_is_tried(
    connect: Connect, unused_port: int, timeout: float | None
) -> None:
    clock = Skipping()
    with pytest.raises(ConnectionFailed):
        connect(("127.0.0.1", unused_port), clock=clock, timeout=timeout).health()
    total = 30 if timeout is None else timeout
    assert total - 2 <= sum(clock.pauses) <= total
