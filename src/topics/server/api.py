"""The rows of the route table: every endpoint of /v0, with its scopes (Appendix A.1). To add one, add a row."""

from typing import Any, Final

from topics.server.auth import ADMIN, DELETE, READ, WRITE
from topics.server.console.static import show_console, show_file
from topics.server.handlers import diff, export, health, identity, metrics, queues, records, routers, topics, ws
from topics.server.handlers.live import connected, events, stats, watch
from topics.server.openapi.document import show_openapi
from topics.server.openapi.page import show_page
from topics.server.routes import NO_SCOPES, Route, json_body
from topics.server.transport.encoding import ARROW_TYPE, JSON_TYPE, NDJSON_TYPE

READS: Final = frozenset((READ,))
WRITES: Final = frozenset((WRITE,))
DELETES: Final = frozenset((DELETE,))
ADMINS: Final = frozenset((ADMIN,))
CLAIMS: Final = frozenset((READ, WRITE))
REDRIVES: Final = frozenset((WRITE, DELETE))

TOPIC: Final = "/v0/topics/:topic"
CURSOR: Final = f"{TOPIC}/cursors/:cursor"
ROUTER: Final = "/v0/routers/:router"
WRITE_TYPES: Final = (JSON_TYPE, NDJSON_TYPE, ARROW_TYPE)
STREAM: Final[dict[str, Any]] = {"is_stream": True, "takes_token": True, "takes_ticket": True}
PROBE: Final[dict[str, Any]] = {"is_probe": True, "is_always_on": True}
CONSOLE: Final[dict[str, Any]] = {"is_page": True, "is_always_on": True}

ROUTES: Final = [
    Route("PUT", TOPIC, topics.put_topic, ADMINS, "Create or configure a topic", **json_body(may_be_empty=True)),
    Route("GET", TOPIC, topics.show_topic, READS, "State of a topic"),
    Route("GET", "/v0/topics", topics.list_topics, READS, "List topics, in pages"),
    Route("DELETE", TOPIC, topics.delete_topic, DELETES, "Delete a topic and the routers that touch it"),
    Route("POST", TOPIC, records.append, WRITES, "Append records", media=WRITE_TYPES, takes_bulk=True),
    Route("POST", f"{TOPIC}/diff", diff.diff, READS, "Read above a cursor", **json_body(may_be_empty=True)),
    Route("GET", f"{TOPIC}/diff", diff.get_diff, READS, "Read above a cursor, with a query string"),
    Route("GET", f"{TOPIC}/export", export.export, READS, "Download records as an Arrow stream"),
    Route("GET", f"{TOPIC}/live", export.live, READS, "Which seqs are live, as runs"),
    Route("GET", f"{TOPIC}/records/:seq", records.show_record, READS, "One record"),
    Route("GET", f"{TOPIC}/losses", topics.list_losses, READS, "What was lost, the newest first"),
    Route("GET", f"{TOPIC}/times", topics.list_times, READS, "When records were written"),
    Route("GET", "/v0/losses", topics.list_all_losses, READS, "What was lost of all topics, the newest first"),
    Route("GET", "/v0/tree", topics.show_tree, READS, "Sums over topics, by the next step of their names"),
    Route("PUT", CURSOR, topics.put_cursor, READS, "Store a named cursor", **json_body()),
    Route("GET", CURSOR, topics.show_cursor, READS, "One named cursor"),
    Route("GET", f"{TOPIC}/cursors", topics.list_cursors, READS, "List named cursors, in pages"),
    Route("DELETE", CURSOR, topics.delete_cursor, READS, "Delete a named cursor"),
    Route("POST", f"{TOPIC}/delete", records.delete_records, DELETES, "Delete records", **json_body()),
    Route("PUT", ROUTER, routers.put_router, ADMINS, "Create or configure a router", **json_body()),
    Route("GET", ROUTER, routers.show_router, READS, "One router"),
    Route("GET", "/v0/routers", routers.list_routers, READS, "List routers, in pages"),
    Route("DELETE", ROUTER, routers.delete_router, DELETES, "Delete a router"),
    Route("POST", "/v0/watch", watch.create_session, READS, "Create a watch session", **json_body()),
    Route("GET", "/v0/watch/:wid", events.open_stream, NO_SCOPES, "Stream of a session", **STREAM, checks_itself=True),
    Route("GET", f"{TOPIC}/events", events.open_topic_events, READS, "Follow a topic", **STREAM),
    Route("GET", "/v0/events", events.open_events, READS, "Follow topics", **STREAM),
    Route("GET", "/v0/ws", ws.open_socket, NO_SCOPES, "Open a WebSocket", is_stream=True, takes_ticket=True),
    Route("POST", f"{TOPIC}/claim", queues.claim, CLAIMS, "Lease jobs", **json_body()),
    Route("POST", f"{TOPIC}/ack", queues.ack, WRITES, "Complete jobs", **json_body()),
    Route("POST", f"{TOPIC}/nack", queues.nack, WRITES, "Give jobs back", **json_body()),
    Route("POST", f"{TOPIC}/extend", queues.extend, WRITES, "Move lease deadlines", **json_body()),
    Route("GET", f"{TOPIC}/work", queues.work, CLAIMS, "Stream of jobs", **STREAM),
    Route("POST", f"{TOPIC}/redrive", queues.redrive, REDRIVES, "Bring dead letters back", **json_body()),
    Route("POST", f"{TOPIC}/move", queues.move, REDRIVES, "Move jobs to another topic", **json_body()),
    Route("POST", f"{TOPIC}/pause", queues.pause, ADMINS, "Hand out no jobs", **json_body(may_be_empty=True)),
    Route("POST", f"{TOPIC}/resume", queues.resume, ADMINS, "Hand out jobs again", **json_body(may_be_empty=True)),
    Route("GET", f"{TOPIC}/leases", queues.list_leases, READS, "List who holds which jobs, in pages"),
    Route("POST", "/v0/backup", export.back_up, ADMINS, "Stream of a backup", **json_body(may_be_empty=True)),
    Route("POST", "/v0/ticket", identity.give_ticket, NO_SCOPES, "Get a ticket", **json_body(may_be_empty=True)),
    Route("GET", "/v0/me", identity.show_me, NO_SCOPES, "What the key allows"),
    Route("GET", "/v0/connections", connected.list_connections, ADMINS, "List who is connected, in pages"),
    Route("DELETE", "/v0/connections/:id", connected.close_connection, ADMINS, "End a stream or a socket"),
    Route("GET", "/v0/server", health.show_server, ADMINS, "Settings, checkpoints, disk and memory"),
    Route("GET", "/v0/doctor", health.diagnose, READS, "What is worth a look, with the remedy"),
    Route("GET", "/v0/health", health.health, NO_SCOPES, "Is the process alive", **PROBE),
    Route("GET", "/healthz", health.health, NO_SCOPES, "Is the process alive", **PROBE),
    Route("GET", "/v0/ready", health.ready, NO_SCOPES, "Has it recovered and does it take requests", **PROBE),
    Route("GET", "/readyz", health.ready, NO_SCOPES, "Has it recovered and does it take requests", **PROBE),
    Route("GET", "/v0/metrics", metrics.metrics, READS, "Metrics", is_always_on=True),
    Route("GET", "/v0/stats", stats.show_stats, READS, "What happened lately"),
    Route(
        "GET", "/v0/stats/stream", stats.open_stats, READS, "The same as a stream", is_stream=True, takes_ticket=True
    ),
    Route("GET", "/v0/openapi.json", show_openapi, NO_SCOPES, "This document"),
    Route("GET", "/docs", show_page, NO_SCOPES, "This document as a page", is_probe=True, is_linked=True),
    Route("GET", "/console", show_console, NO_SCOPES, "The console, for browsers also at /", **CONSOLE),
    Route("GET", "/console/:file", show_file, NO_SCOPES, "A file of the console", **CONSOLE),
]
