"""GET /v0/openapi.json: the API as an OpenAPI 3.1 document.

Made of the route table, the structs that requests decode to and answers are made of, and the settings in effect; only
meanings are written here. Every route that is built has a row in OPERATIONS.
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final
from weakref import WeakKeyDictionary

from topics import __version__, errors
from topics.core.topic.config import ConfigIn
from topics.core.topic.records import KEY_CHARACTERS_MAX, META_KEYS_MAX, RecordIn, WriteIn
from topics.errors import TopicsError
from topics.model import ROUTER_NAME, SEQ_MAX, TOPIC_NAME
from topics.server.call import Call
from topics.server.handlers.export import BACKUP_TYPE
from topics.server.handlers.metrics import Metrics
from topics.server.openapi.guide import guide
from topics.server.openapi.schemas import Schema, Schemas
from topics.server.routes import Route
from topics.server.transport.encoding import ARROW_TYPE, JSON_TYPE, NDJSON_TYPE
from topics.server.wire import replies, seen, sights, surveys
from topics.server.wire.advice import Warned
from topics.server.wire.requests import (
    HEARTBEAT_MS_MAX,
    LOSSES_DEFAULT,
    LOSSES_MAX,
    PAGE_SIZE_MAX,
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
from topics.settings import Settings

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
    BackupIn: "BackupRequest",
    WatchIn: "WatchRequest",
    WatchTopicIn: "WatchStart",
    RouterIn: "RouterRequest",
    NothingIn: "NoFields",
}
SEQ: Final[Schema] = {"minimum": 0, "maximum": SEQ_MAX}
STRICT_FLAG: Final[Schema] = {"type": "string", "enum": ["true", "1", "false", "0"]}
FLAG: Final[Schema] = {"type": "string", "description": "true or 1, false or 0; anything else means the default"}
MATCH: Final[Schema] = {
    "description": "a tag, or a tuple: all tags equal to x, or all that begin with p",
    "anyOf": [
        {"type": "string"},
        {
            "type": "array",
            "prefixItems": [{"const": "tag"}, {"const": "Eq"}, {"type": "string"}],
            "items": {"type": "string"},
            "minItems": 3,
            "maxItems": 3,
        },
        {
            "type": "array",
            "prefixItems": [{"const": "tag"}, {"const": "Glob"}, {"type": "string", "pattern": r"\*$"}],
            "items": {"type": "string"},
            "minItems": 3,
            "maxItems": 3,
        },
        {"type": "null"},
    ],
}
ALWAYS: Final = (errors.InvalidRequest, errors.MethodNotAllowed, errors.NotFound, errors.StorageError)
SERVED: Final = (errors.NotReady, errors.ShuttingDown, errors.Throttled)
KEYED: Final = (errors.Unauthorized, errors.Forbidden)
BODIED: Final = (errors.PayloadTooLarge, errors.UnsupportedMedia)


@dataclass(frozen=True)
class Operation:
    """What the document says of a route beyond its row."""

    answers: dict[int, Any]  # status → struct, media type or None for any JSON
    body: Any = None
    query: tuple[tuple[str, Schema], ...] = ()
    headers: tuple[tuple[str, Schema], ...] = ()
    errors: tuple[type[TopicsError], ...] = ()
    checks_name: bool = False  # a name that no topic can have is an error


TOPIC: Final = "/v0/topics/:topic"
ROUTER: Final = "/v0/routers/:router"
CURSOR: Final = f"{TOPIC}/cursors/:cursor"
EVENTS: Final = "text/event-stream"
SOCKET: Final = "websocket"
PAGE: Final = "text/html"
FILE: Final = "*/*"
STREAMS: Final = {
    ARROW_TYPE: "An Arrow IPC stream",
    EVENTS: "Server-sent events",
    PAGE: "A page",
    BACKUP_TYPE: "Parts of a backup",
    FILE: "A file",
}
# Names in paths, here and there.
PLACES: Final = {f":{name}": f"{{{name}}}" for name in ("topic", "wid", "router", "cursor", "seq", "id", "file")}
NOT_FOUND: Final = (errors.TopicNotFound,)
QUEUE: Final = (errors.TopicNotFound, errors.NotAQueue)
LEASES: Final = (*QUEUE, errors.BatchTooLarge)
DIFF_QUERY: Final = (
    *((name, {"type": "integer", **SEQ}) for name in ("from_seq", "epoch", "from_ts")),
    *((name, {"type": "integer", "minimum": 0}) for name in ("limit", "wait_ms", "max_batch_bytes")),
    *((name, {"type": "string"}) for name in ("node", "filter")),
    *((name, FLAG) for name in ("include_tags", "include_meta")),
)
PAGE_QUERY: Final = (
    ("prefix", {"type": "string", "description": "only names that begin with this"}),
    ("page_size", {"description": f"1 to {PAGE_SIZE_MAX}, default 100; what cannot be read means the default"}),
    ("cursor", {"type": "string", "format": "cursor", "description": "next_cursor of the page before"}),
    ("touch", FLAG),
    ("epochs", {**FLAG, "description": "whether each entry has its epoch"}),
)
LIST_QUERY: Final = (
    *PAGE_QUERY,
    ("detail", {**FLAG, "description": "show rates, totals, jobs and named cursors, too"}),
    ("contains", {"type": "string", "description": "only names with this in them"}),
    ("type", {"type": "string", "enum": list(sights.TYPES), "description": "only topics of this type"}),
    ("class", {"type": "string", "enum": list(sights.CLASSES), "description": "only topics of this durability"}),
    ("offset", {"type": "integer", "minimum": 0, "description": "so many entries are left out before the page"}),
    (
        "sort",
        {
            "type": "string",
            "enum": list(sights.ORDERS),
            "description": "by name, or the largest first, as they were when the first page was asked for",
        },
    ),
)
HISTORY_QUERY: Final = (
    (
        "history",
        {
            "type": "integer",
            "minimum": 0,
            "description": "how far back, in milliseconds; up to ten minutes in samples of 1 s, else of 10 s",
        },
    ),
)
LOSSES_QUERY: Final = (
    ("limit", {"type": "integer", "minimum": 0, "description": f"1 to {LOSSES_MAX}, default {LOSSES_DEFAULT}"}),
)
TIMES_QUERY: Final = (
    (
        "seqs",
        {
            "type": "string",
            "pattern": rf"^[0-9]{{1,19}}(,[0-9]{{1,19}}){{0,{surveys.SEQS_MAX - 1}}}$",
            "description": f"whole numbers with commas between, at most {surveys.SEQS_MAX}",
        },
    ),
)
ROUTERS_QUERY: Final = (
    *PAGE_QUERY[:3],
    *((name, {"type": "string", "description": f"only routers with this {name}"}) for name in ("source", "dest")),
    ("detail", {**FLAG, "description": "show filters, lag and what blocks a router, too"}),
)
RESUME_ID: Final[Schema] = {"type": "string", "description": "the last id received; one that cannot be read is ignored"}
ERROR_QUERY: Final = (
    (
        "error_event",
        {"type": "string", "enum": ["error", "stream-error"], "description": "what the stream calls its frame error"},
    ),
)
EVENTS_QUERY: Final = (
    ("from_seq", {"type": "integer", **SEQ, "description": "exclusive cursor; 0 = from the beginning"}),
    ("tail", {**STRICT_FLAG, "description": "start at the current head instead"}),
    ("limit", {"type": "integer", "minimum": 0, "description": "most records in a frame; 0 = 256"}),
    ("node", {"type": "array", "items": {"type": "string"}, "description": "records of these nodes are left out"}),
    ("include_tags", {**STRICT_FLAG, "description": "show $tag"}),
    ("include_data", {**STRICT_FLAG, "description": "show data and meta"}),
    ("include_meta", {**STRICT_FLAG, "description": "show meta"}),
    ("filter", {"type": "string", "minLength": 1, "description": "a tag, or a predicate as JSON"}),
    ("heartbeat_ms", {"type": "integer", "minimum": 0, "description": "silence after which a heartbeat is sent"}),
    (
        "consistency",
        {
            "type": "string",
            "enum": ["eventual", "strong"],
            "description": "push what is readable, or only what is synced",
        },
    ),
    ("cursor", {"type": "string", "description": "an id of an earlier stream; Last-Event-ID has precedence"}),
)
RANGE_QUERY: Final = tuple((name, {"type": "integer", **SEQ}) for name in ("after", "last", "epoch"))
TOO_LARGE: Final = (errors.BatchTooLarge, errors.RecordTooLarge)
WRITE_QUERY: Final = (
    ("return_seqs", FLAG),
    ("node", {"type": "string", "description": "NDJSON and Arrow bodies: origin of records without one of their own"}),
    ("idempotency_key", {"type": "string", "description": "NDJSON and Arrow bodies: dedupe key"}),
    ("create", {**FLAG, "description": "NDJSON and Arrow bodies: may this write create the topic"}),
    ("disable_backpressure", {**FLAG, "description": "NDJSON and Arrow bodies: wait under pressure"}),
)

OPERATIONS: Final = {
    ("PUT", TOPIC): Operation(
        {200: replies.TopicPut, 201: replies.TopicPut},
        PutIn,
        errors=(errors.TopicIncompatible,),
        checks_name=True,
    ),
    ("GET", TOPIC): Operation({200: replies.TopicShown}, query=(("touch", FLAG),), errors=NOT_FOUND),
    ("GET", "/v0/topics"): Operation({200: sights.TopicList}, query=LIST_QUERY),
    ("DELETE", TOPIC): Operation({200: replies.TopicGone}, query=(("if_empty", FLAG),), errors=(errors.TopicNotEmpty,)),
    ("POST", TOPIC): Operation(
        {200: replies.Written, 201: replies.Written},
        WriteIn,
        WRITE_QUERY,
        (
            ("Idempotency-Key", {"type": "string", "description": "dedupe key, if the body has none"}),
            ("Idempotency-Mismatch", {"enum": ["refuse"], "description": "as on_mismatch, for NDJSON and Arrow"}),
        ),
        (*QUEUE, *TOO_LARGE, errors.IdempotencyMismatch, errors.TopicFull),
        checks_name=True,
    ),
    ("POST", f"{TOPIC}/diff"): Operation({200: replies.Diff}, DiffIn, errors=NOT_FOUND),
    ("GET", f"{TOPIC}/diff"): Operation({200: replies.Diff}, query=DIFF_QUERY, errors=NOT_FOUND),
    ("GET", f"{TOPIC}/export"): Operation({200: ARROW_TYPE}, query=RANGE_QUERY, errors=NOT_FOUND),
    ("POST", "/v0/backup"): Operation({200: BACKUP_TYPE}, BackupIn),
    ("POST", f"{TOPIC}/delete"): Operation(
        {200: replies.RecordsDeleted}, DeleteIn, errors=(*NOT_FOUND, errors.EpochMismatch)
    ),
    ("GET", f"{TOPIC}/records/:seq"): Operation({200: seen.RecordShown}, errors=NOT_FOUND),
    ("GET", f"{TOPIC}/live"): Operation({200: replies.LiveRuns}, query=RANGE_QUERY, errors=NOT_FOUND),
    ("GET", f"{TOPIC}/losses"): Operation({200: seen.LossList}, query=LOSSES_QUERY, errors=NOT_FOUND),
    ("GET", f"{TOPIC}/times"): Operation({200: surveys.TimeList}, query=TIMES_QUERY, errors=NOT_FOUND),
    ("GET", "/v0/losses"): Operation({200: surveys.LossFeed}, query=LOSSES_QUERY),
    ("GET", "/v0/tree"): Operation({200: surveys.Tree}, query=(*PAGE_QUERY[:3], *LIST_QUERY[6:9])),
    ("PUT", CURSOR): Operation(
        {200: seen.CursorShown}, CursorIn, errors=(*NOT_FOUND, errors.EpochMismatch, errors.CursorMoved)
    ),
    ("GET", CURSOR): Operation({200: seen.CursorShown}, errors=NOT_FOUND),
    ("GET", f"{TOPIC}/cursors"): Operation({200: seen.CursorList}, query=PAGE_QUERY[1:3], errors=NOT_FOUND),
    ("DELETE", CURSOR): Operation({200: seen.CursorGone}, errors=NOT_FOUND),
    ("POST", f"{TOPIC}/claim"): Operation({200: replies.JobsClaimed}, ClaimIn, errors=QUEUE),
    ("POST", f"{TOPIC}/ack"): Operation({200: replies.JobsAcked}, AckIn, errors=LEASES),
    ("POST", f"{TOPIC}/nack"): Operation({200: replies.JobsNacked}, NackIn, errors=LEASES),
    ("POST", f"{TOPIC}/extend"): Operation({200: replies.LeasesExtended}, ExtendIn, errors=LEASES),
    ("GET", f"{TOPIC}/work"): Operation(
        {200: EVENTS},
        query=(
            ("node", {"type": "string", "description": "the worker; required"}),
            ("max", {"type": "integer", "minimum": 1, "description": "most jobs leased on this connection at a time"}),
            ("lease_ms", {"type": "integer", "minimum": 0}),
            *ERROR_QUERY,
        ),
        errors=(*QUEUE, errors.NotAcceptable),
    ),
    ("POST", f"{TOPIC}/redrive"): Operation(
        {200: replies.LettersRedriven}, RedriveIn, errors=(*QUEUE, errors.NoDeadLetter, errors.TopicFull)
    ),
    ("POST", f"{TOPIC}/move"): Operation({200: surveys.JobsMoved}, surveys.MoveIn, errors=(*LEASES, errors.TopicFull)),
    ("POST", f"{TOPIC}/pause"): Operation({200: replies.QueuePaused}, NothingIn, errors=QUEUE),
    ("POST", f"{TOPIC}/resume"): Operation({200: replies.QueuePaused}, NothingIn, errors=QUEUE),
    ("GET", f"{TOPIC}/leases"): Operation({200: replies.LeaseList}, query=PAGE_QUERY[1:3], errors=QUEUE),
    ("PUT", ROUTER): Operation(
        {200: replies.RouterShown, 201: replies.RouterShown},
        RouterIn,
        errors=(errors.TopicNotFound, errors.TopicIncompatible, errors.RouterCycle),
        checks_name=True,
    ),
    ("GET", ROUTER): Operation({200: replies.RouterShown}, errors=(errors.RouterNotFound,)),
    ("GET", "/v0/routers"): Operation({200: surveys.RouterList}, query=ROUTERS_QUERY),
    ("DELETE", ROUTER): Operation({200: replies.RouterGone}),
    ("POST", "/v0/watch"): Operation({200: replies.Watching}, WatchIn, (("lenient", FLAG),), errors=NOT_FOUND),
    ("GET", "/v0/watch/:wid"): Operation(
        {200: EVENTS},
        query=(("cursor", RESUME_ID), ("epochs", FLAG), *ERROR_QUERY, *EVENTS_QUERY[:-1]),
        headers=(("Last-Event-ID", RESUME_ID),),
        errors=(errors.NotAcceptable, errors.TopicNotFound),
    ),
    ("GET", f"{TOPIC}/events"): Operation(
        {200: EVENTS},
        query=EVENTS_QUERY,
        headers=(("Last-Event-ID", RESUME_ID),),
        errors=(errors.NotAcceptable, errors.TopicNotFound),
    ),
    ("GET", "/v0/events"): Operation(
        {200: EVENTS},
        query=(
            ("topics", {"type": "string", "minLength": 1, "description": "names, with commas between; required"}),
            *EVENTS_QUERY,
        ),
        headers=(("Last-Event-ID", RESUME_ID),),
        errors=(errors.NotAcceptable, errors.TopicNotFound),
    ),
    ("GET", "/v0/ws"): Operation(
        {101: SOCKET},
        headers=(
            *((name, {"type": "string"}) for name in ("Upgrade", "Sec-WebSocket-Key", "Origin")),
            ("Sec-WebSocket-Version", {"const": "13"}),
        ),
    ),
    ("POST", "/v0/ticket"): Operation({200: replies.TicketGiven}, NothingIn),
    ("GET", "/v0/me"): Operation({200: replies.Me}),
    ("GET", "/v0/connections"): Operation({200: replies.ConnectionList}, query=PAGE_QUERY[1:3]),
    ("DELETE", "/v0/connections/:id"): Operation({200: replies.ConnectionGone}),
    ("GET", "/v0/server"): Operation({200: surveys.ServerShown}),
    ("GET", "/v0/doctor"): Operation({200: surveys.Diagnosis}),
    ("GET", "/v0/health"): Operation({200: replies.Health}),
    ("GET", "/healthz"): Operation({200: replies.Health}),
    ("GET", "/v0/ready"): Operation({200: replies.Ready}),
    ("GET", "/readyz"): Operation({200: replies.Ready}),
    ("GET", "/v0/metrics"): Operation({200: Metrics}),
    ("GET", "/v0/stats"): Operation({200: sights.Stats}, query=HISTORY_QUERY),
    ("GET", "/v0/stats/stream"): Operation(
        {200: EVENTS},
        query=HISTORY_QUERY,
        headers=(
            ("Last-Event-ID", {"type": "string", "description": "the last id received; anything else is ignored"}),
        ),
        errors=(errors.NotAcceptable,),
    ),
    ("GET", "/v0/openapi.json"): Operation({200: None}),
    ("GET", "/docs"): Operation({200: PAGE}),
    ("GET", "/console"): Operation({200: PAGE}),
    ("GET", "/console/:file"): Operation({200: FILE}),
}

MEANINGS: Final[dict[str, Schema]] = {
    "on_mismatch": {"description": "refuse other records under a key that is known: 409"},
    "mismatch": {"description": "the records of the first write under this key were others"},
    "warnings": {"description": "what about the config may not be as it was meant"},
    "dry_run": {"description": "change nothing; say what would be"},
    "would_evict": {"description": "what caps and TTL of this config would take at once"},
    "paused": {"description": "the queue hands out no jobs for now"},
}


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
    schemas = Schemas(NAMES, _fields(app.settings))
    paths: dict[str, Schema] = {}
    routes: dict[tuple[str, str], Route] = {}
    for route in app.routes.rows:
        operation = OPERATIONS.get((route.method, route.path))
        if operation is not None:
            path = "/".join(PLACES.get(part, part) for part in route.path.split("/"))
            paths.setdefault(path, {})[route.method.lower()] = _operation(route, operation, schemas)
            routes[path, route.method] = route
    _finish(schemas, app.settings)
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
    """What generators of clients call it: as its handler, or by its path if it is an alias."""
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


def _finish(schemas: Schemas, settings: Settings) -> None:
    """What belongs to a whole struct rather than to a field's name."""
    records = schemas.components["Write"]["properties"]["records"]
    records |= {"minItems": 1, "maxItems": settings.max_batch_records}
    for config in (schemas.components["Config"]["properties"], schemas.components["TopicRequest"]["properties"]):
        for name in ("ttl_ms", "cap_records", "cap_bytes", "idempotency_window_ms", "max_deliveries"):
            config[name] |= SEQ
        for name in ("lease_ms", "claim_jitter_ms"):
            config[name] |= {"minimum": 0}
        config["dead_letter"] = {
            "anyOf": [{"type": "string", "pattern": f"^{TOPIC_NAME.pattern}$"}, {"type": "null"}],
            "description": '"*" in an answer is a name outside the key\'s prefixes; in a PUT by that key it stays',
        }
    record = schemas.components["RecordIn"]["properties"]
    record["meta"] |= {"type": ["object", "null"], "maxProperties": META_KEYS_MAX}
    record["tag"] |= {"maxLength": settings.max_tag_bytes}
    for node in (record["node"], schemas.components["Write"]["properties"]["node"]):
        node |= {"maxLength": settings.max_node_bytes}
    schemas.components["DiffRequest"]["properties"]["filter"] = MATCH
    router = schemas.components["RouterRequest"]["properties"]
    router["filter"] = MATCH
    for name in ("source", "dest"):
        router[name] |= {"pattern": f"^{TOPIC_NAME.pattern}$"}
    schemas.components["RouterShown"]["properties"]["lag"]["description"] = "seqs of the source not looked at yet"
    watch = schemas.components["WatchRequest"]["properties"]
    watch["filter"] = MATCH
    watch["topics"] |= {"minProperties": 1, "maxProperties": settings.max_watch_topics}
    for name in ("ClaimRequest", "AckRequest", "NackRequest", "ExtendRequest"):
        properties = schemas.components[name]["properties"]
        properties["node"] |= {"minLength": 1, "maxLength": settings.max_node_bytes}
        if "seqs" in properties:
            properties["seqs"] |= {"minItems": 1, "maxItems": settings.max_claim}
            properties["seqs"]["items"] |= SEQ
            properties["lease_ids"]["items"] |= {"pattern": "^(lease_[0-9a-f]+)?$"}
    moving = schemas.components["MoveRequest"]["properties"]
    moving["seqs"] |= {"minItems": 1, "maxItems": settings.max_claim}
    moving["seqs"]["items"] |= SEQ
    moving["dest"] |= {"pattern": f"^{TOPIC_NAME.pattern}$", "description": "another topic"}
    schemas.components["RedriveRequest"]["properties"]["match"] = MATCH
    record["deliver_at"] |= SEQ
    schemas.components["RecordIn"]["not"] = {
        "required": ["delay_ms", "deliver_at"],
        "properties": {name: {} for name in ("delay_ms", "deliver_at")},
    }
    delete = schemas.components["DeleteRequest"]
    delete["properties"]["match"] = MATCH
    delete["anyOf"] = [
        {"required": [name], "properties": {name: {"not": {"type": "null"}}}} for name in ("before_seq", "match")
    ]


def _fields(settings: Settings) -> dict[str, Schema]:
    """Meanings and limits of fields, by their name."""
    exact = {"maximum": SEQ_MAX}
    return MEANINGS | {
        "from_seq": {**SEQ, "description": "exclusive cursor; 0 = from the beginning"},
        "before_seq": {"description": "records with a smaller seq", **exact},
        "epoch": {"description": "number of the topic's instance", **exact},
        "from_ts": {"description": "start at the first record that is not older, epoch-ms", **exact},
        "limit": {"description": f"most records in the answer; 0 = 256, at most {settings.max_limit}"},
        "wait_ms": {"description": "long poll, at most 30000"},
        "max_batch_bytes": {"description": "byte budget of the answer; 0 = 1 MiB, at most 8 MiB"},
        "include_tags": {"description": "show $tag"},
        "include_data": {"description": "show data and meta"},
        "tail": {"description": "start at the current head instead"},
        "heartbeat_ms": {
            "description": "silence after which a heartbeat is sent, "
            f"{settings.test_min_heartbeat_ms}..{HEARTBEAT_MS_MAX}"
        },
        "consistency": {"description": "push what is readable, or only what is synced"},
        "cursor": {"description": "an id of an earlier stream: where to start in the topics it names"},
        "have": {"description": "identities of files that need not be sent"},
        "follow": {"description": "go on with the log"},
        "include_meta": {"description": "show meta"},
        "node": {"description": f"origin of records; written, at most {settings.max_node_bytes} bytes"},
        "tag": {"description": f"key for deletes and filters, at most {settings.max_tag_bytes} bytes"},
        "data": {"description": f"any JSON; with meta at most {settings.max_record_bytes} bytes"},
        "meta": {"description": f"at most {settings.max_meta_bytes} bytes and {META_KEYS_MAX} keys"},
        "idempotency_key": {"description": f"dedupe key, at most {KEY_CHARACTERS_MAX} characters", "maxLength": 256},
        "create": {"description": "may this write create the topic; left out: config.auto_create"},
        "config": {"description": "config of the topic"},
        "disable_backpressure": {"description": "wait under pressure instead of 429"},
        "type": {"description": "a queue also has claim, ack, nack, extend and work"},
        "ttl_ms": {"description": "age at which a record expires; 0 = never"},
        "cap_records": {"description": "most live records; 0 = no cap"},
        "cap_bytes": {"description": "most bytes of live records; 0 = no cap"},
        "discard": {"description": "a full topic drops its oldest records, or refuses the write"},
        "durable": {"description": "short form of durability: true = fsync, false = disk"},
        "durability": {"description": "where a write goes and when it is acked"},
        "priority": {"description": "who is served first under pressure, -1000..1000; null = by recency"},
        "auto_priority": {"description": "with priority null: derive it from the last read"},
        "auto_create": {"description": "may a write create the topic"},
        "idempotency_window_ms": {"description": "how long idempotency keys are remembered; 0 = not at all"},
        "dedupe_node": {"description": "does the node filter apply to reads of this topic"},
        "lease_ms": {"description": "length of a lease, 100..86400000"},
        "claim_jitter_ms": {"description": "window in which claims are gathered, 0..5000"},
        "max_deliveries": {"description": "deliveries before a job is dead-lettered; 0 = no limit"},
        "leases_durable": {"description": "are leases kept across a restart"},
        "max": {"description": f"most jobs; at most {settings.max_claim}"},
        "seqs": {"description": "the jobs"},
        "lease_ids": {"description": "one lease_id per entry of seqs, or an empty string for none"},
        "delay_ms": {"description": "how long a job stays hidden, 0..86400000"},
        "deliver_at": {"description": "time from which a job may be handed out, epoch-ms"},
        **_answer_fields(),
    }


def _answer_fields() -> dict[str, Schema]:
    """Those that only answers have, and conditions on them."""
    return {
        "head_seq": {"description": "highest seq handed out; 0 if none"},
        "earliest_seq": {"description": "lowest live seq; head_seq + 1 if nothing is live"},
        "next_from_seq": {"description": "the cursor for the next call"},
        "caught_up": {"description": "nothing more right now"},
        "lag": {"description": "head_seq - next_from_seq"},
        "source": {"description": "the topic that is copied from"},
        "dest": {"description": "the topic that is copied into"},
        "preserve_node": {"description": "keep $node"},
        "preserve_tag": {"description": "keep $tag"},
        "create_dest": {"description": "create an absent dest; false = 404"},
        "allow_cycle": {"description": "accept a cycle; a record passes 8 routers at most"},
        "guarantee": {"description": "exactly_once stamps its copies and skips those that are there"},
        "forwarded_total": {"description": "copies, duplicates skipped and records lost before they were copied"},
        "blocked_by": {"description": "why the router cannot go on"},
        "if_seq": {"description": "where the cursor must stand now; null: there must be none", "maximum": SEQ_MAX},
        "written_total": {"description": "seqs handed out: live + lost_total + expired_total + deleted_total"},
        "lost_total": {"description": "lost to caps, crashes and sources that had lost them"},
        "expired_total": {"description": "lost to ttl_ms"},
        "deleted_total": {"description": "deleted, acks and dead letters included"},
        "lost": {"description": "seqs above the cursor that are lost"},
        "seconds_until_loss": {
            "description": "when the first live record that is left to read falls to a cap or its age, at the rate of "
            "writes of the last 60 s; null: that is not foreseen"
        },
        "gap_from": {"description": "first seq missed"},
        "gap_to": {"description": "last seq missed"},
    }
