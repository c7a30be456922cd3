"""`topics audit`: proves that nothing got lost in silence.

    audit(path="topics-data")                       every checksum, and every seq of every topic accounted for
    audit("lake", url="http://127.0.0.1:4000")      and the lake equal to the topics
    audit("lake", url="http://a:4000,http://b:4000")        the same of all servers, one after the other

Each seq that a topic has handed out is live, was deleted on purpose, or is announced as lost: live + deleted + lost =
head. A data directory has counted all of them since the first record, so a silent hole breaks the sum. A server says
how many are live and what is lost; there `deleted` is what remains, and what the audit holds against it is the
server's own count, and the lake.

Owned here: what is counted and when it is sound. The files of a data directory are checked by `topics.reader`, the
lake by `comparing`. Nothing is changed, and a server may be running. Spark is needed for a lake only.
"""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Final, Literal

from msgspec import Struct, field, structs

from topics import reader
from topics.client import ApiError, Client, ClientError, ConnectionFailed, TopicState
from topics.errors import Damaged, InvalidRequest, TopicNotFound, UnusableDirectory
from topics.ranges import total, union
from topics.reader import Lost
from topics.spark.jobs import comparing
from topics.spark.origins import clipped
from topics.spark.servers.connection import Connection
from topics.spark.tables.lake import Instance, Lake

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

ATTEMPTS_MAX: Final = 5  # counts of a topic that changes under the audit
RETRIES: Final = 5  # of a call; an audit need not outlive a restart of the server

Place = Literal["directory", "server", "lake"]


class Finding(Struct, frozen=True, omit_defaults=True):
    """Something that is not as it should be. `is_certain`: False = a delete may have left these traces."""

    place: Place
    message: str
    topic: str = ""
    file: str = ""
    is_certain: bool = True
    server: str = ""  # which one, if there are several

    def __str__(self) -> str:
        parts = [self.place, self.server, f"topic {self.topic}" if self.topic else "", self.file]
        return ": ".join([" ".join(part for part in parts if part), self.message])


class Tally(Struct, frozen=True, omit_defaults=True):
    """The seqs of one topic, each counted once."""

    place: Place
    topic: str
    epoch: int
    head: int
    live: int
    deleted: int
    lost: int
    server: str = ""  # which one, if there are several


class Compared(Struct, frozen=True):
    """A topic beside the lake."""

    topic: str
    epoch: int
    covered: int  # seqs that the lake answers for
    rows: int  # of them in its files
    equal: int  # that the topic has as well, byte for byte
    deleted_since: int  # that somebody deleted from the topic since; not trimmed, not lost


class Audit(Struct, kw_only=True):
    """All that was looked at, and what was found."""

    tallies: list[Tally] = field(default_factory=list)
    compared: list[Compared] = field(default_factory=list)
    findings: list[Finding] = field(default_factory=list)
    segments: int = 0
    segment_bytes: int = 0
    log_files: int = 0
    log_frames: int = 0
    is_complete: bool = True  # False: a directory's log may have records that no checkpoint has sealed yet

    @property
    def is_sound(self) -> bool:
        """Whether nothing is wrong for certain."""
        return not any(finding.is_certain for finding in self.findings)


Said = Callable[[str], None]


def audit(
    lake: str | None = None,
    *,
    path: str | None = None,
    url: str | None = None,
    token: str | None = None,
    pattern: str | None = None,
    spark: "SparkSession | None" = None,
    build: "Callable[[], SparkSession] | None" = None,
    said: Said = lambda step: None,
) -> Audit:
    """Audit a data directory, a server or both, and a lake beside them. Of several servers, all have to answer.

    `pattern` is a regular expression of whole topic names. A session is made by `build` if it is needed.
    """
    matches = _matching(pattern)
    server = _server(path, url, token)
    found = Audit()
    heads: dict[Instance, int] = {}
    homes: dict[Instance, str] = {}
    if path is not None:
        said(f"checking {path}")
        heads = _check_directory(found, path, matches)
    if server is not None:
        for url in server.urls:
            with server.at(url).open() as client, _named(server, url):
                here = _count_served(found, client, url if server.is_several else "", matches, said)
            heads |= here
            homes |= dict.fromkeys(here, url)
        _check_homes(found)
    if lake is not None:
        said(f"comparing {lake}")
        _compare(found, lake, heads, comparing.Sides(lake, path, server, homes), matches, spark, build)
    return found


def _matching(pattern: str | None) -> Callable[[str], bool]:
    if pattern is None:
        return lambda topic: True
    try:
        compiled = re.compile(pattern)
    except re.error as error:
        raise InvalidRequest(f"topics is {pattern!r}: it is not a regular expression: {error}") from None
    return lambda topic: compiled.fullmatch(topic) is not None


def _server(path: str | None, url: str | None, token: str | None) -> Connection | None:
    """The server to ask: the one named; without a directory also that of the environment."""
    if url is None and path is not None:
        return None
    server = replace(Connection.load(url), retries=RETRIES)
    return server if token is None else replace(server, token=token)


# --- a data directory


def _check_directory(found: Audit, path: str, matches: Callable[[str], bool]) -> dict[Instance, int]:
    """What is found in a directory. Gives the heads up to which its segments can be compared with a lake."""
    try:
        directory = reader.open_directory(path)
    except Damaged as error:
        found.findings.append(Finding("directory", str(error)))
        return {}
    with directory:
        check = directory.check()
        found.segments, found.segment_bytes = check.segments, check.segment_bytes
        found.log_files, found.log_frames = check.log_files, check.log_frames
        found.is_complete = directory.is_complete
        for fault in check.faults:
            finding = Finding("directory", fault.message, fault.topic, fault.file, fault.is_certain)
            found.findings.append(finding)
        found.tallies += [
            Tally("directory", a.topic, a.epoch, a.head, a.live, a.deleted, a.lost)
            for a in check.accounts
            if matches(a.topic)
        ]
        try:
            infos = directory.topics()
        except (Damaged, UnusableDirectory) as error:
            found.findings.append(Finding("directory", str(error)))
            return {}
        return {(info.name, info.epoch): info.head for info in infos if matches(info.name) and info.sealed_through}


# --- a server


@contextmanager
def _named(server: Connection, url: str) -> Iterator[None]:
    """What fails says which of several servers it was."""
    try:
        yield
    except (ApiError, ClientError) as error:
        if server.is_several and url not in str(error):
            error.args = (f"{url}: {error}",)
        raise


def _check_homes(found: Audit) -> None:
    """A name belongs to one server: nobody can say which topic is meant otherwise."""
    homes: dict[str, list[str]] = {}
    for tally in found.tallies:
        if tally.server:
            homes.setdefault(tally.topic, []).append(tally.server)
    for topic, servers in homes.items():
        if len(servers) > 1:
            found.findings.append(Finding("server", f"it is on {' and on '.join(servers)}; delete one of them", topic))


class _Served(Struct, frozen=True):
    """All that an export of a topic holds."""

    epoch: int
    head: int
    rows: int
    size_bytes: int
    lost: list[Lost]
    faults: list[str]


def _count_served(
    found: Audit, client: Client, server: str, matches: Callable[[str], bool], said: Said
) -> dict[Instance, int]:
    """What is found on a server, which is `server` if there are several. Gives the heads of its topics."""
    heads: dict[Instance, int] = {}
    names = [listed.topic for listed in client.topics() if matches(listed.topic)]
    for number, name in enumerate(names, 1):
        said(f"reading {name} ({number} of {len(names)}{f' on {server}' if server else ''})")
        try:
            tally, faults = _count_topic(client, name)
        except TopicNotFound:
            continue  # it was deleted meanwhile
        except (ApiError, ConnectionFailed) as error:
            if isinstance(error, ApiError) and error.status < 500:
                raise
            client.health()  # raises if it is the server that is gone
            found.findings.append(Finding("server", f"it cannot be read: {error}", name, server=server))
            continue
        found.tallies.append(structs.replace(tally, server=server))
        found.findings += [Finding("server", fault, name, server=server) for fault in faults]
        heads[name, tally.epoch] = tally.head
    return heads


def _count_topic(client: Client, topic: str) -> tuple[Tally, list[str]]:
    """What a topic has, and what of it contradicts what the server says of it. Tried until it stands still."""
    for attempt in range(ATTEMPTS_MAX):
        before = client.state(topic, touch=False)
        try:
            served = _served(client, topic)
        except ConnectionFailed:
            if attempt == ATTEMPTS_MAX - 1:
                raise
            continue
        after = client.state(topic, touch=False)
        if _is_same(before, after):
            break
    faults = served.faults
    if _is_same(before, after) and (served.rows, served.size_bytes) != (after.count, after.bytes):
        faults = [
            *faults,
            f"{served.rows} records of {served.size_bytes} bytes are served where the server counts {after.count} of "
            f"{after.bytes}",
        ]
    lost = total(union((a.first, a.last) for a in served.lost))
    deleted = served.head - served.rows - lost
    if deleted < 0:
        faults = [*faults, f"live {served.rows} + lost {lost} is more than the head {served.head}"]
    return Tally("server", topic, served.epoch, served.head, served.rows, deleted, lost), faults


def _is_same(before: TopicState, after: TopicState) -> bool:
    return all(getattr(before, name) == getattr(after, name) for name in ("epoch", "head_seq", "count", "bytes"))


def _served(client: Client, topic: str) -> _Served:
    import pyarrow as pa
    import pyarrow.compute as pc

    rows = size_bytes = cursor = 0
    faults: list[str] = []
    with closing(client.export(topic)) as export:
        info = export.info
        lost = clipped(info.lost, 0, info.head_seq)
        gone = union((a.first, a.last) for a in lost)
        for batch in export:
            seqs = batch.column("seq").cast(pa.int64())
            whole = pa.concat_arrays([pa.array([cursor], pa.int64()), seqs])
            if pc.any(pc.less_equal(pc.pairwise_diff(whole), 0)).as_py():
                faults.append(f"the records above seq {cursor} are not ascending by seq")
            for first, last in gone:
                inside = pc.and_(pc.greater_equal(seqs, first), pc.less_equal(seqs, last))
                if pc.any(inside).as_py():
                    faults.append(f"seqs {first} to {last} are announced as lost, and some of them are live")
            rows += batch.num_rows
            size_bytes += sum(pc.sum(pc.binary_length(batch.column(name))).as_py() or 0 for name in ("data", "meta"))
            cursor = seqs[-1].as_py() if batch.num_rows else cursor
    return _Served(info.epoch, info.head_seq, rows, size_bytes, lost, faults)


# --- a lake


def _compare(
    found: Audit,
    root: str,
    heads: Mapping[Instance, int],
    sides: comparing.Sides,
    matches: Callable[[str], bool],
    spark: "SparkSession | None",
    build: "Callable[[], SparkSession] | None",
) -> None:
    try:
        lake = Lake.load(root)
    except Damaged as error:
        found.findings.append(Finding("lake", str(error)))
        return
    for topic, said in comparing.check_manifest(lake):
        if not topic or matches(topic):
            found.findings.append(Finding("lake", said, topic))
    instances = [(topic, epoch) for topic, epoch in lake.entries if matches(topic)]
    heads = {**heads, **dict.fromkeys(_elsewhere(found, lake, instances, sides), -1)}
    if spark is None:
        if build is None:
            raise InvalidRequest("a lake is compared by Spark: give a session")
        spark = build()
    for result in comparing.compare(spark, lake, instances, heads, sides):
        found.compared.append(Compared(*result.counts()))
        found.findings += [Finding("lake", said, result.topic, file) for file, said in result.faults]


def _elsewhere(found: Audit, lake: Lake, instances: Sequence[Instance], sides: comparing.Sides) -> Iterator[Instance]:
    """Instances that are on another server than the one they were archived from: other logs, not to be compared."""
    for topic, epoch in instances:
        before, now = lake.server(topic, epoch), sides.homes.get((topic, epoch), "")
        if sides.server is not None and sides.server.is_several and before and now and before != now:
            said = f"epoch {epoch} was archived from {before}, and is on {now} now: they were not compared"
            found.findings.append(Finding("lake", said, topic, is_certain=False))
            yield topic, epoch
