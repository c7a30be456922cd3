"""Make the pictures of the console in docs/images: `make screenshots`.

A server of its own, filled with the same data each time, is shown in headless Chromium.
"""

import sys
import tempfile
from pathlib import Path
from typing import Final

from tests.api.clients.transcript import Client, ok
from tests.live.browser import Browser
from topics.testing.server import ServerProcess

IMAGES: Final = Path(__file__).parent.parent / "docs" / "images"
SIZE: Final = (1280, 800)
PICTURES: Final = {
    "console-timeline": ("topics/clicks", "light", ".flag"),
    "console-records": ("topics/orders?tab=records&seq=1190", "light", ".inspector .tree"),
    "console-queue": ("topics/mails?tab=queue", "dark", "td .meter"),
}
BUYERS: Final = ("ada", "grace", "edsger", "barbara", "alan", "radia")
GOODS: Final = ("lamp", "desk", "kettle", "chair", "clock")


def main() -> int:
    IMAGES.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as name, ServerProcess(Path(name) / "server") as server:
        fill(Client(server.address))
        with Browser(Path(name)) as browser:
            for picture, (place, theme, wanted) in PICTURES.items():
                page = browser.open("http://{}:{}/console#/{}".format(*server.address, place))
                page.show(*SIZE, theme=theme)
                page.until(f"document.querySelector({wanted!r})")
                (IMAGES / f"{picture}.png").write_bytes(page.picture())
                print(f"docs/images/{picture}.png")
    return 0


def fill(api: Client) -> None:
    """A shop: orders that are kept, clicks that outgrow their cap, a queue of mails with workers."""
    api.create("orders", durability="fsync")
    orders = (
        {"order": n, "buyer": BUYERS[n % 6], "item": GOODS[n % 5], "total": n * 37 % 900 / 10} for n in range(1200)
    )
    api.write_records("orders", *({"data": order, "tag": ("web", "app")[n % 2]} for n, order in enumerate(orders)))
    api.create("clicks", cap_records=6000)
    api.write_records("clicks", *({"data": {"page": f"/{GOODS[n % 5]}"}} for n in range(2000)))
    ok(api.post("/v0/topics/clicks/delete", {"before_seq": 1201}))
    api.write_records("clicks", *({"data": {"page": f"/{GOODS[n % 5]}"}} for n in range(8600)))
    for cursor, seq in (("billing", 3100), ("dashboard", 7400), ("search-index", 9300), ("archive", 10_500)):
        ok(api.put(f"/v0/topics/clicks/cursors/{cursor}", {"seq": seq}))
    api.create("mails", type="queue", max_deliveries=1, dead_letter="mails-failed", lease_ms=60_000)
    api.write_records(
        "mails", *({"data": {"to": f"{BUYERS[n % 6]}@example.org"}, "tag": "receipt"} for n in range(240))
    )
    for _ in range(2):  # one delivery, and the next claim makes letters of them
        jobs = ok(api.post("/v0/topics/mails/claim", {"node": "mailer-0", "max": 4}))["claimed"]
        ok(api.post("/v0/topics/mails/nack", {"node": "mailer-0", "seqs": [job["$seq"] for job in jobs]}))
    for n in range(1, 4):
        ok(api.post("/v0/topics/mails/claim", {"node": f"mailer-{n}", "max": n, "lease_ms": 15_000 * n}))


if __name__ == "__main__":
    sys.exit(main())
