"""Only `apply` changes the state (architecture.md, rule 1): topics, their logs, keys and queues, and the routers.

The sources are parsed. What an owner of state calls a change is found in its class: the methods that assign to `self`,
or alter a container of it. A call of one of these outside `apply`, or an assignment to such an object, is allowed only
where a row of BESIDE says why. Objects are known by the names under which the code has them: `topic.log`, `log`,
`self._log`.
"""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

TOPICS = Path(__file__).parents[2] / "src" / "topics"
PARTS = ("core", "engine", "reader", "server")

# By what name the code has it → the classes that it is of, each as module.Class; () = its fields only.
OWNERS: dict[str, tuple[str, ...]] = {
    "log": ("core.topic.log.Log", "core.topic.losses.AccountedRecords", "core.topic.live.LiveRecords"),
    "queue": ("core.queue.jobs.Queue",),
    "keys": ("core.state.Keys",),
    "routers": ("core.routing.table.Routers",),
    "reservation": ("core.topic.reservation.Reservation",),
    "stamps": ("core.routing.copies.Stamps",),
    "state": ("core.state.State",),
    **dict.fromkeys(("topic", "router", "dest", "source"), ()),
}
# Where `apply` and what it calls live; `table` has the entries of routers, `jobs` functions that change many jobs.
APPLY = {"core.apply", "core.routing.table", "core.queue.jobs", "core.topic.log", "core.memory"}
# What else may change, and why. None of it can be seen from outside.
BESIDE = {
    # a state that is read from the disk comes to be
    "core.dump": "topic.* log.* queue.* keys.restore keys.take_fresh reservation.restore stamps.load "
    "router.position state.next_id routers.add state.topics state.by_id state.index_expiry",
    "engine.durability.recovery": "log.mark_dead log.attach log.derive_losses state.next_id state.count_records",
    "engine.durability.store": "state.next_id",
    # the same records lie elsewhere; what no snapshot has, and what memory and files can be given back
    "engine.durability.checkpoint": "log.fold log.replace log.dropped keys.redump state.unsaved state.unsaved_routers",
    "engine.export": "log.fold",
    "engine.upkeep": "log.dropped queue.dropped state.keyed",
    # positions of the gate
    "engine.ledger": "reservation.position state.names_at",
    # what a reader weighs against the same limit; who is to be told of leases that have ended
    "engine.seeing.footprint": "state.memory_beside",
    "engine.queues.crews": "queue.ended",
}
# What was found out and need not be found out again: rows measured, where fresh jobs begin, what is known to be synced.
MEMOS = {"_measured", "pointer", "durable"}
ALTERING = {
    *("add", "append", "appendleft", "clear", "discard", "extend", "insert", "pop", "popitem", "popleft", "remove"),
    *("setdefault", "update", "add_many", "discard_many", "keep"),
}


def parsed(module: str) -> ast.Module:
    return ast.parse(TOPICS.joinpath(*module.split(".")).with_suffix(".py").read_text())


def name_of(node: ast.expr) -> str:
    """The last name of `a.b.c`, `c`, `self._c` or `a.c[…]`."""
    while isinstance(node, ast.Subscript):
        node = node.value
    name = node.attr if isinstance(node, ast.Attribute) else node.id if isinstance(node, ast.Name) else ""
    return name.removeprefix("_")


def assigned(node: ast.AST) -> Iterator[ast.Attribute]:
    """The attributes that a statement sets, deletes or sets an item of."""
    targets: list[ast.expr] = []
    if isinstance(node, ast.Assign | ast.Delete):
        targets = list(node.targets)
    elif isinstance(node, ast.AugAssign | ast.AnnAssign):
        targets = [node.target]
    while targets:
        target = targets.pop()
        if isinstance(target, ast.Tuple | ast.List):
            targets += target.elts
        while isinstance(target, ast.Subscript | ast.Starred):
            target = target.value
        if isinstance(target, ast.Attribute):
            yield target


def altered(node: ast.AST) -> Iterator[ast.Attribute]:
    """The attributes that a node changes: sets, or calls a container's method of."""
    yield from assigned(node)
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in ALTERING:
        place = node.func.value
        while isinstance(place, ast.Subscript):
            place = place.value
        if isinstance(place, ast.Attribute) and not OWNERS.get(place.attr):
            yield place


def changing_methods(classes: tuple[str, ...]) -> set[str]:
    """The methods that change the object, by themselves or by another of its methods."""
    methods: dict[str, ast.FunctionDef] = {}
    for name in classes:
        module, _, class_name = name.rpartition(".")
        (found,) = (one for one in ast.walk(parsed(module)) if isinstance(one, ast.ClassDef) and one.name == class_name)
        methods = {one.name: one for one in found.body if isinstance(one, ast.FunctionDef)} | methods

    def of_self(attribute: ast.Attribute) -> bool:
        is_self = isinstance(attribute.value, ast.Name) and attribute.value.id == "self"
        return is_self and attribute.attr not in MEMOS

    changing = {
        name
        for name, method in methods.items()
        if any(of_self(attribute) for node in ast.walk(method) for attribute in altered(node))
    }
    while True:
        more = {
            name
            for name, method in methods.items()
            for node in ast.walk(method)
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute)
            if of_self(node.func) and node.func.attr in changing
        } - changing
        if not more:
            return changing - {"__init__"}
        changing |= more


CHANGING = {owner: changing_methods(classes) for owner, classes in OWNERS.items()}


def changes_in(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """The lines that change state, and what they change, as owner.field or owner.method."""
    for node in ast.walk(tree):
        for attribute in altered(node):
            if name_of(attribute.value) in OWNERS and not attribute.attr.startswith("__"):
                yield attribute.lineno, f"{name_of(attribute.value)}.{attribute.attr}"
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            owner = name_of(node.func.value)
            if node.func.attr in CHANGING.get(owner, ()):
                yield node.lineno, f"{owner}.{node.func.attr}"


def is_allowed(module: str, change: str) -> bool:
    owner, _, _ = change.partition(".")
    allowed = BESIDE.get(module, "").split()
    return change in allowed or f"{owner}.*" in allowed


def modules() -> Iterator[str]:
    for part in PARTS:
        for path in sorted((TOPICS / part).rglob("*.py")):
            yield ".".join(path.relative_to(TOPICS).with_suffix("").parts)


def test_what_is_kept_changes_only_where_entries_are_applied() -> None:
    found = [
        f"{module}:{line}: {change}"
        for module in modules()
        if module not in APPLY
        for line, change in changes_in(parsed(module))
        if not is_allowed(module, change)
    ]
    assert found == []


def test_every_exception_is_needed() -> None:
    for module, row in BESIDE.items():
        made = {change for _, change in changes_in(parsed(module))}
        made |= {f"{change.partition('.')[0]}.*" for change in made}
        assert set(row.split()) - made == set(), module


@pytest.mark.parametrize(
    ("source", "change"),
    [
        ("topic.log.append(batch, ts)", "log.append"),
        ("self._topic.queue.lease(node, leases)", "queue.lease"),
        ("topic.keys.drop_oldest(1)", "keys.drop_oldest"),
        ("self._ledger.state.routers.remove(router)", "routers.remove"),
        ("topic.epoch += 1", "topic.epoch"),
        ("a, topic.log.head = 1, 2", "log.head"),
        ("del state.topics['a']", "state.topics"),
        ("topic.cursors.pop('a', None)", "topic.cursors"),
        ("router.cursor = 7", "router.cursor"),
    ],
)
def test_a_change_is_seen(source: str, change: str) -> None:
    assert [one for _, one in changes_in(ast.parse(source))] == [change]


@pytest.mark.parametrize("source", ["topic.log.is_live(7)", "topic.notes.synced_at = 7", "names.append(topic.name)"])
def test_what_changes_nothing_that_is_kept_is_not_seen(source: str) -> None:
    assert list(changes_in(ast.parse(source))) == []
