"""A pipeline as a TOML file: what it may say, and what is wrong with it, named by its key.

    checkpoint = "state"

    [sources.orders]
    topic = "orders"
    schema = "sku STRING, price DECIMAL(12,2), at TIMESTAMP"
    watermark = { column = "at", delay = "1 minute" }

    [[steps]]
    name = "revenue"
    sql = "SELECT window.start AS minute, sum(price) AS total FROM orders GROUP BY window(at, '1 minute')"

    [sinks.out]
    from = "revenue"
    topic = "revenue"

Pure: no session, no server. A declaration that is accepted has names that are used once, sinks that know where to
write, and no sink that feeds a source of its own.
"""

import difflib
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Literal, cast, get_args

from topics.errors import InvalidRequest
from topics.model import is_topic_name
from topics.spark.options import READING, WRITING, read_options
from topics.spark.servers.connection import Surroundings

Mode = Literal["append", "update", "complete"]
Malformed = Literal["fail", "null"]

# What a source may say besides the options of format("topics"); the token is taken from the environment only.
TOPIC_OPTIONS: Final = tuple(name for name in READING if name != "token")
SINK_OPTIONS: Final = tuple(name for name in WRITING if name not in ("token", "writeId"))
FILE_FORMATS: Final = ("parquet", "json", "csv", "orc")


@dataclass(frozen=True)
class Watermark:
    """How late a row may come, by a column with times."""

    column: str
    delay: str  # such as "10 minutes"


@dataclass(frozen=True)
class Source:
    """A topic or several, as a stream; or, for a table, anything that Spark reads, once per batch."""

    name: str
    options: Mapping[str, str]
    format: str = "topics"
    schema: str | None = None  # of data, which is a struct then
    malformed: Malformed = "fail"
    watermark: Watermark | None = None


@dataclass(frozen=True)
class Step:
    """A view made of the views before it."""

    name: str
    sql: str
    watermark: Watermark | None = None


@dataclass(frozen=True)
class Sink:
    """Where the rows of a view go: into topics, into files, or into a table of the catalog."""

    name: str
    origin: str  # name of a view
    mode: Mode = "append"
    topic: str | None = None  # None with format topics: the rows have a column topic
    path: str | None = None
    table: str | None = None
    format: str = "topics"
    options: Mapping[str, str] = field(default_factory=dict)
    partition_by: tuple[str, ...] = ()

    @property
    def is_topics(self) -> bool:
        return self.format == "topics"


@dataclass(frozen=True)
class Declaration:
    """A pipeline, checked."""

    name: str
    checkpoint: str
    sources: tuple[Source, ...]
    tables: tuple[Source, ...]
    steps: tuple[Step, ...]
    sinks: tuple[Sink, ...]
    trigger: str | None = None  # time between batches; None = as soon as the one before is done
    settings: Mapping[str, str] = field(default_factory=dict)  # of the Spark session


def load(file: str, *, url: str | None = None, checkpoint: str | None = None) -> Declaration:
    """The pipeline in a file. `url` and `checkpoint` stand over what the file says."""
    try:
        text = Path(file).read_text()
    except OSError as error:
        raise InvalidRequest(f"{file} cannot be read: {error.strerror}") from None
    except UnicodeDecodeError:
        raise InvalidRequest(f"{file} is not a text in UTF-8") from None
    try:
        document = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise InvalidRequest(f"{file} is not TOML: {error}") from None
    try:
        return declared(document, Path(file), url, checkpoint)
    except InvalidRequest as error:
        raise InvalidRequest(f"{file}: {error}") from None


def declared(document: dict[str, Any], file: Path, url: str | None, checkpoint: str | None) -> Declaration:
    top = _Table("", document)
    base = file.parent
    own_url, own_checkpoint = top.text("url", None), top.text("checkpoint", None)
    url = url or own_url or Surroundings.load().url or None
    place = checkpoint or (None if own_checkpoint is None else _under(base, own_checkpoint))
    if place is None:
        raise InvalidRequest(
            "key checkpoint is missing: it names the directory that remembers how far the pipeline has come; without "
            "it a restart would start over"
        )
    found = Declaration(
        name=cast(str, top.text("name", file.stem)),
        checkpoint=place,
        sources=tuple(_topic_source(table, url, base, is_stream=True) for table in top.tables("sources")),
        tables=tuple(_any_source(table, url, base) for table in top.tables("tables")),
        steps=tuple(map(_step, top.list("steps"))),
        sinks=tuple(_sink(table, url, base) for table in top.tables("sinks")),
        trigger=top.text("trigger", None),
        settings=top.texts("spark"),
    )
    top.close()
    _check(found)
    return found


# --- the parts


def _topic_source(table: "_Table", url: str | None, base: Path, *, is_stream: bool) -> Source:
    schema, watermark = table.text("schema", None), _watermark(table)
    malformed = cast(Malformed, table.word("malformed", get_args(Malformed), "fail"))
    options = table.options(TOPIC_OPTIONS, ("schema", "watermark", "malformed"))
    for key in ("path", "archive"):
        if key in options:
            options[key] = _under(base, options[key])
    if url is not None and "path" not in options:
        options.setdefault("url", url)
    if is_stream and "startingTimestamp" not in options:
        options.setdefault("startingSeq", "earliest")
    try:
        read_options(options, is_stream=is_stream)
    except InvalidRequest as error:
        raise InvalidRequest(f"{table.path}: {error}") from None
    return Source(table.name, options, "topics", schema, malformed, watermark)


def _any_source(table: "_Table", url: str | None, base: Path) -> Source:
    kind = table.text("format", "topics")
    if kind == "topics":
        return _topic_source(table, url, base, is_stream=False)
    path, schema = table.text("path"), table.text("schema", None)
    options = table.texts("options")
    table.close()
    assert kind is not None and path is not None
    return Source(table.name, {**options, "path": _under(base, path)}, kind, schema)


def _step(table: "_Table") -> Step:
    name, sql = table.text("name"), table.text("sql")
    assert name is not None and sql is not None
    if not name.isidentifier():
        raise table.bad("name", name, "it names a view, so it must be a word such as revenue_by_minute")
    step = Step(name, sql, _watermark(table))
    table.close()
    return step


def _sink(table: "_Table", url: str | None, base: Path) -> Sink:
    origin = table.text("from")
    mode = cast(Mode, table.word("mode", get_args(Mode), "append"))
    assert origin is not None
    path, name = table.text("path", None), table.text("table", None)
    if path is not None and name is not None:
        raise table.bad("table", name, "path is given, too; a sink writes to one place")
    if path is None and name is None:
        return _topic_sink(table, origin, mode, url)
    kind = table.text("format", "parquet")
    assert kind is not None
    if kind not in FILE_FORMATS and name is None:
        raise table.bad("format", kind, f"files are written as {', '.join(FILE_FORMATS)}")
    if mode != "append":
        raise table.bad("mode", mode, "rows in files do not change, so only append can be written to them")
    sink = Sink(
        table.name,
        origin,
        mode,
        path=None if path is None else _under(base, path),
        table=name,
        format=kind,
        options=table.texts("options"),
        partition_by=table.words("partition_by"),
    )
    table.close()
    return sink


def _topic_sink(table: "_Table", origin: str, mode: Mode, url: str | None) -> Sink:
    if table.text("format", "topics") != "topics":
        raise InvalidRequest(f"key {table.path}.path is missing: it says where the files go")
    options = table.options(SINK_OPTIONS, ())
    topic = options.get("topic")
    if topic is not None and not is_topic_name(topic):
        raise table.bad("topic", topic, "it is not the name of a topic")
    if url is not None:
        options.setdefault("url", url)
    if "url" not in options:
        raise InvalidRequest(f"{table.path}: nothing says where to write to: give url, or set TOPICS_URL")
    return Sink(table.name, origin, mode, topic=topic, options=options)


def _watermark(table: "_Table") -> Watermark | None:
    inner = table.table("watermark")
    if inner is None:
        return None
    column, delay = inner.text("column"), inner.text("delay")
    inner.close()
    assert column is not None and delay is not None
    return Watermark(column, delay)


def _under(base: Path, path: str) -> str:
    """A path of the file, which is relative to the file's own place."""
    return path if "://" in path else str((base / path).absolute())


# --- the whole


def _check(found: Declaration) -> None:
    for key, parts in (("sources", found.sources), ("sinks", found.sinks)):
        if not parts:
            raise InvalidRequest(f"key {key} is missing: a pipeline has at least one, as a table [{key}.NAME]")
    views: dict[str, str] = {}
    for key, name in _views(found):
        if name in views:
            raise InvalidRequest(f"key {key}: the view {name} is there already, from {views[name]}")
        if not name.isidentifier():
            raise InvalidRequest(f"key {key}: {name!r} names a view, so it must be a word")
        views[name] = key
    for sink in found.sinks:
        if sink.origin not in views:
            raise InvalidRequest(
                f"key sinks.{sink.name}.from is {sink.origin!r}: there is no such view{_meant(sink.origin, views)}"
            )
        _check_loop(found, sink)


def _views(found: Declaration) -> Iterator[tuple[str, str]]:
    yield from ((f"sources.{source.name}", source.name) for source in found.sources)
    yield from ((f"tables.{table.name}", table.name) for table in found.tables)
    yield from ((f"steps[{n}].name", step.name) for n, step in enumerate(found.steps))


def _check_loop(found: Declaration, sink: Sink) -> None:
    if not sink.is_topics or sink.topic is None:
        return
    for source in found.sources:
        if read_options(source.options, is_stream=True).matches(sink.topic):
            raise InvalidRequest(
                f"key sinks.{sink.name}.topic is {sink.topic!r}: source {source.name} reads this topic, so the "
                "pipeline would process its own output for ever"
            )


def _meant(name: str, known: Mapping[str, Any]) -> str:
    near = difflib.get_close_matches(name, known, 1)
    return f"; did you mean {near[0]}?" if near else f"; there are {', '.join(known)}"


class _Table:
    """A table of the file. What is not taken from it by its end is an error that names it."""

    def __init__(self, path: str, values: dict[str, Any]) -> None:
        self.path = path
        self.name = path.rpartition(".")[2]
        self._values = values
        self._known: list[str] = []

    def _key(self, key: str) -> str:
        return f"{self.path}.{key}" if self.path else key

    def bad(self, key: str, value: object, why: str) -> InvalidRequest:
        return InvalidRequest(f"key {self._key(key)} is {value!r}: {why}")

    def _take(self, key: str, kind: type, what: str) -> Any:
        self._known.append(key)
        value = self._values.get(key)
        if value is not None and not isinstance(value, kind):
            raise self.bad(key, value, f"it must be {what}")
        return value

    def text(self, key: str, default: str | None = "") -> str | None:
        """A text. Without a default it has to be there."""
        value = self._take(key, str, "a text")
        if value is None and default == "":
            raise InvalidRequest(f"key {self._key(key)} is missing")
        return default if value is None else cast(str, value)

    def word(self, key: str, words: tuple[str, ...], default: str) -> str:
        value = cast(str, self.text(key, default))
        if value not in words:
            raise self.bad(key, value, f"it must be one of {', '.join(words)}")
        return value

    def words(self, key: str) -> tuple[str, ...]:
        values = self._take(key, list, "a list of texts") or []
        if not all(isinstance(value, str) for value in values):
            raise self.bad(key, values, "it must be a list of texts")
        return tuple(values)

    def table(self, key: str) -> "_Table | None":
        value = self._take(key, dict, "a table")
        return None if value is None else _Table(self._key(key), value)

    def texts(self, key: str) -> dict[str, str]:
        """A table of options: texts, numbers and flags."""
        value = self._take(key, dict, "a table")
        return {name: self._scalar(f"{key}.{name}", item) for name, item in (value or {}).items()}

    def tables(self, key: str) -> Iterator["_Table"]:
        values = self._take(key, dict, f"a table of tables, [{key}.NAME]") or {}
        for name, value in values.items():
            if not isinstance(value, dict):
                raise self.bad(f"{key}.{name}", value, f"it must be a table, [{key}.{name}]")
            yield _Table(self._key(f"{key}.{name}"), value)

    def list(self, key: str) -> Iterator["_Table"]:
        values = self._take(key, list, f"a list of tables, [[{key}]]") or []
        for n, value in enumerate(values):
            if not isinstance(value, dict):
                raise self.bad(f"{key}[{n}]", value, f"it must be a table, [[{key}]]")
            yield _Table(self._key(f"{key}[{n}]"), value)

    def options(self, known: tuple[str, ...], besides: tuple[str, ...]) -> dict[str, str]:
        """All that is left, as options of format("topics")."""
        self._known += known
        if "token" in self._values:
            raise InvalidRequest(f"key {self._key('token')}: a token has no place in a file; set TOPICS_TOKEN")
        self.close()
        taken = {*besides, "format", "from", "mode", "path", "table"} - set(known)
        return {key: self._scalar(key, value) for key, value in self._values.items() if key not in taken}

    def _scalar(self, key: str, value: Any) -> str:
        if isinstance(value, bool):
            return str(value).lower()
        if not isinstance(value, str | int | float):
            raise self.bad(key, value, "it must be a text, a number, true or false")
        return str(value)

    def close(self) -> None:
        """Refuse what nobody asked for."""
        for key in self._values:
            if key not in self._known:
                raise InvalidRequest(
                    f"key {self._key(key)} is not known{_meant(key, dict.fromkeys(dict.fromkeys(self._known)))}"
                )
