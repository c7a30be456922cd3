"""A tour with a real server: write, read, lose records and be told, kill -9, and lose nothing that was acked.

Run with `make demo`, or `python -m examples.demo`.
"""

import json
import tempfile
import urllib.request
from pathlib import Path
from typing import Any

from topics.testing.server import ServerProcess


class Demo:
    """Calls a server over plain HTTP, and prints each request and answer."""

    def __init__(self, server: ServerProcess) -> None:
        self.server = server

    def say(self, text: str) -> None:
        print(f"\n# {text}")

    def ask(self, method: str, path: str, body: Any = None) -> Any:
        host, port = self.server.address
        request = urllib.request.Request(
            f"http://{host}:{port}{path}",
            method=method,
            data=None if body is None else json.dumps(body).encode(),
            headers={} if body is None else {"Content-Type": "application/json"},
        )
        given = f" -H content-type:application/json -d '{json.dumps(body)}'" if body else ""
        print(f"$ curl -X {method} http://{host}:{port}{path}{given}")
        with urllib.request.urlopen(request) as response:
            answer = json.load(response)
        shown = {key: value for key, value in answer.items() if key not in ("performance", "config")}
        print(json.dumps(shown))
        return answer


def run(server: ServerProcess) -> None:
    demo = Demo(server)
    demo.say("The first write to a topic creates it.")
    demo.ask("POST", "/v0/topics/orders", {"records": [{"data": {"sku": "A1"}, "tag": "a"}, {"data": {"sku": "B2"}}]})
    demo.say("A reader asks for the records above its cursor, and keeps next_from_seq as its new cursor.")
    cursor = demo.ask("POST", "/v0/topics/orders/diff", {"from_seq": 0})["next_from_seq"]
    demo.say("A topic keeps three records. After five records two are lost, and the reader is told which.")
    demo.ask("PUT", "/v0/topics/prices", {"cap_records": 3})
    demo.ask("POST", "/v0/topics/prices", {"records": [{"data": n} for n in range(1, 6)]})
    answer = demo.ask("POST", "/v0/topics/prices/diff", {"from_seq": 0})
    assert answer["tombstone"]["gap_from"] == 1 and answer["tombstone"]["gap_to"] == 2
    demo.say("Somebody asked for a delete, so it is silent.")
    demo.ask("POST", "/v0/topics/orders/delete", {"match": "a"})
    assert demo.ask("POST", "/v0/topics/orders/diff", {"from_seq": 0})["tombstone"] is None
    demo.say("An acked write, then kill -9, then a new process on the same directory.")
    demo.ask("POST", "/v0/topics/orders", {"records": [{"data": {"sku": "C3"}}]})
    server.kill()
    server.start()
    answer = demo.ask("POST", "/v0/topics/orders/diff", {"from_seq": cursor})
    assert [record["data"] for record in answer["records"]] == [{"sku": "C3"}]
    demo.say("Everything acked is still there.")


def main() -> None:
    with tempfile.TemporaryDirectory(prefix="topics-demo-") as directory, ServerProcess(Path(directory)) as server:
        run(server)


if __name__ == "__main__":
    main()
