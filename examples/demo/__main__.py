"""A tour in one terminal: a shop with a server, producers, a queue whose worker is killed, a late reader, a router, and
a server that is killed with -9 while orders come in. At the end everything that was acknowledged is counted.

    make demo

It takes about half a minute, uses a free port and a temporary directory, and leaves nothing behind. With
`--seconds 5` each act is longer; with `--keep` the server stays until Ctrl-C, so that you can look at the console.
"""

import argparse
import logging
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from examples.demo.server import Server, wait_until
from topics import Client
from topics.client import Tombstone

PATIENT = {"retries": 1_000, "timeout": 120}  # the server is killed on purpose


def say(text: str = "") -> None:
    print(text, flush=True)


def act(title: str) -> None:
    say(f"\n\033[1m{title}\033[0m" if sys.stdout.isatty() else f"\n{title}")


class Producers:
    """Threads that write orders one by one, and count what was acknowledged."""

    def __init__(self, url: str, count: int) -> None:
        self._url = url
        self._is_over = threading.Event()
        self._lock = threading.Lock()
        self.acked: dict[int, str] = {}  # seq → id of the order
        self._threads = [threading.Thread(target=self._run, args=(number,)) for number in range(count)]

    def _run(self, number: int) -> None:
        with Client(self._url, **PATIENT) as client:
            sent = 0
            while not self._is_over.is_set():
                sent += 1
                order = {"id": f"{number}-{sent}", "eur": 1 + sent % 9}
                tag = "eu" if number % 2 else "us"
                written = client.send("orders", order, tag=tag)  # tried again until it is acknowledged, never doubled
                with self._lock:
                    self.acked[written.first_seq] = order["id"]

    @contextmanager
    def running(self) -> Iterator["Producers"]:
        for thread in self._threads:
            thread.start()
        try:
            yield self
        finally:
            self._is_over.set()
            for thread in self._threads:
                thread.join()


def late_reader(client: Client) -> None:
    act("1. A reader that comes too late is told what it missed")
    client.put_topic("prices", cap_records=3)
    client.append("prices", [{"data": price} for price in range(101, 111)])
    say("   ten prices were written to a topic that keeps three; a reader starts at the beginning:")
    for item in client.consume("prices", follow=False):
        if isinstance(item, Tombstone):
            say(f"   LOST  {item.gap_from} to {item.gap_to}, {item.reason}")
        else:
            say(f"   read  {item.value}")


def routed(client: Client) -> None:
    act("2. A router copies the orders of Europe, filtered by tag")
    client.put_topic("orders", durability="fsync")
    client.put_router("orders->eu", "orders", "orders.eu", filter="eu")
    say("   orders -> orders.eu, tag eu")


def killed_worker(url: str, client: Client) -> None:
    act("3. A queue with two workers, one of which is killed in the middle of its jobs")
    client.put_topic("parcels", type="queue", durability="fsync", max_deliveries=20, dead_letter="parcels.dead")
    client.append("parcels", [{"data": {"parcel": n}} for n in range(300)])
    command = [sys.executable, "-m", "examples.demo.worker", url]
    workers = [subprocess.Popen([*command, name]) for name in ("anna", "bert")]
    try:
        held = lambda: {lease.node for lease in client.leases("parcels")}  # noqa: E731
        wait_until("both workers to have jobs", lambda: held() >= {"anna", "bert"})
        workers[0].kill()
        say("   kill -9 anna, who holds jobs; bert goes on")
        wait_until("the jobs to be done", lambda: client.state("parcels").count == 0)
    finally:
        for worker in workers:
            worker.send_signal(signal.SIGTERM)
            worker.wait()
    counts = client.state("parcels").queue
    dead = counts.dead_lettered if counts else 0
    say(f"   300 jobs done, {dead} dead letters: anna's came back when her leases had ended")


def killed_server(server: Server, client: Client, seconds: float) -> Producers:
    act("4. Four producers write orders; the server is killed with -9 three times meanwhile")
    with Producers(server.url, 4).running() as producers:
        for _ in range(3):
            time.sleep(seconds / 4)
            before = len(producers.acked)
            server.kill()
            server.start()
            say(f"   kill -9 after {before:,} acknowledged orders, and the server is back")
            wait_until("orders to go on", lambda before=before: len(producers.acked) > before)  # type: ignore[misc]
        time.sleep(seconds / 4)
    return producers


def counted(client: Client, producers: Producers) -> bool:
    act("5. The account")
    found: dict[int, str] = {}
    for item in client.consume("orders", follow=False):
        if isinstance(item, Tombstone):
            say(f"   LOST {item.gap_from} to {item.gap_to}")
        else:
            found[item.seq] = item.value["id"]
    missing = {seq: order for seq, order in producers.acked.items() if found.get(seq) != order}
    twice = len(found) - len(set(found.values()))
    say(f"   acknowledged  {len(producers.acked):>8,}")
    say(f"   in the topic  {len(found):>8,}")
    say(f"   missing       {len(missing):>8,}")
    say(f"   twice         {twice:>8,}")
    copies = client.state("orders.eu").count
    say(f"   of these, {copies:,} were copied to orders.eu")
    return not missing and not twice


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="make demo", description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--seconds", type=float, default=8.0, help="how long the producers write (8)")
    parser.add_argument("--keep", action="store_true", help="keep the server until Ctrl-C")
    arguments = parser.parse_args()
    logging.getLogger("topics.client").setLevel(logging.ERROR)  # that it tries again is what we want
    with tempfile.TemporaryDirectory(prefix="topics-demo-") as directory:
        server = Server(Path(directory))
        try:
            server.start()
            say(f"A server runs at {server.url}; its console is at {server.url}/")
            with Client(server.url, **PATIENT) as client:
                late_reader(client)
                routed(client)
                killed_worker(server.url, client)
                is_right = counted(client, killed_server(server, client, arguments.seconds))
            is_wrong = "THE ACCOUNT IS WRONG: please report this."
            say(f"\n{'Nothing that was acknowledged is gone.' if is_right else is_wrong}")
            if arguments.keep:
                say(f"The server stays at {server.url}/ until Ctrl-C.")
                threading.Event().wait()
        except KeyboardInterrupt:
            return 130
        finally:
            server.stop()
    return 0 if is_right else 1


if __name__ == "__main__":
    sys.exit(main())
