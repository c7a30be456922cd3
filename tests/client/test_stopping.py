"""Whatever waits can be stopped: from another thread, from a signal handler, by Ctrl-C, with the client."""

import asyncio
import gc
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from typing import Any

import pytest

from tests.client.conftest import Connect, Pausing, Script
from topics.client import AsyncClient, Client, ClientClosed
from topics.client.blocking.concurrency import Event
from topics.client.protocol.stopping import Stop
from topics.testing.patience import PATIENCE_S, wait_until
from topics.testing.server import ServerProcess, ServerThread

OPENS: dict[str, Callable[[Any, str], Any]] = {
    "consumer": lambda client, topic: client.consume(topic, wait_ms=60_000),
    "watcher": lambda client, topic: client.watch([topic]),
}


class Reading:
    """A loop over a stream, in a thread."""

    def __init__(self, stream: Any) -> None:
        self.items: list[Any] = []
        self.failure: BaseException | None = None
        self._stream = stream
        self._thread = threading.Thread(target=self._read)
        self._thread.start()

    def _read(self) -> None:
        try:
            self.items.extend(self._stream)
        except BaseException as failure:
            self.failure = failure

    def end(self) -> None:
        self._thread.join(PATIENCE_S)
        assert not self._thread.is_alive(), "the loop does not end"
        if self.failure is not None:
            raise self.failure


def waiting(server: ServerThread, kind: str, topic: str) -> bool:
    """Does the server hold a long poll or a stream of this topic?"""
    slots = server.server.app.slots
    return bool(server.run(lambda: slots.running))


@pytest.mark.parametrize("kind", OPENS)
@pytest.mark.parametrize("by", ["close", "client"])
def test_a_loop_that_waits_ends_cleanly(start: Any, connect: Connect, kind: str, by: str) -> None:
    server = start()
    client = connect(server.address)
    client.append("t", [{"data": 1}])
    stream = OPENS[kind](client, "t")
    reading = Reading(stream)
    wait_until("nothing was read", lambda: reading.items)
    wait_until("nothing waits", lambda: waiting(server, kind, "t") or kind == "watcher")
    stream.close() if by == "close" else client.close()
    reading.end()
    stream.close()
    assert next(stream, None) is None


@pytest.mark.parametrize("kind", OPENS)
def test_a_stream_that_nobody_reads_is_closed(server: ServerThread, connect: Connect, topic: str, kind: str) -> None:
    client = connect(server.address)
    client.append(topic, [{"data": 1}])
    with OPENS[kind](client, topic) as stream:
        next(stream)
    stream.close()
    assert list(stream) == []
    gc.collect()


def test_lists_and_exports_are_closed_like_the_rest(server: ServerThread, connect: Connect, topic: str) -> None:
    client = connect(server.address)
    client.append(topic, [{"data": 1}])
    for stream in (client.topics(), client.export(topic)):
        with stream:
            pass
        assert list(stream) == []


def test_a_closed_client_refuses_every_call(server: ServerThread, connect: Connect, topic: str) -> None:
    client = connect(server.address)
    client.append(topic, [{"data": 1}])
    client.close()
    assert client.is_closed
    calls = [
        lambda: client.append(topic, [{"data": 2}]),
        lambda: client.diff(topic),
        client.health,
        lambda: client.worker(topic, "w", print).run(),
    ]
    for call in calls:
        with pytest.raises(ClientClosed, match="the client is closed"):
            call()
    assert list(client.consume(topic)) == [] and list(client.topics()) == []


def test_closing_a_client_ends_a_call_that_waits_for_its_answer(script: Script, connect: Connect) -> None:
    asked = threading.Event()

    def silent(connection: Any) -> None:
        server.read(connection)
        asked.set()
        assert connection.recv(1) == b""  # until the client is gone

    server = script(silent)
    client = connect(server.address)
    closing = threading.Thread(target=lambda: (asked.wait(PATIENCE_S), client.close()))
    closing.start()
    with pytest.raises(ClientClosed) as caught:
        client.health()
    closing.join()
    assert caught.value.was_sent is True


def test_closing_a_client_ends_its_pauses(connect: Connect, unused_port: int) -> None:
    clock = Pausing()
    client = connect(("127.0.0.1", unused_port), clock=clock)
    closing = threading.Thread(target=lambda: (clock.begun.wait(PATIENCE_S), client.close()))
    closing.start()
    with pytest.raises(ClientClosed):
        client.health()
    closing.join()


def test_a_stop_ends_what_waits_for_it_or_for_one_below_it() -> None:
    above = Stop()
    below = Stop(above)
    ended: list[str] = []
    with below.ending(lambda: ended.append("below")), above.ending(lambda: ended.append("above")):
        above.set()
    assert sorted(ended) == ["above", "below"] and below.is_set()
    with below.ending(lambda: ended.append("late")):
        assert ended[-1] == "late"
    lone = Stop(Stop())
    with lone.ending(lambda: ended.append("never")):
        pass
    lone.set()
    assert "never" not in ended


def test_an_event_may_be_set_by_a_signal_handler_that_interrupts_a_wait_for_it() -> None:
    """`threading.Event` may not: its lock may be held by the very wait that the handler interrupts."""
    over = Event()
    before = signal.signal(signal.SIGUSR1, lambda *_: over.set())
    try:
        threading.Timer(0, lambda: signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGUSR1)).start()
        assert over.wait(PATIENCE_S)
    finally:
        signal.signal(signal.SIGUSR1, before)


PROGRAMS = {
    "consume": "for item in client.consume('t'): print('item', flush=True)",
    "watch": "for item in client.watch(['t']): print('item', flush=True)",
    "diff": "print('item', flush=True); client.diff('t', 1, wait_ms=60000)",
    "worker": "client.worker('q', 'w', lambda job: print('item', flush=True)).run()",
    "async": """
import asyncio
from topics import AsyncClient
async def main():
    async for item in AsyncClient(client.url).consume('t'):
        print('item', flush=True)
asyncio.run(main())""",
}
HEAD = "import sys\nfrom topics import Client\nclient = Client(sys.argv[1])\n"


@pytest.fixture(scope="module")
def real(tmp_path_factory: pytest.TempPathFactory) -> Any:
    with ServerProcess(tmp_path_factory.mktemp("stopping")) as server:
        with Client("http://{}:{}".format(*server.address)) as client:
            client.append("t", [{"data": 1}])
            client.put_topic("q", type="queue")
            client.append("q", [{"data": n} for n in range(100)])
        yield server


def program(real: ServerProcess, source: str) -> "subprocess.Popen[str]":
    command = [sys.executable, "-c", HEAD + source, "http://{}:{}".format(*real.address)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


@pytest.mark.process
@pytest.mark.parametrize("name", PROGRAMS)
def test_ctrl_c_shows_the_frames_of_the_program_and_hardly_any_of_ours(real: ServerProcess, name: str) -> None:
    with program(real, PROGRAMS[name]) as running:
        assert running.stdout is not None and running.stdout.readline() == "item\n"
        running.send_signal(signal.SIGINT)
        _, said = running.communicate(timeout=PATIENCE_S)
    assert "KeyboardInterrupt" in said
    assert said.count(f"topics{'/'}client") <= 3, said


@pytest.mark.process
@pytest.mark.parametrize("kind", ["consume", "watch"])
def test_a_signal_handler_ends_a_loop(real: ServerProcess, kind: str) -> None:
    source = f"""
import signal
stream = client.{kind}(['t'] if '{kind}' == 'watch' else 't')
signal.signal(signal.SIGTERM, lambda *_: stream.close())
for item in stream: print('item', flush=True)
print('done', flush=True)"""
    with program(real, source) as running:
        assert running.stdout is not None and running.stdout.readline() == "item\n"
        running.send_signal(signal.SIGTERM)
        out, said = running.communicate(timeout=PATIENCE_S)
    assert (out.splitlines()[-1:], said, running.returncode) == (["done"], "", 0)


async def test_a_stream_of_an_async_client_is_closed_from_another_thread(server: ServerThread, topic: str) -> None:
    async with AsyncClient("http://{}:{}".format(*server.address), "") as client:
        await client.append(topic, [{"data": 1}])
        for stream in (client.consume(topic), client.watch({topic: None})):
            closing = threading.Timer(0.01, stream.close)
            closing.start()
            async with asyncio.timeout(PATIENCE_S):
                async for _ in stream:
                    pass
            closing.join()


def test_a_client_may_be_closed_twice_and_unused() -> None:
    client = Client("http://127.0.0.1:1")
    client.close()
    client.close()


@pytest.mark.parametrize("kind", ["watch", "export"])
def test_closing_a_client_ends_streams_that_nobody_reads_just_now(start: Any, connect: Connect, kind: str) -> None:
    server = start()
    client, other = connect(server.address), connect(server.address)
    text = "x" * 100_000
    for _ in range(20):
        client.append("t", [{"data": text} for _ in range(5)])
    stream = client.watch(["t"]) if kind == "watch" else client.export("t").__enter__()
    next(stream)
    open_now = server.server.listener.connections.open
    other.health()
    before = len(open_now)
    client.close()
    wait_until("its connections end", lambda: len(open_now) <= 1 < before)
    assert list(stream) == []
