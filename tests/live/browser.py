"""A real browser for tests: headless Chromium, driven over its DevTools protocol, and a server for pages.

    with Pages(directory) as pages, Browser(tmp_path) as browser:
        page = browser.open(f"{pages.origin}/some.html")
        assert page.run("document.title") == "some"

Owns the process, its profile (in the directory it is given) and the connections to its pages. Must not know: topics.
What a page's code throws, at any time, fails the next `run`.
"""

import json
import os
import signal
import subprocess
from base64 import b64decode
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from http.client import HTTPConnection
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from shutil import rmtree, which
from threading import Thread
from types import TracebackType
from typing import Any, Final, Self

from websockets.sync.client import ClientConnection, connect

from topics.testing.patience import PATIENCE_S

FLAGS: Final = (
    "--headless=new",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-dev-shm-usage",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--remote-debugging-port=0",
    # A tab under another one has its turns and its timers like any other.
    "--disable-renderer-backgrounding",
    "--disable-background-timer-throttling",
    "--disable-backgrounding-occluded-windows",
)
LISTENING: Final = "DevTools listening on ws://"


NAVIGATED = "Inspected target navigated or closed"


class BrowserError(Exception):
    """The browser cannot be started, or a page's code has failed."""


class Browser:
    def __init__(self, directory: Path) -> None:
        program = which("chromium")
        if program is None:
            raise BrowserError("there is no command chromium; `make browser` installs it on Debian")
        self._log = directory / "browser.log"
        self._profile = directory / "profile"
        self._command = [program, *FLAGS, f"--user-data-dir={self._profile}", "about:blank"]
        self._connections = ExitStack()

    def __enter__(self) -> Self:
        self._process = subprocess.Popen(
            self._command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        self._address = self._read_address()
        socket = self._profile / "SingletonSocket"  # a link into a directory of its own, which it leaves behind
        self._left = socket.readlink().parent if socket.is_symlink() else self._profile
        self._log_keeper = Thread(target=self._keep_log, daemon=True)
        self._log_keeper.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._connections.close()
        self._process.terminate()
        try:
            self._process.wait(PATIENCE_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._log_keeper.join()
        rmtree(self._left, ignore_errors=True)

    @contextmanager
    def held(self) -> Iterator[None]:
        """Meanwhile no page does anything, nor the browser for it, such as to reconnect."""
        os.killpg(self._process.pid, signal.SIGSTOP)
        try:
            yield
        finally:
            os.killpg(self._process.pid, signal.SIGCONT)

    def open(self, url: str) -> "Page":
        """A new tab, once its page is loaded."""
        connection = HTTPConnection(self._address, timeout=PATIENCE_S)
        connection.request("PUT", "/json/new?about:blank")
        tab = json.loads(connection.getresponse().read())
        connection.close()
        debugger = connect(tab["webSocketDebuggerUrl"], max_size=None, close_timeout=0.1, ping_interval=None)
        page = Page(self._connections.enter_context(debugger))
        page.load(url)
        return page

    def _read_address(self) -> str:
        assert self._process.stderr is not None
        said = []
        for line in self._process.stderr:
            said.append(line)
            if line.startswith(LISTENING):
                return line.removeprefix(LISTENING).partition("/")[0]
        raise BrowserError(f"Chromium ended with {self._process.wait()}:\n{''.join(said)}")

    def _keep_log(self) -> None:
        assert self._process.stderr is not None
        with self._process.stderr as lines, self._log.open("w") as log:
            log.writelines(lines)


class Page:
    """A tab."""

    def __init__(self, connection: ClientConnection) -> None:
        self._connection = connection
        self._count = 0
        self._thrown: list[str] = []
        self.complaints: list[
            str
        ] = []  # errors in the page's console: what it logs, what a policy or the network denies
        self._is_loaded = False
        self._ask("Runtime.enable")
        self._ask("Log.enable")
        self._ask("Page.enable")

    def load(self, url: str) -> None:
        self._is_loaded = False
        failure = self._ask("Page.navigate", url=url).get("errorText")
        if failure:
            raise BrowserError(f"{url} cannot be loaded: {failure}")
        while not self._is_loaded:
            self._hear()

    def run(self, expression: str) -> Any:
        """The value of an expression of JavaScript; of a promise, once it is there."""
        answer = self._ask("Runtime.evaluate", expression=expression, awaitPromise=True, returnByValue=True)
        if "exceptionDetails" in answer:
            raise BrowserError(f"{expression}: {_told(answer['exceptionDetails'])}")
        if self._thrown:
            raise BrowserError(f"the page has thrown: {self._thrown}")
        return answer["result"].get("value")

    def call(self, function: str, *arguments: Any) -> Any:
        """`run` for a call with arguments."""
        return self.run(f"{function}({', '.join(map(json.dumps, arguments))})")

    def until(self, condition: str) -> Any:
        """Wait until an expression is true, also of a page that is loaded meanwhile; its value."""
        waiting = f"""(async () => {{
            for (;;) {{
                const value = (() => {{ return {condition}; }})();
                if (value) return value;
                await new Promise((done) => setTimeout(done, 20));
            }}
        }})()"""
        while True:
            try:
                return self.run(waiting)
            except BrowserError as error:
                if NAVIGATED not in str(error):
                    raise

    def show(self, width: int, height: int, *, theme: str = "light", is_calm: bool = True) -> None:
        """How large the window is, and what its user prefers."""
        self._ask("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=False)
        calm = "reduce" if is_calm else "no-preference"
        features = [{"name": "prefers-color-scheme", "value": theme}, {"name": "prefers-reduced-motion", "value": calm}]
        self._ask("Emulation.setEmulatedMedia", features=features)

    def drag(self, selector: str, start: float, stop: float) -> None:
        """Draw the mouse over an element, from one part of its width to another."""
        self.run(f"document.querySelector({json.dumps(selector)}).scrollIntoView({{ block: 'center' }})")
        left, top, width, height = self.run(
            f"(({{ left, top, width, height }}) => [left, top, width, height])"
            f"(document.querySelector({json.dumps(selector)}).getBoundingClientRect())"
        )
        for kind, part in (("mousePressed", start), ("mouseMoved", stop), ("mouseReleased", stop)):
            place = {"x": left + width * part, "y": top + height / 2}
            self._ask("Input.dispatchMouseEvent", type=kind, button="left", buttons=1, clickCount=1, **place)

    def picture(self) -> bytes:
        """What the window shows, as PNG."""
        return b64decode(self._ask("Page.captureScreenshot", format="png")["data"])

    def measure(self) -> dict[str, float]:
        """The browser's counters of this page: seconds of scripting, nodes and so on; of the processor's time."""
        self._ask("Performance.enable", timeDomain="threadTicks")
        return {one["name"]: one["value"] for one in self._ask("Performance.getMetrics")["metrics"]}

    def _ask(self, method: str, **parameters: Any) -> dict[str, Any]:
        self._count += 1
        self._connection.send(json.dumps({"id": self._count, "method": method, "params": parameters}))
        while True:
            message = self._hear()
            if message.get("id") == self._count:
                if "error" in message:
                    raise BrowserError(f"{method}: {message['error']}")
                result: dict[str, Any] = message["result"]
                return result

    def _hear(self) -> dict[str, Any]:
        message: dict[str, Any] = json.loads(self._connection.recv(PATIENCE_S))
        if message.get("method") == "Runtime.exceptionThrown":
            self._thrown.append(_told(message["params"]["exceptionDetails"]))
        if message.get("method") == "Log.entryAdded" and message["params"]["entry"]["level"] == "error":
            entry = message["params"]["entry"]
            self.complaints.append(f"{entry['text']} {entry.get('url', '')}")
        if message.get("method") == "Runtime.consoleAPICalled" and message["params"]["type"] in ("error", "warning"):
            self.complaints.append(
                str([one.get("value") or one.get("description") for one in message["params"]["args"]])
            )
        self._is_loaded |= message.get("method") == "Page.loadEventFired"
        return message


def _told(details: dict[str, Any]) -> str:
    told: str = details.get("exception", {}).get("description") or details["text"]
    return told


class Pages:
    """The files of a directory, over HTTP on a loopback port of their own: an origin."""

    def __init__(self, directory: Path) -> None:
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), partial(_QuietHandler, directory=str(directory)))
        self._thread = Thread(target=self._server.serve_forever, daemon=True)
        self.port = self._server.server_address[1]
        self.origin = f"http://127.0.0.1:{self.port}"

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()


class _QuietHandler(SimpleHTTPRequestHandler):
    def log_message(self, format: str, *args: Any) -> None:
        """Say nothing."""
