"""How one record is appended at each system of the comparison of logs. One class per way of doing it.

A writer is a conversation: it appends a record, waits until that is acknowledged, and goes on until the time is up.
"""

import socket
import time
from abc import ABC, abstractmethod
from typing import Final

from bench.peers import Address
from bench.systems import nats, postgres, redis
from bench.wire import http, null
from bench.wire.epoll import Conversation, IsWhole

DATA: Final = b'{"sku":"AEROPRESS-GO","qty":1,"total":3499,"customer":"c-123456","note":"' + b"x" * 125 + b'"}'


class Log(ABC):
    """A log under test, seen from a writer."""

    acked: bytes  # stands in the answer to an append that has succeeded

    @abstractmethod
    def connect(self, number: int) -> socket.socket:
        """A connection for the writer of that number."""

    @abstractmethod
    def append(self, number: int) -> tuple[bytes, IsWhole]:
        """The request that appends one record, and whether its answer is whole."""

    def write(self, number: int, ending: float, times_ns: list[int]) -> Conversation:
        """Append until then; each append adds its time."""
        asked, acked = self.append(number), self.acked
        while (started := time.monotonic_ns()) < ending * 1e9:
            answer = yield asked
            times_ns.append(time.monotonic_ns() - started)
            if acked not in answer:
                raise RuntimeError(f"an append was refused: {answer!r}")


class TopicsLog(Log):
    """Ours."""

    acked = b"HTTP/1.1 200"

    def __init__(self, address: Address, topic: str, durability: str) -> None:
        self._address, self._path = address, f"/v0/topics/{topic}"
        http.ask(address, "PUT", self._path, {"durability": durability})

    def connect(self, number: int) -> socket.socket:
        return http.connect(self._address)

    def append(self, number: int) -> tuple[bytes, IsWhole]:
        body = b'{"records":[{"data":' + DATA + b"}]}"
        return http.request("POST", f"{self._path}?return_seqs=false", body), http.is_whole


class NullLog(TopicsLog):
    """A server that does nothing, asked as ours is; `null_answers` are what it gives."""

    def __init__(self, address: Address, topic: str) -> None:
        self._address, self._path = address, f"/v0/topics/{topic}"


def null_answers(log: TopicsLog) -> dict[bytes, null.Answer]:
    """What our server answers to an append, by the first line of the request."""
    request, _ = log.append(0)
    with log.connect(0) as connection:
        return {request[: request.index(b"\r\n")]: http.exchange(connection, request)}


class RedisLog(Log):
    """XADD to one stream."""

    acked = b"$"

    def __init__(self, address: Address) -> None:
        self._address = address

    def connect(self, number: int) -> socket.socket:
        return http.connect(self._address)

    def append(self, number: int) -> tuple[bytes, IsWhole]:
        return redis.request(b"XADD", b"log", b"*", b"data", DATA), redis.has_lines(2)


class JetStream(Log):
    """A stream on disk; a publication waits for the ack of the stream."""

    acked = b'"stream":"LOG"'

    def __init__(self, address: Address) -> None:
        self._address = address
        config = {"name": "LOG", "subjects": ["log"], "storage": "file", "retention": "limits"}
        nats.ask(address, "$JS.API.STREAM.CREATE.LOG", config)

    def connect(self, number: int) -> socket.socket:
        return nats.listening(self._address, f"{nats.INBOX}{number}")

    def append(self, number: int) -> tuple[bytes, IsWhole]:
        return nats.publish(b"log", DATA, f"{nats.INBOX}{number}".encode()), nats.is_message


class PostgresTable(Log):
    """A row per record, each a transaction."""

    acked = b"INSERT 0 1\0"

    def __init__(self, address: Address, table: str, is_synced: bool) -> None:
        self._address, self._table, self._is_synced = address, table, is_synced
        with postgres.session(address) as connection:
            postgres.ask(connection, f"CREATE TABLE {table} (id bigserial PRIMARY KEY, data jsonb NOT NULL)")

    def connect(self, number: int) -> socket.socket:
        connection = postgres.session(self._address)
        postgres.ask(connection, f"SET synchronous_commit = {'on' if self._is_synced else 'off'}")
        postgres.ask(connection, f"PREPARE add AS INSERT INTO {self._table} (data) VALUES ('{DATA.decode()}')")
        return connection

    def append(self, number: int) -> tuple[bytes, IsWhole]:
        return postgres.query("EXECUTE add"), postgres.is_ready


class DurableStream(Log):
    """The reference server of Durable Streams on Node.js, with its files."""

    acked = b"HTTP/1.1 20"

    def __init__(self, address: Address) -> None:
        self._address = address
        create(address, "log")

    def connect(self, number: int) -> socket.socket:
        return http.connect(self._address)

    def append(self, number: int) -> tuple[bytes, IsWhole]:
        return http.request("POST", "/log", DATA), has_head


def create(address: Address, stream: str) -> None:
    """A stream of Durable Streams."""
    with http.connect(address) as connection:
        answer = http.until_whole(connection, http.request("PUT", f"/{stream}", b"[]"), has_head)
        if not http.is_good(answer):
            raise RuntimeError(f"the stream {stream} was refused: {answer!r}")


def has_head(answer: bytes) -> bool:
    """Of an answer without a body."""
    return b"\r\n\r\n" in answer
