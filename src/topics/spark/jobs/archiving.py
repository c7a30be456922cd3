"""`topics archive`: live records into a lake, batch after batch.

The manifest is the only memory: each batch begins where the lake ends, is written into a directory of its own, made
durable, and counts once its commit is in the manifest. So a job that is killed anywhere begins its batch anew, and
overwrites what it left. Each seq of a batch is in a file, in a gap, or was deleted; nothing else is committed.

On an object store no lock keeps a second job away. So directories there have names that no other job gives, a job that
finds its commit taken removes its own and ends, and one that commits removes what others left of the same batch.

With trimming, records are deleted from a topic only after files and manifest are on the disk, and after the manifest
says that they will be (so that a reader with `archive` looks for them in the lake).
"""

import threading
from collections import defaultdict
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from topics.client import ApiError, Client, ClientError
from topics.clock import Clock, SystemClock
from topics.errors import Damaged, EpochMismatch, InvalidRequest, TopicNotFound
from topics.reader import Lost
from topics.spark.jobs.exporting import Gap, gaps_of, selected, split_gaps
from topics.spark.options import Cursor, read_options
from topics.spark.origins import check_found, is_log_of
from topics.spark.plan import Look, limited
from topics.spark.runs.marks import identity
from topics.spark.runs.progress import Progress
from topics.spark.runs.pulse import Pulse
from topics.spark.servers.connection import Connection
from topics.spark.servers.several import origins_of
from topics.spark.tables.lake import Commit, Covered, Lake, LakeFile, Trimmed, shown
from topics.spark.tables.layout import compact, described, remove_replaced
from topics.spark.tables.outputs import Place, check_connector

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

BATCH_RECORDS: Final = 1_000_000  # seqs of a batch, of all topics together
FILE_RECORDS_MIN: Final = 50_000  # seqs; a batch of fewer is not worth more than one file per topic
EVERY_MS: Final = 1_000  # between looks for new records
COLUMNS: Final = ("topic", "epoch", "seq", "ts", "node", "tag", "meta", "data")


@dataclass(frozen=True, kw_only=True)
class Plan:
    """How to archive."""

    selection: str  # the name of a topic, or a pattern of names
    server: Connection  # or several
    path: str | None = None  # a data directory, to read sealed records from
    is_once: bool = False  # up to the heads as they are at the start
    batch_records: int = BATCH_RECORDS
    every_ms: int = EVERY_MS
    trims: bool = False
    keep_records: int = 0  # the newest ones, that trimming leaves in a topic
    iceberg: str | None = None  # the name of a table to keep
    compacts: bool = False  # merge small files
    health: str | None = None  # a file that says how the job is


@dataclass
class Archived:
    """What a run has archived. `deleted` seqs had been deleted before."""

    rows: int = 0
    lost: int = 0
    deleted: int = 0
    batches: int = 0
    trimmed: int = 0
    merged: int = 0  # files that went into larger ones


class Move(NamedTuple):
    """What a batch takes of a topic: above `after`, up to `last`."""

    topic: str
    epoch: int
    after: int
    last: int
    server: str  # that has it


class Moved(Exception):
    """A topic was deleted, or created again, while its batch was written."""


def archive(
    spark: "SparkSession",
    plan: Plan,
    lake: str,
    *,
    progress: Progress | None = None,
    is_over: threading.Event | None = None,
    clock: Clock | None = None,
) -> Archived:
    """Archive until `is_over` is set, or once."""
    place = Place(lake)
    with place.locked():
        job = Archive(spark, plan, place, progress or Progress("archive"), clock or SystemClock())
        try:
            return job.run(is_over or threading.Event())
        finally:
            job.close()


class Archive:
    """One run of the job."""

    def __init__(self, spark: "SparkSession", plan: Plan, place: Place, progress: Progress, clock: Clock) -> None:
        from topics.spark.tables.iceberg import Table

        if plan.compacts and plan.iceberg is not None:
            raise InvalidRequest("--compact does not go with --iceberg: compact the Iceberg table by its own means")
        check_connector(spark, place)
        self._spark = spark
        self._plan = plan
        self._place = place
        self._progress = progress
        self._clock = clock
        self._pulse = Pulse(plan.health, clock)
        self._lake = Lake.load(place.root, must_exist=False)
        self._run = identity("archive", plan.server.url, plan.selection)[:12]
        self._table = None if plan.iceberg is None else Table.open(place, plan.iceberg)
        self._options = read_options({**self._looking().options(), **selected(plan.selection)})
        self._origins = origins_of(self._options)
        self._clients: dict[str, Client] = {url: plan.server.at(url).open() for url in plan.server.urls}
        self._known: dict[str, Look] = {}
        self._continued: dict[tuple[str, int, str], Look] = {}  # those that the lake has the beginning of
        self._left_out: dict[str, str] = {}  # topics that cannot be archived here, and why
        self._done = Archived()

    def close(self) -> None:
        self._origins.close()
        for client in self._clients.values():
            client.close()

    def _looking(self) -> Connection:
        """For looks at the topics: of several servers, a job that goes on for ever passes over one that is down."""
        server = self._plan.server
        return replace(server, waits=server.is_several and not self._plan.is_once)

    def run(self, is_over: threading.Event) -> Archived:
        self._pulse.beat(rows=0, lag=None)
        looks = self._first_looks()
        self._tell_recreated(looks)
        self._finish()
        targets = looks if self._plan.is_once else None
        while not is_over.is_set():
            try:
                has_moved = self._step(targets)
            except (ClientError, ApiError) as error:
                if targets is not None or not _passes(error):
                    raise
                self._progress.note(f"{error}; going on")
                self._pulse.beat(error=str(error), rows=self._done.rows, lag=None)
                has_moved = False
            if not has_moved:
                if targets is not None:
                    break
                is_over.wait(self._plan.every_ms / 1000)
        self._pulse.beat(rows=self._done.rows, lag=None, ended=True)
        return self._done

    def _first_looks(self) -> dict[str, Look]:
        if not self._looking().waits:
            return self._origins.all_looks()
        looks = self._origins.looks()
        if not self._origins.silent:
            check_found(self._options, looks, " and ".join(self._clients))
        return looks

    def _step(self, targets: Mapping[str, Look] | None) -> bool:
        """Take the next batch, if there is one."""
        moves, behind = self._next(targets)
        silent = [f"{url} cannot be reached: its topics wait" for url in sorted(self._origins.silent)]
        error = "; ".join([*silent, *self._left_out.values()]) or None
        self._progress.update(rows=self._done.rows, lag=behind)
        self._pulse.beat(error=error, rows=self._done.rows, lag=behind)
        if moves:
            self._take(moves)
        return bool(moves)

    # --- what is next

    def _next(self, targets: Mapping[str, Look] | None) -> tuple[list[Move], int]:
        """The next batch, and how many seqs are not archived yet."""
        self._known = looks = self._origins.looks(self._known)
        if targets is not None:
            looks = {
                name: replace(look, head=min(look.head, targets[name].head))
                for name, look in looks.items()
                if name in targets and targets[name].epoch == look.epoch
            }
        looks = {name: look for name, look in looks.items() if self._is_told_apart(look)}
        starts = {name: Cursor(look.epoch, self._lake.end(name, look.epoch)) for name, look in looks.items()}
        ends = limited(starts, looks, self._plan.batch_records, None)
        moves = [
            Move(name, looks[name].epoch, starts[name].seq, end.seq, looks[name].server)
            for name, end in sorted(ends.items())
        ]
        behind = sum(max(0, look.head - starts[name].seq) for name, look in looks.items())
        return [move for move in moves if move.last > move.after], behind

    def _is_told_apart(self, look: Look) -> bool:
        """False: the lake has this epoch of the topic from another server, or from before the server was set up anew.
        That is another log, so the topic is left out, loudly."""
        known = self._lake.server(look.topic, look.epoch) if self._plan.server.is_several else ""
        if known in ("", look.server) and self._is_continued(look):
            self._left_out.pop(look.topic, None)
            return True
        where = "an earlier set-up of its server" if known in ("", look.server) else known
        said = (
            f"topic {look.topic} is not archived: {self._place.root} has its epoch {look.epoch} from {where}, and the "
            f"one on {look.server} is another log of that epoch; archive it into a lake of its own, or create it anew"
        )
        if self._plan.is_once:
            raise InvalidRequest(said)
        if self._left_out.get(look.topic) != said:
            self._progress.note(said, topic=look.topic)
        self._left_out[look.topic] = said
        return False

    def _is_continued(self, look: Look) -> bool:
        """Whether the topic is the log that the lake has. Asked again if it seems to have gone back."""
        key = (look.topic, look.epoch, look.server)
        before = self._continued.get(key)
        is_new = before is None or look.head < before.head or look.earliest < before.earliest
        is_short = look.head < self._lake.end(look.topic, look.epoch)
        if is_short or (is_new and not is_log_of(self._clients[look.server], self._lake, look)):
            return False
        self._continued[key] = look
        return True

    def _tell_recreated(self, looks: Mapping[str, Look]) -> None:
        for topic, epoch in self._lake.entries:
            if topic in looks and epoch < looks[topic].epoch and (topic, looks[topic].epoch) not in self._lake.entries:
                self._progress.note(
                    f"topic {topic} was deleted and created again: what its epoch {epoch} had above seq "
                    f"{self._lake.end(topic, epoch)} was not archived",
                    topic=topic,
                )

    # --- a batch

    def _take(self, moves: Sequence[Move]) -> None:
        batch = self._lake.runs.get(self._run, -1) + 1
        name = f"run={self._run}/batch={batch:010d}{self._place.own}"
        try:
            rows, gaps = self._write(moves, f"records/{name}")
            files = self._files(f"records/{name}", rows)
            self._put_gaps(name, moves, gaps)
        except Moved as moved:
            self._progress.note(str(moved))
            self._known = {}
            return
        except Exception:
            self._give_up(name)
            raise
        self._place.make_durable([file.path for _, file in files])
        covered = [_covered(move, files, gaps, names_server=self._plan.server.is_several) for move in moves]
        try:
            self._lake.commit(Commit(run=self._run, batch=batch, covered=covered))
        except InvalidRequest:  # after any other failure the commit may be there all the same
            self._give_up(name)
            raise
        self._place.make_durable([])
        self._remove_others(name, batch)
        self._count(covered)
        self._finish()

    def _give_up(self, name: str) -> None:
        """Remove what no commit names, where no other job would; if there is another job, say that this is wrong."""
        if self._place.own:
            with suppress(OSError):  # the store itself may be what is wrong
                self._place.remove(f"records/{name}")
                self._lake.check_alone()

    def _remove_others(self, name: str, batch: int) -> None:
        """What a killed job left of this batch, under a name of its own."""
        if not self._place.own:
            return
        with suppress(OSError):  # they do no harm; and their job may be removing them as well
            for info in self._place.listing(f"records/run={self._run}"):
                if info.base_name.startswith(f"batch={batch:010d}.") and not name.endswith(info.base_name):
                    self._place.remove(f"records/run={self._run}/{info.base_name}")

    def _write(self, moves: Sequence[Move], directory: str) -> tuple[int, list[Gap]]:
        """The records of the batch as Parquet files; how many there are, and the gaps between them."""
        options = {
            **self._plan.server.among({move.server for move in moves}).options(),
            "topics": ",".join(move.topic for move in moves),
            "startingSeq": _json({move.topic: {"epoch": move.epoch, "seq": move.after} for move in moves}),
            "endingSeq": _json({move.topic: move.last for move in moves}),
            "onGap": "record",
            "minPartitions": str(
                _parallelism(self._spark) if sum(move.last - move.after for move in moves) > FILE_RECORDS_MIN else 1
            ),
            **({} if self._plan.path is None else {"path": self._plan.path}),
        }
        read = self._spark.read.format("topics").options(**options)
        try:
            records, seen = split_gaps(read.load())
            writer = _with_epochs(records, moves).select(*COLUMNS).write.mode("overwrite")
            writer.option("compression", "zstd").parquet(self._place.uri(directory))
        except Exception:
            self._check_instances(moves)
            raise
        rows, gaps = gaps_of(seen)
        if any(gap.reason == "recreated" for gap in gaps):
            self._check_instances(moves)
            raise Moved("a topic was created again while it was archived")
        return rows, gaps

    def _check_instances(self, moves: Sequence[Move]) -> None:
        """Raise Moved if a topic is not the one that the batch was planned for."""
        for move in moves:
            try:
                epoch = self._clients[move.server].state(move.topic, touch=False).epoch
            except TopicNotFound:
                epoch = None
            if epoch != move.epoch:
                raise Moved(f"topic {move.topic} was deleted while it was archived") from None

    def _files(self, directory: str, rows: int) -> list[tuple[str, LakeFile]]:
        """The files that Spark has written, each with its topic; empty ones are removed."""
        import pyarrow.parquet as pq

        files: list[tuple[str, LakeFile]] = []
        for info in self._place.listing(directory):
            if not info.base_name.endswith(".parquet"):
                continue
            path = f"{directory}/{info.base_name}"
            metadata = pq.read_metadata(info.path, filesystem=self._place.system)
            if metadata.num_rows:
                files.append(described(self._place, path, metadata))
            else:
                self._place.remove(path)
        found = sum(file.rows for _, file in files)
        if found != rows:
            raise Damaged(f"{shown(self._place.root)}/{directory}", 0, f"it has {found} rows, and {rows} were written")
        return files

    def _put_gaps(self, name: str, moves: Sequence[Move], gaps: Sequence[Gap]) -> None:
        """A file of the table of gaps, for people; the manifest has them, too."""
        import pyarrow as pa
        import pyarrow.parquet as pq

        if not gaps:
            return
        epochs = {move.topic: move.epoch for move in moves}
        table = pa.table(
            {
                "topic": [gap.topic for gap in gaps],
                "epoch": [epochs[gap.topic] for gap in gaps],
                "gap_from": [gap.first for gap in gaps],
                "gap_to": [gap.last for gap in gaps],
                "reason": [gap.reason for gap in gaps],
                "noticed": pa.array([self._clock.now_ms()] * len(gaps), pa.timestamp("ms", "UTC")),
            }
        )
        sink = pa.BufferOutputStream()
        pq.write_table(table, sink)
        self._place.put(f"gaps/{name}.parquet", sink.getvalue().to_pybytes())

    def _count(self, covered: Sequence[Covered]) -> None:
        self._done.batches += 1
        for entry in covered:
            rows = sum(file.rows for file in entry.files)
            lost = sum(gap.last - gap.first + 1 for gap in entry.gaps)
            self._done.rows += rows
            self._done.lost += lost
            self._done.deleted += entry.last - entry.first + 1 - rows - lost
            for gap in entry.gaps:
                self._progress.note(
                    f"lost before it could be archived: topic {entry.topic}, seqs {gap.first} to {gap.last} "
                    f"({gap.reason})",
                    topic=entry.topic,
                    gap_from=gap.first,
                    gap_to=gap.last,
                    reason=gap.reason,
                )

    # --- what follows a commit, and what an earlier run left of that

    def _finish(self) -> None:
        if self._table is not None:
            self._table.add(self._lake)
        if self._plan.compacts:
            self._done.merged += compact(self._lake, self._place, self._clock)
            remove_replaced(self._lake, self._place, self._clock.now_ms())
        if self._plan.trims:
            for topic, look in self._origins.looks(self._known).items():
                if self._is_told_apart(look):
                    self._trim(look, self._lake.end(topic, look.epoch) - self._plan.keep_records)

    def _trim(self, look: Look, through: int) -> None:
        """Delete what the lake has. The manifest says so first."""
        topic, epoch, client = look.topic, look.epoch, self._clients[look.server]
        if through < look.earliest:
            return
        state = client.state(topic, touch=False)
        if state.epoch != epoch:
            return  # nothing is to be noted of a topic that is gone
        if state.type != "log":
            raise InvalidRequest(
                f"topic {topic} is a {state.type}: its jobs are not trimmed. Archive it without --trim"
            )
        if through > self._lake.trimmed_through(topic, epoch):
            self._lake.commit(Commit(trimmed=[Trimmed(topic, epoch, through)]))
        try:
            self._done.trimmed += client.delete_records(topic, before_seq=through + 1, epoch=epoch).deleted
        except (TopicNotFound, EpochMismatch):
            self._progress.note(f"topic {topic} was deleted before it was trimmed", topic=topic)


def _covered(move: Move, files: Sequence[tuple[str, LakeFile]], gaps: Sequence[Gap], *, names_server: bool) -> Covered:
    own = sorted((file for topic, file in files if topic == move.topic), key=lambda file: file.first)
    lost = [Lost(gap.first, gap.last, gap.reason) for gap in gaps if gap.topic == move.topic]  # type: ignore[arg-type]
    server = move.server if names_server else ""
    return Covered(move.topic, move.epoch, move.after + 1, move.last, own, lost, server)


def _with_epochs(records: Any, moves: Sequence[Move]) -> Any:
    from pyspark.sql import functions as F  # noqa: N812

    by_epoch: dict[int, list[str]] = defaultdict(list)
    for move in moves:
        by_epoch[move.epoch].append(move.topic)
    column: Any = None
    for epoch, topics in by_epoch.items():
        is_one = F.col("topic").isin(topics)
        value = F.lit(epoch).cast("bigint")
        column = F.when(is_one, value) if column is None else column.when(is_one, value)
    return records.withColumn("epoch", column)


def _passes(error: Exception) -> bool:
    """Whether a server that is away, starting or overloaded is all that is wrong."""
    return not isinstance(error, ApiError) or error.status == 429 or error.status >= 500


def _parallelism(spark: "SparkSession") -> int:
    try:
        return int(spark.sparkContext.defaultParallelism)
    except Exception:  # Spark Connect does not tell
        return 2


def _json(value: Any) -> str:
    import msgspec

    return msgspec.json.encode(value).decode()
