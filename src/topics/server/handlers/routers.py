"""Routers: create and configure, show, list, delete (RT).

A key may name a router only if it may name the router, its source and its dest, as they are now (AU9, AU15). What it
may not name is not named to it (AU16).
"""

from functools import partial

from msgspec import UNSET

from topics.engine.answers import RouterState
from topics.errors import Forbidden, InvalidRequest, RouterCycle
from topics.model import is_router_name
from topics.server.auth import Key
from topics.server.call import Call
from topics.server.wire.queries import encode_cursor
from topics.server.wire.replies import RouterGone, router_put, router_shown
from topics.server.wire.requests import router_in
from topics.server.wire.seen.surveys import RouterList, router_listed


async def put_router(call: Call) -> None:
    if not is_router_name(call.name):
        raise InvalidRequest(
            f'"{call.name}" is not a valid router name: 1 to 255 of A-Z a-z 0-9 . _ : > -, the first a letter or digit'
        )
    given, match = router_in(call.request.body)
    call.key.check_names((given.source, given.dest))
    try:
        created, state = await call.app.engine.put_router(
            call.name,
            given.source,
            given.dest,
            preserve_node=given.preserve_node,
            preserve_tag=given.preserve_tag,
            create_dest=given.create_dest,
            match=match,
            allow_cycle=given.allow_cycle,
            guarantee=given.guarantee,
            may_replace=partial(_check_ends, call.key),
        )
    except RouterCycle as cycle:
        named = [name for name in cycle.detail["cycle"] if call.key.may_name(name)]  # AU14
        raise RouterCycle(cycle.message, cycle=named) from None
    call.answer(201 if created else 200, router_put(state, created, call.performance()))


async def show_router(call: Call) -> None:
    _check_names(call)
    state = await call.app.engine.router(call.name)
    _check_ends(call.key, state.source, state.dest)  # another one may have come meanwhile
    call.answer(200, router_shown(state, call.performance()))


async def list_routers(call: Call) -> None:
    parameters, key = call.parameters, call.key
    prefix, source, dest = parameters.text("prefix") or "", parameters.text("source"), parameters.text("dest")
    has_details = parameters.flag("detail", False)

    def is_wanted(router: RouterState) -> bool:
        return (
            router.router.startswith(prefix)
            and source in (None, router.source)
            and dest in (None, router.dest)
            and may_see(key, router)
        )

    states, has_more = await call.app.engine.routing.list_after(parameters.cursor(), parameters.page_size(), is_wanted)
    cursor = encode_cursor(states[-1].router) if has_more else UNSET
    listed = [router_listed(one, has_details) for one in states]
    call.answer(200, RouterList(routers=listed, next_cursor=cursor, performance=call.performance()))


async def delete_router(call: Call) -> None:
    _check_names(call)
    deleted = await call.app.engine.delete_router(call.name)
    call.answer(200, RouterGone(call.name, deleted, call.performance()))


def may_see(key: Key, router: RouterState) -> bool:
    return all(map(key.may_name, (router.router, router.source, router.dest)))


def _check_names(call: Call) -> None:
    """Refuse a router if the key may not name its source or dest."""
    ends = call.app.engine.router_ends(call.name)
    if ends is not None:
        _check_ends(call.key, *ends)


def _check_ends(key: Key, source: str, dest: str) -> None:
    if not (key.may_name(source) and key.may_name(dest)):
        raise Forbidden("this key may not name the source or the dest of this router")
