"""The calls of the client against a server: what is sent arrives, what is answered is typed."""

import inspect
import pickle
import subprocess
import sys
import threading
from typing import Any

import msgspec
import pyarrow as pa
import pytest

import topics
import topics.client
from tests.client.conftest import Connect, Start
from topics import errors
from topics.client import (
    ApiError,
    AsyncClient,
    Client,
    NewRecord,
    Record,
    RecordsDeleted,
    TopicConfig,
    TopicListed,
    TopicPut,
    TopicState,
    Written,
)
from topics.client import errors as client_errors
from topics.errors import InvalidRequest, TopicNotFound
from topics.model import TagMatch
from topics.settings import ClientSettings
from topics.testing.patience import PATIENCE_MS
from topics.testing.server import ServerThread


def texts(records: list[Record]) -> list[bytes]:
    return [bytes(record.data) for record in records]


def test_appended_records_are_read_back_as_they_were_written(client: Any, topic: str) -> None:
    """CV6, WR1, WR2, DF2"""
    written = client.append(
        topic,
        [NewRecord({"a": 1}, tag="t", meta={"k": "v"}), {"data": None, "node": "own"}, {"data": msgspec.Raw(b"1.0")}],
        node="batch",
    )
    assert isinstance(written, Written)
    assert (list(written.seqs), written.created, written.deduped) == ([1, 2, 3], True, False)
    records = client.diff(topic, include_tags=True).records
    assert texts(records) == [b'{"a":1}', b"null", b"1.0"]
    assert [record.value for record in records] == [{"a": 1}, None, 1.0]
    assert [record.node for record in records] == ["batch", "own", "batch"]
    assert [record.tag for record in records] == ["t", None, None]
    assert (bytes(records[0].meta), records[0].meta_value, records[1].meta_value) == (b'{"k":"v"}', {"k": "v"}, None)


def test_ndjson_is_appended_from_bytes_and_from_lines(client: Any, topic: str) -> None:
    """A.16"""
    client.append_ndjson(topic, b'{"data":1,"tag":"a"}\n{"data":2}\n', node="n")
    client.append_ndjson(topic, (f'{{"data":{n}}}' for n in (3, 4)))
    diff = client.diff(topic, include_tags=True)
    assert [(r.value, r.tag, r.node) for r in diff.records] == [
        (1, "a", "n"),
        (2, None, "n"),
        (3, None, None),
        (4, None, None),
    ]


@pytest.mark.parametrize("form", ["table", "batch", "batches", "bytes"])
def test_arrow_is_appended_in_every_form(client: Any, topic: str, form: str) -> None:
    """A.16"""
    table = pa.table({"data": ["1", '{"x": 2}'], "tag": ["a", None]})
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    forms = {
        "table": table,
        "batch": table.to_batches()[0],
        "batches": iter(table.to_batches()),
        "bytes": sink.getvalue().to_pybytes(),
    }
    assert client.append_arrow(topic, forms[form]).count == 2
    assert texts(client.diff(topic).records) == [b"1", b'{"x": 2}']


def test_a_diff_has_every_field_of_the_api(server: ServerThread, client: Any, topic: str) -> None:
    """DF1, ND1, A.7, A.16"""
    client.append(topic, [{"data": n, "tag": f"t{n % 2}", "node": f"n{n}", "meta": {"n": n}} for n in range(1, 7)])
    server.advance(1000)
    client.append(topic, [{"data": 7, "tag": "t1"}])
    later = client.diff(topic, 6).records[0].ts
    assert [r.seq for r in client.diff(topic, 2, limit=2).records] == [3, 4]
    assert [r.seq for r in client.diff(topic, node=["n1", "n2"]).records] == [3, 4, 5, 6, 7]
    assert [r.seq for r in client.diff(topic, filter=("tag", "Glob", "t1*")).records] == [1, 3, 5, 7]
    assert [r.seq for r in client.diff(topic, filter=TagMatch("Eq", "t0")).records] == [2, 4, 6]
    assert [r.seq for r in client.diff(topic, from_ts=later).records] == [7]
    assert [r.seq for r in client.diff(topic, max_batch_bytes=1).records] == [1]
    assert bytes(client.diff(topic, include_meta=False).records[0].meta) == b""
    assert client.diff(topic, epoch=10**6).tombstone.reason == "recreated"


def test_a_long_poll_is_answered_when_its_record_comes(client: Any, server: ServerThread, topic: str) -> None:
    """DF8"""
    client.put_topic(topic)

    def write_later() -> None:
        server.until(lambda: server.clock.waits)
        with Client("http://{}:{}".format(*server.address), "") as other:
            other.append(topic, [{"data": "news"}])

    writer = threading.Thread(target=write_later)
    writer.start()
    assert [r.value for r in client.diff(topic, wait_ms=20_000).records] == ["news"]
    writer.join()


def test_a_config_is_put_by_fields_or_as_a_whole(client: Any, topic: str) -> None:
    """TP5, TP6"""
    put = client.put_topic(topic, cap_records=3, durability="fsync")
    assert isinstance(put, TopicPut)
    assert put.created and put.config == TopicConfig(cap_records=3, durability="fsync", durable=True)
    state = client.state(topic, touch=False)
    assert isinstance(state, TopicState)
    assert (state.config, state.head_seq, state.last_read_ts) == (put.config, 0, None)
    assert client.put_topic(topic, state.config).config == put.config
    assert client.put_topic(topic, state.config, cap_records=9).config.cap_records == 9
    assert client.put_topic(topic).config == TopicConfig()


def test_a_config_that_contradicts_itself_is_not_sent(client: Any, topic: str) -> None:
    """TP2"""
    with pytest.raises(InvalidRequest, match="durable is True but durability is 'disk'"):
        client.put_topic(topic, TopicConfig(durable=True))


def test_a_write_can_bring_its_topic_with_its_config(client: Any, topic: str) -> None:
    """WR7"""
    client.append(topic, [{"data": 1}], config={"cap_records": 2})
    assert client.state(topic).config.cap_records == 2
    with pytest.raises(TopicNotFound):
        client.append(f"{topic}.absent", [{"data": 1}], create=False)


def test_all_topics_are_listed_page_by_page(client: Any, topic: str) -> None:
    """TP10, CV15"""
    names = [f"{topic}.{n}" for n in range(7)]
    for name in names:
        client.put_topic(name)
    listed = list(client.topics(f"{topic}.", page_size=3))
    assert [entry.topic for entry in listed] == names
    assert all(isinstance(entry, TopicListed) for entry in listed)


def test_records_and_topics_are_deleted(client: Any, topic: str) -> None:
    """DL1, DL6, TP11"""
    client.append(topic, [{"data": n, "tag": "odd" if n % 2 else "even"} for n in range(1, 7)])
    deleted = client.delete_records(topic, match="odd")
    assert isinstance(deleted, RecordsDeleted) and (deleted.deleted, deleted.count) == (3, 3)
    assert client.delete_records(topic, before_seq=3).deleted == 1
    assert client.delete_records(topic, before_seq=5, match=["tag", "Glob", "e*"]).deleted == 1
    epoch = client.state(topic).epoch
    with pytest.raises(errors.EpochMismatch) as refusal:
        client.delete_records(topic, before_seq=9, epoch=epoch + 1)
    assert refusal.value.detail == {"topic": topic, "epoch": epoch, "requested_epoch": epoch + 1}
    assert client.delete_records(topic, before_seq=5, epoch=epoch).deleted == 0
    with pytest.raises(errors.TopicNotEmpty):
        client.delete_topic(topic, if_empty=True)
    assert client.delete_topic(topic).deleted is True
    assert client.delete_topic(topic).deleted is False


def test_a_server_tells_of_itself(client: Any) -> None:
    """HM1, HM2, HM5"""
    assert client.health().status == "ok"
    assert client.ready().wal_replay_complete is True
    assert client.metrics()["ready"] in (True, 1)


def test_an_error_is_of_the_class_of_its_code_and_names_the_request(client: Any, topic: str) -> None:
    """ER1, ER2, ER4"""
    with pytest.raises(TopicNotFound) as caught:
        client.state(topic)
    error = caught.value
    assert isinstance(error, ApiError) and type(error) is client_errors.TopicNotFound
    assert (error.status, error.code, error.detail) == (404, "topic_not_found", {"topic": topic})
    assert (error.method, error.path) == ("GET", f"/v0/topics/{topic}")
    assert str(error) == f'GET /v0/topics/{topic}: 404 topic_not_found: topic "{topic}" does not exist'
    again = pickle.loads(pickle.dumps(error))
    assert (type(again), str(again), vars(again)) == (type(error), str(error), vars(error))


def test_every_code_of_the_api_has_a_class_that_is_also_the_engines() -> None:
    """ER2"""
    own = {cls.code: cls for cls in vars(errors).values() if isinstance(cls, type) and issubclass(cls, errors.Refusal)}
    del own["internal"]  # the root of the refusals
    assert {code for code in client_errors.CODES if code != "internal"} == set(own)
    assert all(issubclass(client_errors.CODES[code], cls) for code, cls in own.items())


def test_what_is_no_record_is_not_sent(client: Any, topic: str) -> None:
    with pytest.raises(InvalidRequest, match=r"records\[1\] is not a record"):
        client.append(topic, [{"data": 1}, {"sku": "A"}])
    with pytest.raises(InvalidRequest, match=r'"tags" is not a field of records\[0\]; did you mean tag\?'):
        client.append(topic, [{"data": 1, "tags": "x"}])
    with pytest.raises(InvalidRequest, match="cannot be encoded as JSON"):
        client.append(topic, [{"data": object()}])
    with pytest.raises(InvalidRequest, match="name of the topic is empty"):
        client.append("", [{"data": 1}])


def test_a_config_with_an_unknown_field_is_not_sent(client: Any, topic: str) -> None:
    """WN1: the server would ignore it, and say so; the client knows better."""
    with pytest.raises(InvalidRequest, match=r'"cap_record" is not a field of a config; did you mean cap_records\?'):
        client.put_topic(topic, {"cap_record": 5})
    with pytest.raises(InvalidRequest, match=r"did you mean durability\?"):
        client.put_topic(topic, durabilty="fsync")
    with pytest.raises(InvalidRequest, match=r"did you mean ttl_ms\?"):
        client.put_topic(topic, TopicConfig(), ttl=5)
    with pytest.raises(InvalidRequest, match=r"did you mean lease_ms\?"):
        client.append(topic, [{"data": 1}], config={"lease_m": 5})
    with pytest.raises(TopicNotFound):
        client.state(topic)


def test_a_put_may_be_tried_and_brings_warnings(client: Any, topic: str) -> None:
    """DR1, WN1"""
    tried = client.put_topic(topic, cap_records=1, dry_run=True)
    assert (tried.dry_run, tried.created, tried.would_evict.records) == (True, True, 0)
    assert [(one.code, one.field) for one in tried.warnings] == [("cap_below_batch", "cap_records")]
    client.append(topic, [{"data": n, "tag": "t"} for n in range(3)])
    assert client.put_topic(topic, cap_records=2, dry_run=True).would_evict.records == 1
    deleted = client.delete_records(topic, match="t", dry_run=True)
    assert (deleted.dry_run, deleted.deleted, deleted.deleted_bytes, deleted.count) == (True, 3, 3, 0)
    done = client.put_topic(topic, TopicConfig(cap_records=9))
    assert (done.dry_run, done.would_evict, done.warnings, done.created) == (False, None, [], False)
    assert client.state(topic).count == 3


def test_a_key_that_stands_for_other_records_is_an_error_unless_they_may_be_ignored(client: Any, topic: str) -> None:
    """ID9"""
    table = pa.table({"data": ["2"]})
    assert client.append(topic, [{"data": 1}], idempotency_key="k").mismatch is False
    assert client.append_ndjson(topic, b'{"data":1}', idempotency_key="k").deduped is True
    calls = [
        lambda **more: client.append(topic, [{"data": 2}], idempotency_key="k", **more),
        lambda **more: client.append_ndjson(topic, [b'{"data":2}'], idempotency_key="k", **more),
        lambda **more: client.append_arrow(topic, table, idempotency_key="k", **more),
    ]
    for call in calls:
        with pytest.raises(errors.IdempotencyMismatch) as caught:
            call()
        assert caught.value.detail == {"idempotency_key": "k", "first_seq": 1, "last_seq": 1}
        assert call(on_mismatch=None).mismatch is True
    assert client.state(topic).head_seq == 1


def test_a_strange_name_reaches_the_server_as_it_is(client: Any) -> None:
    """CV12, CV14"""
    with pytest.raises(InvalidRequest) as caught:
        client.put_topic("a/b é?")
    assert isinstance(caught.value, ApiError)


def test_bodies_are_compressed_both_ways_if_asked(server: ServerThread, connect: Connect, topic: str) -> None:
    """CV7"""
    client = connect(server.address, gzip=True)
    text = "x" * 5000
    client.append(topic, [{"data": text}] * 3)
    assert [record.value for record in client.diff(topic).records] == [text] * 3


def test_a_key_is_sent_and_never_shown(start: Start, connect: Connect, topic: str) -> None:
    """AU1, AU2"""
    server = start(api_keys="s3cret-key,dash:read")
    client = connect(server.address, "s3cret-key", retries=0)
    assert client.append(topic, [{"data": 1}]).count == 1
    with pytest.raises(errors.Unauthorized) as caught:
        connect(server.address, "wrong-s3cret").state(topic)
    with pytest.raises(errors.Forbidden):
        connect(server.address, "dash").append(topic, [{"data": 1}])
    assert "s3cret" not in repr(client) + str(caught.value) + repr(vars(caught.value))


def test_a_client_is_pickled_without_its_connections(server: ServerThread, topic: str) -> None:
    with Client("http://{}:{}".format(*server.address), "", timeout_ms=PATIENCE_MS) as client:
        client.append(topic, [{"data": 1}])
        with pickle.loads(pickle.dumps(client)) as again:
            assert again.url == client.url
            assert again.state(topic).head_seq == 1


@pytest.mark.parametrize("kind", [Client, AsyncClient])
def test_address_and_key_come_from_the_environment_unless_given(
    kind: type[Client], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TOPICS_URL", "http://there:1234/base/")
    monkeypatch.setenv("TOPICS_TOKEN", "hidden")
    assert kind().url == "http://there:1234/base"
    assert kind("https://[::1]").url == "https://[::1]:443"
    assert "hidden" not in repr(kind()) + repr(ClientSettings.load()) + repr(kind().__getstate__())
    assert ClientSettings.load({}) == ClientSettings(url="http://127.0.0.1:4000", token="")


@pytest.mark.parametrize(
    "url",
    [
        "ftp://x",
        "http://",
        "http://x:0",
        "http://x:port",
        "http://user:key@x",
        "http://x?y",
        "http://a..b",
        "http://x/a b",
    ],
)
def test_a_url_that_names_no_server_is_refused(url: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        Client(url, "")
    assert "key" not in str(caught.value) or "token" in str(caught.value)


def test_both_clients_have_the_same_methods_with_the_same_arguments() -> None:
    def methods(kind: type) -> dict[str, list[str]]:
        found = inspect.getmembers(kind, inspect.isfunction)
        return {
            name: [str(p.replace(annotation=p.empty)) for p in inspect.signature(method).parameters.values()]
            for name, method in found
            if not name.startswith("_")
        }

    assert methods(Client) == methods(AsyncClient)


def test_importing_the_client_loads_neither_the_server_nor_arrow() -> None:
    heavy = ("topics.server", "topics.engine", "topics.storage", "pyarrow", "pandas", "uvloop", "typer")
    code = f"import sys, topics.client; print([m for m in {heavy!r} if m in sys.modules])"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout.strip() == "[]"


def test_every_public_name_is_there() -> None:
    assert topics.client.__all__ == sorted(topics.client.__all__)
    assert all(hasattr(topics.client, name) for name in topics.client.__all__)


def test_the_package_offers_both_clients() -> None:
    assert (topics.Client, topics.AsyncClient) == (Client, AsyncClient)
