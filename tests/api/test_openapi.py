"""The OpenAPI document: valid, complete, and true of the server that serves it."""

import asyncio
import math
import re
from base64 import b64encode
from collections.abc import Iterator
from hashlib import sha256
from html.parser import HTMLParser
from typing import Any
from urllib.parse import unquote

import pytest
import requests
import schemathesis
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis.errors import Unsatisfiable
from openapi_schema_validator import OAS31Validator
from openapi_spec_validator import OpenAPIV31SpecValidator
from schemathesis import GenerationMode
from schemathesis.specs.openapi.checks import negative_data_rejection, positive_data_acceptance

from tests.api.clients.transcript import Client, refused
from tests.api.conftest import Start
from topics import __version__
from topics.server import api
from topics.testing.clock import ManualClock
from topics.testing.server import ServerThread

ROUTES = {
    "/v0/topics": {"get"},
    "/v0/topics/{topic}": {"get", "put", "post", "delete"},
    "/v0/topics/{topic}/diff": {"get", "post"},
    "/v0/topics/{topic}/delete": {"post"},
    "/v0/topics/{topic}/export": {"get"},
    "/v0/watch": {"post"},
    "/v0/watch/{wid}": {"get"},
    "/v0/health": {"get"},
    "/healthz": {"get"},
    "/v0/ready": {"get"},
    "/readyz": {"get"},
    "/v0/metrics": {"get"},
    "/v0/openapi.json": {"get"},
    "/v0/connections": {"get"},
    "/v0/connections/{id}": {"delete"},
    "/v0/me": {"get"},
    "/v0/server": {"get"},
    "/v0/doctor": {"get"},
    "/v0/tree": {"get"},
    "/v0/losses": {"get"},
    "/v0/topics/{topic}/times": {"get"},
    "/v0/topics/{topic}/move": {"post"},
    "/v0/ticket": {"post"},
}
CONFIG_FIELDS = {
    *("type", "ttl_ms", "cap_records", "cap_bytes", "discard", "durable", "durability", "priority", "auto_priority"),
    *("auto_create", "idempotency_window_ms", "dedupe_node", "lease_ms", "claim_jitter_ms", "max_deliveries"),
    *("dead_letter", "leases_durable"),
}
EXAMPLES = 30  # requests per operation and mode


@pytest.fixture(scope="module")
def document() -> Any:
    with ServerThread() as server:
        reply = Client(server.address).get("/v0/openapi.json")
    assert reply.status == 200
    assert reply.headers["content-type"].startswith("application/json")
    return reply.json


def resolve(document: Any, part: Any) -> Any:
    while "$ref" in part:
        found = document
        for step in part["$ref"].removeprefix("#/").split("/"):
            found = found[step]
        part = found
    return part


def test_the_document_is_valid_openapi_31(document: Any) -> None:
    """CV1"""
    assert document["openapi"].startswith("3.1")
    assert document["info"]["version"] == __version__
    assert list(OpenAPIV31SpecValidator(document).iter_errors()) == []


def test_every_route_is_in_it_and_nothing_else(document: Any) -> None:
    """CV1"""
    listed = {
        path: {method for method in item if method in ("get", "put", "post", "delete")}
        for path, item in document["paths"].items()
    }
    assert {path: listed.get(path) for path in ROUTES} == ROUTES


def test_every_operation_names_its_answers_and_errors(document: Any) -> None:
    """ER1, ER2"""
    for path in ROUTES:
        for method in ROUTES[path]:
            operation = document["paths"][path][method]
            assert operation["operationId"] and operation["summary"]
            statuses = set(operation["responses"])
            assert statuses & {"200", "201"}, (path, method)
            if "{topic}" in path:
                assert {"401", "403", "500", "503"} <= statuses, (path, method, statuses)
            for status, response in operation["responses"].items():
                response = resolve(document, response)
                if status.startswith(("4", "5")):
                    assert "application/json" in response["content"], (path, method, status)


def test_bodies_name_their_fields(document: Any) -> None:
    """TP1, WR1, DF1, DL1, SS1"""

    def fields(path: str, method: str) -> set[str]:
        body = resolve(document, document["paths"][path][method]["requestBody"])
        schema = resolve(document, body["content"]["application/json"]["schema"])
        return set(schema["properties"])

    assert fields("/v0/topics/{topic}", "put") == CONFIG_FIELDS | {"dry_run"}
    write = {"records", "node", "idempotency_key", "create", "config", "disable_backpressure"}
    assert write <= fields("/v0/topics/{topic}", "post")
    diff = {"from_seq", "limit", "node", "include_tags", "include_meta", "wait_ms", "max_batch_bytes", "epoch"}
    assert diff | {"from_ts", "filter"} <= fields("/v0/topics/{topic}/diff", "post")
    assert fields("/v0/topics/{topic}/delete", "post") == {"before_seq", "match", "epoch", "dry_run"}
    watch = {"topics", "node", "limit", "max_batch_bytes", "heartbeat_ms", "include_meta", "include_tags"}
    assert fields("/v0/watch", "post") == watch | {"include_data", "consistency", "cursor", "filter"}
    media = resolve(document, document["paths"]["/v0/topics/{topic}"]["post"]["requestBody"])["content"]
    assert set(media) == {"application/json", "application/x-ndjson", "application/vnd.apache.arrow.stream"}


def test_the_document_needs_a_key_where_keys_are_set(start: Start) -> None:
    """AU2"""
    client = Client(start(api_keys="root,w:write").address)
    assert client.get("/v0/openapi.json").status in (200, 401)
    assert client.with_key("root").get("/v0/openapi.json").status == 200


# --- for readers and generators


def test_every_operation_can_be_used_by_a_generator(document: Any) -> None:
    """CV1: one tag that is explained, a description, an id of its own, security, examples that are right."""
    tags = {tag["name"] for tag in document["tags"]}
    schemes = set(document["components"]["securitySchemes"])
    ids = []
    for route in api.ROUTES:
        path = re.sub(r":(\w+)", r"{\1}", route.path)
        operation = document["paths"][path][route.method.lower()]
        ids.append(operation["operationId"])
        assert len(operation["tags"]) == 1 and set(operation["tags"]) <= tags, path
        assert operation["description"].endswith("."), path
        for option in operation.get("security", document["security"]):
            assert set(option) <= schemes
        bodies = [operation.get("requestBody", {}), *operation["responses"].values()]
        for media, content in [pair for body in bodies for pair in body.get("content", {}).items()]:
            if media in ("application/json", "text/event-stream"):
                validator = OAS31Validator({**content["schema"], "components": document["components"]})
                assert list(validator.iter_errors(content["example"])) == [], (path, content["example"])
    assert len(set(ids)) == len(ids)
    assert [server["url"] for server in document["servers"]] == ["/"]


def test_security_is_always_said(start: Start) -> None:
    """AU2, AU10, AU11, AU18: optional without keys, asked for with them, not of probes."""
    open_document = Client(start().address).get("/v0/openapi.json").json
    assert open_document["security"] == [{}, {"key": []}]
    keyed = Client(start(api_keys="root").address, "root").get("/v0/openapi.json").json
    assert keyed["security"] == [{"key": []}]
    paths = keyed["paths"]
    assert paths["/v0/health"]["get"]["security"] == paths["/docs"]["get"]["security"] == []
    streams = [{"key": []}, {"token": []}, {"ticket": []}]
    for path in ("/v0/watch/{wid}", "/v0/events", "/v0/topics/{topic}/events", "/v0/topics/{topic}/work"):
        assert paths[path]["get"]["security"] == streams
    assert paths["/v0/ws"]["get"]["security"] == [{"key": []}, {"ticket": []}]
    guarded = Client(start(api_keys="root", probe_auth=True).address, "root").get("/v0/openapi.json").json
    assert "security" not in guarded["paths"]["/v0/health"]["get"]


def test_no_enum_is_without_a_type(document: Any) -> None:
    """CV1: generators of clients make a type of it."""
    ready = document["components"]["schemas"]["Ready"]["properties"]
    assert ready["status"] == {"type": "string", "enum": ["ready"]}
    assert ready["wal_replay_complete"] == {"type": "boolean"}

    def check(part: Any) -> None:
        if isinstance(part, dict):
            assert "enum" not in part or "type" in part, part
        for inner in part.values() if isinstance(part, dict) else part if isinstance(part, list) else ():
            check(inner)

    check(document["components"]["schemas"])


# --- the page


class Page(HTMLParser):
    """What a page loads, and the texts of its operations."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.texts: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_data(self, data: str) -> None:
        self.texts.append(data)


def test_the_page_has_every_operation_and_loads_nothing(start: Start, document: Any) -> None:
    """CV1: with a command for each, under a policy that allows its own style and script only."""
    address = start().address
    reply = Client(address).get("/docs")
    assert reply.status == 200 and reply.headers["content-type"] == "text/html; charset=utf-8"
    text = reply.body.decode()
    page = Page(text)
    policy = dict(part.partition(" ")[::2] for part in reply.headers["content-security-policy"].split("; "))
    assert policy["default-src"] == policy["frame-ancestors"] == policy["base-uri"] == "'none'"
    for tag, allowed in (("style", "style-src"), ("script", "script-src")):
        [inner] = re.findall(f"<{tag}>(.*?)</{tag}>", text, re.DOTALL)
        assert policy[allowed] == f"'sha256-{b64encode(sha256(inner.encode()).digest()).decode()}'"
    assert not [attributes for _, attributes in page.tags if "src" in attributes or "style" in attributes]
    assert {attributes["href"] for _, attributes in page.tags if "href" in attributes} == {"data:,", "/v0/openapi.json"}
    shown = {attributes["id"]: attributes for tag, attributes in page.tags if tag == "details"}
    operations = {operation["operationId"] for item in document["paths"].values() for operation in item.values()}
    assert set(shown) == operations
    commands = [line for line in page.texts if line.startswith("curl ")]
    assert len(commands) == len(operations)
    assert "curl -N 'http://localhost/v0/topics/orders/events'" in commands
    assert all("http://localhost/" in line for line in commands)


def test_the_page_needs_no_key_and_tells_no_host_but_the_one_that_asks(start: Start) -> None:
    """AU11, AU19, AU3: what a request says of itself is escaped."""
    server = start(api_keys="root")
    client = Client(server.address)
    reply = client.send(b"GET /docs HTTP/1.1\r\nHost: <b>'\"&x\r\n\r\n")
    assert reply.status == 200
    assert b"<b>'" not in reply.body and b"&lt;b&gt;&#x27;" in reply.body and b"$KEY" in reply.body
    assert client.ask("HEAD", "/docs").status == 200
    refused(client.post("/docs"), 405, "method_not_allowed")
    packed = client.get("/docs", "Accept-Encoding: gzip")
    assert packed.headers["content-encoding"] == "gzip" and len(packed.body) < len(reply.body) / 4
    refused(Client(start(api_keys="root", probe_auth=True).address).get("/docs"), 401, "unauthorized")
    open_to_all = Client(start().address)
    assert open_to_all.get("/docs", "Sec-Fetch-Site: cross-site", "Sec-Fetch-Mode: navigate").status == 200
    refused(open_to_all.get("/docs", "Sec-Fetch-Site: cross-site"), 403, "forbidden")


# --- schemathesis


class HastyClock(ManualClock):
    """Lets the time of every wait pass at once, so that no generated `wait_ms` takes any."""

    async def wait(self, future: "asyncio.Future[Any]", timeout_ms: float) -> None:
        if not future.done():
            self.advance(math.ceil(timeout_ms))
            await asyncio.sleep(0)


@pytest.fixture(scope="module")
def schema() -> Iterator[Any]:
    with ServerThread(clock=HastyClock()) as server:
        document = Client(server.address).get("/v0/openapi.json").json
        schema = schemathesis.openapi.from_dict(document)
        schema.config.update(base_url="http://{}:{}".format(*server.address))
        yield schema


def has_float(value: Any) -> bool:
    if isinstance(value, dict | list):
        return any(map(has_float, value.values() if isinstance(value, dict) else value))
    return isinstance(value, float)


def excluded_checks(case: Any) -> list[Any]:
    """What JSON Schema cannot say.

    An integer spelled 1.0 may be refused; a made-up cursor, and a dead_letter that is the topic itself, are. A
    parameter without a value is one that was left out, and a header that the body overrides is not looked at.
    """
    query, body = case.query or {}, case.body if isinstance(case.body, dict) else {}
    is_own_dead_letter = body.get("dead_letter", "") == unquote(str((case.path_parameters or {}).get("topic")))
    excluded = []
    if "cursor" in query or body.get("cursor") is not None or is_own_dead_letter or has_float(body):
        excluded.append(positive_data_acceptance)
    if "" in query.values() or body.get("idempotency_key") is not None:
        excluded.append(negative_data_rejection)
    return excluded


@pytest.mark.slow
@pytest.mark.parametrize("mode", list(GenerationMode), ids=lambda mode: mode.value)
@pytest.mark.parametrize(("path", "method"), [(path, method) for path in ROUTES for method in sorted(ROUTES[path])])
def test_generated_requests_get_only_answers_that_the_document_allows(
    schema: Any, path: str, method: str, mode: GenerationMode
) -> None:
    """ER1, ER2, CV5: status, type, headers and shape are those documented, whatever is sent, and never a 500."""
    operation = schema[path][method.upper()]

    @settings(
        max_examples=EXAMPLES,
        derandomize=True,
        database=None,
        phases=[Phase.explicit, Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(case=operation.as_strategy(generation_mode=mode))
    def check(case: Any) -> None:
        case.call_and_validate(session=session, excluded_checks=excluded_checks(case))

    with requests.Session() as session:
        try:
            check()
        except Unsatisfiable:
            assert mode is GenerationMode.NEGATIVE, "nothing can be generated"
