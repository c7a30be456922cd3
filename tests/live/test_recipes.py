"""The recipes of examples/recipes, against a real server and the real libraries that they are for."""

import asyncio
import inspect
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from threading import Thread
from typing import Any

import httpx
import pytest

from examples.recipes.consumer_group import Member, create, send
from examples.recipes.job_runner import Jobs, TaskFailed
from examples.recipes.kafka_like import TopicConsumer
from topics.client import AsyncClient, Client, Lost, Record
from topics.testing.patience import PATIENCE_S, POLL_S
from topics.testing.server import ServerProcess


async def until(condition: Callable[[], object | Awaitable[object]]) -> None:
    """Wait for a condition, while the loop goes on."""
    async with asyncio.timeout(PATIENCE_S):
        while True:
            found = condition()
            if await found if inspect.isawaitable(found) else found:
                return
            await asyncio.sleep(POLL_S)


# --- browsers


@asynccontextmanager
async def served(app: Any) -> AsyncIterator[httpx.AsyncClient]:
    """The application, served by uvicorn on a free port."""
    uvicorn = pytest.importorskip("uvicorn")
    server = uvicorn.Server(uvicorn.Config(app, port=0, log_level="error", timeout_graceful_shutdown=1))
    serving = asyncio.create_task(server.serve())
    await until(lambda: server.started)
    port = server.servers[0].sockets[0].getsockname()[1]
    async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}", timeout=PATIENCE_S) as browser:
        yield browser
    server.should_exit = True
    await serving


async def frames_of(response: httpx.Response) -> AsyncIterator[dict[str, str]]:
    frame: dict[str, str] = {}
    async for line in response.aiter_lines():
        if line and not line.startswith(":"):
            name, _, value = line.partition(": ")
            frame[name] = value
        elif frame:
            yield frame
            frame = {}


async def test_a_browser_follows_a_topic_and_goes_on_where_it_was(
    topics_server: ServerProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("starlette")
    from examples.recipes import browser_events

    monkeypatch.setenv("TOPICS_URL", topics_server.url)
    monkeypatch.setattr(browser_events, "HEARTBEAT_S", POLL_S)
    async with AsyncClient(topics_server.url, "") as client, served(browser_events.app) as browser:
        assert "EventSource" in (await browser.get("/")).text
        assert (await browser.get("/events/nope")).status_code == 404
        await client.put_topic("page", cap_records=3)
        await client.append("page", [{"data": n} for n in range(1, 6)])
        async with browser.stream("GET", "/events/page?from_seq=0") as response:
            assert response.headers["content-type"].startswith("text/event-stream")
            told = frames_of(response)
            lost, records = await anext(told), await anext(told)
            assert (lost["event"], json.loads(lost["data"])) == ("lost", [1, 2, "from_seq_too_old"])
            assert (records["event"], json.loads(records["data"])) == ("records", [3, 4, 5])
        await client.send("page", 6)
        again = {"last-event-id": records["id"]}
        async with browser.stream("GET", "/events/page", headers=again) as response:
            told = frames_of(response)
            assert json.loads((await anext(told))["data"]) == [6]
            await client.send("page", {"two": "lines\n"})
            assert json.loads((await anext(told))["data"]) == [{"two": "lines\n"}]
        for odd in ("²", "-1", "x" * 9999, "9" * 40, "1.1.1", "."):
            async with browser.stream("GET", "/events/page", headers={"last-event-id": odd.encode()}) as response:
                assert response.status_code == 200

        async def nobody_is_there() -> bool:
            return not [one async for one in client.connections() if one.topics == ["page"]]

        await until(nobody_is_there)


# --- as in aiokafka


async def test_a_consumer_as_in_aiokafka_goes_on_where_its_group_is(topics_server: ServerProcess) -> None:
    async with AsyncClient(topics_server.url, "") as client:
        for topic in ("kafka.a", "kafka.b"):
            await client.append(topic, [{"data": n, "tag": "k", "meta": {"h": "1"}} for n in range(1, 4)])
        told: dict[str, Any] = {"url": topics_server.url, "token": "", "group_id": "g", "auto_offset_reset": "earliest"}
        async with TopicConsumer("kafka.a", "kafka.b", **told) as consumer:
            seen = [await anext(consumer) for _ in range(4)]
            assert seen[0].key == "k" and seen[0].headers == {"h": "1"} and seen[0].timestamp > 0
        async with TopicConsumer("kafka.a", "kafka.b", **told) as consumer:
            seen += [await anext(consumer) for _ in range(2)]
            assert sorted((one.topic, one.offset, one.value) for one in seen) == [
                (topic, n, n) for topic in ("kafka.a", "kafka.b") for n in (1, 2, 3)
            ]
            assert await consumer.getmany(timeout_ms=1) == {}
            await client.send("kafka.a", 4)
            found = await consumer.getmany(timeout_ms=round(PATIENCE_S * 1000))
            assert [message.value for message in found["kafka.a"]] == [4]
            assert consumer.position("kafka.a") == 5
            await consumer.commit()
            assert await consumer.committed("kafka.a") == 5 and await consumer.committed("kafka.b") == 4
            await consumer.seek("kafka.b", 2)
            assert [(await anext(consumer)).value for _ in range(2)] == [2, 3]
            waiting = asyncio.create_task(consumed(consumer))
            await asyncio.sleep(0)
            await consumer.stop()
            assert await waiting == []


async def consumed(consumer: TopicConsumer) -> list[Any]:
    return [message async for message in consumer]


async def test_seeking_reads_again_what_was_not_handed_out(topics_server: ServerProcess) -> None:
    async with AsyncClient(topics_server.url, "") as client:
        for topic in ("seek.a", "seek.b"):
            await client.append(topic, [{"data": n} for n in range(1, 4)])
    told: dict[str, Any] = {"url": topics_server.url, "token": "", "auto_offset_reset": "earliest"}
    async with TopicConsumer("seek.a", "seek.b", **told) as consumer:
        first = await anext(consumer)
        await consumer.seek(first.topic, 3)
        rest = [await anext(consumer) for _ in range(4)]
        other = "seek.b" if first.topic == "seek.a" else "seek.a"
        assert sorted((one.topic, one.offset) for one in rest) == sorted(
            [(first.topic, 3), (other, 1), (other, 2), (other, 3)]
        )


# --- groups


async def test_members_of_a_group_share_parts_and_take_over(topics_server: ServerProcess) -> None:
    parts, keys = 4, [f"key-{n}" for n in range(20)]
    async with AsyncClient(topics_server.url, "") as client:
        await asyncio.gather(*(create(client, "grouped", "g", parts) for _ in range(3)))
        await create(client, "grouped", "g", parts)
        assert (await client.state("grouped.group.g")).count == parts
        handled: dict[str, list[tuple[str, int]]] = {}  # key → who handled which of its values

        def handler(name: str) -> Any:
            async def handle(item: Record | Lost) -> None:
                assert isinstance(item, Record) and item.tag is not None
                handled.setdefault(item.tag, []).append((name, item.value))

            return handle

        members = [Member(client, "grouped", "g", name, handler(name), slots=4, turn_s=0.2) for name in ("a", "b")]
        running = [asyncio.create_task(member.run()) for member in members]
        for value in range(5):
            for key in keys:
                await send(client, "grouped", parts, key, value)
        await until(lambda: sum(map(len, handled.values())) >= 100)
        members[0].stop()
        await running[0]
        for key in keys:
            await send(client, "grouped", parts, key, 5)
        await until(lambda: all(any(value == 5 for _, value in handled[key]) for key in keys))
        members[1].stop()
        await running[1]
        for key in keys:
            values = [value for _, value in handled[key]]
            assert sorted(set(values)) == [0, 1, 2, 3, 4, 5]
            assert list(dict.fromkeys(values)) == [0, 1, 2, 3, 4, 5], "in order, whoever handled them"
        assert (await client.state("grouped.group.g")).count == parts


# --- jobs


def test_a_job_runner_runs_tasks(topics_server: ServerProcess, tmp_path: Path) -> None:
    with Client(topics_server.url, "") as client:
        jobs = Jobs(client, "runner")
        tries: list[str] = []

        @jobs.task(retries=1)
        def add(a: int, b: int = 0) -> int:
            return a + b

        @jobs.task(retries=1)
        def shaky(word: str) -> str:
            tries.append(word)
            if word == "never" or len(tries) < 2:
                raise ValueError(f"{word} failed")
            return word

        assert add(1, b=2) == 3
        working = Thread(target=lambda: jobs.work(slots=2, handle_signals=False))
        working.start()
        try:
            assert add.delay(1, b=2).result(PATIENCE_S) == 3
            assert add.later(0.01, 5).result(PATIENCE_S) == 5
            assert shaky.delay("once").result(PATIENCE_S) == "once" and tries == ["once", "once"]
            with pytest.raises(TaskFailed, match="ValueError: never failed"):
                shaky.delay("never").result(PATIENCE_S)
            jobs.send("unknown", [], {})
            with pytest.raises(TimeoutError):
                jobs.result_of("nothing", 0.01)
        finally:
            jobs.stop()
            working.join(PATIENCE_S)
        assert not working.is_alive()
