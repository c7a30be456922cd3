"""`python -m bench.profiles [name …]`: where the server's time goes, written to bench/PROFILES.md.

Two looks at each load, of the server's main process. perf counts processor time by where it is spent: the kernel, the
interpreter, libraries. py-spy looks at the Python stack and says which functions of topics were running. `make
profiles` installs py-spy; perf is Debian's package linux-perf.
"""

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Final

import uvloop

from bench import live, recovery
from bench.engine import write_singles
from bench.peers import Peer
from bench.server import DIFF, HUNDRED, ONE
from bench.systems.streams import TopicsSse
from bench.wire import http, wrk
from topics.engine import Engine
from topics.testing.server import ServerProcess
from topics.tuning import tune_process

PROFILES: Final = Path(__file__).with_name("PROFILES.md")
SECONDS: Final = 6
RATE: Final = 500  # looks at the stack in a second
ROWS: Final = 14
HEAD: Final = """# Profiles

Made by `make profiles`: where the server's time goes. perf counts processor time of its main process; py-spy looks at
the Python stack while something runs. *own*: the function was the last of topics in the stack, with what it calls in
libraries and the kernel; *all*: it was anywhere in the stack.
"""
SINGLES: Final = 200_000
TOPICS: Final = 100_000
PLACES: Final = (  # of a shared object, by its name
    (re.compile(r"kernel|vmlinux|^\[k"), "kernel"),
    (re.compile(r"^python"), "interpreter"),
    (re.compile(r"^loop\.|uvloop"), "uvloop"),
    (re.compile(r"^_core\."), "msgspec"),
    (re.compile(r"^libc|^ld-|vdso"), "libc"),
    (re.compile(r"xxhash"), "xxhash"),
    (re.compile(r"arrow"), "Arrow"),
)

Work = Callable[[ServerProcess, Path], None]


def post(path: str, body: str, connections: int, server: ServerProcess, directory: Path) -> None:
    http.ask(server.address, "PUT", "/v0/topics/disk", {"durability": "disk"})
    http.ask(server.address, "PUT", "/v0/topics/fsync", {"durability": "fsync"})
    wrk.drive(Peer(server.address, server.pid), [path], body, connections, 2 * SECONDS, directory)


def read(server: ServerProcess, directory: Path) -> None:
    recovery.fill(server, 10_000)
    wrk.drive(Peer(server.address, server.pid), ["/v0/topics/t/diff"], DIFF, 16, 2 * SECONDS, directory)


def write_alone(server: ServerProcess, directory: Path) -> None:
    http.ask(server.address, "PUT", "/v0/topics/fsync", {"durability": "fsync"})
    asked = http.request("POST", "/v0/topics/fsync", ONE.encode())
    with http.connect(server.address) as connection:
        while True:
            http.exchange(connection, asked)


def deliver(watchers: int, server: ServerProcess, directory: Path) -> None:
    live.latency_at(live.Under(TopicsSse(server.address), server.pid), "t", watchers, 2.0 * SECONDS)


RUNNING: Final[dict[str, tuple[str, Work]]] = {
    "single": ("a record per POST, 64 connections", partial(post, "/v0/topics/disk?return_seqs=false", ONE, 64)),
    "fsync": ("the same, fsync", partial(post, "/v0/topics/fsync?return_seqs=false", ONE, 64)),
    "batch": ("100 records per POST, 16 connections", partial(post, "/v0/topics/disk?return_seqs=false", HUNDRED, 16)),
    "read": ("diffs of 1,000 records, 16 connections", read),
    "lone": ("one fsync write after the other on one connection", write_alone),
    "delivery": ("50 records a second to 100 watchers, SSE", partial(deliver, 100)),
}
STARTING: Final = {
    "replay": f"a start that replays {SINGLES:,} records, each written alone",
    "restart": f"a start with {TOPICS:,} topics after a graceful stop",
}


def by_place(perf: Path) -> Counter[str]:
    """The samples of a perf file by where they are."""
    lines = subprocess.run(
        ["perf", "report", "-i", perf, "--no-children", "--sort=dso", "-g", "none", "-F", "sample,dso"],
        check=True,
        capture_output=True,
        text=True,
    ).stdout.splitlines()
    found: Counter[str] = Counter()
    for line in lines:
        if line and not line.startswith("#"):
            samples, dso = line.split(None, 1)
            found[next((place for named, place in PLACES if named.search(dso.strip())), "others")] += int(samples)
    return found


def by_function(stacks: Path) -> tuple[Counter[str], Counter[str]]:
    """The looks at stacks by the function of topics at or next to the top, and by all that were in it."""
    own: Counter[str] = Counter()
    all_of: Counter[str] = Counter()
    for line in stacks.read_text().splitlines():
        stack, _, count = line.rpartition(" ")
        ours = [named for frame in stack.split(";") if (named := _function(frame))]
        own[ours[-1] if ours else "outside of topics"] += int(count)
        all_of.update(dict.fromkeys(set(ours), int(count)))
    return own, all_of


def _function(frame: str) -> str:
    """module.function of a frame of topics; "" for any other."""
    found = re.fullmatch(r"(\S+) \(.*?topics/([\w/]+)\.py(?::\d+)?\)", frame)
    return f"{found[2].replace('/', '.')}.{found[1]}" if found else ""


@contextmanager
def beside(work: Callable[[], None]) -> Iterator[None]:
    """A load on a thread of its own, which may end in an error when the server is gone."""

    def run() -> None:
        try:
            work()
        except (OSError, RuntimeError):
            pass

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    yield
    thread.join(4 * SECONDS)


def running(work: Work, directory: Path) -> str:
    """Tables of a server under a load."""
    with ServerProcess(directory / "topics") as server, beside(partial(work, server, directory)):
        time.sleep(SECONDS / 3)  # until it has its pace
        look(perf(directory, "-p", str(server.pid), "--", "sleep", str(SECONDS / 2)))
        look(spy(directory, "-d", str(SECONDS // 2), "-p", str(server.pid)))
        server.kill()
    return tables(directory)


def starting(name: str, directory: Path) -> str:
    """Tables of a start on a directory that is filled first."""
    data = directory / "data"
    uvloop.run(recovery.create(data, TOPICS) if name == "restart" else left_by_a_kill(data))
    command = [sys.executable, "-m", "bench.profiles", "--open", str(data)]
    look(perf(directory, "--", *command))
    look(spy(directory, "--", *command))
    return tables(directory)


async def left_by_a_kill(data: Path) -> None:
    """A directory whose log has records that were written one by one."""
    engine = Engine.open(str(data) + "-running", background=False)
    await engine.start()
    await write_singles(engine, "t", SINGLES, 1000)
    shutil.copytree(str(data) + "-running", data, ignore=shutil.ignore_patterns("lock"))
    await engine.close()


async def open_directory(data: str) -> None:
    await Engine.open(data, background=False).start()
    os._exit(0)  # closing it is not what is looked at


def perf(directory: Path, *what: str) -> list[str]:
    return ["perf", "record", "-q", "-o", str(directory / "perf"), *what]


def spy(directory: Path, *what: str) -> list[str]:
    beside_python = Path(sys.executable).with_name("py-spy")
    return [str(beside_python), "record", "-r", str(RATE), "-f", "raw", "-o", str(directory / "stacks"), *what]


def look(command: Sequence[str]) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"{' '.join(command)}\n{done.stdout}{done.stderr}")


def tables(directory: Path) -> str:
    places = by_place(directory / "perf")
    own, all_of = by_function(directory / "stacks")
    looks = own.total() or 1
    shares = ", ".join(f"{place} {count / places.total():.0%}" for place, count in places.most_common(7))
    rows = [
        f"| {f'`{name}`' if name in all_of else name} | {count / looks:.1%} | {all_of.get(name, count) / looks:.1%} |"
        for name, count in own.most_common(ROWS)
    ]
    return "\n".join([f"Processor time by place: {shares}.", "", "| function | own | all |", "|---|---|---|", *rows])


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.profiles", description=__doc__)
    parser.add_argument("names", nargs="*", help=f"which ones: {', '.join([*RUNNING, *STARTING])} (default: all)")
    parser.add_argument("--open", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.open:
        tune_process()
        uvloop.run(open_directory(options.open))
    for name in options.names or [*RUNNING, *STARTING]:
        if name not in RUNNING and name not in STARTING:
            parser.error(f"there is no load {name!r}; use {', '.join([*RUNNING, *STARTING])}")
        print(f"profile of {name}", file=sys.stderr, flush=True)
        with tempfile.TemporaryDirectory() as path:
            directory = Path(path)
            is_running = name in RUNNING
            text = running(RUNNING[name][1], directory) if is_running else starting(name, directory)
            write(name, RUNNING[name][0] if is_running else STARTING[name], text)
    return 0


def write(name: str, title: str, text: str) -> None:
    """Put a profile in the place of the one before it."""
    known = PROFILES.read_text() if PROFILES.exists() else HEAD
    sections = dict(re.findall(r"(?ms)^## (\w+)\n(.*?)(?=^## |\Z)", known))
    now = datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC")
    sections[name] = f"\n{now}: {title}\n\n{text}\n\n"
    listed = [f"## {one}\n{sections[one]}" for one in [*RUNNING, *STARTING] if one in sections]
    PROFILES.write_text(HEAD + "\n" + "".join(listed).rstrip() + "\n")


if __name__ == "__main__":
    sys.exit(main())
