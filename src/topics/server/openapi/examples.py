"""Examples of requests and answers, made of their schemas: every field that is known by its name has a telling value.

A new field or answer has an example at once, if a plain one; to make it telling, give the field a value in VALUES, or a
whole body one in BODIES. Must not know: routes, settings. `tests/api/test_openapi.py` holds examples and schemas
together.
"""

from typing import Any, Final

from topics.server.openapi.schemas import REFERENCE, Schema

TS: Final = 1794790514416
DEPTH_MAX: Final = 8  # of a struct that holds itself
RECORD: Final = {"$seq": 3, "$ts": TS, "data": {"sku": "A", "quantity": 2}}
JOB: Final = {
    "$seq": 7,
    "lease_id": "lease_1f",
    "deadline": TS + 60_000,
    "$ts": TS,
    "deliveries": 1,
    "data": {"resize": 256},
}

# By the name of the schema of a body.
BODIES: Final[dict[str, Any]] = {
    "Config": {"type": "log", "durability": "fsync", "cap_records": 100000, "ttl_ms": 86400000},
    "Write": {"records": [{"data": {"sku": "A", "quantity": 2}, "tag": "acme"}], "idempotency_key": "order-1"},
    "DiffRequest": {"from_seq": 2, "limit": 100, "wait_ms": 20000},
    "DeleteRequest": {"before_seq": 3},
    "ClaimRequest": {"node": "worker-1", "max": 10},
    "AckRequest": {"node": "worker-1", "seqs": [7], "lease_ids": ["lease_1f"]},
    "NackRequest": {"node": "worker-1", "seqs": [7], "delay_ms": 5000},
    "ExtendRequest": {"node": "worker-1", "seqs": [7], "lease_ms": 60000},
    "RedriveRequest": {"max": 100},
    "MoveRequest": {"seqs": [7], "dest": "orders.later"},
    "RouterRequest": {"source": "orders", "dest": "audit"},
    "WatchRequest": {"topics": {"orders": {"from_seq": 0}}},
    "Record": RECORD,
    "Job": JOB,
}
# By the name of a field.
VALUES: Final[dict[str, Any]] = {
    "topic": "orders",
    "router": "orders->audit",
    "source": "orders",
    "dest": "audit",
    "node": "web-1",
    "tag": "acme",
    "data": {"sku": "A", "quantity": 2},
    "meta": {"trace": "9f2c"},
    "epoch": 1,
    "head_seq": 3,
    "first_seq": 3,
    "last_seq": 3,
    "seqs": [3],
    "next_seq": 4,
    "next_from_seq": 3,
    "gap_from": 1,
    "gap_to": 2,
    "count": 3,
    "bytes": 96,
    "created": True,
    "deduped": False,
    "caught_up": True,
    "last_write_ts": TS,
    "last_read_ts": None,
    "expires_ts": TS + 30_000,
    "deadline": TS + 60_000,
    "uptime_ms": 86_400_000,
    "next_cursor": "eyJhZnRlciI6Im9yZGVycyJ9",
    "wid": "wid_QYIv1eRgINQhJ-JwT9JHTg",
    "stream_url": "/v0/watch/wid_QYIv1eRgINQhJ-JwT9JHTg",
    "session_ttl_ms": 300_000,
    "ticket": "tkt_nPuT9tOqQ3mGq2Sn7tYwWb0c8Uqv6J1z",
    "lease_id": "lease_1f",
    "skipped": [],
    "deadlines": {"7": TS + 60_000},
    "routers_removed": [],
    "dead_letter": "orders.dead",
    "scopes": ["read", "write"],
    "prefixes": ["acme:"],
    "name": "dash",
    "key": "dash",
    "id": "conn_5cq8Z1pVbA0xYtRk",
    "remote": "127.0.0.1:52114",
    "topics": ["orders"],
    "filter": None,
    "priority": None,
    "version": "0.1.0",
    "server_total_ms": 0.21,
    "wal_append_ms": 0.02,
    "fsync_ms": 0.0,
    "throttle_wait_ms": 0.0,
    "records_scanned": 3,
    "replay_progress": 1.0,
}


class Examples:
    """Examples of the schemas of one document."""

    def __init__(self, components: dict[str, Schema]) -> None:
        self._components = components

    def of(self, schema: Schema, field: str = "", depth: int = 0) -> Any:
        """An example of what a schema allows. `field`: the name it goes by."""
        name = schema.get("$ref", "").removeprefix(REFERENCE)
        if name:
            schema = self._components[name]
        if name in BODIES:
            return BODIES[name]
        if not name and field in VALUES and _fits(VALUES[field], schema):
            return VALUES[field]
        if "anyOf" in schema:
            return self.of(schema["anyOf"][0], field, depth)
        if "enum" in schema:
            return schema["enum"][0]
        if "default" in schema:
            return schema["default"]
        return self._of_kind(schema, field, depth)

    def _of_kind(self, schema: Schema, field: str, depth: int) -> Any:
        kind = schema.get("type", "object")
        if kind == "object" and "properties" in schema and depth < DEPTH_MAX:
            properties = schema["properties"]
            return {key: self.of(value, key, depth + 1) for key, value in properties.items()}
        if kind == "object" and isinstance(schema.get("additionalProperties"), dict) and depth < DEPTH_MAX:
            return {"orders": self.of(schema["additionalProperties"], field, depth + 1)}
        if kind == "array" and depth < DEPTH_MAX:
            return [self.of(schema.get("items", {}), "", depth + 1)]
        plain = {"integer": max(1, schema.get("minimum", 1)), "number": 0.5, "string": "text", "boolean": True}
        return plain.get(kind, None if kind == "null" else {})


def _fits(value: Any, schema: Schema) -> bool:
    """Whether a value of a field's name is one of this schema, as far as its plain type tells."""
    if "$ref" in schema:
        return False
    if "anyOf" in schema:
        return any(_fits(value, option) for option in schema["anyOf"])
    if "enum" in schema:
        return value in schema["enum"]
    kinds: dict[str, type | tuple[type, ...]] = {
        "string": str,
        "integer": int,
        "number": (int, float),
        "boolean": bool,
        "array": list,
        "object": dict,
        "null": type(None),
    }
    kind = schema.get("type")
    if kind == "array" and isinstance(value, list):
        return all(_fits(item, schema.get("items", {})) for item in value)
    return (
        kind is None
        or (isinstance(kind, str) and type(value) is not bool and isinstance(value, kinds[kind]))
        or (kind == "boolean" and isinstance(value, bool))
    )
