"""Streams of a real server process: kill -9, SIGTERM, many watchers, real time."""

import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from tests.api.clients.events import Stream, decoded, follow, open_stream, watch
from tests.api.clients.transcript import Client, refused
from topics.testing.patience import PATIENCE_S
from topics.testing.server import ServerProcess

TOPICS = ("fsync", "disk", "memory")
ROUNDS = 4
RECORDS = 60  # that a watcher sees before each kill


class Writers:
    """Threads that write numbered records for as long as the server answers."""

    def __init__(self, address: tuple[str, int], round_: int) -> None:
        self.acked: dict[str, dict[int, str]] = {topic: {} for topic in TOPICS}
        self._threads = [
            threading.Thread(target=self._write, args=(Client(address), topic, f"{round_}.{n}"), daemon=True)
            for topic in TOPICS
            for n in range(2)
        ]
        for thread in self._threads:
            thread.start()

    def _write(self, api: Client, topic: str, name: str) -> None:
        number = 0
        with suppress(OSError, AssertionError):
            while True:
                text = f"{name}.{number}"
                self.acked[topic][api.write(topic, text)["first_seq"]] = text
                number += 1

    def join(self) -> None:
        for thread in self._threads:
            thread.join(PATIENCE_S)
            assert not thread.is_alive()


class Watcher:
    """Follows all topics, notes what it sees, and checks that it comes in order and without a hole."""

    def __init__(self) -> None:
        self.seen: dict[str, dict[int, str]] = {topic: {} for topic in TOPICS}
        self.at = dict.fromkeys(TOPICS, 0)
        self.last_id: str | None = None

    def follow(self, stream: Stream, is_enough: Callable[[int], bool]) -> None:
        count = 0
        while not is_enough(count):
            event = stream.next()
            if event.id is not None:
                self.last_id = event.id
            if event.kind == "record":
                count += len(event.payloads)
                self._note(event.data)
            else:
                assert event.kind in ("caught-up", "comment"), event

    def _note(self, frame: dict[str, Any]) -> None:
        topic = frame["topic"]
        assert frame["from_seq"] == self.at[topic], "a hole, or something twice"
        for record in frame["records"]:
            assert record["$seq"] == self.at[topic] + 1
            self.at[topic] = record["$seq"]
            self.seen[topic][record["$seq"]] = record["data"]
        assert frame["to_seq"] == self.at[topic]


def test_a_watcher_resumes_after_kill_9_without_hole_or_repetition(tmp_path: Path) -> None:
    """SS14, SS15, WR10, S5, G1: and nothing it has seen is ever taken back."""
    server = ServerProcess(tmp_path)
    watcher = Watcher()
    acked: dict[str, dict[int, str]] = {topic: {} for topic in TOPICS}
    with server:
        for topic in TOPICS:
            Client(server.address).create(topic, durability=topic)
        for round_ in range(ROUNDS):
            api = Client(server.address)
            session = watch(api, *TOPICS, cursor=watcher.last_id)
            writers = Writers(server.address, round_)
            with open_stream(api, session) as stream:
                watcher.follow(stream, lambda count: count >= RECORDS)
                server.kill()
            writers.join()
            for topic in TOPICS:
                acked[topic] |= writers.acked[topic]
            server.start()
            refused(Client(server.address).get(session["stream_url"]), 404, "not_found")
        api = Client(server.address)
        heads = {topic: api.state(topic)["head_seq"] for topic in TOPICS}
        with open_stream(api, watch(api, *TOPICS, cursor=watcher.last_id)) as stream:
            watcher.follow(stream, lambda _: watcher.at == heads)
        for topic in TOPICS:
            assert list(watcher.seen[topic]) == list(range(1, heads[topic] + 1))
            assert acked[topic].items() <= watcher.seen[topic].items(), "what was acked is what was seen"
            assert api.data(topic, heads[topic] - 1) == [watcher.seen[topic][heads[topic]]]


def test_a_stream_of_synced_records_only_never_has_to_take_one_back(tmp_path: Path) -> None:
    """SS18"""
    with ServerProcess(tmp_path) as server:
        api = Client(server.address)
        api.create("t")
        with follow(api, "t", consistency="strong") as stream:
            stream.expect("caught-up")
            for n in range(20):
                api.write("t", n)
                assert stream.expect("record").payloads == [n]
        server.kill()
        server.start()
        assert Client(server.address).data("t") == list(range(20))


def test_a_stopping_process_ends_its_streams_and_exits(tmp_path: Path) -> None:
    """SC3, SS25"""
    with ServerProcess(tmp_path) as server:
        api = Client(server.address)
        api.write("t", 1)
        with follow(api, "t") as stream:
            assert stream.expect("record").payloads == [1]
            last = stream.expect("caught-up")
            assert server.stop() == 0
            error = stream.expect("error")
            assert (error.data["code"], error.data["error"]) == (503, "server_shutting_down")
            stream.expect_end()
        server.start()
        api = Client(server.address)
        api.write("t", 2)
        assert last.id is not None and decoded(last.id) == {"t": 1}
        with follow(api, "t", cursor=last.id) as stream:
            assert stream.expect("record").payloads == [2]


def test_heartbeats_come_by_themselves(tmp_path: Path) -> None:
    """SS16, CV25"""
    with ServerProcess(tmp_path, {"TOPICS_TEST_MIN_HEARTBEAT_MS": "20"}) as server:
        api = Client(server.address)
        api.create("t")
        with follow(api, "t", heartbeat_ms=20) as stream:
            stream.expect("caught-up")
            beats = [int(stream.expect("comment").raw.removeprefix(b": hb ")) for _ in range(5)]
        assert beats == sorted(set(beats))


@pytest.mark.full
def test_a_thousand_watchers_get_every_record(tmp_path: Path) -> None:
    """SS21, LM5"""
    with ServerProcess(tmp_path) as server:
        api = Client(server.address)
        api.create("t")
        streams = [follow(api, "t") for _ in range(1000)]
        for n in range(10):
            api.write("t", n)
        for stream in streams:
            stream.expect("caught-up")
            assert stream.records(10) == list(range(10))
            stream.socket.close()
