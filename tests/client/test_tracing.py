"""Spans, taken by the real OpenTelemetry: what calls and handlers leave in a trace. Skipped where it is missing."""

import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest

from tests.client.conftest import Connect, Script, Skipping, answer
from topics.client import AsyncClient, Client, Retry
from topics.client.tracing import template_of
from topics.errors import TopicNotFound
from topics.testing.server import ServerThread

HEALTH = answer(b'{"status":"ok","version":"9","uptime_ms":1}')
BUSY = answer(b'{"error":{"code":"throttled","message":"later"}}', "429 Too Many Requests")


@pytest.fixture(scope="module")
def exporter() -> Any:
    """Takes all spans of this process from now on: OpenTelemetry has one provider, which cannot be taken back."""
    pytest.importorskip("opentelemetry.sdk", reason="OpenTelemetry is not installed")
    from opentelemetry import trace
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import SimpleSpanProcessor
    from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

    provider, exporter = TracerProvider(), InMemorySpanExporter()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    trace.set_tracer_provider(provider)
    return exporter


@pytest.fixture
def spans(exporter: Any) -> Iterator[Any]:
    exporter.clear()
    yield exporter.get_finished_spans
    exporter.clear()


def test_a_call_is_a_span(spans: Any, client: Any, topic: str, server: ServerThread) -> None:
    client.append(topic, [{"data": 1}])
    (span,) = spans()
    assert (span.name, span.kind.name, span.status.is_ok) == ("POST /v0/topics/{topic}", "CLIENT", True)
    assert span.instrumentation_scope.name == "topics.client"
    assert dict(span.attributes) == {
        "http.request.method": "POST",
        "url.template": "/v0/topics/{topic}",
        "server.address": server.address[0],
        "server.port": server.address[1],
        "messaging.system": "topics",
        "messaging.destination.name": topic,
    }


def test_an_error_is_in_the_span(spans: Any, client: Any, topic: str) -> None:
    with pytest.raises(TopicNotFound):
        client.state(topic)
    (span,) = spans()
    assert not span.status.is_ok and topic in span.status.description
    assert span.attributes["error.type"] == "topic_not_found" and span.attributes["http.response.status_code"] == 404
    assert [event.name for event in span.events] == ["exception"]


def test_tries_are_in_one_span_and_the_server_learns_of_it(spans: Any, script: Script, connect: Connect) -> None:
    server = script([BUSY, HEALTH])
    connect(server.address, clock=Skipping()).health()
    (span,) = spans()
    assert span.status.is_ok and span.attributes["http.request.resend_count"] == 1
    assert [event.name for event in span.events] == ["retry"]
    assert "429 throttled" in span.events[0].attributes["error.message"]
    traceparent = f"traceparent: 00-{span.context.trace_id:032x}-{span.context.span_id:016x}-".encode()
    assert all(traceparent in request for request in server.requests)


def test_a_connection_that_cannot_be_made_is_in_the_span(spans: Any, connect: Connect, script: Script) -> None:
    server = script()
    server.end()
    client = connect(server.address, retries=0)
    with pytest.raises(Exception, match="cannot connect"):
        client.health()
    (span,) = spans()
    assert span.attributes["error.type"] == "ConnectionFailed"


def test_a_long_poll_is_no_span(spans: Any, client: Any, topic: str) -> None:
    client.append(topic, [{"data": 1}])
    assert client.diff(topic, wait_ms=1).records
    with client.consume(topic) as consumer:
        assert next(consumer).value == 1
    assert [span.name for span in spans()] == ["POST /v0/topics/{topic}"]


async def test_a_program_s_span_is_the_parent(spans: Any, server: ServerThread, topic: str) -> None:
    from opentelemetry import trace

    url = "http://{}:{}".format(*server.address)
    with trace.get_tracer("program").start_as_current_span("checkout"):
        with Client(url, "") as client:
            client.append(topic, [{"data": 1}])
        async with AsyncClient(url, "") as aio:
            await aio.append(topic, [{"data": 1}])
    *calls, checkout = spans()
    assert [call.parent.span_id for call in calls] == [checkout.context.span_id] * 2


@pytest.mark.parametrize("batch", [None, 5])
def test_a_run_of_a_handler_is_a_span(spans: Any, client: Any, topic: str, batch: int | None) -> None:
    from opentelemetry import trace

    client.put_topic(topic, type="queue")
    sender = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
    client.append(topic, [{"data": "fail", "meta": {"traceparent": sender}}, {"data": "again"}, {"data": "work"}])
    inner: list[Any] = []
    seen: list[Any] = []

    def handle(given: Any) -> None:
        jobs = given if batch else [given]
        inner.append(trace.get_current_span().get_span_context().span_id)
        seen.extend(job.value for job in jobs)
        if len(seen) >= 3:
            worker.stop()
        if jobs[0].value == "fail":
            raise ValueError("bad")
        if jobs[0].value == "again":
            raise Retry(delay=1000)

    async def handling(given: Any) -> None:
        handle(given)

    is_async = hasattr(client, "_loop")
    worker = client.worker(topic, "w", handling if is_async else handle, batch=batch, delay_ms=1_000_000)
    worker.run()
    runs = [span for span in spans() if span.name == f"process {topic}"]
    assert {span.context.span_id for span in runs} == set(inner)
    assert all(span.kind.name == "CONSUMER" for span in runs)
    assert [f"{link.context.trace_id:032x}" for link in runs[0].links] == ["0af7651916cd43dd8448eb211c80319c"]
    assert runs[0].attributes["error.type"] == "ValueError" and not runs[0].status.is_ok
    if batch:
        assert runs[0].attributes["messaging.batch.message_count"] == 3
    else:
        assert [span.attributes["messaging.message.id"] for span in runs] == ["1", "2", "3"]
        assert [span.status.is_ok for span in runs] == [False, True, True]


def test_a_producer_s_batches_are_spans(spans: Any, client: Any, topic: str) -> None:
    with client.producer(topic) as producer:
        for n in range(10):
            producer.send(n)
    assert {span.name for span in spans()} == {"POST /v0/topics/{topic}"}


@pytest.mark.parametrize(
    ("path", "template", "topic"),
    [
        ("/v0/topics/orders?touch=false", "/v0/topics/{topic}", "orders"),
        ("/v0/topics/orders/diff", "/v0/topics/{topic}/diff", "orders"),
        ("/v0/topics/topics/records/7", "/v0/topics/{topic}/records/{seq}", "topics"),
        ("/v0/topics/cursors/cursors/topics", "/v0/topics/{topic}/cursors/{cursor}", "cursors"),
        ("/v0/topics/a%20b/ack", "/v0/topics/{topic}/ack", "a b"),
        ("/v0/routers/topics", "/v0/routers/{router}", ""),
        ("/v0/topics?prefix=a", "/v0/topics", ""),
        ("/v0/health", "/v0/health", ""),
    ],
)
def test_paths_that_are_alike_have_one_template(path: str, template: str, topic: str) -> None:
    assert template_of(path) == (template, topic)


def test_a_program_without_opentelemetry_does_not_load_it(server: ServerThread) -> None:
    program = (
        "import sys; from topics import Client; "
        f"Client('http://{server.address[0]}:{server.address[1]}').health(); "
        "sys.exit(any(name.startswith('opentelemetry') for name in sys.modules))"
    )
    subprocess.run([sys.executable, "-c", program], check=True)
