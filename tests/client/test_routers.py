"""Routers through the client."""

from typing import Any

import pytest

from topics.client import Router
from topics.errors import RouterCycle, RouterNotFound, TopicNotFound
from topics.model import TagMatch


def test_a_router_is_made_shown_listed_and_deleted(client: Any, topic: str) -> None:
    """RT2, RT3, CV14"""
    source, dest = f"{topic}.a", f"{topic}.b"
    name = f"{source}->{dest}"
    made = client.put_router(name, source, dest, filter=TagMatch("Glob", "public:"), guarantee="exactly_once")
    assert isinstance(made, Router)
    assert (made.created, made.source, made.dest, made.guarantee) == (True, source, dest, "exactly_once")
    assert made.filter == ("tag", "Glob", "public:*")
    client.append(source, [{"data": 1, "tag": "public:x"}, {"data": 2, "tag": "private"}])
    assert [record.value for record in client.diff(dest).records] == [1]
    shown = client.router(name)
    assert (shown.forwarded_total, shown.preserve_node, shown.allow_cycle) == (1, True, False)
    assert (shown.lag, shown.state, shown.blocked_by) == (0, "running", None)
    assert client.put_router(name, source, dest, preserve_tag=False).created is False
    assert client.router(name).filter is None and client.router(name).preserve_tag is False
    assert [(one.router, one.forwarded_total) for one in client.routers(source=source)] == [(name, 1)]
    assert client.delete_router(name).deleted is True
    assert client.delete_router(name).deleted is False
    with pytest.raises(RouterNotFound) as caught:
        client.router(name)
    assert caught.value.detail == {"router": name}


def test_routers_are_listed_page_by_page(client: Any, topic: str) -> None:
    """RT3, CV15"""
    for n in range(5):
        client.put_router(f"{topic}.{n}", topic, f"{topic}.dest{n}")
    assert [one.router for one in client.routers(f"{topic}.", page_size=2)] == [f"{topic}.{n}" for n in range(5)]
    assert [one.router for one in client.routers(dest=f"{topic}.dest3")] == [f"{topic}.3"]
    assert client.delete_topic(topic).routers_removed == [f"{topic}.{n}" for n in range(5)]


def test_a_refused_router_says_why(client: Any, topic: str) -> None:
    """RT4, RT5, ER4"""
    a, b = f"{topic}.a", f"{topic}.b"
    with pytest.raises(TopicNotFound):
        client.put_router(f"{topic}.r", a, b, create_dest=False)
    client.put_router(f"{topic}.r", a, b)
    with pytest.raises(RouterCycle) as caught:
        client.put_router(f"{topic}.back", b, a)
    assert caught.value.detail == {"cycle": [b, a, b]}
    assert client.put_router(f"{topic}.back", b, a, allow_cycle=True).allow_cycle is True
