"""Pages in a real browser: EventSource and WebSocket, from another origin, across a kill -9 of the server."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.api.clients.events import open_stream
from tests.api.clients.transcript import Client, ok
from tests.live.browser import Browser, BrowserError, Page, Pages
from topics.testing.server import ServerProcess

PAGES = Path(__file__).with_name("pages")
ODD = ["\u2028 \u2029 \r\n 😀 \x00", {"a": [1.5, None, {"ü": "data: x\n\nid: y"}]}, "x" * 200_000, False, None]
RING_CAP = 5


@pytest.fixture(scope="module")
def pages() -> Iterator[Pages]:
    with Pages(PAGES) as pages:
        yield pages


@pytest.fixture
def server(tmp_path: Path, pages: Pages) -> Iterator[ServerProcess]:
    with ServerProcess(tmp_path, {"TOPICS_CORS_ORIGINS": pages.origin}) as server:
        server.environ["TOPICS_PORT"] = str(server.address[1])  # a later start binds the same one
        yield server


@pytest.fixture
def api(server: ServerProcess) -> Client:
    """With `plain`, and `ring`, which keeps few records."""
    api = Client(server.address)
    ok(api.put("/v0/topics/plain", {"durability": "disk"}), 201)
    ok(api.put("/v0/topics/ring", {"durability": "disk", "cap_records": RING_CAP}), 201)
    return api


def url(server: ServerProcess, scheme: str = "http") -> str:
    return "{}://{}:{}".format(scheme, *server.address)


def write(api: Client, topic: str, data: list[Any]) -> int:
    """Write a batch; its last seq."""
    reply = api.post(f"/v0/topics/{topic}", {"records": [{"data": one} for one in data]})
    last: int = ok(reply, reply.status if reply.status == 201 else 200)["last_seq"]
    return last


def start(server: ServerProcess, browser: Browser) -> None:
    """No page meets a server that is not ready (HM2): an EventSource gives up at a 503."""
    with browser.held():
        server.start()


def restart(server: ServerProcess, browser: Browser) -> None:
    server.kill()
    start(server, browser)


def of(frames: list[dict[str, Any]], topic: str, *kinds: str) -> list[dict[str, Any]]:
    return [frame for frame in frames if frame.get("topic") == topic and frame["kind"] in kinds]


def told(frames: list[dict[str, Any]], topic: str) -> tuple[dict[int, Any], list[tuple[int, int, str]]]:
    """What a page was told of a topic: data by seq, and what was lost. Each seq must be told once, in order."""
    data: dict[int, Any] = {}
    lost: list[tuple[int, int, str]] = []
    cursor = 0
    for frame in of(frames, topic, "record", "tombstone"):
        if frame["kind"] == "tombstone":
            assert frame["gap_from"] == cursor + 1, (cursor, frame)
            lost.append((frame["gap_from"], frame["gap_to"], frame["reason"]))
            cursor = frame["gap_to"]
        else:
            seqs = [record["$seq"] for record in frame["records"]]
            assert frame["from_seq"] == cursor, (cursor, frame)
            assert seqs == list(range(cursor + 1, frame["to_seq"] + 1)), (cursor, seqs)
            data |= {record["$seq"]: record["data"] for record in frame["records"]}
            cursor = frame["to_seq"]
    return data, lost


def write_history(api: Client, page: Page) -> None:
    """What both pages live through before the server is killed: `page` follows both topics by now."""
    page.call("untilSeq", "plain", len(ODD))
    page.call("untilSeq", "ring", 8)
    for number in range(20):
        write(api, "plain", [number])
    page.call("untilSeq", "plain", len(ODD) + 20)
    write(api, "ring", [f"later {number}" for number in range(12)])  # more than it keeps: seven are never seen
    page.call("untilSeq", "ring", 20)


def check_history(frames: list[dict[str, Any]], too_old: str, after: list[Any]) -> None:
    """Everything once, in order, unchanged, the losses announced; `after` is what came behind the restart."""
    data, lost = told(frames, "plain")
    assert (list(data.values()), lost) == ([*ODD, *range(20), *after], [])
    data, lost = told(frames, "ring")
    assert lost == [(1, 3, too_old), (9, 15, "cap")]
    first = [f"first {number}" for number in range(3, 8)]
    assert list(data.values()) == [*first, *(f"later {number}" for number in range(7, 12)), *after]


def survive(server: ServerProcess, api: Client, browser: Browser, page: Page) -> list[dict[str, Any]]:
    """Kill the server under a page that has seen the history, and start it again. The page goes on by itself.

    `ring` keeps less than is written behind the restart, so a part of that is lost to everybody.
    """
    page.call("untilCount", "caught-up", 2)
    server.kill()
    page.call("untilCount", "reconnecting", 2)  # it was cut off, and then nobody was there
    start(server, browser)
    write(api, "plain", ["back"])
    write(api, "ring", [f"back {number}" for number in range(12)])
    page.call("untilSeq", "plain", len(ODD) + 21)
    page.call("untilSeq", "ring", 32)
    page.call("untilCount", "caught-up", 4)
    write(api, "plain", ["the end"])
    frames: list[dict[str, Any]] = page.call("untilSeq", "plain", len(ODD) + 22)
    data, lost = told(frames, "plain")
    assert (list(data.values()), lost) == ([*ODD, *range(20), "back", "the end"], [])
    data, lost = told(frames, "ring")
    assert [gap[:2] for gap in lost] == [(1, 3), (9, 15), (21, 27)], "told as their events"
    assert lost[2][2] in ("cap", "from_seq_too_old"), "whether it had reconnected by then"
    back = [f"back {number}" for number in range(7, 12)]
    later = [f"later {number}" for number in range(7, 12)]
    assert list(data.values()) == [*(f"first {number}" for number in range(3, 8)), *later, *back]
    return frames


def test_a_session_goes_on_across_a_kill(server: ServerProcess, api: Client, browser: Browser, pages: Pages) -> None:
    """SS27, SS29, SS1, SS8, SS9, SS10, SS14, SS15, CV26, TM13, G1: the last id makes the session anew."""
    write(api, "plain", ODD)
    write(api, "ring", [f"first {number}" for number in range(8)])
    page = browser.open(f"{pages.origin}/eventsource.html")
    page.call("follow", url(server), {"plain": {}, "ring": {"from_seq": 0}})
    write_history(api, page)
    kinds = [frame["kind"] for frame in survive(server, api, browser, page)]
    assert (kinds.count("session"), kinds.count("gone")) == (1, 0)
    assert kinds.count("caught-up") == 4, "once per topic and connection; no live push left anything behind"


@pytest.mark.parametrize("path", ["/v0/events?topics=plain,ring", "/v0/events?topics=plain,ring&from_seq=0&tail=false"])
def test_a_stream_without_a_session_goes_on_across_a_kill(
    server: ServerProcess, api: Client, browser: Browser, pages: Pages, path: str
) -> None:
    """SS28, SS29, SS30, G1: one line in a page, and nothing to renew."""
    write(api, "plain", ODD)
    write(api, "ring", [f"first {number}" for number in range(8)])
    page = browser.open(f"{pages.origin}/eventsource.html")
    page.run(f"void listen({json.dumps(url(server) + path)})")
    write_history(api, page)
    kinds = [frame["kind"] for frame in survive(server, api, browser, page)]
    assert (kinds.count("session"), kinds.count("gone")) == (0, 0)


@pytest.mark.parametrize("kind", ["watch", "events"])
def test_with_keys_a_page_renews_its_ticket_and_goes_on(
    tmp_path: Path, browser: Browser, pages: Pages, kind: str
) -> None:
    """AU18, SS27, SS28, G1: EventSource gives up when its ticket is used up; a new one has the last id as `cursor`."""
    environ = {"TOPICS_CORS_ORIGINS": pages.origin, "TOPICS_API_KEYS": "root,feed:read:feed."}
    with ServerProcess(tmp_path, environ) as server:
        server.environ["TOPICS_PORT"] = str(server.address[1])
        api = Client(server.address, "root")
        write(api, "feed.t", [1, 2])
        path = "/v0/topics/feed.t/events"
        if kind == "watch":
            path = ok(api.with_key("feed").post("/v0/watch", {"topics": {"feed.t": {}}}))["stream_url"]
        page = browser.open(f"{pages.origin}/eventsource.html")
        page.run(f"void listenWithKey({json.dumps(url(server))}, {json.dumps(path)}, 'feed')")
        page.call("untilSeq", "feed.t", 2)
        page.call("untilCount", "caught-up", 1)
        restart(server, browser)
        write(api, "feed.t", [3])
        page.call("untilSeq", "feed.t", 3)
        write(api, "feed.t", [4])
        frames = page.call("untilSeq", "feed.t", 4)
    assert told(frames, "feed.t") == ({1: 1, 2: 2, 3: 3, 4: 4}, [])
    assert [frame["kind"] for frame in frames].count("gone") >= 1


def test_the_page_of_the_api_searches_without_asking_anybody(server: ServerProcess, browser: Browser) -> None:
    """CV1: the one script runs under the policy, and the page has no error."""
    page = browser.open(f"{url(server)}/docs")
    shown = "[...document.querySelectorAll('details:not([hidden])')].map((one) => one.id)"
    assert "append" in page.run(shown) and "open_topic_events" in page.run(shown)
    page.run("search.value = 'GET Follow'; search.dispatchEvent(new Event('input'))")
    assert page.run(shown) == ["open_topic_events", "open_events"]
    assert page.run("performance.getEntriesByType('resource').map((one) => one.name)") == []


def test_event_source_reconnects_by_itself_and_says_what_it_has(
    server: ServerProcess, api: Client, browser: Browser, pages: Pages
) -> None:
    """SS8, SS13, SS15, SS22, SS25: another client took the session, and records; the page's id takes both back."""
    write(api, "plain", [1, 2])
    page = browser.open(f"{pages.origin}/eventsource.html")
    page.call("follow", url(server), {"plain": {}})
    frames = page.call("untilSeq", "plain", 2)
    page.call("untilCount", "caught-up", 1)
    session = next(frame["stream_url"] for frame in frames if frame["kind"] == "session")
    with open_stream(api, session) as other:
        other.expect("caught-up")
        write(api, "plain", [3, 4])
        assert other.records(2) == [3, 4]
        frames = page.call("untilSeq", "plain", 4)
        assert other.expect("error").data["code"] == 409
        other.expect_end()
    assert told(frames, "plain") == ({1: 1, 2: 2, 3: 3, 4: 4}, [])
    kinds = [frame["kind"] for frame in frames]
    assert (kinds.count("session"), kinds.count("gone")) == (1, 0)
    assert [frame["code"] for frame in frames if frame["kind"] == "told"] == [409]
    assert kinds.index("told") < kinds.index("reconnecting"), "an error frame is not a failure of the connection"


def test_event_source_resumes_a_session_of_very_many_topics(
    server: ServerProcess, api: Client, browser: Browser, pages: Pages
) -> None:
    """SS14, SS15: its id is several kilobytes, and goes through a browser's header and a body all the same."""
    names = [f"topic-{number:03}" for number in range(256)]
    for name in names:
        write(api, name, [name])
    page = browser.open(f"{pages.origin}/eventsource.html")
    page.call("follow", url(server), {name: {} for name in names})
    page.call("untilCount", "caught-up", len(names))
    restart(server, browser)
    for name in names:
        write(api, name, ["later"])
    frames = page.call("untilCount", "record", 2 * len(names))
    assert all(told(frames, name) == ({1: name, 2: "later"}, []) for name in names)


def test_a_page_with_a_web_socket_gets_everything_once_across_a_kill(
    server: ServerProcess, api: Client, browser: Browser, pages: Pages
) -> None:
    """WS2, WS3, WS5, WS6, G1: it subscribes again behind its last seq; and it writes, too."""
    write(api, "plain", ODD)
    write(api, "ring", [f"first {number}" for number in range(8)])
    page = browser.open(f"{pages.origin}/websocket.html")
    page.call("follow", url(server, "ws"), ["plain", "ring"])
    write_history(api, page)
    restart(server, browser)
    for topic in ("plain", "ring"):
        write(api, topic, ["back"])
    page.call("untilCount", "subscribed", 2)
    for topic in ("plain", "ring"):
        page.call("say", {"op": "publish", "request_id": topic, "topic": topic, "records": [{"data": "from here"}]})
    page.call("untilCount", "ack", 2)
    page.call("untilSeq", "ring", 22)
    frames = page.call("untilSeq", "plain", len(ODD) + 22)
    check_history(frames, "cap", ["back", "from here"])
    assert [frame["first_seq"] for frame in frames if frame["kind"] == "ack"] == [len(ODD) + 22, 22]
    assert {frame["code"] for frame in frames if frame["kind"] == "closed"} == {1006}


def test_a_page_of_an_origin_that_is_not_allowed_gets_nothing(
    server: ServerProcess, browser: Browser, pages: Pages
) -> None:
    """CV23, A.16: CORS as a browser sees it."""
    page = browser.open(f"http://localhost:{pages.port}/eventsource.html")
    with pytest.raises(BrowserError, match="Failed to fetch"):
        page.call("follow", url(server), {"plain": {}})
    assert page.run("frames") == []
