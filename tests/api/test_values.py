"""Values in a body, whatever the endpoint: numbers, null, repeated fields, text, nesting."""

from typing import Any

import pytest

from tests.api.clients.transcript import (
    Client,
    ok,
    refused,
)

PLAIN_INTEGERS = ["ttl_ms", "cap_records", "cap_bytes", "idempotency_window_ms", "max_deliveries"]
CLAMPED = {"lease_ms": (100, 86_400_000), "claim_jitter_ms": (0, 5_000)}
NOT_INTEGERS = ["-1", "1.5", '"1"', "true", "[]", "{}", "-1e3", "0.1", "-9223372036854775809"]


@pytest.mark.parametrize("field", [*PLAIN_INTEGERS, *CLAMPED])
def test_a_config_integer_is_exact_or_clamped_and_nothing_else(api: Client, topic: str, field: str) -> None:
    """CV18, TP1, TP3"""
    path = f"/v0/topics/{topic}"
    api.create(topic)
    before = api.everything()
    for text in [*NOT_INTEGERS, "null"]:
        refused(api.put(path, f'{{"{field}":{text}}}'), 400, "invalid_request", None)
    if field in PLAIN_INTEGERS:
        refused(api.put(path, f'{{"{field}":18446744073709551616}}'), 400, "invalid_request", None)
        refused(api.put(path, f'{{"{field}":1{"0" * 300}}}'), 400, "invalid_request", None)
        assert api.everything() == before
        assert ok(api.put(path, f'{{"{field}":18446744073709551615}}'))["config"][field] == 2**64 - 1
    else:
        low, high = CLAMPED[field]
        assert api.everything() == before
        for text, value in (("0", low), (str(high), high), (str(high + 1), high), ("1" + "0" * 300, high)):
            assert ok(api.put(path, f'{{"{field}":{text}}}'))["config"][field] == value
    for text in ("1.0", "1e3"):
        assert api.put(path, f'{{"{field}":{text}}}').status in (200, 400)


def test_priority_is_clamped_on_both_sides(api: Client, topic: str) -> None:
    """CV18, CV19, TP3"""
    path = f"/v0/topics/{topic}"
    api.create(topic)
    for text, value in (
        *(("-1000", -1000), ("-1001", -1000), ("1001", 1000), ("-1" + "0" * 40, -1000), ("1" + "0" * 300, 1000)),
        *(("0", 0), ("null", None), ("-5", -5)),
    ):
        assert ok(api.put(path, f'{{"priority":{text}}}'))["config"]["priority"] == value
    for text in ("1.5", '"1"', "true", "[]"):
        refused(api.put(path, f'{{"priority":{text}}}'), 400, "invalid_request", None)


@pytest.mark.parametrize("field", ["from_seq", "limit", "wait_ms", "max_batch_bytes", "epoch"])
def test_a_diff_integer_is_exact_or_clamped_and_nothing_else(api: Client, topic: str, field: str) -> None:
    """CV18, DF1"""
    path = f"/v0/topics/{topic}/diff"
    api.write(topic, 1, 2)
    for text in NOT_INTEGERS:
        refused(api.post(path, f'{{"{field}":{text}}}'), 400, "invalid_request", None)
    is_seq = field in ("from_seq", "epoch")
    for text in ("18446744073709551616", "1" + "0" * 300):
        reply = api.post(path, f'{{"{field}":{text}}}')
        if is_seq:
            refused(reply, 400, "invalid_request", None)
        else:
            assert len(ok(reply)["records"]) == 2
    assert api.post(path, f'{{"{field}":18446744073709551615}}').status == 200


def test_a_delete_seq_is_exact(api: Client, topic: str) -> None:
    """CV18, CV19, DL1"""
    path = f"/v0/topics/{topic}/delete"
    api.write(topic, 1, 2)
    before = api.everything()
    for text in [*NOT_INTEGERS, "18446744073709551616", "null"]:
        refused(api.post(path, f'{{"before_seq":{text}}}'), 400, "invalid_request", None)
    assert api.everything() == before
    assert ok(api.post(path, '{"before_seq":18446744073709551615}'))["deleted"] == 2


def test_null_means_absent_where_the_contract_says_so(api: Client, topic: str) -> None:
    """CV19"""
    config = {"durability": None, "priority": None, "dead_letter": None, "durable": True}
    assert ok(api.put(f"/v0/topics/{topic}", config), 201)["config"]["durability"] == "fsync"
    record = {"data": None, "tag": None, "node": None, "meta": None}
    body = {"records": [record], "node": "n", "idempotency_key": None, "create": None, "config": None}
    assert api.post(f"/v0/topics/{topic}", body).status == 200
    answer = ok(
        api.post(f"/v0/topics/{topic}/diff", {"node": None, "epoch": None, "filter": None, "include_tags": True})
    )
    (found,) = answer["records"]
    assert found == {"$seq": 1, "$ts": found["$ts"], "$node": "n", "data": None}
    assert ok(api.post(f"/v0/topics/{topic}/delete", {"before_seq": 2, "match": None}))["deleted"] == 1
    api.write_records(topic, {"data": 1, "tag": "x"})
    assert ok(api.post(f"/v0/topics/{topic}/delete", {"before_seq": None, "match": "x"}))["deleted"] == 1


@pytest.mark.parametrize(
    ("method", "path", "body"),
    [
        *(("PUT", "", {field: None}) for field in [*PLAIN_INTEGERS, *CLAMPED, "type", "discard", "durable"]),
        *(("PUT", "", {field: None}) for field in ["auto_priority", "auto_create", "dedupe_node", "leases_durable"]),
        *(("POST", "/diff", {field: None}) for field in ["from_seq", "limit", "wait_ms", "max_batch_bytes"]),
        *(("POST", "/diff", {field: None}) for field in ["include_tags", "include_meta"]),
        ("POST", "", {"records": None}),
        ("POST", "", {"records": [None]}),
        ("POST", "", {"records": [{"data": 1}], "disable_backpressure": None}),
        ("POST", "", {"records": [{"data": 1}], "config": {"ttl_ms": None}}),
    ],
)
def test_null_is_refused_for_every_other_field(
    api: Client, topic: str, method: str, path: str, body: dict[str, Any]
) -> None:
    """CV19"""
    api.create(topic)
    before = api.everything()
    refused(api.ask(method, f"/v0/topics/{topic}{path}", body), 400, "invalid_request", None)
    assert api.everything() == before


def test_the_last_of_a_repeated_field_counts_and_is_what_the_checks_see(api: Client, topic: str) -> None:
    """CV20"""
    path = f"/v0/topics/{topic}"
    long = "x" * 300
    body = f'{{"records":[],"node":"{long}","records":[{{"data":NaNa}}]'
    refused(api.post(path, body), 400, "invalid_request")
    body = f'{{"node":"{long}","records":[{{"data":1,"tag":"{long}","tag":"t","data":2}}],"node":"n"}}'
    assert api.post(path, body).status == 201
    (record,) = api.diff(topic, include_tags=True)["records"]
    assert (record["data"], record["$tag"], record["$node"]) == (2, "t", "n")
    before = api.everything()
    refused(api.post(path, f'{{"records":[{{"data":1,"tag":"t","tag":"{long}"}}]}}'), 400, "invalid_request")
    refused(api.post(path, '{"records":[{"data":1}],"records":[]}'), 400, "invalid_request")
    assert api.everything() == before
    put = ok(api.put(path, '{"cap_records":5,"durability":"fsync","cap_records":7,"durability":"memory"}'))
    assert (put["config"]["cap_records"], put["config"]["durability"]) == (7, "memory")
    assert ok(api.post(f"{path}/diff", '{"from_seq":9,"from_seq":0}'))["tombstone"] is None
    assert ok(api.post(f"{path}/delete", '{"match":"zzz","match":"t"}'))["deleted"] == 1


@pytest.mark.parametrize("value", ["NaN", "Infinity", "-Infinity", "nan", "1_000", "0x10", "undefined", "'a'", "tru"])
@pytest.mark.parametrize("template", ['{"records":[{"data":%s}]}', '{"records":[{"data":1,"meta":{"a":%s}}]}'])
def test_what_is_no_json_value_is_refused_inside_data_and_meta(
    api: Client, topic: str, template: str, value: str
) -> None:
    """CV20"""
    before = api.everything()
    refused(api.post(f"/v0/topics/{topic}", template % value), 400, "invalid_request", None)
    assert api.everything() == before


BAD_TEXTS = [b"\xff", b"\xc3", b"\xed\xa0\x80", b"\xc0\xaf", b"\xf5\x80\x80\x80", b"\\ud800", b"\\udc00", b"\\ud83dx"]
BAD_TEXTS += [b"\\ud83d\\ud83d", b"\\uDE00\\uD83D", b"a\\\\\\ud800"]


@pytest.mark.parametrize("text", BAD_TEXTS, ids=repr)
@pytest.mark.parametrize(
    "template",
    [
        b'{"records":[{"data":"%b"}]}',
        b'{"records":[{"data":{"%b":1}}]}',
        b'{"records":[{"data":[[{"a":["%b"]}]]}]}',
        b'{"records":[{"data":1,"meta":{"a":"%b"}}]}',
        b'{"records":[{"data":1,"tag":"%b"}]}',
        b'{"records":[{"data":1,"node":"%b"}]}',
        b'{"records":[{"data":1,"other":"%b"}]}',
        b'{"records":[{"data":1}],"other":{"%b":1}}',
        b'{"records":[{"data":1}],"%b":1}',
        b'{"records":[{"data":1}],"idempotency_key":"%b"}',
    ],
    ids=repr,
)
def test_text_that_is_not_unicode_is_refused_wherever_it_stands(
    api: Client, topic: str, template: bytes, text: bytes
) -> None:
    """CV21"""
    before = api.everything()
    refused(api.post(f"/v0/topics/{topic}", template % text), 400, "invalid_request", None)
    assert api.everything() == before


@pytest.mark.parametrize("text", [b"\\ud800", b"\xff"], ids=repr)
def test_other_bodies_are_held_to_unicode_as_well(api: Client, topic: str, text: bytes) -> None:
    """CV21"""
    api.create(topic)
    before = api.everything()
    refused(api.put(f"/v0/topics/{topic}", b'{"x":"%b"}' % text), 400, "invalid_request", None)
    refused(api.post(f"/v0/topics/{topic}/diff", b'{"node":"%b"}' % text), 400, "invalid_request", None)
    refused(api.post(f"/v0/topics/{topic}/delete", b'{"match":"%b"}' % text), 400, "invalid_request", None)
    assert api.everything() == before


def test_escaped_backslashes_before_a_u_are_no_surrogate(api: Client, topic: str) -> None:
    """CV21"""
    text = b'"\\\\ud800 \\\\\\\\udc00 \\ud83d\\ude00"'
    assert api.post(f"/v0/topics/{topic}", b'{"records":[{"data":' + text + b"}]}").status == 201
    assert text in api.post(f"/v0/topics/{topic}/diff", {}).body


@pytest.mark.parametrize("depth", [128, 1_000, 100_000, 1_000_000])
@pytest.mark.parametrize("kind", ["array", "object"])
def test_deep_nesting_is_accepted_or_refused_and_harms_nothing(api: Client, topic: str, kind: str, depth: int) -> None:
    """CV21"""
    nested = b"[" * depth + b"]" * depth if kind == "array" else b'{"a":' * depth + b"1" + b"}" * depth
    bodies = {
        f"/v0/topics/{topic}": b'{"records":[{"data":' + nested[:900_000] + b"}]}",
        f"/v0/topics/{topic}-2": b'{"records":[{"data":1}],"unknown":' + nested + b"}",
        f"/v0/topics/{topic}-2/diff": b'{"unknown":' + nested + b"}",
        f"/v0/topics/{topic}-3": b'{"records":' + nested + b"}",
    }
    for path, body in bodies.items():
        reply = api.post(path, body)
        if depth == 128 and not path.endswith("-3"):
            assert reply.status in (200, 201), reply
        elif reply.status not in (200, 201):
            refused(reply, 400, "invalid_request") if not path.endswith("/diff") else None
            assert reply.status in (400, 404, 413)
    assert api.get("/v0/health").status == 200


def test_a_query_has_a_bounded_number_of_parameters(api: Client) -> None:
    """LM9: they are refused before they are taken apart."""
    api.create("t")
    ok(api.get("/v0/topics/t/diff?" + "&".join(f"a{n}=1" for n in range(512))))
    for path in ("/v0/topics/t/diff", "/v0/topics", "/v0/topics/t/export", "/v0/events", "/v0/metrics"):
        refused(api.get(f"{path}?" + "&".join(f"a{n}=1" for n in range(513))), 400, "invalid_request")
    refused(api.post("/v0/topics/t?" + "&" * 20_000, {"records": [{"data": 1}]}), 400, "invalid_request")
