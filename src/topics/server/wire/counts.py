"""Counts that are refused before, or while, what they count is decoded (LM9).

Owns the decoding of writes, which stops at the record that is one too many, and a look at the other lists of large
bodies before anything is made of them. Work and memory are bounded by the limit and not by the body. Must not know:
what requests mean, who is calling.

A small body is decoded straight away: it cannot hold enough to matter. So is one with few braces, since every record
has one; only beyond that are records counted one by one. Large ones are taken apart (`large`).
"""

import threading
from collections.abc import Callable
from typing import Any, Final, TypeVar

import msgspec
from msgspec import Raw, Struct

from topics.core.topic.records import Limits, RecordIn, WriteIn, decode_json
from topics.errors import BatchTooLarge, InvalidRequest
from topics.server.wire.large import LARGE_BYTES, put_together, take_apart

W = TypeVar("W", bound=WriteIn)

RECORD_BYTES_MIN: Final = 10  # {"data":1}
UNCOUNTED_TIMES: Final = 4  # so many times the limit is decoded, at worst, before it is noticed
SMALL_BYTES: Final = 64 * 1024  # lists in a body up to here are counted when they are decoded
COUNTED_SLICE_BYTES: Final = 1024 * 1024
NO_LIST: Final = Raw()


class _Count(threading.local):
    """How many more records the decode under way in this thread may make."""

    left = 0
    records_max = 0


_count = _Count()


class CountedRecord(RecordIn, gc=False, omit_defaults=True):
    """A record of a write that may have too many."""

    def __post_init__(self) -> None:
        _count.left -= 1
        if _count.left < 0:
            raise BatchTooLarge(f"records has more than {_count.records_max} records")


class _Lists(Struct, frozen=True):
    """The lists of all requests but writes, as text."""

    seqs: Raw = NO_LIST
    lease_ids: Raw = NO_LIST
    node: Raw = NO_LIST
    topics: Raw = NO_LIST


_decode_lists = msgspec.json.Decoder(_Lists).decode


def may_exceed(body: bytes, records_max: int) -> bool:
    """Whether a body may hold so many records that they have to be counted as they are decoded."""
    most = UNCOUNTED_TIMES * records_max
    return len(body) > RECORD_BYTES_MIN * most and exceeds(body, b"{", most)


def exceeds(body: bytes, what: bytes, count_max: int) -> bool:
    """Whether `what` occurs more than `count_max` times; reads no further than it has to."""
    count = 0
    for start in range(0, len(body), COUNTED_SLICE_BYTES):
        count += body.count(what, start, start + COUNTED_SLICE_BYTES)
        if count > count_max:
            return True
    return False


def decode_counted(decode: Any, body: bytes, records_max: int) -> Any:
    """Decode what consists of `CountedRecord`."""
    _count.left = _count.records_max = records_max
    return decode_json(decode, body)


def write_decoder(kind: type[W], counted_kind: type[W]) -> Callable[[bytes, Limits], W]:
    """What decodes writes of one kind, whatever their size; `counted_kind` has CountedRecords. A large one blocks."""
    decode = msgspec.json.Decoder(kind).decode
    decode_each = msgspec.json.Decoder(counted_kind).decode

    def decode_write(body: bytes, limits: Limits) -> W:
        if len(body) > LARGE_BYTES:
            return put_together(decode, take_apart(body, limits))  # type: ignore[no-any-return]
        if may_exceed(body, limits.max_batch_records):
            return decode_counted(decode_each, body, limits.max_batch_records)  # type: ignore[no-any-return]
        return decode_json(decode, body)  # type: ignore[no-any-return]

    return decode_write


def check_lists(
    body: bytes, *, claim_max: int = 0, topics_max: int = 0, nodes_max: int = 0, node_bytes: int = 0
) -> None:
    """Refuse lists that are too long from their text; a limit of 0: the request has no such list.

    A list of numbers has a comma between any two, a topic an object of its own, a node a bounded length.
    """
    if len(body) <= SMALL_BYTES:
        return
    given: _Lists = decode_json(_decode_lists, body)
    if claim_max and bytes(given.seqs).count(b",") >= claim_max:
        raise BatchTooLarge(f"seqs has more than {claim_max} jobs")
    if claim_max and bytes(given.lease_ids).count(b",") >= claim_max:
        raise InvalidRequest(f"lease_ids has more than {claim_max} entries; each job has one")
    if topics_max and bytes(given.topics).count(b"{") > UNCOUNTED_TIMES * (topics_max + 1):
        raise InvalidRequest(f"topics has more than {topics_max} topics")
    if nodes_max and len(given.node) > nodes_max * (6 * node_bytes + 8):
        raise InvalidRequest(
            f"node is {len(given.node)} bytes long; {nodes_max} ids of {node_bytes} bytes are the most"
        )
