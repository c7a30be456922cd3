"""Routers: which there are, and how far each has come.

Owns the routing table, the decisions about routers (why a PUT is refused, which holes a loss leaves in dests) and what
their entries change. Pure. A router's next step is in steps.py, how rows become copies in copies.py.

Invariants, which `check` asserts where they can be seen
1. A router's cursor is at or below its source's head.
2. A loss takes along the cursors that are behind it, and leaves a hole in their dests (`holes`).
3. Copies, holes and the cursor behind them are one entry.
4. All routers into a topic come from one source (RT6).
5. The routers of a topic are listed in the order of their ids, in which they were created and are served.
"""

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Final

from msgspec import Struct

from topics.core.entries import AnyEntry, Forwarded, Forwarding, RouterRemoved, RouterSet, TopicCreated
from topics.core.memory import weigh
from topics.core.routing.copies import MissingRecord, add_hops, find_copies
from topics.core.topic.records import Batch
from topics.errors import InvalidRequest, RouterCycle, Throttled, TopicIncompatible, TopicNotFound
from topics.model import RouterDefinition, is_router_name, is_topic_name

if TYPE_CHECKING:
    from topics.core.state import State, Topic

HOPS_MAX: Final = 8  # routers that a record passes
HOP_RUNS: Final = 64  # kept of a topic before anyone looks which of them are needed


class Router(Struct, eq=False):
    """A forwarding rule and how far it has come."""

    id: int
    name: str
    source: int
    dest: int
    definition: RouterDefinition
    cursor: int  # in the source: all up to here is forwarded, or passed over
    total: int  # copies, suppressed duplicates and holes
    position: int = 0  # of recovery: entries below this position are in the snapshot already


class Routers:
    """All routers, by name, id, source and dest; in the order of their ids, in which they are served."""

    def __init__(self) -> None:
        self.by_name: dict[str, Router] = {}
        self.by_id: dict[int, Router] = {}
        self.outgoing: dict[int, dict[int, Router]] = {}  # source → routers by id
        self.incoming: dict[int, dict[int, Router]] = {}  # dest → routers by id
        self.version = 0  # changes when a router comes or goes

    def __len__(self) -> int:
        return len(self.by_name)

    def add(self, router: Router) -> None:
        old = self.by_name.get(router.name)
        if old is not None and old.id != router.id:
            self.remove(old)
        self.by_name[router.name] = self.by_id[router.id] = router
        self.outgoing.setdefault(router.source, {})[router.id] = router
        self.incoming.setdefault(router.dest, {})[router.id] = router
        self.version += 1

    def remove(self, router: Router) -> None:
        del self.by_name[router.name], self.by_id[router.id]
        for index, topic in ((self.outgoing, router.source), (self.incoming, router.dest)):
            del index[topic][router.id]
            if not index[topic]:
                del index[topic]
        self.version += 1

    def of(self, topic: int) -> list[Router]:
        """Those into or out of a topic."""
        return list({**self.outgoing.get(topic, {}), **self.incoming.get(topic, {})}.values())


# --- what entries change


def apply_set(state: "State", entry: RouterSet) -> None:
    router = Router(entry.router, entry.name, entry.source, entry.dest, entry.definition, entry.cursor, entry.total)
    source = state.by_id.get(entry.source)
    if source is not None and entry.source not in state.routers.outgoing:
        source.referable_after = max(source.referable_after, source.log.head)
    state.routers.add(router)
    state.unsaved_routers[entry.name] = None
    state.next_id = max(state.next_id, entry.router + 1)


def apply_removed(state: "State", entry: RouterRemoved) -> None:
    router = state.routers.by_name.get(entry.name)
    if router is not None and router.id == entry.router:
        state.routers.remove(router)
    state.unsaved_routers[entry.name] = None


def apply_forwarding(state: "State", forwarding: Forwarding) -> None:
    entry = forwarding.entry
    _grow(state, state.by_id[entry.dest], entry, forwarding.batches)
    _advance(state, state.routers.by_id[entry.router], entry)


def _grow(state: "State", dest: "Topic", entry: Forwarded, batches: Sequence[Batch]) -> None:
    """The dest's part: the hole, then the copies."""
    log = dest.log
    state.lost -= log.lost
    if entry.first > log.head + 1:  # what lay between is lost
        log.inherit_head(entry.first - 1, entry.first - 1, ts=entry.ts)
    if entry.lost:
        log.open_gap(log.head + entry.lost, "source_trim", entry.ts)
    state.lost += log.lost
    count, size = log.count, log.bytes
    for batch in batches:
        log.append(batch, entry.ts)
    state.records += log.count - count
    state.written += log.count - count
    state.bytes += log.bytes - size
    state.unsaved[dest.id] = dest
    is_source, at = dest.id in state.routers.outgoing, entry.first + entry.lost
    if is_source and entry.lost:
        add_hops(dest.hops, entry.first, at - 1, entry.lost_hops)
    for first, last, hops in entry.runs:
        if is_source:
            add_hops(dest.hops, at, at + last - first, hops)
        if entry.stamp is not None:
            dest.stamps.add(entry.stamp, entry.source, first, last, at, log.earliest)
        at += last - first + 1
    if len(dest.hops) > HOP_RUNS and is_source:
        passed = min(router.cursor for router in state.routers.outgoing[dest.id].values())  # by all routers
        del dest.hops[: bisect_right(dest.hops, passed, key=lambda run: run[1])]
    weigh(state, dest)


def _advance(state: "State", router: Router, entry: Forwarded) -> None:
    """The router's part."""
    router.cursor, router.total = entry.cursor, entry.total
    state.unsaved_routers[router.name] = None


def is_to_be_replayed(state: "State", entry: RouterSet | RouterRemoved, position: int) -> bool:
    """Whether an entry of the log that sets or removes a router is still to be applied."""
    present = state.routers.by_name.get(entry.name)
    if present is not None and position < present.position:
        return False
    return isinstance(entry, RouterRemoved) or (entry.source in state.by_id and entry.dest in state.by_id)


def check_contiguous(state: "State", topic: "Topic", first: int) -> None:
    """Refuse to replay a record that does not follow the topic's head: two servers wrote this log, or a part is gone.

    A stretch that is given to no record is announced by an entry of its own. Only a topic that has just left the
    class ephemeral may be further than its log says: its last records were in no file.
    """
    expected = topic.log.head + 1
    is_headless = topic.id in state.headless
    if topic.is_logged and first != expected and not (is_headless and first > expected):
        raise MissingRecord(
            f'seq {first} of topic "{topic.name}" does not follow its last one, {expected - 1}: the log is not of one '
            "server, or part of it is missing"
        )
    if is_headless and topic.is_logged:
        state.headless.discard(topic.id)


def replay_forwarded(state: "State", entry: Forwarded, position: int) -> None:
    """Apply a Forwarded of the log: each of its parts unless the snapshot has it, or what it changes is gone."""
    dest, source = state.by_id.get(entry.dest), state.by_id.get(entry.source)
    if dest is not None and position < dest.notes.snapshot_position:
        dest = None
    batches: list[Batch] = []
    if not entry.carries_records:
        try:
            batches = find_copies(entry, None if source is None else source.log, state.skipped_appends)
        except MissingRecord:
            if dest is not None:
                raise
    if dest is not None:
        if entry.lost or entry.runs:  # otherwise only the cursor moves
            check_contiguous(state, dest, entry.first)
        _grow(state, dest, entry, batches)
    else:
        at = entry.first + entry.lost
        for batch in batches:
            state.skipped_appends.setdefault(entry.dest, []).append((at, batch))
            at += len(batch.sizes)
    router = state.routers.by_id.get(entry.router)
    if router is not None and position >= router.position:
        _advance(state, router, entry)


# --- commands


class PutRouter(Struct, frozen=True):
    router: str
    source: str
    dest: str
    definition: RouterDefinition
    create_dest: bool = True


def check_router(state: "State", command: PutRouter, routers_max: int) -> bool:
    """Refuse what may not be (RT7). Gives whether there is anything to change."""
    old = state.routers.by_name.get(command.router)
    source, dest = state.topics.get(command.source), state.topics.get(command.dest)
    if not is_router_name(command.router):
        raise InvalidRequest(
            f'"{command.router}" is not a valid router name: 1 to 255 of A-Z a-z 0-9 . _ : > -, '
            "the first a letter or digit"
        )
    for field, name in (("source", command.source), ("dest", command.dest)):
        if not is_topic_name(name):
            raise InvalidRequest(f'{field} "{name}" is not a valid topic name')
    if command.source == command.dest:
        raise InvalidRequest(f'source and dest are both "{command.dest}"; they must differ')
    if dest is None and not command.create_dest:
        raise TopicNotFound(command.dest)
    _check_fan_in(state, command, source, dest, old)
    if old is None and routers_max and len(state.routers) >= routers_max:
        raise Throttled(
            f'router "{command.router}" would be one more than the {routers_max} routers allowed',
            limit="max_routers",
            max=routers_max,
        )
    if not command.definition.allow_cycle:
        _check_cycle(state, command, source, dest, old)
    return old is None or not _is_same(old, source, dest) or old.definition != command.definition


def router_entries(state: "State", command: PutRouter, created: Sequence[TopicCreated]) -> list[AnyEntry]:
    """The router that a PUT asks for; `created` are the topics that it brings with it."""
    old = state.routers.by_name.get(command.router)
    source, dest = state.topics.get(command.source), state.topics.get(command.dest)
    if old is not None and _is_same(old, source, dest):
        return [RouterSet(old.id, old.name, old.source, old.dest, command.definition, old.cursor, old.total)]
    ids = {entry.name: entry.topic for entry in created}
    source_id = ids[command.source] if source is None else source.id
    dest_id = ids[command.dest] if dest is None else dest.id
    cursor = 0 if source is None else source.log.head
    id = state.next_id + len(created)
    return [RouterSet(id, command.router, source_id, dest_id, command.definition, cursor, 0)]


def _is_same(router: Router, source: "Topic | None", dest: "Topic | None") -> bool:
    """Whether a router has this source and this dest."""
    return source is not None and dest is not None and (router.source, router.dest) == (source.id, dest.id)


def _check_fan_in(
    state: "State", command: PutRouter, source: "Topic | None", dest: "Topic | None", old: Router | None
) -> None:
    """RT6"""
    for other in state.routers.incoming.get(dest.id, {}).values() if dest is not None else ():
        if other is not old and (source is None or other.source != source.id):
            raise TopicIncompatible(
                f'topic "{command.dest}" is already fed from another source',
                topic=command.dest,
                reason="router_dest_fan_in",
            )


def _check_cycle(
    state: "State", command: PutRouter, source: "Topic | None", dest: "Topic | None", old: Router | None
) -> None:
    """RT5"""
    path = None if source is None or dest is None else _path(state, dest.id, source.id, old)
    if path is not None:
        names = [command.source, *(state.by_id[topic].name for topic in path)]
        raise RouterCycle(f'router "{command.router}" would close a cycle', cycle=names)


def _path(state: "State", start: int, goal: int, left_out: Router | None) -> list[int] | None:
    """Topics from `start` to `goal` along routers, both included."""
    came_from = {start: 0}
    waiting = [start]
    for topic in waiting:
        for router in state.routers.outgoing.get(topic, {}).values():
            if router is not left_out and router.dest not in came_from:
                came_from[router.dest] = topic
                waiting.append(router.dest)
    if goal not in came_from:
        return None
    path = [goal]
    while came_from[path[-1]]:
        path.append(came_from[path[-1]])
    return path[::-1]


# --- losses


def holes(state: "State", topic: "Topic", last: int, first_new: int, ts: int) -> list[AnyEntry]:
    """The holes in dests where live records up to `last` are lost that routers have not forwarded (RT12).

    Records that are about to be appended, from `first_new` on, count as well.
    """
    entries: list[AnyEntry] = []
    heads: dict[int, int] = {}
    for router in state.routers.outgoing.get(topic.id, {}).values():
        if router.cursor < last:
            dest = state.by_id[router.dest]
            count = topic.log.count_between(router.cursor, last) + max(0, last - max(router.cursor, first_new - 1))
            first = heads.get(dest.id, dest.log.head) + 1
            heads[dest.id] = first + count - 1
            hole = Forwarded(router.id, topic.id, dest.id, first, ts, count, 1, [], last, router.total + count)
            entries.append(Forwarding(hole, ()))
            entries += dest.reservation.renewal(dest.id, dest.config, heads[dest.id])
    return entries


def lowered_cursors(state: "State") -> Iterator[Forwarding]:
    """Bring down the cursors of routers whose source came back with a lower head (RT22)."""
    for router in state.routers.by_id.values():
        head = state.by_id[router.source].log.head
        if router.cursor > head:
            entry = Forwarded(router.id, router.source, router.dest, 0, 0, 0, 0, [], head, router.total)
            yield Forwarding(entry, ())


def check(state: "State") -> None:
    """Assert the invariants."""
    routers = state.routers
    assert {one.name: one for one in routers.by_id.values()} == routers.by_name, "names and ids do not agree"
    for index, end in ((routers.outgoing, "source"), (routers.incoming, "dest")):
        listed = [one for group in index.values() for one in group.values()]
        assert sorted(one.id for one in listed) == sorted(routers.by_id), f"not every router has a {end}"
        for topic, group in index.items():
            assert topic in state.by_id and all(getattr(one, end) == topic for one in group.values())
            assert list(group) == sorted(group), f"routers of topic {topic} are not in the order of their ids"
    for dest, group in routers.incoming.items():
        assert len({one.source for one in group.values()}) == 1, f"topic {dest} is fed from several sources"
    for one in routers.by_id.values():
        assert one.cursor <= state.by_id[one.source].log.head, f"router {one.name} is ahead of its source"
