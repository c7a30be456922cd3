"""The clients' own journal: everything they asked and were told, as lines of a file, and the books that it makes.

Owns the file and the counts. What may be told is checked by `Told`, what must be there afterwards by `check`.
"""

import json
from collections import Counter
from pathlib import Path
from typing import Any, TextIO

from tests.pipelining.clients import Answer, Heard, Request
from tests.pipelining.look import Found
from tests.pipelining.told import Told
from topics.clock import SystemClock


class Account(Told):
    """What was told on one directory. A line of the journal is `["asked", number, …]`, `["answered", number, …]`,
    `["pushed", connection, …]` or `["did", …]`; the padding of records is left out."""

    def __init__(self, journal: Path, counts: Counter[str]) -> None:
        super().__init__(may_throttle=True)
        self.counts = counts
        self._journal: TextIO = journal.open("w")
        self._numbers: dict[Request, int] = {}
        self._asked = 0
        self._clock = SystemClock()

    def close(self) -> None:
        self._journal.close()

    def did(self, *what: Any) -> None:
        """Something was done to the server."""
        self._line("did", self._clock.now_ms(), *what)
        self._journal.flush()

    def asked(self, request: Request) -> None:
        self._asked += 1
        self._numbers[request] = self._asked
        self._line("asked", self._asked, request.method, request.target, _brief(request.body))
        super().asked(request)

    def heard(self, heard: Heard, stream: str) -> None:
        if isinstance(heard, Answer):
            self._line("answered", self._numbers.pop(heard.request), stream, heard.status, _brief(heard.body))
            self._count(heard)
        else:
            self._line("pushed", stream, heard.event, _brief(heard.body))
            self.counts["records pushed"] += len(heard.body.get("records", ())) or heard.event == "job"
        super().heard(heard, stream)

    def _count(self, answer: Answer) -> None:
        request, status, body = answer
        self.counts["requests answered"] += 1
        if status >= 300:
            self.counts[f"requests refused with {status}"] += 1
        elif request.kind == "write" and body["deduped"]:
            self.counts["repeats recognised"] += 1
        elif request.kind == "write":
            self.counts["records acked"] += body["count"]
        elif request.kind == "claim":
            self.counts["jobs handed out"] += body["count"]
        elif request.kind == "ack":
            self.counts["jobs acked"] += body["acked"]

    def fails(self) -> None:
        """From now on, to the end of this life, the disk may fail: 500 is an answer."""
        self.is_faulty = True
        self.refusals.add(500)

    def stops(self) -> None:
        """From now on, to the end of this life, 503 is an answer."""
        self.refusals.add(503)

    def _line(self, *line: Any) -> None:
        self._journal.write(json.dumps(line) + "\n")

    def adopt(self, found: Found) -> None:
        self.counts["requests without an answer"] += len(self.open_calls)
        self.counts["records checked"] += sum(len(topic.records) for topic in found.values())
        super().adopt(found)
        self._numbers.clear()
        self.is_faulty = False
        self.refusals -= {500, 503}


def _brief(body: Any) -> Any:
    """Without padding: data ends at its colon."""
    if isinstance(body, dict):
        return {name: _brief(value) for name, value in body.items() if name != "performance"}
    if isinstance(body, list):
        return [_brief(one) for one in body]
    return body.partition(":x")[0] if isinstance(body, str) else body
