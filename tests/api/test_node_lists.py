"""Lists of nodes: how long they may be, and that nothing of them stays."""

import gc
import json
from collections.abc import Callable
from typing import Any

import pytest

from tests.api.clients.transcript import Client, ok, refused
from tests.api.clients.websocket import open_socket
from tests.api.conftest import Start
from topics.server.live.feeds import Template, _templates
from topics.server.wire.queries import parameters_of

Ask = Callable[[Client, str, Any], str]  # gives the code of the refusal, or nothing


def by_diff(api: Client, topic: str, node: Any) -> str:
    return code(api.post(f"/v0/topics/{topic}/diff", {"node": node}).json)


def by_watch(api: Client, topic: str, node: Any) -> str:
    return code(api.post("/v0/watch", {"topics": {topic: {}}, "node": node}).json)


def by_subscribe(api: Client, topic: str, node: Any) -> str:
    with open_socket(api) as socket:
        return str(socket.ask("subscribe", topic=topic, node=node).get("code", ""))


def code(answer: dict[str, Any]) -> str:
    return str(answer.get("error", {}).get("code", ""))


@pytest.mark.parametrize("ask", [by_diff, by_watch, by_subscribe])
@pytest.mark.parametrize(
    ("node", "expected"),
    [
        ([f"n{number}" for number in range(256)], ""),
        ([f"n{number}" for number in range(257)], "invalid_request"),
        (["same"] * 257, "invalid_request"),
        ("x" * 128, ""),
        ("x" * 129, "invalid_request"),
        ("é" * 64, ""),
        ("é" * 65, "invalid_request"),
        (["a", "x" * 129], "invalid_request"),
    ],
    ids=["256", "257", "257 times one", "128 bytes", "129 bytes", "64 of two", "65 of two", "one of two"],
)
def test_a_node_list_is_bounded(api: Client, topic: str, ask: Ask, node: Any, expected: str) -> None:
    """LM8"""
    api.create(topic)
    assert ask(api, topic, node) == expected


def test_a_node_in_a_query_is_bounded(api: Client, topic: str) -> None:
    """LM8"""
    api.create(topic)
    ok(api.get(f"/v0/topics/{topic}/diff?node={'x' * 128}"))
    refused(api.get(f"/v0/topics/{topic}/diff?node={'x' * 129}"), 400, "invalid_request")


def test_a_setting_bounds_each_node(start: Start) -> None:
    """LM8"""
    api = Client(start(max_node_bytes=3).address)
    api.create("t")
    assert by_diff(api, "t", ["abc", "d"]) == ""
    assert by_diff(api, "t", ["abcd"]) == "invalid_request"


def test_nothing_made_of_a_node_list_outlives_its_socket(start: Start) -> None:
    """LM8: a cache kept the lists of all sockets there ever were."""
    server = start()
    api = Client(server.address)
    api.create("t")
    name = "a-node-that-nobody-else-has"
    with open_socket(api) as socket:
        socket.ask("subscribe", topic="t", node=[name], filter="a-tag-that-nobody-else-has")
        assert any(name in template.nodes for template in _templates.values())
    server.until(lambda: not any(name in template.nodes for template in _templates.values()))
    assert not [one for one in gc.get_objects() if isinstance(one, Template) and name in one.nodes]


def test_nothing_made_of_a_query_with_nodes_is_kept() -> None:
    """LM8"""
    for query in (b"node=a", b"filter=" + b"x" * 1000):
        assert parameters_of(query) is not parameters_of(query)
    assert parameters_of(b"return_seqs=false") is parameters_of(b"return_seqs=false")
    assert json.loads(parameters_of(b"node=%22a%22").text("node") or "") == "a"


def test_templates_are_shared_as_long_as_they_are_used() -> None:
    """LM8"""
    first = Template.of(10, 100, frozenset("ab"))
    assert Template.of(10, 100, frozenset("ba")) is first
    assert first.base is Template.of(10, 100) and first.base.base is first.base
    count = len(_templates)
    del first
    assert len(_templates) == count - 2
