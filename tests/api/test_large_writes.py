"""Large writes: decoded beside the loop, in one piece in the log, in small pieces in memory (LM10)."""

import asyncio
import json

import pytest

from tests.api.clients.raw import listed
from tests.api.clients.transcript import Client, ok, refused
from tests.api.clients.websocket import client_frame, open_socket
from tests.api.conftest import Start
from tests.effort import Turns
from topics.core.topic.parts import Chunk
from topics.core.topic.records import CUT_BYTES, parse_write
from topics.settings import Settings
from topics.testing.server import ServerThread

DENSE = b'{"data":[%b],"tag":"t","meta":{"m":1}}' % listed(b"1", 2000)
BODY = b'{"records":[%b],"node":"n"}' % listed(DENSE, 5000)
LEAST = b'{"records":[%b],"node":"n"}' % listed(DENSE, 600)  # for what goes the same way whatever its size
NDJSON = "Content-Type: application/x-ndjson"


@pytest.fixture
def server(start: Start) -> ServerThread:
    return start()


@pytest.mark.slow
def test_a_large_body_is_kept_in_pieces_that_are_cheap_to_read() -> None:
    """LM10: a reader of one record does not decode all of them."""
    assert len(BODY) > len(LEAST) > CUT_BYTES
    _, batch = parse_write(BODY, Settings())
    assert batch.pieces is not None and batch.body == BODY
    assert max(len(body) for body, _ in batch.pieces) < CUT_BYTES
    assert [size for _, sizes in batch.pieces for size in sizes] == list(batch.sizes)
    records = [record for body, _ in batch.pieces for record in json.loads(body)["records"]]
    assert records == json.loads(BODY)["records"]
    assert all(json.loads(body)["node"] == "n" for body, _ in batch.pieces)


@pytest.mark.slow
def test_it_is_written_and_read_as_any_other(server: ServerThread) -> None:
    """LM10, WR1, WR5: before and after a restart."""
    api = Client(server.address)
    assert ok(api.post("/v0/topics/t?return_seqs=false", BODY), 201)["last_seq"] == 5000
    chunks = server.run(lambda: list(server.server.engine.state.topics["t"].log.parts))
    assert len(chunks) > 10 and all(isinstance(part, Chunk) for part in chunks)
    again = ServerThread(disk=server.disk.kill()).start()  # type: ignore[attr-defined]
    try:
        for reader in (api, Client(again.address)):
            answer = reader.post("/v0/topics/t/diff", {"from_seq": 4990, "limit": 100, "include_tags": True}).json
            assert [record["$seq"] for record in answer["records"]] == list(range(4991, 5001))
            expected = {"$node": "n", "$tag": "t", "data": [1] * 2000, "meta": {"m": 1}}
            assert all(expected.items() <= record.items() for record in answer["records"])
    finally:
        again.close()


@pytest.mark.slow
def test_others_have_their_turns_while_it_is_decoded(server: ServerThread) -> None:
    """LM10: whoever decodes lets go of the interpreter between two records."""
    api, app = Client(server.address), server.server.app
    turns_meanwhile = 0

    class Counting(Turns):
        def _turn(self) -> None:
            nonlocal turns_meanwhile
            turns_meanwhile += app.decoding.locked()
            super()._turn()

    async def begin() -> Turns:
        return Counting(asyncio.get_running_loop())

    turns = server.do(begin())
    for _ in range(4):
        ok(api.post("/v0/topics/t?return_seqs=false", BODY), 200 if _ else 201)
    server.run(turns.stop)
    assert turns_meanwhile >= 4


@pytest.mark.parametrize(
    ("body", "status", "code", "headers"),
    [
        (LEAST[:-1], 400, "invalid_request", ()),
        (LEAST.replace(b'"meta":{"m":1}', b'"meta":"m"'), 400, "invalid_request", ()),
        (LEAST + b" " * 10 + b"x", 400, "invalid_request", ()),
        (b'{"records":[%b]}' % listed(b'{"data":1}', 200_000), 400, "batch_too_large", ()),
        (b'{"records":[{"data":"%b"}]}' % (b"x" * 2_000_000), 400, "record_too_large", ()),
        (b"\n".join([DENSE] * 1000 + [b"{}"]), 400, "invalid_request", (NDJSON,)),
    ],
    ids=["cut short", "a meta", "trailing", "too many", "too large", "a line"],
)
def test_what_is_refused_leaves_nothing(
    server: ServerThread, body: bytes, status: int, code: str, headers: tuple[str, ...]
) -> None:
    """LM10, WR3, WR4: as of a small write."""
    api = Client(server.address)
    refused(api.post("/v0/topics/t", body, *headers), status, code)
    assert api.get("/v0/topics/t").status == 404


def test_the_order_of_one_connection_is_kept(server: ServerThread) -> None:
    """LM10, WR5: a small write behind a large one."""
    api = Client(server.address)
    with api.connect() as connection:
        connection.send(
            api.request("POST", "/v0/topics/t?return_seqs=false", BODY)
            + api.request("POST", "/v0/topics/t?return_seqs=false", {"records": [{"data": "small"}]})
        )
        assert connection.reply().json["first_seq"] == 1
        assert connection.reply().json["first_seq"] == 5001


# --- over a WebSocket

OPENING = b'{"op":"publish","topic":"t","return_seqs":false,"request_id":"large",'
PUBLISH = OPENING + BODY[1:]
LEAST_PUBLISH = OPENING + LEAST[1:]


@pytest.mark.slow
def test_a_large_publish_is_decoded_beside_the_loop_and_answered_in_its_order(server: ServerThread) -> None:
    """LM10, WS6: small commands before and behind it."""
    api, app = Client(server.address), server.server.app
    decoded_meanwhile = 0

    class Counting(Turns):
        def _turn(self) -> None:
            nonlocal decoded_meanwhile
            decoded_meanwhile += app.decoding.locked()
            super()._turn()

    async def begin() -> Turns:
        return Counting(asyncio.get_running_loop())

    turns = server.do(begin())
    with open_socket(api) as socket:
        for _ in range(3):
            socket.say("ping", request_id="before")
            socket.send(client_frame(1, PUBLISH))
            socket.say("publish", request_id="small", topic="t", records=[{"data": "small"}])
        answers = [socket.message() for _ in range(9)]
    server.run(turns.stop)
    assert [answer["request_id"] for answer in answers] == ["before", "large", "small"] * 3
    assert [answer["last_seq"] for answer in answers if "last_seq" in answer] == [
        5000,
        5001,
        10001,
        10002,
        15002,
        15003,
    ]
    assert decoded_meanwhile >= 3
    records = ok(api.post("/v0/topics/t/diff", {"from_seq": 4999, "limit": 2}))["records"]
    assert [record["data"] for record in records] == [[1] * 2000, "small"]


@pytest.mark.parametrize(
    ("message", "code", "request_id"),
    [
        (LEAST_PUBLISH[:-1], "invalid_json", None),
        (b"[%b]" % LEAST_PUBLISH, "invalid_request", None),
        (b'"%b"' % (b"x" * 2_000_000), "invalid_request", None),
        (b"x%b" % LEAST_PUBLISH, "invalid_json", None),
        (LEAST_PUBLISH.replace(b'"meta":{"m":1}', b'"meta":"m"'), "invalid_request", "large"),
        (LEAST_PUBLISH.replace(b'"tag":"t"', b'"tag":7', 1), "invalid_request", "large"),
        (LEAST_PUBLISH.replace(b"publish", b"nothing", 1), "invalid_request", "large"),
        (LEAST_PUBLISH.replace(b'"records"', b'"other"', 1), "invalid_request", "large"),
        (PUBLISH.replace(b"publish", b"subscribe", 1), "payload_too_large", "large"),
        (
            b'{"op":"publish","topic":"t","records":[%b],"request_id":"large"}' % listed(b'{"data":1}', 200_000),
            "batch_too_large",
            "large",
        ),
        (
            b'{"op":"publish","topic":"t","records":[{"data":"%b"}],"request_id":"large"}' % (b"x" * 2_000_000),
            "record_too_large",
            "large",
        ),
        (
            b'{"op":"publish","topic":"t","request_id":"large","records":[{"data":[ %b]}]}' % listed(b"-1", 2_000_000),
            "record_too_large",
            "large",
        ),
    ],
    ids=[
        "cut short",
        "an array",
        "a text",
        "no JSON",
        "a meta",
        "a tag",
        "no such op",
        "no records",
        "not a publish",
        "too many",
        "too large",
        "cut in a number",
    ],
)
def test_a_large_message_is_refused_as_a_small_one_is(
    server: ServerThread, message: bytes, code: str, request_id: str | None
) -> None:
    """LM10, LM9, WS5: and the socket goes on."""
    api = Client(server.address)
    with open_socket(api) as socket:
        socket.send(client_frame(1, message))
        answer = socket.message()
        assert (answer["code"], answer.get("request_id")) == (code, request_id), answer
        assert socket.ask("ping", request_id=1)["request_id"] == 1
    assert api.get("/v0/topics/t").status == 404


@pytest.mark.slow
def test_a_client_that_leaves_while_its_publish_is_decoded_harms_nobody(server: ServerThread) -> None:
    """LM10, LM5"""
    api = Client(server.address)
    for _ in range(3):
        with open_socket(api) as socket:
            socket.send(client_frame(1, PUBLISH))
    server.until(lambda: not server.server.app.slots.streams and not server.server.app.decoding.locked())
    with open_socket(api) as socket:
        assert socket.ask("publish", topic="u", records=[{"data": 1}])["last_seq"] == 1
