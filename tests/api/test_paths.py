"""Paths and methods, whatever the endpoint: routes, names, aliases, HEAD and OPTIONS, HTTP/2."""

import asyncio
import json
from types import SimpleNamespace

import pytest

from tests.api.clients.raw import Http2Client
from tests.api.clients.transcript import (
    Client,
    ok,
    refused,
)
from tests.effort import swept
from topics.testing.server import ServerThread

ONE = {"records": [{"data": 1}]}


# --- routes


@swept(
    "path",
    [
        *("/", "/v0", "/v0/", "/v1/topics", "/topics", "/health", "/ready", "/metrics", "/v0/healthz", "/v0/readyz"),
        *("/v0/topics/a/b/c", "/v0/topics/a/unknown", "/v0//topics", "//v0/topics", "/v0/topics//", "/V0/topics"),
        *("/v0/topics/", "/v0/topics/a/", "/v0/health/", "/healthz/", "/v0/topics/a/diff/", "/v0/metrics/"),
        *("/v0/topics/a/../b", "/v0/./topics", "/v0/Topics", "/v0/topics/a/Diff", "/v0/routers/", "/v0/watch/a/b"),
    ],
)
@pytest.mark.parametrize("method", ["GET", "POST", "PUT", "DELETE"])
def test_a_path_outside_the_list_is_not_found_whatever_the_method(api: Client, method: str, path: str) -> None:
    """CV1, CV22, ER3: no redirect, no trailing slash, no guessing."""
    reply = api.ask(method, path, {} if method in ("POST", "PUT") else None)
    refused(reply, 404, "not_found", None)
    assert "location" not in reply.headers


def test_health_and_ready_have_an_alias_outside_v0(api: Client) -> None:
    """CV1"""
    for path, alias in (("/v0/health", "/healthz"), ("/v0/ready", "/readyz")):
        one, other = api.get(path), api.get(alias)
        assert one.status == other.status == 200
        assert list(one.json) == list(other.json)


# --- names and paths


@pytest.mark.parametrize(
    "name",
    ["a", "A", "0", "a.b", "a_b", "a:b", "a-b", "room:green", "z" * 255, "0...", "con", "a..", "NUL", "-".join("ab")],
)
def test_a_valid_name_is_kept_byte_for_byte(api: Client, name: str) -> None:
    """CV12"""
    assert api.put(f"/v0/topics/{name}", {}).status == 201
    assert ok(api.get(f"/v0/topics/{name}"))["topic"] == name
    assert ok(api.delete(f"/v0/topics/{name}"))["deleted"] is True


BAD_NAMES = [
    *(".a", "_a", ":a", "-a", "z" * 256, "a%20b", "a%2Fb", "%2F", "%2e%2e", "a>b", "a%3Eb", "%C3%A9", "a%00", "a%0A"),
    *("a+b", "a*", "a,b", "a=b", "a@b", "a~b", "a!b", "a'b", "(a)", "a%25b", "%2e", "a%3Fb", "a;b", "a%0D"),
]


@pytest.mark.parametrize("name", BAD_NAMES)
def test_an_invalid_name_is_refused_where_it_would_create_and_not_found_elsewhere(api: Client, name: str) -> None:
    """CV12, CV14, WR14"""
    before = api.everything()
    refused(api.put(f"/v0/topics/{name}", {}), 400, "invalid_request", None)
    refused(api.post(f"/v0/topics/{name}", ONE), 400, "invalid_request", None)
    refused(api.post(f"/v0/topics/{name}", {"records": [{"data": 1}], "create": False}), 404, "topic_not_found")
    refused(api.get(f"/v0/topics/{name}"), 404, "topic_not_found")
    refused(api.post(f"/v0/topics/{name}/diff", {}), 404, "topic_not_found")
    refused(api.post(f"/v0/topics/{name}/delete", {"before_seq": 1}), 404, "topic_not_found")
    assert ok(api.delete(f"/v0/topics/{name}"))["deleted"] is False
    assert api.everything() == before


@pytest.mark.parametrize("segment", ["%", "%4", "%zz", "a%G1", "%FF", "%C3", "%ED%A0%80", "%C0%AF", "%F8%88%80%80%80"])
@pytest.mark.parametrize("method", ["GET", "PUT", "DELETE"])
def test_a_segment_that_cannot_be_decoded_is_refused(api: Client, method: str, segment: str) -> None:
    """CV14"""
    refused(api.ask(method, f"/v0/topics/{segment}", {} if method == "PUT" else None), 400, "invalid_request", None)


def test_a_path_that_cannot_exist_is_not_taken_apart(api: Client) -> None:
    """LM10, CV14: one of 280 KiB took minutes."""
    refused(api.get("/v0" + "/a" * 140_000), 400, "invalid_request", None)
    refused(api.get("/v0" + "/a" * 4_000), 404, "not_found")
    refused(api.get("/v0" + "/a" * 4_000 + "/%ff"), 400, "invalid_request", None)
    refused(api.get("/v0/topics/" + "%41" * 90_000), 400, "invalid_request", None)
    refused(api.get("/v0/topics/" + "%41" * 2_000), 404, "topic_not_found")


def test_a_segment_is_decoded_once(api: Client, topic: str) -> None:
    """CV14"""
    coded = "".join(f"%{byte:02x}" for byte in topic.encode())
    assert ok(api.put(f"/v0/topics/{coded}", {}), 201)["topic"] == topic
    assert ok(api.get(f"/v0/topics/{topic}"))["topic"] == topic
    assert refused(api.get(f"/v0/topics/{coded.replace('%', '%25')}"), 404, "topic_not_found")
    assert ok(api.post(f"/v0/topics/{coded}/diff", {}))["topic"] == topic


# --- methods


def test_head_is_get_without_a_body(api: Client, topic: str) -> None:
    """CV23"""
    api.create(topic)
    paths = (
        f"/v0/topics/{topic}",
        "/v0/topics",
        "/v0/health",
        "/healthz",
        "/v0/ready",
        "/v0/metrics",
        "/v0/topics/none",
    )
    for path in paths:
        assert api.ask("HEAD", path).status == api.get(path).status
    reply = api.ask("HEAD", "/v0/health")
    assert reply.headers["content-type"] == "application/json"


@pytest.mark.parametrize("path", ["/v0/watch/wid_x", "/v0/ws", "/v0/topics/q/work"])
def test_head_on_a_stream_is_not_allowed(api: Client, path: str) -> None:
    """CV23"""
    reply = api.ask("HEAD", path)
    assert reply.status == 405
    assert reply.headers["allow"] == "GET"


@pytest.mark.parametrize("path", ["/v0/topics", "/v0/topics/a", "/v0/topics/a/diff", "/v0/health"])
def test_options_is_not_allowed_and_names_the_methods(api: Client, path: str) -> None:
    """CV23, ER3"""
    reply = api.ask("OPTIONS", path)
    refused(reply, 405, "method_not_allowed", None)
    assert reply.headers["allow"]
    assert not [name for name in reply.headers if name.startswith("access-control")]


# --- HTTP/2


def test_the_same_port_speaks_http2_by_prior_knowledge(server: ServerThread, api: Client, topic: str) -> None:
    """CV16, ER1"""
    json_type = ("content-type", "application/json")

    async def talk() -> None:
        client = await Http2Client.connect(SimpleNamespace(address=server.address))  # type: ignore[arg-type]
        try:
            put = await client.ask(f"/v0/topics/{topic}", b"{}", json_type, method="PUT")
            assert (put.status, json.loads(put.body)["created"]) == (201, True)
            written = await client.ask(f"/v0/topics/{topic}", json.dumps(ONE).encode(), json_type)
            assert (written.status, json.loads(written.body)["seqs"]) == (200, [1])
            for headers in (put.headers, written.headers):
                assert not {"connection", "keep-alive", "transfer-encoding"} & set(headers)
            ids = [await client.start(f"/v0/topics/{topic}/diff", b"{}", json_type) for _ in range(5)]
            for stream_id in ids:
                assert json.loads((await client.reply(stream_id)).body)["records"][0]["data"] == 1
            missing = await client.ask("/v0/topics/none", None)
            assert (missing.status, json.loads(missing.body)["error"]["code"]) == (404, "topic_not_found")
            wrong = await client.ask(f"/v0/topics/{topic}", b"{}", ("content-type", "text/plain"))
            assert wrong.status == 415
            health = await client.ask("/healthz", None, method="HEAD")
            assert (health.status, health.body) == (200, b"")
        finally:
            client.raw.close()

    asyncio.run(talk())
    assert api.data(topic) == [1]
