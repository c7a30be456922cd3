"""Without keys: which Hosts are answered, and what pages of other sites may ask."""

from typing import Any

import pytest
from h2.config import H2Configuration
from h2.connection import H2Connection
from h2.events import ResponseReceived

from tests.api.clients.transcript import Client, Reply, ok, refused
from tests.api.conftest import Start
from topics.errors import ConfigurationError, Forbidden
from topics.server.access.visitors import Visitors, host_of, parse_hosts
from topics.server.cors import Cors
from topics.server.transport.exchange import Request
from topics.testing.server import ServerThread

LOCAL = [
    *("localhost", "LOCALHOST", "localhost.", "localhost:4000", "app.localhost:1", "127.0.0.1", "127.0.0.1:80"),
    *("127.9.8.7:65535", "[::1]", "[::1]:4000", "[::ffff:127.0.0.1]:1", "localhost:"),
]
FOREIGN = [
    *("evil.example", "evil.example:4000", "localhost.evil.example", "127.0.0.1.evil.example", "notlocalhost"),
    *("10.0.0.1", "[2001:db8::1]", "0.0.0.0", "[::]", "localhost:x", "[::1", "[localhost]", "[::1]x", "evil@localhost"),
    *("127.1", "2130706433", "localhost, evil.example", "."),
]
SOCKET = (
    *("Connection: Upgrade", "Upgrade: websocket", "Sec-WebSocket-Version: 13"),
    "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==",
)
PROBES = ("/v0/health", "/healthz", "/v0/ready", "/readyz")


def asked(host: str | None, **headers: str) -> Request:
    given = {name.replace("_", "-").encode(): value.encode() for name, value in headers.items()}
    all_of_them = given if host is None else {b"host": host.encode(), **given}
    return Request("GET", b"/v0/topics", b"/v0/topics", b"", all_of_them, (), 0, False, ("127.0.0.1", 1))


def is_refused(visitors: Visitors, request: Request) -> bool:
    try:
        visitors.check(request)
    except Forbidden:
        return True
    return False


# --- the rule itself


@pytest.mark.parametrize("host", LOCAL)
def test_loopback_names_and_addresses_are_good_hosts(host: str) -> None:
    """AU19"""
    visitors = Visitors("127.0.0.1", "", None)
    assert not is_refused(visitors, asked(host))
    assert not is_refused(visitors, asked(host))


@pytest.mark.parametrize("host", [*FOREIGN, None, ""])
def test_any_other_host_is_refused_on_loopback_and_only_there(host: str | None) -> None:
    """AU19"""
    assert is_refused(Visitors("127.0.0.1", "", None), asked(host))
    assert is_refused(Visitors("localhost", "", None), asked(host))
    assert not is_refused(Visitors("0.0.0.0", "", None), asked(host))


def test_the_bind_address_and_allowed_hosts_are_good() -> None:
    """AU19"""
    visitors = Visitors("::1", " Box.example , 10.1.2.3,[2001:db8::1], ", None)
    for host in ("box.example", "BOX.example.:80", "10.1.2.3:4000", "[2001:db8::1]:1", "[::1]"):
        assert not is_refused(visitors, asked(host)), host
    for host in ("example", "x.box.example", "10.1.2.4"):
        assert is_refused(visitors, asked(host)), host


@pytest.mark.parametrize("text", ["http://box", "box:80", "*", "a b", "b\u00fccher", "box/x", "[box]:1", "u@box"])
def test_an_allowed_host_that_is_none_stops_the_start(text: str) -> None:
    """AU19"""
    with pytest.raises(ConfigurationError, match="TOPICS_ALLOWED_HOSTS"):
        list(parse_hosts(f"good.example,{text}"))


@pytest.mark.parametrize(
    ("origin", "host", "may"),
    [
        ("http://localhost:4000", "localhost:4000", True),
        ("http://localhost", "localhost:80", True),
        ("https://localhost:443", "localhost", True),
        ("HTTP://LocalHost:4000", "localhost:4000", True),
        ("http://[::1]:4000", "[::1]:4000", True),
        ("http://localhost:3000", "localhost:4000", False),
        ("http://127.0.0.1:4000", "localhost:4000", False),
        ("https://localhost", "localhost:80", False),
        ("https://evil.example", "localhost:4000", False),
        ("null", "localhost:4000", False),
        ("file://", "localhost", False),
        ("localhost:4000", "localhost:4000", False),
        ("", "localhost", False),
        ("://localhost", "localhost", False),
        ("http://", "localhost", False),
    ],
)
def test_an_origin_has_to_be_the_host(origin: str, host: str, may: bool) -> None:
    """AU19: wherever bound."""
    for bind in ("127.0.0.1", "0.0.0.0"):
        assert is_refused(Visitors(bind, "", None), asked(host, origin=origin)) is not may


def test_an_origin_may_be_one_that_cors_allows() -> None:
    """AU19"""
    named = Visitors("127.0.0.1", "", Cors.parse("https://app.example"))
    anyone = Visitors("127.0.0.1", "", Cors.parse("*"))
    assert not is_refused(named, asked("localhost", origin="https://app.example"))
    assert is_refused(named, asked("localhost", origin="https://app.example.evil"))
    assert is_refused(named, asked("evil.example", origin="https://app.example"))
    assert not is_refused(anyone, asked("localhost", origin="null"))


@pytest.mark.parametrize(
    ("site", "may"), [("cross-site", False), (" Cross-Site ", False), ("same-origin", True), ("none", True), ("", True)]
)
def test_without_an_origin_the_browser_says_whether_the_site_is_another(site: str, may: bool) -> None:
    """AU19"""
    visitors = Visitors("127.0.0.1", "", None)
    assert is_refused(visitors, asked("localhost", sec_fetch_site=site)) is not may
    both = asked("localhost:1", origin="http://localhost:1", sec_fetch_site=site)
    assert not is_refused(visitors, both)


def test_hosts_that_were_good_are_remembered_in_bounds() -> None:
    """AU19"""
    visitors = Visitors("127.0.0.1", "", None)
    for port in range(1, 1000):
        assert not is_refused(visitors, asked(f"localhost:{port}"))
    assert len(visitors.good) < 300


def test_a_host_is_split_from_its_port() -> None:
    """AU19"""
    assert host_of(b" Box.example.:80 ") == ("box.example", "80")
    assert host_of(b"[::1]:1") == ("::1", "1")
    assert host_of(b"::1") == ("", "")


# --- over the wire


def from_host(api: Client, host: str | None, method: str, path: str, body: Any = None, *headers: str) -> Reply:
    line = b"" if host is None else f"Host: {host}\r\n".encode()
    version = b"HTTP/1.1" if host is not None else b"HTTP/1.0"
    data = api.request(method, path, body, *headers).replace(b"Host: localhost\r\n", line, 1)
    return api.send(data.replace(b"HTTP/1.1", version, 1))


def effects(topic: str) -> list[tuple[str, str, Any, tuple[str, ...]]]:
    """A request of every kind, streams and sockets among them."""
    return [
        ("GET", "/v0/topics", None, ()),
        ("PUT", f"/v0/topics/{topic}", {}, ()),
        ("POST", f"/v0/topics/{topic}", {"records": [{"data": 1}]}, ()),
        ("POST", f"/v0/topics/{topic}/diff", {}, ()),
        ("DELETE", f"/v0/topics/{topic}", None, ()),
        ("GET", f"/v0/topics/{topic}/work?node=n", None, ()),
        ("GET", "/v0/watch/wid_none", None, ()),
        ("GET", "/v0/ws", None, SOCKET),
        ("GET", "/v0/metrics", None, ()),
        ("GET", "/v0/openapi.json", None, ()),
        ("GET", "/docs", None, ()),
        ("GET", "/nowhere", None, ()),
        ("OPTIONS", "/v0/topics", None, ("Access-Control-Request-Method: POST",)),
    ]


def test_a_name_that_was_bound_to_this_machine_from_afar_is_refused_everywhere(api: Client, topic: str) -> None:
    """AU19: DNS rebinding."""
    api.create(topic, type="queue")
    before = api.everything()
    for method, path, body, headers in effects(topic):
        message = refused(from_host(api, "evil.example", method, path, body, *headers), 403, "forbidden", None)
        assert '"evil.example"' in message and "TOPICS_ALLOWED_HOSTS" in message
    refused(from_host(api, None, "GET", "/v0/topics"), 403, "forbidden", None)
    assert api.everything() == before
    for path in PROBES:
        assert from_host(api, "evil.example", "GET", path).status == 200


@pytest.mark.parametrize("header", ["Origin: https://evil.example", "Origin: null", "Sec-Fetch-Site: cross-site"])
def test_a_page_of_another_site_can_neither_change_nor_stream(api: Client, topic: str, header: str) -> None:
    """AU19"""
    api.create(topic, type="queue", max_deliveries=1, dead_letter=f"{topic}.dead")
    api.write(topic, 1)
    before = api.everything()
    for method, path, body, headers in effects(topic):
        refused(api.ask(method, path, body, header, *headers), 403, "forbidden", None)
    assert api.everything() == before
    for path in PROBES:
        assert api.get(path, header).status == 200
    ok(api.get("/v0/topics", "Origin: http://localhost"))
    ok(api.get("/v0/topics", "Sec-Fetch-Site: same-origin"))


@pytest.mark.parametrize(
    "headers",
    [
        ("Origin: http://evil.example",),
        ("Sec-Fetch-Site: cross-site",),
        ("Sec-Fetch-Site: cross-site", "Sec-Fetch-Mode: no-cors"),
    ],
)
def test_the_page_of_the_api_is_no_probe(api: Client, headers: tuple[str, ...]) -> None:
    """AU19: it tells the limits in effect; a link leads to it, a page of another site cannot read it."""
    refused(api.get("/docs", *headers), 403, "forbidden")
    assert api.ask("HEAD", "/docs", None, *headers).status == 403
    assert api.get("/docs", *headers[:1], "Sec-Fetch-Mode: navigate").status == 200
    assert api.get("/docs").status == 200
    assert api.get("/v0/health", *headers).status == 200


def test_over_http2_the_authority_is_the_host(api: Client) -> None:
    """AU19"""
    assert http2_status(api, "/v0/topics", "localhost:1") == 200
    assert http2_status(api, "/v0/topics", "evil.example") == 403
    assert http2_status(api, "/v0/health", "evil.example") == 200
    assert http2_status(api, "/v0/topics", "localhost:1", origin="https://evil.example") == 403
    assert http2_status(api, "/v0/topics", "localhost:1", origin="http://localhost:1") == 200


def http2_status(api: Client, path: str, authority: str, **headers: str) -> int:
    h2 = H2Connection(H2Configuration(header_encoding="utf-8"))
    h2.initiate_connection()
    names = {":method": "GET", ":path": path, ":scheme": "http", ":authority": authority, **headers}
    h2.send_headers(1, list(names.items()), end_stream=True)
    with api.connect() as connection:
        connection.send(h2.data_to_send())
        while connection.receive():
            for event in h2.receive_data(connection.unread):
                if isinstance(event, ResponseReceived):
                    return int(dict(event.headers)[":status"])
            connection.unread = b""
    raise AssertionError("no answer")


def test_settings_name_more_hosts_and_origins(start: Start) -> None:
    """AU19"""
    api = Client(start(allowed_hosts="box.example", cors_origins="https://app.example").address)
    assert from_host(api, "box.example:4000", "GET", "/v0/topics").status == 200
    assert from_host(api, "other.example", "GET", "/v0/topics").status == 403
    ok(api.get("/v0/topics", "Origin: https://app.example"))
    refused(api.get("/v0/topics", "Origin: https://other.example"), 403, "forbidden", None)
    preflight = ("Access-Control-Request-Method: POST", "Origin: https://app.example")
    assert api.ask("OPTIONS", "/v0/topics", None, *preflight).status == 200


def test_with_keys_the_key_says_who_asks(start: Start) -> None:
    """AU19: Host and Origin are checked only while auth is off."""
    server: ServerThread = start(api_keys="root")
    api = Client(server.address, "root")
    assert from_host(api, "evil.example", "GET", "/v0/topics").status == 200
    assert api.get("/v0/topics", "Origin: https://evil.example").status == 200
    assert api.get("/v0/topics", "Sec-Fetch-Site: cross-site").status == 200
