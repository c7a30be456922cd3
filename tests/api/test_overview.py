"""Lists of topics with details, filters and orders (OB1)."""

import base64
import json
from typing import Any

import pytest

from tests.api.clients.transcript import Client, ok, refused
from tests.api.clients.worker import Worker, jobs
from tests.api.conftest import Start
from topics.testing.server import ServerThread

PLAIN = ["topic", "head_seq", "earliest_seq", "count", "bytes", "durable", "effective_priority"]
DETAILS = [
    *("type", "class", "written_rate", "read_rate", "oldest_ts", "newest_ts", "lost_total", "deleted_total"),
    "cursors",
    "memory_bytes",
]
ORDERS = ("-written_rate", "-bytes", "-count", "-lost_total", "-ready")


@pytest.fixture
def server(start: Start) -> ServerThread:
    return start()


@pytest.fixture
def api(server: ServerThread) -> Client:
    return Client(server.address)


def listed(api: Client, query: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = ok(api.get(f"/v0/topics?{query}"))["topics"]
    return found


def detail(api: Client, topic: str) -> dict[str, Any]:
    [found] = listed(api, f"detail=true&prefix={topic}")
    return found


def pages(api: Client, query: str) -> list[list[str]]:
    """The names on the pages of a walk."""
    found, cursor = list[list[str]](), ""
    while True:
        page = ok(api.get(f"/v0/topics?{query}{cursor}"))
        found.append([one["topic"] for one in page["topics"]])
        if "next_cursor" not in page:
            return found
        cursor = f"&cursor={page['next_cursor']}"


def names(api: Client, query: str) -> list[str]:
    return [name for page in pages(api, query) for name in page]


def test_details_are_shown_only_if_asked_for(api: Client) -> None:
    """OB1, CV24"""
    api.create("a")
    for query in ("", "detail=false", "detail=yes"):
        assert list(listed(api, query)[0]) == PLAIN
    for query in ("detail=true", "detail=1", "detail=true&sort=-bytes"):
        assert list(listed(api, query)[0]) == PLAIN + DETAILS
    assert list(listed(api, "sort=-bytes")[0]) == PLAIN


def test_the_details_of_a_log(server: ServerThread, api: Client) -> None:
    """OB1: rates are of the last 60 s, times those of live records."""
    api.create("a", cap_records=3, durability="memory")
    fresh = detail(api, "a")
    assert (fresh["oldest_ts"], fresh["newest_ts"], fresh["written_rate"], fresh["read_rate"]) == (None, None, 0, 0)
    assert (fresh["type"], fresh["class"], fresh["cursors"]) == ("log", "memory", {"count": 0, "max_lag": 0})
    stamps = []
    for n in range(6):
        stamps.append(server.clock.now_ms())
        api.write("a", n)
        server.advance(10)
    api.diff("a")
    api.put("/v0/topics/a/cursors/one", {"seq": 2})
    api.put("/v0/topics/a/cursors/two", {"seq": 5})
    found = detail(api, "a")
    assert (found["lost_total"], found["deleted_total"], found["count"]) == (3, 0, 3)
    assert (found["oldest_ts"], found["newest_ts"]) == (stamps[3], stamps[5])
    assert (found["written_rate"], found["read_rate"]) == (0.1, 0.05)
    assert found["cursors"] == {"count": 2, "max_lag": 4}
    assert "queue" not in found
    api.write_records("a", {"data": 1, "tag": "x"})
    api.post("/v0/topics/a/delete", {"match": "x"})
    assert (detail(api, "a")["newest_ts"], detail(api, "a")["deleted_total"]) == (stamps[5], 1)
    server.advance(61_000)
    late = detail(api, "a")
    assert (late["written_rate"], late["read_rate"]) == (0, 0)
    assert (late["oldest_ts"], late["newest_ts"]) == (stamps[4], stamps[5])
    assert api.state("a")["last_write_ts"] is not None


def test_the_details_of_a_queue(server: ServerThread, api: Client) -> None:
    """OB1: dead letters that wait; null without a dead_letter topic, 0 while there is none."""
    api.create("q", type="queue", max_deliveries=1, dead_letter="dead")
    api.create("r", type="queue")
    worker = Worker(api, "q")
    jobs(worker, 5)
    empty = {"ready": 0, "in_flight": 0, "delayed": 0, "dead": None, "paused": False}
    assert detail(api, "r")["queue"] == empty
    assert detail(api, "q")["queue"] == {**empty, "ready": 5, "dead": 0}
    worker.seqs(2)
    worker.nack(1)
    worker.seqs(1)
    api.post("/v0/topics/q/pause")
    api.write_records("q", {"data": 1, "delay_ms": 1000})
    found = detail(api, "q")["queue"]
    assert found == {"ready": 2, "in_flight": 2, "delayed": 1, "dead": 1, "paused": True}
    assert detail(api, "q")["deleted_total"] == 1
    server.advance(1000)
    assert detail(api, "q")["queue"]["delayed"] == 0


def test_filters_say_which_topics_are_listed(api: Client) -> None:
    """OB1"""
    api.create("acme:jobs", type="queue", durability="memory")
    api.create("acme:log", durability="memory")
    api.create("zeta:jobs", type="queue")
    api.create("zeta:log", durability="fsync")
    for query, expected in (
        ("contains=jobs", ["acme:jobs", "zeta:jobs"]),
        ("contains=JOBS", []),
        ("contains=%3A", ["acme:jobs", "acme:log", "zeta:jobs", "zeta:log"]),
        ("type=queue", ["acme:jobs", "zeta:jobs"]),
        ("type=log", ["acme:log", "zeta:log"]),
        ("class=memory", ["acme:jobs", "acme:log"]),
        ("class=memory&type=queue&contains=e%3Aj", ["acme:jobs"]),
        ("prefix=zeta&type=queue", ["zeta:jobs"]),
        ("prefix=zeta&contains=acme", []),
        ("contains=&type=&class=", ["acme:jobs", "acme:log", "zeta:jobs", "zeta:log"]),
    ):
        for more in ("", "&detail=true", "&sort=-bytes", "&sort=name", "&page_size=1", "&sort=-count&page_size=1"):
            assert names(api, query + more) == expected, query + more


@pytest.mark.parametrize("query", ["sort=bytes", "sort=", "sort=-name", "sort=-activity", "type=stream", "class=ram"])
def test_what_cannot_be_sorted_or_filtered_by_is_refused(api: Client, query: str) -> None:
    """OB1: the message names the value and what there is to choose from."""
    for more in ("", "&detail=true"):
        assert "use one of" in refused(api.get(f"/v0/topics?{query}{more}"), 400, "invalid_request", None)


def test_orders_put_the_largest_first_and_equals_by_name(server: ServerThread, api: Client) -> None:
    """OB1"""
    for number, name in enumerate("cab", 1):
        api.create(name, cap_records=4)
        for _ in range(number):
            api.write(name, "x" * (40 - 10 * number))
    api.write("b", 1, 1, 1)
    for name, count in (("q2", 2), ("q1", 2), ("q3", 3)):
        api.create(name, type="queue")
        jobs(Worker(api, name), count)
    Worker(api, "q3").seqs(2)
    assert names(api, "sort=-count") == ["b", "q3", "a", "q1", "q2", "c"]
    assert names(api, "sort=-written_rate") == ["b", "q3", "a", "q1", "q2", "c"]
    assert names(api, "sort=-lost_total") == ["b", "a", "c", "q1", "q2", "q3"]
    assert names(api, "sort=-ready") == ["q1", "q2", "q3", "a", "b", "c"]
    sizes = [one["bytes"] for one in listed(api, "sort=-bytes")]
    assert sizes == sorted(sizes, reverse=True)
    assert names(api, "sort=name") == names(api, "") == ["a", "b", "c", "q1", "q2", "q3"]


@pytest.mark.parametrize("order", ORDERS)
def test_no_name_comes_twice_on_one_walk(server: ServerThread, api: Client, order: str) -> None:
    """OB1: whatever happens to the topics between two pages."""
    made = [f"t{n}" for n in range(9)]
    for number, name in enumerate(made):
        api.create(name, type="queue")
        api.write(name, *range(number + 1))
    found, cursor = list[str](), ""
    for turn in range(9):
        page = ok(api.get(f"/v0/topics?sort={order}&page_size=1{cursor}"))
        found += [one["topic"] for one in page["topics"]]
        for name in (found[0], made[turn], "new"):  # what was shown rises, what was not falls, one comes
            api.write(name, *range(50))
        if turn == 3:
            gone = next(name for name in made if name not in found)
            api.delete(f"/v0/topics/{gone}")
        server.advance(20_000)
        if "next_cursor" not in page:
            break
        cursor = f"&cursor={page['next_cursor']}"
    assert len(set(found)) == len(found) == 8
    assert set(found) == set(made) - {gone}
    first = ok(api.get(f"/v0/topics?sort={order}&page_size=2"))
    again = [ok(api.get(f"/v0/topics?sort={order}&page_size=2&cursor={first['next_cursor']}")) for _ in range(2)]
    assert [one["topic"] for one in again[0]["topics"]] == [one["topic"] for one in again[1]["topics"]]


def test_walks_are_bounded_in_age_and_number(server: ServerThread, api: Client) -> None:
    """OB1: a walk that is over is refused, and says what to do; it never goes on with names that were shown."""
    for name in "abc":
        api.create(name)

    def begin(query: str = "") -> str:
        cursor: str = ok(api.get(f"/v0/topics?sort=-bytes&page_size=1{query}"))["next_cursor"]
        return cursor

    first = begin()
    assert begin() == first, "those who ask for the same at the same moment share one"
    for _ in range(16):
        server.advance(2000)
        begin()
    assert "ask again" in refused(
        api.get(f"/v0/topics?sort=-bytes&page_size=1&cursor={first}"), 400, "invalid_request", None
    )
    fresh = begin()
    for _ in range(3):
        server.advance(200_000)
        ok(api.get(f"/v0/topics?sort=-bytes&page_size=1&cursor={fresh}"))
    server.advance(301_000)
    refused(api.get(f"/v0/topics?sort=-bytes&page_size=1&cursor={fresh}"), 400, "invalid_request", None)


def b64(value: Any) -> str:
    return base64.urlsafe_b64encode(json.dumps(value).encode()).decode().rstrip("=")


@pytest.mark.parametrize(
    "cursor",
    [
        *("!", "YWJj", b64({"after": "a"}), b64({"walk": "x:1"}), b64({"after": "a", "walk": 1})),
        *(b64({"after": "a", "walk": f"x:{place}"}) for place in ("", "-1", "1.0", "9" * 40, "٣")),
        *(b64({"after": "a", "walk": walk}) for walk in ("x:0", ":0", "0", None, ["x:0"])),
    ],
)
def test_a_cursor_that_is_of_no_walk_is_refused(api: Client, cursor: str) -> None:
    """OB1, CV15"""
    refused(api.get(f"/v0/topics?sort=-bytes&cursor={cursor}"), 400, "invalid_request", None)


def test_a_cursor_of_a_walk_is_also_one_by_name(api: Client) -> None:
    """CV15: it holds the last name, so the list by name goes on behind it."""
    for name in "abc":
        api.create(name)
    cursor = ok(api.get("/v0/topics?sort=-bytes&page_size=1"))["next_cursor"]
    assert names(api, f"cursor={cursor}") == ["b", "c"]


def test_a_key_sees_only_what_it_may_name(start: Start) -> None:
    """OB1, AU9, AU14: also on a walk that another key began, and of a dead_letter that it may not name."""
    server = start(api_keys="root,a:read:acme")
    root = Client(server.address, "root")
    acme = root.with_key("a")
    for name in ("acme1", "acme2", "other"):
        root.create(name, type="queue", dead_letter="other-dead")
    root.write("other-dead", 1)
    for query in ("detail=true", "sort=-bytes", "sort=-ready&detail=true&page_size=1", "contains=e"):
        assert names(acme, query) == ["acme1", "acme2"]
    assert listed(acme, "detail=true")[0]["queue"]["dead"] is None
    assert listed(root, "detail=true")[0]["queue"]["dead"] == 1
    cursor = ok(root.get("/v0/topics?sort=-bytes&page_size=1"))["next_cursor"]
    seen = [one["topic"] for one in listed(acme, f"sort=-bytes&cursor={cursor}")]
    assert set(seen) <= {"acme1", "acme2"}


def test_a_list_counts_as_a_read_only_if_asked_to(api: Client) -> None:
    """OB1, PR2, TP10"""
    api.create("a")
    for query in ("detail=true", "sort=-bytes&detail=true", "sort=-bytes"):
        ok(api.get(f"/v0/topics?{query}"))
        assert api.get("/v0/topics/a?touch=false").json["last_read_ts"] is None
    for query in ("detail=true", "sort=-bytes"):
        ok(api.get(f"/v0/topics?{query}&touch=true"))
        assert api.get("/v0/topics/a?touch=false").json["last_read_ts"] is not None


@pytest.mark.parametrize(
    "query", ["", "detail=true&", "sort=-count&", "contains=1&", "detail=true&contains=1&type=log&"]
)
def test_a_list_is_entered_anywhere(api: Client, query: str) -> None:
    """OB10: whatever the order and the filters, entries come as on a walk from the beginning."""
    for n in range(40):
        api.write(f"t{n:02}", *range(1 + n % 5))
    whole = names(api, f"{query}page_size=1000")
    for offset in (0, 1, 7, len(whole) - 1, len(whole), 99, 10**30):
        page = ok(api.get(f"/v0/topics?{query}page_size=5&offset={offset}"))
        assert [one["topic"] for one in page["topics"]] == whole[offset : offset + 5]
        assert ("next_cursor" in page) == (offset + 5 < len(whole))
    first = ok(api.get(f"/v0/topics?{query}page_size=5"))
    later = ok(api.get(f"/v0/topics?{query}page_size=5&offset=3&cursor={first['next_cursor']}"))
    assert [one["topic"] for one in later["topics"]] == whole[8:13]
    refused(api.get(f"/v0/topics?{query}offset=x"), 400, "invalid_request", None)
