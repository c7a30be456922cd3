"""The console at work, in a real browser against a real server: operating queues, routers, the server; many topics."""

import json
import os
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from tests.api.clients.transcript import Client, ok
from tests.effort import sampled
from tests.live.browser import Browser, Page
from tests.live.visiting import check_quiet, click, console, fill, go, seen, type_into
from topics.testing.server import ServerProcess

MARKUP = "<img src=x onerror=window.pwned=1>"
ROWS = "document.querySelectorAll('.rows .topic-row').length"
ASKED = (  # pages of the list; one that is asked for again counts once
    "new Set(performance.getEntriesByType('resource').map(({ name }) => name).filter((name) => "
    "name.includes('/v0/topics?') && name.includes('page_size=200'))).size"
)
MANY = 100_000


@pytest.fixture
def server(tmp_path: Path) -> Iterator[ServerProcess]:
    with ServerProcess(tmp_path) as server:
        yield server


def cells(page: Page, selector: str) -> Any:
    """The texts of a table's cells, by row, once there are some."""
    return page.until(
        f"(() => {{ const rows = [...document.querySelectorAll({json.dumps(selector + ' tbody tr')})]; "
        "return rows.length && rows.map((row) => [...row.cells].map((cell) => cell.textContent.trim())); })()"
    )


def bury(api: Client, queue: str, count: int) -> None:
    """Make dead letters of the first jobs of a queue that allows one delivery."""
    seqs = [job["$seq"] for job in ok(api.post(f"/v0/topics/{queue}/claim", {"node": "w", "max": count}))["claimed"]]
    ok(api.post(f"/v0/topics/{queue}/nack", {"node": "w", "seqs": seqs}))
    taken = ok(api.post(f"/v0/topics/{queue}/claim", {"node": "w", "max": 1}))["claimed"]
    if taken:
        ok(api.post(f"/v0/topics/{queue}/ack", {"node": "w", "seqs": [job["$seq"] for job in taken]}))


# --- the server


def test_settings_are_shown_with_their_origin(browser: Browser, tmp_path: Path) -> None:
    """OB4: a secret is never shown, and what is set can be told from what is not."""
    with ServerProcess(tmp_path, {"TOPICS_API_KEYS": "s3cret", "TOPICS_MAX_CURSORS": "77"}) as server:
        page = console(browser, server)
        type_into(page, "input[type=password]", "s3cret")
        click(page, "Open the console")
        page.until("document.querySelector('.side')")
        go(page, "server?tab=settings")
        by_name = {row[0]: row[1:4] for row in cells(page, ".stack")}
        assert by_name["TOPICS_MAX_CURSORS"] == ["77", "environment", "1000"]
        assert by_name["TOPICS_API_KEYS"][:2] == ["set, never shown", "environment"]
        assert by_name["TOPICS_MAX_LIMIT"][1] == "default"
        click(page, "Only what is set")
        page.until("document.querySelectorAll('tbody tr').length < 8")
        assert "TOPICS_MAX_CURSORS" in seen(page, "tbody")
        assert "s3cret" not in page.run("document.documentElement.outerHTML")


def test_findings_disk_and_checkpoints_are_shown(browser: Browser, server: ServerProcess) -> None:
    """OB4, OB5"""
    api = Client(server.address)
    fill(api)
    ok(api.post("/v0/topics/mails/pause"))
    page = console(browser, server, "server")
    page.until("document.querySelector('.findings')?.textContent.includes('this queue is paused')")
    assert "above the cursor slow are lost" in seen(page, ".findings")
    assert "free" in seen(page, ".big")
    assert "Checkpoints" in page.run("document.querySelector('main').textContent")
    click(page, "Also what is in order")
    page.until("[...document.querySelectorAll('.findings .badge.good')].length > 0")
    check_quiet(page)


# --- names as a tree


def test_names_are_a_tree_that_the_url_remembers(browser: Browser, server: ServerProcess) -> None:
    """OB6"""
    api = Client(server.address)
    for name, count in (("shop:orders", 3), ("shop:mails.in", 2), ("shop:mails.out", 1), ("alone", 4)):
        api.write(name, *range(count))
    page = console(browser, server, "topics?view=tree")
    assert [row[:2] for row in cells(page, ".tree-view")] == [["alone", ""], ["shop:", "3"]]
    page.run("document.querySelector('.twist').focus()")
    page.run("document.querySelector('.twist').click()")
    page.until("document.querySelectorAll('.tree-view tbody tr').length === 4")
    assert page.run("document.activeElement.className") == "twist", "the focus stays where it was"
    assert [(row[0], row[4]) for row in cells(page, ".tree-view")] == [
        ("alone", "4"),
        ("shop:", "6"),
        ("mails.", "3"),
        ("orders", "3"),
    ]
    page.run("window.isOld = true; location.reload()")
    page.until("!window.isOld && document.querySelectorAll('.tree-view tbody tr').length === 4")
    page.run("[...document.querySelectorAll('.tree-view a')].find((one) => one.textContent === 'orders').click()")
    page.until("document.querySelector('main h1')?.textContent === 'shop:orders'")
    check_quiet(page)


# --- the timeline


def test_the_timeline_is_zoomed_and_its_table_with_it(browser: Browser, server: ServerProcess) -> None:
    """LS1: by seq; the table has what the stretch has."""
    api = Client(server.address)
    fill(api)
    page = console(browser, server, "topics/clicks")
    page.until("document.querySelector('.band.live')")
    assert page.run("[...document.querySelectorAll('.band')].map((one) => one.classList[1])") == ["lost", "live"]
    for _ in range(3):
        page.run("document.querySelector('[aria-label=\"Zoom in\"]').click()")
        page.run("document.querySelector('[aria-label=\"Later\"]').click()")
    page.until("document.querySelectorAll('.band').length === 1")
    assert page.run("document.querySelector('.band').classList[1]") == "live"
    click(page, "Table")
    assert [row[1] for row in cells(page, ".timeline")] == ["Live"]
    click(page, "Everything")
    page.until("document.querySelectorAll('.timeline tbody tr').length === 2")
    click(page, "Table")
    page.until("document.querySelector('.bar')")
    page.run("document.querySelector('.bar').focus()")
    page.run("document.querySelector('.bar').dispatchEvent(new KeyboardEvent('keydown', { key: '+', bubbles: true }))")
    page.until("!document.querySelector('[aria-label=\"Zoom out\"]').disabled")
    click(page, "Everything")
    page.until("document.querySelectorAll('.band').length === 2")
    page.drag(".bar", 0.9, 0.98)  # over live records only
    page.until("document.querySelectorAll('.band').length === 1")
    assert page.run("document.querySelector('.band').classList[1]") == "live"
    check_quiet(page)


def test_the_timeline_goes_by_time_as_well(browser: Browser, server: ServerProcess) -> None:
    """OB8, LS1: when live records were written, when others were lost; as a table, too."""
    api = Client(server.address)
    fill(api)
    page = console(browser, server, "topics/clicks")
    click(page, "By time")
    page.until("document.querySelector('.column.live') && document.querySelector('.column.lost')")
    assert page.run("location.hash").endswith("by=time")
    label = page.run("document.querySelector('.bar').getAttribute('aria-label')")
    assert "50 records were written that are live, and 31 were lost" in label
    click(page, "Table")
    rows = cells(page, ".timeline")
    assert sum(int(row[3].replace(",", "")) for row in rows if row[1] == "Lost") == 31
    assert sum(int(row[3].replace(",", "")) for row in rows if row[1] == "Written, live") == 50
    check_quiet(page)


# --- routes and filters


def test_routes_in_and_out_are_on_the_topic(browser: Browser, server: ServerProcess) -> None:
    """OB9, RT12"""
    api = Client(server.address)
    fill(api)
    api.create("full", cap_records=1, discard="reject")
    ok(api.put("/v0/routers/archive->full", {"source": "archive", "dest": "full"}), 201)
    api.write("clicks", 1, 2, 3)
    page = console(browser, server, "topics/archive?tab=routes")
    page.until("document.querySelector('.lost-note')?.textContent.includes('archive->full is blocked')")
    text = page.run("document.querySelector('main').textContent")
    assert "Into it" in text and "Out of it" in text
    assert page.run("[...document.querySelectorAll('td a')].map((one) => one.textContent)") == ["clicks", "full"]
    check_quiet(page)


def test_a_filter_is_tried_with_the_last_tags(browser: Browser, server: ServerProcess) -> None:
    """RT6: the server decides; nothing is changed by it."""
    api = Client(server.address)
    fill(api)
    page = console(browser, server, "routers")
    click(page, "Test filter")
    type_into(page, "dialog input[name=filter]", "t1")
    page.until("/Of the last 50 records, 1[67] would be copied/.test(document.querySelector('.tried')?.textContent)")
    type_into(page, "dialog input[name=filter]", "t*")
    page.until("document.querySelector('.tried')?.textContent.includes('49 would be copied')")
    assert [row for row in cells(page, ".tried") if row[0] == "none"] == [["none", "1", "left out"]]
    assert ok(api.get("/v0/routers/clicks->archive"))["filter"] is None
    check_quiet(page)


# --- queues


def test_the_next_jobs_are_looked_at_and_moved(browser: Browser, server: ServerProcess) -> None:
    """QU25: those that a worker holds stay."""
    api = Client(server.address)
    fill(api)
    page = console(browser, server, "topics/mails?tab=queue")
    page.until("[...document.querySelectorAll('h2')].some((one) => one.textContent === 'Next jobs')")
    page.until(
        "[...document.querySelectorAll('button')].filter((one) => one.textContent.trim() === 'Move').length === 5"
    )
    moves = "[...document.querySelectorAll('button')].filter((one) => one.textContent.trim() === 'Move')"
    assert page.run(f"{moves}.map((one) => one.disabled)") == [True, True, False, False, False]
    click(page, "Move")
    type_into(page, "dialog input[name=dest]", "mails-later")
    page.run("document.querySelector('dialog form').requestSubmit()")
    page.until("!document.querySelector('dialog')")
    assert [one["data"] for one in api.diff("mails-later")["records"]] == [2]
    page.until(f"{moves}.length === 4")
    click(page, "As code")
    click(page, "CLI")
    assert "has no command for this" in seen(page, "dialog")
    check_quiet(page)


def test_dead_letters_are_grouped_and_redriven_at_a_rate(browser: Browser, server: ServerProcess) -> None:
    """QU24, DR1: so many per second, until it is stopped or none is left."""
    api = Client(server.address)
    ok(api.put("/v0/topics/work", {"type": "queue", "max_deliveries": 1, "dead_letter": "failed"}), 201)
    api.write_records("work", *({"data": {"n": n}, "tag": ("a", "b")[n % 2]} for n in range(6)))
    bury(api, "work", 6)
    page = console(browser, server, "topics/work?tab=queue")
    page.until("[...document.querySelectorAll('h2')].some((one) => one.textContent === 'Dead letters')")
    page.until("document.querySelector('[aria-label=\"dead-work\"] tbody tr')")
    groups = cells(page, '[aria-label="dead-work"]')
    assert [row[:2] for row in groups] == [["a", "3"], ["b", "3"]]
    type_into(page, "[aria-label='Group by']", "shape")
    page.until("document.querySelector('[aria-label=\"dead-work\"] tbody')?.textContent.startsWith('n6')")
    click(page, "Redrive all")
    assert "6 dead letters would become jobs again" in seen(page, "dialog")
    type_into(page, "dialog input[name=rate]", "1x")
    assert page.run("[...document.querySelectorAll('dialog button')].at(-1).disabled")
    type_into(page, "dialog input[name=rate]", "2")
    page.run("document.querySelector('dialog form').requestSubmit()")
    page.until("document.querySelector('.progress')?.textContent.includes('2 per second')")
    page.until("!document.querySelector('.progress')")
    assert api.state("work")["queue"]["ready"] == 6 and api.state("failed")["count"] == 0
    asked = page.run("performance.getEntriesByType('resource').filter(({ name }) => name.endsWith('/redrive')).length")
    assert asked == 1 + 3, "a dry run, and three times two"
    check_quiet(page)


# --- acts as code


ACTS: dict[str, Callable[[Page], None]] = {
    "send": lambda page: (type_into(page, ".publish textarea", '{"it\'s": [-1.50, "$HOME"]}'), click(page, "Write"))[1],
    "config": lambda page: (
        go(page, "topics/notes?tab=config"),
        type_into(page, "#config-cap_records", "44"),
        click(page, "Save"),
    )[2],
}


@pytest.mark.parametrize("act", ACTS)
def test_the_last_act_as_a_command_does_the_same(browser: Browser, server: ServerProcess, act: str) -> None:
    """CV1: the command is run as it is shown, in a shell."""
    api = Client(server.address)
    api.create("notes")
    page = console(browser, server, "topics/notes")
    ACTS[act](page)
    page.until("[...document.querySelectorAll('button')].some((one) => one.textContent.trim() === 'As code')")
    before = api.state("notes")
    if act == "config":
        ok(api.put("/v0/topics/notes", {"cap_records": 1000}))
    click(page, "As code")
    click(page, "CLI")
    shown = page.until(
        "document.querySelector('dialog .command pre')?.textContent.startsWith('TOPICS_URL=') "
        "&& document.querySelector('dialog .command pre').textContent"
    )
    run = f"topics() {{ {sys.executable} -c 'from topics.cli import main; main()' \"$@\"; }}\n{shown}"
    environ = {"PATH": os.environ["PATH"], "PYTHONPATH": os.pathsep.join(sys.path), "HOME": str(server.directory)}
    done = subprocess.run(["bash", "-c", run], env=environ, capture_output=True, text=True, check=False)
    assert done.returncode == 0, (shown, done.stdout, done.stderr)
    if act == "send":
        records = api.diff("notes")["records"]
        assert [one["data"] for one in records] == [{"it's": [-1.5, "$HOME"]}] * 2
    else:
        assert api.state("notes")["config"] == before["config"]


def test_commands_are_made_for_every_act(browser: Browser, server: ServerProcess) -> None:
    """CV1: odd names and values are quoted, what begins with a dash is no option."""
    page = console(browser, server, "topics")
    made = page.run(
        """import(new URL('console/code.js', document.baseURI)).then(({ asCommand }) => [
            ["POST", "topics/a", '{"records":[{"data":-5,"tag":"-x y"}]}'],
            ["POST", "topics/a", '{"records":[{"data":12345678901234567890,"meta":{"a":1}}]}'],
            ["POST", "topics/a/delete", '{"before_seq":5,"match":["tag","Glob","eu*"],"epoch":3}'],
            ["PUT", "topics/a/cursors/c", '{"seq":4,"if_seq":null}'],
            ["DELETE", "topics/a/cursors/c", undefined],
            ["PUT", "routers/a-%3Eb", '{"source":"a","dest":"b","filter":["tag","Eq","it\\'s"]}'],
            ["DELETE", "routers/a-%3Eb", undefined],
            ["POST", "topics/q/nack", '{"node":"w 1","seqs":[4],"delay_ms":100}'],
            ["POST", "topics/q/extend", '{"node":"w","seqs":[4],"lease_ms":60000}'],
            ["POST", "topics/q/redrive", '{"match":"t","max":5}'],
            ["POST", "topics/q/pause", "{}"],
            ["DELETE", "topics/q", undefined],
            ["DELETE", "connections/x", undefined],
        ].map(([method, target, body]) => asCommand({ method, target, body })?.replace(/^.*? topics /, "")))"""
    )
    assert made == [
        "send a '--tag=-x y' -- '-5'",
        'send a --records -- \'{"data":12345678901234567890,"meta":{"a":1}}\'',
        "delete a --before=5 --prefix=eu --yes",
        "cursor put a c 4 --if-seq=none",
        "cursor rm a c",
        "router put 'a->b' a b '--filter=it'\\''s'",
        "router rm 'a->b' --yes",
        "queue nack q 4 --delay=100ms '--node=w 1'",
        "queue extend q 4 --lease=60000ms --node=w",
        "queue redrive q --filter=t --count=5 --yes",
        "queue pause q",
        "rm q --yes",
        None,
    ]


# --- losses


def test_the_feed_of_losses_says_who_was_hit(browser: Browser, server: ServerProcess) -> None:
    """OB7: in one call, whatever the number of topics."""
    api = Client(server.address)
    fill(api)
    page = console(browser, server, "overview")
    page.until("document.querySelector('.hit')")
    assert [row[0] for row in cells(page, '[aria-label="losses"]')] == ["clicks"]
    assert page.run("[...document.querySelectorAll('.hit a')].map((one) => one.textContent)") == ["slow"]
    assert "Readers are losing records" in seen(page, ".health")
    asked = page.run("performance.getEntriesByType('resource').map(({ name }) => new URL(name).pathname)")
    assert "/v0/losses" in asked and not any(one.endswith("/clicks/losses") for one in asked)
    check_quiet(page)


# --- hostile records, and keys


def test_what_others_have_written_is_only_ever_text_here_too(browser: Browser, server: ServerProcess) -> None:
    """CV6, SC4: tags, nodes, data and cursors, wherever these pages show them."""
    api = Client(server.address)
    evil = {
        "data": {MARKUP: MARKUP, "__proto__": {"polluted": 1}},
        "tag": MARKUP,
        "node": MARKUP,
        "meta": {MARKUP: MARKUP},
    }
    ok(api.put("/v0/topics/work", {"type": "queue", "max_deliveries": 1, "dead_letter": "failed"}), 201)
    api.write_records("work", *([evil] * 4))
    bury(api, "work", 2)
    ok(api.post("/v0/topics/work/claim", {"node": MARKUP, "max": 1, "lease_ms": 3_600_000}))
    api.write_records("src", *([evil] * 3))
    ok(api.put("/v0/routers/src->dst", {"source": "src", "dest": "dst", "filter": ["tag", "Eq", MARKUP]}), 201)
    page = console(browser, server, "topics/work?tab=queue")
    page.until("document.querySelector('[aria-label=\"dead-work\"]') && document.querySelectorAll('.cut').length > 1")
    go(page, "routers")
    click(page, "Test filter")
    page.until("document.querySelector('.tried')?.textContent.includes('3 would be copied')")
    for place, shown in (
        ("topics/src?tab=routes", "td code"),
        ("topics/src?by=time", ".column.live"),
        ("topics?view=tree", ".tree-view td"),
        ("server", ".histogram li"),
        ("overview", ".health"),
    ):
        page.run("document.querySelector('dialog')?.close()")
        go(page, place)
        page.until(f"document.querySelector({json.dumps(shown)})")
    assert page.run("window.pwned") is None and page.run("({}).polluted") is None
    assert page.run("document.querySelectorAll('main img, main script').length") == 0
    check_quiet(page)


SCOPED = {
    "read": {"settings": False, "move": False, "redrive": False},
    "read+write": {"settings": False, "move": False, "redrive": False},
    "read+write+delete": {"settings": False, "move": True, "redrive": True},
    "read+admin": {"settings": True, "move": False, "redrive": False},
}


@pytest.mark.parametrize("scopes", SCOPED)
def test_what_a_key_may_not_do_is_not_offered(browser: Browser, tmp_path: Path, scopes: str) -> None:
    """AU6, AU20, OB4"""
    with ServerProcess(tmp_path, {"TOPICS_API_KEYS": f"root,some:{scopes}"}) as server:
        api = Client(server.address, "root")
        fill(api)
        page = console(browser, server)
        type_into(page, "input[type=password]", "some")
        click(page, "Open the console")
        page.until("document.querySelector('.side')")
        go(page, "topics/mails?tab=queue")
        page.until("document.querySelector('.cut')")
        buttons = page.run("[...document.querySelectorAll('main button')].map((one) => one.textContent.trim())")
        assert ("Move" in buttons) == SCOPED[scopes]["move"]
        assert ("Redrive all" in buttons) == SCOPED[scopes]["redrive"]
        go(page, "server")
        page.until("document.querySelector('.histogram li')")
        tabs = page.run("[...document.querySelectorAll('[role=tab]')].map((one) => one.textContent)")
        assert ("Settings" in tabs) == SCOPED[scopes]["settings"]
        assert ("Checkpoints" in page.run("document.querySelector('main').textContent")) == SCOPED[scopes]["settings"]
        assert [one for one in page.complaints if "401" not in one] == []


def test_a_key_with_prefixes_sees_sums_and_findings_of_its_own(browser: Browser, tmp_path: Path) -> None:
    """AU14, OB5, OB6"""
    with ServerProcess(tmp_path, {"TOPICS_API_KEYS": "root,some::acme"}) as server:
        api = Client(server.address, "root")
        for name in ("acme:q", "other:q"):
            ok(api.put(f"/v0/topics/{name}", {"type": "queue"}), 201)
            ok(api.post(f"/v0/topics/{name}/pause"))
        page = console(browser, server)
        type_into(page, "input[type=password]", "some")
        click(page, "Open the console")
        for place, shown in (
            ("topics?view=tree", ".tree-view td"),
            ("server", ".findings td"),
            ("overview", ".health"),
        ):
            page.until("document.querySelector('.side')")
            go(page, place)
            page.until(f"document.querySelector({json.dumps(shown)})")
            assert "other:" not in page.run("document.querySelector('main').textContent")
        go(page, "topics")
        page.until("document.querySelector('.head p')?.textContent.startsWith('1 topic')")
        assert [one for one in page.complaints if "401" not in one] == []


# --- for everybody


def test_nothing_moves_for_those_who_do_not_want_it(browser: Browser, server: ServerProcess) -> None:
    """CV1: prefers-reduced-motion"""
    api = Client(server.address)
    fill(api)
    page = console(browser, server, "topics/clicks?tab=records")
    page.show(1280, 900, is_calm=False)
    page.until("document.getAnimations().length > 0")
    page.show(1280, 900, is_calm=True)
    page.until("document.getAnimations().length === 0")
    go(page, "topics/clicks")
    page.until("document.querySelector('.front, .band.live')")
    assert page.run("document.getAnimations().length") == 0


DOWNLOADS = {
    "topics": (".rows .topic-row", "topics"),
    "topics?view=tree": (".tree-view td", "tree"),
    "topics/clicks?tab=losses": ("td .badge.lost", "losses-clicks"),
    "topics/clicks?tab=routes": ("td a", "routes-out-of-clicks"),
    "topics/mails?tab=queue": (".cut", "leases-mails"),
    "routers": (".graph svg a", "routers"),
    "server?tab=settings": ("td code", "settings"),
    "server?tab=metrics": (".metrics", "metrics"),
}


@pytest.mark.parametrize("place", sampled(DOWNLOADS))
def test_tables_are_downloaded_as_json(browser: Browser, server: ServerProcess, place: str) -> None:
    """CV1: all of it, in the words of the API."""
    fill(Client(server.address))
    page = console(browser, server, place)
    shown, name = DOWNLOADS[place]
    page.until(f"document.querySelector({json.dumps(shown)})")
    page.run(
        """(() => {
            window.saved = [];
            const make = URL.createObjectURL;
            URL.createObjectURL = (blob) => {
                blob.text().then((text) => window.saved.push(JSON.parse(text)));
                return make(blob);
            };
            window.named = [];
            HTMLAnchorElement.prototype.click = function () { window.named.push(this.download); };
        })()"""
    )
    buttons = "[...document.querySelectorAll('main button')].filter((one) => one.textContent.trim() === 'JSON')"
    count = page.run(f"{buttons}.filter((one) => !one.disabled).map((one) => one.click()).length")
    page.until(f"window.saved.length === {count}")
    assert f"{name}.json" in page.run("window.named")
    assert all(size > 0 for size in page.run("window.saved.map((one) => one.length)"))
    check_quiet(page)


# --- a hundred thousand topics


def create_many(address: tuple[str, int], numbers: range) -> None:
    """Create topics over HTTP, pipelined."""
    with socket.create_connection(address) as connection:
        answers = connection.makefile("rb")
        for start in range(0, len(numbers), 500):
            batch = numbers[start : start + 500]
            requests = (
                f"PUT /v0/topics/area-{n % 40:02}:shop-{n % 7}.topic-{n:06} HTTP/1.1\r\n"
                "host: localhost\r\ncontent-length: 0\r\n\r\n"
                for n in batch
            )
            connection.sendall("".join(requests).encode())
            for _ in batch:
                assert answers.readline().startswith(b"HTTP/1.1 201"), "a topic was not created"
                length = 0
                while (line := answers.readline().strip()) != b"":
                    name, _, value = line.partition(b":")
                    length = int(value) if name.lower() == b"content-length" else length
                answers.read(length)


@pytest.mark.full
def test_a_hundred_thousand_topics_are_fluent(
    browser: Browser, server: ServerProcess, record_property: Callable[[str, object], None]
) -> None:
    """OB1, OB6, OB10: as many rows as the window shows, a request or two for wherever it is; the rest is measured."""
    with ThreadPoolExecutor() as clients:  # at once, so that they share syncs
        list(clients.map(lambda first: create_many(server.address, range(first, MANY, 25)), range(25)))
    page = console(browser, server, "topics")
    page.until("document.querySelectorAll('.rows .cover').length > 10")
    told = {"first rows, ms since the page was opened": round(page.run("performance.now()"))}
    page.until("document.querySelector('.head p')?.textContent.startsWith('100,000 topics')")
    assert page.run(ROWS) < 60
    before, asked = page.measure(), page.run(ASKED)
    assert asked <= 3
    for part in (0.5, 1.0, 0.25, 0.75):
        page.run(f"scrollTo(0, document.body.scrollHeight * {part})")
        page.until(
            "(() => { const rows = [...document.querySelectorAll('.rows .topic-row')]; "
            "const { top } = document.querySelector('.rows').getBoundingClientRect(); "
            "return rows.length > 10 && !rows.some((row) => row.classList.contains('waiting')) "
            "&& rows.some((row) => Math.abs(row.offsetTop + top) < 1200); })()"
        )
        assert page.run(ROWS) < 60
    after = page.measure()
    assert page.run(ASKED) - asked <= 4 * 2, "two pages for each place"
    told["scripting of four jumps, ms"] = round((after["ScriptDuration"] - before["ScriptDuration"]) * 1000)
    told["main thread meanwhile, ms"] = round((after["TaskDuration"] - before["TaskDuration"]) * 1000)
    told["nodes"] = after["Nodes"]
    type_into(page, "input[type=search]", "topic-077777")
    page.until(f"{ROWS} === 1 && document.querySelector('.cover')")
    go(page, "topics?view=tree")
    page.until("document.querySelectorAll('.tree-view tbody tr').length === 40")
    assert {row[1] for row in cells(page, ".tree-view")} == {"2,500"}
    for name, value in told.items():
        record_property(name, value)
    print(told)
    check_quiet(page)
