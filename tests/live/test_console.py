"""The console in a real browser, against a real server with real data: its pages, live, under attack, by key."""

import json
from collections.abc import Iterator
from itertools import product
from pathlib import Path

import pytest

from tests.api.clients.transcript import Client, ok
from tests.effort import sampled
from tests.live.browser import Browser
from tests.live.visiting import check_quiet, click, console, fill, go, seen, type_into
from topics.testing.server import ServerProcess

AXE = (Path(__file__).with_name("vendor") / "axe.js").read_text()
PAGES = {
    "overview": ".health",
    "topics": ".rows .topic-row",
    "topics/clicks": ".timeline .band.live",
    "topics?view=tree": ".tree-view td",
    "topics/clicks?by=time": ".timeline .column.lost",
    "topics/clicks?tab=routes": "td a",
    "topics/clicks?tab=records&seq=40": ".inspector .tree",
    "topics/clicks?tab=losses": "td .badge.lost",
    "topics/clicks?tab=cursors": "td strong",
    "topics/clicks?tab=config": "#config-cap_records",
    "topics/mails?tab=queue": "td .meter",
    "routers": ".graph svg a",
    "live": "h1",
    "server": ".histogram li",
    "server?tab=settings": "td code",
    "server?tab=metrics": ".metrics",
}
EVIL = [
    "<img src=x onerror='window.pwned=1'><script>window.pwned=1</script>",
    {"<b>key</b>": "</script><svg onload=window.pwned=1>", "__proto__": {"polluted": 1}, "constructor": None},
    {"dangerouslySetInnerHTML": {"__html": "<img src=x onerror=window.pwned=1>"}, "type": "script", "props": {}},
    ["javascript:window.pwned=1", "data:text/html,<script>1</script>", "\u202e\u0000\ufeff \u2028"],
    {"deep": json.loads("[" * 100 + "]" * 100)},
    "x" * 100_000,
]


@pytest.fixture
def server(tmp_path: Path) -> Iterator[ServerProcess]:
    with ServerProcess(tmp_path) as server:
        server.environ["TOPICS_PORT"] = str(server.address[1])  # a later start binds the same one
        yield server


# --- each page


@pytest.mark.parametrize("place", sampled(PAGES))
def test_every_page_shows_what_is_there_and_can_be_used_by_everybody(
    browser: Browser, server: ServerProcess, place: str
) -> None:
    """CV1: without errors, and axe finds nothing, light and dark, wide and as narrow as a phone."""
    fill(Client(server.address))
    page = console(browser, server, place)
    page.until(f"document.querySelector({json.dumps(PAGES[place])})")
    check_quiet(page)
    page.run(AXE + ";0")
    for theme, width in product(("light", "dark"), (1280, 390)):
        page.show(width, 900, theme=theme)
        found = page.run("axe.run(document).then(({ violations }) => violations)")
        told = [(one["id"], one["nodes"][0]["html"][:200], one["nodes"][0]["failureSummary"]) for one in found]
        assert told == [], (theme, width)
        assert page.run("document.documentElement.scrollWidth <= innerWidth"), "the page is wider than the window"
    check_quiet(page)


def test_the_first_record_is_noticed(browser: Browser, server: ServerProcess) -> None:
    """TP8, WR1: an empty server shows a command, and the page reacts when it was run."""
    page = console(browser, server)
    assert '--json \'{"records":[{"data":{"hello":"world"}}]}\'' in seen(page, ".first pre")
    Client(server.address).write("hello", {"hello": "world"})
    assert "hello has its first record" in seen(page, ".arrived")
    click(page, "Look at it")
    page.until("document.querySelector('.record-table td.data')?.textContent.includes('world')")
    check_quiet(page)


def test_the_demo_shop_comes_and_goes(browser: Browser, server: ServerProcess) -> None:
    """TP11: nothing of it stays."""
    page = console(browser, server)
    click(page, "Open the demo shop")
    page.until("document.querySelector('.strip')")
    click(page, "Remove it again")
    page.until("document.querySelector('.first')")
    assert ok(Client(server.address).get("/v0/topics"))["topics"] == []
    check_quiet(page)


# --- a topic


def test_the_timeline_tells_live_deleted_and_lost_apart(browser: Browser, server: ServerProcess) -> None:
    """LS1, LS2, NC3: as bands, in words and as a table; the cursors are flags."""
    api = Client(server.address)
    fill(api)
    ok(api.post("/v0/topics/clicks/delete", {"before_seq": 41}))
    page = console(browser, server, "topics/clicks")
    page.until("document.querySelector('.bar')?.getAttribute('aria-label').includes('lost')")
    label = page.run("document.querySelector('.bar').getAttribute('aria-label')")
    state = api.state("clicks")
    assert label == (
        f"Of {state['head_seq']} records {state['count']} are live, {state['deleted_total']} deleted, "
        f"{state['lost_total']} lost."
    )
    kinds = page.run("[...document.querySelectorAll('.band')].map((one) => one.classList[1])")
    assert kinds == ["lost", "deleted", "live"]
    assert page.run("[...document.querySelectorAll('.flag b')].map((one) => one.textContent)") == ["slow", "quick"]
    click(page, "Table")
    rows = page.until(
        "(() => { const rows = [...document.querySelectorAll('.timeline tbody tr')]; return rows.length && "
        "rows.map((row) => [...row.cells].slice(0, 4).map((cell) => cell.textContent)); })()"
    )
    assert [row[:3] for row in rows] == [
        ["1 – 31", "Lost", "31"],
        ["32 – 40", "Deleted", "9"],
        ["41 – 81", "Live", "41"],
    ]
    assert rows[0][3] == "evicted by a cap"


def test_records_arrive_live_and_across_a_restart(browser: Browser, server: ServerProcess) -> None:
    """SS28, SS9, SS10: the tail goes on behind the last id, and shows in its place what was lost."""
    api = Client(server.address)
    api.create("ring", cap_records=5)
    api.write("ring", "first")
    page = console(browser, server, "topics/ring?tab=records")
    text = "document.querySelector('.record-table tbody')?.textContent"
    page.until(f"{text}?.includes('first')")
    api.write("ring", "second")
    page.until(f"{text}.includes('second')")
    click(page, "Pause")
    api.write("ring", "held")
    page.until("document.querySelector('.live-state')?.textContent === 'Paused'")
    click(page, "Go on")
    page.until(f"{text}.includes('held')")
    server.kill()
    page.until("document.querySelector('.down')")
    server.start()
    api.write("ring", *(f"back {n}" for n in range(12)))
    page.until(f"{text}.includes('back 11')")
    assert "4 – 10: 7 records lost, gone before they were read" in seen(page, ".gap-row")
    page.until("!document.querySelector('.down')")
    seqs = page.run("[...document.querySelectorAll('.seq')].map((one) => Number(one.textContent))")
    assert seqs == [15, 14, 13, 12, 11, 3, 2, 1]


def test_a_record_is_written_as_it_is_spelled_and_inspected_as_it_is(browser: Browser, server: ServerProcess) -> None:
    """CV6, RC1: numbers keep their digits; a record that is gone says why."""
    api = Client(server.address)
    api.create("notes", cap_records=2)
    page = console(browser, server, "topics/notes?tab=records")
    spelled = '{"big": 123456789012345678901234567890, "tiny": 1.0e-3, "twice": 1}'
    type_into(page, ".publish textarea", spelled)
    click(page, "Write")
    page.until("document.querySelector('.seq')")
    assert b'"data":' + spelled.encode() in api.get("/v0/topics/notes/records/1").body
    page.run("document.querySelector('.seq').click()")
    assert "123456789012345678901234567890" in seen(page, ".inspector .tree")
    click(page, "Raw")
    assert spelled in seen(page, ".raw")
    type_into(page, ".publish textarea", "{not json")
    assert "not JSON yet" in page.until(
        "(() => { const said = document.getElementById('publish-wrong').textContent; return said; })()"
    )
    check_quiet(page)
    api.write("notes", 2, 3, 4)
    go(page, "topics/notes?tab=records&seq=1")
    page.run("window.isOld = true; location.reload()")
    page.until("!window.isOld && document.querySelector('.inspector .trouble')?.textContent.includes('lost')")


def test_a_record_is_only_ever_text(browser: Browser, server: ServerProcess) -> None:
    """CV6, SC4: markup, scripts and odd keys in data, tags, nodes and meta do nothing, on any page that shows them."""
    api = Client(server.address)
    markup = "<img src=x onerror=window.pwned=1>"
    api.create("evil")
    api.write_records("evil", *({"data": one, "tag": markup, "node": markup, "meta": {markup: markup}} for one in EVIL))
    ok(api.put("/v0/topics/jobs", {"type": "queue", "dead_letter": "evil"}), 201)
    api.write("jobs", 1)
    ok(api.post("/v0/topics/jobs/claim", {"node": markup, "lease_ms": 3_600_000}))
    page = console(browser, server, "topics/evil?tab=records")
    page.until(f"document.querySelectorAll('.seq').length === {len(EVIL)}")
    for seq in range(1, len(EVIL) + 1):
        go(page, f"topics/evil?tab=records&seq={seq}")
        page.until(f"document.querySelector('.inspector h2')?.textContent === 'Record {seq}'")
        page.until("document.querySelector('.inspector .tree')")
    go(page, "topics/jobs?tab=queue")
    page.until(f"document.body.textContent.includes({json.dumps(markup)})")
    assert page.run("window.pwned") is None and page.run("({}).polluted") is None
    assert page.run("document.querySelectorAll('main img, main script, main svg[onload]').length") == 0
    check_quiet(page)


def test_a_change_of_config_is_tried_before_it_is_saved(browser: Browser, server: ServerProcess) -> None:
    """DR1, WN1: what would go, and what may not be meant, is shown; nothing has changed until then."""
    api = Client(server.address)
    fill(api)
    page = console(browser, server, "topics/clicks?tab=config")
    type_into(page, "#config-cap_records", "1")
    page.until("document.querySelector('.difference .lost-note')?.textContent.includes('49 records')")
    assert "cap_records" in seen(page, ".difference .warning")
    assert api.state("clicks")["config"]["cap_records"] == 50
    type_into(page, "#config-cap_records", "60")
    page.until("document.querySelector('.difference .safe')")
    click(page, "Save")
    page.until("!document.querySelector('.difference')")
    assert api.state("clicks")["config"]["cap_records"] == 60
    check_quiet(page)


def test_to_delete_a_topic_takes_its_name(browser: Browser, server: ServerProcess) -> None:
    """TP11"""
    api = Client(server.address)
    fill(api)
    page = console(browser, server, "topics/clicks")
    click(page, "Delete")
    assert "50 records" in seen(page, "dialog")
    type_into(page, "dialog input", "click")
    assert page.run("document.querySelector('dialog .danger').disabled")
    type_into(page, "dialog input", "clicks")
    click(page, "Delete topic")
    page.until("location.hash.startsWith('#/topics') && !document.querySelector('dialog')")
    assert api.get("/v0/topics/clicks").status == 404


# --- queues


def test_a_queue_is_paused_resumed_and_its_lease_taken_back(browser: Browser, server: ServerProcess) -> None:
    """QU12, QU23"""
    api = Client(server.address)
    fill(api)
    page = console(browser, server, "topics/mails?tab=queue")
    click(page, "Pause")
    page.until("[...document.querySelectorAll('.badge.warn')].some((one) => one.textContent === 'paused')")
    assert api.state("mails")["paused"] is True
    click(page, "Resume")
    page.until("!document.querySelector('.badge.warn')")
    page.until("document.querySelectorAll('td .meter').length === 2")
    click(page, "Take back")
    page.until("document.querySelectorAll('td .meter').length === 1")
    assert api.state("mails")["queue"]["ready"] == 4


def test_dead_letters_are_counted_and_redriven(browser: Browser, server: ServerProcess) -> None:
    """QU24, DR1"""
    api = Client(server.address)
    fill(api)
    for _ in range(2):  # one delivery, and the next claim makes a letter of it
        for job in ok(api.post("/v0/topics/mails/claim", {"node": "w", "max": 9, "lease_ms": 60_000}))["claimed"]:
            ok(api.post("/v0/topics/mails/nack", {"node": "w", "seqs": [job["$seq"]]}))
    assert api.state("mails")["queue"]["dead_lettered"] == 3
    page = console(browser, server, "topics/mails?tab=queue")
    click(page, "Redrive all")
    assert "3 dead letters would become jobs again" in seen(page, "dialog")
    click(page, "Redrive")
    page.until("!document.querySelector('dialog')")
    assert api.state("mails")["queue"]["ready"] == 3 and api.state("failed")["count"] == 0


# --- many topics


def test_the_list_is_virtual_searched_and_kept_in_the_url(browser: Browser, server: ServerProcess) -> None:
    """CV15, TP10: as many rows as the window shows, further pages as they are scrolled to."""
    api = Client(server.address)
    for n in range(1200):
        api.create(f"area-{n % 7}:topic-{n:04}")
    page = console(browser, server, "topics")
    page.until("document.querySelectorAll('.rows .topic-row').length > 10")
    assert page.run("document.querySelectorAll('.rows .topic-row').length") < 60
    page.until("(scrollTo(0, document.body.scrollHeight), document.body.textContent.includes('1,200 topics'))")
    page.until("document.body.textContent.includes('area-6:topic-1196')")
    assert page.run("document.querySelectorAll('.rows .topic-row').length") < 60
    type_into(page, "input[type=search]", "topic-0777")
    page.until("document.querySelectorAll('.rows .topic-row').length === 1")
    assert page.run("location.hash") == "#/topics?q=topic-0777"
    page.run("window.isOld = true; location.reload()")
    page.until("!window.isOld && document.querySelector('.cover')?.textContent === 'area-0:topic-0777'")
    page.until("document.querySelector('input[type=search]')?.value === 'topic-0777'")
    ok(api.put("/v0/topics/area-0:topic-0777-jobs", {"type": "queue", "durability": "fsync"}), 201)
    page.until("document.querySelectorAll('.rows .topic-row').length === 2")
    click(page, "Queues")
    page.until("document.querySelector('.rows .topic-row:only-child .cover')?.textContent.endsWith('-jobs')")
    click(page, "disk")
    page.until("document.body.textContent.includes('No topic is like that')")
    assert page.run("location.hash") == "#/topics?q=topic-0777&type=queue&class=disk"
    assert page.run("[...document.querySelectorAll('.chips [aria-pressed=true]')].map((one) => one.textContent)") == [
        "List",
        "Queues",
        "disk",
    ]
    check_quiet(page)


# --- keys


def test_the_key_is_asked_for_and_stays_in_the_tab(browser: Browser, tmp_path: Path) -> None:
    """AU2, AU20: it is sent as a header, and is in no URL."""
    with ServerProcess(tmp_path, {"TOPICS_API_KEYS": "s3cret,other:read:acme"}) as server:
        Client(server.address, "s3cret").write("acme-orders", 1)
        page = browser.open("http://{}:{}/".format(*server.address) + "console")
        page.until("document.querySelector('.gate [role=status]')?.textContent.includes('needs a key')")
        type_into(page, "input[type=password]", "wrong")
        click(page, "Open the console")
        page.until("document.querySelector('.gate [role=status]')?.textContent.includes('not known')")
        type_into(page, "input[type=password]", "s3cret")
        click(page, "Open the console")
        page.until("document.querySelector('.side')")
        go(page, "topics/acme-orders?tab=records")
        page.until("document.querySelector('.seq')")
        used = page.run("performance.getEntriesByType('resource').map((one) => one.name).join() + location.href")
        assert "s3cret" not in used and "s3cret" not in page.run("JSON.stringify(localStorage)")
        click(page, "Forget the key")
        page.until("document.querySelector('.gate')")
        assert page.run("sessionStorage.length") == 0


SHOWN = {
    "read": {"pages": ["overview", "topics", "routers", "server"], "buttons": []},
    "read+write": {"pages": ["overview", "topics", "routers", "server"], "buttons": ["Write"]},
    "read+delete": {"pages": ["overview", "topics", "routers", "server"], "buttons": ["Delete"]},
    "read+admin": {"pages": ["overview", "topics", "routers", "live", "server"], "buttons": []},
    "write": {"pages": [], "buttons": []},
}


@pytest.mark.parametrize("scopes", SHOWN)
def test_what_a_key_may_not_do_is_not_shown(browser: Browser, tmp_path: Path, scopes: str) -> None:
    """AU6, AU20"""
    with ServerProcess(tmp_path, {"TOPICS_API_KEYS": f"root,some:{scopes}"}) as server:
        fill(Client(server.address, "root"))
        page = console(browser, server)
        type_into(page, "input[type=password]", "some")
        click(page, "Open the console")
        page.until("document.querySelector('.side')")
        links = page.run("[...document.querySelectorAll('.side a.item')].map((one) => one.hash.slice(2))")
        assert links == SHOWN[scopes]["pages"]
        go(page, "topics/clicks")
        if "read" not in scopes:
            assert "may not read" in seen(page, ".empty")
            return
        page.until("document.querySelector('.timeline .band')")
        shown = page.run("[...document.querySelectorAll('main button')].map((one) => one.textContent.trim())")
        for name in ("Write", "Delete"):
            assert (name in shown) == (name in SHOWN[scopes]["buttons"])
        go(page, "topics/clicks?tab=config")
        page.until("document.querySelector('#config-cap_records')")
        assert page.run("document.querySelector('#config-cap_records').disabled") == ("admin" not in scopes)
        assert [one for one in page.complaints if "401" not in one and "/v0/stats" not in one] == []


def test_a_key_with_prefixes_sees_its_own_topics_only(browser: Browser, tmp_path: Path) -> None:
    """AU8, AU9, AU14"""
    with ServerProcess(tmp_path, {"TOPICS_API_KEYS": "root,some::acme"}) as server:
        api = Client(server.address, "root")
        api.write("acme-orders", 1)
        api.write("other", 1)
        page = console(browser, server)
        type_into(page, "input[type=password]", "some")
        click(page, "Open the console")
        for place in ("overview", "topics", "routers", "server"):
            page.until("document.querySelector('.side')")
            go(page, place)
            page.until(f"document.querySelector('.side [aria-current]')?.hash === '#/{place}'")
            page.until("document.querySelector('main h1')")
            assert "other" not in page.run("document.querySelector('main').textContent").replace("another", "")
        assert "live" not in page.run("[...document.querySelectorAll('.side a.item')].map((one) => one.hash.slice(2))")
        go(page, "topics/other")
        page.until("document.querySelector('.empty')?.textContent.includes('may not look here')")


# --- everywhere


def test_the_palette_finds_a_topic_and_an_act_is_shown_as_code(browser: Browser, server: ServerProcess) -> None:
    """CV1"""
    fill(Client(server.address))
    page = console(browser, server, "topics")
    page.until("document.querySelector('.rows .topic-row')")
    page.run("dispatchEvent(new KeyboardEvent('keydown', { key: 'k', ctrlKey: true }))")
    type_into(page, ".find", "arch")
    page.until("document.querySelector('.palette li')?.textContent.trim() === 'archive'")
    page.run(
        "document.querySelector('.find').dispatchEvent(new KeyboardEvent('keydown', { key: 'Enter', bubbles: true }))"
    )
    page.until("document.querySelector('main h1')?.textContent === 'archive'")
    type_into(page, ".publish textarea", '"it\'s"')
    click(page, "Write")
    click(page, "As code")
    text = seen(page, "dialog .command pre")
    assert text.startswith("curl --json '{\"records\":[{\"data\":\"it'\\''s\"}]}' 'http://")
    check_quiet(page)


def test_a_flood_of_records_leaves_the_page_fluent(browser: Browser, server: ServerProcess) -> None:
    """SS19: rows are bounded and drawn a few times a second, however many records arrive."""
    api = Client(server.address)
    api.create("flood")
    page = console(browser, server, "topics/flood?tab=records")
    page.until("document.querySelector('.live-state.open')")
    for batch in range(50):
        api.write_records("flood", *({"data": {"n": batch * 1000 + n}} for n in range(1000)))
    page.until("document.querySelector('.seq')?.textContent === '50,000'")
    assert page.run("document.querySelectorAll('.record-table tr').length") <= 201
    assert page.measure()["TaskDuration"] < 20, "seconds of the processor"
    check_quiet(page)
