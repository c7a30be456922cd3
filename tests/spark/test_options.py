"""The options of the source and the sink: what they mean, and what is said of wrong ones."""

import pickle
from typing import Any

import pytest

from topics.errors import InvalidRequest
from topics.spark.options import Cursor, read_options, write_options

BASE = {"url": "http://127.0.0.1:4000", "topic": "orders"}


def read(is_stream: bool = False, environ: dict[str, str] | None = None, **options: str) -> Any:
    return read_options(options, is_stream=is_stream, environ=environ or {})


def test_what_is_not_given_has_its_default() -> None:
    options = read(**BASE)
    assert (options.names, options.pattern, options.path, options.archive) == (("orders",), None, None, None)
    assert (options.on_gap, options.includes_meta, options.nodes, options.partitions_min) == ("fail", True, (), 1)
    assert options.start_of("orders", "earliest") == "earliest" and options.end_of("orders") == "latest"


def test_names_of_options_are_taken_in_any_case() -> None:
    assert read(**BASE, ONGAP="record", minpartitions="3").on_gap == "record"


def test_url_and_token_come_from_the_environment_unless_given() -> None:
    environ = {"TOPICS_URL": "http://there:1", "TOPICS_TOKEN": "secret"}
    options = read(environ=environ, topic="orders")
    assert (options.server.url, options.server.token) == ("http://there:1", "secret")
    options = read(environ=environ, topic="orders", url="http://here:2", token="mine")
    assert (options.server.url, options.server.token) == ("http://here:2", "mine")


def test_a_path_alone_needs_no_server() -> None:
    assert read(path="/data", topic="orders").server is None


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("earliest", "earliest"),
        ("LATEST", "latest"),
        ("7", Cursor(None, 7)),
        ('{"orders": 120}', Cursor(None, 120)),
        ('{"orders": "latest"}', "latest"),
        ('{"orders": {"epoch": 3, "seq": 9}}', Cursor(3, 9)),
    ],
)
def test_a_start_is_an_edge_a_seq_or_one_per_topic(text: str, expected: Any) -> None:
    assert read(**BASE, startingSeq=text).start_of("orders", "earliest") == expected


def test_topics_that_a_map_leaves_out_have_the_default() -> None:
    options = read(url="http://x", topics="a, b", startingSeq='{"a": 5}')
    assert options.start_of("b", "latest") == "latest"


@pytest.mark.parametrize(
    ("text", "ms"),
    [
        ("0", 0),
        ("1748450001000", 1748450001000),
        ("2025-05-28T16:33:21Z", 1748450001000),
        ("2025-05-28T18:33:21.500+02:00", 1748450001500),
    ],
)
def test_a_time_is_epoch_milliseconds_or_a_date_time_with_a_zone(text: str, ms: int) -> None:
    assert read(**BASE, startingTimestamp=text).starting_ts == ms


def test_nodes_are_one_id_or_an_array() -> None:
    assert read(**BASE, node="a").nodes == ("a",)
    assert read(**BASE, node='["a", "b"]').nodes == ("a", "b")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"startingSeq": "first"}, "option startingSeq is 'first'"),
        ({"startingSeq": "-1"}, "option startingSeq is '-1'"),
        ({"startingSeq": '{"other": 1}'}, "'other' is not among the topics"),
        ({"startingSeq": '{"orders": true}'}, "option startingSeq is"),
        ({"startingSeq": "sealed"}, "option startingSeq is 'sealed'"),
        ({"endingSeq": "earliest"}, "option endingSeq is 'earliest'"),
        ({"startingSeq": "1", "startingTimestamp": "2"}, "startingSeq is given, too"),
        ({"startingTimestamp": "yesterday"}, "option startingTimestamp is 'yesterday'"),
        ({"startingTimestamp": "2026-01-01T00:00:00"}, "lacks a time zone"),
        ({"startingTimestamp": "2", "endingTimestamp": "1"}, "option endingTimestamp is '1': it lies before"),
        ({"minPartitions": "0"}, "option minPartitions is '0'"),
        ({"minPartitions": "many"}, "option minPartitions is 'many'"),
        ({"onGap": "warn"}, "option onGap is 'warn': it must be one of fail, record, ignore"),
        ({"includeMeta": "perhaps"}, "option includeMeta is 'perhaps'"),
        ({"retries": "-1"}, "option retries is '-1'"),
        ({"timeoutMs": "0"}, "option timeoutMs is '0'"),
        ({"node": "[1]"}, "option node is"),
        ({"maxRecordsPerTrigger": "5"}, "option maxRecordsPerTrigger is '5': it is for streaming reads only"),
        ({"startingSeqs": "5"}, "there is no option 'startingSeqs'"),
        ({"topics": "a"}, "exactly one of the options topic, topics and topicPattern"),
    ],
)
def test_an_error_names_the_option_and_its_value(options: dict[str, str], message: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        read(**BASE, **options)
    assert message in str(caught.value)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"topic": "a/b"}, "'a/b' is not the name of a topic"),
        ({"topics": "a,,b"}, "'' is not the name of a topic"),
        ({"topics": "a,a"}, "named twice"),
        ({"topicPattern": "("}, "option topicPattern is '('"),
        ({}, "none is given"),
    ],
)
def test_an_error_names_what_is_wrong_with_the_selection(options: dict[str, str], message: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        read(url="http://x", **options)
    assert message in str(caught.value)


def test_streams_have_no_end() -> None:
    with pytest.raises(InvalidRequest, match="option endingSeq is '5': it is for batch reads only"):
        read(is_stream=True, **BASE, endingSeq="5")


def test_a_read_that_is_from_nowhere_says_so() -> None:
    with pytest.raises(InvalidRequest, match=r"url .or TOPICS_URL., or option path"):
        read(topic="orders")


def test_options_of_reads_have_no_meaning_in_writes() -> None:
    assert write_options({**BASE, "node": "n", "checkpointLocation": "/c"}, {}).topic == "orders"
    with pytest.raises(InvalidRequest, match="option onGap is 'record': it has no meaning in writing"):
        write_options({**BASE, "onGap": "record"}, {})
    with pytest.raises(InvalidRequest, match="where to write to"):
        write_options({"topic": "orders"}, {})


def test_the_token_is_in_no_repr_and_no_message() -> None:
    options = read(**BASE, token="very-secret")
    assert "very-secret" not in repr(options)
    assert pickle.loads(pickle.dumps(options)).server.token == "very-secret"
    with pytest.raises(InvalidRequest) as caught:
        read(**BASE, token="very-secret", onGap="no")
    assert "very-secret" not in str(caught.value)


# --- what users of the Kafka connector look for


def test_times_may_be_given_per_topic() -> None:
    text = '{"a": "1970-01-01T00:00:01Z", "b": 2000}'
    options = read(url="http://x", topics="a, b, c", startingTimestamp=text, endingTimestamp="9000")
    assert [options.starting_ts_of(name) for name in "abc"] == [1000, 2000, None]
    assert [options.ending_ts_of(name) for name in "abc"] == [9000] * 3
    for text in ('{"z": 1}', '{"a": null}', '{"a": [1]}', '{"a": 1', '{"a": "noon"}', '{"a": -5}'):
        with pytest.raises(InvalidRequest, match="option startingTimestamp is"):
            read(url="http://x", topics="a,b", startingTimestamp=text)
    with pytest.raises(InvalidRequest, match="it lies before startingTimestamp"):
        read(url="http://x", topics="a,b", startingTimestamp='{"b": 9}', endingTimestamp='{"a": 1, "b": 8}')


@pytest.mark.parametrize(("text", "ms"), [("500ms", 500), ("30 s", 30_000), ("15m", 900_000), ("2H", 7_200_000)])
def test_a_trigger_may_be_delayed_for_a_time(text: str, ms: int) -> None:
    assert read(True, **BASE, minRecordsPerTrigger="10").trigger_delay_ms == 900_000
    assert read(True, **BASE, minRecordsPerTrigger="10", maxTriggerDelay=text).trigger_delay_ms == ms


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"minRecordsPerTrigger": "0"}, "option minRecordsPerTrigger is '0'"),
        ({"maxTriggerDelay": "1m"}, "only beside minRecordsPerTrigger"),
        ({"minRecordsPerTrigger": "5", "maxTriggerDelay": "5"}, "option maxTriggerDelay is '5'"),
        ({"minRecordsPerTrigger": "5", "maxTriggerDelay": "-1s"}, "option maxTriggerDelay is '-1s'"),
        ({"minRecordsPerTrigger": "5", "maxRecordsPerTrigger": "4"}, "maxRecordsPerTrigger is 4"),
        ({"maxRecordsPerPartition": "0"}, "option maxRecordsPerPartition is '0'"),
        ({"binary": "hex"}, "it must be one of text, base64"),
    ],
)
def test_limits_that_make_no_sense_are_refused(options: dict[str, str], said: str) -> None:
    with pytest.raises(InvalidRequest, match=said):
        read(True, **BASE, **options)


def test_a_batch_has_no_triggers() -> None:
    with pytest.raises(InvalidRequest, match="it is for streaming reads only"):
        read(**BASE, minRecordsPerTrigger="5")
