"""A topic's config: defaults, clamps, and what is refused."""

from typing import Any

import msgspec
import pytest

from topics.core.topic.config import ConfigIn, resolve
from topics.errors import InvalidRequest, TopicIncompatible
from topics.model import SEQ_MAX, TopicConfig


def decoded(text: str) -> TopicConfig:
    return resolve("t", msgspec.json.decode(text, type=ConfigIn))


def test_the_seventeen_fields_have_their_defaults() -> None:
    """TP1"""
    assert msgspec.to_builtins(decoded("{}")) == {
        "type": "log",
        "ttl_ms": 0,
        "cap_records": 0,
        "cap_bytes": 0,
        "discard": "old",
        "durable": False,
        "durability": "disk",
        "priority": None,
        "auto_priority": True,
        "auto_create": True,
        "idempotency_window_ms": 120_000,
        "dedupe_node": True,
        "lease_ms": 30_000,
        "claim_jitter_ms": 0,
        "max_deliveries": 0,
        "dead_letter": None,
        "leases_durable": False,
    }


@pytest.mark.parametrize(
    ("given", "durability"),
    [
        ("{}", "disk"),
        ('{"durable":true}', "fsync"),
        ('{"durable":false}', "disk"),
        ('{"durable":true,"durability":"memory"}', "memory"),
        ('{"durable":false,"durability":"fsync"}', "fsync"),
        ('{"durable":true,"durability":null}', "fsync"),
        ('{"durability":null}', "disk"),
        ('{"durability":"ephemeral"}', "ephemeral"),
    ],
)
def test_an_explicit_class_beats_durable(given: str, durability: str) -> None:
    """TP2, CV19"""
    config = decoded(given)
    assert (config.durability, config.durable) == (durability, durability == "fsync")


@pytest.mark.parametrize(
    ("field", "given", "stored"),
    [
        ("lease_ms", "0", 100),
        ("lease_ms", "99", 100),
        ("lease_ms", "100", 100),
        ("lease_ms", "86400001", 86_400_000),
        ("lease_ms", "9" * 30, 86_400_000),
        ("claim_jitter_ms", "5001", 5000),
        ("claim_jitter_ms", "9" * 30, 5000),
        ("priority", "-1001", -1000),
        ("priority", "1001", 1000),
        ("priority", "-" + "9" * 30, -1000),
        ("priority", "9" * 30, 1000),
        ("priority", "null", None),
        ("dead_letter", "null", None),
        ("ttl_ms", str(SEQ_MAX), SEQ_MAX),
        ("cap_records", str(SEQ_MAX), SEQ_MAX),
        ("idempotency_window_ms", "0", 0),
    ],
)
def test_what_has_a_range_is_clamped_however_large(field: str, given: str, stored: Any) -> None:
    """TP3, CV18, CV19"""
    assert getattr(decoded(f'{{"{field}":{given}}}'), field) == stored


@pytest.mark.parametrize("field", ["ttl_ms", "cap_records", "cap_bytes", "idempotency_window_ms", "max_deliveries"])
@pytest.mark.parametrize("value", [-1, SEQ_MAX + 1])
def test_an_unclamped_number_is_exact_or_refused(field: str, value: int) -> None:
    """CV18"""
    with pytest.raises(InvalidRequest, match=field):
        resolve("t", ConfigIn(**{field: value}))


@pytest.mark.parametrize("field", ["lease_ms", "claim_jitter_ms"])
def test_a_negative_duration_is_refused(field: str) -> None:
    """CV18"""
    with pytest.raises(InvalidRequest, match=field):
        resolve("t", ConfigIn(**{field: -1}))


NULL_REFUSED = [name for name in ConfigIn.__struct_fields__ if name not in ("durability", "priority", "dead_letter")]


@pytest.mark.parametrize("field", NULL_REFUSED)
def test_null_is_refused_where_it_does_not_mean_absent(field: str) -> None:
    """CV19"""
    with pytest.raises(msgspec.ValidationError):
        msgspec.json.decode(f'{{"{field}":null}}', type=ConfigIn)


@pytest.mark.parametrize("field", ["ttl_ms", "lease_ms", "priority", "cap_bytes"])
@pytest.mark.parametrize("value", ["1.5", '"1"', "true", "[]"])
def test_a_number_of_another_type_is_refused(field: str, value: str) -> None:
    """TP1, CV18"""
    with pytest.raises(msgspec.ValidationError):
        msgspec.json.decode(f'{{"{field}":{value}}}', type=ConfigIn)


@pytest.mark.parametrize(
    "text", ['{"type":"LOG"}', '{"discard":"new"}', '{"durability":"tape"}', '{"durable":1}', '{"auto_create":"yes"}']
)
def test_an_unknown_word_is_refused(text: str) -> None:
    """TP1"""
    with pytest.raises(msgspec.ValidationError):
        msgspec.json.decode(text, type=ConfigIn)


@pytest.mark.parametrize("name", ["", "-x", "a b", "x" * 256, "t"])
def test_a_dead_letter_topic_is_a_valid_one_and_another(name: str) -> None:
    """TP4"""
    with pytest.raises(InvalidRequest, match="dead_letter"):
        resolve("t", ConfigIn(dead_letter=name))
    assert resolve("t", ConfigIn(dead_letter="u")).dead_letter == "u"


def test_an_omitted_type_is_kept_and_another_one_is_refused() -> None:
    """TP5"""
    queue = TopicConfig(type="queue", ttl_ms=9)
    assert resolve("t", ConfigIn(), queue) == TopicConfig(type="queue")
    assert resolve("t", ConfigIn(type="queue"), queue).type == "queue"
    with pytest.raises(TopicIncompatible) as refusal:
        resolve("t", ConfigIn(type="log"), queue)
    assert refusal.value.detail == {"topic": "t", "existing_type": "queue", "requested_type": "log"}


def test_queue_fields_are_kept_on_a_log() -> None:
    """TP1"""
    config = decoded('{"lease_ms":500,"max_deliveries":3,"leases_durable":true,"claim_jitter_ms":7}')
    assert (config.lease_ms, config.max_deliveries, config.leases_durable, config.claim_jitter_ms) == (500, 3, True, 7)
