"""wrk as a client of HTTP: the same POSTs over and over on kept connections, and what they cost on both sides."""

import json
import re
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from bench.peers import Peer
from bench.processes import Load, own_cpu_seconds, tree_cpu_seconds
from bench.wire import http, null

REFUSED_SHARE_MAX: Final = 0.01  # a server whose disk lags behind refuses a write after a second; these do not count
TRIES_MAX: Final = 30  # each waits for a second
SCRIPT: Final = """
wrk.method = "POST"
wrk.headers["Content-Type"] = "application/json"
wrk.body = {body}
"""
# For several paths; wrk renders the request once where there is only one.
TURNS: Final = """
local paths, asked, number = {paths}, {{}}, 0
function init(args)
    for i, path in ipairs(paths) do asked[i] = wrk.format(nil, path) end
end
function request()
    number = number % #asked + 1
    return asked[number]
end
"""


def drive(peer: Peer, paths: Sequence[str], body: str, connections: int, seconds: int, directory: Path) -> Load:
    """POST `body` to these paths in turn, as fast as the answers come."""
    script = directory / "post.lua"
    turns = TURNS.format(paths="{" + json.dumps(list(paths))[1:-1] + "}") if len(paths) > 1 else ""
    script.write_text(SCRIPT.format(body=json.dumps(body)) + turns)
    host, port = peer.address
    server_s, client_s = tree_cpu_seconds(peer.pid), own_cpu_seconds()
    done = subprocess.run(
        ["wrk", "-t1", f"-c{connections}", f"-d{seconds}s", "-s", str(script), f"http://{host}:{port}{paths[0]}"],
        check=True,
        capture_output=True,
        text=True,
    )
    count, per_s = (re.search(what, done.stdout) for what in (r"(\d+) requests in", r"Requests/sec:\s+([\d.]+)"))
    if count is None or per_s is None or int(count[1]) == 0:
        raise RuntimeError(f"wrk has had no answers:\n{done.stdout}{done.stderr}")
    found = re.search(r"Non-2xx or 3xx responses: (\d+)", done.stdout)
    refused = 0 if found is None else int(found[1])
    if refused > REFUSED_SHARE_MAX * int(count[1]):
        raise RuntimeError(f"the server refused requests:\n{done.stdout}")
    elapsed = int(count[1]) / float(per_s[1])
    return Load(int(count[1]) - refused, elapsed, tree_cpu_seconds(peer.pid) - server_s, own_cpu_seconds() - client_s)


def ceiling(peer: Peer, paths: Sequence[str], body: str, connections: int, seconds: int, directory: Path) -> Load:
    """The same against a server that gives the answer of `peer` to the first of these, and does nothing else."""
    asked = http.request("POST", paths[0], body.encode())
    answer = _answer(peer, asked)
    lines = {f"POST {path} HTTP/1.1".encode(): answer for path in paths}
    with null.constant(lines) as nothing:
        return drive(nothing, paths, body, connections, seconds, directory)


def _answer(peer: Peer, asked: bytes) -> bytes:
    """The answer to a request, from a server that may still be busy with what came before."""
    for _ in range(TRIES_MAX):
        try:
            with http.connect(peer.address) as connection:
                return http.exchange(connection, asked)
        except RuntimeError as error:
            if b" 429 " not in str(error).encode():
                raise
    raise RuntimeError(f"the server is at its limit, after {TRIES_MAX} tries")
