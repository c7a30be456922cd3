"""The OpenAPI document: valid, complete, and true of the server that serves it."""

import asyncio
import math
from collections.abc import Iterator
from typing import Any

import pytest
import requests
import schemathesis
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis.errors import Unsatisfiable
from openapi_spec_validator import OpenAPIV31SpecValidator
from schemathesis import GenerationMode
from schemathesis.specs.openapi.checks import negative_data_rejection, positive_data_acceptance

from tests.api.clients.transcript import Client
from tests.api.conftest import Start
from topics import __version__
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
    api = Client(start(api_keys="root,w:write").address)
    assert api.get("/v0/openapi.json").status in (200, 401)
    assert api.with_key("root").get("/v0/openapi.json").status == 200


# --- schemathesis


class HastyClock(ManualClock):
    """Lets the time of every wait pass at once, so that no generated `wait_ms` takes any."""

    async def wait(self, future: "asyncio.Future[Any]", timeout_ms: float) -> None:
        if not future.done():
            self.advance(math.ceil(timeout_ms))


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
    is_own_dead_letter = body.get("dead_letter", "") == (case.path_parameters or {}).get("topic")
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
