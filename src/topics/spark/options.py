"""The options of `format("topics")`: parsed and checked once, on the driver. An error names the option and its value.

Names are taken in any case, as Spark hands them over. The token is kept out of every repr and every message. Nothing
here knows Spark, and a server is asked for nothing.
"""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any, Final, Literal, NamedTuple, cast, get_args

import msgspec

from topics.client.fleets.addresses import checked_tokens, token_for
from topics.errors import InvalidRequest
from topics.model import SEQ_MAX, is_topic_name
from topics.spark.servers.connection import RETRIES, TIMEOUT_MS, Connection, Surroundings

OnGap = Literal["fail", "record", "ignore"]
Edge = Literal["earliest", "latest", "sealed"]
Binary = Literal["text", "base64"]  # bytes of a binary column data: the JSON text itself, or within a JSON string

CONNECTION: Final = ("url", "token", "tokenFile", "retries", "timeoutMs", "onServerDown")
TOKEN_OF: Final = "token."  # followed by a server: its own key
READING: Final = (
    *CONNECTION,
    *("path", "topic", "topics", "topicPattern", "startingSeq", "endingSeq", "startingTimestamp", "endingTimestamp"),
    *("minPartitions", "maxRecordsPerPartition", "maxRecordsPerTrigger", "maxBytesPerTrigger", "minRecordsPerTrigger"),
    *("maxTriggerDelay", "onGap", "archive", "node", "includeMeta", "binary", "pushFilters"),
)
WRITING: Final = (*CONNECTION, "topic", "node", "writeId", "binary", "checkFirst")
STREAMING_ONLY: Final = ("maxRecordsPerTrigger", "maxBytesPerTrigger", "minRecordsPerTrigger", "maxTriggerDelay")
BATCH_ONLY: Final = ("endingSeq", "endingTimestamp", "pushFilters")
# What Spark itself puts beside the options of a source or sink.
SPARKS: Final = frozenset({"checkpointlocation", "queryname", "recursivefilelookup"})

WRITE_ID_MAX: Final = 200  # characters; a key has at most 256, and the place in the write belongs to it
TRIGGER_DELAY_MS: Final = 15 * 60_000
UNITS_MS: Final = {"ms": 1, "s": 1000, "m": 60_000, "min": 60_000, "h": 3_600_000, "d": 86_400_000}


class Cursor(NamedTuple):
    """Where a reader stands in a topic: behind `seq` of the instance `epoch`; None = of whichever there is."""

    epoch: int | None
    seq: int
    server: str = ""  # that has the instance; "" = whichever has the topic


Position = Cursor | Edge  # where to start or to end


@dataclass(frozen=True, kw_only=True)
class ReadOptions:
    """What to read, from where, and what to do where something is missing."""

    server: Connection | None = None
    path: str | None = None  # of a data directory
    archive: str | None = None  # path of a lake
    names: tuple[str, ...] = ()
    pattern: re.Pattern[str] | None = None  # of whole names
    starting: Mapping[str, Position] | Position | None = None  # None = the default of the kind of read
    ending: Mapping[str, Position] | Position = "latest"
    starting_ts: Mapping[str, int] | int | None = None  # epoch-ms, inclusive
    ending_ts: Mapping[str, int] | int | None = None  # epoch-ms, exclusive
    partitions_min: int = 1
    partition_records_max: int | None = None
    trigger_records_max: int | None = None
    trigger_bytes_max: int | None = None
    trigger_records_min: int | None = None
    trigger_delay_ms: int = TRIGGER_DELAY_MS  # after which a batch need not have trigger_records_min
    on_gap: OnGap = "fail"
    nodes: tuple[str, ...] = ()  # the reader's own, whose records are left out
    includes_meta: bool = True
    binary: Binary = "text"
    pushes_filters: bool = False  # batch only
    tags: frozenset[str] | None = None  # of the records that a query's filters leave; None = of all

    def starting_ts_of(self, topic: str) -> int | None:
        return self.starting_ts.get(topic) if isinstance(self.starting_ts, Mapping) else self.starting_ts

    def ending_ts_of(self, topic: str) -> int | None:
        return self.ending_ts.get(topic) if isinstance(self.ending_ts, Mapping) else self.ending_ts

    def start_of(self, topic: str, default: Edge) -> Position:
        if isinstance(self.starting, Mapping):
            return self.starting.get(topic, default)
        return default if self.starting is None else self.starting

    def end_of(self, topic: str) -> Position:
        return self.ending.get(topic, "latest") if isinstance(self.ending, Mapping) else self.ending

    def matches(self, topic: str) -> bool:
        return topic in self.names or (self.pattern is not None and self.pattern.fullmatch(topic) is not None)


@dataclass(frozen=True, kw_only=True)
class WriteOptions:
    """Where to write."""

    server: Connection
    topic: str | None = None  # for rows without one
    node: str | None = None  # for rows without one
    write_id: str | None = None  # names a batch write: under the same name, the same rows are appended once
    binary: Binary = "text"
    checks_first: bool = True  # all rows of a partition, before the first one is sent


def bad(option: str, value: object, why: str) -> InvalidRequest:
    """The error of an option that cannot be used."""
    return InvalidRequest(f"option {option} is {value!r}: {why}")


def read_options(
    options: Mapping[str, str], *, is_stream: bool | None = None, environ: Mapping[str, str] | None = None
) -> ReadOptions:
    """The options of a read; of one whose kind is not known yet if `is_stream` is None."""
    given = _Given(options, READING, "reading")
    if is_stream is not None:
        for name in BATCH_ONLY if is_stream else STREAMING_ONLY:
            if name in given:
                raise bad(name, given[name], f"it is for {'batch' if is_stream else 'streaming'} reads only")
    server = _server(given, environ)
    path, archive = given.get("path"), given.get("archive")
    if server is None and path is None:
        raise InvalidRequest("nothing says where to read from: give option url (or TOPICS_URL), or option path")
    if server is not None and server.is_several and path is not None:
        raise bad("path", path, "a data directory belongs to one server, and option url names several")
    names, pattern = _selection(given)
    starting_ts, ending_ts = _times(given, "startingTimestamp", names), _times(given, "endingTimestamp", names)
    for seq_option, time_option in (("startingSeq", "startingTimestamp"), ("endingSeq", "endingTimestamp")):
        if seq_option in given and time_option in given:
            raise bad(time_option, given[time_option], f"{seq_option} is given, too; one of them is enough")
    ending = _positions(given, "endingSeq", names, ("latest", "sealed"))
    records_max, records_min = given.number("maxRecordsPerTrigger", None), given.number("minRecordsPerTrigger", None)
    if records_max is not None and records_min is not None and records_max < records_min:
        raise bad("minRecordsPerTrigger", given["minRecordsPerTrigger"], f"maxRecordsPerTrigger is {records_max}")
    if "maxTriggerDelay" in given and records_min is None:
        raise bad("maxTriggerDelay", given["maxTriggerDelay"], "it has a meaning only beside minRecordsPerTrigger")
    read = ReadOptions(
        server=server,
        path=path,
        archive=archive,
        names=names,
        pattern=pattern,
        starting=_positions(given, "startingSeq", names, ("earliest", "latest")),
        ending="latest" if ending is None else ending,
        starting_ts=starting_ts,
        ending_ts=ending_ts,
        partitions_min=given.number("minPartitions", 1),
        partition_records_max=given.number("maxRecordsPerPartition", None),
        trigger_records_max=records_max,
        trigger_bytes_max=given.number("maxBytesPerTrigger", None),
        trigger_records_min=records_min,
        trigger_delay_ms=given.duration_ms("maxTriggerDelay", TRIGGER_DELAY_MS),
        on_gap=cast(OnGap, given.word("onGap", get_args(OnGap), "fail")),
        nodes=_nodes(given),
        includes_meta=given.flag("includeMeta", True),
        binary=cast(Binary, given.word("binary", get_args(Binary), "text")),
        pushes_filters=given.flag("pushFilters", False),
    )
    for name in names or ("",):
        start, end = read.starting_ts_of(name), read.ending_ts_of(name)
        if start is not None and end is not None and end < start:
            raise bad("endingTimestamp", given["endingTimestamp"], "it lies before startingTimestamp")
    return read


def write_options(options: Mapping[str, str], environ: Mapping[str, str] | None = None) -> WriteOptions:
    given = _Given(options, WRITING, "writing")
    server = _server(given, environ)
    if server is None:
        raise InvalidRequest("nothing says where to write to: give option url, or set TOPICS_URL")
    write_id = given.get("writeId")
    if write_id is not None and not 0 < len(write_id) <= WRITE_ID_MAX:
        raise bad("writeId", write_id, f"it must have 1 to {WRITE_ID_MAX} characters")
    return WriteOptions(
        server=server,
        topic=_topic_name(given, "topic", given.get("topic")),
        node=given.get("node"),
        write_id=write_id,
        binary=cast(Binary, given.word("binary", get_args(Binary), "text")),
        checks_first=given.flag("checkFirst", True),
    )


def moment(name: str, given: str) -> int:
    """Epoch-milliseconds of an option: they themselves, or an ISO 8601 date-time with its offset."""
    text = given.strip()
    if text.isascii() and text.isdigit():
        return int(text)
    try:
        when = datetime.fromisoformat(text)
    except ValueError:
        raise bad(name, given, "it must be epoch-milliseconds or a date-time such as 2026-01-31T12:00:00Z") from None
    if when.tzinfo is None:
        raise bad(name, given, "it lacks a time zone, such as Z at its end")
    since = when - datetime(1970, 1, 1, tzinfo=UTC)
    return (since.days * 86_400 + since.seconds) * 1000 + since.microseconds // 1000


class _Given(Mapping[str, str]):
    """The options that were given, under the names that the documentation has."""

    def __init__(self, options: Mapping[str, str], known: Iterable[str], purpose: str) -> None:
        names = {name.lower(): name for name in known}
        self._values: dict[str, str] = {}
        self.tokens: dict[str, str] = {}
        for key, value in options.items():
            name = names.get(key.lower())
            if key.lower().startswith(TOKEN_OF):
                self.tokens[key[len(TOKEN_OF) :].lower()] = value
            elif name is not None:
                self._values[name] = value
            elif key.lower() not in SPARKS:
                everything = {name.lower(): name for name in (*READING, *WRITING)}
                known_as = everything.get(key.lower())
                if known_as is not None:
                    raise bad(known_as, value, f"it has no meaning in {purpose}")
                raise InvalidRequest(f"there is no option {key!r}; the options for {purpose} are {', '.join(known)}")

    def __getitem__(self, name: str) -> str:
        return self._values[name]

    def __iter__(self) -> Any:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)

    def number(self, name: str, default: Any, minimum: int = 1) -> Any:
        if name not in self:
            return default
        text = self[name].strip()
        if not (text.isascii() and text.isdigit()) or not minimum <= int(text) <= SEQ_MAX:
            raise bad(name, self[name], f"it must be a whole number, at least {minimum}")
        return int(text)

    def word(self, name: str, words: tuple[str, ...], default: str) -> str:
        value = self.get(name, default).strip().lower()
        if value not in words:
            raise bad(name, self[name], f"it must be one of {', '.join(words)}")
        return value

    def flag(self, name: str, default: bool) -> bool:
        value = self.get(name, str(default)).strip().lower()
        if value not in ("true", "1", "false", "0"):
            raise bad(name, self[name], "it must be true or false")
        return value in ("true", "1")

    def duration_ms(self, name: str, default: int) -> int:
        """A number with its unit, such as 500ms, 30s, 15m, 2h."""
        if name not in self:
            return default
        found = re.fullmatch(r"(\d{1,9})\s*([a-z]+)", self[name].strip().lower(), re.ASCII)
        if found is None or found[2] not in UNITS_MS:
            raise bad(name, self[name], f"it must be a number with one of the units {', '.join(UNITS_MS)}, such as 30s")
        return int(found[1]) * UNITS_MS[found[2]]


def _server(given: _Given, environ: Mapping[str, str] | None) -> Connection | None:
    surroundings = Surroundings.load(environ)
    url = given.get("url") or surroundings.url
    if not url:
        return None
    server = Connection(
        url=url,
        token=given.get("token") or surroundings.token,
        retries=given.number("retries", RETRIES, minimum=0),
        timeout_ms=given.number("timeoutMs", TIMEOUT_MS),
        waits=given.word("onServerDown", ("fail", "wait"), "fail") == "wait",
    )
    own = checked_tokens(server.urls, given.tokens)
    keys = ((address, token_for(address, own, "")) for address in server.urls)
    server = replace(server, url=",".join(server.urls), tokens=tuple((one, key) for one, key in keys if key))
    return server.with_tokens(given.get("tokenFile") or surroundings.token_file)


def _selection(given: _Given) -> tuple[tuple[str, ...], re.Pattern[str] | None]:
    ways = [name for name in ("topic", "topics", "topicPattern") if name in given]
    if len(ways) != 1:
        found = " and ".join(ways) + " are given" if ways else "none is given"
        raise InvalidRequest(f"exactly one of the options topic, topics and topicPattern says what to read; {found}")
    if ways == ["topicPattern"]:
        try:
            return (), re.compile(given["topicPattern"])
        except re.error as error:
            raise bad("topicPattern", given["topicPattern"], f"it is not a regular expression: {error}") from None
    names = [given["topic"]] if ways == ["topic"] else [name.strip() for name in given["topics"].split(",")]
    for name in names:
        _topic_name(given, ways[0], name)
    if len(set(names)) < len(names):
        raise bad("topics", given["topics"], "a topic is named twice")
    return tuple(names), None


def _topic_name(given: _Given, option: str, name: str | None) -> str | None:
    if name is not None and not is_topic_name(name):
        raise bad(option, given[option], f"{name!r} is not the name of a topic")
    return name


def _positions(
    given: _Given, option: str, names: tuple[str, ...], edges: tuple[str, ...]
) -> Mapping[str, Position] | Position | None:
    """`earliest`, `latest`, a seq, or a JSON object that gives one of these, or {"epoch", "seq"}, per topic."""
    if option not in given:
        return None
    text = given[option].strip()
    if text.lower() in edges:
        return cast(Position, text.lower())
    try:
        value = msgspec.json.decode(text)
    except msgspec.DecodeError:
        value = None
    if not isinstance(value, dict):
        return _position(given, option, value, edges)
    for name in value:
        if names and name not in names:
            raise bad(option, given[option], f"{name!r} is not among the topics that are read")
    return {name: _position(given, option, position, edges) for name, position in value.items()}


def _position(given: _Given, option: str, value: Any, edges: tuple[str, ...]) -> Position:
    if isinstance(value, str) and value.lower() in edges:
        return cast(Position, value.lower())
    if option == "startingSeq" and _is_cursor(value):
        return Cursor(value["epoch"], value["seq"], str(value.get("server", "")))
    if _is_seq(value):
        return Cursor(None, value)
    raise bad(option, given[option], f'it must be {", ".join(edges)}, a seq, or JSON such as {{"orders": 120}}')


def _is_cursor(value: Any) -> bool:
    return isinstance(value, dict) and _is_seq(value.get("epoch")) and _is_seq(value.get("seq"))


def _is_seq(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= SEQ_MAX


def _times(given: _Given, option: str, names: tuple[str, ...]) -> Mapping[str, int] | int | None:
    """A time for all topics, or a JSON object that gives one per topic."""
    if option not in given:
        return None
    text = given[option].strip()
    if not text.startswith("{"):
        return moment(option, text)
    try:
        times = msgspec.json.decode(text, type=dict[str, int | str])
    except msgspec.MsgspecError:
        raise bad(option, text, 'it must be a time, or JSON such as {"orders": "2026-01-31T12:00:00Z"}') from None
    for name in times:
        if names and name not in names:
            raise bad(option, text, f"{name!r} is not among the topics that are read")
    return {name: moment(option, str(time)) for name, time in times.items()}


def _nodes(given: _Given) -> tuple[str, ...]:
    """One id, or a JSON array of ids."""
    text = given.get("node")
    if text is None:
        return ()
    if not text.startswith("["):
        return (text,)
    try:
        return tuple(msgspec.json.decode(text, type=list[str]))
    except msgspec.DecodeError:
        raise bad("node", text, 'it must be one id, or a JSON array such as ["a", "b"]') from None
