"""Spans of OpenTelemetry: one for each call of a client with all its tries, one for each run of a worker's handler.

The package does not depend on OpenTelemetry and never loads its API by itself: a program that has not done so has
nobody who would take a span. Calls that wait for something to happen (long polls, claims, streams) have no spans. Names
and attributes are those of its semantic conventions.
"""

import sys
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from importlib import import_module
from typing import Any, Final, TypeVar
from urllib.parse import unquote

from msgspec.structs import replace

import topics
from topics.client.client_config import OWN_HEADERS
from topics.client.errors import ApiError
from topics.client.hooks import Retrying
from topics.client.protocol.http_parser import TOKEN, Endpoint
from topics.client.protocol.leases import Retry
from topics.client.protocol.operations import Operation
from topics.client.results import Job

T = TypeVar("T")

API: Final = "opentelemetry.trace"
SYSTEM: Final = {"messaging.system": "topics"}
# A segment of a path → what the next one is, in the template that stands for all such paths.
NAMED: Final = {
    "topics": "{topic}",
    "routers": "{router}",
    "cursors": "{cursor}",
    "records": "{seq}",
    "connections": "{id}",
}

_tracers: dict[Any, Any] = {}  # by the module of the API


def _tracer() -> Any:
    """The tracer of this package, or None if nobody takes spans."""
    trace = sys.modules.get(API)
    if trace is None or not hasattr(trace, "get_tracer"):  # it is being imported
        return None
    if isinstance(trace.get_tracer_provider(), trace.ProxyTracerProvider):  # there is the API, but nothing behind it
        return None
    tracer = _tracers.get(trace)
    if tracer is None:
        tracer = _tracers[trace] = trace.get_tracer("topics.client", topics.__version__)
    return tracer


def calling(operation: Operation[T], endpoint: Endpoint) -> AbstractContextManager[Operation[T]]:
    """A span around a call; what it gives is the operation to carry out, which tells the server of the span."""
    tracer = _tracer()
    return nullcontext(operation) if tracer is None or operation.wait_ms else _calling(tracer, operation, endpoint)


@contextmanager
def _calling(tracer: Any, operation: Operation[T], endpoint: Endpoint) -> Iterator[Operation[T]]:
    request = operation.request
    template, topic = template_of(request.path)
    about: dict[str, Any] = {"http.request.method": request.method, "url.template": template, **SYSTEM}
    if endpoint.socket_path:
        about |= {"server.address": endpoint.socket_path}
    else:
        about |= {"server.address": endpoint.host, "server.port": endpoint.port}
    if topic:
        about["messaging.destination.name"] = topic
    with _span(tracer, f"{request.method} {template}", "CLIENT", about):
        yield replace(operation, request=replace(request, headers=(*request.headers, *_headers())))


def processing(topic: str, jobs: Sequence[Job]) -> AbstractContextManager[object]:
    """A span around a run of a handler. It is linked to those that the metas of its jobs name as `traceparent`."""
    tracer = _tracer()
    return nullcontext() if tracer is None else _processing(tracer, topic, jobs)


def _processing(tracer: Any, topic: str, jobs: Sequence[Job]) -> AbstractContextManager[object]:
    about: dict[str, Any] = {
        "messaging.operation.type": "process",
        "messaging.operation.name": "process",
        "messaging.destination.name": topic,
        "topics.deliveries": max(job.deliveries for job in jobs),
        **SYSTEM,
    }
    if len(jobs) == 1:
        about["messaging.message.id"] = str(jobs[0].seq)
    else:
        about["messaging.batch.message_count"] = len(jobs)
    return _span(tracer, f"process {topic}", "CONSUMER", about, list(_links(jobs)))


@contextmanager
def _span(tracer: Any, name: str, kind: str, about: dict[str, Any], links: Sequence[Any] = ()) -> Iterator[Any]:
    trace = sys.modules[API]
    kinds: Any = trace.SpanKind
    with tracer.start_as_current_span(
        name, kind=kinds[kind], attributes=about, links=links, record_exception=False, set_status_on_exception=False
    ) as span:
        try:
            yield span
        except Retry:
            span.add_event("retry")
            raise
        except Exception as error:
            span.record_exception(error)
            if isinstance(error, ApiError):
                span.set_attribute("error.type", error.code)
                span.set_attribute("http.response.status_code", error.status)
            else:
                span.set_attribute("error.type", type(error).__qualname__)
            span.set_status(trace.StatusCode.ERROR, str(error))
            raise


def retried(event: Retrying) -> None:
    """Note in the span that is open that a call is tried again."""
    if _tracer() is None:
        return
    span = sys.modules[API].get_current_span()
    span.set_attribute("http.request.resend_count", event.tries)
    span.add_event("retry", {"error.message": str(event.failure), "topics.wait_s": event.wait_s})


def _headers() -> Iterator[tuple[str, str]]:
    """The headers that tell the server which span a request belongs to, as the program's propagator says."""
    carrier: dict[str, Any] = {}
    import_module("opentelemetry.propagate").inject(carrier)
    for name, value in carrier.items():
        text = str(value)
        if TOKEN.fullmatch(name) and name.lower() not in OWN_HEADERS and text.isascii() and text.isprintable():
            yield name, text


def _links(jobs: Sequence[Job]) -> Iterator[Any]:
    trace: Any = sys.modules[API]
    for job in jobs:
        try:
            meta = job.meta_value
        except ValueError:
            continue
        if isinstance(meta, dict) and isinstance(meta.get("traceparent"), str):
            carrier = {key: value for key, value in meta.items() if isinstance(value, str)}
            found = import_module("opentelemetry.propagate").extract(carrier)
            context = trace.get_current_span(found).get_span_context()
            if context.is_valid:
                yield trace.Link(context)


def template_of(path: str) -> tuple[str, str]:
    """A path without its query and the names in it, for all that are alike; and the topic."""
    parts = path.partition("?")[0].split("/")
    topic = ""
    for n in range(3, len(parts)):
        if (before := parts[n - 1]) in NAMED:
            topic = unquote(parts[n]) if before == "topics" else topic
            parts[n] = NAMED[before]
    return "/".join(parts), topic
