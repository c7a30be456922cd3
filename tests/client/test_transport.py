"""HTTP as it goes wrong, and as it is kept open: answers cut, slow, broken, early; connections used again."""

import gzip
import os
import select
import socket
import ssl
import struct
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.client.conftest import Connect, Scene, Script, Skipping, answer
from topics.client import Client, ClientClosed, ConnectionFailed, UnexpectedAnswer
from topics.client.protocol.http_parser import HEAD_BYTES_MAX, Request, ResponseReader
from topics.errors import PayloadTooLarge, Unauthorized
from topics.testing.patience import PATIENCE_S
from topics.testing.server import ServerThread

CERTIFICATE = Path(__file__).parent / "selfsigned.pem"
HEALTH = b'{"status":"ok","version":"9","uptime_ms":1}'


def chunked(*parts: bytes) -> bytes:
    body = b"".join(b"%x\r\n%b\r\n" % (len(part), part) for part in (*parts, b""))
    return b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n" + body


@pytest.mark.parametrize(
    "text",
    [
        answer(HEALTH),
        chunked(HEALTH[:5], HEALTH[5:6], HEALTH[6:]),
        b"HTTP/1.1 200 OK\r\nconnection: close\r\n\r\n" + HEALTH,
        b"HTTP/1.0 200 OK\r\n\r\n" + HEALTH,
        b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Early Hints\r\nlink: x\r\n\r\n" + answer(HEALTH),
        answer(gzip.compress(HEALTH), "200 OK", "Content-Encoding: GZIP"),
    ],
    ids=["length", "chunks", "close", "http10", "interim", "gzip"],
)
def test_an_answer_is_read_however_it_is_framed(script: Script, connect: Connect, text: bytes) -> None:
    server = script([text], [text])
    client = connect(server.address, clock=Skipping())
    assert (client.health().version, client.health().version) == ("9", "9")


@pytest.mark.parametrize("text", [answer(HEALTH), chunked(HEALTH[:7], HEALTH[7:]), answer(gzip.compress(HEALTH))])
def test_an_answer_may_come_byte_by_byte(text: bytes) -> None:
    reader = ResponseReader(Request("GET", "/"))
    for n in range(len(text)):
        assert not reader.is_complete
        reader.feed(text[n : n + 1])
    assert reader.is_complete and reader.keeps_alive


def drip(text: bytes) -> Scene:
    def scene(connection: socket.socket) -> None:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        connection.recv(65536)
        for n in range(len(text)):
            connection.sendall(text[n : n + 1])

    return scene


def test_a_slow_answer_within_the_deadline_is_read(script: Script, connect: Connect) -> None:
    server = script(drip(answer(HEALTH)))
    assert connect(server.address).health().version == "9"


@pytest.mark.parametrize("cut", [1, 20, 70, -1])
@pytest.mark.parametrize("text", [answer(HEALTH), chunked(HEALTH)], ids=["length", "chunks"])
def test_an_answer_that_is_cut_off_is_a_broken_connection(
    script: Script, connect: Connect, text: bytes, cut: int
) -> None:
    server = script([text[:cut]])
    with pytest.raises(ConnectionFailed, match=r"GET /v0/health: .* broke: it was closed within the answer") as caught:
        connect(server.address, clock=Skipping(), retries=0).health()
    assert caught.value.was_sent is True


@pytest.mark.parametrize("cut", [1, 20, 70, -1])
def test_a_read_whose_answer_was_cut_off_is_made_again(script: Script, connect: Connect, cut: int) -> None:
    server = script([answer(HEALTH)[:cut]], [answer(HEALTH)])
    assert connect(server.address, clock=Skipping()).health().version == "9"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (b"SSH-2.0-OpenSSH_9.2\r\n", "is not HTTP"),
        (b"HTTP/1.1 200 OK\r\ncontent-length: x\r\n\r\n", "is not HTTP"),
        (b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\nzz\r\n", "is not HTTP"),
        (b"HTTP/1.1 200 OK\r\nx: " + b"y" * HEAD_BYTES_MAX, "longer than"),
        (answer(b"not gzip", "200 OK", "content-encoding: gzip"), "gzip is corrupt"),
        (answer(gzip.compress(HEALTH)[:-9], "200 OK", "content-encoding: gzip"), "gzip ends too early"),
        (answer(b"<html>"), "not what the API promises"),
        (answer(b"\xff\xfe"), "not what the API promises"),
        (answer(b'{"status":"ok"}'), "missing required field `version`"),
        (answer(b'{"status":1,"version":"9","uptime_ms":1}'), r"Expected `str`, got `int` - at `\$.status`"),
        (answer(b"", "204 No Content"), "not what the API promises"),
        (answer(b"moved", "302 Found", "location: http://elsewhere/"), "302"),
        (answer(b"<html>", "404 Not Found"), "status 404 with a body that this API does not send"),
    ],
)
def test_what_is_not_an_answer_of_the_api_is_told(script: Script, connect: Connect, text: bytes, message: str) -> None:
    server = script([text])
    with pytest.raises(UnexpectedAnswer, match=message) as caught:
        connect(server.address, clock=Skipping(), token="s3cret").health()
    assert str(caught.value).startswith("GET /v0/health: ") and "s3cret" not in str(caught.value)


def test_a_connection_is_used_again(script: Script, connect: Connect) -> None:
    """CV16"""
    server = script([answer(HEALTH)] * 5)
    client = connect(server.address, clock=Skipping())
    assert [client.health().status for _ in range(5)] == ["ok"] * 5


def test_a_connection_that_the_server_closed_is_not_used_again(script: Script, connect: Connect) -> None:
    """Not even for a call that may not be repeated."""
    written = b'{"topic":"t","first_seq":1,"last_seq":1,"head_seq":1,"count":1,"created":false,"deduped":false}'
    server = script([answer(HEALTH)], [answer(written)])
    clock = Skipping()
    client = connect(server.address, clock=clock)
    client.health()
    until_closed(client)
    assert client.append("t", [{"data": 1}], idempotent=False).count == 1
    assert clock.pauses == []


def until_closed(client: Any) -> None:
    """Wait until the end of the server's side has reached this one."""
    if isinstance(client, Client):
        (connection,) = client._caller._pool._idle._connections
        poll = select.poll()
        poll.register(connection._socket._socket, select.POLLIN)
        assert poll.poll(PATIENCE_S * 1000)
    else:
        (aio_connection,) = client._inner._caller._pool._idle._connections
        client._wait(aio_connection._socket._reader.read())


def test_an_idle_connection_that_is_old_is_not_used_again(script: Script, connect: Connect) -> None:
    ended = threading.Event()

    def wait_for_end(connection: socket.socket) -> None:
        server.says(answer(HEALTH))(connection)
        assert connection.recv(1) == b""
        ended.set()

    server = script(wait_for_end, [answer(HEALTH)])
    clock = Skipping()
    client = connect(server.address, clock=clock)
    client.health()
    clock.pass_by(61)
    assert client.health().status == "ok"
    assert ended.wait(PATIENCE_S)


def test_an_answer_that_comes_before_the_body_was_sent_is_read(
    server: ServerThread, start: Any, connect: Connect
) -> None:
    """CV17, AU13"""
    refusing = start(api_keys="key", max_body_bytes=1_000_000)
    lines = b'{"data":"' + b"x" * 30_000_000 + b'"}'
    with pytest.raises(Unauthorized):
        connect(refusing.address, "wrong", clock=Skipping()).append_ndjson("t", lines)
    with pytest.raises(PayloadTooLarge):
        connect(refusing.address, "key", clock=Skipping()).append_ndjson("t", lines)


@pytest.mark.slow
def test_a_request_that_could_not_be_sent_as_a_whole_is_sent_again(script: Script) -> None:
    """It cannot have been carried out, so even an append without a key may be repeated."""

    def reset(connection: socket.socket) -> None:
        connection.recv(1000)
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))

    written = b'{"topic":"t","first_seq":1,"last_seq":1,"head_seq":1,"count":1,"created":false,"deduped":false}'
    server = script(reset, [answer(written)])
    body = b'{"data":"' + b"x" * 20_000_000 + b'"}'
    clock = Skipping()
    with Client("http://{}:{}".format(*server.address), "", clock=clock) as client:
        assert client.append_ndjson("t", body, idempotent=False).count == 1
    assert len(clock.pauses) == 1


def secured(connection: socket.socket, scene: Scene) -> None:
    """A scene behind TLS; a client that does not trust the certificate ends it."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(CERTIFICATE)
    try:
        with context.wrap_socket(connection, server_side=True) as wrapped:
            scene(wrapped)
    except ssl.SSLError:
        pass


def test_https_is_spoken_to_a_certificate_that_is_trusted(
    script: Script, connect: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = script(lambda connection: secured(connection, server.says(answer(HEALTH), answer(HEALTH))))
    monkeypatch.setenv("SSL_CERT_FILE", str(CERTIFICATE))
    client = connect(server.address, scheme="https", clock=Skipping())
    assert [client.health().version for _ in range(2)] == ["9", "9"]


def test_a_certificate_that_is_not_trusted_is_a_failed_connection(script: Script, connect: Connect) -> None:
    server = script(lambda connection: secured(connection, server.says(answer(HEALTH))))
    with pytest.raises(ConnectionFailed, match="certificate verify failed") as caught:
        connect(server.address, scheme="https", clock=Skipping(), retries=0).health()
    assert caught.value.was_sent is False


def test_a_client_is_shared_by_threads(server: ServerThread, topic: str) -> None:
    with Client("http://{}:{}".format(*server.address), "") as client:
        failures: list[BaseException] = []

        def write(n: int) -> None:
            try:
                for k in range(20):
                    client.append(topic, [{"data": [n, k]}])
            except BaseException as failure:
                failures.append(failure)

        threads = [threading.Thread(target=write, args=(n,)) for n in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert failures == []
        values = [record.value for record in client.consume(topic, follow=False)]
    assert sorted(values) == [[n, k] for n in range(8) for k in range(20)]
    assert all([k for m, k in values if m == n] == list(range(20)) for n in range(8))


def test_a_child_process_has_connections_of_its_own(server: ServerThread, topic: str) -> None:
    """What Spark does with a client made before its workers are forked."""
    with Client("http://{}:{}".format(*server.address), "") as client:
        client.append(topic, [{"data": "parent"}])
        child = in_child(lambda: client.append(topic, [{"data": "child"}]))
        client.append(topic, [{"data": "parent"}])
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        values = [record.value for record in client.diff(topic).records]
    assert sorted(values) == ["child", "parent", "parent"]


def in_child(work: Callable[[], object]) -> int:
    child = os.fork()
    if child == 0:
        try:
            work()
            os._exit(0)
        except BaseException:
            os._exit(1)
    return child


def test_a_closed_client_keeps_no_connections(server: ServerThread, connect: Connect, topic: str) -> None:
    client = connect(server.address)
    client.put_topic(topic)
    client.close()
    inner = getattr(client, "_inner", client)
    assert len(inner._caller._pool._idle) == 0
    with pytest.raises(ClientClosed, match="the client is closed"):
        client.state(topic)
    assert len(inner._caller._pool._idle) == 0
