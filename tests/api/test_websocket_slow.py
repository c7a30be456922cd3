"""WebSocket clients that do not read, and clients that say more than is answered: bounds, push-back, the end."""

import socket
from typing import Any

import pytest

from tests.api.clients.transcript import Client
from tests.api.clients.websocket import CLOSE, PING, PONG, TEXT, Frame, Socket, client_frame, open_socket, text
from tests.api.conftest import Start
from topics.server.live.conversation import AHEAD_BYTES_MAX, AHEAD_MAX, ANSWERS_MAX, Conversation
from topics.testing.disk import MemoryDisk
from topics.testing.patience import PATIENCE_S
from topics.testing.server import ServerThread

LARGE = "x" * 20_000
BUFFERED_MAX = 4 * 1024 * 1024  # what a server holds for one client at most, beyond its kernel's buffer


def talks(server: ServerThread) -> list[Conversation]:
    return [one for one in server.server.app.registry if isinstance(one, Conversation)]


def block(server: ServerThread, topic: str, **fields: Any) -> tuple[Socket, Conversation]:
    """A client that follows a topic with much in it, and has read nothing but the answer to that."""
    before = server.run(lambda: set(talks(server)))
    ws = open_socket(Client(server.address))
    (talk,) = server.run(lambda: set(talks(server)) - before)
    ws.follow(topic, **fields)
    server.until(lambda: talk.is_blocked)
    return ws, talk


def fill(api: Client, topic: str, count: int, first: int = 0) -> None:
    for n in range(first, first + count, 50):
        api.write(topic, *([m, LARGE] for m in range(n, n + 50)))


def numbers(ws: Socket, count: int) -> list[int]:
    return [value[0] for value in ws.data(count)]


@pytest.mark.slow
def test_a_client_that_does_not_read_costs_a_bounded_buffer_and_delays_nobody(start: Start, topic: str) -> None:
    """WS8, SS19"""
    server = start()
    api = Client(server.address)
    fill(api, topic, 500)
    slow, talk = block(server, topic)
    with slow, open_socket(api) as quick:
        quick.follow(topic, tail=True)
        assert quick.expect("caught_up")
        held = server.run(lambda: talk.buffered)
        fill(api, topic, 500, 500)
        assert numbers(quick, 500) == list(range(500, 1000))
        assert server.run(lambda: talk.buffered) <= held <= BUFFERED_MAX
        assert numbers(slow, 1000) == list(range(1000))


def test_after_a_stall_nothing_is_missing_and_nothing_comes_twice(start: Start, topic: str) -> None:
    """SS26, TM13: a lossless topic just lags; a trimmed one says so, with the plain reason."""
    server = start()
    api = Client(server.address)
    fill(api, topic, 500)
    ws, _ = block(server, topic)
    with ws:
        for _ in range(5):
            server.advance(5000)
        fill(api, topic, 100, 500)
        assert numbers(ws, 600) == list(range(600))
        assert ws.expect("caught_up")["head_seq"] == 600
    api.put(f"/v0/topics/{topic}", {"cap_records": 400})
    api.post(f"/v0/topics/{topic}/delete", {"before_seq": 1})
    fill(api, topic, 100, 600)
    ws, _ = block(server, topic, from_seq=300)
    with ws:
        server.advance(6000)
        fill(api, topic, 400, 700)
        found: list[int] = []
        lost: list[int] = []
        while len(found) + len(lost) < 800:
            message = ws.message()
            if message["op"] == "tombstone":
                assert message["reason"] == "cap"
                lost += range(message["gap_from"], message["gap_to"] + 1)
            elif message["op"] == "record":
                found += [record["$seq"] for record in message["records"]]
        assert sorted(found + lost) == list(range(301, 1101))
        assert found == sorted(found) and lost


def test_a_client_that_reads_nothing_for_30_s_is_told_and_cut_off(start: Start, topic: str) -> None:
    """WS8, SS26, LM5"""
    server = start()
    api = Client(server.address)
    fill(api, topic, 500)
    ws, talk = block(server, topic)
    with ws:
        until_over(server, talk)
        last = None
        while (frame := ws.frame()).opcode != CLOSE:
            last = frame if frame.opcode == TEXT else last
        assert last is not None and b'"op":"error","code":"too_slow"' in last.payload
        assert frame.close_code == 1008
        assert ws.at_end()
    server.until(lambda: not server.server.app.slots.streams)
    assert server.run(lambda: server.server.app.delivery._hubs) == {}


def test_one_that_reads_nothing_at_all_is_cut_off_just_the_same(start: Start, topic: str) -> None:
    """WS8, SS26, LM5: the last words need not be heard."""
    server = start()
    api = Client(server.address)
    fill(api, topic, 500)
    ws, talk = block(server, topic)
    with ws:
        until_over(server, talk)
        server.advance(5000)
        server.until(lambda: not server.server.app.slots.streams)


def until_over(server: ServerThread, talk: Conversation) -> None:
    """Let time pass until a blocked client is given up: it may take some bytes yet, which counts."""
    while not server.run(lambda: talk.socket.stage >= 2):
        waits = server.run(lambda: server.clock.waits)
        assert waits
        server.advance(5000)
        server.until(lambda: server.clock.waits)


def test_a_client_that_does_not_read_its_answers_is_not_listened_to(start: Start, topic: str) -> None:
    """WS8, WS9: what it says stays in its own buffers; once it reads, all is answered, in order."""
    server = start()
    api = Client(server.address)
    with open_socket(api) as ws:
        (talk,) = server.run(lambda: talks(server))
        ws.socket.setblocking(False)
        sent, rest, n = 0, b"", 0
        while True:
            command = rest or text({"op": "ping", "request_id": [n, "y" * 5000]})
            n += not rest
            try:
                taken = ws.socket.send(command)
            except BlockingIOError:
                if server.run(lambda: talk.socket.is_paused or talk.is_blocked):
                    rest = command
                    break
                rest = command
                continue
            sent += taken
            rest = command[taken:]
        assert server.run(lambda: len(talk._ahead)) <= AHEAD_MAX
        assert server.run(lambda: talk._ahead_bytes) <= AHEAD_BYTES_MAX + 6000
        assert server.run(lambda: talk.buffered) <= BUFFERED_MAX
        ws.socket.settimeout(PATIENCE_S)
        answered = 0
        while answered < n - 1:
            assert ws.message()["request_id"][0] == answered
            answered += 1
        ws.send(rest)
        assert ws.message()["request_id"][0] == n - 1


def test_answers_that_wait_for_the_disk_are_bounded(start: Start, topic: str) -> None:
    """WS9: above the bound nothing more is read."""
    disk = MemoryDisk()
    server = start(disk=disk)
    api = Client(server.address)
    api.create(topic, durability="fsync")
    count = ANSWERS_MAX + AHEAD_MAX + 500
    with open_socket(api) as ws:
        (talk,) = server.run(lambda: talks(server))
        server.run(disk.hold_syncs)
        for n in range(count):
            ws.say("publish", topic=topic, records=[{"data": n}], request_id=n, return_seqs=False)
        server.until(lambda: len(talk._answers) == ANSWERS_MAX and talk.socket.is_paused)
        assert server.run(lambda: len(talk._ahead)) <= AHEAD_MAX
        assert server.run(lambda: server.server.engine.state.topics[topic].log.head) == ANSWERS_MAX
        server.run(disk.release_syncs)
        assert [ws.expect("ack")["request_id"] for _ in range(count)] == list(range(count))
    assert api.state(topic)["head_seq"] == count


def test_pings_of_a_blocked_client_are_answered_when_it_reads(start: Start, topic: str) -> None:
    """WS8: and do not pile up."""
    server = start()
    api = Client(server.address)
    fill(api, topic, 500)
    ws, talk = block(server, topic)
    with ws:
        held = server.run(lambda: talk.buffered)
        for n in range(1000):
            ws.send(client_frame(PING, b"%d" % n))
        server.until(lambda: talk.socket._pong == b"999")
        assert server.run(lambda: talk.buffered) <= held
        pongs = []
        while not pongs or pongs[-1] != Frame(PONG, b"999"):
            frame = ws.frame()
            if frame.opcode == PONG:
                pongs.append(frame)
        assert len(pongs) <= 2


def test_a_blocked_client_that_leaves_gives_its_slot_back(start: Start, topic: str) -> None:
    """LM5, SS26"""
    server = start()
    api = Client(server.address)
    fill(api, topic, 500)
    for goodbye in (b"", client_frame(CLOSE)):
        ws, talk = block(server, topic)
        with ws:
            ws.send(goodbye)
            ws.socket.shutdown(socket.SHUT_WR)
            if goodbye:
                until_over(server, talk)
                server.advance(5000)
            server.until(lambda: not server.server.app.slots.streams)


@pytest.mark.parametrize("size", [1, 40])
def test_a_burst_of_commands_lets_others_in_between(start: Start, topic: str, size: int) -> None:
    """WS9: nobody keeps the loop for itself."""
    server = start()
    api = Client(server.address)
    with open_socket(api) as ws, open_socket(api) as other:
        command = {"op": "publish", "topic": topic, "records": [{"data": 0}] * size, "return_seqs": False}
        ws.send(text(command) * 1000)
        assert other.ask("ping") == {"op": "pong"}
        for _ in range(1000):
            assert ws.expect("ack")["count"] == size
    assert api.state(topic)["head_seq"] == 1000 * size
