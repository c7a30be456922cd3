"""What the load runs write: which topics, which records, and which of them a reader may miss without being told.

    python -m tests.live.load '{"address": [HOST, PORT], "heads": {TOPIC: SEQ}, "batch": 25, "records_per_s": 1000}'

The process writes until its input ends; then it waits for the answers still due and prints `Written` as JSON. Each
topic has one writer, who has one connection, so the record with seq n is the n-th one written, and says so: whoever
receives it can tell whether it is the right one.

A topic's name begins with its kind:

    plain    every record is kept
    ring     a cap takes the oldest ones, which is announced
    shared   each record has an owner, who does not get it (the node filter)
    pruned   some records have a tag, and are deleted now and then
    deep     large records

One whose name ends in "-low" has a negative priority: under pressure it is served last.
"""

import json
import select
import socket
import sys
import time
from collections import deque
from typing import Any, Final, NamedTuple

import msgspec

from topics.testing.patience import PATIENCE_S

Address = tuple[str, int]

RING_CAP: Final = 300
OWNERS: Final = 4
PRUNED_EVERY: Final = 5  # of the records
PRUNING_EVERY: Final = 20  # of the writes to a pruned topic
DEEP_BYTES: Final = 8000
RETRY_MAX_S: Final = 0.2  # a refused write is repeated after Retry-After, but not later than this


def kind(topic: str) -> str:
    return topic.partition("-")[0]


def owner(seq: int) -> str:
    return f"owner-{seq % OWNERS}"


def may_be_missing(topic: str, node: str | None, seq: int) -> bool:
    """Whether a reader that calls itself `node` may never see this record, without a word."""
    if kind(topic) == "shared":
        return owner(seq) == node
    return kind(topic) == "pruned" and seq % PRUNED_EVERY == 0


def is_exact(topic: str, node: str | None) -> bool:
    """Whether no record may be missing without a word."""
    return kind(topic) != "pruned" and (kind(topic) != "shared" or node is None)


def config(topic: str) -> dict[str, Any]:
    cap = {"cap_records": RING_CAP} if kind(topic) == "ring" else {}
    priority = {"priority": -1} if topic.endswith("-low") else {}
    return {"durability": "disk"} | cap | priority


def record(topic: str, seq: int) -> dict[str, Any]:
    made: dict[str, Any] = {"data": {"n": seq}}
    if kind(topic) == "shared":
        made["node"] = owner(seq)
    elif kind(topic) == "pruned" and seq % PRUNED_EVERY == 0:
        made["tag"] = "prune"
    elif kind(topic) == "deep":
        made["data"]["pad"] = "x" * DEEP_BYTES
    return made


def request_bytes(method: str, target: str, body: Any = None, *headers: str) -> bytes:
    payload = b"" if body is None else msgspec.json.encode(body)
    lines = [f"{method} {target} HTTP/1.1", "Host: localhost", *headers]
    if body is not None:
        lines += ["Content-Type: application/json", f"Content-Length: {len(payload)}"]
    return "\r\n".join([*lines, "", ""]).encode() + payload


class Answer(NamedTuple):
    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def retry_after_s(self) -> float:
        return float(self.headers["retry-after"])


def take_answer(received: bytearray) -> Answer | None:
    """Cut a whole answer off, if there is one."""
    head_end = received.find(b"\r\n\r\n")
    if head_end < 0:
        return None
    status, *lines = received[:head_end].decode("latin-1").split("\r\n")
    headers = {name.lower(): value for name, _, value in (line.partition(": ") for line in lines)}
    end = head_end + 4 + int(headers["content-length"])
    if len(received) < end:
        return None
    answer = Answer(int(status.split(" ")[1]), headers, bytes(received[head_end + 4 : end]))
    del received[:end]
    return answer


class Written(msgspec.Struct):
    heads: dict[str, int]  # by topic: the last seq that was acked
    writes: int  # acked
    throttled: int  # answers 429
    longest_ms: float  # that an ack took


class Writer:
    """Writes to one topic, one batch after the other."""

    def __init__(self, address: Address, topic: str, batch: int, head: int) -> None:
        self.topic = topic
        self.head = head  # the last seq acked
        self.writes = 0
        self.throttled = 0
        self.longest_s = 0.0
        self.is_busy = False
        self.not_before = 0.0  # after a refusal
        self._batch = batch
        self._received = bytearray()
        self._is_prune = False
        self._sent_at = 0.0
        self.socket = socket.create_connection(address, PATIENCE_S)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def write(self) -> None:
        """Send the next batch, or the one that was refused; at times a delete instead."""
        self.is_busy = True
        self._sent_at = time.monotonic()
        self._is_prune = kind(self.topic) == "pruned" and not self._is_prune and self.writes % PRUNING_EVERY == 1
        if self._is_prune:
            sent = request_bytes("POST", f"/v0/topics/{self.topic}/delete", {"match": ["tag", "Eq", "prune"]})
        else:
            records = [record(self.topic, seq) for seq in range(self.head + 1, self.head + self._batch + 1)]
            sent = request_bytes("POST", f"/v0/topics/{self.topic}", {"records": records})
        self.socket.sendall(sent)

    def receive(self) -> None:
        data = self.socket.recv(1 << 16)
        if not data:
            raise ConnectionError(f"the server has closed the connection of the writer of {self.topic}")
        self._received += data
        answer = take_answer(self._received)
        if answer is not None:
            self.is_busy = False
            self._answered(answer)

    def _answered(self, answer: Answer) -> None:
        now = time.monotonic()
        self.longest_s = max(self.longest_s, now - self._sent_at)
        if answer.status == 429 and not self._is_prune:
            self.throttled += 1
            self.not_before = now + min(RETRY_MAX_S, answer.retry_after_s)
        elif answer.status not in (200, 201):
            raise ValueError(f"{self.topic}: {answer}")
        elif not self._is_prune:
            self.writes += 1
            acked = msgspec.json.decode(answer.body)
            if acked["first_seq"] != self.head + 1 or acked["last_seq"] != self.head + self._batch:
                raise ValueError(f"{self.topic} stood at {self.head}, {self._batch} more were acked as {acked}")
            self.head = acked["last_seq"]


class Load:
    """All writers of a process."""

    def __init__(self, address: Address, heads: dict[str, int], batch: int, records_per_s: float = 0) -> None:
        """`heads`: topic → the seq to go on behind. `records_per_s`: in all; 0 = as fast as the server answers."""
        self._writers = [Writer(address, topic, batch, head) for topic, head in heads.items()]
        self._by_descriptor = {writer.socket.fileno(): writer for writer in self._writers}
        self._free = deque(self._writers)
        self._step_s = batch / records_per_s if records_per_s else 0.0
        self._epoll = select.epoll()
        for descriptor in self._by_descriptor:
            self._epoll.register(descriptor, select.EPOLLIN)

    def run(self, until_eof: int) -> Written:
        """Write until this descriptor, which nobody writes to, is at its end."""
        self._epoll.register(until_eof, select.EPOLLIN)
        due_at = time.monotonic()
        is_stopping = False
        while not is_stopping or any(writer.is_busy for writer in self._writers):
            now = time.monotonic()
            while not is_stopping and due_at <= now and (writer := self._next(now)):
                writer.write()
                due_at = max(due_at + self._step_s, now - 1.0)
            for descriptor, _ in self._epoll.poll(0.002 if self._step_s or self._free else PATIENCE_S):
                if descriptor == until_eof:
                    is_stopping = True
                    self._epoll.unregister(until_eof)
                else:
                    self._receive(self._by_descriptor[descriptor])
        return self._written()

    def _next(self, now: float) -> Writer | None:
        for _ in range(len(self._free)):
            writer = self._free.popleft()
            if writer.not_before <= now:
                return writer
            self._free.append(writer)
        return None

    def _receive(self, writer: Writer) -> None:
        writer.receive()
        if not writer.is_busy:
            self._free.append(writer)

    def _written(self) -> Written:
        return Written(
            {writer.topic: writer.head for writer in self._writers},
            sum(writer.writes for writer in self._writers),
            sum(writer.throttled for writer in self._writers),
            max(writer.longest_s for writer in self._writers) * 1000,
        )


if __name__ == "__main__":
    wanted = json.loads(sys.argv[1])
    load = Load(tuple(wanted.pop("address")), **wanted)
    print(msgspec.json.encode(load.run(sys.stdin.fileno())).decode(), flush=True)
