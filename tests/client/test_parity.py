"""The client has every operation, parameter and field of the OpenAPI document, and says what each method does."""

import inspect
import re
from typing import Any, Unpack, get_args, get_origin, get_type_hints

import httpx
import msgspec
import pytest

from tests.effort import swept
from topics import client as api
from topics.client import AsyncClient, Client, results
from topics.client.arguments import RECORD_FIELDS
from topics.testing.server import ServerThread

# operationId → the method, and the names that its parameters and fields have there, where they differ.
METHODS: dict[str, tuple[str, dict[str, str]]] = {
    "put_topic": ("put_topic", {}),
    "show_topic": ("state", {}),
    "delete_topic": ("delete_topic", {}),
    "append": ("append", {}),
    "list_topics": ("topics", {"class": "durability"}),
    "diff": ("diff", {}),
    "export": ("export", {}),
    "live": ("live", {}),
    "show_record": ("record", {}),
    "list_losses": ("losses", {}),
    "put_cursor": ("put_cursor", {"cursor": "name"}),
    "show_cursor": ("cursor", {"cursor": "name"}),
    "delete_cursor": ("delete_cursor", {"cursor": "name"}),
    "list_cursors": ("cursors", {}),
    "delete_records": ("delete_records", {}),
    "put_router": ("put_router", {}),
    "show_router": ("router", {"router": "name"}),
    "delete_router": ("delete_router", {"router": "name"}),
    "list_routers": ("routers", {}),
    "create_session": ("watch", {}),
    "open_stream": ("watch", {}),
    "claim": ("claim", {"max": "max_jobs"}),
    "ack": ("ack", {"seqs": "jobs", "lease_ids": "jobs"}),
    "nack": ("nack", {"seqs": "jobs", "lease_ids": "jobs"}),
    "extend": ("extend", {"seqs": "jobs", "lease_ids": "jobs"}),
    "redrive": ("redrive", {"max": "max_jobs"}),
    "pause": ("pause", {}),
    "resume": ("resume", {}),
    "list_leases": ("leases", {}),
    "give_ticket": ("ticket", {}),
    "show_me": ("me", {}),
    "list_connections": ("connections", {}),
    "close_connection": ("close_connection", {}),
    "health": ("health", {}),
    "ready": ("ready", {}),
    "metrics": ("metrics", {}),
    "show_stats": ("stats", {"history": "history_ms"}),
}
# What a Python program has no use for, and what it gets instead.
LEFT_OUT = {
    "get_diff": "diff",
    "open_topic_events": "watch: the same events, over a session",
    "open_events": "watch",
    "open_socket": "watch",
    "work": "worker",
    "healthz": "health",
    "readyz": "ready",
    "show_openapi": "",
    "docs": "",
    "console": "",
    "show_file": "",
    "back_up": "topics backup, Engine.backup",
    "open_stats": "stats, asked again",
    "show_server": "for the console",
    "diagnose": "topics doctor",
    "show_tree": "topics: a program adds up itself",
    "list_all_losses": "losses of each topic",
    "list_times": "record",
    "move": "for operators: the console",
}
LEFT_OUT_FIELDS = {
    "cursor": "of a list: the iterator keeps it; of a watch: positions",
    "return_seqs": "never asked for: seqs are a range",
    "Idempotency-Key": "idempotency_key",
    "Idempotency-Mismatch": "on_mismatch",
    "Last-Event-ID": "the watcher keeps it",
    "wid": "the watcher keeps it",
    "error_event": "for browsers",
    "from_seq": "",
    "tail": "",
    "epochs": "always asked for",
    "detail": "of routers: router",
    "offset": "of a list: for whoever shows a part of it",
}
# Answers that have another name here.
STRUCTS = {
    "TopicShown": "TopicState",
    "TopicGone": "TopicDeleted",
    "LossShown": "Loss",
    "CursorGone": "CursorDeleted",
    "RouterShown": "Router",
    "RouterGone": "RouterDeleted",
    "Watching": "WatchSession",
    "JobsClaimed": "Claimed",
    "JobsAcked": "Acked",
    "JobsNacked": "Nacked",
    "LeasesExtended": "Extended",
    "LettersRedriven": "Redriven",
    "LeaseView": "Lease",
    "TicketGiven": "Ticket",
    "ConnectionGone": "ConnectionClosed",
    "CursorListed": "CursorShown",
    "TopicDetailed": "TopicListed",
    "RouterDetailed": "Router",
    "Errors": "RequestErrors",
}
LISTS = re.compile(r".*List$")
NOT_STRUCTS = re.compile(  # those of the first line belong to operations that are left out
    r"(Server|Setting|Checkpoints|Disk|Memory|Sums|Branch|Time)Shown|Diagnosis|Finding|Tree|LossF(eed|ound)|JobsMoved|"
    r".*(Request|Performance)$|Write|RecordIn|Config|WatchStart|NoFields|Error|ErrorBody|(Wal)?Metrics"
)


@pytest.fixture(scope="module")
def document(server: ServerThread) -> Any:
    return httpx.get("http://{}:{}/v0/openapi.json".format(*server.address)).json()


def operations_of(document: Any) -> list[Any]:
    return [
        operation
        for path in document["paths"].values()
        for method, operation in path.items()
        if method in ("get", "put", "post", "delete")
    ]


def fields_of(document: Any, operation: Any) -> set[str]:
    """The parameters of an operation, and the fields of its body."""
    names = {parameter["name"] for parameter in operation.get("parameters", [])}
    body = operation.get("requestBody", {}).get("content", {}).get("application/json", {}).get("schema", {})
    schema = document["components"]["schemas"].get(body.get("$ref", "").rpartition("/")[2], {})
    return names | set(schema.get("properties", {}))


def arguments_of(method: Any) -> set[str]:
    """Their names; those of `**options: Unpack[…]` by the keys of the TypedDict."""
    names = set(inspect.signature(method).parameters)
    unpacked = [get_args(hint)[0] for hint in get_type_hints(method).values() if get_origin(hint) is Unpack]
    return names.union(*(options.__annotations__ for options in unpacked))


def test_every_operation_has_a_method(document: Any) -> None:
    ids = {operation["operationId"] for operation in operations_of(document)}
    assert ids - METHODS.keys() - LEFT_OUT.keys() == set(), "the client lacks these operations"
    assert (METHODS.keys() | LEFT_OUT.keys()) - ids == set(), "these are no operations any more"


@pytest.mark.parametrize("kind", [Client, AsyncClient])
def test_every_parameter_and_field_has_an_argument(document: Any, kind: Any) -> None:
    lacking = []
    for operation in operations_of(document):
        if operation["operationId"] in LEFT_OUT:
            continue
        name, renamed = METHODS[operation["operationId"]]
        arguments = arguments_of(getattr(kind, name))
        for field in fields_of(document, operation):
            if renamed.get(field, field) not in arguments and field not in LEFT_OUT_FIELDS:
                lacking.append(f"{name}: {field}")
    assert lacking == []


def test_a_record_has_every_field(document: Any) -> None:
    fields = set(document["components"]["schemas"]["RecordIn"]["properties"])
    assert fields == RECORD_FIELDS == set(results.NewRecord.__struct_fields__)
    assert fields - {"data"} <= set(inspect.signature(Client.send).parameters)


def test_every_field_of_an_answer_is_in_its_struct(document: Any) -> None:
    lacking = []
    for name, schema in document["components"]["schemas"].items():
        if NOT_STRUCTS.fullmatch(name) or LISTS.fullmatch(name):
            continue
        struct = getattr(results, STRUCTS.get(name, name), None) or getattr(api, name)
        known = {field.encode_name for field in msgspec.structs.fields(struct)}
        lacking += [f"{name}: {field}" for field in schema.get("properties", {}) if field not in known | {"seqs"}]
    assert lacking == []


def public(kind: Any) -> list[tuple[str, Any]]:
    return [(name, member) for name, member in inspect.getmembers(kind) if not name.startswith("_")]


@swept("kind", [getattr(api, name) for name in api.__all__ if inspect.isclass(getattr(api, name))])
def test_everything_public_says_what_it_does(kind: Any) -> None:
    assert kind.__doc__, "the class itself"
    silent = [
        name
        for name, member in public(kind)
        if (inspect.isfunction(member) or isinstance(member, property)) and not inspect.getdoc(member)
    ]
    assert silent == []
