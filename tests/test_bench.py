"""The parts of the benchmarks that a wrong figure could come from: the null server, the open-loop client, CPU times."""

import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from bench import figures, profiles
from bench.__main__ import chosen
from bench.__main__ import main as run_benchmarks
from bench.peers import Address
from bench.processes import Load, cpu_seconds, tree_cpu_seconds
from bench.systems.streams import NullHub, masked
from bench.wire import http, null
from bench.wire.epoll import FORK, Watchers, latency_of, stamped, times_of
from bench.wire.pacing import Role, pace
from topics.testing.patience import PATIENCE_S, wait_until

ROOT = Path(__file__).parent.parent
OK = b"HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\nyes"


def asked(address: Address, *requests: bytes) -> list[bytes]:
    with http.connect(address) as connection:
        connection.settimeout(PATIENCE_S)
        return [http.exchange(connection, request) for request in requests]


def test_the_null_server_answers_by_the_first_line() -> None:
    small, large = http.request("POST", "/a", b"x"), http.request("POST", "/a", b"x" * 5000)
    other = http.request("POST", "/b", b"x")
    with null.constant({b"POST /a HTTP/1.1": OK}) as peer:
        assert asked(peer.address, small, small, large, other, large) == [OK, OK, OK, null.DONE, OK]


def test_the_null_server_waits_for_the_whole_request() -> None:
    request = http.request("POST", "/a", b"x" * 100)
    with null.constant({b"POST /a HTTP/1.1": OK}) as peer, http.connect(peer.address) as connection:
        connection.settimeout(PATIENCE_S)
        for part in (request[:10], request[10:-1]):
            connection.sendall(part)
        connection.setblocking(False)
        with pytest.raises(BlockingIOError):
            connection.recv(1)
        connection.setblocking(True)
        assert http.exchange(connection, request[-1:]) == OK
        assert http.exchange(connection, request) == OK, "what was cut is forgotten"


def test_an_answer_of_the_null_server_may_count() -> None:
    owed = FORK.RawValue("Q", 2)

    def counted() -> bytes:
        owed.value -= 1
        return OK if owed.value else null.DONE

    request = http.request("POST", "/a", b"x")
    with null.constant({b"POST /a HTTP/1.1": counted}) as peer:
        assert asked(peer.address, request, request) == [OK, null.DONE]
    assert owed.value == 0


def test_the_null_hub_hands_on_to_all_watchers_and_ends_with_the_block() -> None:
    with null.hub() as peer:
        system = NullHub(peer.address)
        with Watchers(lambda: system.watch("t")) as watchers:
            watchers.open(3)
            writer = system.writer("t")
            for _ in range(5):
                while not writer.send(stamped()):
                    writer.take_answers(0.1)
            writer.finish()
            wait_until("all records at all watchers", lambda: watchers.received == 15)
    with pytest.raises(ConnectionRefusedError):
        http.connect(peer.address)


STALL_S, ASKED_S = 0.4, 0.2


def test_the_null_server_ends_with_who_started_it_even_by_a_kill() -> None:
    code = "import time\nfrom bench.wire import null\nwith null.constant({}) as peer:\n"
    code += "    print(*peer.address, flush=True)\n    time.sleep(3600)"
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True, cwd=ROOT) as process:
        assert process.stdout is not None
        host, port = process.stdout.readline().split()
        assert asked((host, int(port)), http.request("GET", "/"))
        process.kill()
    wait_until("the null server has gone", lambda: not is_listening((host, int(port))))


def is_listening(address: Address) -> bool:
    try:
        http.connect(address).close()
    except OSError:
        return False
    return True


@contextmanager
def stalling() -> Iterator[Address]:
    """A server of one connection that keeps its first client waiting."""
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def serve() -> None:
            connection, _ = listener.accept()
            stall = threading.Event()
            with connection:
                while connection.recv(65536):
                    if not stall.is_set():
                        stall.wait(STALL_S)
                        stall.set()
                    connection.sendall(OK)

        thread = threading.Thread(target=serve)
        thread.start()
        yield listener.getsockname()
        thread.join(PATIENCE_S)


def test_times_of_paced_requests_count_from_when_they_were_due() -> None:
    """All that fell due while the server stalled had to wait for it, though only one of them was sent."""
    request = http.request("POST", "/a", b"x")
    with stalling() as address:
        paced = pace([Role("ask", 100, [http.connect(address)], lambda _: request)], ASKED_S)
    times = paced.times["ask"]
    assert len(times) == 20
    assert min(times) >= (STALL_S - ASKED_S) * 1e9


def test_paced_roles_keep_their_rates_and_follow_up() -> None:
    request = http.request("POST", "/a", b"x")
    with null.constant({b"POST /a HTTP/1.1": OK}) as peer:
        roles = [
            Role("plain", 100, [http.connect(peer.address) for _ in range(2)], lambda _: request),
            Role("pair", 50, [http.connect(peer.address)], lambda _: request, lambda _: ("second", request)),
        ]
        paced = pace(roles, 0.2)
    assert {name: len(times) for name, times in paced.times.items()} == {"plain": 20, "pair": 10, "second": 10}


def test_a_refusal_ends_a_paced_run() -> None:
    refusal = b"HTTP/1.1 429 Too Many Requests\r\nContent-Length: 0\r\n\r\n"
    with null.constant({b"POST /a HTTP/1.1": refusal}) as peer, http.connect(peer.address) as connection:
        request = http.request("POST", "/a", b"x")
        with pytest.raises(RuntimeError, match="ask was refused"):
            pace([Role("ask", 100, [connection], lambda _: request)], 0.1)


def test_percentiles() -> None:
    found = latency_of(n * 1_000_000 for n in range(1000, -1, -1))
    assert (found.p50_ms, found.p90_ms, found.p99_ms, found.p999_ms, found.longest_ms) == (500, 900, 990, 999, 1000)
    assert latency_of([]).longest_ms == 0
    assert latency_of([3_000_000]).figures("k") == {"k_p50_ms": 3, "k_p90_ms": 3, "k_p99_ms": 3, "k_p999_ms": 3}


def test_stamps_are_found_across_receipts() -> None:
    record = stamped(5, 1_000)
    whole = [(2_000, 7, record * 3)]
    cut = [(2_000, 7, (record * 3)[:n]) for n in (30,)] + [(2_000, 7, (record * 3)[30:])]
    assert times_of(whole) == times_of(cut) == [1_000] * 3


BURN = "import time\nwhile time.process_time() < {}: pass\n"


def test_the_cpu_of_a_tree_has_children_that_live_and_that_have_ended() -> None:
    ended = f"subprocess.run([sys.executable, '-c', {BURN.format(0.2)!r}])"
    living = f"subprocess.Popen([sys.executable, '-c', {(BURN.format(0.2) + 'time.sleep(3600)')!r}])"
    code = f"import subprocess, sys\n{ended}\nchild = {living}\nprint('up', flush=True)\nchild.wait()"
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, start_new_session=True) as process:
        try:
            assert process.stdout is not None
            process.stdout.readline()
            wait_until("both children have burned", lambda: tree_cpu_seconds(process.pid) > 0.35)
            assert cpu_seconds(process.pid) < tree_cpu_seconds(process.pid) - 0.3
        finally:
            os.killpg(process.pid, signal.SIGKILL)


def test_a_load_is_shown_per_record() -> None:
    shown = Load(count=10, seconds=2.0, server_s=1.0, client_s=0.5).figures("k", scale=100)
    assert shown == {"k_per_s": 500.0, "k_server_us": 1000.0, "k_client_us": 500.0, "k_client_cpu": 0.25}


@pytest.mark.parametrize("size", [5, 125, 126, 300])
def test_frames_of_a_websocket_client_say_their_length(size: int) -> None:
    frame = masked(b"x" * size)
    length = frame[1] & 0x7F
    start = 6 if length < 126 else 8
    assert frame[1] & 0x80 and len(frame) - start == size
    assert size == (length if length < 126 else int.from_bytes(frame[2:4], "big"))


def test_every_figure_has_a_key_of_its_own() -> None:
    for section, listed in figures.SECTIONS.items():
        keys = [(figure.program, figure.key) for figure in listed]
        assert len(keys) == len(set(keys)), section


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["recovery", "nope"], "there is no section 'nope'; use engine, server"),
        (["recovery", "--runs", "0"], "--runs is 0; a figure takes at least one run"),
    ],
)
def test_what_cannot_be_run_is_refused_before_anything_is(
    arguments: list[str], complaint: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit, match="2"):
        run_benchmarks(arguments)
    assert complaint in capsys.readouterr().err


def test_what_takes_minutes_is_left_out_unless_it_is_asked_for() -> None:
    programs = [{figure.program for figure in chosen("recovery", is_long)} for is_long in (False, True)]
    assert programs[1] - programs[0] == {"bench.recovery 10m"}


def test_what_is_said_of_time_is_the_clock_of_the_client() -> None:
    before = time.monotonic_ns()
    assert before <= int(stamped().partition(b"^|")[2][:19]) <= time.monotonic_ns()


def test_a_profile_counts_functions_of_topics_once_for_each_stack(tmp_path: Path) -> None:
    stacks = tmp_path / "stacks"
    stacks.write_text(
        "<module> (bench/x.py:1);serve (src/topics/server/main.py:9);run (uvloop/loop.py:1) 3\n"
        "serve (src/topics/server/main.py:9);Log.add (src/topics/core/log.py:2);Log.add (src/topics/core/log.py:5) 2\n"
        "<module> (<string>:1) 1\n"
    )
    own, all_of = profiles.by_function(stacks)
    assert own == {"server.main.serve": 3, "core.log.Log.add": 2, "outside of topics": 1}
    assert all_of == {"server.main.serve": 5, "core.log.Log.add": 2}


def test_a_new_profile_takes_the_place_of_the_old_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(profiles, "PROFILES", tmp_path / "PROFILES.md")
    profiles.write("batch", "batches", "old")
    profiles.write("single", "records", "one")
    profiles.write("batch", "batches", "new")
    text = (tmp_path / "PROFILES.md").read_text()
    assert text.startswith(profiles.HEAD) and "old" not in text
    assert text.index("## single") < text.index("one") < text.index("## batch") < text.index("new")
