"""What callers pass: configs, records and matches, checked and brought into the form in which they are sent.

What the server would ignore, most likely a slip, is refused here. Must not know: paths, and what is done with it.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, Literal, TypedDict

import msgspec

from topics.client.record_types import NewRecord
from topics.client.values import is_object
from topics.errors import InvalidRequest
from topics.faults import nearest, one_of, quoted
from topics.model import Discard, Durability, TagMatch, TopicConfig, TopicType

RECORD_FIELDS: Final = frozenset(("data", "tag", "node", "meta", "delay_ms", "deliver_at"))

OnMismatch = Literal["refuse"]
TopicOrder = Literal["name", "-written_rate", "-bytes", "-count", "-lost_total", "-ready"]
Match = str | Sequence[str] | TagMatch
Config = TopicConfig | Mapping[str, Any]


class ConfigFields(TypedDict, total=False):
    """The fields of a topic's config. A field left out has its default (Appendix A.4)."""

    type: TopicType
    ttl_ms: int
    cap_records: int
    cap_bytes: int
    discard: Discard
    durable: bool
    durability: Durability
    priority: int | None
    auto_priority: bool
    auto_create: bool
    idempotency_window_ms: int
    dedupe_node: bool
    lease_ms: int
    claim_jitter_ms: int
    max_deliveries: int
    dead_letter: str | None
    leases_durable: bool


def config_body(config: Config | None, **fields: Any) -> dict[str, Any]:
    """A config as it is sent. One that the server would ignore in part is refused."""
    known = TopicConfig.__struct_fields__
    if config is None or not isinstance(config, TopicConfig):
        body = {**(config or {}), **fields}
        refuse_unknown(body, known, "a field of a config")
        return body
    refuse_unknown(fields, known, "a field of a config")
    return fields_of(config) | fields


def fields_of(config: TopicConfig) -> dict[str, Any]:
    if config.durable != (config.durability == "fsync"):
        raise InvalidRequest(
            f"durable is {config.durable} but durability is {config.durability!r}; set only one of the two"
        )
    fields: dict[str, Any] = msgspec.structs.asdict(config)
    return fields


def record_of(record: Any, n: int) -> NewRecord | Mapping[str, Any]:
    if isinstance(record, NewRecord):
        return record
    if isinstance(record, Mapping) and "data" in record:
        if not record.keys() <= RECORD_FIELDS:
            refuse_unknown(record, sorted(RECORD_FIELDS), f"a field of records[{n}]")
        return record
    if is_object(record):
        return NewRecord(record)
    raise InvalidRequest(f'records[{n}] is not a record: pass a mapping with "data", or a NewRecord')


def refuse_unknown(given: Iterable[Any], known: Sequence[str], what: str) -> None:
    """Raise at a name that the server would ignore: it is most likely a slip."""
    for name in given:
        if name not in known:
            close = nearest(str(name), known)
            hint = f"did you mean {close}?" if close is not None else f"use {one_of(known)}"
            raise InvalidRequest(f"{quoted(str(name))} is not {what}; {hint}")


def match_of(match: Match | None) -> Any:
    return match.as_tuple() if isinstance(match, TagMatch) else match
