"""The lake: what `topics archive` has written, and how a reader finds its way in it.

    LAKE/records/…/*.parquet      topic, epoch, seq, ts, node, tag, meta, data of one topic each, ascending by seq
    LAKE/gaps/…                   a table of what was lost before it could be archived, for people
    LAKE/claims/TOKEN             on an object store: the commit that a job is about to write
    LAKE/manifest/N.json          one commit each, N = 1, 2, 3 … in twenty digits; format of `Commit`

A commit says of ranges of seqs, per topic and epoch, that they are covered: each seq of a range is in its files, in
its gaps, or had been deleted when it was archived. Files count only once a commit names them, so what a killed job
left behind is not seen. A commit that is a base holds everything before it, too.

Owned here: the manifest's format, and which seqs a lake has. The job that fills a lake decides what to write. A
lake has one writer at a time; readers need not know of it. Paths are local, or URIs that pyarrow.fs knows.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from secrets import token_hex
from typing import TYPE_CHECKING, Final

import msgspec
from msgspec import Struct

from topics.errors import Damaged, InvalidRequest
from topics.model import SEQ_MAX
from topics.ranges import Range, intersect, subtract, union
from topics.reader import Lost

if TYPE_CHECKING:
    import pyarrow as pa
    import pyarrow.fs as fs

FORMAT: Final = 2  # 2 = a commit that merges files
MANIFEST: Final = "manifest"
CLAIMS: Final = "claims"  # on an object store: of those who are about to commit
DELTAS_MAX: Final = 64  # a base is written when as many commits lie behind the last one
BATCH_ROWS: Final = 32_768
CLAIMED_NS: Final = 120 * 10**9  # how long a claim counts that is not given up
CHUNK_BYTES: Final = 4 * 1024 * 1024  # of a file, read at once for its checksum

Instance = tuple[str, int]  # topic, epoch


class LakeFile(Struct, frozen=True, omit_defaults=True):
    """A Parquet file; `path` is relative to the lake, `first` and `last` are seqs of rows in it.

    Times and tags are for leaving files out: all rows lie within them. Files of earlier versions tell of none.
    """

    path: str
    first: int
    last: int
    rows: int
    size_bytes: int = 0
    xxh3: str = ""  # of the bytes of the file, 64 bits in hex; "" = not known
    ts_first: int = 0  # epoch-ms; 0 = not known
    ts_last: int = 0
    has_tags: bool = False  # whether the two below are known; both are None if no row has a tag
    tag_first: str | None = None
    tag_last: str | None = None


class Covered(Struct, frozen=True, omit_defaults=True):
    """Seqs `first`..`last` of a topic instance: in `files`, in `gaps`, or deleted before they were archived.

    `server` is where the instance lives, if there were several: epochs and seqs are those of a server.
    """

    topic: str
    epoch: int
    first: int
    last: int
    files: list[LakeFile] = []
    gaps: list[Lost] = []
    server: str = ""


class Trimmed(Struct, frozen=True):
    """Noted before `topics archive --trim` deletes the records up to `through` from the topic."""

    topic: str
    epoch: int
    through: int


class Replaced(Struct, frozen=True):
    """A file whose rows are in another one since `at` (epoch-ms). It is removed some time later."""

    path: str
    at: int


class Commit(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One file of the manifest. `run` and `batch` name what wrote it; the same batch is committed once.

    An entry of `merged` takes the place of all entries within its seqs, and tells the same of them.
    """

    format: int = 1
    is_base: bool = False
    run: str = ""
    batch: int = 0
    runs: dict[str, int] = {}  # of a base: the last batch of each run
    covered: list[Covered] = []
    trimmed: list[Trimmed] = []
    merged: list[Covered] = []
    replaced: list[Replaced] = []


@dataclass
class Lake:
    """A lake as of its last commit."""

    root: str
    number: int = 0  # of the last commit
    base: int = 0  # number of the base in force
    runs: dict[str, int] = field(default_factory=dict)
    entries: dict[Instance, list[Covered]] = field(default_factory=dict)
    trims: dict[Instance, int] = field(default_factory=dict)
    replaced: dict[str, int] = field(default_factory=dict)  # files that were merged, and when (epoch-ms)
    token: str = field(default_factory=lambda: token_hex(8))  # of its claims

    @classmethod
    def load(cls, root: str, *, must_exist: bool = True) -> "Lake":
        """Read the manifest. Without any, it is a lake still to be written."""
        lake = cls(root)
        system, path = open_root(root)
        names = _manifests(system, path)
        if not names and must_exist:
            raise InvalidRequest(f"{shown(root)} is not a lake: it has no {MANIFEST} directory with commits")
        commits = [(number, _read_commit(system, f"{path}/{MANIFEST}/{name}")) for number, name in names]
        starts = [index for index, (_, commit) in enumerate(commits) if commit.is_base]
        for number, commit in commits[starts[-1] if starts else 0 :]:
            lake._apply(number, commit)
        return lake

    def _apply(self, number: int, commit: Commit) -> None:
        self.number = number
        if commit.is_base:
            self.base = number
            self.runs = dict(commit.runs)
        elif commit.run:
            self.runs[commit.run] = commit.batch
        for covered in commit.covered:
            self.entries.setdefault((covered.topic, covered.epoch), []).append(covered)
        for merged in commit.merged:
            entries = self.entries[merged.topic, merged.epoch]
            outside = [entry for entry in entries if entry.last < merged.first or entry.first > merged.last]
            place = sum(1 for entry in outside if entry.last < merged.first)
            self.entries[merged.topic, merged.epoch] = [*outside[:place], merged, *outside[place:]]
        self.replaced.update((one.path, one.at) for one in commit.replaced)
        for trim in commit.trimmed:
            instance = (trim.topic, trim.epoch)
            self.trims[instance] = max(trim.through, self.trims.get(instance, 0))

    def server(self, topic: str, epoch: int) -> str:
        """Where an instance was archived from; "" = nobody said, or there is nothing of it."""
        return next((entry.server for entry in self.entries.get((topic, epoch), ()) if entry.server), "")

    def covered(self, topic: str, epoch: int) -> list[Range]:
        """The seqs that need no other source: archived, or deleted before that."""
        entries = self.entries.get((topic, epoch), [])
        whole = union((entry.first, entry.last) for entry in entries)
        return subtract(whole, union((gap.first, gap.last) for entry in entries for gap in entry.gaps))

    def files(self, topic: str, epoch: int, first: int, last: int) -> list[LakeFile]:
        """The files with rows in `first`..`last`, ascending."""
        entries = self.entries.get((topic, epoch), [])
        found = [file for entry in entries for file in entry.files if file.first <= last and file.last >= first]
        return sorted(found, key=lambda file: file.first)

    def end(self, topic: str, epoch: int) -> int:
        """The last seq that the lake knows of; 0 = none."""
        return max((entry.last for entry in self.entries.get((topic, epoch), ())), default=0)

    def may_know(self, topic: str, epoch: int, seq: int, ts: int) -> bool:
        """Whether a record is of the log that the lake has files of, by its time: times never fall as seqs rise."""
        return all(
            (file.first > seq or file.ts_first <= ts) and (file.last < seq or ts <= file.ts_last)
            for file in self.files(topic, epoch, 1, SEQ_MAX)
            if file.ts_last
        )

    def paths(self, topic: str, epoch: int | None = None) -> list[str]:
        """The files of a topic, ascending by seq, for whoever reads Parquet; None = of its last instance.

        On an object store they are URIs without keys and endpoint: those are for the reader to know.
        """
        if epoch is None:
            epoch = max((epoch for name, epoch in self.entries if name == topic), default=0)
        return [f"{shown(self.root).rstrip('/')}/{file.path}" for file in self.files(topic, epoch, 1, SEQ_MAX)]

    def cursor_before(self, topic: str, epoch: int, ts: int) -> int | None:
        """The cursor before the first archived record that is not older than `ts` (epoch-ms); None = all are."""
        import pyarrow as pa
        import pyarrow.compute as pc

        files = self.files(topic, epoch, 1, SEQ_MAX)
        low, high = 0, len(files)
        while low < high:  # as in a topic, times never fall as seqs rise
            middle = (low + high) // 2
            file = files[middle]
            rows = pa.Table.from_batches(read_rows(self.root, [file], [(file.first, file.last)], ["ts"]))
            fresh = rows.filter(
                pc.greater_equal(rows["ts"].cast(pa.timestamp("us", "UTC")).cast(pa.int64()), ts * 1000)
            )
            if fresh.num_rows == rows.num_rows:
                high = middle
            elif fresh.num_rows:
                return int(fresh["seq"][0].as_py()) - 1
            else:
                low = middle + 1
        return None if low == len(files) else files[low].first - 1

    def trimmed_through(self, topic: str, epoch: int) -> int:
        """Up to here the topic's records were deleted because the lake has them; 0 = none."""
        return self.trims.get((topic, epoch), 0)

    def commit(self, commit: Commit) -> bool:
        """Append a commit, durably. False: this batch of this run is in the manifest already."""
        if commit.run and self.runs.get(commit.run, -1) >= commit.batch:
            return False
        number = self.number + 1
        self._write(number, commit)
        self._apply(number, commit)
        if number - self.base > DELTAS_MAX:
            self._write(number + 1, self._whole())
            self.number = self.base = number + 1
        return True

    def check_alone(self) -> None:
        """Refuse to go on if the manifest has gone on without us."""
        system, path = open_root(self.root)
        _check_free(system, f"{path}/{MANIFEST}/{self.number + 1:020d}.json")

    def _whole(self) -> Commit:
        return Commit(
            is_base=True,
            runs=self.runs,
            covered=[covered for entries in self.entries.values() for covered in entries],
            trimmed=[Trimmed(*instance, through) for instance, through in self.trims.items()],
            replaced=[Replaced(path, at) for path, at in self.replaced.items()],
        )

    def _write(self, number: int, commit: Commit) -> None:
        system, path = open_root(self.root)
        make_folder(system, f"{path}/{MANIFEST}")
        name = f"{path}/{MANIFEST}/{number:020d}.json"
        text = msgspec.json.format(msgspec.json.encode(commit), indent=1) + b"\n"
        _write_durably(system, name, text, self.token)


def read_rows(
    root: str, files: Sequence[LakeFile], wanted: Sequence[Range], columns: Sequence[str]
) -> "Iterator[pa.RecordBatch]":
    """The rows of `files` whose seqs lie in `wanted`, ascending; `columns` and seq."""
    import pyarrow.parquet as pq

    system, path = open_root(root)
    for file in files:
        ranges = intersect([(file.first, file.last)], wanted)
        if not ranges:
            continue
        try:
            with pq.ParquetFile(f"{path}/{file.path}", filesystem=system) as parquet:
                groups = [n for n in range(parquet.num_row_groups) if _may_hold(parquet.metadata.row_group(n), ranges)]
                names = list(dict.fromkeys(("seq", *columns)))
                for batch in parquet.iter_batches(BATCH_ROWS, row_groups=groups, columns=names):
                    chosen = _chosen(batch, ranges)
                    if chosen.num_rows:
                        yield _with_all(chosen, names)
        except FileNotFoundError:
            raise Damaged(f"{shown(root)}/{file.path}", 0, "the manifest names this file, and it is missing") from None


def _may_hold(group: "pa.parquet.RowGroupMetaData", ranges: Sequence[Range]) -> bool:
    for n in range(group.num_columns):
        column = group.column(n)
        if column.path_in_schema == "seq" and column.statistics is not None and column.statistics.has_min_max:
            return bool(intersect([(column.statistics.min, column.statistics.max)], ranges))
    return True


def _chosen(batch: "pa.RecordBatch", ranges: Sequence[Range]) -> "pa.RecordBatch":
    import pyarrow.compute as pc

    seqs = batch.column("seq")
    inside = None
    for first, last in ranges:
        within = pc.and_(pc.greater_equal(seqs, first), pc.less_equal(seqs, last))
        inside = within if inside is None else pc.or_(inside, within)
    return batch.filter(inside)


def _with_all(batch: "pa.RecordBatch", names: Sequence[str]) -> "pa.RecordBatch":
    """With the columns that the file does not have, all null: it is older than they are."""
    import pyarrow as pa

    missing = [name for name in names if name not in batch.schema.names]
    for name in missing:
        batch = batch.append_column(name, pa.nulls(batch.num_rows, pa.string()))
    return batch.select(list(names)) if missing else batch


# --- files


def checksum_of(system: "fs.FileSystem", path: str) -> str:
    """The xxh3 of a file, as the manifest has it."""
    from xxhash import xxh3_64

    digest = xxh3_64()
    with system.open_input_stream(path) as stream:
        while part := stream.read(CHUNK_BYTES):
            digest.update(part)
    return digest.hexdigest()


def open_root(root: str) -> "tuple[fs.FileSystem, str]":
    """The file system of a lake and its path there. `s3a://` is what Spark calls `s3://`."""
    import os.path

    import pyarrow.fs as fs

    if "://" not in root:
        return fs.LocalFileSystem(), os.path.abspath(root)
    system, path = fs.FileSystem.from_uri(f"s3://{root.removeprefix('s3a://')}" if root.startswith("s3a://") else root)
    return system, path


def shown(root: str) -> str:
    """A place as messages may name it: without the keys of an object store, and without where that is."""
    scheme, separator, rest = root.partition("://")
    return f"{scheme}://{rest.partition('?')[0].rpartition('@')[2]}" if separator else root


def make_folder(system: "fs.FileSystem", path: str) -> None:
    """A directory to write into. An object store has none, and not every one takes the empty object for it."""
    if system.type_name not in ("s3", "gcs", "abfs"):
        system.create_dir(path, recursive=True)


def _manifests(system: "fs.FileSystem", path: str) -> list[tuple[int, str]]:
    import pyarrow.fs as fs

    found = system.get_file_info(fs.FileSelector(f"{path}/{MANIFEST}", allow_not_found=True))
    names = sorted(info.base_name for info in found if info.base_name.endswith(".json"))
    return [(int(name.removesuffix(".json")), name) for name in names if name.removesuffix(".json").isdigit()]


def _read_commit(system: "fs.FileSystem", name: str) -> Commit:
    with system.open_input_stream(name) as stream:
        text = stream.read()
    try:
        commit = msgspec.json.decode(text, type=Commit)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise Damaged(name, 0, f"it is not a commit of a lake: {error}") from None
    if commit.format > FORMAT:
        raise Damaged(name, 0, f"it is of format {commit.format}; this program reads up to {FORMAT}")
    return commit


def _check_free(system: "fs.FileSystem", name: str) -> None:
    import pyarrow.fs as fs

    if system.get_file_info(name).type != fs.FileType.NotFound:
        raise InvalidRequest(f"{name} exists: another job writes to this lake")


def _put_alone(system: "fs.FileSystem", name: str, text: bytes, token: str) -> None:
    """Put a commit, unless another writer does or did. Object stores cannot be told by pyarrow to refuse a second one.

    Each writer claims the commit in an object of its own, and only then looks. Of two, the one that claims later sees
    the claim of the other, or its commit, as that is put before the claim is given up. Both may see each other.
    """
    folder, _, commit = name.rpartition("/")
    claim = f"{folder.removesuffix(MANIFEST)}{CLAIMS}/{token}"
    _put(system, claim, commit.encode())
    try:
        _check_claims(system, claim, commit.encode())
        _check_free(system, name)
    except InvalidRequest:
        _put(system, claim, b"none")
        raise
    _put(system, name, text)  # if this fails it may be there all the same: the claim stays, until it is old
    _put(system, claim, b"none")


def _check_claims(system: "fs.FileSystem", claim: str, wanted: bytes) -> None:
    """Times are those of the store, so no clocks are compared."""
    import pyarrow.fs as fs

    folder, _, own = claim.rpartition("/")
    claims = {info.path: info.mtime_ns or 0 for info in system.get_file_info(fs.FileSelector(folder)) if info.is_file}
    at = next((found for path, found in claims.items() if path.endswith(own)), 0)
    for path, found in claims.items():
        if path.endswith(own) or at - found >= CLAIMED_NS:
            continue
        with system.open_input_stream(path) as stream:
            if stream.read() == wanted:
                seconds = CLAIMED_NS // 10**9
                raise InvalidRequest(
                    f"{path}: another job writes to this lake; if it was killed, try again in {seconds} s"
                )


def _put(system: "fs.FileSystem", name: str, content: bytes) -> None:
    with system.open_output_stream(name) as stream:
        stream.write(content)


def _write_durably(system: "fs.FileSystem", name: str, text: bytes, token: str) -> None:
    """Whole or not at all, and not over another commit: two writers would lose each other's."""
    import os

    import pyarrow.fs as fs

    if not isinstance(system, fs.LocalFileSystem):
        _put_alone(system, name, text, token)
        return
    temporary = f"{name}.{os.getpid()}.tmp"
    with open(temporary, "wb") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    try:
        os.link(temporary, name)
    except FileExistsError:
        raise InvalidRequest(f"{name} exists: another job writes to this lake") from None
    finally:
        os.unlink(temporary)
    directory = os.open(os.path.dirname(name), os.O_RDONLY)
    try:
        os.fsync(directory)
    finally:
        os.close(directory)
