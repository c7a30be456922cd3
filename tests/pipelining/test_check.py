"""The yardstick: a contradiction that is put into what was told, or into what is found, is noticed."""

from collections.abc import Callable
from typing import Any

import pytest

from tests.pipelining.check import End, check
from tests.pipelining.clients import Answer, Pushed, Request
from tests.pipelining.look import Found, Lease, Record, TopicFound
from tests.pipelining.told import Told
from tests.pipelining.workload import config_of

DAY = 1_700_086_400_000
Plant = Callable[[Told, Found], None]


def write(told: Told, topic: str, first: int, *data: str, status: int = 200, key: str = "", tag: str = "a") -> Request:
    """A write that was answered; `first` 0: it was not."""
    body: dict[str, Any] = {"records": [{"data": one, "tag": tag} for one in data]}
    request = Request("write", topic, body | ({"idempotency_key": key} if key else {}))
    told.asked(request)
    if first:
        told.heard(Answer(request, status, written(first, len(data))), "h")
    elif status >= 300:
        told.heard(Answer(request, status, {"error": {}}), "h")
    return request


def written(first: int, count: int, *, deduped: bool = False) -> dict[str, Any]:
    seqs = list(range(first, first + count))
    return {
        "first_seq": first,
        "last_seq": seqs[-1],
        "seqs": seqs,
        "count": count,
        "head_seq": seqs[-1],
        "created": False,
        "deduped": deduped,
    }


def ask(told: Told, kind: str, topic: str, body: dict[str, Any], answer: dict[str, Any] | None = None) -> None:
    request = Request(kind, topic, body)
    told.asked(request)
    if answer is not None:
        told.heard(Answer(request, 200, answer), "h")


def claim(told: Told, node: str, *seqs: int) -> None:
    jobs = [{"$seq": seq, "data": f"j{seq}", "$tag": "a", "deadline": DAY} for seq in seqs]
    ask(told, "claim", "steady", {"node": node, "max": 9}, {"claimed": jobs, "count": len(jobs)})


def topic(name: str, records: dict[int, str], head: int, lost: set[int] | None = None, **queue: int) -> TopicFound:
    state = {
        "type": config_of(name).get("type", "log"),
        "config": {"leases_durable": False} | config_of(name),
        "epoch": 1,
        "head_seq": head,
        "next_seq": head + 1,
        "earliest_seq": min(records, default=head + 1),
        "count": len(records),
        "queue": {"ready": 0, "in_flight": 0, "delayed": 0} | queue,
    }
    return TopicFound(state, {seq: Record(data, "a", {}) for seq, data in records.items()}, lost or set())


def history() -> tuple[Told, Found]:
    """What was told, and a server that has it: a log with a delete and a batch, a queue with a job acked, one held."""
    told = Told()
    for name in ("log.fsync", "log.disk", "steady"):
        request = Request("put", name, config_of(name), "PUT")
        told.asked(request)
        told.heard(Answer(request, 201, {"created": True, "config": config_of(name)}), "h")
    write(told, "log.disk", 1, "one")
    write(told, "log.disk", 2, "two", "three", key="k")
    ask(told, "delete", "log.disk", {"before_seq": 2}, {"deleted": 1})
    write(told, "log.disk", 0, "open", "open too")
    write(told, "log.fsync", 1, "kept")
    write(told, "log.fsync", 0, "refused", status=404)
    write(told, "steady", 1, "j1", "j2", "j3")
    claim(told, "n", 1, 2)
    ask(told, "ack", "steady", {"node": "n", "seqs": [1]}, {"acked": 1, "skipped": []})
    found = {
        "log.fsync": topic("log.fsync", {1: "kept"}, 1),
        "log.disk": topic("log.disk", {2: "two", 3: "three", 4: "open", 5: "open too"}, 5),
        "steady": topic("steady", {2: "j2", 3: "j3"}, 3, ready=1, in_flight=1),
    }
    found["steady"].leases = {2: Lease("n", DAY)}
    return told, found


def replaced(name: str, *args: Any, **fields: Any) -> Plant:
    def plant(_: Told, found: Found) -> None:
        leases = found[name].leases
        found[name] = topic(name, *args, **fields)
        found[name].leases = leases

    return plant


def without(name: str) -> Plant:
    return lambda told, found: (found.pop(name), None)[1]


@pytest.mark.parametrize("end", ["alive", "kill", "power loss"])
def test_a_server_that_has_what_was_told_passes(end: End) -> None:
    told, found = history()
    check(told, found, end)


PLANTED: dict[str, tuple[Plant, str]] = {
    "an acked record is missing": (replaced("log.fsync", {}, 1), "was told as 1, and is not there"),
    "an acked seq is above the head": (replaced("log.fsync", {}, 0), "the head is 0"),
    "an acked seq has other content": (
        replaced("log.disk", {2: "three", 3: "two"}, 3),
        "three is at 2, and was",
    ),
    "something nobody wrote": (replaced("log.fsync", {1: "kept", 2: "else"}, 2), "nobody wrote else"),
    "something of another topic": (replaced("log.fsync", {1: "kept", 2: "open"}, 2), "was written to log.disk"),
    "something refused": (replaced("log.fsync", {1: "kept", 2: "refused"}, 2), "was refused"),
    "something twice": (replaced("log.fsync", {1: "kept", 2: "kept"}, 2), "is at 1 and at 2"),
    "half a batch": (replaced("log.disk", {2: "two", 3: "three", 4: "open"}, 4), "of a batch open too is missing"),
    "a hole": (replaced("log.fsync", {1: "kept"}, 2), r"\[2\] are missing"),
    "a tombstone": (replaced("log.fsync", {1: "kept"}, 2, {2}), "a tombstone for 2 to 2"),
    "a delete that is undone": (replaced("log.disk", {1: "one", 2: "two", 3: "three"}, 3), r"and \[1\] are there"),
    "an acked job that is back": (
        replaced("steady", {1: "j1", 2: "j2", 3: "j3"}, 3, ready=2, in_flight=1),
        r"and \[1\] are there",
    ),
    "a lease that is gone": (
        lambda told, found: found.update(steady=topic("steady", {2: "j2", 3: "j3"}, 3, ready=2)),
        "job 2 was handed out",
    ),
    "a topic that is missing": (without("log.fsync"), "are not there"),
    "a topic nobody asked for": (
        lambda told, found: found.update({"new.disk.x": topic("new.disk.x", {}, 0)}),
        "nobody asked for",
    ),
    "a count that is wrong": (lambda told, found: found["steady"].state.update(count=7), "and 2 records"),
}


@pytest.mark.parametrize("planted", PLANTED)
def test_what_contradicts_the_history_is_found(planted: str) -> None:
    told, found = history()
    plant, complaint = PLANTED[planted]
    plant(told, found)
    with pytest.raises(AssertionError, match=complaint):
        check(told, found, "kill")


def test_a_disk_topic_may_lose_its_tail_with_the_power_if_it_says_so() -> None:
    told, found = history()
    replaced("log.disk", {2: "two", 3: "three"}, 12, set(range(4, 13)))(told, found)
    check(told, found, "power loss")
    replaced("log.disk", {}, 12, set(range(2, 13)))(told, found)
    check(told, found, "power loss")
    replaced("log.disk", {}, 2, {1, 2})(told, found)
    with pytest.raises(AssertionError, match="seq 3 was told, the head is 2"):
        check(told, found, "power loss")
    told, found = history()
    replaced("log.fsync", {}, 1, {1})(told, found)
    with pytest.raises(AssertionError, match="was told as 1"):
        check(told, found, "power loss")


def diffed(after: int, last: int, *records: tuple[int, str]) -> tuple[Request, dict[str, Any]]:
    shown = [{"$seq": seq, "data": data, "$tag": "a"} for seq, data in records]
    request = Request("diff", "log.disk", {"from_seq": after})
    return request, {"records": shown, "next_from_seq": last, "tombstone": None}


@pytest.mark.parametrize(
    ("request_and_body", "complaint"),
    [
        (diffed(1, 3, (2, "two"), (3, "kept")), "was written to log.fsync"),
        (diffed(1, 3, (2, "three")), "seq 2 was told as two and as three"),
        (diffed(1, 4, (2, "two"), (3, "three"), (4, "two")), "two was told as 2 and as 4"),
        (diffed(1, 3, (2, "two")), "was not shown 3"),
        ((Request("write", "log.disk", {"records": [{"data": "new"}]}), written(2, 1)), "seq 2 was told as two and as"),
    ],
)
def test_an_answer_that_contradicts_an_earlier_one_is_found(
    request_and_body: tuple[Request, dict[str, Any]], complaint: str
) -> None:
    told, _ = history()
    request, body = request_and_body
    request = Request(request.kind, request.topic, request.body)
    told.asked(request)
    with pytest.raises(AssertionError, match=complaint):
        told.heard(Answer(request, 200, body), "h")


def test_a_repeat_under_a_key_that_is_told_other_seqs_or_appended_again_is_found() -> None:
    """G12"""
    for body, complaint in ((written(7, 2, deduped=True), "its repeat was told 7"), (written(2, 2), "2 times")):
        told, _ = history()
        request = write(told, "log.disk", 0, "two", "three", key="k")
        with pytest.raises(AssertionError, match=complaint):
            told.heard(Answer(request, 200, body), "h")


def test_a_request_of_which_the_end_was_never_sent_may_be_refused_and_not_carried_out() -> None:
    told, _ = history()
    request = write(told, "log.disk", 0, "half")
    told.withdrawn(request)
    told.heard(Answer(request, 503, {"error": {}}), "h")
    with pytest.raises(AssertionError, match="nobody asked"):
        told.heard(Answer(request, 200, written(9, 1)), "h")


def test_a_job_that_is_held_or_acked_and_handed_out_is_found() -> None:
    """G11"""
    for seq, complaint in ((1, "was acked, and handed out again"), (2, "is held by")):
        told, _ = history()
        with pytest.raises(AssertionError, match=complaint):
            claim(told, "other", seq)


def test_a_stream_that_goes_back_or_leaves_something_out_is_found() -> None:
    told, _ = history()
    two = [{"$seq": 2, "data": "two", "$tag": "a"}]
    told.heard(Pushed("record", {"topic": "log.disk", "records": two, "from_seq": 0, "to_seq": 2}), "s")
    with pytest.raises(AssertionError, match="goes on at 1, not at 2"):
        told.heard(Pushed("record", {"topic": "log.disk", "records": two, "from_seq": 1, "to_seq": 2}), "s")
    with pytest.raises(AssertionError, match="was not shown 3"):
        told.heard(Pushed("record", {"topic": "log.disk", "records": [], "from_seq": 2, "to_seq": 3}), "s")


def test_what_was_not_there_after_a_life_does_not_come_back_in_the_next() -> None:
    """G2, G9"""
    told, found = history()
    replaced("log.disk", {2: "two", 3: "three"}, 3)(told, found)
    check(told, found, "kill")
    told.adopt(found)
    check(told, found, "kill")
    replaced("log.disk", {2: "two", 3: "three", 4: "open", 5: "open too"}, 5)(told, found)
    with pytest.raises(AssertionError, match="was lost in an earlier life"):
        check(told, found, "kill")
