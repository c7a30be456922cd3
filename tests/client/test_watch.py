"""Watches: events in order, and going on after whatever breaks them without a silent loss."""

import http.client
import socket
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.client.conftest import Connect, Script, Skipping, answer
from topics.client import CaughtUp, Lost, Records, TopicGone, UnexpectedAnswer, WatchEnded
from topics.client.protocol.watching import SseReader, seqs_of
from topics.errors import TopicNotFound
from topics.testing.patience import PATIENCE_MS, PATIENCE_S
from topics.testing.server import ServerProcess, ServerThread


def fill(client: Any, topic: str, *values: object) -> None:
    client.append(topic, [{"data": value} for value in values])


def shown(event: Any) -> Any:
    """Values of records; topic and range of a loss; else the kind and topic."""
    match event:
        case Records():
            return [record.value for record in event.records]
        case Lost():
            return (event.topic, event.gap_from, event.gap_to, event.reason)
    return (type(event), event.topic)


class Relay:
    """A way to a server that can be cut: every connection through it breaks off."""

    def __init__(self, address: tuple[str, int]) -> None:
        self._to = address
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.address: tuple[str, int] = self._listener.getsockname()
        self._open: list[socket.socket] = []
        self._threads = [threading.Thread(target=self._accept)]
        self._threads[0].start()

    def _accept(self) -> None:
        while True:
            try:
                near, _ = self._listener.accept()
            except OSError:
                return
            far = socket.create_connection(self._to)
            self._open += [near, far]
            for pair in ((near, far), (far, near)):
                self._threads.append(threading.Thread(target=self._pump, args=pair))
                self._threads[-1].start()

    def _pump(self, source: socket.socket, sink: socket.socket) -> None:
        try:
            while data := source.recv(65536):
                sink.sendall(data)
            sink.shutdown(socket.SHUT_RDWR)
        except OSError:
            pass

    def cut(self) -> None:
        for connection in self._open:
            try:
                connection.shutdown(socket.SHUT_RDWR)
            except OSError:
                pass

    def close(self) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self._threads[0].join()
        self.cut()
        for thread in self._threads:
            thread.join()
        for connection in self._open:
            connection.close()


@pytest.fixture
def relay(server: ServerThread) -> Iterator[Relay]:
    relay = Relay(server.address)
    yield relay
    relay.close()


def test_a_watch_delivers_what_is_there_and_what_comes(client: Any, topic: str) -> None:
    """SS9, SS11, SS12"""
    fill(client, topic, 1, 2)
    with client.watch([topic]) as watch:
        assert [shown(next(watch)) for _ in range(2)] == [[1, 2], (CaughtUp, topic)]
        fill(client, topic, 3)
        assert shown(next(watch)) == [3]
        assert watch.positions == {topic: 3}
        client.delete_topic(topic)
        assert shown(next(watch)) == (TopicGone, topic)
        assert list(watch) == []


def test_a_watch_that_was_closed_is_over(client: Any, topic: str) -> None:
    fill(client, topic, 1)
    watch = client.watch([topic])
    assert shown(next(watch)) == [1]
    watch.close()
    assert list(watch) == []


def test_a_loss_is_announced_before_what_follows_it(client: Any, topic: str) -> None:
    """SS10, TM13"""
    client.put_topic(topic, cap_records=2)
    fill(client, topic, *range(1, 6))
    with client.watch({topic: 0}) as watch:
        assert shown(next(watch)) == (topic, 1, 3, "from_seq_too_old")
        assert watch.positions == {topic: 3}
        assert shown(next(watch)) == [4, 5]


def test_many_topics_are_watched_from_where_each_is_to_start(client: Any, topic: str) -> None:
    """SS1, SS2"""
    names = [f"{topic}.{n}" for n in range(3)]
    for name in names:
        fill(client, name, 1, 2)
    with client.watch({names[0]: 0, names[1]: 1, names[2]: None}, include_tags=True) as watch:
        events = [next(watch) for _ in range(5)]
        assert {event.topic: shown(event) for event in events if isinstance(event, Records)} == {
            names[0]: [1, 2],
            names[1]: [2],
        }
        assert watch.positions == dict.fromkeys(names, 2)
        assert watch.epochs == {name: client.state(name).epoch for name in names}


def test_a_topic_that_is_not_there_is_an_error_or_left_out(client: Any, topic: str) -> None:
    """SS3"""
    fill(client, topic, 1)
    with pytest.raises(TopicNotFound):
        next(client.watch([topic, f"{topic}.no"]))
    with client.watch([topic, f"{topic}.no"], lenient=True) as watch:
        assert [shown(next(watch)) for _ in range(2)] == [(TopicGone, f"{topic}.no"), [1]]


def test_own_records_data_and_size_are_as_asked(client: Any, topic: str) -> None:
    """SS1, SS24, ND1"""
    client.append(topic, [{"data": 1, "node": "me"}, {"data": 2, "tag": "t"}, {"data": 3}])
    with client.watch([topic], node="me", include_data=False, include_tags=True, limit=1) as watch:
        records = [next(watch).records for _ in range(2)]
    assert [(r.seq, r.tag, bytes(r.data), r.value) for (r,) in records] == [(2, "t", b"", None), (3, None, b"", None)]


def test_only_records_whose_tag_matches_are_delivered(client: Any, topic: str) -> None:
    """A.16"""
    client.append(topic, [{"data": n, "tag": f"t{n % 2}"} for n in range(1, 6)])
    with client.watch([topic], filter=("tag", "Glob", "t1*")) as watch:
        assert shown(next(watch)) == [1, 3, 5]


def test_a_watch_that_breaks_off_goes_on_where_it_was(client: Any, relay: Relay, connect: Connect, topic: str) -> None:
    """SS14, SS15"""
    fill(client, topic, 1, 2)
    with connect(relay.address).watch([topic]) as watch:
        assert shown(next(watch)) == [1, 2]
        assert shown(next(watch)) == (CaughtUp, topic)
        for value in (3, 4, 5):
            relay.cut()
            fill(client, topic, value)
            events = [shown(next(watch)), shown(next(watch))]
            assert events == [[value], (CaughtUp, topic)]


@pytest.mark.process
def test_a_watch_outlives_its_server_and_its_session(connect: Connect, tmp_path: Path) -> None:
    """TM11: the session is gone with the server; a topic made again meanwhile is announced."""
    with ServerProcess(tmp_path) as server:
        server.environ["TOPICS_PORT"] = str(server.address[1])
        client = connect(server.address, retries=1000, timeout_ms=PATIENCE_MS)
        for name in ("kept", "again", "gone"):
            fill(client, name, 1, 2)
        with client.watch(["kept", "again", "gone"]) as watch:
            first = [next(watch) for _ in range(6)]
            assert sorted(shown(event) for event in first if isinstance(event, Records)) == [[1, 2]] * 3
            server.kill()
            server.start()
            client.delete_topic("again")
            fill(client, "again", *range(10, 15))
            client.delete_topic("gone")
            fill(client, "kept", 3)
            events: list[Any] = []
            while len(events) < 4:
                event = next(watch)
                if not isinstance(event, CaughtUp):
                    events.append(shown(event))
    assert sorted(map(str, events)) == sorted(
        map(str, [[3], ("again", 1, 5, "recreated"), [10, 11, 12, 13, 14], (TopicGone, "gone")])
    )
    assert events.index(("again", 1, 5, "recreated")) < events.index([10, 11, 12, 13, 14])


@pytest.mark.process
@pytest.mark.parametrize("match", ["", "x", '["y"]', ("tag", "Glob", "x*")])
def test_the_options_of_a_watch_outlive_its_server(connect: Connect, tmp_path: Path, match: Any) -> None:
    """SS27: the session is made anew, and reads as before."""
    tag = match if isinstance(match, str) else "x:1"
    with ServerProcess(tmp_path) as server:
        server.environ["TOPICS_PORT"] = str(server.address[1])
        client = connect(server.address, retries=1000, timeout_ms=PATIENCE_MS)
        fill(client, "t", 1)
        with client.watch(["t"], filter=match, node=["me", "you & me"], include_tags=True) as watch:
            assert shown(next(watch)) == (CaughtUp, "t")
            server.kill()
            server.start()
            client.append("t", [{"data": 2, "tag": tag, "node": "you & me"}, {"data": 3}, {"data": 4, "tag": tag}])
            event = next(watch)
            while isinstance(event, CaughtUp):
                event = next(watch)
            assert [(record.value, record.tag) for record in event.records] == [(4, tag)]


def test_positions_and_epochs_start_a_watch_behind_another(client: Any, topic: str) -> None:
    """TP16, TM11"""
    fill(client, topic, 1, 2)
    with client.watch([topic], limit=1) as watch:
        assert shown(next(watch)) == [1]
        positions, epochs = watch.positions, watch.epochs
    with client.watch(positions, epochs=epochs) as watch:
        assert shown(next(watch)) == [2]
    client.delete_topic(topic)
    fill(client, topic, 7, 8, 9)
    with client.watch(positions, epochs=epochs) as watch:
        assert [shown(next(watch)) for _ in range(2)] == [(topic, 1, 3, "recreated"), [7, 8, 9]]


def test_a_watch_that_another_client_takes_over_ends(
    server: ServerThread, client: Any, connect: Connect, topic: str
) -> None:
    """SS22, SS25"""
    fill(client, topic, 1)
    watch = client.watch([topic])
    assert [shown(next(watch)) for _ in range(2)] == [[1], (CaughtUp, topic)]
    inner = getattr(watch, "_inner", watch)
    other = http.client.HTTPConnection(*server.address, timeout=PATIENCE_S)
    other.request("GET", f"/v0/watch/{inner._watch._wid}")
    assert other.getresponse().status == 200
    for _ in range(2):
        with pytest.raises(WatchEnded, match="409"):
            next(watch)
    other.close()


SESSION = answer(
    b'{"wid":"wid_x","stream_url":"/v0/watch/wid_x","session_ttl_ms":300000,'
    b'"topics":{"t":{"epoch":1,"from_seq":0,"head_seq":9,"earliest_seq":1}}}'
)
STREAM = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\nconnection: close\r\n\r\nretry: 2000\n\n"


def frame(event: str, data: bytes, id: str = "") -> bytes:
    return (f"id: {id}\n" if id else "").encode() + b"event: %b\ndata: %b\n\n" % (event.encode(), data)


def caught_up(id: str) -> bytes:
    return frame("caught-up", b'{"topic":"t","head_seq":9}', id)


def test_a_stream_is_opened_again_as_its_last_error_says(script: Script, connect: Connect) -> None:
    paced = frame("error", b'{"code":429,"error":"paced under pressure","retry_after_ms":9000,"topics":["t"]}')
    stopping = frame("error", b'{"code":503,"error":"server_shutting_down","retry_after_ms":1500}')
    gone = frame("error", b'{"code":410,"error":"the session is gone"}')
    server = script(
        [SESSION, STREAM + caught_up("id-1") + paced + stopping],
        [STREAM + caught_up("id-2") + gone],
        [SESSION, STREAM + caught_up("id-3")],
    )
    clock = Skipping()
    with connect(server.address, clock=clock, retries=0).watch(["t"]) as watch:
        assert [shown(next(watch)) for _ in range(3)] == [(CaughtUp, "t")] * 3
        assert clock.pauses == [1.5]
    sent = [b"last-event-id: id-1" in request for request in server.requests]
    assert sent == [False, False, True, False, False]


def test_a_stream_that_ends_again_and_again_is_given_up(script: Script, connect: Connect) -> None:
    server = script([SESSION, STREAM], [STREAM], [STREAM])
    clock = Skipping()
    with pytest.raises(WatchEnded, match="keeps ending at once"):
        next(connect(server.address, clock=clock, retries=1).watch(["t"]))
    assert len(clock.pauses) == 1


def test_a_frame_that_cannot_be_read_is_told(script: Script, connect: Connect) -> None:
    server = script([SESSION, STREAM + frame("record", b'{"topic":"t"}', "x")])
    with pytest.raises(UnexpectedAnswer, match="a frame 'record' cannot be read"):
        next(connect(server.address, clock=Skipping()).watch(["t"]))


def test_frames_that_are_unknown_are_passed_over(script: Script, connect: Connect) -> None:
    """CV1"""
    server = script([SESSION, STREAM + frame("tomorrow", b"{}") + b": hb 1\n\nfield: x\n\n" + caught_up("a")])
    with connect(server.address, clock=Skipping()).watch(["t"]) as watch:
        assert shown(next(watch)) == (CaughtUp, "t")


@pytest.mark.parametrize("size", [1, 2, 3, 7, 1000])
@pytest.mark.parametrize("end", [b"\n", b"\r\n"])
def test_frames_are_cut_the_same_however_their_bytes_come(size: int, end: bytes) -> None:
    text = b"retry: 2000\n\n: hb 5\n\nid: a\nevent: x\ndata: {}\n\ndata:1\ndata: 2\n\nevent: none\n\n"
    text = text.replace(b"\n", end)
    reader = SseReader()
    frames = [frame for n in range(0, len(text), size) for frame in reader.feed(text[n : n + size])]
    assert [(frame.event, frame.data, frame.id) for frame in frames] == [("x", b"{}", "a"), ("", b"1\n2", "")]


def test_an_id_holds_positions_or_is_opaque() -> None:
    assert seqs_of("eyJqb2JzIjo0Mn0") == {"jobs": 42}
    assert seqs_of("eyJqb2JzIjoyLCIkZXBvY2hzIjp7ImpvYnMiOjF9fQ") == {"jobs": 2}
    assert [seqs_of(id) for id in ("", "opaque-token", "WzFd", "é")] == [{}] * 4
