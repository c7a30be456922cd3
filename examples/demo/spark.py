"""The data pipeline in one terminal: `make demo-spark`.

A server, generated orders of an afternoon, and a pipeline on Spark that sums them per minute and writes the sums back
into the topic `revenue`. With `--keep` the server stays until Ctrl-C: look at `revenue` in its console.
"""

import argparse
import sys
import tempfile
import threading
from pathlib import Path

from examples.demo.server import Server
from examples.pipelines import orders


def main() -> int:
    parser = argparse.ArgumentParser(prog="make demo-spark", description=__doc__)
    parser.add_argument("--keep", action="store_true", help="keep the server until Ctrl-C")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="topics-demo-") as directory:
        server = Server(Path(directory))
        try:
            server.start()
            print(
                f"A server runs at {server.url}; its console is at {server.url}/. Spark takes a moment to start.",
                flush=True,
            )
            orders.run(server.url)
            if arguments.keep:
                print(f"The server stays at {server.url}/ until Ctrl-C.", flush=True)
                threading.Event().wait()
        except KeyboardInterrupt:
            return 130
        finally:
            server.stop()
    return 0


if __name__ == "__main__":
    sys.exit(main())
