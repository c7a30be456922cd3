"""Tickets in place of keys, and what a key allows, told to its holder."""

import json
import logging
from typing import Any

import pytest

from tests.api.clients.events import open_stream, watch
from tests.api.clients.transcript import Client, Connection, Reply, ok, refused, request_bytes
from tests.api.clients.websocket import HANDSHAKE, Socket, text
from tests.api.conftest import Start
from topics.errors import Throttled
from topics.server.access.tickets import TICKET_MS, TICKETS_MAX, Tickets
from topics.server.auth import ANYONE, Keyring
from topics.testing.clock import ManualClock
from topics.testing.server import ServerThread

KEYS = "root,w:write,feed:rw:f."


@pytest.fixture
def guarded(start: Start) -> ServerThread:
    return start(api_keys=KEYS)


@pytest.fixture
def root(guarded: ServerThread) -> Client:
    return Client(guarded.address, "root")


def ticket_of(client: Client) -> str:
    ticket: str = ok(client.post("/v0/ticket"))["ticket"]
    return ticket


def work(client: Client, topic: str, ticket: str) -> Reply:
    """The answer to a work stream that is opened with a ticket, or its head."""
    with Connection(client.address) as connection:
        connection.send(request_bytes("GET", f"/v0/topics/{topic}/work?node=n&ticket={ticket}"))
        head = connection.read_until(b"\r\n\r\n")
        return Reply(int(head.split(b" ")[1]), {}, b"")


# --- the tickets themselves


def test_a_ticket_is_good_once_and_for_thirty_seconds() -> None:
    """AU18"""
    clock = ManualClock()
    tickets, keyring = Tickets(clock), Keyring.parse("a,b")
    a, b = keyring.find(b"a"), keyring.find(b"b")
    assert a is not None and b is not None
    first, expires_ts = tickets.give(a)
    second, _ = tickets.give(b)
    assert first != second and expires_ts == clock.now_ms() + 30_000 == clock.now_ms() + TICKET_MS
    assert tickets.use(b"tkt_unknown") is None and tickets.use(b"") is None
    assert tickets.use(first.encode()) is a and tickets.use(first.encode()) is None
    clock.advance(TICKET_MS - 1)
    third, _ = tickets.give(b)
    clock.advance(1)
    assert tickets.use(second.encode()) is None
    assert tickets.use(third.encode()) is b
    assert (a.tickets, b.tickets) == (0, 0)


def test_unused_tickets_are_bounded_per_key() -> None:
    """AU18, LM1"""
    clock = ManualClock()
    tickets, keyring = Tickets(clock), Keyring.parse("a,b")
    a, b = keyring.find(b"a"), keyring.find(b"b")
    assert a is not None and b is not None
    given = [tickets.give(a)[0] for _ in range(TICKETS_MAX)]
    with pytest.raises(Throttled) as error:
        tickets.give(a)
    assert error.value.detail == {"limit": "max_tickets", "max": 1000}
    tickets.give(b)
    assert tickets.use(given[5].encode()) is a
    tickets.give(a)
    clock.advance(TICKET_MS)
    tickets.give(a)
    assert (a.tickets, b.tickets) == (1, 0)


def test_a_ticket_of_a_key_that_went_is_worth_nothing() -> None:
    """AU18, AU17"""
    tickets, keyring = Tickets(ManualClock()), Keyring()
    [key] = Keyring.parse("a")._keys
    keyring.take([key])
    ticket, _ = tickets.give(key)
    keyring.take([])
    assert tickets.use(ticket.encode()) is None and key.tickets == 0


def test_without_auth_no_ticket_is_kept() -> None:
    """AU18"""
    tickets = Tickets(ManualClock())
    for _ in range(TICKETS_MAX + 1):
        tickets.give(ANYONE)
    assert ANYONE.tickets == 0 and not tickets._unused


# --- over the wire


@pytest.mark.parametrize("body", [None, b"", {}, {"more": 1}])
@pytest.mark.parametrize("key", ["root", "w", "feed"])
def test_any_key_gets_a_ticket(guarded: ServerThread, key: str, body: Any) -> None:
    """AU18, CV3"""
    answer = ok(Client(guarded.address, key).post("/v0/ticket", body))
    assert list(answer) == ["ticket", "expires_ts"]
    assert answer["expires_ts"] == guarded.clock.now_ms() + 30_000


def test_a_ticket_needs_a_key_and_an_object(guarded: ServerThread, root: Client) -> None:
    """AU18, AU2"""
    refused(Client(guarded.address).post("/v0/ticket"), 401, "unauthorized", None)
    for body in ("[]", "1", "{"):
        refused(root.post("/v0/ticket", body), 400, "invalid_request")
    refused(root.get("/v0/ticket"), 405, "method_not_allowed")


def test_a_ticket_opens_a_work_stream_once(root: Client) -> None:
    """AU18"""
    root.create("q", type="queue")
    ticket = ticket_of(root)
    anyone = root.with_key(None)
    assert work(anyone, "q", ticket).status == 200
    assert work(anyone, "q", ticket).status == 401
    assert work(anyone, "q", "tkt_wrong").status == work(anyone, "q", "").status == 401


def test_a_ticket_opens_the_stream_of_its_keys_session(root: Client) -> None:
    """AU18, AU12"""
    root.create("t")
    session = watch(root, "t")
    anyone = root.with_key(None)
    with open_stream(anyone, session, query=f"?ticket={ticket_of(root)}") as stream:
        stream.expect("caught-up")
    other = ticket_of(root.with_key("w"))
    for query in (f"?ticket={other}", "?ticket=x", ""):
        refused(anyone.get(session["stream_url"] + query, "Accept: text/event-stream"), 401, "unauthorized", None)


def test_a_ticket_opens_a_socket_with_the_scopes_and_prefixes_of_its_key(root: Client) -> None:
    """AU18, WS1"""
    ticket = ticket_of(root.with_key("feed"))

    class Ticketed(Socket):
        def __init__(self) -> None:
            Connection.__init__(self, root.address)
            self.send(request_bytes("GET", f"/v0/ws?ticket={ticket}", None, *HANDSHAKE))
            self.answer = self.handshake_reply()

    with Ticketed() as ws:
        assert ws.answer.status == 101
        ws.send(text({"op": "publish", "topic": "f.x", "records": [{"data": 1}]}))
        assert ws.message()["op"] == "ack"
        assert ws.ask("publish", topic="x", records=[{"data": 1}])["code"] == "forbidden"
    with Ticketed() as again:
        assert again.answer.status == 401


@pytest.mark.parametrize("age_ms", [29_999, 30_000])
def test_a_ticket_expires(guarded: ServerThread, root: Client, age_ms: int) -> None:
    """AU18"""
    root.create("q", type="queue")
    ticket = ticket_of(root)
    guarded.advance(age_ms)
    assert work(root.with_key(None), "q", ticket).status == (200 if age_ms < 30_000 else 401)


def test_a_ticket_is_used_up_by_a_request_that_is_refused(root: Client) -> None:
    """AU18"""
    root.create("q", type="queue")
    ticket = ticket_of(root.with_key("w"))
    anyone = root.with_key(None)
    assert work(anyone, "q", ticket).status == 403
    assert work(anyone, "q", ticket).status == 401


def test_a_header_takes_precedence_over_a_ticket(root: Client) -> None:
    """AU18"""
    root.create("q", type="queue")
    ticket = ticket_of(root)
    path = f"/v0/topics/q/work?node=n&ticket={ticket}"
    refused(root.with_key("wrong").get(path), 401, "unauthorized")
    refused(root.with_key("w").get(path), 403, "forbidden")
    assert work(root.with_key(None), "q", ticket).status == 200


@pytest.mark.parametrize(
    ("method", "path"),
    [
        *(("GET", path) for path in ("/v0/topics", "/v0/topics/q", "/v0/topics/q/diff", "/v0/topics/q/export")),
        *(("GET", path) for path in ("/v0/me", "/v0/metrics", "/v0/openapi.json", "/nowhere")),
        *(("POST", path) for path in ("/v0/topics/q", "/v0/watch", "/v0/ticket", "/v0/topics/q/work")),
    ],
)
def test_elsewhere_a_ticket_counts_for_nothing_and_stays_good(root: Client, method: str, path: str) -> None:
    """AU18"""
    root.create("q", type="queue")
    ticket = ticket_of(root)
    anyone = root.with_key(None)
    refused(anyone.ask(method, f"{path}?ticket={ticket}"), 401, "unauthorized", None)
    assert work(anyone, "q", ticket).status == 200


def test_too_many_tickets_are_refused(root: Client, guarded: ServerThread) -> None:
    """AU18, LM1"""
    key = guarded.server.app.keyring.find(b"root")
    assert key is not None
    guarded.run(lambda: [guarded.server.app.tickets.give(key) for _ in range(TICKETS_MAX)])
    refused(root.post("/v0/ticket"), 429, "throttled", {"limit": "max_tickets", "max": 1000})
    ok(root.with_key("w").post("/v0/ticket"))
    guarded.advance(30_000)
    ok(root.post("/v0/ticket"))


def test_without_auth_a_ticket_is_given_and_ignored(api: Client, topic: str) -> None:
    """AU18"""
    api.create(topic, type="queue")
    ticket = ticket_of(api)
    for given in (ticket, ticket, "nonsense"):
        assert work(api, topic, given).status == 200


def test_a_ticket_is_in_no_log(start: Start, caplog: pytest.LogCaptureFixture) -> None:
    """AU18, SC4"""
    caplog.set_level(logging.DEBUG)
    root = Client(start(api_keys=KEYS, access_log=True).address, "root")
    root.create("q", type="queue")
    ticket = ticket_of(root)
    work(root.with_key(None), "q", ticket)
    work(root.with_key(None), "q", ticket)
    assert "/v0/topics/q/work" in caplog.text and ticket not in caplog.text


# --- me


@pytest.mark.parametrize(
    ("key", "scopes", "prefixes"),
    [
        ("root", ["admin", "delete", "read", "write"], []),
        ("w", ["write"], []),
        ("feed", ["read", "write"], ["f."]),
    ],
)
def test_a_key_is_told_what_it_allows(root: Client, key: str, scopes: list[str], prefixes: list[str]) -> None:
    """AU20"""
    answer = ok(root.with_key(key).get("/v0/me"))
    assert json.dumps(answer) == json.dumps({"name": None, "scopes": scopes, "prefixes": prefixes})


def test_a_key_of_the_file_has_a_name(start: Start, tmp_path: Any) -> None:
    """AU20, AU17"""
    path = tmp_path / "keys"
    digest = "2c26b46b68ffc68ff99b453c1d30413413422d706483bfa0f98a5e886266e7ae"
    path.write_text(f"dash r+d a.|b. sha256:{digest}\n")
    path.chmod(0o600)
    answer = ok(Client(start(key_file=str(path)).address, "foo").get("/v0/me"))
    assert answer == {"name": "dash", "scopes": ["delete", "read"], "prefixes": ["a.", "b."]}


def test_without_auth_everybody_is_told_that_all_is_allowed(api: Client) -> None:
    """AU20"""
    assert ok(api.get("/v0/me")) == {"name": None, "scopes": ["admin", "delete", "read", "write"], "prefixes": []}


def test_without_a_key_nobody_is_told(root: Client) -> None:
    """AU20, AU2"""
    refused(root.with_key(None).get("/v0/me"), 401, "unauthorized", None)
    refused(root.post("/v0/me"), 405, "method_not_allowed")
