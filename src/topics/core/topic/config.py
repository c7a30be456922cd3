"""A topic's config as a caller writes it, and its resolved form.

`ConfigIn` is what JSON decodes to: every field optional. `resolve` fills in
defaults, clamps and checks, and gives the `TopicConfig` that is stored and
shown. Rules: TP1-TP5, CV18, CV19.
"""

from typing import TypeVar

from msgspec import UNSET, Struct, UnsetType

from topics.errors import InvalidRequest, TopicIncompatible
from topics.model import SEQ_MAX, Discard, Durability, TopicConfig, TopicType, is_topic_name

T = TypeVar("T")

LEASE_MS_MIN, LEASE_MS_MAX = 100, 86_400_000
CLAIM_JITTER_MS_MAX = 5_000
PRIORITY_MAX = 1_000
RECENT_PRIORITY, PRIORITY_HALF_LIFE_MS, PRIORITY_IDLE_MS_MAX = 500, 30_000, 300_000


class ConfigIn(Struct, frozen=True, kw_only=True):
    """The fields of a config body. UNSET = left out; None is allowed only where it means the same."""

    type: TopicType | UnsetType = UNSET
    ttl_ms: int | UnsetType = UNSET
    cap_records: int | UnsetType = UNSET
    cap_bytes: int | UnsetType = UNSET
    discard: Discard | UnsetType = UNSET
    durable: bool | UnsetType = UNSET
    durability: Durability | None | UnsetType = UNSET
    priority: int | None | UnsetType = UNSET
    auto_priority: bool | UnsetType = UNSET
    auto_create: bool | UnsetType = UNSET
    idempotency_window_ms: int | UnsetType = UNSET
    dedupe_node: bool | UnsetType = UNSET
    lease_ms: int | UnsetType = UNSET
    claim_jitter_ms: int | UnsetType = UNSET
    max_deliveries: int | UnsetType = UNSET
    dead_letter: str | None | UnsetType = UNSET
    leases_durable: bool | UnsetType = UNSET


DEFAULT = TopicConfig()


def resolve(name: str, given: ConfigIn, current: TopicConfig | None = None) -> TopicConfig:
    """The config that `given` asks for on topic `name`; only an omitted type is taken from `current`."""
    if current is not None and given.type is not UNSET and given.type != current.type:
        raise TopicIncompatible(
            f'topic "{name}" is a {current.type} and cannot become a {given.type}',
            topic=name,
            existing_type=current.type,
            requested_type=given.type,
        )
    kind = current.type if current is not None else _or(given.type, DEFAULT.type)
    durability = _or(given.durability, None) or ("fsync" if given.durable is True else "disk")
    priority = _or(given.priority, None)
    return TopicConfig(
        type=kind,
        ttl_ms=_natural("ttl_ms", given.ttl_ms, DEFAULT.ttl_ms),
        cap_records=_natural("cap_records", given.cap_records, DEFAULT.cap_records),
        cap_bytes=_natural("cap_bytes", given.cap_bytes, DEFAULT.cap_bytes),
        discard=_or(given.discard, DEFAULT.discard),
        durable=durability == "fsync",
        durability=durability,
        priority=None if priority is None else max(-PRIORITY_MAX, min(PRIORITY_MAX, priority)),
        auto_priority=_or(given.auto_priority, DEFAULT.auto_priority),
        auto_create=_or(given.auto_create, DEFAULT.auto_create),
        idempotency_window_ms=_natural("idempotency_window_ms", given.idempotency_window_ms, 120_000),
        dedupe_node=_or(given.dedupe_node, DEFAULT.dedupe_node),
        lease_ms=_clamped("lease_ms", given.lease_ms, DEFAULT.lease_ms, LEASE_MS_MIN, LEASE_MS_MAX),
        claim_jitter_ms=_clamped("claim_jitter_ms", given.claim_jitter_ms, 0, 0, CLAIM_JITTER_MS_MAX),
        max_deliveries=_natural("max_deliveries", given.max_deliveries, DEFAULT.max_deliveries),
        dead_letter=_dead_letter(name, _or(given.dead_letter, None)),
        leases_durable=_or(given.leases_durable, DEFAULT.leases_durable),
    )


def effective_priority(config: TopicConfig, last_read_ms: int | None, now: int) -> int:
    """The priority in use at `now` (PR1): the topic's own, or one that halves with every 30 s without a read."""
    if config.priority is not None:
        return config.priority
    if not config.auto_priority or last_read_ms is None:
        return 0
    idle_ms = max(0, now - last_read_ms)
    return round(RECENT_PRIORITY * 2 ** (-idle_ms / PRIORITY_HALF_LIFE_MS)) if idle_ms < PRIORITY_IDLE_MS_MAX else 0


def _or(value: T | UnsetType, default: T) -> T:
    return default if isinstance(value, UnsetType) else value


def _natural(field: str, value: int | UnsetType, default: int) -> int:
    number = _or(value, default)
    if not 0 <= number <= SEQ_MAX:
        raise InvalidRequest(f"{field} is {number}; it must be between 0 and 2^64-1")
    return number


def _clamped(field: str, value: int | UnsetType, default: int, low: int, high: int) -> int:
    number = _or(value, default)
    if number < 0:
        raise InvalidRequest(f"{field} is {number}; it must not be negative")
    return max(low, min(high, number))


def _dead_letter(name: str, dead_letter: str | None) -> str | None:
    if dead_letter is not None and not is_topic_name(dead_letter):
        raise InvalidRequest(f'dead_letter "{dead_letter}" is not a valid topic name')
    if dead_letter == name:
        raise InvalidRequest(f'dead_letter "{dead_letter}" is the topic itself')
    return dead_letter
