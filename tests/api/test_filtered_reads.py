"""Reads with a filter that matches little: bounded work, progress, and nothing lost (LM13)."""

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.api.clients.events import follow
from tests.api.clients.transcript import Client
from tests.api.clients.websocket import open_socket
from tests.effort import turns_measured
from topics import client as clients
from topics.engine import Engine
from topics.model import EXAMINED_MIN, TagMatch
from topics.settings import Settings
from topics.testing.server import ServerThread

RECORDS = 150_000
TURN_S_MAX = 0.25  # of the loop; 0.05 is what is promised


@pytest.fixture(scope="module", params=[pytest.param("in memory", marks=pytest.mark.slow), "in segments"])
def full(request: pytest.FixtureRequest) -> Iterator[ServerThread]:
    """A server with a topic whose first and last record alone are tagged `rare`, and of the node `other`."""
    server = ServerThread().start()
    api = Client(server.address)
    body = {"records": [{"data": 1, "tag": "often", "node": "me"}] * 10_000}
    rare = {"records": [{"data": 2, "tag": "rare", "node": "other"}]}
    assert api.post("/v0/topics/t", rare).status == 201
    for _ in range(RECORDS // 10_000):
        assert api.post("/v0/topics/t?return_seqs=false", body).status == 200
    assert api.post("/v0/topics/t", rare).status == 200
    if request.param == "in segments":
        server.do(server.server.engine.checkpoint())
    yield server
    server.close()


@pytest.mark.parametrize("asked", [{"filter": "rare"}, {"filter": ["tag", "Glob", "ra*"]}, {"node": "me"}])
@pytest.mark.parametrize("wait_ms", [pytest.param(0, marks=pytest.mark.slow), 10_000])
def test_a_diff_answers_what_it_has(full: ServerThread, asked: dict[str, object], wait_ms: int) -> None:
    """LM13, DF3, DF6: pages may be empty, the cursor moves, and only the last one has caught up."""
    api, cursor, found, answers = Client(full.address), 0, [], 0
    while True:
        query = {"from_seq": cursor, "limit": 1000, "wait_ms": wait_ms, **asked}
        answer = api.post("/v0/topics/t/diff", query).json
        assert answer["next_from_seq"] > cursor
        assert answer["performance"]["records_scanned"] <= EXAMINED_MIN + 1024
        found += [record["$seq"] for record in answer["records"]]
        cursor, answers = answer["next_from_seq"], answers + 1
        assert answer["caught_up"] == (cursor == RECORDS + 2)
        if answer["caught_up"]:
            break
    assert found == [1, RECORDS + 2]
    assert answers > 1


@pytest.mark.parametrize("asked", [{"filter": "rare"}, {"node": "me"}])
def test_streams_pass_over_what_does_not_match(full: ServerThread, asked: dict[str, object]) -> None:
    """LM13, SS9, SS11: over SSE and WebSocket."""
    api = Client(full.address)
    with follow(api, "t", **asked) as stream:
        records = [record for _ in range(2) for record in stream.expect("record").data["records"]]
        assert [record["$seq"] for record in records] == [1, RECORDS + 2]
        assert stream.expect("caught-up").data["head_seq"] == RECORDS + 2
    with open_socket(api) as socket:
        socket.follow("t", **asked)
        messages = [socket.message() for _ in range(3)]
        assert [message["op"] for message in messages] == ["record", "record", "caught_up"]


def test_the_client_reads_on_through_empty_pages(full: ServerThread) -> None:
    """LM13, DF4: both clients."""
    url = f"http://{full.address[0]}:{full.address[1]}"
    with clients.Client(url) as client:
        assert [item.seq for item in client.consume("t", follow=False, filter="rare")] == [1, RECORDS + 2]

    async def read() -> list[int]:
        async with clients.AsyncClient(url) as client:
            return [item.seq async for item in client.consume("t", follow=False, filter="rare")]

    assert asyncio.run(read()) == [1, RECORDS + 2]


@pytest.mark.slow
async def test_no_turn_is_long(tmp_path: Path) -> None:
    """LM13, LM10: neither of records in memory nor of those in segments, whatever the filter."""
    engine = Engine.open(str(tmp_path), Settings())
    await engine.start()
    try:
        for _ in range(12):
            await engine.append("t", [{"data": 1, "tag": "often"}] * 10_000, node="me")
        for is_sealed in (False, True):
            if is_sealed:
                await engine.checkpoint()
            for asked in ({"match": TagMatch("Eq", "rare")}, {"nodes": ["me"]}):
                with turns_measured() as turns:
                    cursor = 0
                    while cursor < 120_000:
                        answer = await engine.read("t", cursor, **asked)
                        assert answer.next_from_seq > cursor and not answer.records
                        cursor = answer.next_from_seq
                        await asyncio.sleep(0)
                assert turns.worst_s < TURN_S_MAX, f"{asked}, sealed: {is_sealed}"
    finally:
        await engine.close()
