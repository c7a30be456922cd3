"""Claims and acks of many connections that the server reads in one turn of its loop, over the wire in memory."""

import json
from typing import Any

import pytest

from tests.api.clients.transcript import request_bytes
from tests.pipelining.test_wire import served, until
from topics.server.main import Server
from topics.testing.wire import Line, Wire

WORKERS = 20


async def asked(lines: list[Line], requests: list[bytes]) -> list[tuple[int, Any]]:
    """The answers to requests that come in one turn, one on each line: status and body."""
    for line, request in zip(lines, requests, strict=True):
        line.send(request)
    heard = [b""] * len(lines)

    def is_heard() -> bool:
        for at, line in enumerate(lines):
            heard[at] += line.take()
        return all(text.endswith(b"}") for text in heard)

    await until(is_heard)
    return [(int(text.split()[1]), json.loads(text.partition(b"\r\n\r\n")[2])) for text in heard]


def claim(node: str, count: int = 3, topic: str = "q") -> bytes:
    return request_bytes("POST", f"/v0/topics/{topic}/claim", {"node": node, "max": count})


def ack(node: str, *seqs: int, topic: str = "q") -> bytes:
    return request_bytes("POST", f"/v0/topics/{topic}/ack", {"node": node, "seqs": seqs})


async def queue_of(server: Server, jobs: int, **config: object) -> list[Line]:
    """Connections to a server with a queue that has so many jobs."""
    wire = Wire(server.listener.connections)
    lines = [wire.connect() for _ in range(WORKERS)]
    await asked(lines[:1], [request_bytes("PUT", "/v0/topics/q", {"type": "queue", **config})])
    records = [{"data": number} for number in range(1, jobs + 1)]
    await asked(lines[:1], [request_bytes("POST", "/v0/topics/q", {"records": records})])
    return lines


@pytest.mark.parametrize("durability", ["ephemeral", "disk", "fsync"])
async def test_workers_of_one_turn_share_a_frame_and_each_has_its_answer(durability: str) -> None:
    """QU4, QU5, QU9, QU20, LM10"""
    async with served() as server:
        lines = await queue_of(server, 54, durability=durability)
        answers = await asked(lines, [claim(f"w{n}") for n in range(WORKERS)])
        hands = [[job["$seq"] for job in body["claimed"]] for _, body in answers]
        assert hands == [*([seq, seq + 1, seq + 2] for seq in range(1, 55, 3)), [], []]
        assert len({job["lease_id"] for _, body in answers for job in body["claimed"]}) == 54
        assert server.engine._turns._is_crowded
        frames = server.engine.wal.counters.frames
        requests = [ack(f"w{n}", *hand) for n, hand in enumerate(hands[:18])]
        requests += [ack("w0", 1, 2, 55), request_bytes("POST", "/v0/topics/q/ack", {"node": "w1", "seqs": []})]
        answers = await asked(lines, requests)
        assert [status for status, _ in answers] == [200] * 19 + [400]
        assert [(body["acked"], body["skipped"]) for _, body in answers[:19]] == [(3, [])] * 18 + [(0, [1, 2, 55])]
        assert {(body["ready"], body["in_flight"]) for _, body in answers[:19]} == {(0, 0)}
        assert server.engine.wal.counters.frames - frames <= 2 * (durability != "ephemeral"), (
            "the first, and the others"
        )


async def test_claims_and_acks_of_one_turn_are_refused_one_by_one() -> None:
    """QU1, QU9, TP2, CV3: others of the turn are served."""
    async with served() as server:
        lines = await queue_of(server, 4)
        await asked(lines[:1], [request_bytes("PUT", "/v0/topics/log", {})])
        requests = [claim("a", 2), claim("b", 1, "none"), claim("c", 1, "log"), claim("", 1), claim("d", 2)]
        answers = await asked(lines[:5], requests)
        assert [status for status, _ in answers] == [200, 404, 409, 400, 200]
        assert [[job["$seq"] for job in answers[at][1]["claimed"]] for at in (0, 4)] == [[1, 2], [3, 4]]
        requests = [ack("a", 1, topic="none"), ack("a", 1, topic="log"), ack("a", 1), ack("d", 3)]
        answers = await asked(lines[:4], requests)
        assert [status for status, _ in answers] == [404, 409, 200, 200]


async def test_a_client_that_is_gone_when_its_ack_is_done_has_acked() -> None:
    """QU9"""
    async with served() as server:
        lines = await queue_of(server, 2)
        await asked(lines[:1], [claim("a", 2)])
        lines[0].send(ack("a", 1))
        lines[0].end()
        lines[1].send(ack("a", 2))
        await until(lambda: lines[1].take())
        assert server.engine.state.topics["q"].log.count == 0
