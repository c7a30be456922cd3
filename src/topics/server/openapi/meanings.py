"""What fields mean, and their limits: what the OpenAPI document says of a field beyond its type.

`meanings` is by the name of a field, wherever it is; `finish` adds what belongs to a field of one struct.
"""

from typing import Final

from topics.core.topic.records import KEY_CHARACTERS_MAX, META_KEYS_MAX
from topics.model import SEQ_MAX, TOPIC_NAME
from topics.server.openapi.schemas import Schema, Schemas
from topics.server.wire.requests import HEARTBEAT_MS_MAX
from topics.settings import Settings

SEQ: Final[Schema] = {"minimum": 0, "maximum": SEQ_MAX}
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


def meanings(settings: Settings) -> dict[str, Schema]:
    """Meanings and limits of fields, by their name."""
    exact = {"maximum": SEQ_MAX}
    return {
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
        "on_mismatch": {"description": "refuse other records under a key that is known: 409"},
        "mismatch": {"description": "the records of the first write under this key were others"},
        "warnings": {"description": "what about the config may not be as it was meant"},
        "dry_run": {"description": "change nothing; say what would be"},
        "would_evict": {"description": "what caps and TTL of this config would take at once"},
        "paused": {"description": "the queue hands out no jobs for now"},
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


def finish(schemas: Schemas, settings: Settings) -> None:
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
