"""What the document says to its readers and to generators of clients, beyond types: tags, words, examples, security.

`guide` completes a document that was made of the route table; a route that is new is completed like the others. Must
not know: what a route does.
"""

from http import HTTPStatus
from typing import TYPE_CHECKING, Any, Final

from topics.server.openapi.examples import Examples
from topics.server.openapi.schemas import Schema
from topics.server.routes import Route

if TYPE_CHECKING:
    from topics.server.app import App

ABOUT: Final = """A persistent event engine: named append-only logs and queues over plain JSON.

Records are appended to a topic, get a seq each, and are read above a cursor. What is lost, by a cap, a TTL or a \
crash, is told as a range of seqs, never left out in silence. Errors are `{"error":{"code","message","detail"}}`."""
TAGS: Final = {
    "Topics": "Create, configure, look at and delete topics.",
    "Records": "Append, read, delete and export records.",
    "Streams": "Follow topics live: server-sent events with or without a session, and WebSocket.",
    "Queues": "Lease jobs, complete them, give them back; dead letters.",
    "Routers": "Copy the records of one topic into another.",
    "Keys": "What a key allows, and tickets in its place.",
    "Server": "Health, readiness, settings, findings, metrics, who is connected, and this document.",
}
# The tag of a path, by the first word found among its segments; else that of its first noun.
WORDS: Final = {
    **dict.fromkeys(
        ("claim", "ack", "nack", "extend", "work", "redrive", "move", "leases", "pause", "resume"), "Queues"
    ),
    **dict.fromkeys(("events", "watch", "ws"), "Streams"),
    **dict.fromkeys(("diff", "export", "live", "delete", "records"), "Records"),
    **dict.fromkeys(("ticket", "me"), "Keys"),
    "routers": "Routers",
    "topics": "Topics",
}
FRAMES: Final = """retry: 2000

id: eyJvcmRlcnMiOjN9
event: record
data: {"topic":"orders","records":[{"$seq":3,"$ts":1794790514416,"data":{"sku":"A"}}],"from_seq":2,"to_seq":3,\
"head_seq":3}

id: eyJvcmRlcnMiOjN9
event: caught-up
data: {"topic":"orders","head_seq":3}

"""
SCHEMES: Final[Schema] = {
    "key": {"type": "http", "scheme": "bearer", "description": "A key of the server: `Authorization: Bearer <key>`."},
    "token": {"type": "apiKey", "in": "query", "name": "token", "description": "A key, on streams only."},
    "ticket": {
        "type": "apiKey",
        "in": "query",
        "name": "ticket",
        "description": "Of POST /v0/ticket: good for one stream within 30 s.",
    },
}
PATH_EXAMPLES: Final[dict[str, str | int]] = {
    "topic": "orders",
    "router": "orders->audit",
    "wid": "wid_QYIv1eRgINQhJ-JwT9JHTg",
    "id": "conn_5cq8Z1pVbA0xYtRk",
    "file": "app.js",
    "seq": 3,
}


def guide(document: Schema, routes: dict[tuple[str, str], Route], app: "App") -> None:
    """Complete a document. `routes`: by path as it is in the document, and method."""
    document["info"] |= {
        "description": ABOUT,
        "license": {"name": "Apache-2.0", "identifier": "Apache-2.0"},
        "contact": {"name": "The operator of this server"},
    }
    document["servers"] = [{"url": "/", "description": "This server"}]
    document["tags"] = [{"name": name, "description": text} for name, text in TAGS.items()]
    document["components"]["securitySchemes"] = SCHEMES
    document["security"] = _security(("key",), app)
    examples = Examples(document["components"]["schemas"])
    for path, item in document["paths"].items():
        for method, operation in item.items():
            route = routes[path, method.upper()]
            operation["tags"] = [tag_of(route)]
            operation["description"] = _description(route)
            _secure(operation, route, app)
            _exemplify(operation, examples)


def tag_of(route: Route) -> str:
    """What a route is about: a queue, a stream, a record, before the topic that it belongs to."""
    if (route.method, route.path) == ("POST", "/v0/topics/:topic"):
        return "Records"
    return next((WORDS[word] for word in reversed(route.path.split("/")) if word in WORDS), "Server")


def _description(route: Route) -> str:
    said = f"{route.summary}."
    if route.scopes:
        said += f" Needs the scope {' and '.join(sorted(route.scopes))}."
    return said


def _security(schemes: tuple[str, ...], app: "App") -> list[Schema]:
    """The credentials a route takes; where auth is off, none is needed."""
    asked: list[Schema] = [{name: []} for name in schemes]
    return asked if app.keyring else [{}, *asked]


def _secure(operation: Schema, route: Route, app: "App") -> None:
    if route.is_page or (route.is_probe and not app.settings.probe_auth):
        operation["security"] = []
    elif route.takes_token or route.takes_ticket:
        names = ("key", *(["token"] if route.takes_token else []), *(["ticket"] if route.takes_ticket else []))
        operation["security"] = _security(names, app)


def _exemplify(operation: Schema, examples: Examples) -> None:
    for parameter in operation["parameters"]:
        if parameter["in"] == "path":
            parameter["example"] = PATH_EXAMPLES.get(parameter["name"], parameter["name"])
            parameter.setdefault("description", f"The {parameter['name']}.")
    answers = [answer for answer in operation["responses"].values() if "content" in answer]
    for status, answer in operation["responses"].items():
        if int(status) >= HTTPStatus.BAD_REQUEST:
            code = answer["description"].partition(",")[0]
            refusal = {"error": {"code": code, "message": "what is wrong, with the value at fault"}}
            answer["content"]["application/json"]["example"] = refusal
    for content in (operation.get("requestBody", {}).get("content", {}), *(answer["content"] for answer in answers)):
        for media, body in content.items():
            if media == "application/json" and "example" not in body:
                body["example"] = examples.of(body["schema"])
    for answer in answers:
        if "text/event-stream" in answer["content"]:
            events: dict[str, Any] = answer["content"]["text/event-stream"]
            events |= {"schema": {"type": "string"}, "example": FRAMES}
