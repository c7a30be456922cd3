"""Several servers as one set of topics, by both clients."""

import asyncio
import pickle
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tests.client.conftest import Blocking, Start
from topics import placement
from topics.client import AsyncFleet, Client, ClientError, Fleet, TopicOnSeveralServers
from topics.client.fleets.addresses import addresses, parse_tokens
from topics.errors import InvalidRequest, Unauthorized
from topics.testing.patience import PATIENCE_MS
from topics.testing.server import ServerThread

Gather = Callable[..., Any]
NO_WAIT = {"retries": 0, "timeout_ms": PATIENCE_MS}


@pytest.fixture(params=[Fleet, AsyncFleet])
def gather(request: pytest.FixtureRequest) -> Iterator[Gather]:
    """Makes a fleet of servers; what it gives out is awaited."""
    opened: list[Any] = []
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, name="fleet-loop")
    thread.start()

    def gathering(servers: list[ServerThread], token: str = "", **arguments: Any) -> Any:
        fleet = request.param(",".join(map(url_of, servers)), token, **arguments)
        opened.append(fleet if isinstance(fleet, Fleet) else Blocking(fleet, loop))
        return opened[-1]

    yield gathering
    for fleet in opened:
        fleet.close()
    loop.call_soon_threadsafe(loop.stop)
    thread.join()
    loop.close()


@pytest.fixture
def three(start: Start) -> list[ServerThread]:
    return [start() for _ in range(3)]


def url_of(server: ServerThread) -> str:
    return "http://{}:{}".format(*server.address)


def put(server: ServerThread, topic: str) -> None:
    with Client(url_of(server), "") as client:
        client.put_topic(topic)


def test_a_new_topic_goes_to_its_home_and_is_found_there(gather: Gather, three: list[ServerThread]) -> None:
    fleet = gather(three)
    names = [f"t{n}" for n in range(12)]
    for name in names:
        home = placement.home(name, fleet.urls)
        assert fleet.find(name) is None
        assert fleet.of(name).url == fleet.home(name).url == home
        put(next(server for server in three if url_of(server) == home), name)
        assert fleet.find(name).url == home
    assert [(listed.topic, url) for url, listed in fleet.topics()] == sorted(
        (name, placement.home(name, fleet.urls)) for name in names
    )


def test_a_topic_that_is_elsewhere_than_at_home_is_found_there(gather: Gather, three: list[ServerThread]) -> None:
    fleet = gather(three)
    away = next(server for server in three if url_of(server) != placement.home("moved", fleet.urls))
    put(away, "moved")
    assert fleet.of("moved").url == url_of(away)


def test_a_name_on_two_servers_is_an_error_that_names_both(gather: Gather, three: list[ServerThread]) -> None:
    for server in three[1:]:
        put(server, "twice")
    with pytest.raises(TopicOnSeveralServers) as caught:
        gather(three).of("twice")
    assert caught.value.servers == tuple(map(url_of, three[1:]))
    assert all(url in str(caught.value) for url in caught.value.servers)
    assert str(pickle.loads(pickle.dumps(caught.value))) == str(caught.value)
    assert [one.topic for _, one in gather(three).topics()] == ["twice", "twice"]


def test_without_a_server_topics_of_the_others_are_found_and_none_is_placed(
    gather: Gather, three: list[ServerThread]
) -> None:
    put(three[0], "here")
    fleet = gather(three, **NO_WAIT)
    three[2].close()
    assert fleet.of("here").url == url_of(three[0])
    with pytest.raises(ClientError, match=url_of(three[2])):
        fleet.of("new")


def test_a_topic_that_was_found_is_not_looked_for_again_until_it_is_forgotten(
    gather: Gather, three: list[ServerThread]
) -> None:
    put(three[0], "x")
    fleet = gather(three)
    assert fleet.of("x").url == url_of(three[0])
    put(three[1], "x")
    assert fleet.of("x").url == url_of(three[0])
    fleet.forget("x")
    with pytest.raises(TopicOnSeveralServers):
        fleet.of("x")


def test_each_server_has_its_key(gather: Gather, start: Start) -> None:
    one, other = start(api_keys="first"), start(api_keys="second")
    host, port = other.address
    fleet = gather([one, other], "first", tokens={f"{host}:{port}": "second"})
    assert fleet.find("none") is None
    with pytest.raises(Unauthorized, match=url_of(other)) as caught:
        gather([one, other], "first").find("none")
    assert "first" not in str(caught.value) + repr(fleet) + repr(fleet.home("x"))


def test_a_list_has_one_spelling_and_names_nobody_twice() -> None:
    assert addresses("HTTP://A:4000/, b:4000 ,https://c") == ("http://a:4000", "http://b:4000", "https://c:443")
    for wrong in ("", "http://a:1,", "http://a:4000,A:4000/", "ftp://a"):
        with pytest.raises(InvalidRequest):
            addresses(wrong)
    with pytest.raises(InvalidRequest, match="'http://z:1'"):
        Fleet("http://a:4000", "", tokens={"http://z:1": "k"})


def test_a_file_of_keys_is_read_line_by_line_and_no_message_shows_a_key() -> None:
    assert parse_tokens("# ours\nhttp://a:4000 one\n\nb two\n", "keys") == {"http://a:4000": "one", "b": "two"}
    for wrong in ("http://a:4000", "a secret more", "a secret\na secret"):
        with pytest.raises(InvalidRequest, match="keys, line ") as caught:
            parse_tokens(wrong, "keys")
        assert "secret" not in str(caught.value)
