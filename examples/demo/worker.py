"""One worker of the demo, in a process of its own so that it can be killed: python -m examples.demo.worker URL NAME."""

import sys
import time

from topics import Client


def pack(job) -> None:
    time.sleep(0.02)  # the work


def main() -> None:
    url, name = sys.argv[1:]
    with Client(url) as client:
        client.worker("parcels", name, pack, slots=4, lease_ms=1_000).run(handle_signals=True)


if __name__ == "__main__":
    main()
