"""What tests of the console do with its pages: open them, click, type, look; and the data that they look at."""

import json
from typing import Any

from tests.api.clients.transcript import Client, ok
from tests.live.browser import Browser, Page
from topics.testing.server import ServerProcess


def fill(api: Client) -> None:
    """A topic that has lost, deleted and kept; readers; a queue at work; a router."""
    ok(api.put("/v0/topics/clicks", {"cap_records": 50}), 201)
    api.write_records("clicks", *({"data": {"n": n}, "tag": f"t{n % 3}"} for n in range(80)))
    ok(api.put("/v0/topics/clicks/cursors/slow", {"seq": 10}))
    ok(api.put("/v0/topics/clicks/cursors/quick", {"seq": 70}))
    ok(api.put("/v0/topics/mails", {"type": "queue", "max_deliveries": 1, "dead_letter": "failed"}), 201)
    api.write("mails", *range(5))
    ok(api.post("/v0/topics/mails/claim", {"node": "worker-1", "max": 2, "lease_ms": 3_600_000}))
    api.create("archive")
    ok(api.put("/v0/routers/clicks->archive", {"source": "clicks", "dest": "archive"}), 201)
    api.write("clicks", "last")


def console(browser: Browser, server: ServerProcess, place: str = "") -> Page:
    page = browser.open("http://{}:{}/console".format(*server.address))
    page.show(1280, 900)
    if place:
        go(page, place)
    return page


def go(page: Page, place: str) -> None:
    page.call("((place) => { location.hash = place; })", f"#/{place}")


def seen(page: Page, selector: str) -> Any:
    return page.until(f"document.querySelector({json.dumps(selector)})?.textContent")


def click(page: Page, text: str) -> None:
    """Click the first button or tab with this text that can be clicked, once it is there."""
    button = (
        f"[...document.querySelectorAll('button')].find((one) => one.textContent.trim() === {json.dumps(text)} "
        "&& !one.disabled)"
    )
    page.until(button)
    page.run(f"{button}.click()")


def type_into(page: Page, selector: str, text: str) -> None:
    page.until(f"document.querySelector({json.dumps(selector)})")
    page.call(
        """((selector, text) => {
            const input = document.querySelector(selector);
            input.value = text;
            input.dispatchEvent(new Event(input.tagName === "SELECT" ? "change" : "input", { bubbles: true }));
        })""",
        selector,
        text,
    )


def check_quiet(page: Page) -> None:
    """Nothing went wrong in the page. A server without a history, or a key that may not see it, is no fault."""
    page.run("1")
    assert [one for one in page.complaints if "/v0/stats" not in one] == []
