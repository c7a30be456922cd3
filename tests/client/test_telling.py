"""What a client tells: retries in the log and to hooks; what will not pass fails at once; transport options."""

import logging
import pickle
import socket
import ssl
import threading
from pathlib import Path
from typing import Any

import pytest

from tests.client.conftest import Connect, Script, Skipping, answer
from topics.client import CannotConnect, Client, ConnectionFailed, Reconnecting, Retrying, UnexpectedAnswer
from topics.errors import InvalidRequest
from topics.testing.patience import PATIENCE_S
from topics.testing.server import ServerThread

CERTIFICATE = Path(__file__).parent / "selfsigned.pem"
HEALTH = answer(b'{"status":"ok","version":"9","uptime_ms":1}')
BUSY = answer(b'{"error":{"code":"throttled","message":"later"}}', "429 Too Many Requests")


def test_retries_are_logged_and_told(script: Script, connect: Connect, caplog: pytest.LogCaptureFixture) -> None:
    told: list[Retrying] = []
    late = answer(b'{"error":{"code":"throttled","detail":{"retry_after_ms":3000}}}', "429 Too Many Requests")
    server = script([BUSY, late, HEALTH])
    client = connect(server.address, token="s3cret", clock=Skipping(), on_retry=told.append)
    with caplog.at_level(logging.INFO, "topics.client"):
        client.health()
    assert [record.levelname for record in caplog.records] == ["INFO", "WARNING"]
    assert "GET /v0/health: 429 throttled: later; try 2 follows in 0.0" in caplog.messages[0]
    assert "s3cret" not in caplog.text
    assert [(t.method, t.path, t.tries, type(t.failure).__name__) for t in told] == [
        ("GET", "/v0/health", 1, "Throttled"),
        ("GET", "/v0/health", 2, "Throttled"),
    ]


def test_a_hook_that_fails_changes_nothing(script: Script, connect: Connect, caplog: pytest.LogCaptureFixture) -> None:
    server = script([BUSY, HEALTH])
    client = connect(server.address, clock=Skipping(), on_retry=lambda event: 1 / 0)
    assert client.health().version == "9"
    assert "ZeroDivisionError" in caplog.text


def test_a_watch_that_connects_again_is_told(start: Any, connect: Connect) -> None:
    """SS15"""
    server = start()
    told: list[Reconnecting] = []
    client = connect(server.address, on_reconnect=told.append)
    client.append("t", [{"data": 1}])
    with client.watch(["t"]) as watching:
        next(watching)
        server.run(lambda: [connection.abort() for connection in list(server.server.listener.connections.open)])
        client.append("t", [{"data": 2}])
        events = iter(watching)
        while not (records := getattr(next(events), "records", [])):
            pass
        assert [record.value for record in records] == [2]
    assert [(event.topics, type(event.failure)) for event in told] == [(("t",), ConnectionFailed)]


def refusing_pauses() -> Any:
    return Skipping(lambda: pytest.fail("it pauses, where it should fail at once"))


def test_an_unknown_host_fails_at_once(connect: Connect) -> None:
    with pytest.raises(CannotConnect, match=r"the host 'nowhere\.invalid' is unknown"):
        connect(("nowhere.invalid", 80), clock=refusing_pauses()).health()


def test_tls_to_a_server_without_it_fails_at_once(server: ServerThread, connect: Connect) -> None:
    with pytest.raises(CannotConnect, match="does not speak TLS; use http://"):
        connect(server.address, scheme="https", clock=refusing_pauses()).health()


def test_plain_http_to_a_server_with_tls_fails_at_once(script: Script, connect: Connect) -> None:
    server = script([b"\x15\x03\x01\x00\x02\x02\x46"])
    with pytest.raises(UnexpectedAnswer, match="it is TLS; use https://"):
        connect(server.address, clock=refusing_pauses()).health()


def test_a_certificate_that_is_refused_fails_at_once(script: Script, connect: Connect) -> None:
    server = script(tls(lambda secured: None))
    with pytest.raises(CannotConnect, match="certificate verify failed"):
        connect(server.address, scheme="https", clock=refusing_pauses()).health()


def tls(play: Any) -> Any:
    """A scene under TLS."""

    def scene(connection: socket.socket) -> None:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(CERTIFICATE)
        try:
            with context.wrap_socket(connection, server_side=True) as secured:
                play(secured)
        except OSError:
            pass

    return scene


@pytest.mark.parametrize("how", ["file", "nobody", "context"])
def test_a_certificate_is_trusted_as_told(script: Script, connect: Connect, how: str) -> None:
    server = script(tls(lambda secured: server.says(HEALTH)(secured)))
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    options: dict[str, Any] = {
        "file": {"verify": str(CERTIFICATE)},
        "nobody": {"verify": False},
        "context": {"ssl_context": context},
    }[how]
    client = connect(server.address, scheme="https", retries=0, **options)
    assert client.health().version == "9"


def test_headers_go_with_every_request(script: Script, connect: Connect) -> None:
    server = script([HEALTH])
    connect(server.address, headers={"X-Tenant": "a"}).health()
    assert b"\r\nX-Tenant: a\r\n" in server.requests[0]


@pytest.mark.parametrize("headers", [{"host": "x"}, {"Authorization": "x"}, {"a b": "x"}, {"x": "a\r\nb: c"}])
def test_headers_that_cannot_be_set_are_refused(headers: dict[str, str]) -> None:
    with pytest.raises(InvalidRequest, match="header"):
        Client("http://127.0.0.1:1", "", headers=headers)


def test_requests_go_through_a_proxy(script: Script, connect: Connect) -> None:
    proxy = script([HEALTH])
    client = connect(("server.invalid", 4000), proxy="http://{}:{}".format(*proxy.address))
    assert client.health().version == "9"
    assert proxy.requests[0].startswith(b"GET http://server.invalid:4000/v0/health HTTP/1.1\r\nhost: server.invalid")


def test_tls_goes_through_a_tunnel_of_the_proxy(script: Script, connect: Connect) -> None:
    def tunnel(connection: socket.socket) -> None:
        proxy.read(connection)
        connection.sendall(b"HTTP/1.1 200 Connection established\r\n\r\n")
        tls(lambda secured: proxy.says(HEALTH)(secured))(connection)

    proxy = script(tunnel)
    client = connect(("server.invalid", 443), scheme="https", verify=False, proxy="http://{}:{}".format(*proxy.address))
    assert client.health().version == "9"
    assert proxy.requests[0].startswith(b"CONNECT server.invalid:443 HTTP/1.1\r\n")


def test_a_proxy_that_refuses_is_told(script: Script, connect: Connect) -> None:
    proxy = script([b"HTTP/1.1 407 Proxy Authentication Required\r\n\r\n"])
    client = connect(("server.invalid", 443), scheme="https", retries=0, proxy="http://{}:{}".format(*proxy.address))
    with pytest.raises(ConnectionFailed, match=r"opens no tunnel to server\.invalid:443: HTTP/1\.1 407"):
        client.health()


def test_a_timeout_is_given_in_seconds(script: Script, connect: Connect) -> None:
    def silent(connection: socket.socket) -> None:
        assert connection.recv(65536)
        connection.recv(1)

    server = script(silent)
    client = connect(server.address, timeout=0.05)
    with pytest.raises(Exception, match="no answer in time"):
        client.health()


def test_a_copy_has_the_options_but_for_hooks_and_contexts(script: Script) -> None:
    server = script([HEALTH])
    url = "http://{}:{}".format(*server.address)
    client = Client(url, "", headers={"X-Tenant": "a"}, on_retry=lambda event: None, timeout=PATIENCE_S)
    with pickle.loads(pickle.dumps(client)) as copy:
        copy.health()
    assert b"X-Tenant: a" in server.requests[0]
    with pytest.raises(TypeError, match="cannot be pickled; pass its certificates as verify"):
        pickle.dumps(Client("https://127.0.0.1:1", "", ssl_context=ssl.create_default_context()))


@pytest.mark.parametrize("url", ["unix:", "unix://", "unix:a\0b"])
def test_a_unix_socket_without_a_path_is_refused(url: str) -> None:
    with pytest.raises(InvalidRequest, match="names no Unix socket"):
        Client(url, "")


@pytest.mark.parametrize("proxy", ["https://a:1", "http://a:1/x", "unix:/x", "a b"])
def test_a_proxy_that_cannot_be_used_is_refused(proxy: str) -> None:
    with pytest.raises(InvalidRequest):
        Client("http://127.0.0.1:1", "", proxy=proxy)


def test_a_file_without_certificates_is_refused(tmp_path: Path) -> None:
    for name in ("absent", "empty"):
        (tmp_path / "empty").touch()
        with pytest.raises(InvalidRequest, match="holds no certificates"):
            Client("https://127.0.0.1:1", "", verify=str(tmp_path / name))


def test_many_threads_close_one_client_at_once(server: ServerThread) -> None:
    client = Client("http://{}:{}".format(*server.address), "")
    client.health()
    threads = [threading.Thread(target=client.close) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE_S)
    assert client.is_closed
