"""The hottest answers, put together from bytes: a write, a diff, a record, a claim and an ack.

Each gives what its struct in `replies` or `sights` describes, and the OpenAPI document says. Records and jobs are ready
texts, and a topic's name needs no escaping. Rules: CV5, CV9, CV11, Appendix A.
"""

import msgspec

from topics.engine.answers import Claimed, LeaseChange, ReadResult, RecordResult

_encode = msgspec.json.Encoder().encode


def write_answer(
    topic: bytes,
    first: int,
    last: int,
    head: int,
    performance: bytes,
    *,
    with_seqs: bool = True,
    created: bool = False,
    deduped: bool = False,
    more: bytes = b"",
) -> bytes:
    """The answer to a write. A topic's name needs no escaping; `more` are fields that are not in every answer."""
    if not with_seqs:
        seqs = b""
    elif first == last:
        seqs = b'"seqs":[%d],' % first
    else:
        seqs = b'"seqs":%b,' % _encode(list(range(first, last + 1)))
    return (
        b'{"topic":"%b","first_seq":%d,"last_seq":%d,%b"head_seq":%d,"count":%d,"created":%b,"deduped":%b%b,'
        b'"performance":%b}'
        % (
            topic,
            first,
            last,
            seqs,
            head,
            last - first + 1,
            b"true" if created else b"false",
            b"true" if deduped else b"false",
            more,
            performance,
        )
    )


def write_performance(total_ms: float, append_ms: float, fsync_ms: float, throttle_ms: float) -> bytes:
    """How long a write took."""
    return b'{"server_total_ms":%.3f,"wal_append_ms":%.3f,"fsync_ms":%.3f,"throttle_wait_ms":%.3f}' % (
        total_ms,
        append_ms,
        fsync_ms,
        throttle_ms,
    )


def diff_answer(result: ReadResult, total_ms: float, throttle_ms: float) -> bytes:
    """The answer to a diff; the records are ready texts."""
    tail = (
        b'],"next_from_seq":%d,"head_seq":%d,"earliest_seq":%d,"caught_up":%b,"tombstone":%b,"lag":%d,'
        b'"performance":{"server_total_ms":%.3f,"records_scanned":%d,"throttle_wait_ms":%.3f}}'
        % (
            result.next_from_seq,
            result.head_seq,
            result.earliest_seq,
            b"true" if result.caught_up else b"false",
            b"null" if result.tombstone is None else _encode(result.tombstone),
            result.lag,
            total_ms,
            result.scanned,
            throttle_ms,
        )
    )
    head = b'{"topic":"%b","epoch":%d,"records":[' % (result.topic.encode(), result.epoch)
    return b"".join((head, b",".join(result.texts), tail))


def claim_answer(claimed: Claimed, total_ms: float, throttle_ms: float) -> bytes:
    """The answer to a claim; the jobs are ready texts."""
    return (
        b'{"topic":"%b","claimed":[%b],"count":%d,"ready":%d,"paused":%b,'
        b'"performance":{"server_total_ms":%.3f,"throttle_wait_ms":%.3f}}'
        % (
            claimed.topic.encode(),
            b",".join(claimed.texts),
            len(claimed.texts),
            claimed.ready,
            b"true" if claimed.paused else b"false",
            total_ms,
            throttle_ms,
        )
    )


def ack_answer(changed: LeaseChange, total_ms: float, fsync_ms: float) -> bytes:
    """The answer to an ack."""
    return (
        b'{"topic":"%b","acked":%d,"skipped":[%b],"ready":%d,"in_flight":%d,'
        b'"performance":{"server_total_ms":%.3f,"fsync_ms":%.3f}}'
        % (
            changed.topic.encode(),
            len(changed.done),
            ",".join(map(str, changed.skipped)).encode(),
            changed.ready,
            changed.in_flight,
            total_ms,
            fsync_ms,
        )
    )


def record_answer(result: RecordResult, total_ms: float) -> bytes:
    """The answer to GET record; the record is a ready text."""
    return b'{"topic":"%b","epoch":%d,"record":%b,"performance":{"server_total_ms":%.3f}}' % (
        result.topic.encode(),
        result.epoch,
        result.text,
        total_ms,
    )
