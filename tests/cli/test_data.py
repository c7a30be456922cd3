"""Records, topics, cursors and routers from the command line."""

import json
from pathlib import Path

import pytest

from tests.cli.conftest import Shell
from topics.client import Client
from topics.testing.server import ServerThread


def test_arguments_lines_and_files_are_sent_in_order(shell: Shell, client: Client, tmp_path: Path) -> None:
    (tmp_path / "more.ndjson").write_text('{"n":3}\n\n{"n": 4}\n')
    answer = shell.ok(
        "send", "sent", '{"n":1}', "-", "--file", "more.ndjson", "--tag", "eu", "--json", stdin='{"n":2}\n'
    )
    assert answer.lines == [{"topic": "sent", "records": 4, "deduped": 0, "first_seq": 1, "last_seq": 4}]
    records = client.diff("sent", include_tags=True).records
    assert [bytes(record.data) for record in records] == [b'{"n":1}', b'{"n":2}', b'{"n":3}', b'{"n": 4}']
    assert {record.tag for record in records} == {"eu"}


def test_what_is_not_json_is_refused_with_its_place_and_what_came_before_is_sent(shell: Shell, client: Client) -> None:
    answer = shell.run("send", "broken", stdin="1\n2\noops\n4\n")
    assert answer.code == 2
    assert "stdin, line 3" in answer.err and "'oops' is not JSON" in answer.err and "--text" in answer.err
    assert client.state("broken").head_seq == 2


def test_plain_text_whole_records_and_headers(shell: Shell, client: Client) -> None:
    shell.ok("send", "texts", "--text", "hello", "--node", "n1", "--meta", '{"k":1}')
    shell.ok("send", "texts", "--records", '{"data":7,"tag":"a"}')
    first, second = client.diff("texts", include_tags=True).records
    assert (first.value, first.node, first.meta_value) == ("hello", "n1", {"k": 1})
    assert (second.value, second.tag) == (7, "a")
    assert shell.run("send", "texts", "1", "--meta", "[]").code == 2


def test_a_send_under_a_key_is_repeated_without_doubling(shell: Shell, client: Client) -> None:
    lines = "".join(f"{n}\n" for n in range(25))
    arguments = ("send", "keyed", "-", "--batch", "10", "--idempotency-key", "load-1", "--json")
    assert shell.ok(*arguments, stdin=lines).lines[0]["deduped"] == 0
    assert shell.ok(*arguments, stdin=lines).lines[0]["deduped"] == 25
    assert client.state("keyed").count == 25


def test_a_read_starts_where_it_is_told(shell: Shell, client: Client) -> None:
    client.append("reading", [{"data": n, "tag": "eu.x" if n % 2 else "us"} for n in range(1, 21)])
    client.delete_records("reading", match="us")

    def seqs(*arguments: str) -> list[int]:
        return [line["$seq"] for line in shell.ok("read", "reading", "--json", *arguments).lines]

    assert seqs() == list(range(1, 21, 2))
    assert seqs("--from", "-3") == [15, 17, 19]
    assert seqs("--from", "14", "-n", "2") == [15, 17]
    assert seqs("--from", "latest") == [] and seqs("-n", "0") == []
    assert seqs("--filter", "eu*", "--from", "-1") == [19] and seqs("--filter", "us") == []
    assert seqs("--from", "2100-01-01") == [] and seqs("--until", "2000-01-01") == []
    assert shell.ok("read", "reading", "-n", "1", "--format", r"%s\t%g %d%%").out == "1\teu.x 1%\n"
    assert [line["$seq"] for line in shell.ok("tail", "reading", "-n", "2", "--json").lines] == [17, 19]


def test_what_was_lost_is_announced_with_range_and_reason(shell: Shell, client: Client) -> None:
    client.put_topic("capped", cap_records=2)
    client.append("capped", [{"data": n} for n in range(1, 6)])
    answer = shell.ok("read", "capped")
    assert "!!! capped: 3 lost, seqs 1 to 3: cap" in answer.err and "lost" not in answer.out
    first = shell.ok("read", "capped", "--json").lines[0]
    assert first == {"topic": "capped", "tombstone": {"gap_from": 1, "gap_to": 3, "reason": "cap"}}
    assert shell.run("read", "capped", "--strict").code == 1
    assert "!!! capped" in shell.ok("tail", "capped", "-n", "9").err


def test_several_topics_are_printed_in_the_order_of_time(shell: Shell, client: Client, server: ServerThread) -> None:
    for n in range(4):
        client.append(f"merged.{n % 2}", [{"data": n}])
        server.advance(10)
    found = shell.ok("tail", "merged.*", "--json").lines
    assert [(line["topic"], line["data"]) for line in found] == [(f"merged.{n % 2}", n) for n in range(4)]


def test_a_list_has_counts_types_losses_and_lag(shell: Shell, client: Client) -> None:
    client.append("listed.a", [{"data": "x"}] * 3)
    client.put_cursor("listed.a", "mailer", 1)
    client.put_topic("listed.q", type="queue")
    rows = shell.ok("ls", "listed.*", "-l", "--sort", "records", "--json").lines
    assert [(row["topic"], row["type"], row["records"], row["lag"]) for row in rows] == [
        ("listed.a", "log", 3, 2),
        ("listed.q", "queue", 0, 0),
    ]
    assert "listed.a" in shell.ok("ls", "listed.").out
    assert len(shell.ok("ls", "listed.a", "--watch", "--every", "50ms", "-n", "2", "--json").lines) == 2


def test_info_says_what_became_of_every_record(shell: Shell, client: Client) -> None:
    client.put_topic("informed", cap_records=2)
    client.append("informed", [{"data": n} for n in range(5)])
    client.put_cursor("informed", "slow", 1)
    out = shell.ok("info", "informed").out
    assert "5 = 2 live + 3 lost + 0 expired + 0 deleted" in out
    assert "seqs 1 to 3: cap" in out and "slow: at 1" in out and "cap_records: 2" in out
    (found,) = shell.ok("info", "informed", "--json").lines
    assert found["lost_total"] == 3 and found["cursors"][0]["name"] == "slow"


def test_put_changes_only_what_is_given_and_shows_it_first(shell: Shell, client: Client) -> None:
    out = shell.ok("put", "set", "--cap-records", "9", "--ttl", "1h", "--durability", "fsync").out
    assert "cap_records: 0 → 9" in out and "set: created" in out
    shell.ok("put", "set", "--cap-bytes", "1MiB", "--priority", "7")
    config = client.state("set").config
    assert (config.cap_records, config.ttl_ms, config.cap_bytes, config.priority) == (9, 3_600_000, 1_048_576, 7)
    assert config.durability == "fsync"
    assert "would drop 0 records" in shell.ok("put", "set", "--cap-records", "1", "--dry-run").out
    shell.ok("put", "set", "--reset", "--cap-records", "3", "--priority", "auto")
    config = client.state("set").config
    assert (config.cap_records, config.cap_bytes, config.durability, config.priority) == (3, 0, "disk", None)
    assert "warning: max_deliveries is 5" in shell.ok("put", "warned", "--type", "queue", "--max-deliveries", "5").err


def test_a_config_that_drops_records_asks(shell: Shell, client: Client) -> None:
    client.append("dropping", [{"data": n} for n in range(9)])
    answer = shell.run("put", "dropping", "--cap-records", "2")
    assert answer.code == 2 and "7 records, 7 B" in answer.err and "--yes" in answer.err
    assert client.state("dropping").count == 9
    shell.ok("put", "dropping", "--cap-records", "2", "--yes")
    assert client.state("dropping").count == 2


def test_topics_and_records_go_after_a_question_with_count_and_bytes(shell: Shell, client: Client) -> None:
    client.append("going", [{"data": n, "tag": f"t{n}"} for n in range(1, 6)])
    answer = shell.run("rm", "going")
    assert answer.code == 2 and "5 records, 5 B" in answer.err
    answer = shell.run("delete", "going", "--prefix", "t", "--before", "3")
    assert answer.code == 2 and "2 of 5 records, 2 B" in answer.err
    assert client.state("going").count == 5
    (trial,) = shell.ok("delete", "going", "--tag", "t5", "--dry-run", "--json").lines
    assert (trial["deleted"], trial["deleted_bytes"], trial["dry_run"]) == (1, 1, True)
    shell.ok("delete", "going", "--before", "3", "--yes")
    assert client.state("going").count == 3
    shell.ok("delete", "going", "--all", "--yes")
    assert client.state("going").count == 0
    shell.ok("rm", "going", "--yes")
    assert shell.run("info", "going").code == 4


@pytest.mark.parametrize(
    "arguments",
    [(), ("--tag", "a", "--prefix", "b"), ("--all", "--before", "2"), ("--before", "0"), ("--prefix", "a*b")],
)
def test_a_delete_that_says_not_what_is_refused(shell: Shell, client: Client, arguments: tuple[str, ...]) -> None:
    client.append("kept", [{"data": 1}], create=True)
    assert shell.run("delete", "kept", *arguments, "--yes").code == 2


def test_named_cursors_are_put_shown_and_removed(shell: Shell, client: Client) -> None:
    client.append("noted", [{"data": n} for n in range(5)])
    shell.ok("cursor", "put", "noted", "mailer", "2", "--if-seq", "none")
    assert shell.ok("cursor", "get", "noted", "mailer").out == "2\n"
    assert shell.run("cursor", "put", "noted", "mailer", "3", "--if-seq", "1").code == 1
    assert shell.run("cursor", "put", "noted", "mailer", "3", "--if-seq", "x").code == 2
    assert [(line["name"], line["lag"]) for line in shell.ok("cursor", "ls", "noted", "--json").lines] == [
        ("mailer", 3)
    ]
    shell.ok("cursor", "rm", "noted", "mailer")
    assert shell.run("cursor", "get", "noted", "mailer").code == 4


def test_routers_are_put_tested_and_removed(shell: Shell, client: Client) -> None:
    shell.ok("router", "put", "r->eu", "routed", "routed.eu", "--filter", "eu*")
    client.append("routed", [{"data": n, "tag": tag} for n, tag in enumerate(["eu.a", "us", "eu.b"])])
    assert [record.value for record in client.diff("routed.eu").records] == [0, 2]
    tested = {line["tag"]: line["matches"] for line in shell.ok("router", "test", "routed", "eu*", "--json").lines}
    assert tested == {"eu.a": True, "us": False, "eu.b": True}
    assert "r->eu" in shell.ok("router", "ls").out
    assert shell.run("router", "rm", "r->eu").code == 2
    shell.ok("router", "rm", "r->eu", "--yes")
    assert shell.ok("router", "ls", "--json").lines == []


def test_jobs_are_claimed_and_settled_by_hand(shell: Shell, client: Client) -> None:
    shell.ok("put", "tasks", "--type", "queue", "--max-deliveries", "1", "--dead-letter", "tasks.dead")
    shell.ok("send", "tasks", "1", "2", "3")
    assert [line["$seq"] for line in shell.ok("queue", "claim", "tasks", "-n", "2", "--json").lines] == [1, 2]
    assert [line["$seq"] for line in shell.ok("queue", "leases", "tasks", "--json").lines] == [1, 2]
    assert [line["$seq"] for line in shell.ok("queue", "peek", "tasks", "--json").lines] == [1, 2, 3]
    shell.ok("queue", "extend", "tasks", "1", "--lease", "5m")
    shell.ok("queue", "ack", "tasks", "1")
    shell.ok("queue", "nack", "tasks", "2")
    answer = shell.run("queue", "ack", "tasks", "1", "2", "99")
    assert answer.code == 1 and "does not hold 1, 2, 99" in answer.err
    shell.ok("queue", "pause", "tasks")
    assert "is paused" in shell.ok("queue", "claim", "tasks").err
    shell.ok("queue", "resume", "tasks")
    shell.ok("queue", "claim", "tasks")  # moves what was delivered too often
    assert "1 dead letters" in shell.run("queue", "redrive", "tasks").err
    assert shell.ok("queue", "redrive", "tasks", "--yes", "--json").lines[0]["redriven"] == 1


def test_events_are_printed_as_json(shell: Shell, client: Client) -> None:
    client.append("pushed", [{"data": {"b": 1, "a": 2}}])
    first, second = shell.ok("watch", "pushed", "--from", "earliest", "-n", "2").lines
    assert first["event"] == "record" and json.dumps(first["records"][0]["data"]) == '{"b": 1, "a": 2}'
    assert second == {"event": "caught-up", "topic": "pushed", "head_seq": 1}
    assert shell.run("watch", "pushed", "--from", "nowhere").code == 2


@pytest.mark.parametrize("command", ["tail", "watch"])
def test_a_pattern_that_fits_no_topic_is_told(shell: Shell, command: str) -> None:
    answer = shell.run(command, "nothing.fits.*")
    assert answer.code == 4 and "no topic fits" in answer.err


def test_what_is_printed_for_people_cannot_steer_the_terminal(shell: Shell, client: Client) -> None:
    client.append("steering", [{"data": "\x9b31m", "tag": "\x1b[2J"}])
    out = shell.ok("read", "steering").out
    assert "\x1b" not in out and "\x9b" not in out and out.count("\n") == 1
