"""Topics: create and configure, show, list, delete (TP); their losses (LS), named cursors (NC), sums (OB6).

A key that may not name a topic's dead_letter sees `HIDDEN` instead, and by giving that back, or nothing, it leaves the
dead_letter as it is (AU16).
"""

from functools import partial
from typing import Final

from msgspec import UNSET, UnsetType
from msgspec.structs import replace

from topics.core.topic.config import ConfigIn
from topics.engine.instance import TopicFilter
from topics.model import TopicConfig
from topics.server.auth import Key
from topics.server.call import Call
from topics.server.wire.advice import advice_on_put
from topics.server.wire.queries import BY_NAME, encode_cursor, filter_in, order_in, walk_cursor, walk_in
from topics.server.wire.replies import (
    HIDDEN,
    Evicting,
    TopicGone,
    TopicPut,
    config_shown,
    topic_shown,
)
from topics.server.wire.requests import cursor_in, put_in
from topics.server.wire.seen.sights import (
    CursorGone,
    CursorList,
    LossList,
    LossShown,
    TopicDetailed,
    TopicList,
    cursor_listed,
    cursor_shown,
    topic_detailed,
    topic_plain,
)
from topics.server.wire.seen.surveys import (
    LossFeed,
    TimeList,
    TimeShown,
    Tree,
    branch_shown,
    loss_found,
    seqs_in,
    sums_shown,
)

ENDANGERED_MAX: Final = 20  # cursors that are told with the losses of all topics


async def put_topic(call: Call) -> None:
    body, key, engine = call.request.body, call.key, call.app.engine
    given = put_in(body)
    if given.dead_letter != HIDDEN:
        check_dead_letter(key, given)
    put = await engine.changes.put_topic(call.name, given, partial(_amend, key), dry_run=given.dry_run)
    answer = TopicPut(
        topic=call.name,
        created=put.created,
        config=config_shown(put.config, key.may_name),
        warnings=advice_on_put(body, given, put.config) or UNSET,
        dry_run=True if given.dry_run else UNSET,
        would_evict=Evicting(put.evicted_records, put.evicted_bytes) if given.dry_run else UNSET,
        performance=call.performance(),
    )
    call.answer(201 if put.created and not given.dry_run else 200, answer)


def _amend(key: Key, given: ConfigIn, present: TopicConfig | None) -> ConfigIn:
    """What a PUT asks for, with the dead_letter that stays because its key may not name it."""
    if given.dead_letter is UNSET or given.dead_letter == HIDDEN:
        kept = None if present is None else present.dead_letter
        if kept is not None and not key.may_name(kept):
            return replace(given, dead_letter=kept)
    check_dead_letter(key, given)
    return given


def check_dead_letter(key: Key, config: ConfigIn) -> None:
    """A config may not name a topic that its key may not name (AU8)."""
    if isinstance(config.dead_letter, str):
        key.check_names((config.dead_letter,))


async def show_topic(call: Call) -> None:
    touch = call.parameters.flag("touch", True)
    state = await call.app.engine.topic_state(call.name, touch=touch)
    call.answer(200, topic_shown(state, call.key.may_name, call.performance()))


async def list_topics(call: Call) -> None:
    parameters, overview = call.parameters, call.app.engine.overview
    order, wanted = order_in(parameters), filter_in(parameters, call.key.prefixes)
    has_details, touch, size = parameters.flag("detail", False), parameters.flag("touch", False), parameters.page_size()
    with_epochs, skip = parameters.flag("epochs", False), parameters.natural("offset") or 0
    cursor: str | UnsetType = UNSET
    listed: list[TopicDetailed] = []
    if order == BY_NAME and not has_details:
        states, has_more = await overview.states_after(parameters.cursor(), size, wanted, touch=touch, skip=skip)
        listed += [topic_plain(state, with_epochs) for state in states]
        cursor = encode_cursor(listed[-1].topic) if has_more else UNSET
    elif order == BY_NAME:
        details, has_more = await overview.details_after(parameters.cursor(), size, wanted, touch=touch, skip=skip)
        listed += [topic_detailed(detail, wanted.allowed, with_epochs) for detail in details]
        cursor = encode_cursor(listed[-1].topic) if has_more else UNSET
    else:
        walk, place = walk_in(parameters) or (await overview.begin(order, wanted), 0)
        details, behind = await overview.go_on(walk, place + skip, size, wanted, touch=touch)
        if has_details:
            listed += [topic_detailed(detail, wanted.allowed, with_epochs) for detail in details]
        else:
            listed += [topic_plain(detail.state, with_epochs) for detail in details]
        cursor = walk_cursor(listed[-1].topic, walk, behind) if behind is not None and listed else UNSET
    call.answer(200, TopicList(topics=listed, next_cursor=cursor, performance=call.performance()))


async def delete_topic(call: Call) -> None:
    engine, may_name = call.app.engine, call.key.may_name
    if_empty = call.parameters.flag("if_empty", False)
    removed = await engine.changes.remove_topic(call.name, if_empty, call.parameters.natural("epoch"))
    routers = [names[0] for names in removed or () if all(map(may_name, names))]
    call.answer(200, TopicGone(call.name, removed is not None, routers, call.performance()))


async def list_losses(call: Call) -> None:
    found = await call.app.engine.reading.losses(call.name, call.parameters.losses_limit())
    losses = [LossShown(loss.first, loss.last, loss.reason, loss.ts) for loss in found]
    call.answer(200, LossList(call.name, losses, call.performance()))


async def list_all_losses(call: Call) -> None:
    """Of all topics that the key may name, and which named cursors will lose next."""
    survey, wanted = call.app.engine.survey, TopicFilter(allowed=call.key.prefixes)
    found = await survey.losses(call.parameters.losses_limit(), wanted)
    endangered = await survey.endangered(ENDANGERED_MAX, wanted)
    shown = [loss_found(one) for one in found]
    call.answer(200, LossFeed(shown, [cursor_listed(one) for one in endangered], call.performance()))


async def show_tree(call: Call) -> None:
    parameters = call.parameters
    wanted = filter_in(parameters, call.key.prefixes)
    total, branches, has_more = await call.app.engine.survey.branches(
        parameters.cursor(), parameters.page_size(), wanted
    )
    answer = Tree(
        prefix=wanted.prefix,
        total=sums_shown(total),
        branches=[branch_shown(one) for one in branches],
        next_cursor=encode_cursor(branches[-1].prefix) if has_more else UNSET,
        performance=call.performance(),
    )
    call.answer(200, answer)


async def list_times(call: Call) -> None:
    found = await call.app.engine.survey.times(call.name, seqs_in(call.parameters))
    call.answer(200, TimeList(call.name, [TimeShown(*one) for one in found], call.performance()))


# --- named cursors


async def put_cursor(call: Call) -> None:
    given = cursor_in(call.request.body)
    created, state = await call.app.engine.cursors.put(
        call.name, call.item, given.seq, epoch=given.epoch, if_seq=given.if_seq
    )
    call.answer(200, cursor_shown(state, call.performance(), created))


async def show_cursor(call: Call) -> None:
    state = await call.app.engine.cursors.show(call.name, call.item)
    call.answer(200, cursor_shown(state, call.performance()))


async def list_cursors(call: Call) -> None:
    parameters = call.parameters
    states, has_more = await call.app.engine.cursors.list_after(call.name, parameters.cursor(), parameters.page_size())
    after = encode_cursor(states[-1].name) if has_more else UNSET
    listed = [cursor_listed(state) for state in states]
    call.answer(200, CursorList(topic=call.name, cursors=listed, next_cursor=after, performance=call.performance()))


async def delete_cursor(call: Call) -> None:
    deleted = await call.app.engine.cursors.delete(call.name, call.item)
    call.answer(200, CursorGone(call.name, call.item, deleted, call.performance()))
