"""What a key with prefixes may not name is neither changed by it nor shown to it."""

from collections.abc import Iterator
from typing import Any

import pytest

from tests.api.clients.transcript import Client, ok, refused
from topics.settings import Settings
from topics.testing.server import ServerThread

ROUTERS = [("acme:out", "acme:a", "secret.b"), ("acme:in", "secret.c", "acme:d"), ("acme:far", "secret.e", "secret.f")]


@pytest.fixture(scope="module")
def guarded() -> Iterator[ServerThread]:
    with ServerThread(Settings(api_keys="root,acme::acme:")) as server:
        yield server


@pytest.fixture
def root(guarded: ServerThread) -> Client:
    return Client(guarded.address, "root")


@pytest.fixture
def acme(guarded: ServerThread) -> Client:
    return Client(guarded.address, "acme")


# --- routers


@pytest.mark.parametrize(("router", "source", "dest"), ROUTERS)
def test_a_router_with_an_end_outside_the_prefixes_cannot_be_put_over(
    root: Client, acme: Client, router: str, source: str, dest: str
) -> None:
    """AU15"""
    root.put(f"/v0/routers/{router}", {"source": source, "dest": dest})
    root.write(source, 1)
    shown = ok(root.get(f"/v0/routers/{router}"))
    before = root.everything()
    for given in ({"source": "acme:x", "dest": "acme:y"}, {"source": "acme:x", "dest": "acme:y", "allow_cycle": True}):
        message = refused(acme.put(f"/v0/routers/{router}", given), 403, "forbidden", None)
        assert "secret" not in message
    assert ok(root.get(f"/v0/routers/{router}")) == shown
    assert root.everything() == before


def test_a_router_within_the_prefixes_can_be_put_over(acme: Client) -> None:
    """AU15"""
    assert acme.put("/v0/routers/acme:mine", {"source": "acme:m", "dest": "acme:n"}).status == 201
    assert acme.put("/v0/routers/acme:mine", {"source": "acme:m", "dest": "acme:o"}).status == 200
    assert ok(acme.get("/v0/routers/acme:mine"))["dest"] == "acme:o"


@pytest.mark.parametrize(("router", "source", "dest"), ROUTERS)
def test_a_refused_router_is_refused_without_its_ends(
    root: Client, acme: Client, router: str, source: str, dest: str
) -> None:
    """AU16, AU9"""
    root.put(f"/v0/routers/{router}", {"source": source, "dest": dest})
    for reply in (acme.get(f"/v0/routers/{router}"), acme.delete(f"/v0/routers/{router}")):
        assert "secret" not in refused(reply, 403, "forbidden", None)


# --- dead letters


@pytest.fixture
def queue(root: Client, topic: str) -> str:
    """A queue that the key may name, with a dead_letter that it may not name."""
    root.create(f"acme:{topic}", type="queue", max_deliveries=2, dead_letter="secret.dead")
    return f"acme:{topic}"


def dead_letter(client: Client, queue: str) -> Any:
    return client.state(queue)["config"]["dead_letter"]


def test_a_dead_letter_outside_the_prefixes_is_shown_as_a_star(root: Client, acme: Client, queue: str) -> None:
    """AU16"""
    assert dead_letter(acme, queue) == "*"
    assert dead_letter(root, queue) == "secret.dead"
    answers = [
        acme.get(f"/v0/topics/{queue}"),
        acme.get("/v0/topics"),
        acme.get("/v0/metrics"),
        acme.post("/v0/watch", {"topics": {queue: {}}}),
        acme.post(f"/v0/topics/{queue}", {"records": [{"data": 1}], "config": {"type": "queue"}}),
        acme.post(f"/v0/topics/{queue}/claim", {"node": "n"}),
        acme.get(f"/v0/topics/{queue}/leases"),
        acme.post(f"/v0/topics/{queue}/diff", {}),
        acme.put(f"/v0/topics/{queue}", {"max_deliveries": 2}),
        acme.put(f"/v0/topics/{queue}", {"type": "log"}),
    ]
    assert [reply.status for reply in answers] == [200] * 9 + [409]
    assert b"secret" not in b"".join(reply.body for reply in answers)


@pytest.mark.parametrize("given", [{}, {"dead_letter": "*"}])
def test_a_put_with_a_star_or_nothing_keeps_the_dead_letter(
    root: Client, acme: Client, queue: str, given: dict[str, Any]
) -> None:
    """AU16"""
    config = ok(acme.put(f"/v0/topics/{queue}", {"max_deliveries": 7} | given))["config"]
    assert (config["dead_letter"], config["max_deliveries"]) == ("*", 7)
    assert dead_letter(root, queue) == "secret.dead"


def test_what_was_shown_can_be_put_back(root: Client, acme: Client, queue: str) -> None:
    """AU16"""
    before = root.everything()
    shown = acme.state(queue)["config"]
    assert ok(acme.put(f"/v0/topics/{queue}", shown))["config"] == shown
    assert root.everything() == before
    assert dead_letter(root, queue) == "secret.dead"


@pytest.mark.parametrize("given", [None, "acme:dead"])
def test_a_dead_letter_can_be_taken_away_or_replaced(root: Client, acme: Client, queue: str, given: str | None) -> None:
    """AU16"""
    assert ok(acme.put(f"/v0/topics/{queue}", {"dead_letter": given}))["config"]["dead_letter"] == given
    assert dead_letter(root, queue) == given


def test_a_key_that_may_name_the_dead_letter_has_to_repeat_it(root: Client, queue: str) -> None:
    """AU16, TP5: a PUT replaces the whole config."""
    refused(root.put(f"/v0/topics/{queue}", {"dead_letter": "*"}), 400, "invalid_request")
    assert ok(root.put(f"/v0/topics/{queue}", {}))["config"]["dead_letter"] is None


@pytest.mark.parametrize("present", ["absent", None, "acme:dead"])
def test_a_star_that_stands_for_nothing_is_a_name_like_any_other(
    root: Client, acme: Client, topic: str, present: str | None
) -> None:
    """AU16, AU8"""
    name = f"acme:{topic}"
    if present != "absent":
        root.create(name, type="queue", dead_letter=present)
    before = root.everything()
    refused(acme.put(f"/v0/topics/{name}", {"dead_letter": "*"}), 403, "forbidden", None)
    refused(acme.put(f"/v0/topics/{name}", {"dead_letter": "secret.dead"}), 403, "forbidden", None)
    inline = {"records": [{"data": 1}], "config": {"type": "queue", "dead_letter": "*"}}
    refused(acme.post(f"/v0/topics/{name}", inline), 400, "invalid_request")
    assert root.everything() == before


def test_a_redrive_is_refused_without_the_name_of_the_dead_letter(root: Client, acme: Client, queue: str) -> None:
    """AU16"""
    assert "secret" not in refused(acme.post(f"/v0/topics/{queue}/redrive", {}), 403, "forbidden", None)
    ok(root.post(f"/v0/topics/{queue}/redrive", {}))
