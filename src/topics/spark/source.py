"""`format("topics")`: what Spark calls. Batch and streaming reads are planned here, on the driver.

Offsets of a stream are `{topic: {"epoch": e, "seq": s, "since": {"epoch", "seq"}}}`: everything up to seq s of
instance e was read, by a batch that began at `since`. They go into checkpoints, so their form does not change. With
several servers, both also have the `server`; an offset without one is of whichever server has the topic. `ts` is a time
by which all up to the seq was written: a server that was set up anew counts epochs and seqs from 1 again, and its first
record tells. A batch is planned by its end alone: when the first one is run again, Spark asks anew where the stream
begins, and that is another place by then. A topic that the options no longer select keeps its offset, and is not read.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import (
    DataSource,
    DataSourceArrowWriter,
    DataSourceReader,
    DataSourceStreamArrowWriter,
    DataSourceStreamReader,
    Filter,
    InputPartition,
)
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxBytes,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)
from pyspark.sql.types import StructType

from topics.clock import Clock, SystemClock
from topics.errors import InvalidRequest
from topics.spark import schema as columns
from topics.spark.options import Cursor, ReadOptions, read_options, write_options
from topics.spark.origins import NO_EPOCH, Origins
from topics.spark.plan import Look, RecordsLost, Stretch, Wanted, check, limited, parts_of, waiting
from topics.spark.reader import PartReader, in_worker
from topics.spark.rows import marked
from topics.spark.schema import Projection
from topics.spark.servers.several import Several, not_listed, origins_of

if TYPE_CHECKING:
    import pyarrow as pa

Offsets = dict[str, dict[str, Any]]


class TopicsSource(DataSource):
    """Reads and writes topics."""

    @classmethod
    def name(cls) -> str:
        return "topics"

    def schema(self) -> str:
        options = read_options(self.options)
        return columns.declared(options.includes_meta, options.on_gap == "record")

    def reader(self, schema: StructType) -> "TopicsReader":
        options = read_options(self.options, is_stream=False)
        kind = FilteredReader if options.pushes_filters else TopicsReader
        return kind(options, Projection.of(schema, options.includes_meta, options.binary == "base64"))

    def streamReader(self, schema: StructType) -> "TopicsStreamReader":  # noqa: N802
        options = read_options(self.options, is_stream=True)
        return TopicsStreamReader(options, Projection.of(schema, options.includes_meta, options.binary == "base64"))

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceArrowWriter:
        from topics.spark.writer import TopicsWriter

        if overwrite:
            raise InvalidRequest("a topic is not overwritten: use mode append")
        options = write_options(self.options)
        return TopicsWriter.of(options, marked(schema, options.binary))

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamArrowWriter:  # noqa: N802
        from topics.spark.writer import TopicsStreamWriter

        if overwrite:
            raise InvalidRequest("a topic is not overwritten: use output mode append")
        options = write_options(self.options)
        return TopicsStreamWriter.of(options, marked(schema, options.binary))


class TopicsReader(DataSourceReader):
    """A batch read: from the start to the end as they are when it is planned."""

    def __init__(self, options: ReadOptions, projection: Projection) -> None:
        self._options = options
        self._projection = projection
        self._wanted = Wanted()

    def partitions(self) -> Sequence[InputPartition]:
        options = self._options
        with origins_of(options) as origins:
            stretches = []
            for look in origins.all_looks().values():
                if self._wanted.topics is not None and look.topic not in self._wanted.topics:
                    continue
                start, last = origins.narrowed(look, origins.start(look, "earliest"), origins.end(look), self._wanted)
                stretch = origins.stretch(look, start, max(last, start.seq) if look.has(start) else last)
                if stretch.last > stretch.after or stretch.recreated is not None:
                    stretches.append(stretch)
        return _planned(options, stretches, is_stream=False)

    def read(self, partition: InputPartition) -> "Iterator[pa.RecordBatch]":
        return _read(partition, self._options, self._projection)


class FilteredReader(TopicsReader):
    """A batch read that passes over what the filters of its query leave out. A class of its own: Spark refuses a reader
    with `pushFilters` as long as its setting for them is off, which is the default."""

    def pushFilters(self, filters: "list[Filter]") -> "Iterable[Filter]":  # noqa: N802
        """Take note of them all, and let Spark apply them all the same."""
        self._wanted = Wanted.of(filters)
        self._options = replace(self._options, tags=self._wanted.tags)
        return filters


class TopicsStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """A stream of one or more topics."""

    def __init__(self, options: ReadOptions, projection: Projection) -> None:
        self._options = options
        self._projection = projection
        self._opened: Origins | Several | None = None
        self._known: dict[str, Look] = {}  # the topics as they were last seen
        self._verified: dict[tuple[str, int, str], Look] = {}  # instances that are those of the checkpoint
        self._targets: dict[str, Look] | None = None  # of AvailableNow
        self._clock: Clock = SystemClock()
        self._fired: float | None = None  # when a batch was last given out

    def __getstate__(self) -> dict[str, Any]:
        """What goes to executors, where only `read` is called."""
        return {**self.__dict__, "_opened": None, "_known": {}, "_verified": {}}

    @property
    def _origins(self) -> Origins | Several:
        if self._opened is None:
            self._opened = origins_of(self._options)
        return self._opened

    def stop(self) -> None:
        if self._opened is not None:
            self._opened.close()

    # --- offsets

    def initialOffset(self) -> Offsets:  # noqa: N802
        looks = self._known = self._origins.all_looks()
        cursors = {name: self._origins.start(look, "latest") for name, look in looks.items()}
        return self._offsets(cursors, cursors)

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        if self._options.trigger_records_max is not None:
            return ReadMaxRows(self._options.trigger_records_max)
        if self._options.trigger_bytes_max is not None:
            return ReadMaxBytes(self._options.trigger_bytes_max)
        return ReadAllAvailable()

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        self._targets = self._look(is_patient=True)

    def latestOffset(self, start: Offsets, limit: ReadLimit) -> Offsets:  # noqa: N802
        looks = self._look(is_patient=self._targets is not None)
        starts = self._voided(_located(_cursors(start), looks), start, looks)
        self._check_listed(starts)
        silent = self._origins.silent
        looks = {name: look for name, look in looks.items() if name not in starts or starts[name].server not in silent}
        gone = [name for name in starts if name not in looks and self._options.matches(name)]
        gone = [name for name in gone if not silent or starts[name].server not in ("", *silent)]
        if gone and self._options.on_gap == "fail":
            raise RecordsLost(f"topic {gone[0]} was deleted; what it had above seq {starts[gone[0]].seq} is gone")
        if self._targets is not None:
            looks = _held_to(looks, self._targets)
        records_max = limit.max_rows if isinstance(limit, ReadMaxRows) else None
        bytes_max = limit.max_bytes if isinstance(limit, ReadMaxBytes) else None
        if records_max is not None:  # both were given, and Spark asks by one
            bytes_max = self._options.trigger_bytes_max
        has_lake = self._options.archive is not None
        if self._waits(starts, looks):
            return start
        ends = {**starts, **limited(starts, looks, records_max, bytes_max, has_lake=has_lake)}
        if self._options.on_gap == "record":
            for name, look in looks.items():
                if starts.get(name) != ends[name] and ends[name].seq < look.head:
                    ends[name] = look.cursor(self._origins.through_gap(look, ends[name].seq))
        return start if ends == starts else self._offsets(ends, starts)

    def _voided(self, starts: Mapping[str, Cursor], offsets: Offsets, looks: Mapping[str, Look]) -> dict[str, Cursor]:
        """The same cursors, but none that fits a topic only because its server was set up anew."""
        return {
            name: start
            if name not in looks or self._is_same(looks[name], offsets[name])
            else Cursor(NO_EPOCH, start.seq)
            for name, start in starts.items()
        }

    def _is_same(self, look: Look, at: Mapping[str, Any]) -> bool:
        """Whether a topic is the instance of an offset. Asked again if it seems to have gone back."""
        if not look.has(_cursor(at)):
            return True  # that it is another one is seen by its epoch
        key = (look.topic, look.epoch, look.server)
        before = self._verified.get(key)
        is_new = before is None or look.head < before.head or look.earliest < before.earliest
        if is_new and at.get("ts") is not None and not self._origins.is_as_of(look, at["seq"], at["ts"]):
            return False
        self._verified[key] = look
        return True

    def _check_listed(self, starts: Mapping[str, Cursor]) -> None:
        """Refuse offsets of servers that are not among those that are read."""
        servers = () if self._options.server is None else self._options.server.urls
        for name, start in starts.items():
            if start.server and start.server not in servers and self._options.matches(name):
                raise not_listed(name, start.server, servers)

    def _waits(self, starts: Mapping[str, Cursor], looks: Mapping[str, Look]) -> bool:
        """Whether there is too little for a batch yet. The first one, and AvailableNow, take what there is."""
        least, delay_s = self._options.trigger_records_min, self._options.trigger_delay_ms / 1000
        if least is None or self._targets is not None:
            return False
        has_lake = self._options.archive is not None
        count = sum(waiting(starts.get(name), look, has_lake=has_lake) for name, look in looks.items())
        now = self._clock.monotonic()
        if 0 < count < least and self._fired is not None and now - self._fired < delay_s:
            return True
        if count:
            self._fired = now
        return False

    def reportLatestOffset(self) -> Offsets | None:  # noqa: N802
        """The heads: what lies between them and the end of a batch is the lag."""
        heads = {name: look.cursor(look.head) for name, look in (self._known or self._look()).items()}
        return self._offsets(heads, heads)

    def _look(self, *, is_patient: bool = False) -> dict[str, Look]:
        """The topics as they are; unless patient, without those of servers that are down and are waited for."""
        self._origins.refresh()
        looks = self._origins.looks(self._known, is_patient=is_patient)
        silent = self._origins.silent
        self._known = {name: look for name, look in self._known.items() if look.server in silent} | looks
        return looks

    def _offsets(self, ends: Mapping[str, Cursor], starts: Mapping[str, Cursor]) -> Offsets:
        """Sorted: Spark compares offsets as texts. A topic that came later is read from its beginning."""
        has_server = self._options.server is not None and self._options.server.is_several
        times = {name: look.written_ts for name, look in self._known.items() if look.written_ts is not None}
        return {
            name: {
                **_offset(end, has_server),
                **({"ts": times[name]} if name in times else {}),
                "since": _offset(starts.get(name, end._replace(seq=0)), has_server),
            }
            for name, end in sorted(ends.items())
        }

    # --- batches

    def partitions(self, start: Offsets, end: Offsets) -> Sequence[InputPartition]:
        self._origins.refresh()
        looks = self._origins.looks(self._known)
        stretches = []
        for name, at in end.items():
            since, to = _cursor(at["since"]), _cursor(at)
            if since != to:
                is_seen = self._options.matches(name) and to.server not in self._origins.silent
                look = looks.get(name) if is_seen else self._origins.look(name)
                if look is not None and not self._is_same(look, at):
                    look, since, to = None, since._replace(epoch=NO_EPOCH), to._replace(epoch=NO_EPOCH)
                stretches.append(self._stretch(look, name, since, to))
        return _planned(self._options, stretches, is_stream=True)

    def _stretch(self, look: Look | None, name: str, start: Cursor, end: Cursor) -> Stretch:
        """A batch's way through a topic. If the topic is another one by now, the batch is planned as it was and
        its tasks will find it gone."""
        assert end.epoch is not None
        if look is None or not look.has(end):
            look = Look(name, end.epoch, end.seq, 1, server=end.server)
        return self._origins.stretch(replace(look, head=max(look.head, end.seq)), start, end.seq)

    def read(self, partition: InputPartition) -> "Iterator[pa.RecordBatch]":
        return _read(partition, self._options, self._projection)


def _planned(options: ReadOptions, stretches: Sequence[Stretch], *, is_stream: bool) -> list[InputPartition]:
    if options.on_gap == "fail":
        check(stretches)
    announces = options.on_gap == "record"
    parts = parts_of(
        stretches,
        options.partitions_min,
        is_stream=is_stream,
        announces=announces,
        part_max=options.partition_records_max,
    )
    return [InputPartition(part) for part in parts]


def _read(partition: InputPartition, options: ReadOptions, projection: Projection) -> "Iterator[pa.RecordBatch]":
    if partition.value is None:  # Spark's stand-in for no partitions at all
        return iter(())
    return in_worker(PartReader(partition.value, options, projection).batches())


def _held_to(looks: Mapping[str, Look], targets: Mapping[str, Look]) -> dict[str, Look]:
    """The topics as far as they were when AvailableNow began."""
    return {
        name: replace(look, head=min(look.head, targets[name].head))
        for name, look in looks.items()
        if name in targets and (targets[name].epoch, targets[name].server) == (look.epoch, look.server)
    }


def _cursors(offsets: Offsets) -> dict[str, Cursor]:
    return {name: _cursor(at) for name, at in offsets.items()}


def _cursor(at: Mapping[str, Any]) -> Cursor:
    return Cursor(at["epoch"], at["seq"], at.get("server", ""))


def _located(starts: Mapping[str, Cursor], looks: Mapping[str, Look]) -> dict[str, Cursor]:
    """Offsets that say no server are of the one that has the topic."""
    return {
        name: start._replace(server=looks[name].server) if name in looks and not start.server else start
        for name, start in starts.items()
    }


def _offset(cursor: Cursor, has_server: bool) -> dict[str, Any]:
    return {"epoch": cursor.epoch, "seq": cursor.seq, **({"server": cursor.server} if has_server else {})}
