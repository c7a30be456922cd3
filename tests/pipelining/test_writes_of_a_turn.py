"""Writes of many connections that the server reads in one turn of its loop, over the wire in memory."""

import json
import random
from collections.abc import Sequence
from typing import Any, cast

import pytest

from tests.api.clients.transcript import request_bytes
from tests.effort import tries
from tests.pipelining.clients import Http2, Request
from tests.pipelining.test_jobs_of_a_turn import asked
from tests.pipelining.test_wire import served, until
from topics.engine import Engine
from topics.server.handlers.writing.turn import RUN_RECORDS_MAX, TURN_BYTES_MAX, TURN_WRITES_MAX, WRITE_BYTES_MAX
from topics.server.main import Server
from topics.server.transport.http1 import Http1
from topics.settings import Settings
from topics.testing.clock import ManualClock
from topics.testing.disk import Faulty, MemoryDisk
from topics.testing.wire import Line, Wire

WRITERS = 20


def write(body: object, topic: str = "t", *headers: str, query: str = "") -> bytes:
    return request_bytes("POST", f"/v0/topics/{topic}{query}", json.dumps(body), *headers)


def connected(server: Server, count: int = WRITERS) -> list[Line]:
    wire = Wire(server.listener.connections)
    return [wire.connect() for _ in range(count)]


async def put(lines: Sequence[Line], topic: str = "t", **config: object) -> None:
    ((status, _),) = await asked(list(lines[:1]), [request_bytes("PUT", f"/v0/topics/{topic}", config)])
    assert status == 201


async def told(lines: Sequence[Line], requests: Sequence[bytes]) -> list[tuple[int, Any]]:
    return await asked(list(lines[: len(requests)]), list(requests))


async def records_of(line: Line, topic: str = "t") -> list[dict[str, Any]]:
    """All records of a topic, without their times."""
    ((status, body),) = await asked(
        [line], [request_bytes("POST", f"/v0/topics/{topic}/diff", {"limit": 1000, "include_tags": True})]
    )
    assert status == 200 and body["caught_up"]
    return [{name: value for name, value in record.items() if name != "$ts"} for record in body["records"]]


@pytest.mark.parametrize("durability", ["ephemeral", "memory", "disk", "fsync"])
async def test_writes_of_one_turn_share_a_frame_and_each_has_its_answer(durability: str) -> None:
    """WR1, WR4, WR9, WR10, ST17"""
    async with served() as server:
        lines = connected(server)
        await put(lines, durability=durability)
        frames = server.engine.wal.counters.frames
        answers = await told(
            lines, [write({"records": [{"data": [n, k]} for k in range(n % 3 + 1)]}) for n in range(WRITERS)]
        )
        assert [status for status, _ in answers] == [200] * WRITERS
        last = 0
        for n, (_, body) in enumerate(answers):
            seqs = list(range(last + 1, last + n % 3 + 2))
            last = seqs[-1]
            assert (body["first_seq"], body["last_seq"], body["head_seq"]) == (seqs[0], last, last)
            assert (body["seqs"], body["count"], body["created"], body["deduped"]) == (seqs, len(seqs), False, False)
        assert [record["data"] for record in await records_of(lines[0])] == [
            [n, k] for n in range(WRITERS) for k in range(n % 3 + 1)
        ]
        assert server.engine.wal.counters.frames - frames == (durability != "ephemeral")


async def test_writes_of_one_turn_are_refused_one_by_one() -> None:
    """WR3, WR6, CV3, TP2, QU20: what is wrong with one does not touch the others."""
    async with served() as server:
        lines = connected(server)
        await put(lines)
        wrong: list[tuple[bytes, int]] = [
            (write({"records": []}), 400),
            (write({"records": [{"tag": "no data"}]}), 400),
            (request_bytes("POST", "/v0/topics/t", b'{"records":[{"data":1}]'), 400),
            (write({"records": [{"data": 1, "tag": "x" * 5000}]}), 400),
            (write({"records": [{"data": 1}], "node": "x" * 5000}), 400),
            (write({"records": [{"data": 1, "meta": [1]}]}), 400),
            (write({"records": [{"data": 1, "delay_ms": 5}]}), 409),
            (write({"records": [{"data": 1}], "create": False}, "absent"), 404),
            (write({"records": [{"data": 1}], "on_mismatch": "other"}), 400),
        ]
        answers = await told(lines, [request for request, _ in wrong])
        assert [status for status, _ in answers] == [status for _, status in wrong]
        alone = [body["error"]["message"] for _, body in answers]
        mixed = [write({"records": [{"data": 0}]})]
        for n, (request, _) in enumerate(wrong):
            mixed += [request, write({"records": [{"data": n + 1}]})]
        answers = await told(lines, mixed)
        assert [status for status, _ in answers[::2]] == [200] * (len(wrong) + 1)
        assert [body["error"]["message"] for _, body in answers[1::2]] == alone
        assert [record["data"] for record in await records_of(lines[0])] == list(range(len(wrong) + 1))


async def test_a_node_that_is_too_long_is_refused_also_if_no_record_takes_it() -> None:
    """WR3"""
    async with served() as server:
        lines = connected(server)
        await put(lines)
        wrong = write({"records": [{"data": 1, "node": "its own"}], "node": "x" * 129})
        right = write({"records": [{"data": 2}], "node": "x" * 128})
        assert [status for status, _ in await told(lines, [right, wrong, right, wrong])] == [200, 400, 200, 400]
        assert [(record["data"], len(record["$node"])) for record in await records_of(lines[0])] == [(2, 128)] * 2


async def test_a_write_that_is_more_than_its_records_keeps_its_meaning_among_others() -> None:
    """ID1, ID9, TP5, QU18, WR8"""
    async with served() as server:
        lines = connected(server)
        await put(lines)
        plain, keyed = write({"records": [{"data": 1}]}), write({"records": [{"data": 2}], "idempotency_key": "k"})
        header = write({"records": [{"data": 3}]}, "t", "Idempotency-Key: h")
        bare = write({"records": [{"data": 4}]}, query="?return_seqs=false")
        fresh = write({"records": [{"data": 5}], "config": {"durability": "fsync"}}, "new")
        answers = await told(lines, [plain, keyed, header, bare, plain, keyed, header, fresh, plain])
        assert {status for status, _ in answers} == {200, 201}
        assert [body["deduped"] for _, body in answers] == [False] * 5 + [True, True, False, False]
        assert answers[1][1]["first_seq"] == answers[5][1]["first_seq"]
        assert answers[7][0] == 201 and answers[7][1]["created"]
        assert "seqs" not in answers[3][1]
        data = sorted(record["data"] for record in await records_of(lines[0]))
        assert data == [1, 1, 1, 2, 3, 4]


async def test_each_write_of_a_turn_has_the_list_of_its_seqs_unless_it_wants_none() -> None:
    """WR8"""
    async with served() as server:
        lines = connected(server, 4)
        await put(lines)
        frames = server.engine.wal.counters.frames
        body = {"records": [{"data": 1}, {"data": 2}]}
        queries = ("", "?return_seqs=false", "?return_seqs=false", "")
        answers = await told(lines, [write(body, query=query) for query in queries])
        assert [body.get("seqs") for _, body in answers] == [[1, 2], None, None, [7, 8]]
        assert [body["first_seq"] for _, body in answers] == [1, 3, 5, 7]
        assert server.engine.wal.counters.frames - frames == 1


async def test_the_first_writes_to_a_topic_make_it_once() -> None:
    """TP5, TP6"""
    async with served() as server:
        lines = connected(server)
        answers = await told(lines, [write({"records": [{"data": n}]}, "new") for n in range(WRITERS)])
        assert [status for status, _ in answers] == [201] + [200] * (WRITERS - 1)
        assert [body["created"] for _, body in answers] == [True] + [False] * (WRITERS - 1)
        assert [record["data"] for record in await records_of(lines[0], "new")] == list(range(WRITERS))


@pytest.mark.parametrize("discard", ["old", "reject"])
async def test_caps_hold_for_each_write_of_a_turn(discard: str) -> None:
    """TP9, TP10, TM2: as many as fit are taken, and the oldest make room, as if they had come one by one."""
    async with served() as server:
        lines = connected(server)
        await put(lines, cap_records=5, discard=discard)
        answers = await told(lines, [write({"records": [{"data": n}]}) for n in range(8)])
        data = [record["data"] for record in await records_of(lines[0]) if "data" in record]
        if discard == "old":
            assert [status for status, _ in answers] == [200] * 8 and data == [3, 4, 5, 6, 7]
        else:
            assert [status for status, _ in answers] == [200] * 5 + [answers[5][0]] * 3
            assert answers[5][1]["error"]["code"] == "topic_full" and data == [0, 1, 2, 3, 4]


async def test_a_turn_of_very_many_writes_is_done_in_several() -> None:
    """LM10"""
    async with served() as server:
        lines = connected(server, TURN_WRITES_MAX + 60)
        await put(lines)
        frames = server.engine.wal.counters.frames
        answers = await told(lines, [write({"records": [{"data": n}, {"data": -n}]}) for n in range(len(lines))])
        assert [body["first_seq"] for _, body in answers] == list(range(1, 2 * len(lines), 2))
        runs = -(-2 * len(lines) // RUN_RECORDS_MAX)
        assert runs <= server.engine.wal.counters.frames - frames <= runs + 1
        large = "x" * (WRITE_BYTES_MAX - 100)
        lines = lines[: TURN_BYTES_MAX // WRITE_BYTES_MAX + 5]
        answers = await told(lines, [write({"records": [{"data": large}]}) for _ in lines])
        assert [status for status, _ in answers] == [200] * len(lines)
        assert len({body["first_seq"] for _, body in answers}) == len(lines)


class SlowClock(ManualClock):
    """Time passes whenever somebody looks: everything takes long."""

    def monotonic(self) -> float:
        self.advance(1)
        return super().monotonic()


@pytest.mark.parametrize("topics", [1, WRITERS])
async def test_what_takes_long_is_done_in_several_turns(topics: int) -> None:
    """LM10: no further write is begun in a turn that has taken long enough, and each is still done once."""
    settings, clock = Settings(port=0), SlowClock()
    engine = Engine.open("memory", settings, disk=MemoryDisk(), clock=clock, background=False)
    async with Server.open(settings, engine=engine, source=lambda: 0.0) as server:
        lines = connected(server)
        for topic in range(topics):
            await put(lines, f"t{topic}")
        batches = server.engine.wal.counters.batches
        bodies = [{"records": [{"data": n}]} if n % 3 else {"records": []} for n in range(WRITERS)]
        answers = await told(lines, [write(body, f"t{n % topics}") for n, body in enumerate(bodies)])
        assert [status for status, _ in answers] == [200 if n % 3 else 400 for n in range(WRITERS)]
        assert server.engine.wal.counters.batches - batches > 1
        data = [record["data"] for topic in range(topics) for record in await records_of(lines[0], f"t{topic}")]
        assert data == [n for n in range(WRITERS) if n % 3]
        assert server.app.slots.running == 0


@pytest.mark.parametrize("records", [[], [{"data": "written"}]])
async def test_somebody_who_cannot_be_told_leaves_the_others_their_answers(records: list[object]) -> None:
    """WR9: whether its write is refused or taken."""
    async with served() as server:
        lines = connected(server, 4)
        await put(lines)
        others = set(server.listener.connections.open)
        torn = connected(server, 1)[0]
        await told([torn], [write({"records": [{"data": "first"}]})])
        (connection,) = server.listener.connections.open - others
        cast(Http1, connection).transport.write_eof()  # an answer cannot be written any more
        torn.send(write({"records": records}))
        answers = await told(lines, [write({"records": [{"data": n}]}) for n in range(4)])
        assert [status for status, _ in answers] == [200] * 4
        assert server.app.slots.running == 0


async def test_if_the_log_fails_no_write_of_the_turn_is_acked_or_there() -> None:
    """ER7, ST4, WR9"""
    disk, settings = MemoryDisk(), Settings(port=0)
    engine = Engine.open("memory", settings, disk=disk, clock=ManualClock(), background=False)
    async with Server.open(settings, engine=engine, source=lambda: 0.0) as server:
        lines = connected(server)
        await put(lines, durability="fsync")
        assert [status for status, _ in await told(lines, [write({"records": [{"data": n}]}) for n in range(5)])] == [
            200
        ] * 5
        disk.hooks.append(Faulty("sync", name="log-*"))
        answers = await told(lines, [write({"records": [{"data": n}]}) for n in range(5, 9)])
        assert [status for status, _ in answers] == [500] * 4
        disk.hooks.clear()
        assert [status for status, _ in await told(lines, [write({"records": [{"data": n}]}) for n in (9, 10)])] == [
            200
        ] * 2
        assert [record["data"] for record in await records_of(lines[0])] == [0, 1, 2, 3, 4, 9, 10]


async def test_clients_that_are_gone_at_the_end_of_the_turn_leave_the_others_their_answers() -> None:
    """WR9"""
    async with served() as server:
        lines = connected(server, 4)
        await put(lines)
        for n, line in enumerate(lines):
            line.send(write({"records": [{"data": n}]}))
        lines[1].drop()
        lines[2].end()
        await until(lambda: lines[3].take())
        assert lines[2].take().startswith(b"HTTP/1.1 200")
        data = [record["data"] for record in await records_of(lines[3])]
        assert [n for n in data if n != 1] == [0, 2, 3]


async def test_streams_of_one_http2_connection_share_a_frame() -> None:
    """WR9, HT2"""
    async with served() as server:
        line = connected(server, 1)[0]
        client = Http2(64)
        heard: list[Any] = []

        def receive() -> None:
            heard.extend(client.receive(line.take()))
            line.send(client.owed())

        line.send(client.open())
        await until(lambda: (receive(), client.room)[1])
        line.send(client.ask(Request("write", "t", {"records": [{"data": "first"}]})))
        await until(lambda: (receive(), not client.in_flight)[1])
        frames = server.engine.wal.counters.frames
        line.send(b"".join(client.ask(Request("write", "t", {"records": [{"data": n}]})) for n in range(8)))
        await until(lambda: (receive(), not client.in_flight)[1])
        assert len(heard) == 9 and server.engine.wal.counters.frames - frames == 1


def some_write(chance: random.Random) -> dict[str, Any]:
    """A write of the kinds that may differ in what is kept of them."""
    records = []
    for _ in range(chance.choice((1, 1, 1, 2, 5))):
        record: dict[str, Any] = {"data": chance.choice((1, None, "é\n", {"a": [1, {"b": "x"}]}, 1e300, [], "\u2028"))}
        for field, values in (("tag", ("a", "b:c")), ("node", ("n", "m")), ("meta", ({"k": "v"}, None, {}))):
            if chance.random() < 0.4:
                record[field] = chance.choice(values)
        records.append(record)
    body: dict[str, Any] = {"records": records}
    if chance.random() < 0.3:
        body["node"] = chance.choice(("n", "o"))
    return body


@pytest.mark.parametrize("seed", range(tries(20)))
async def test_what_is_kept_of_writes_of_one_turn_is_what_is_kept_of_each_alone(seed: int) -> None:
    """WR1, WR5, CV26: records, metadata and seqs are the same, in answers, in the log and after a restart."""
    chance = random.Random(seed)
    bodies = [some_write(chance) for _ in range(WRITERS)]
    texts = [
        write(body) if chance.random() < 0.5 else request_bytes("POST", "/v0/topics/t", json.dumps(body, indent=1))
        for body in bodies
    ]
    kept = []
    for together in (True, False):
        disk, settings = MemoryDisk(), Settings(port=0)
        engine = Engine.open("memory", settings, disk=disk, clock=ManualClock(), background=False)
        async with Server.open(settings, engine=engine, source=lambda: 0.0) as server:
            lines = connected(server)
            await put(lines)
            if together:
                answers = await told(lines, texts)
            else:
                answers = [answer for text in texts for answer in await told(lines, [text])]
            seqs = [body["seqs"] for _, body in answers]
            records = await records_of(lines[0])
            killed = disk.kill()
        engine = Engine.open("memory", settings, disk=killed, clock=ManualClock(), background=False)
        async with Server.open(settings, engine=engine, source=lambda: 0.0) as server:
            assert await records_of(connected(server, 1)[0]) == records
        kept.append((seqs, records))
    assert kept[0] == kept[1]
    assert [record["data"] for record in kept[0][1]] == [
        record["data"] for body in bodies for record in body["records"]
    ]
