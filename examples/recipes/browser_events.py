"""A web application that shows browsers what happens in a topic, by server-sent events from `watch`.

    uvicorn examples.recipes.browser_events:app        then open http://127.0.0.1:8000/?topic=orders

For an application that has users of its own, and does not show browsers the server itself. A browser that comes back
says by Last-Event-ID where it was, and gets everything since; what was lost meanwhile is told. With FastAPI, `events`
is the same: `app = FastAPI(lifespan=lifespan)`, and `app.add_route("/events/{topic}", events)`.

Needs starlette (or fastapi) and uvicorn.
"""

import asyncio
import json
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, TypeVar

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import HTMLResponse, JSONResponse, Response, StreamingResponse
from starlette.routing import Route

from topics import AsyncClient, Lost
from topics.client import Records, TopicGone
from topics.errors import TopicNotFound

HEARTBEAT_S = 15.0
PAGE = """<!doctype html><title>topics</title><ul id=list></ul><script>
const events = new EventSource("/events/" + (new URLSearchParams(location.search).get("topic") ?? "orders"));
const show = (text) => list.prepend(Object.assign(document.createElement("li"), { textContent: text }));
events.addEventListener("records", (e) => JSON.parse(e.data).forEach((value) => show(JSON.stringify(value))));
events.addEventListener("lost", (e) => show(`missed ${JSON.parse(e.data).join(" to ")}`));
events.addEventListener("gone", () => events.close());
</script>"""


def frame(event: str, data: Any, place: str = "") -> str:
    """One server-sent event. JSON has no line breaks, so it is one line of data."""
    return f"event: {event}\ndata: {json.dumps(data)}\n" + (f"id: {place}\n" if place else "") + "\n"


T = TypeVar("T")


async def or_silence(events: AsyncIterator[T], seconds: float) -> AsyncIterator[T | None]:
    """The events, and None after each `seconds` without one."""
    coming: asyncio.Future[T] | None = None
    try:
        while True:
            coming = coming or asyncio.ensure_future(anext(events))
            done, _ = await asyncio.wait((coming,), timeout=seconds)
            if not done:
                yield None
                continue
            try:
                event, coming = coming.result(), None
            except StopAsyncIteration:
                return
            yield event
    finally:
        if coming is not None:
            coming.cancel()


async def frames(client: AsyncClient, topic: str, seq: int | None, epoch: int | None) -> AsyncIterator[str]:
    """What happens in a topic above `seq`, or from now on. That a browser is gone shows when something is sent."""
    async with client.watch({topic: seq}, epochs={} if epoch is None else {topic: epoch}) as watch:
        yield ": connected\n\n"
        async for event in or_silence(watch, HEARTBEAT_S):
            place = f"{watch.positions[topic]}.{watch.epochs.get(topic, '')}"
            if event is None:
                yield ": still here\n\n"
            elif isinstance(event, Records):
                yield frame("records", [record.value for record in event.records], place)
            elif isinstance(event, Lost):
                yield frame("lost", [event.gap_from, event.gap_to, event.reason], place)
            elif isinstance(event, TopicGone):
                yield frame("gone", event.reason)


async def events(request: Request) -> Response:
    """GET /events/{topic}: from now on, from `?from_seq=`, or from where the browser was."""
    client: AsyncClient = request.app.state.topics
    topic = request.path_params["topic"]
    seq, _, epoch = (request.headers.get("last-event-id") or request.query_params.get("from_seq", "")).partition(".")
    if not re.fullmatch(r"[0-9]{1,18}", seq) or not re.fullmatch(r"[0-9]{0,18}", epoch):
        seq, epoch = "", ""  # whatever a browser says: then from now on
    try:
        await client.state(topic)
    except TopicNotFound as error:
        return JSONResponse({"error": error.message}, 404)
    stream = frames(client, topic, int(seq) if seq else None, int(epoch) if epoch else None)
    headers = {"cache-control": "no-cache", "x-accel-buffering": "no"}  # proxies must not hold events back
    return StreamingResponse(stream, media_type="text/event-stream", headers=headers)


async def page(request: Request) -> Response:
    return HTMLResponse(PAGE)


@asynccontextmanager
async def lifespan(app: Starlette) -> AsyncIterator[None]:
    """One client for all requests; TOPICS_URL and TOPICS_TOKEN say where. Closing it ends the streams."""
    async with AsyncClient() as app.state.topics:
        yield


app = Starlette(routes=[Route("/", page), Route("/events/{topic}", events)], lifespan=lifespan)
