"""How jobs are put, claimed and acked at each system of the queue benchmark. One class per way of doing it.

A worker is a conversation: it claims up to 8 jobs, acks them, and goes on
until a claim gives none. It reads no more of an answer than it needs.
"""

import json
import re
import socket
import time
from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from typing import Any, Final

from bench.peers import Address
from bench.systems import nats, postgres, redis
from bench.wire import http, null
from bench.wire.epoll import Conversation, IsWhole

CLAIM: Final = 8
LEASE_S: Final = 600
FILL: Final = 1000  # jobs per request when a queue is filled
JOB: Final = b'{"resize":256,"source":"bucket/object","note":"' + b"x" * 100 + b'^"}'
JOB_END: Final = b'^"}\r\n'  # where a line ends behind a job


@dataclass
class Done:
    """What one worker has done."""

    jobs: int = 0
    claims_ns: list[int] = field(default_factory=list)


class Queue(ABC):
    """A queue under test, seen from a worker."""

    ids_of: re.Pattern[bytes]  # finds the ids of the jobs in the answer to a claim
    none: bytes  # stands in the answer if there are none

    @abstractmethod
    def fill(self, count: int) -> None:
        """Put so many jobs into the queue, which is empty. `count` is a multiple of FILL."""

    @abstractmethod
    def connect(self, worker: str = "") -> socket.socket:
        """A connection for one worker."""

    @abstractmethod
    def claim(self, worker: str) -> tuple[bytes, IsWhole]:
        """The request for up to CLAIM jobs."""

    @abstractmethod
    def ack(self, worker: str, ids: list[bytes]) -> tuple[bytes, IsWhole] | None:
        """The request that completes them; None if the claim has done so."""

    @abstractmethod
    def is_acked(self, answer: bytes, count: int) -> bool:
        """Does the answer to an ack say that so many jobs are done?"""

    def work(self, worker: str, done: Done) -> Conversation:
        """Claim and ack until nothing is left."""
        claim = self.claim(worker)
        while True:
            asked = time.perf_counter_ns()
            answer = yield claim
            done.claims_ns.append(time.perf_counter_ns() - asked)
            ids = self.ids_of.findall(answer)
            if not ids:
                if self.none not in answer:
                    raise RuntimeError(f"a claim was refused: {answer!r}")
                return
            if (ack := self.ack(worker, ids)) is not None:
                answer = yield ack
                if not self.is_acked(answer, len(ids)):
                    raise RuntimeError(f"{len(ids)} jobs were acked, the answer is {answer!r}")
            done.jobs += len(ids)


class TopicsQueue(Queue):
    """Ours."""

    ids_of = re.compile(rb'"\$seq":(\d+)')
    none = b'"count":0'

    def __init__(self, address: Address, topic: str, **config: object) -> None:
        self._address, self._topic = address, f"/v0/topics/{topic}"
        http.ask(address, "PUT", self._topic, {"type": "queue", "lease_ms": LEASE_S * 1000, **config})

    def fill(self, count: int) -> None:
        body = b'{"records":[' + b",".join([b'{"data":' + JOB + b"}"] * FILL) + b"]}"
        with http.connect(self._address) as connection:
            for _ in range(count // FILL):
                http.exchange(connection, http.request("POST", f"{self._topic}?return_seqs=false", body))

    def connect(self, worker: str = "") -> socket.socket:
        return http.connect(self._address)

    def claim(self, worker: str) -> tuple[bytes, IsWhole]:
        body = json.dumps({"node": worker, "max": CLAIM}).encode()
        return http.request("POST", f"{self._topic}/claim", body), http.is_whole

    def ack(self, worker: str, ids: list[bytes]) -> tuple[bytes, IsWhole]:
        body = b'{"node":"%s","seqs":[%s]}' % (worker.encode(), b",".join(ids))
        return http.request("POST", f"{self._topic}/ack", body), http.is_whole

    def is_acked(self, answer: bytes, count: int) -> bool:
        return b'"acked":%d,' % count in answer


class NullQueue(TopicsQueue):
    """A server that does nothing, asked as ours is: it answers as ours has, and counts the claims that it owes."""

    def __init__(self, address: Address, topic: str, owed: Any) -> None:
        self._address, self._topic, self._owed = address, f"/v0/topics/{topic}", owed

    def fill(self, count: int) -> None:
        self._owed.value = count // CLAIM


def null_answers(address: Address, topic: str, owed: Any) -> dict[bytes, null.Answer]:
    """What the server answers to claims, with jobs and without, and to acks."""
    queue = TopicsQueue(address, topic)
    queue.fill(FILL)
    with queue.connect() as connection:
        claim, _ = queue.claim("w")
        jobs = http.exchange(connection, claim)
        ack, _ = queue.ack("w", queue.ids_of.findall(jobs))
        acked = http.exchange(connection, ack)
        http.ask(address, "DELETE", f"/v0/topics/{topic}")
        TopicsQueue(address, topic)
        none = http.exchange(connection, claim)

    def claimed() -> bytes:
        if owed.value == 0:
            return none
        owed.value -= 1
        return jobs

    path = f"POST /v0/topics/{topic}"
    return {f"{path}/claim HTTP/1.1".encode(): claimed, f"{path}/ack HTTP/1.1".encode(): acked}


class RedisStream(Queue):
    """A consumer group; what is acked is deleted as well, in one round trip."""

    ids_of = re.compile(rb"\r\n(\d+-\d+)\r\n")
    none = b"*-1"
    _entries = re.compile(rb"\*1\r\n\*2\r\n\$\d+\r\n\w+\r\n\*(\d+)\r\n")

    def __init__(self, address: Address) -> None:
        self._address = address
        with self.connect() as connection:
            http.until_whole(
                connection, redis.request(b"XGROUP", b"CREATE", b"jobs", b"g", b"$", b"MKSTREAM"), redis.has_lines(1)
            )

    def fill(self, count: int) -> None:
        request = redis.request(b"XADD", b"jobs", b"*", b"data", JOB) * FILL
        with self.connect() as connection:
            for _ in range(count // FILL):
                http.until_whole(connection, request, redis.has_lines(2 * FILL))

    def connect(self, worker: str = "") -> socket.socket:
        return http.connect(self._address)

    def claim(self, worker: str) -> tuple[bytes, IsWhole]:
        count = str(CLAIM).encode()
        words = (b"XREADGROUP", b"GROUP", b"g", worker.encode(), b"COUNT", count, b"STREAMS", b"jobs", b">")
        return redis.request(*words), self._is_whole

    def _is_whole(self, answer: bytes) -> bool:
        if answer == b"*-1\r\n":
            return True
        entries = self._entries.match(answer)
        return entries is not None and answer.count(JOB_END) == int(entries[1])

    def ack(self, worker: str, ids: list[bytes]) -> tuple[bytes, IsWhole]:
        return redis.request(b"XACK", b"jobs", b"g", *ids) + redis.request(b"XDEL", b"jobs", *ids), redis.has_lines(2)

    def is_acked(self, answer: bytes, count: int) -> bool:
        return answer == b":%d\r\n" % count * 2


class JetStreamQueue(Queue):
    """A work queue on disk with a pull consumer; each ack is confirmed."""

    ids_of = re.compile(rb"(\$JS\.ACK\.\S+) \d+\r\n")
    none = b"NATS/1.0 4"
    _statuses = re.compile(rb"NATS/1\.0 (?:404|408|409) ")

    def __init__(self, address: Address) -> None:
        self._address = address
        stream = {"name": "JOBS", "subjects": ["jobs"], "storage": "file", "retention": "workqueue"}
        nats.ask(address, "$JS.API.STREAM.CREATE.JOBS", stream)
        lease = {"ack_wait": LEASE_S * 10**9, "max_ack_pending": 100_000}
        consumer = {"durable_name": "g", "ack_policy": "explicit", "deliver_policy": "all", **lease}
        nats.ask(address, "$JS.API.CONSUMER.DURABLE.CREATE.JOBS.g", {"stream_name": "JOBS", "config": consumer})

    def fill(self, count: int) -> None:
        with nats.listening(self._address, nats.INBOX) as connection:
            request = nats.publish(b"jobs", JOB, nats.INBOX.encode()) * FILL
            for _ in range(count // FILL):
                http.until_whole(connection, request, lambda answer: answer.count(b'"stream":"JOBS"') == FILL)

    def connect(self, worker: str = "") -> socket.socket:
        return nats.listening(self._address, f"{nats.INBOX}.{worker}")

    def claim(self, worker: str) -> tuple[bytes, IsWhole]:
        wanted = b'{"batch":%d,"no_wait":true,"expires":100000000}' % CLAIM  # what is missing then is told
        inbox = f"{nats.INBOX}.{worker}".encode()
        return nats.publish(b"$JS.API.CONSUMER.MSG.NEXT.JOBS.g", wanted, inbox), self._is_whole

    def _is_whole(self, answer: bytes) -> bool:
        return answer.count(JOB_END) == CLAIM or (b"NATS/1.0 " in answer and self._statuses.search(answer) is not None)

    def ack(self, worker: str, ids: list[bytes]) -> tuple[bytes, IsWhole]:
        inbox = f"{nats.INBOX}.{worker}".encode()
        acks = b"".join(nats.publish(number, b"+ACK", inbox) for number in ids)
        return acks, lambda answer: answer.count(b" 0\r\n\r\n") == len(ids)

    def is_acked(self, answer: bytes, count: int) -> bool:
        return answer.count(b" 0\r\n\r\n") == count


class Beanstalk(Queue):
    """Jobs are reserved and deleted one by one; a worker sends eight commands at once."""

    ids_of = re.compile(rb"RESERVED (\d+) ")
    none = b"TIMED_OUT"

    def __init__(self, address: Address) -> None:
        self._address = address

    def fill(self, count: int) -> None:
        request = b"put 1 0 %d %d\r\n%s\r\n" % (LEASE_S, len(JOB), JOB) * FILL
        with self.connect() as connection:
            for _ in range(count // FILL):
                http.until_whole(connection, request, redis.has_lines(FILL))

    def connect(self, worker: str = "") -> socket.socket:
        return http.connect(self._address)

    def claim(self, worker: str) -> tuple[bytes, IsWhole]:
        return b"reserve-with-timeout 0\r\n" * CLAIM, self._is_whole

    @staticmethod
    def _is_whole(answer: bytes) -> bool:
        return answer.count(JOB_END) + answer.count(b"TIMED_OUT\r\n") == CLAIM

    def ack(self, worker: str, ids: list[bytes]) -> tuple[bytes, IsWhole]:
        return b"".join(b"delete %s\r\n" % number for number in ids), redis.has_lines(len(ids))

    def is_acked(self, answer: bytes, count: int) -> bool:
        return answer == b"DELETED\r\n" * count


class PostgresDelete(Queue):
    """A job is deleted by the statement that claims it: gone if the worker fails."""

    ids_of = re.compile(rb"D\x00\x00..\x00\x02\x00\x00\x00.(\d+)\x00\x00", re.DOTALL)
    none = b"DELETE 0"
    setup = "CREATE TABLE {table} (id bigserial PRIMARY KEY, data text NOT NULL)"
    prepare = """PREPARE claim AS DELETE FROM {table} WHERE id = ANY(ARRAY(
        SELECT id FROM {table} ORDER BY id LIMIT {claim} FOR UPDATE SKIP LOCKED)) RETURNING id, data"""

    def __init__(self, address: Address, table: str) -> None:
        self._address, self._table = address, table
        with self._session() as connection:
            self._ask(connection, self.setup)

    def fill(self, count: int) -> None:
        with self._session() as connection:
            rows = f"SELECT '{JOB.decode()}' FROM generate_series(1, {count})"
            self._ask(connection, "INSERT INTO {table} (data) " + rows)
            self._ask(connection, "VACUUM ANALYZE {table}")

    def connect(self, worker: str = "") -> socket.socket:
        connection = self._session()
        self._ask(connection, self.prepare)
        return connection

    def claim(self, worker: str) -> tuple[bytes, IsWhole]:
        return postgres.query("EXECUTE claim"), postgres.is_ready

    def ack(self, worker: str, ids: list[bytes]) -> tuple[bytes, IsWhole] | None:
        return None

    def is_acked(self, answer: bytes, count: int) -> bool:
        return b"DELETE %d\0" % count in answer

    def _session(self) -> socket.socket:
        return postgres.session(self._address)

    def _ask(self, connection: socket.socket, text: str) -> None:
        postgres.ask(connection, text.replace("{table}", self._table).replace("{claim}", str(CLAIM)))


class PostgresLease(PostgresDelete):
    """A claim sets the row's lease; the ack deletes the row."""

    none = b"UPDATE 0"
    setup = """CREATE TABLE {table} (id bigserial PRIMARY KEY, data text NOT NULL, holder text,
        leased_until timestamptz NOT NULL DEFAULT '-infinity');
        CREATE INDEX ON {table} (leased_until, id)"""
    prepare = f"""PREPARE claim (text) AS UPDATE {{table}}
        SET leased_until = now() + interval '{LEASE_S} s', holder = $1 WHERE id = ANY(ARRAY(
            SELECT id FROM {{table}} WHERE leased_until < now() ORDER BY leased_until, id
            LIMIT {{claim}} FOR UPDATE SKIP LOCKED)) RETURNING id, data;
        PREPARE ack (text, bigint[]) AS DELETE FROM {{table}} WHERE id = ANY($2) AND holder = $1"""

    def claim(self, worker: str) -> tuple[bytes, IsWhole]:
        return postgres.query(f"EXECUTE claim('{worker}')"), postgres.is_ready

    def ack(self, worker: str, ids: list[bytes]) -> tuple[bytes, IsWhole]:
        return postgres.query(f"EXECUTE ack('{worker}', '{{{b','.join(ids).decode()}}}')"), postgres.is_ready
