"""GET /v0/openapi.json: the API as an OpenAPI 3.1 document.

Made of the route table, the structs that requests decode to and answers are made of, the settings in effect, and what
only people know: the rows of `operation_table` and the `meanings` of fields.
"""

from typing import TYPE_CHECKING, Any, Final
from weakref import WeakKeyDictionary

from topics import __version__, errors
from topics.core.topic.config import ConfigIn
from topics.core.topic.records import RecordIn, WriteIn
from topics.model import ROUTER_NAME, TOPIC_NAME
from topics.server.call import Call
from topics.server.handlers.export import BACKUP_TYPE
from topics.server.handlers.metrics import Metrics
from topics.server.openapi.guide import guide
from topics.server.openapi.meanings import SEQ, finish, meanings
from topics.server.openapi.operation_table import EVENTS, FILE, OPERATIONS, PAGE, SOCKET, Operation
from topics.server.openapi.schemas import Schema, Schemas
from topics.server.routes import Route
from topics.server.transport.encoding import ARROW_TYPE, JSON_TYPE, NDJSON_TYPE
from topics.server.wire import replies
from topics.server.wire.advice import Warned
from topics.server.wire.requests import (
    AckIn,
    BackupIn,
    ClaimIn,
    CursorIn,
    DeleteIn,
    DiffIn,
    ExtendIn,
    NackIn,
    NothingIn,
    PutIn,
    RedriveIn,
    RouterIn,
    WatchIn,
    WatchTopicIn,
)
from topics.server.wire.seen import surveys

if TYPE_CHECKING:
    from topics.server.app import App

NAMES: Final[dict[Any, str]] = {
    ConfigIn: "Config",
    PutIn: "TopicRequest",
    Warned: "ConfigWarning",
    WriteIn: "Write",
    RecordIn: "RecordIn",
    DiffIn: "DiffRequest",
    DeleteIn: "DeleteRequest",
    CursorIn: "CursorRequest",
    ClaimIn: "ClaimRequest",
    AckIn: "AckRequest",
    NackIn: "NackRequest",
    ExtendIn: "ExtendRequest",
    RedriveIn: "RedriveRequest",
    surveys.MoveIn: "MoveRequest",
    surveys.MoveIn: "MoveRequest",
    BackupIn: "BackupRequest",
    WatchIn: "WatchRequest",
    WatchTopicIn: "WatchStart",
    RouterIn: "RouterRequest",
    NothingIn: "NoFields",
}
ALWAYS: Final = (errors.InvalidRequest, errors.MethodNotAllowed, errors.NotFound, errors.StorageError)
SERVED: Final = (errors.NotReady, errors.ShuttingDown, errors.Throttled)
KEYED: Final = (errors.Unauthorized, errors.Forbidden)
BODIED: Final = (errors.PayloadTooLarge, errors.UnsupportedMedia)
STREAMS: Final = {
    ARROW_TYPE: "An Arrow IPC stream",
    EVENTS: "Server-sent events",
    PAGE: "A page",
    BACKUP_TYPE: "Parts of a backup",
    FILE: "A file",
}
# Names in paths: as the route table has them, as OpenAPI does.
PLACES: Final = {f":{name}": f"{{{name}}}" for name in ("topic", "wid", "router", "cursor", "seq", "id", "file")}


def show_openapi(call: Call) -> None:
    call.answer(200, document(call.app))


_documents: "WeakKeyDictionary[App, Schema]" = WeakKeyDictionary()


def document(app: "App") -> Schema:
    """The document for this server: its settings are the limits. It is made once."""
    whole = _documents.get(app)
    if whole is None:
        whole = _documents[app] = _document(app)
    return whole


def _document(app: "App") -> Schema:
    schemas = Schemas(NAMES, meanings(app.settings))
    paths: dict[str, Schema] = {}
    routes: dict[tuple[str, str], Route] = {}
    for route in app.routes.rows:
        operation = OPERATIONS.get((route.method, route.path))
        if operation is not None:
            path = "/".join(PLACES.get(part, part) for part in route.path.split("/"))
            paths.setdefault(path, {})[route.method.lower()] = _operation(route, operation, schemas)
            routes[path, route.method] = route
    finish(schemas, app.settings)
    whole: Schema = {
        "openapi": "3.1.0",
        "info": {"title": "topics", "version": __version__},
        "paths": paths,
        "components": {"schemas": schemas.components},
    }
    guide(whole, routes, app)
    return whole


def _operation(route: Route, operation: Operation, schemas: Schemas) -> Schema:
    said: Schema = {"operationId": _name(route), "summary": route.summary, "parameters": []}
    if ":topic" in route.path:
        kind: Schema = {"type": "string", "minLength": 1}
        if operation.checks_name:
            kind["pattern"] = f"^{TOPIC_NAME.pattern}$"
        said["parameters"].append({"name": "topic", "in": "path", "required": True, "schema": kind})
    if ":router" in route.path:
        named: Schema = {"type": "string", "minLength": 1}
        if operation.checks_name:
            named["pattern"] = f"^{ROUTER_NAME.pattern}$"
        said["parameters"].append({"name": "router", "in": "path", "required": True, "schema": named})
    for name in ("wid", "id", "file"):
        if f":{name}" in route.path.split("/"):
            text = {"type": "string", "minLength": 1}
            said["parameters"].append({"name": name, "in": "path", "required": True, "schema": text})
    if ":cursor" in route.path:
        cursor: Schema = {"type": "string", "minLength": 1}
        if route.method == "PUT":
            cursor["pattern"] = f"^{TOPIC_NAME.pattern}$"
        said["parameters"].append({"name": "cursor", "in": "path", "required": True, "schema": cursor})
    if ":seq" in route.path:
        said["parameters"].append({"name": "seq", "in": "path", "required": True, "schema": {"type": "integer", **SEQ}})
    said["parameters"] += [_parameter(name, "query", kind) for name, kind in operation.query]
    said["parameters"] += [_parameter(name, "header", kind) for name, kind in operation.headers]
    if operation.body is not None:
        said["requestBody"] = {"required": not route.may_be_empty, "content": _contents(route, operation, schemas)}
    said["responses"] = {
        **{str(status): _answer(kind, schemas) for status, kind in operation.answers.items()},
        **_errors(route, operation, schemas),
    }
    return said


def _name(route: Route) -> str:
    """The name that client generators use: the handler's, or the path's if the route is an alias."""
    if not route.path.startswith("/v0/") and ":" not in route.path:
        return route.path.rpartition("/")[2]
    return "not_built" if route.handle is None else route.handle.__name__


def _parameter(name: str, place: str, schema: Schema) -> Schema:
    kind = {key: value for key, value in schema.items() if key != "description"}
    said = {"name": name, "in": place, "required": False, "schema": kind}
    return said | {"description": schema["description"]} if "description" in schema else said


def _contents(route: Route, operation: Operation, schemas: Schemas) -> Schema:
    contents: Schema = {JSON_TYPE: {"schema": schemas.of(operation.body)}}
    if NDJSON_TYPE in route.media:
        contents[NDJSON_TYPE] = {"schema": {"type": "string", "description": "one RecordIn per line"}}
        contents[ARROW_TYPE] = {
            "schema": {"type": "string", "format": "binary", "description": "columns data, tag, node, meta: strings"}
        }
    return contents


def _answer(kind: Any, schemas: Schemas) -> Schema:
    if kind is SOCKET:
        return {"description": "A WebSocket from here on: JSON commands and frames as text messages"}
    if isinstance(kind, str):
        return {"description": STREAMS[kind], "content": {kind: {}}}
    content: Schema = {JSON_TYPE: {"schema": {"type": "object"} if kind is None else schemas.of(kind)}}
    if kind is Metrics:
        content["text/plain"] = {"schema": {"type": "string"}}
    return {"description": "Done", "content": content}


def _errors(route: Route, operation: Operation, schemas: Schemas) -> dict[str, Schema]:
    kinds = [*ALWAYS, *operation.errors, *(KEYED if not route.is_probe else (errors.Unauthorized,))]
    kinds += BODIED if route.media else ()
    kinds += SERVED if not route.is_always_on or "ready" in route.path else ()
    by_status: dict[int, list[str]] = {}
    for kind in kinds:
        by_status.setdefault(kind.status, []).append(kind.code)
    schema = schemas.of(replies.Error)
    return {
        str(status): {"description": ", ".join(dict.fromkeys(codes)), "content": {JSON_TYPE: {"schema": schema}}}
        for status, codes in sorted(by_status.items())
    }
