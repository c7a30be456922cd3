"""Gzip bodies that are made to hurt: the work is linear, in steps, and ends with whoever asked for it."""

import gzip
import json
import socket
import struct
import time
from base64 import b64encode
from random import Random

import pytest

from tests.api.clients.transcript import Client, refused
from tests.api.conftest import Start
from topics.errors import InvalidRequest, PayloadTooLarge
from topics.server.transport.encoding import INFLATE_STEP_BYTES, MEMBERS_MAX, MEMBERS_PER_STEP, Inflation, inflate
from topics.testing.server import ServerThread

MIB = 1024 * 1024
EMPTY = gzip.compress(b"")
NOISE = Random(4711).randbytes(3 * MIB)
CPU_S_MAX = 4.0  # some twenty times what is needed
LARGE = gzip.compress(json.dumps({"records": [{"data": b64encode(NOISE[:30_000]).decode()}]}).encode())


def steps(body: bytes, bytes_max: int = 64 * MIB) -> tuple[int, bytes]:
    """How many steps a body takes, and what it says."""
    inflation, count = Inflation(body, bytes_max), 1
    while inflation.step():
        count += 1
    return count, inflation.result()


@pytest.mark.parametrize(
    "said",
    [
        [],
        [b""],
        [b"one"],
        [b"", b"one", b"", b"two"],
        [NOISE],
        [bytes(3 * MIB)],
        [NOISE, bytes(2 * MIB), b"", b"\0"],
        [NOISE[n : n + 500] for n in range(0, 200_000, 500)],
    ],
    ids=["nothing", "empty", "one", "some empty", "noise", "zeros", "mixed", "many"],
)
@pytest.mark.parametrize("padding", [b"", b"\0", bytes(5000)], ids=["bare", "a zero", "zeros"])
def test_all_members_are_unpacked_whatever_lies_between_them(said: list[bytes], padding: bytes) -> None:
    """CV7"""
    body = b"".join(gzip.compress(part) + padding for part in said)
    assert inflate(body, 64 * MIB) == b"".join(said)


def test_empty_members_take_linear_time() -> None:
    """LM9, LM10: their number made the time square."""
    began = time.process_time()
    assert inflate(EMPTY * MEMBERS_MAX, MIB) == b""
    assert time.process_time() - began < CPU_S_MAX


def test_there_may_be_only_so_many_members() -> None:
    """LM9"""
    with pytest.raises(InvalidRequest, match="more than 100000 members"):
        inflate(EMPTY * (MEMBERS_MAX + 1), MIB)


def test_a_step_is_a_bounded_piece_of_work() -> None:
    """LM10: of members, of output, and of input that gives no output."""
    assert steps(EMPTY * 10_000)[0] >= 10_000 // MEMBERS_PER_STEP
    assert steps(gzip.compress(bytes(16 * MIB)))[0] >= 16 * MIB // INFLATE_STEP_BYTES
    assert steps(EMPTY + bytes(16 * MIB))[0] >= 16 * MIB // (2 * INFLATE_STEP_BYTES)
    no_output = EMPTY[:10] + b"\0\0\0\xff\xff" * MIB + EMPTY[10:]  # stored blocks without content
    assert steps(no_output)[0] >= 5


@pytest.mark.slow
def test_a_bomb_is_left_as_soon_as_it_is_known() -> None:
    """CV7, LM9"""
    inflation = Inflation(gzip.compress(bytes(64 * MIB)), 3 * MIB)
    with pytest.raises(PayloadTooLarge):
        next(n for n in range(6) if not inflation.step())


# --- over the wire: inflation waits for a turn, until the test gives it one


def hold_up(server: ServerThread) -> None:
    """Take all turns."""
    turns = server.server.app._inflating
    while not turns.locked():
        server.do(turns.acquire())


def let_go(server: ServerThread) -> None:
    server.run(server.server.app._inflating.release)


def test_a_body_is_not_inflated_for_a_client_that_is_gone(start: Start) -> None:
    """LM10"""
    server = start()
    api, app = Client(server.address), server.server.app
    hold_up(server)
    with api.connect() as connection:
        connection.send(api.request("POST", "/v0/topics/t", LARGE, "Content-Encoding: gzip"))
        server.until(lambda: app.slots.running)
        connection.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))  # a reset
    server.until(lambda: not server.server.listener.connections.open)
    let_go(server)
    server.until(lambda: not app.slots.running)
    refused(api.get("/v0/topics/t"), 404, "topic_not_found")


def test_a_client_that_only_ends_its_side_is_answered(start: Start) -> None:
    """CV7"""
    server = start()
    api, app = Client(server.address), server.server.app
    hold_up(server)
    with api.connect() as connection:
        connection.send(api.request("POST", "/v0/topics/t", LARGE, "Content-Encoding: gzip"))
        server.until(lambda: app.slots.running)
        connection.socket.shutdown(1)
        let_go(server)
        assert connection.reply().status == 201


def test_a_body_is_not_inflated_for_a_server_that_stops(start: Start) -> None:
    """LM10, SC3: nothing has been done yet, so the client is told to come again."""
    server = start()
    api, app = Client(server.address), server.server.app
    hold_up(server)
    with api.connect() as connection:
        connection.send(api.request("POST", "/v0/topics/t", LARGE, "Content-Encoding: gzip"))
        server.until(lambda: app.slots.running)
        closing = server.start_closing()
        server.until(lambda: app.is_draining)
        let_go(server)
        refused(connection.reply(), 503, "shutting_down", None)
        closing.result()
