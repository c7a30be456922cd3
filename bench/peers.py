"""The peers: servers from Debian on free loopback ports, with their files in a directory of the run.

Owns their processes: each is up when its `with` begins and gone when it ends,
also on a failure or a signal, and with this process if that is killed.
"""

import ctypes
import os
import pwd
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Final, NamedTuple

Address = tuple[str, int]

NCHAN_MODULE: Final = Path("/usr/lib/nginx/modules/ngx_nchan_module.so")
RABBITMQ: Final = Path("/usr/lib/rabbitmq/bin/rabbitmq-server")  # the one in PATH changes the user
NPM: Final = Path(__file__).parent.parent / ".bench-npm"
DURABLE_STREAMS: Final = NPM / "node_modules" / "@durable-streams" / "server" / "dist" / "index.js"
PATIENCE_S: Final = 60.0
FILES_MAX: Final = 20_000
_PR_SET_PDEATHSIG: Final = 1
_LIBC: Final = ctypes.CDLL(None)

NGINX: Final = """
daemon off;
user root;
pid nginx.pid;
error_log error.log;
load_module {module};
worker_processes 1;
worker_rlimit_nofile {files_max};
events {{ worker_connections {files_max}; }}
http {{
    access_log off;
    tcp_nodelay on;
    keepalive_requests 100000000;
    client_body_temp_path body;
    proxy_temp_path proxy;
    fastcgi_temp_path fastcgi;
    uwsgi_temp_path uwsgi;
    scgi_temp_path scgi;
    nchan_message_buffer_length 1000;
    nchan_message_timeout 60s;
    server {{
        listen {host}:{port};
        nchan_subscriber_first_message newest;
        location ~ ^/pub/(\\w+)$ {{ nchan_publisher http; nchan_channel_id $1; }}
        location ~ ^/sse/(\\w+)$ {{ nchan_subscriber eventsource; nchan_channel_id $1; }}
        location ~ ^/ws/(\\w+)$ {{ nchan_subscriber websocket; nchan_channel_id $1; }}
        location ~ ^/room/(\\w+)$ {{ nchan_pubsub websocket; nchan_channel_id $1; }}
    }}
}}
"""

RABBITMQ_CONFIG: Final = """
listeners.tcp.1 = {host}:{amqp}
stream.listeners.tcp.1 = {host}:{port}
stream.advertised_host = {host}
log.console = true
log.file = false
"""


class Peer(NamedTuple):
    address: Address
    pid: int


def end_on_signals() -> None:
    """The first SIGINT or SIGTERM unwinds this program, so that every `with` ends what it began; more are ignored."""

    is_ending = False

    def unwind(number: int, _: object) -> None:
        nonlocal is_ending
        if not is_ending:
            is_ending = True
            sys.exit(128 + number)

    signal.signal(signal.SIGINT, unwind)
    signal.signal(signal.SIGTERM, unwind)


def end_with_parent(number: signal.Signals = signal.SIGTERM) -> None:
    """For `preexec_fn`: the new process gets this signal when the one that started it is gone."""
    _LIBC.prctl(_PR_SET_PDEATHSIG, number)


def require(*programs: str) -> None:
    """Exit with a hint if one of these is not installed."""
    if missing := _missing(programs):
        sys.exit(f"not installed: {', '.join(missing)}; run `make bench-peers`")


def has(*programs: str) -> bool:
    """Are all of these installed? If not, what is left out is said."""
    if missing := _missing(programs):
        print(f"left out, not installed: {', '.join(missing)}; see `make bench-peers`", file=sys.stderr)
    return not missing


def has_durable_streams() -> bool:
    return has("node") and _is_there(DURABLE_STREAMS, "@durable-streams/server")


def has_rabbitmq() -> bool:
    return _is_there(RABBITMQ, "rabbitmq-server") and has("epmd")


def _is_there(path: Path, name: str) -> bool:
    if not path.exists():
        print(f"left out, not installed: {name}; see `make bench-peers`", file=sys.stderr)
    return path.exists()


def _missing(programs: Sequence[str]) -> list[str]:
    missing = [name for name in programs if _program(name) is None]
    if "nginx" in programs and not NCHAN_MODULE.exists():
        missing.append(NCHAN_MODULE.name)
    return missing


def _program(name: str) -> str | None:
    """Its path. Debian keeps PostgreSQL's programs outside PATH, by version."""
    versions = sorted(Path("/usr/lib/postgresql").glob(f"*/bin/{name}"), key=lambda path: int(path.parts[-3]))
    return shutil.which(name) or (str(versions[-1]) if versions else None)


def free_address() -> Address:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        host, port = free.getsockname()
    return host, port


@contextmanager
def redis(directory: Path, appendfsync: str = "everysec") -> Iterator[Peer]:
    host, port = address = free_address()
    command = f"redis-server --bind {host} --port {port} --dir {directory} --appendonly yes --save".split()
    with running([*command, "", "--appendfsync", appendfsync], address, directory) as peer:
        yield peer


@contextmanager
def nchan(directory: Path) -> Iterator[Peer]:
    """nginx; `pid` is its one worker. /pub/NAME takes messages, /sse/NAME and /ws/NAME give them."""
    host, port = address = free_address()
    directory.mkdir(parents=True)
    config = NGINX.format(module=NCHAN_MODULE, files_max=FILES_MAX, host=host, port=port)
    (directory / "nginx.conf").write_text(config)
    command = ["nginx", "-p", str(directory), "-c", "nginx.conf", "-e", "error.log"]
    with running(command, address, directory) as peer:
        children = Path(f"/proc/{peer.pid}/task/{peer.pid}/children")
        while not (workers := children.read_text().split()):
            time.sleep(0.02)
        yield Peer(address, int(workers[0]))


@contextmanager
def nats(directory: Path, is_jetstream: bool = False) -> Iterator[Peer]:
    host, port = address = free_address()
    streams = ["-js", "-sd", str(directory)] if is_jetstream else []
    with running(["nats-server", "-a", host, "-p", str(port), *streams], address, directory) as peer:
        yield peer


@contextmanager
def durable_streams(directory: Path, has_files: bool = True) -> Iterator[Peer]:
    """The reference server of Durable Streams on Node.js, with files or in memory."""
    host, port = address = free_address()
    directory.mkdir(parents=True)
    script = directory / "serve.mjs"
    files = f'dataDir: "{directory}/data", ' if has_files else ""
    options = f'{{host: "{host}", port: {port}, {files}compression: false}}'
    made = f"await new DurableStreamTestServer({options}).start()"
    script.write_text(f'import {{ DurableStreamTestServer }} from "{DURABLE_STREAMS.as_uri()}"\n{made}\n')
    (directory / "data").mkdir()
    with running(["node", str(script)], address, directory) as peer:
        yield peer


@contextmanager
def rabbitmq(directory: Path) -> Iterator[Peer]:
    """A node of its own with the plugin for streams, whose address is given; only loopback is listened on."""
    (host, port), (_, amqp), epmd = free_address(), free_address(), free_address()
    directory.mkdir(parents=True)
    (directory / "rabbitmq.conf").write_text(RABBITMQ_CONFIG.format(host=host, port=port, amqp=amqp))
    (directory / "enabled_plugins").write_text("[rabbitmq_stream].")
    environ = {
        **os.environ,
        "HOME": str(directory),  # where Erlang keeps its cookie
        "ERL_EPMD_ADDRESS": host,
        "ERL_EPMD_PORT": str(epmd[1]),
        "RABBITMQ_NODENAME": "bench@localhost",
        "RABBITMQ_CONFIG_FILE": str(directory / "rabbitmq.conf"),
        "RABBITMQ_CONF_ENV_FILE": str(directory / "none"),
        "RABBITMQ_ENABLED_PLUGINS_FILE": str(directory / "enabled_plugins"),
        "RABBITMQ_MNESIA_BASE": str(directory / "mnesia"),
        "RABBITMQ_LOG_BASE": str(directory / "log"),
        "RABBITMQ_FEATURE_FLAGS_FILE": str(directory / "feature_flags"),
        "RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS": "-kernel inet_dist_use_interface {127,0,0,1}",
        "detached": "1",  # the script becomes the server, instead of watching over it
    }
    with (
        running(["epmd", "-address", host, "-port", str(epmd[1])], epmd, directory / "epmd"),
        running([str(RABBITMQ)], (host, port), directory, environ=environ) as peer,
    ):
        yield peer


@contextmanager
def beanstalkd(directory: Path, *options: str) -> Iterator[Peer]:
    """With its log in the directory; `options` say when that is synced."""
    host, port = address = free_address()
    command = ["beanstalkd", "-l", host, "-p", str(port), "-b", str(directory), *options]
    with running(command, address, directory) as peer:
        yield peer


@contextmanager
def postgres(directory: Path) -> Iterator[Peer]:
    """A cluster of its own with Debian's settings; the superuser is `bench`, asked for no password."""
    host, port = address = free_address()
    user = _unprivileged_user()
    directory.mkdir(parents=True)
    if user is not None:
        shutil.chown(directory, user)
        directory.parent.chmod(0o711)
    data = directory / "data"
    subprocess.run(
        [_program("initdb") or "initdb", "-D", data, "-U", "bench", "-A", "trust", "-E", "UTF8", "--locale=C"],
        check=True,
        stdout=subprocess.DEVNULL,
        user=user,
        cwd="/",
    )
    command = [_program("postgres") or "postgres", "-D", str(data), "-h", host, "-p", str(port), "-k", str(directory)]
    ask = [_program("pg_isready") or "pg_isready", "-h", host, "-p", str(port), "-q"]
    with running(command, address, directory, user=user, end=signal.SIGINT) as peer:
        while subprocess.run(ask).returncode != 0:
            time.sleep(0.02)
        yield peer


def _unprivileged_user() -> str | None:
    """PostgreSQL does not run as root. None if we are not."""
    if os.geteuid() != 0:
        return None
    names = {entry.pw_name for entry in pwd.getpwall()}
    return "postgres" if "postgres" in names else "nobody"


@contextmanager
def running(
    command: Sequence[str],
    address: Address,
    directory: Path,
    user: str | None = None,
    end: signal.Signals = signal.SIGTERM,
    environ: Mapping[str, str] | None = None,
) -> Iterator[Peer]:
    """Run it until the `with` ends. What it prints is shown if it does not come up."""
    directory.mkdir(parents=True, exist_ok=True)
    printed = directory / "printed"
    with printed.open("wb") as output:
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            user=user,
            env=environ,
            cwd=directory if user is None else "/",
            start_new_session=True,
            preexec_fn=lambda: end_with_parent(end),
        )
    try:
        deadline = time.monotonic() + PATIENCE_S
        while not _is_listening(address):
            if process.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError(f"{command[0]} does not come up:\n{printed.read_text(errors='replace')}")
            time.sleep(0.02)
        yield Peer(address, process.pid)
    finally:
        process.send_signal(end)
        try:
            process.wait(PATIENCE_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _is_listening(address: Address) -> bool:
    try:
        socket.create_connection(address, timeout=PATIENCE_S).close()
    except OSError:
        return False
    return True
