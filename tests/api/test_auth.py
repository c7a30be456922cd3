"""Keys, scopes, prefixes, and the order in which a request is checked."""

import base64
import gc
import logging
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest

from tests.api.clients.transcript import Client, Reply, ok, refused
from tests.api.conftest import Start
from topics.settings import Settings
from topics.testing.server import ServerThread

KEYS = (
    "root,r1:read,w1:write,rw1:rw,d1:delete,a1:admin, spaced:r ,"
    "acme::acme:|shared.,acme-r:r:acme:,acme-w:w:acme:,acme-a:a+w:acme:,acme-d:d:acme:,"
    "short1:R+W,short2:Del,short3:D,short4:A,colon:r:a:b|c:d,full:read+write+delete+admin:,rwd:rw+d,,  ,"
)
SECRETS = [entry.strip().partition(":")[0] for entry in KEYS.split(",") if entry.strip()]
ONE = {"records": [{"data": 1}]}

# method, path, body, scopes that are needed. {t} is a topic that exists.
ROUTES: list[tuple[str, str, Any, str]] = [
    ("PUT", "/v0/topics/{t}", {}, "a"),
    ("GET", "/v0/topics/{t}", None, "r"),
    ("HEAD", "/v0/topics/{t}", None, "r"),
    ("GET", "/v0/topics", None, "r"),
    ("DELETE", "/v0/topics/{t}-none", None, "d"),
    ("POST", "/v0/topics/{t}", ONE, "w"),
    ("POST", "/v0/topics/{t}/diff", {}, "r"),
    ("GET", "/v0/topics/{t}/diff", None, "r"),
    ("GET", "/v0/topics/{t}/export", None, "r"),
    ("POST", "/v0/topics/{t}/delete", {"before_seq": 0}, "d"),
    ("PUT", "/v0/routers/x", {"source": "a", "dest": "a"}, "a"),
    ("GET", "/v0/routers/x", None, "r"),
    ("GET", "/v0/routers", None, "r"),
    ("DELETE", "/v0/routers/x", None, "d"),
    ("POST", "/v0/watch", {"topics": {}}, "r"),
    ("POST", "/v0/topics/{t}/claim", {}, "rw"),
    ("POST", "/v0/topics/{t}/ack", {}, "w"),
    ("POST", "/v0/topics/{t}/nack", {}, "w"),
    ("POST", "/v0/topics/{t}/extend", {}, "w"),
    ("GET", "/v0/topics/{t}/work", None, "rw"),
    ("GET", "/v0/topics/{t}/events?limit=x", None, "r"),
    ("GET", "/v0/events", None, "r"),
    ("GET", "/v0/connections", None, "a"),
    ("DELETE", "/v0/connections/none", None, "a"),
    ("GET", "/v0/metrics", None, "r"),
    ("GET", "/v0/server", None, "a"),
    ("GET", "/v0/doctor", None, "r"),
    ("GET", "/v0/tree", None, "r"),
    ("GET", "/v0/losses", None, "r"),
    ("GET", "/v0/topics/{t}/times?seqs=1", None, "r"),
    ("POST", "/v0/topics/{t}/move", {"seqs": [1], "dest": "{t}"}, "wd"),
]
SCOPES = {"r1": "r", "w1": "w", "d1": "d", "a1": "a", "rw1": "rw", "root": "rwda"}


@pytest.fixture(scope="module")
def guarded() -> Iterator[ServerThread]:
    with ServerThread(Settings(api_keys=KEYS)) as server:
        yield server


@pytest.fixture
def anyone(guarded: ServerThread) -> Client:
    return Client(guarded.address)


@pytest.fixture
def root(anyone: Client) -> Client:
    return anyone.with_key("root")


def authorized(client: Client, value: str, path: str = "/v0/topics") -> Reply:
    return client.get(path, f"Authorization: {value}")


# --- the key


@pytest.mark.parametrize(
    "value",
    ["Bearer root", "bearer root", "BEARER root", "bEaReR root", "Bearer   root", "  Bearer root  ", "Bearer root\t"],
)
def test_a_key_comes_behind_bearer_in_any_case(anyone: Client, value: str) -> None:
    """AU1"""
    ok(authorized(anyone, value))


@pytest.mark.parametrize(
    "value",
    [
        *("", "root", "Basic root", "Bearer", "Bearer ", "Bearerroot", "Bearer roo", "Bearer roott", "Bearer Root"),
        *("Bearer root:read", "Bearer root,r1", "Bearer root r1", "Bearer \xff", "Token root", 'Bearer "root"'),
        *("Bearer spaced:r", "Bearer  spaced:", "Bearer r1:read"),
    ],
)
def test_a_missing_or_unknown_key_is_unauthorized(anyone: Client, value: str) -> None:
    """AU1, AU2"""
    refused(authorized(anyone, value), 401, "unauthorized", None)


def test_without_a_key_nothing_but_the_probes_answers(anyone: Client) -> None:
    """AU2, AU11"""
    for method, path, body, _ in ROUTES:
        refused(anyone.ask(method, path.format(t="t"), body), 401, "unauthorized", None)
    for path in ("/v0/health", "/healthz", "/v0/ready", "/readyz"):
        assert anyone.get(path).status == 200
        assert anyone.with_key("wrong").get(path).status == 200
    refused(anyone.get("/v0/ws"), 401, "unauthorized")
    refused(anyone.get("/v0/metrics"), 401, "unauthorized")


def test_without_keys_auth_is_off_and_the_header_ignored(api: Client) -> None:
    """AU1"""
    for value in ("Bearer whatever", "Basic x", "nonsense"):
        ok(authorized(api, value))


def test_with_probe_auth_the_probes_need_a_key(start: Start) -> None:
    """AU11"""
    client = Client(start(api_keys="root,w1:write", probe_auth=True).address)
    for path in ("/v0/health", "/healthz", "/v0/ready", "/readyz"):
        refused(client.get(path), 401, "unauthorized", None)
        refused(client.with_key("wrong").get(path), 401, "unauthorized", None)
        assert client.with_key("root").get(path).status == 200
        assert client.with_key("w1").get(path).status == 200


def test_probe_auth_without_keys_asks_for_nothing(start: Start) -> None:
    """AU11, AU1"""
    client = Client(start(probe_auth=True).address)
    assert client.get("/v0/health").status == client.get("/v0/metrics").status == 200


# --- scopes


@pytest.mark.parametrize("key", SCOPES)
@pytest.mark.parametrize(("method", "path", "body", "needed"), ROUTES, ids=lambda value: str(value)[:40])
def test_a_route_needs_its_scope(
    root: Client, topic: str, key: str, method: str, path: str, body: Any, needed: str
) -> None:
    """AU6"""
    root.create(topic)
    reply = root.with_key(key).ask(method, path.format(t=topic), body)
    if set(needed) <= set(SCOPES[key]):
        assert reply.status not in (401, 403), reply
    else:
        refused(reply, 403, "forbidden", None)


def test_a_refused_request_does_nothing(root: Client, topic: str) -> None:
    """AU6"""
    root.write(topic, 1, 2)
    before = root.everything()
    reader, writer = root.with_key("r1"), root.with_key("w1")
    refused(reader.post(f"/v0/topics/{topic}", ONE), 403, "forbidden")
    refused(reader.put(f"/v0/topics/{topic}", {"cap_records": 1}), 403, "forbidden")
    refused(writer.delete(f"/v0/topics/{topic}"), 403, "forbidden")
    refused(writer.post(f"/v0/topics/{topic}/delete", {"before_seq": 9}), 403, "forbidden")
    refused(reader.put(f"/v0/topics/{topic}-new", {}), 403, "forbidden")
    assert root.everything() == before


@pytest.mark.parametrize(
    ("key", "scopes"),
    [
        ("root", "rwda"),
        ("r1", "r"),
        ("short1", "rw"),
        ("short2", "d"),
        ("short3", "d"),
        ("short4", "a"),
        ("spaced", "r"),
        ("full", "rwda"),
        ("rwd", "rwd"),
    ],
)
def test_an_entry_names_its_scopes_long_or_short(root: Client, topic: str, key: str, scopes: str) -> None:
    """AU4"""
    root.create(topic)
    client = root.with_key(key)
    tried = {
        "r": client.get(f"/v0/topics/{topic}"),
        "w": client.post(f"/v0/topics/{topic}", ONE),
        "d": client.post(f"/v0/topics/{topic}/delete", {"before_seq": 0}),
        "a": client.put(f"/v0/topics/{topic}", {}),
    }
    assert {scope for scope, reply in tried.items() if reply.status == 200} == set(scopes)


# --- inline config


def test_an_inline_config_needs_admin_only_where_it_creates(root: Client, topic: str) -> None:
    """AU7"""
    with_config = {"records": [{"data": 1}], "config": {"cap_records": 5}}
    writer = root.with_key("w1")
    before = root.everything()
    refused(writer.post(f"/v0/topics/{topic}", with_config), 403, "forbidden", None)
    refused(writer.post(f"/v0/topics/{topic}", {"records": [{"data": 1}], "config": {}}), 403, "forbidden")
    assert root.everything() == before
    assert writer.post(f"/v0/topics/{topic}", {"records": [{"data": 1}], "config": None}).status == 201
    assert ok(writer.post(f"/v0/topics/{topic}", with_config))["created"] is False
    assert root.state(topic)["config"]["cap_records"] == 0
    assert root.post(f"/v0/topics/{topic}-2", with_config).status == 201


# --- prefixes


@pytest.mark.parametrize(
    ("name", "may"),
    [
        ("acme:1", True),
        ("acme:", True),
        ("shared.x", True),
        ("acme", False),
        ("acmf:1", False),
        ("shared", False),
        ("sharedx", False),
        ("xacme:1", False),
        ("Acme:1", False),
        ("%61cme%3A2", True),
        ("acme%2E", False),
    ],
)
def test_a_prefix_is_tested_on_the_decoded_name(root: Client, name: str, may: bool) -> None:
    """AU8, CV14"""
    acme = root.with_key("acme")
    replies = [
        acme.put(f"/v0/topics/{name}", {}),
        acme.get(f"/v0/topics/{name}"),
        acme.post(f"/v0/topics/{name}", ONE),
        acme.post(f"/v0/topics/{name}/diff", {}),
        acme.post(f"/v0/topics/{name}/delete", {"before_seq": 0}),
        acme.delete(f"/v0/topics/{name}"),
    ]
    if may:
        assert [reply.status for reply in replies] == [201, 200, 200, 200, 200, 200]
    else:
        for reply in replies:
            refused(reply, 403, "forbidden", None)
        refused(root.get(f"/v0/topics/{name}"), 404, "topic_not_found")


def test_the_third_field_keeps_its_colons(root: Client) -> None:
    """AU4"""
    client = root.with_key("colon")
    for name, status in (("a:bx", 404), ("c:d", 404), ("a", 403), ("b", 403), ("c", 403), ("d", 403)):
        assert client.get(f"/v0/topics/{name}").status == status
    for name in ("a", "b:c", "zzz"):
        assert root.with_key("full").get(f"/v0/topics/{name}").status == 404


@pytest.mark.parametrize("dead_letter", ["dead", "acme", "xacme:dead"])
def test_a_dead_letter_outside_the_prefixes_is_refused(root: Client, topic: str, dead_letter: str) -> None:
    """AU8, S21: by PUT and by inline config, nothing done."""
    name = f"acme:{topic}"
    queue = {"type": "queue", "dead_letter": dead_letter, "max_deliveries": 1}
    admin = root.with_key("acme-a")
    before = root.everything()
    refused(admin.put(f"/v0/topics/{name}", queue), 403, "forbidden", None)
    refused(admin.post(f"/v0/topics/{name}", {"records": [{"data": 1}], "config": queue}), 403, "forbidden", None)
    assert root.everything() == before
    inside = queue | {"dead_letter": f"acme:{topic}.dead"}
    assert ok(admin.put(f"/v0/topics/{name}", inside), 201)["config"]["dead_letter"] == f"acme:{topic}.dead"
    created = admin.post(f"/v0/topics/{name}-2", {"records": [{"data": 1}], "config": inside})
    assert created.status == 201


def test_lists_leave_out_what_the_key_may_not_name(root: Client, topic: str) -> None:
    """AU9, AU14"""
    mine = [f"acme:{topic}.{n}" for n in range(3)]
    for name in [*mine, f"other:{topic}", f"shared.{topic}", f"acme.{topic}"]:
        root.create(name)

    def listed(client: Client, page_size: int) -> list[str]:
        found, cursor = [], ""
        while True:
            answer = ok(client.get(f"/v0/topics?page_size={page_size}{cursor}"))
            found += [entry["topic"] for entry in answer["topics"]]
            if "next_cursor" not in answer:
                return found
            cursor = f"&cursor={answer['next_cursor']}"

    for page_size in (1, 2, 1000):
        seen = listed(root.with_key("acme"), page_size)
        assert set(mine) | {f"shared.{topic}"} <= set(seen)
        assert [name for name in seen if not name.startswith(("acme:", "shared."))] == []
        assert [name for name in listed(root.with_key("acme-r"), page_size) if not name.startswith("acme:")] == []
    assert ok(root.with_key("acme-r").get("/v0/topics?prefix=other:"))["topics"] == []


def test_a_list_cursor_shows_no_name_outside_the_prefixes(root: Client, topic: str) -> None:
    """AU14: the cursor holds a name, too."""
    for name in (f"acme:{topic}", f"acmf:{topic}", f"zzz:{topic}"):
        root.create(name)
    cursor: str | None = ""
    while cursor is not None:
        answer = ok(root.with_key("acme").get(f"/v0/topics?page_size=1{cursor and '&cursor=' + cursor}"))
        cursor = answer.get("next_cursor")
        if cursor:
            after = base64.urlsafe_b64decode(cursor + "==")
            assert b"acmf" not in after and b"zzz" not in after


def test_metrics_show_only_topics_the_key_may_name(root: Client, topic: str) -> None:
    """AU14"""
    for name in (f"acme:{topic}", f"secret.{topic}"):
        root.create(name)
    for accept in ("text/plain", "application/json"):
        text = root.with_key("acme-r").get("/v0/metrics", f"Accept: {accept}").body.decode()
        assert f"secret.{topic}" not in text
    assert f'topic="acme:{topic}"' in root.with_key("acme-r").get("/v0/metrics").body.decode()
    assert f'topic="secret.{topic}"' in root.get("/v0/metrics").body.decode()


# --- ?token=


def test_a_token_in_the_query_counts_on_streams_only(anyone: Client) -> None:
    """AU10"""
    for method, path, body, _ in ROUTES:
        if path.endswith("/work") or "/events" in path:
            continue
        reply = anyone.ask(method, f"{path.format(t='t')}?token=root", body)
        refused(reply, 401, "unauthorized", None)
    refused(anyone.get("/v0/ws?token=root"), 401, "unauthorized")


@pytest.mark.parametrize(
    ("query", "header", "is_known"),
    [
        ("token=rw1", None, True),
        ("a=b&token=rw1", None, True),
        ("token=%72w1", None, True),
        ("token=rw1&token=wrong", None, True),
        ("token=wrong&token=rw1", None, False),
        ("token=", None, False),
        ("token=rw1", "Bearer wrong", False),
        ("token=wrong", "Bearer rw1", True),
        ("Token=rw1", None, False),
    ],
)
def test_the_header_beats_the_token_and_the_first_token_the_others(
    anyone: Client, root: Client, topic: str, query: str, header: str | None, is_known: bool
) -> None:
    """AU10: on a log the known key gets as far as 409, or as far as its missing node."""
    root.create(topic)
    headers = [] if header is None else [f"Authorization: {header}"]
    reply = anyone.get(f"/v0/topics/{topic}/work?{query}", *headers)
    if is_known:
        assert reply.status not in (401, 403), reply
    else:
        refused(reply, 401, "unauthorized", None)


# --- the order of checks


@pytest.mark.parametrize(
    ("key", "method", "path", "headers", "status", "code"),
    [
        # 401 before everything
        (None, "GET", "/nowhere", (), 401, "unauthorized"),
        ("wrong", "PATCH", "/v0/topics/x", (), 401, "unauthorized"),
        (None, "POST", "/v0/topics/x", ("Content-Type: text/plain",), 401, "unauthorized"),
        ("wrong", "GET", "/v0/topics/%FF", (), 401, "unauthorized"),
        # then the route
        ("acme-r", "GET", "/nowhere", (), 404, "not_found"),
        ("acme-r", "POST", "/v0/topics/other/unknown", ("Content-Type: text/plain",), 404, "not_found"),
        ("w1", "PATCH", "/v0/topics/other", (), 405, "method_not_allowed"),
        ("acme-r", "DELETE", "/v0/topics/other/diff", (), 405, "method_not_allowed"),
        ("acme-r", "POST", "/v0/health", (), 405, "method_not_allowed"),
        # then the scope, then the prefix, before anything of the request itself
        ("acme-r", "PUT", "/v0/topics/other", ("Content-Type: text/plain",), 403, "forbidden"),
        ("acme-r", "GET", "/v0/topics/other", (), 403, "forbidden"),
        ("w1", "GET", "/v0/topics?cursor=!", (), 403, "forbidden"),
        ("acme-w", "POST", "/v0/topics/other", ("Content-Type: text/plain",), 403, "forbidden"),
        ("acme-w", "POST", "/v0/topics/other", ("Content-Length: 999999999",), 403, "forbidden"),
        ("r1", "POST", "/v0/topics/x", ("Content-Encoding: br",), 403, "forbidden"),
        # then the handler's own
        ("acme-w", "POST", "/v0/topics/acme:x", ("Content-Type: text/plain",), 415, "unsupported_media_type"),
        ("acme-w", "POST", "/v0/topics/acme:x", ("Content-Length: 999999999",), 413, "payload_too_large"),
        ("acme-w", "POST", "/v0/topics/acme:x", (), 400, "invalid_request"),
        ("acme-r", "POST", "/v0/topics/acme:none/diff", (), 400, "invalid_request"),
    ],
)
def test_the_first_check_that_fails_answers(
    anyone: Client, key: str | None, method: str, path: str, headers: tuple[str, ...], status: int, code: str
) -> None:
    """AU13: each request breaks several rules at once."""
    body = b"not JSON" if method in ("POST", "PUT", "PATCH") and "Content-Length" not in str(headers) else None
    if "Content-Length" in str(headers):
        headers = (*headers, "Content-Type: application/json")
    refused(anyone.with_key(key).ask(method, path, body, *headers), status, code, None)


# --- secrets


def test_a_secret_is_in_no_answer_and_no_log(anyone: Client, caplog: pytest.LogCaptureFixture) -> None:
    """AU3, SC4"""
    secret = "sesame-open-93"
    caplog.set_level(logging.DEBUG)
    replies = [
        anyone.with_key(secret).get("/v0/topics"),
        anyone.with_key(secret).get(f"/v0/topics/x/work?token={secret}"),
        anyone.get(f"/v0/topics?token={secret}"),
        anyone.get(f"/v0/topics/x/work?node=n&token={secret}"),
        anyone.with_key(secret).ask("PATCH", "/v0/topics/x"),
    ]
    assert {reply.status for reply in replies} == {401}
    assert secret not in str(replies)
    assert secret not in caplog.text


def test_after_the_start_no_plain_key_is_left_in_the_servers_objects(start: Start) -> None:
    """AU3: only digests remain."""
    secret = "unforgettable-" + "secret-7"
    server = start(api_keys="".join([secret, ":rw:a"]))
    ok(Client(server.address, secret).get("/v0/topics"))
    gc.collect()
    held = [
        item
        for item in gc.get_objects()
        if str(type(item).__module__).startswith("topics.") and secret in repr(getattr(item, "__dict__", item))
    ]
    assert held == []


@pytest.mark.parametrize(
    ("key", "method", "path", "status"),
    [
        (None, "GET", "/v0/topics", 401),
        ("wrong", "GET", "/v0/topics", 401),
        ("root", "GET", "/nowhere", 404),
        ("root", "PATCH", "/v0/topics", 405),
        ("r1", "PUT", "/v0/topics/x", 403),
        ("acme-r", "GET", "/v0/topics/x", 403),
        ("root", "GET", "/v0/topics/none", 404),
        ("root", "POST", "/v0/topics/x", 415),
    ],
)
def test_a_refused_request_leaves_nothing_in_memory(
    guarded: ServerThread, anyone: Client, key: str | None, method: str, path: str, status: int
) -> None:
    """AU2, LM5: what anyone can send without end must not add up."""

    def held_after(requests: int) -> int:
        for _ in range(requests):
            assert anyone.with_key(key).ask(method, path).status == status
        guarded.until(lambda: not guarded.server.listener.open_count)
        gc.collect()
        kinds = Counter(map(type, gc.get_objects()))
        return sum(count for kind, count in kinds.items() if str(kind.__module__).startswith("topics.server"))

    assert held_after(20) <= held_after(1) + 1
