"""The server as a process: start and refusals, signals, kill -9, files, memory, the command line."""

import gzip
import json
import re
import signal
import socket
import stat
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest

import topics
from tests.api.clients.transcript import Client, Reply, ok, refused
from tests.effort import sampled
from topics import __version__
from topics.testing.patience import PATIENCE_S, wait_until
from topics.testing.server import COMMAND, ServerFailed, ServerProcess

CONTRACT = Path(__file__).parent.parent.parent / "docs" / "contract.md"
SECRET = "hush-4711"
ONE = {"records": [{"data": 1}]}
VERBATIM = b'{"b":1.0,"a":12345678901234567890,"b":1e400}'
MIB = 1024 * 1024


@pytest.fixture(scope="module")
def process(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """One for all tests that leave it running."""
    with ServerProcess(tmp_path_factory.mktemp("server")) as process:
        yield process


@pytest.fixture
def own(tmp_path: Path) -> Iterator[ServerProcess]:
    """One that the test may end."""
    with ServerProcess(tmp_path) as process:
        yield process


@pytest.fixture
def api(process: ServerProcess) -> Client:
    return Client(process.address)


def run(*arguments: str, **environ: str) -> "subprocess.CompletedProcess[str]":
    sources = {"PYTHONPATH": str(Path(topics.__file__).parent.parent)}  # those that the tests import
    return subprocess.run(
        [*COMMAND, *arguments], env=sources | environ, capture_output=True, text=True, timeout=PATIENCE_S, check=False
    )


def keyed(key: str, *data: Any) -> dict[str, Any]:
    return {"records": [{"data": value} for value in data], "idempotency_key": key}


# --- start


BAD_KEYS = {
    "an unknown scope word": f"{SECRET}:read+fly",
    "a scope field without a scope": f"{SECRET}:+",
    "an empty alternative at the end": f"{SECRET}:read:a|",
    "an empty alternative at the start": f"{SECRET}:read:|a",
    "an empty alternative in between": f"{SECRET}:read:a||b",
    "an empty secret": f"{SECRET},:read",
    "nothing but a scope": ":read",
    "the same secret twice": f"{SECRET}:read,other,{SECRET}:write",
    "no key at all": ", ,",
}
REFUSALS: dict[str, tuple[dict[str, str], str]] = {
    **{f"AU5 {what}": ({"TOPICS_API_KEYS": keys}, "TOPICS_API_KEYS") for what, keys in BAD_KEYS.items()},
    "SC1 unspecified": ({"TOPICS_HOST": "0.0.0.0"}, "TOPICS_HOST"),
    "SC1 unspecified v6": ({"TOPICS_HOST": "[::]"}, "TOPICS_HOST"),
    "SC1 another address": ({"TOPICS_HOST": "192.0.2.1"}, "TOPICS_HOST"),
    "SC1 unresolvable": ({"TOPICS_HOST": "no-such-host.invalid"}, "TOPICS_HOST"),
    "SC1 flag off": ({"TOPICS_HOST": "0.0.0.0", "TOPICS_ALLOW_INSECURE_NO_AUTH": "0"}, "TOPICS_HOST"),
    "SC5 no number": ({"TOPICS_PORT": "http"}, "TOPICS_PORT"),
    "SC5 port too large": ({"TOPICS_PORT": "65536"}, "TOPICS_PORT"),
    "SC5 negative": ({"TOPICS_MAX_TOPICS": "-1"}, "TOPICS_MAX_TOPICS"),
    "SC5 below its minimum": ({"TOPICS_MAX_LIMIT": "0"}, "TOPICS_MAX_LIMIT"),
    "SC5 fraction": ({"TOPICS_MAX_BODY_BYTES": "1.5"}, "TOPICS_MAX_BODY_BYTES"),
    "SC5 unit": ({"TOPICS_SEGMENT_MAX_BYTES": "64 parsecs"}, "TOPICS_SEGMENT_MAX_BYTES"),
    "SC5 log level": ({"TOPICS_LOG_LEVEL": "loud"}, "TOPICS_LOG_LEVEL"),
    "SC5 host without address": ({"TOPICS_HOST": ":4000"}, "TOPICS_HOST"),
    "SC5 origin": ({"TOPICS_CORS_ORIGINS": "example"}, "TOPICS_CORS_ORIGINS"),
    "SC5 allowed host": ({"TOPICS_ALLOWED_HOSTS": "http://box"}, "TOPICS_ALLOWED_HOSTS"),
    "AU17 no key file": ({"TOPICS_KEY_FILE": "/nowhere/keys"}, "TOPICS_KEY_FILE"),
    "unusable directory": ({"TOPICS_DATA_DIR": "/dev/null/data"}, "/dev/null/data"),
}


@pytest.mark.parametrize("what", sampled(REFUSALS))
def test_a_start_is_refused_with_one_clear_line(tmp_path: Path, what: str) -> None:
    """AU5, SC1, SC5, S22: the exit code is not 0, the variable is named, no secret and no traceback is shown."""
    environ, named = REFUSALS[what]
    with pytest.raises(ServerFailed) as caught, ServerProcess(tmp_path, environ):
        pass
    failure = caught.value
    assert not (tmp_path / "port").exists()
    assert failure.code not in (0, -signal.SIGSEGV)
    assert named in failure.output
    assert SECRET not in failure.output
    assert "Traceback" not in failure.output
    assert len(failure.output.strip().splitlines()) <= 3, failure.output


@pytest.mark.parametrize(
    "environ", [{"TOPICS_ALLOW_INSECURE_NO_AUTH": "1"}, {"TOPICS_API_KEYS": SECRET}], ids=["told so", "with keys"]
)
def test_a_bind_to_all_addresses_needs_keys_or_consent(tmp_path: Path, environ: dict[str, str]) -> None:
    """SC1"""
    with ServerProcess(tmp_path, {"TOPICS_HOST": "0.0.0.0"} | environ) as server:
        assert Client(("127.0.0.1", server.address[1])).get("/healthz").status == 200


def test_a_port_in_use_is_refused_clearly(process: ServerProcess, tmp_path: Path) -> None:
    """SC1"""
    with pytest.raises(ServerFailed) as failure, ServerProcess(tmp_path, {"TOPICS_PORT": str(process.address[1])}):
        pass
    assert str(process.address[1]) in failure.value.output
    assert "Traceback" not in failure.value.output


def test_the_port_file_names_the_bound_address(process: ServerProcess) -> None:
    text = (process.directory / "port").read_text()
    assert re.fullmatch(r"127\.0\.0\.1:\d+\n?", text)
    with socket.create_connection(("127.0.0.1", int(text.strip().rpartition(":")[2]))):
        pass
    assert [path.name for path in process.directory.iterdir() if path.name.startswith("port")] == ["port"]


def test_the_host_may_carry_the_port_and_the_port_variable_wins(tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        with ServerProcess(tmp_path, {"TOPICS_HOST": f"127.0.0.1:{taken.getsockname()[1]}"}) as server:
            assert server.address[1] != taken.getsockname()[1]


def test_the_server_speaks_over_ipv6_loopback(tmp_path: Path) -> None:
    """SC1"""
    try:
        with socket.socket(socket.AF_INET6) as probe:
            probe.bind(("::1", 0))
    except OSError:
        pytest.skip("this machine has no IPv6")
    with ServerProcess(tmp_path, {"TOPICS_HOST": "[::1]"}) as server:
        assert server.address[0] == "::1"
        assert (server.directory / "port").read_text().startswith("[::1]:")
        assert Client(server.address).get("/healthz").status == 200


def test_the_boot_log_warns_loudly_without_keys_and_is_json_lines(process: ServerProcess) -> None:
    """AU1"""
    lines = [json.loads(line) for line in process.output.splitlines()]
    assert lines
    warnings = [line for line in lines if str(line.get("level", "")).lower() == "warning"]
    assert any("auth" in json.dumps(line).lower() for line in warnings)
    assert f"{process.address[1]}" in process.output


def test_the_variables_set_the_limits(tmp_path: Path) -> None:
    """LM7, LM1, CV17"""
    environ = {
        "TOPICS_MAX_BODY_BYTES": "5000",
        "TOPICS_MAX_BATCH_RECORDS": "3",
        "TOPICS_MAX_RECORD_BYTES": "100",
        "TOPICS_MAX_META_BYTES": "50",
        "TOPICS_MAX_TAG_BYTES": "5",
        "TOPICS_MAX_NODE_BYTES": "4",
        "TOPICS_MAX_LIMIT": "2",
        "TOPICS_MAX_TOPICS": "1",
        "TOPICS_MAX_TOTAL_BYTES": "300",
    }
    with ServerProcess(tmp_path, environ) as server:
        api = Client(server.address)
        path = "/v0/topics/a"
        assert api.post(path, {"records": [{"data": 1, "tag": "t" * 5, "node": "n" * 4}] * 3}).status == 201
        refused(api.post(path, {"records": [{"data": "x" * 50}] * 200}), 413, "payload_too_large")
        refused(api.post(path, {"records": [{"data": 1}] * 4}), 400, "batch_too_large")
        refused(api.post(path, {"records": [{"data": "x" * 99}]}), 400, "record_too_large")
        refused(api.post(path, {"records": [{"data": 1, "meta": {"a": "x" * 60}}]}), 400, "invalid_request")
        refused(api.post(path, {"records": [{"data": 1, "tag": "t" * 6}]}), 400, "invalid_request")
        refused(api.post(path, {"records": [{"data": 1, "node": "n" * 5}]}), 400, "invalid_request")
        refused(api.post("/v0/topics/b", ONE), 429, "throttled", {"limit": "max_topics", "max": 1})
        refused(api.post(path, {"records": [{"data": "x" * 98}] * 3}), 429, "throttled")
        assert len(api.diff("a", limit=100)["records"]) == 2


# --- secrets


def test_keys_are_in_no_log_no_child_and_no_command_line(tmp_path: Path) -> None:
    """AU3, SC4"""
    environ = {"TOPICS_API_KEYS": f"{SECRET}:rw,other", "TOPICS_ACCESS_LOG": "1", "TOPICS_LOG_LEVEL": "debug"}
    with ServerProcess(tmp_path, environ) as server:
        api = Client(server.address, SECRET)
        api.write("a", 1)
        ok(api.get(f"/v0/topics?token={SECRET}"))
        api.with_key(f"{SECRET}-wrong").get(f"/v0/topics/a/work?token={SECRET}-wrong")
        api.with_key(None).get(f"/v0/watch/wid_x?token={SECRET}")
        pids = [server.pid, *children(server.pid)]
        for pid in pids:
            assert SECRET.encode() not in Path(f"/proc/{pid}/cmdline").read_bytes()
        for pid in pids[1:]:
            assert SECRET.encode() not in Path(f"/proc/{pid}/environ").read_bytes()
        server.signal(signal.SIGTERM)
        assert server.wait() == 0
        assert SECRET not in server.output
        assert all(SECRET.encode() not in path.read_bytes() for path in server.data.rglob("*") if path.is_file())


def test_a_key_file_keeps_secrets_out_of_the_process_and_is_read_again_on_sighup(tmp_path: Path) -> None:
    """AU17, AU3"""
    keys = tmp_path / "keys"

    def write(*names: str) -> None:
        fresh = tmp_path / "keys.new"
        fresh.write_text("".join(f"{name} - - sha256:{sha256(name.encode()).hexdigest()}\n" for name in names))
        fresh.chmod(0o600)
        fresh.replace(keys)

    write("first", "second")
    with ServerProcess(tmp_path, {"TOPICS_KEY_FILE": str(keys)}) as server:
        api = Client(server.address, "first")
        assert ok(api.get("/v0/me"))["name"] == "first"
        assert b"first" not in Path(f"/proc/{server.pid}/environ").read_bytes()
        write("second")
        server.signal(signal.SIGHUP)
        wait_until("the key is gone", lambda: api.get("/v0/me").status == 401)
        assert ok(api.with_key("second").get("/v0/me"))["name"] == "second"
        keys.write_text("nonsense")
        server.signal(signal.SIGHUP)
        wait_until("it is logged", lambda: "the keys stay as they were" in server.output)
        ok(api.with_key("second").get("/v0/me"))
        write("third")
        wait_until("the new key counts", lambda: api.with_key("third").get("/v0/me").status == 200)
        assert server.stop() == 0


def children(pid: int) -> list[int]:
    found = []
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = path.read_text().rpartition(")")[2].split()
        except OSError:
            continue
        if int(fields[1]) == pid:
            found += [int(path.parent.name), *children(int(path.parent.name))]
    return found


# --- the data directory


def contents(directory: Path) -> dict[str, bytes]:
    return {str(path.relative_to(directory)): path.read_bytes() for path in directory.rglob("*") if path.is_file()}


def test_a_second_process_on_the_directory_is_refused_and_changes_nothing(own: ServerProcess, tmp_path: Path) -> None:
    """ST11"""
    api = Client(own.address)
    api.create("a", durability="fsync")
    api.write("a", 1)
    before = contents(own.data)
    with pytest.raises(ServerFailed) as failure:
        ServerProcess(tmp_path / "second", {"TOPICS_DATA_DIR": str(own.data)}).start()
    assert failure.value.code > 0
    assert str(own.data) in failure.value.output
    assert "Traceback" not in failure.value.output
    assert contents(own.data) == before
    api.write("a", 2)
    assert api.data("a") == [1, 2]
    own.kill()
    assert Client(own.start().address).data("a") == [1, 2]


def test_files_are_for_their_owner_only_and_hold_no_names_in_their_paths(own: ServerProcess) -> None:
    """ST13, CV13"""
    api = Client(own.address)
    names = ["visible-name", "con", "a..", "0..."]
    for name in names:
        api.create(name)
        api.write(name, *range(100))
    assert own.stop() == 0
    paths = [own.data, *own.data.rglob("*")]
    assert len(paths) > 1
    for path in paths:
        assert stat.S_IMODE(path.stat().st_mode) & 0o077 == 0, path
        assert not [name for name in names if name in path.name]


def test_the_directory_is_created_where_the_variable_says(own: ServerProcess) -> None:
    assert own.data.is_dir()


# --- stop and kill


def test_sigterm_drains_and_exits_with_0(own: ServerProcess) -> None:
    """SC3, G15, ST7: a long poll is answered, and what was written is there after the next start."""
    api = Client(own.address)
    api.write("a", 1, 2)
    with api.connect() as poll:
        poll.send(api.request("POST", "/v0/topics/a/diff", {"from_seq": 2, "wait_ms": 30_000}))
        api.state("a")
        own.signal(signal.SIGTERM)
        reply = poll.reply()
    assert reply.status in (200, 503), reply
    assert own.wait() == 0
    again = Client(own.start().address)
    assert again.data("a") == [1, 2]
    own.signal(signal.SIGINT)
    assert own.wait() == 0


@pytest.mark.parametrize("durability", ["memory", "disk", "fsync"])
def test_a_retry_across_kill_9_appends_once(own: ServerProcess, durability: str) -> None:
    """S26, ID8, G1, G12"""
    api = Client(own.address)
    first = ok(api.post("/v0/topics/a", keyed("k", 1, 2) | {"config": {"durability": durability}}), 201)
    second = ok(api.post("/v0/topics/a", keyed("k2", 3)))
    own.kill()
    again = Client(own.start().address)
    for body, answer in ((keyed("k", 1, 2), first), (keyed("k2", 3), second)):
        repeat = ok(again.post("/v0/topics/a", body))
        if durability != "memory" or repeat["deduped"]:
            assert repeat == answer | {"created": False, "deduped": True}
    assert again.data("a") == [1, 2, 3]


def test_nothing_acked_is_lost_and_nothing_padded_after_kill_9(own: ServerProcess) -> None:
    """S17, DU3, DU10"""
    api = Client(own.address)
    for n in range(100):
        api.write("a", n)
    own.kill()
    again = Client(own.start().address)
    state = again.state("a")
    assert (state["head_seq"], state["count"], state["next_seq"]) == (100, 100, 101)
    answer = again.diff("a")
    assert ([record["data"] for record in answer["records"]], answer["tombstone"]) == (list(range(100)), None)


def test_a_payload_is_the_same_bytes_after_a_restart(own: ServerProcess) -> None:
    """CV6, CV26: after kill -9 from the log, and after a stop from a segment."""
    body = b'{"records":[{"data":' + VERBATIM + b',"meta":{ "m" : 1.50 }},{"data":[1,\n 2]}]}'
    expected = [b'"data":' + VERBATIM + b',"meta":{ "m" : 1.50 }}', b'"data":[1,2]}']

    def check(api: Client) -> None:
        answer = api.post("/v0/topics/a/diff", {}).body
        assert [text for text in expected if text not in answer] == []

    api = Client(own.address)
    assert api.post("/v0/topics/a", body).status == 201
    check(api)
    own.kill()
    check(Client(own.start().address))
    assert own.stop() == 0
    check(Client(own.start().address))


def test_what_is_acked_by_many_writers_survives_kill_9(own: ServerProcess) -> None:
    """G1, G2, G3, WR5"""
    api = Client(own.address)
    api.create("a", durability="fsync")
    acked: dict[int, Any] = {}
    is_enough = threading.Event()

    def write(writer: int) -> None:
        with api.connect() as connection:
            for n in range(10_000):
                try:
                    connection.send(api.request("POST", "/v0/topics/a", {"records": [{"data": [writer, n]}]}))
                    acked[connection.reply().json["first_seq"]] = [writer, n]
                except (OSError, AssertionError):  # the server is gone
                    return
                if len(acked) >= 500:
                    is_enough.set()

    with ThreadPoolExecutor(8) as pool:
        for writer in range(8):
            pool.submit(write, writer)
        assert is_enough.wait(PATIENCE_S)
        own.kill()
    again = Client(own.start().address)
    found, at = {}, 0
    while True:
        answer = again.diff("a", at, limit=1000)
        found |= {record["$seq"]: record["data"] for record in answer["records"]}
        assert answer["tombstone"] is None
        at = answer["next_from_seq"]
        if answer["caught_up"]:
            break
    assert {seq: found.get(seq) for seq in acked} == acked
    assert sorted(found) == list(range(1, len(found) + 1))


def test_during_replay_the_port_answers_with_progress(own: ServerProcess) -> None:
    """HM1, HM2, ER5, SC3, G4: and a stop in the middle of it does no harm."""
    api = Client(own.address)
    body = json.dumps({"records": [{"data": {"n": n, "text": "x" * 60}, "tag": f"t{n}"} for n in range(10_000)]})
    for _ in range(30):
        assert api.post("/v0/topics/a?return_seqs=false", body).status in (200, 201)
    own.kill()
    own.start(until_ready=False).signal(signal.SIGTERM)
    assert own.wait() == 0
    api = Client(own.start(until_ready=False).address)
    seen: list[float] = []
    with api.connect() as connection:
        while True:
            connection.send(api.request("GET", "/v0/ready"))
            reply: Reply = connection.reply()
            if reply.status == 200:
                break
            refused(reply, 503, "not_ready")
            seen.append(reply.json["error"]["detail"]["replay_progress"])
            assert api.get("/healthz").status == 200
            other = api.get("/v0/topics/a")
            assert other.status in (200, 503)
    assert seen, "the replay was over before the first request"
    assert seen == sorted(seen) and 0.0 <= seen[0] <= seen[-1] <= 1.0
    assert api.state("a")["count"] == 300_000


STOPPED_WHEN_BOUND = """
import os, signal, sys
from topics.server.main import serve
from topics.settings import Settings

serve(Settings(data_dir=sys.argv[1], port=0), on_bound=lambda *_: os.kill(os.getpid(), signal.SIGTERM))
"""


def test_a_signal_that_comes_as_soon_as_the_port_is_known_stops_it_in_order(tmp_path: Path) -> None:
    """SC3"""
    program = [sys.executable, "-c", STOPPED_WHEN_BOUND, str(tmp_path / "data")]
    ended = subprocess.run(program, capture_output=True, text=True, timeout=PATIENCE_S, check=False)
    assert ended.returncode == 0, ended.stderr


# --- memory


def peak_memory(pid: int) -> int:
    status = Path(f"/proc/{pid}/status").read_text()
    found = re.search(r"VmHWM:\s+(\d+) kB", status)
    assert found
    return int(found[1]) * 1024


def test_a_gzip_bomb_is_refused_and_memory_stays_bounded(tmp_path: Path) -> None:
    """S24, CV17"""
    with ServerProcess(tmp_path, {"TOPICS_MAX_BODY_BYTES": str(2 * MIB)}) as server:
        api = Client(server.address)
        api.write("a", 1)
        header = "Content-Encoding: gzip"
        before = peak_memory(server.pid)
        small = gzip.compress(b"\0" * 10 * MIB)
        assert len(small) < 11_000
        member = gzip.compress(b" " * 64 * MIB, 1)
        many = member * (MIB // len(member))
        for bomb in (small, many, gzip.compress(b'{"records":[{"data":"' + b"x" * 10 * MIB + b'"}]}')):
            for path in ("/v0/topics/a", "/v0/topics/a/diff", "/v0/topics/b"):
                refused(api.post(path, bomb, header), 413, "payload_too_large", None)
            refused(api.put("/v0/topics/b", bomb, header), 413, "payload_too_large", None)
        assert peak_memory(server.pid) - before < 32 * MIB
        assert api.data("a") == [1]
        assert [entry["topic"] for entry in ok(api.get("/v0/topics"))["topics"]] == ["a"]


def test_a_large_body_that_is_never_sent_takes_no_memory(process: ServerProcess, api: Client) -> None:
    """CV17"""
    before = peak_memory(process.pid)
    head = api.request("POST", "/v0/topics/big", None, "Content-Type: application/json", "Content-Length: 67000000")
    connections = [api.connect() for _ in range(20)]
    try:
        for connection in connections:
            connection.send(head + b'{"records":[')
        assert api.get("/healthz").status == 200
        assert peak_memory(process.pid) - before < 32 * MIB
    finally:
        for connection in connections:
            connection.socket.close()


# --- the command line


def test_version_is_printed() -> None:
    answer = run("--version")
    assert (answer.returncode, answer.stdout.strip()) == (0, f"topics {__version__}")


def contract_variables() -> list[str]:
    """Those of users: what is for tests is not listed."""
    section = CONTRACT.read_text().partition("## 22.")[2].partition("## 23.")[0]
    return re.findall(r"^\| (TOPICS_(?!TEST_)\w+)", section, re.MULTILINE)


def test_help_lists_every_variable_of_the_contract() -> None:
    """SC5, LM7"""
    answer = run("serve", "--help", COLUMNS="80")
    assert answer.returncode == 0
    assert len(contract_variables()) == 27
    for name in contract_variables():
        assert len(re.findall(rf"\b{name}\b", answer.stdout)) >= 1, name
    for default in ("127.0.0.1", "4000", "67108864", "./topics-data", "16384", "100000"):
        assert default in answer.stdout


def test_flags_win_over_the_file_and_the_file_over_the_environment(tmp_path: Path) -> None:
    """SC5: in a process; what is odd about the settings is a warning."""
    (tmp_path / "topics.toml").write_text('max_batch_records = 2\nmax_tag_bytes = 2\nsegment_max_age_ms = "1h"\n')
    environ = dict.fromkeys(("TOPICS_MAX_BATCH_RECORDS", "TOPICS_MAX_TAG_BYTES", "TOPICS_MAX_NODE_BYTES"), "3")
    flags = ("--max-batch-records", "1", "--cache-bytes", "8MiB")
    with ServerProcess(tmp_path, environ | {"TOPICS_DATADIR": "x"}, "serve", *flags) as server:
        api, path = Client(server.address), "/v0/topics/a"
        refused(api.post(path, {"records": [{"data": 1}] * 2}), 400, "batch_too_large")
        refused(api.post(path, {"records": [{"data": 1, "tag": "t" * 3}]}), 400, "invalid_request")
        refused(api.post(path, {"records": [{"data": 1, "node": "n" * 4}]}), 400, "invalid_request")
        ok(api.post(path, {"records": [{"data": 1, "tag": "t" * 2, "node": "n" * 3}]}), 201)
        assert "TOPICS_DATADIR is set and is no setting; did you mean TOPICS_DATA_DIR?" in server.output
        assert "TOPICS_MAX_TAG_BYTES has no effect: max_tag_bytes in topics.toml wins over it" in server.output
        assert "TOPICS_MAX_BATCH_RECORDS" not in server.output
        assert server.stop() == 0


def test_a_key_on_the_command_line_counts_and_is_warned_of(tmp_path: Path) -> None:
    """AU3: it is in no log and in no child."""
    with ServerProcess(tmp_path, {}, "serve", "--api-keys", SECRET) as server:
        ok(Client(server.address, SECRET).get("/v0/topics"))
        refused(Client(server.address).get("/v0/topics"), 401, "unauthorized")
        assert "--api-keys can be read by everybody on this machine" in server.output
        assert server.stop() == 0
        assert SECRET not in server.output


def test_config_show_tells_values_and_origins_and_masks_secrets() -> None:
    """AU3, SC4"""
    answer = run(
        "config", "show", TOPICS_API_KEYS=f"{SECRET}:read", TOPICS_MAX_LIMIT="77", TOPICS_HOST="127.0.0.1:4999"
    )
    assert answer.returncode == 0, answer
    assert SECRET not in answer.stdout + answer.stderr
    lines = {line.split()[0]: line for line in answer.stdout.splitlines() if line.strip()}
    for name in contract_variables():
        assert name in lines, name
    assert "77" in lines["TOPICS_MAX_LIMIT"] and "default" not in lines["TOPICS_MAX_LIMIT"]
    assert "default" in lines["TOPICS_MAX_CLAIM"]
    assert "4999" in lines["TOPICS_PORT"] and "TOPICS_HOST" in lines["TOPICS_PORT"]
    assert "default" not in lines["TOPICS_API_KEYS"]


def test_config_show_refuses_what_the_server_would_refuse() -> None:
    """SC5"""
    answer = run("config", "show", TOPICS_MAX_LIMIT="none")
    assert answer.returncode != 0
    assert "TOPICS_MAX_LIMIT" in answer.stdout + answer.stderr
    assert "Traceback" not in answer.stderr


def test_the_module_runs_with_an_isolated_interpreter() -> None:
    """The command needs nothing of the environment."""
    answer = subprocess.run(
        [sys.executable, "-I", "-c", "import topics.cli"], env={}, capture_output=True, text=True, check=False
    )
    assert answer.returncode == 0, answer.stderr
