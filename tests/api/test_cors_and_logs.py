"""CORS and logs; how the process starts and stops is in tests/live/test_server.py."""

import logging

import pytest

from tests.api.clients.transcript import Client, ok, refused
from tests.api.conftest import Start

PAGE = "https://app.example"
PREFLIGHT = (f"Origin: {PAGE}", "Access-Control-Request-Method: POST", "Access-Control-Request-Headers: content-type")


def cors_headers(headers: dict[str, str]) -> dict[str, str]:
    return {name: value for name, value in headers.items() if name.startswith("access-control")}


def test_cors_is_off_by_default(start: Start) -> None:
    """CV23: OPTIONS is 405, and no answer invites another origin."""
    api = Client(start(api_keys="root").address, "root")
    refused(api.ask("OPTIONS", "/v0/topics", None, *PREFLIGHT), 405, "method_not_allowed")
    assert cors_headers(api.get("/v0/topics", f"Origin: {PAGE}").headers) == {}


@pytest.mark.parametrize("origins", [PAGE, f"http://other.example, {PAGE}", "*"])
def test_named_origins_may_call(start: Start, topic: str, origins: str) -> None:
    api = Client(start(cors_origins=origins, api_keys="root").address)
    preflight = api.ask("OPTIONS", f"/v0/topics/{topic}", None, *PREFLIGHT)
    assert preflight.status in (200, 204)
    said = cors_headers(preflight.headers)
    assert said["access-control-allow-origin"] in (PAGE, "*")
    assert {"PUT", "GET", "POST", "DELETE"} <= set(said["access-control-allow-methods"].replace(" ", "").split(","))
    assert {"authorization", "content-type"} <= set(said["access-control-allow-headers"].replace(" ", "").split(","))
    for client, status in ((api, 401), (api.with_key("root"), 200)):
        answer = client.get("/v0/topics", f"Origin: {PAGE}")
        assert answer.status == status
        assert cors_headers(answer.headers)["access-control-allow-origin"] in (PAGE, "*")
        assert "access-control-allow-credentials" not in answer.headers
    refused(api.ask("OPTIONS", "/v0/topics"), 401, "unauthorized")


def test_another_origin_is_not_invited(start: Start) -> None:
    api = Client(start(cors_origins=PAGE, api_keys="root").address, "root")
    for other in (
        "https://evil.example",
        "https://app.example.evil",
        "http://app.example",
        "null",
        "https://app.example:8",
    ):
        answer = api.get("/v0/topics", f"Origin: {other}")
        ok(answer)
        assert "access-control-allow-origin" not in answer.headers
        assert "origin" in answer.headers.get("vary", "").lower()
        preflight = api.ask("OPTIONS", "/v0/topics", None, f"Origin: {other}", *PREFLIGHT[1:])
        assert "access-control-allow-origin" not in preflight.headers


def test_the_access_log_is_off_and_never_holds_a_token(start: Start, caplog: pytest.LogCaptureFixture) -> None:
    """SC4"""
    caplog.set_level(logging.DEBUG)
    secret = "sesame-open-77"
    quiet = Client(start(api_keys=secret).address, secret)
    ok(quiet.get(f"/v0/topics?prefix=quiet&token={secret}"))
    assert "/v0/topics" not in caplog.text
    talking = Client(start(api_keys=secret, access_log=True).address, secret)
    ok(talking.get(f"/v0/topics?prefix=loud&token={secret}"))
    assert talking.get(f"/v0/watch/wid_x?token={secret}").status == 404
    assert talking.with_key(None).get(f"/v0/topics/x/work?token={secret}x").status == 401
    assert "/v0/topics" in caplog.text
    assert secret not in caplog.text
