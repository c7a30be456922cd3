"""The operations of the OpenAPI document: for every route its body, query, headers, answers and errors.

Every route that is built has a row in OPERATIONS. Must not know: how a row becomes JSON.
"""

from dataclasses import dataclass
from typing import Any, Final

from topics import errors
from topics.core.topic.records import WriteIn
from topics.errors import TopicsError
from topics.server.handlers.export import BACKUP_TYPE
from topics.server.handlers.metrics import Metrics
from topics.server.openapi.meanings import SEQ
from topics.server.openapi.schemas import Schema
from topics.server.transport.encoding import ARROW_TYPE
from topics.server.wire import queries, replies, requests
from topics.server.wire.queries import LOSSES_DEFAULT, LOSSES_MAX, PAGE_SIZE_MAX
from topics.server.wire.seen import sights, surveys

STRICT_FLAG: Final[Schema] = {"type": "string", "enum": ["true", "1", "false", "0"]}
FLAG: Final[Schema] = {"type": "string", "description": "true or 1, false or 0; anything else means the default"}


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
    ("type", {"type": "string", "enum": list(queries.TYPES), "description": "only topics of this type"}),
    ("class", {"type": "string", "enum": list(queries.CLASSES), "description": "only topics of this durability"}),
    ("offset", {"type": "integer", "minimum": 0, "description": "entries that are skipped before the page"}),
    (
        "sort",
        {
            "type": "string",
            "enum": list(queries.ORDERS),
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
        requests.PutIn,
        errors=(errors.TopicIncompatible,),
        checks_name=True,
    ),
    ("GET", TOPIC): Operation({200: replies.TopicShown}, query=(("touch", FLAG),), errors=NOT_FOUND),
    ("GET", "/v0/topics"): Operation({200: sights.TopicList}, query=LIST_QUERY),
    ("DELETE", TOPIC): Operation(
        {200: replies.TopicGone},
        query=(("if_empty", FLAG), ("epoch", {"type": "integer", "minimum": 0, "description": "only this instance"})),
        errors=(errors.TopicNotEmpty, errors.EpochMismatch),
    ),
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
    ("POST", f"{TOPIC}/diff"): Operation({200: replies.Diff}, requests.DiffIn, errors=NOT_FOUND),
    ("GET", f"{TOPIC}/diff"): Operation({200: replies.Diff}, query=DIFF_QUERY, errors=NOT_FOUND),
    ("GET", f"{TOPIC}/export"): Operation({200: ARROW_TYPE}, query=RANGE_QUERY, errors=NOT_FOUND),
    ("POST", "/v0/backup"): Operation({200: BACKUP_TYPE}, requests.BackupIn),
    ("POST", f"{TOPIC}/delete"): Operation(
        {200: replies.RecordsDeleted}, requests.DeleteIn, errors=(*NOT_FOUND, errors.EpochMismatch)
    ),
    ("GET", f"{TOPIC}/records/:seq"): Operation({200: sights.RecordShown}, errors=NOT_FOUND),
    ("GET", f"{TOPIC}/live"): Operation({200: replies.LiveRuns}, query=RANGE_QUERY, errors=NOT_FOUND),
    ("GET", f"{TOPIC}/losses"): Operation({200: sights.LossList}, query=LOSSES_QUERY, errors=NOT_FOUND),
    ("GET", f"{TOPIC}/times"): Operation({200: surveys.TimeList}, query=TIMES_QUERY, errors=NOT_FOUND),
    ("GET", "/v0/losses"): Operation({200: surveys.LossFeed}, query=LOSSES_QUERY),
    ("GET", "/v0/tree"): Operation({200: surveys.Tree}, query=(*PAGE_QUERY[:3], *LIST_QUERY[6:9])),
    ("PUT", CURSOR): Operation(
        {200: sights.CursorShown}, requests.CursorIn, errors=(*NOT_FOUND, errors.EpochMismatch, errors.CursorMoved)
    ),
    ("GET", CURSOR): Operation({200: sights.CursorShown}, errors=NOT_FOUND),
    ("GET", f"{TOPIC}/cursors"): Operation({200: sights.CursorList}, query=PAGE_QUERY[1:3], errors=NOT_FOUND),
    ("DELETE", CURSOR): Operation({200: sights.CursorGone}, errors=NOT_FOUND),
    ("POST", f"{TOPIC}/claim"): Operation({200: replies.JobsClaimed}, requests.ClaimIn, errors=QUEUE),
    ("POST", f"{TOPIC}/ack"): Operation({200: replies.JobsAcked}, requests.AckIn, errors=LEASES),
    ("POST", f"{TOPIC}/nack"): Operation({200: replies.JobsNacked}, requests.NackIn, errors=LEASES),
    ("POST", f"{TOPIC}/extend"): Operation({200: replies.LeasesExtended}, requests.ExtendIn, errors=LEASES),
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
        {200: replies.LettersRedriven}, requests.RedriveIn, errors=(*QUEUE, errors.NoDeadLetter, errors.TopicFull)
    ),
    ("POST", f"{TOPIC}/move"): Operation({200: surveys.JobsMoved}, surveys.MoveIn, errors=(*LEASES, errors.TopicFull)),
    ("POST", f"{TOPIC}/pause"): Operation({200: replies.QueuePaused}, requests.NothingIn, errors=QUEUE),
    ("POST", f"{TOPIC}/resume"): Operation({200: replies.QueuePaused}, requests.NothingIn, errors=QUEUE),
    ("GET", f"{TOPIC}/leases"): Operation({200: replies.LeaseList}, query=PAGE_QUERY[1:3], errors=QUEUE),
    ("PUT", ROUTER): Operation(
        {200: replies.RouterShown, 201: replies.RouterShown},
        requests.RouterIn,
        errors=(errors.TopicNotFound, errors.TopicIncompatible, errors.RouterCycle),
        checks_name=True,
    ),
    ("GET", ROUTER): Operation({200: replies.RouterShown}, errors=(errors.RouterNotFound,)),
    ("GET", "/v0/routers"): Operation({200: surveys.RouterList}, query=ROUTERS_QUERY),
    ("DELETE", ROUTER): Operation({200: replies.RouterGone}),
    ("POST", "/v0/watch"): Operation({200: replies.Watching}, requests.WatchIn, (("lenient", FLAG),), errors=NOT_FOUND),
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
    ("POST", "/v0/ticket"): Operation({200: replies.TicketGiven}, requests.NothingIn),
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
