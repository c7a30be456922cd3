"""WebSockets under random use: what is delivered is the log, and nothing that is said breaks the server."""

import json
import random
import tracemalloc
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.api.clients.transcript import Client
from tests.api.clients.websocket import Socket, open_socket, text
from tests.api.conftest import Start
from tests.api.test_websocket_slow import talks
from tests.effort import tries
from topics.testing.server import ServerThread

TOPICS = ("a", "b", "c")
IDLE_BYTES_MAX = 4096


class Follower:
    """A socket with subscriptions, and what must come next on each of them."""

    def __init__(self, api: Client) -> None:
        self.ws = open_socket(api)
        self.cursor: dict[str, int] = {}  # by topic: behind it comes the next frame
        self.seen: dict[str, dict[int, Any]] = {name: {} for name in TOPICS}
        self.lost: dict[str, set[int]] = {name: set() for name in TOPICS}
        self.asked = 0

    def subscribe(self, name: str, from_seq: int) -> None:
        self.ask("subscribe", topic=name, from_seq=from_seq)
        self.cursor[name] = from_seq

    def unsubscribe(self, name: str) -> None:
        self.ask("unsubscribe", topic=name)
        self.cursor.pop(name, None)

    def ask(self, op: str, **fields: Any) -> dict[str, Any]:
        """A command, and its answer; what is delivered until then is taken."""
        self.asked += 1
        self.ws.say(op, request_id=self.asked, **fields)
        while (message := self.ws.message()).get("request_id") != self.asked:
            self.take(message)
        assert message["op"] != "error", message
        return message

    def take(self, message: dict[str, Any]) -> None:
        name = message["topic"]
        if message["op"] == "record":
            assert message["from_seq"] == self.cursor[name], "a frame does not begin where the last one ended"
            found = [record["$seq"] for record in message["records"]]
            assert found == sorted(found) and message["from_seq"] < found[0] and found[-1] <= message["to_seq"]
            self.seen[name] |= {record["$seq"]: record["data"] for record in message["records"]}
            self.cursor[name] = message["to_seq"]
        elif message["op"] == "tombstone":
            assert message["gap_from"] == self.cursor[name] + 1
            self.lost[name] |= set(range(message["gap_from"], message["gap_to"] + 1))
            self.cursor[name] = message["gap_to"]
        else:
            assert message["op"] == "caught_up", message


@pytest.mark.parametrize("seed", range(8))
def test_the_frames_of_a_subscription_form_a_chain_and_hold_the_log(start: Start, seed: int) -> None:
    """WS3, WS6, WR5, SS9, SS10: nothing is missing, doubled or out of order; what is not there was announced."""
    choice = random.Random(seed)
    api = Client(start().address)
    written: dict[str, dict[int, Any]] = {name: {} for name in TOPICS}
    api.create("a")
    api.create("b", cap_records=20)
    api.create("c", durability="fsync")
    followers = [Follower(api) for _ in range(4)]
    for step in range(150):
        follower, name = choice.choice(followers), choice.choice(TOPICS)
        if choice.random() < 0.6:
            data = [[step, n] for n in range(choice.randrange(1, 15))]
            ack = follower.ask("publish", topic=name, records=[{"data": value} for value in data])
            written[name] |= dict(zip(ack["seqs"], data, strict=True))
        elif choice.random() < 0.7:
            follower.subscribe(name, choice.randrange(len(written[name]) + 1))
        else:
            follower.unsubscribe(name)
    for follower in followers:
        for name in TOPICS:
            follower.subscribe(name, 0)
        while any(follower.cursor[name] < len(written[name]) for name in TOPICS):
            follower.take(follower.ws.message())
        for name in TOPICS:
            assert follower.seen[name].items() <= written[name].items()
            assert follower.seen[name].keys() | follower.lost[name] == written[name].keys()
            assert name == "b" or not follower.lost[name]
        follower.ws.socket.close()


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=6,
)
FIELDS = (
    *("topic", "topics", "from_seq", "tail", "node", "limit", "max_batch_bytes", "include_data", "include_tags"),
    *("include_meta", "lenient", "filter", "records", "idempotency_key", "create", "config", "return_seqs"),
    *("disable_backpressure", "request_id", "op"),
)
PLAUSIBLE: dict[str, st.SearchStrategy[Any]] = {
    "topic": st.sampled_from(["a", "b", ""]),
    "topics": st.dictionaries(st.sampled_from(["a", "b"]), st.just({}), max_size=2) | st.just(["a"]),
    "records": st.lists(st.fixed_dictionaries({"data": VALUES}), max_size=3),
    "from_seq": st.integers(0, 2**65),
    "limit": st.integers(0, 5),
    "filter": st.just(["tag", "Eq", "x"]),
}
COMMANDS = st.fixed_dictionaries(
    {"op": st.sampled_from(["subscribe", "unsubscribe", "publish", "ping"]) | VALUES},
    optional={name: PLAUSIBLE.get(name, VALUES) | VALUES for name in FIELDS if name != "op"},
)


@pytest.fixture(scope="module")
def shared() -> Any:
    with ServerThread() as server, Socket(server.address) as ws:
        yield ws


@given(st.lists(COMMANDS, min_size=1, max_size=6))
@settings(max_examples=tries(80), derandomize=True, database=None)
def test_every_command_gets_one_answer_and_none_is_an_internal_error(shared: Socket, said: list[Any]) -> None:
    """WS2, WS7, WS9, CV21"""
    for n, command in enumerate(said):
        shared.send(text(command | {"request_id": n}))
    shared.say("unsubscribe", topics=["a", "b"], request_id="end")
    answers = []
    while (message := shared.message()).get("request_id") != "end":
        assert message.get("code") != "internal", message
        if "request_id" in message:
            answers.append(message["request_id"])
    assert answers == list(range(len(said)))


@given(st.binary(max_size=200) | st.text(max_size=100).map(str.encode) | VALUES.map(lambda v: json.dumps(v).encode()))
@settings(max_examples=tries(80), derandomize=True, database=None)
def test_whatever_a_message_holds_it_is_answered(shared: Socket, message: bytes) -> None:
    """WS7"""
    try:
        message.decode()
    except UnicodeDecodeError:
        message = message.hex().encode()
    shared.send(text(message))
    answer = shared.message()
    assert answer["op"] == "error" and answer["code"] in ("invalid_json", "invalid_request")


# --- memory


@pytest.mark.slow
def test_an_idle_socket_costs_little(start: Start) -> None:
    """WS8"""
    server = start()
    api = Client(server.address)
    api.write("t", 1)
    count = 200

    def opened() -> list[Socket]:
        sockets = [open_socket(api) for _ in range(count)]
        for ws in sockets:
            ws.follow("t", tail=True)
            assert ws.expect("caught_up")
        return sockets

    sockets = opened()
    tracemalloc.start()
    try:
        more = opened()
        traced, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert traced / count < IDLE_BYTES_MAX
    for ws in sockets + more:
        ws.socket.close()


def test_a_frame_is_made_once_for_all_sockets(start: Start) -> None:
    """SS21, SS19: those that do not read share its bytes."""
    server = start()
    api = Client(server.address)
    api.create("t", durability="ephemeral")
    sockets = [open_socket(api) for _ in range(30)]
    for ws in sockets:
        ws.stop_reading()
        ws.follow("t")
        assert ws.expect("caught_up")
    size = 1_000_000
    tracemalloc.start()
    try:
        for _ in range(8):
            api.write("t", "x" * size)
            if server.run(lambda: all(talk.is_blocked for talk in talks(server))):
                break
        server.until(lambda: all(talk.is_blocked for talk in talks(server)))
        traced, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    for ws in sockets:
        ws.socket.close()
    assert traced < 20 * size
