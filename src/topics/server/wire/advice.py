"""Warnings about a config that is accepted, and probably not what was meant (WN1).

A field that nobody knows is ignored (CV4); here its name is noticed, with the known one that is nearest. A warning
never refuses anything. Must not know: which topics there are, who is calling.
"""

from collections.abc import Iterator
from typing import Final, Literal

import msgspec
from msgspec import UNSET, Raw, Struct

from topics.core.topic.config import ConfigIn
from topics.faults import nearest, quoted
from topics.model import TopicConfig

UNKNOWN_FIELDS_MAX: Final = 20  # that are named
NAMES_BYTES_MAX: Final = 64 * 1024  # of a config whose names are looked at; all known fields take less than 1 KiB

Code = Literal[
    "unknown_field",
    "dead_letter_missing",
    "queue_discards_old",
    "ttl_below_lease",
    "cap_below_batch",
    "window_above_ttl",
]


class Warned(Struct, frozen=True):
    """Something about a config that its author should know."""

    code: Code
    field: str
    message: str


class _Inline(Struct, gc=False):
    """A write, as far as its config goes."""

    config: Raw = Raw()


_decode_names = msgspec.json.Decoder(dict[str, Raw]).decode
_decode_inline = msgspec.json.Decoder(_Inline).decode


def advice_on_put(body: bytes, given: ConfigIn, config: TopicConfig) -> list[Warned]:
    """Warnings about a PUT of a topic. `body` was decoded before, to `given`, and stands for `config`."""
    return _advice(body, given, config)


def advice_on_inline(body: bytes, given: ConfigIn, config: TopicConfig) -> list[Warned]:
    """Warnings about the config in a write."""
    return _advice(bytes(_decode_inline(body).config), given, config)


def _advice(text: bytes, given: ConfigIn, config: TopicConfig) -> list[Warned]:
    known = type(given).__struct_fields__
    names = _decode_names(text) if 0 < len(text) <= NAMES_BYTES_MAX else {}
    unknown = [name for name in names if name not in known]
    return [_unknown(name, known) for name in unknown[:UNKNOWN_FIELDS_MAX]] + list(_doubts(given, config))


def _unknown(name: str, known: tuple[str, ...]) -> Warned:
    close = nearest(name, known)
    hint = f"did you mean {close}?" if close is not None else f"the nearest field is {nearest(name, known, 0.0)}"
    return Warned("unknown_field", name, f"{quoted(name)} is not a field of a config and is ignored; {hint}")


def _doubts(given: ConfigIn, config: TopicConfig) -> Iterator[Warned]:
    is_queue = config.type == "queue"
    if given.max_deliveries is not UNSET and config.max_deliveries and config.dead_letter is None:
        yield Warned(
            "dead_letter_missing",
            "max_deliveries",
            f"max_deliveries is {config.max_deliveries}, but without a dead_letter topic jobs are delivered for ever",
        )
    if is_queue and config.discard == "old" and (config.cap_records or config.cap_bytes):
        yield Warned(
            "queue_discards_old",
            "discard",
            'a full queue drops its oldest jobs, done or not; with discard "reject" it refuses new ones instead',
        )
    if is_queue and 0 < config.ttl_ms < config.lease_ms:
        yield Warned(
            "ttl_below_lease",
            "ttl_ms",
            f"jobs expire after {config.ttl_ms} ms, while they are held: a lease lasts {config.lease_ms} ms",
        )
    if config.cap_records == 1:
        yield Warned("cap_below_batch", "cap_records", "cap_records is 1: of each batch only the last record can stay")
    window_ms = config.idempotency_window_ms
    if given.idempotency_window_ms is not UNSET and 0 < config.ttl_ms < window_ms:
        yield Warned(
            "window_above_ttl",
            "idempotency_window_ms",
            f"keys are remembered for {window_ms} ms, their records expire after {config.ttl_ms} ms: a repeat may be "
            "answered with seqs that are gone",
        )
