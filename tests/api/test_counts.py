"""Lists beyond their limits: refused while they are decoded, or before; and bodies of requests that are no writes."""

import gzip
import time
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from typing import Any

import pytest

from tests.api.clients.raw import listed
from tests.api.clients.transcript import Client, ok, refused
from tests.api.clients.websocket import open_socket
from tests.api.conftest import Start
from topics.errors import BatchTooLarge, InvalidRequest, RecordTooLarge, TopicsError
from topics.server.wire.bulk import ndjson_in
from topics.server.wire.commands import publish_in, subscribe_in
from topics.server.wire.requests import ack_in, diff_in, watch_in, write_in
from topics.settings import Settings

MIB = 1024 * 1024
SETTINGS = Settings()
MANY = 1_000_000
CPU_S_MAX = 0.5  # ten times what is promised; each of these took seconds
FEW = replace(Settings(), max_batch_records=1000)
ONES = listed(b'{"data":1}', MANY)
NODES = listed(b'"abc"', 600_000)
SEQS = listed(b"1000", 800_000)


@cache
def topics() -> bytes:
    return b",".join(b'"t%d":{}' % number for number in range(300_000))


@pytest.mark.parametrize(
    ("decode", "refusal"),
    [
        (lambda: write_in(b'{"records":[%b]}' % ONES, Settings()), BatchTooLarge),
        (lambda: write_in(b'{"records":[%b],"records":[]}' % ONES, Settings()), BatchTooLarge),
        (lambda: publish_in(b'{"topic":"t","records":[%b]}' % ONES, Settings()), BatchTooLarge),
        (lambda: ndjson_in(ONES.replace(b",", b"\n"), Settings()), BatchTooLarge),
        (lambda: ndjson_in(ONES.replace(b",", b" "), Settings()), RecordTooLarge),
        (lambda: ndjson_in(b"\n" * 16 * MIB, Settings()), BatchTooLarge),
        (lambda: ndjson_in(b"\r" * 16 * MIB, Settings()), BatchTooLarge),
        (lambda: ack_in(b'{"node":"n","seqs":[%b]}' % SEQS, SETTINGS), BatchTooLarge),
        (lambda: ack_in(b'{"node":"n","seqs":[1],"lease_ids":[%b]}' % NODES, SETTINGS), InvalidRequest),
        (lambda: watch_in(b'{"topics":{%b}}' % topics(), SETTINGS), InvalidRequest),
        (lambda: watch_in(b'{"topics":{"t":{}},"node":[%b]}' % NODES, SETTINGS), InvalidRequest),
        (lambda: subscribe_in(b'{"op":"subscribe","topics":{%b}}' % topics(), SETTINGS), TopicsError),
        (lambda: diff_in(b'{"node":[%b]}' % NODES, SETTINGS), InvalidRequest),
    ],
    ids=[
        "write",
        "twice",
        "publish",
        "lines",
        "one line",
        "LF",
        "CR",
        "seqs",
        "leases",
        "topics",
        "nodes",
        "ws",
        "diff",
    ],
)
def test_a_count_beyond_its_limit_is_refused_before_all_is_decoded(
    decode: Callable[[], Any], refusal: type[TopicsError]
) -> None:
    """LM9"""
    began = time.process_time()
    with pytest.raises(refusal):
        decode()
    assert time.process_time() - began < CPU_S_MAX


@pytest.mark.parametrize("data", [b'"{{{{{{{{{{{{"', b'{"a":{"b":{"c":[{},{},{},{}]}}}'], ids=["text", "objects"])
def test_braces_within_records_are_not_counted_as_records(data: bytes) -> None:
    """LM9, WR3"""
    record = b'{"data":%b}' % data
    assert len(write_in(b'{"records":[%b],"node":"n"}' % b",".join([record] * 1000), FEW).records) == 1000
    assert len(publish_in(b'{"topic":"t","records":[%b]}' % b",".join([record] * 1000), FEW).records) == 1000
    assert len(ndjson_in(b"\r\n".join([record] * 1000), FEW)) == 1000
    with pytest.raises(BatchTooLarge, match="more than 1000"):
        write_in(b'{"records":[%b]}' % b",".join([record] * 5000), FEW)


def test_a_batch_at_the_limit_passes_whatever_its_records_hold(start: Start) -> None:
    """LM9, WR3"""
    api = Client(start(max_batch_records=100).address)
    record = {"data": [{} for _ in range(60)]}
    assert ok(api.post("/v0/topics/t", {"records": [record] * 100, "node": "n"}), 201, None)["last_seq"] == 100
    refused(api.post("/v0/topics/t", {"records": [record] * 101}), 400, "batch_too_large")
    assert api.state("t")["head_seq"] == 100


SMALL_ROUTES = [
    ("PUT", "/v0/topics/t"),
    ("POST", "/v0/topics/t/diff"),
    ("POST", "/v0/topics/t/delete"),
    ("POST", "/v0/topics/t/claim"),
    ("POST", "/v0/topics/t/ack"),
    ("POST", "/v0/topics/t/nack"),
    ("POST", "/v0/topics/t/extend"),
    ("POST", "/v0/topics/t/redrive"),
    ("PUT", "/v0/routers/r"),
    ("POST", "/v0/watch"),
]


@pytest.mark.parametrize(("method", "path"), SMALL_ROUTES, ids=[" ".join(route) for route in SMALL_ROUTES])
def test_a_request_that_is_no_write_has_a_smaller_body(api: Client, method: str, path: str) -> None:
    """LM9: as announced, as sent in chunks, and as inflated."""
    body = b'{"x":"%b"}' % (b"y" * 4 * MIB)
    refused(api.ask(method, path, body), 413, "payload_too_large")
    chunks = b"%x\r\n%b\r\n0\r\n\r\n" % (len(body), body)
    refused(api.ask(method, path, chunks, "Transfer-Encoding: chunked"), 413, "payload_too_large")
    refused(api.ask(method, path, gzip.compress(body), "Content-Encoding: gzip"), 413, "payload_too_large")


def test_the_limit_of_all_bodies_counts_if_it_is_lower(start: Start) -> None:
    """LM9"""
    api = Client(start(max_body_bytes=1000).address)
    refused(api.post("/v0/watch", b'{"x":"%b"}' % (b"y" * 1000)), 413, "payload_too_large")


def test_a_write_may_have_a_large_body(api: Client, topic: str) -> None:
    """LM9, CV2"""
    records = [{"data": "x" * 1_000_000}] * 5
    ok(api.post(f"/v0/topics/{topic}", {"records": records}), 201, None)


def test_a_command_that_is_no_publish_has_a_smaller_message(api: Client, topic: str) -> None:
    """LM9"""
    with open_socket(api) as socket:
        for op in ("subscribe", "unsubscribe"):
            assert socket.ask(op, topic=topic, x="y" * 4 * MIB)["code"] == "payload_too_large"
        answer = socket.ask("publish", topic=topic, records=[{"data": "y" * 1_000_000}] * 5)
        assert answer["last_seq"] == 5
