"""The receiver of a backup: the stream of a source becomes objects of a place, and points.

Everything that arrives is held against its checksum before it is put, and the log against its frames. What a killed
receiver has put stays, and is not shipped again; a point is there only if all of it is. What is not there any more, is
known to be damaged or is being pruned counts as missing, and is shipped and put again. Several receivers may
work on one place at once: each has points of its own, and whoever puts an object of one name puts the same bytes.
"""

from collections.abc import Callable, Iterable
from contextlib import suppress

import msgspec
from msgspec import Struct
from xxhash import xxh3_64_hexdigest

from topics.backup import layout
from topics.backup.layout import Chunk, Entry, Point
from topics.backup.places import Place
from topics.backup.points import objects_of
from topics.backup.pruning import being_removed
from topics.engine.durability.shipping import FLAGS_PREFIX, FORMAT, BadStream, Base, Decoder, Head
from topics.storage import frames

FILES_OFFERED_MAX, PIECES_OFFERED_MAX = 150_000, 2000  # the body of a request has a limit


class Shipped(Struct):
    """What has arrived so far."""

    point: str = ""  # the newest point
    position: int = 0  # the copy has all of the log below
    ts: int = 0  # as of this time of the source
    points: int = 0
    files: int = 0  # objects that were put, without those of the log
    bytes: int = 0
    log_bytes: int = 0
    files_known: int = 0  # of the newest point, that were there before


class Receiver:
    """Takes one stream after the other."""

    def __init__(
        self, place: Place, source: str, on_progress: Callable[[Shipped], None] = lambda shipped: None
    ) -> None:
        self._place = place
        self._source = source
        self._on_progress = on_progress
        self._objects: dict[str, str] = {}  # identity → path
        self._pieces: dict[str, Chunk] = {}  # of the log, by name
        self._distrusted: set[str] = set()  # objects that are damaged, as far as anybody knows
        self._decoder = Decoder()
        self._base: Base | None = None
        self._point = ""  # that is being shipped
        self._described = ""  # the newest description
        self._log_point = ""  # whose log goes on
        self._chunks: list[Chunk] = []  # without holes
        self.shipped = Shipped()

    @property
    def have(self) -> set[str]:
        """What need not be shipped: the identities of files, and the names of the newest pieces of the log."""
        newest = sorted(self._pieces, reverse=True)[:PIECES_OFFERED_MAX]
        return {*list(self._objects)[-FILES_OFFERED_MAX:], *newest}

    def begin(self) -> None:
        """A new stream comes. Look at what is there."""
        self._decoder, self._base, self._chunks, self._log_point = Decoder(), None, [], ""
        self._objects, self._pieces = {}, {}
        gone = self._distrusted | being_removed(self._place)
        for path, size in self._place.sizes().items():
            if size and path not in gone:
                if (identity := layout.identity_in(path)) is not None:
                    self._objects[identity] = path
                elif (found := layout.chunk_in(path)) is not None and size == found[1].end - found[1].first:
                    self._pieces[path.rpartition("/")[2]] = found[1]

    def distrust(self, paths: Iterable[str]) -> None:
        """These objects are damaged: from the next stream on they are shipped again."""
        self._distrusted.update(paths)

    def retract(self) -> None:
        """Take back the description of the newest point, which is not whole."""
        with suppress(OSError):  # where nothing can be removed, a newer point takes its place
            self._place.remove(self._described)

    def feed(self, data: bytes) -> None:
        for head, payload in self._decoder.feed(data):
            if head.kind == "base":
                self._take_base(payload)
            elif self._base is None:
                raise BadStream("the stream of a backup does not begin with a base")
            elif head.kind == "file":
                self._take_file(head, payload)
            elif head.kind == "log":
                self._take_log(head, payload)
            elif head.kind == "ready":
                self._complete(self._base)
            if head.kind in ("ready", "beat"):
                self.shipped.position, self.shipped.ts = head.position, head.ts or self.shipped.ts
            self._on_progress(self.shipped)

    def _take_base(self, payload: bytes) -> None:
        base = msgspec.json.decode(payload, type=Base)
        if base.format > FORMAT:
            raise BadStream(f"a newer version of topics sends it: format {base.format}; this one reads {FORMAT}")
        self._base, self._point = base, layout.new_point(base.ts, base.position)
        self._log_point = self._log_point or self._point
        if base.log:
            if not set(base.log) <= self._pieces.keys():
                raise BadStream("the source names pieces of the log that were never offered")
            self._chunks = [self._pieces[name] for name in base.log]
        wanted = [*base.snapshot, *base.segments, *base.flags]
        self.shipped.files_known = sum(file.identity in self._objects for file in wanted)

    def _take_file(self, head: Head, payload: bytes) -> None:
        path = layout.object_path(head.name, head.identity, head.xxh3)
        self._put(path, payload)
        self._objects[head.identity] = path
        self.shipped.files += 1
        self.shipped.bytes += len(payload)

    def _take_log(self, head: Head, payload: bytes) -> None:
        end = head.position + len(payload)
        chunk = Chunk(head.position, end, layout.chunk_path(self._log_point, head.position, payload))
        if self._chunks and not layout.follows(self._chunks[-1], chunk):
            self._chunks, self._log_point = [], self._point
            chunk = Chunk(head.position, end, layout.chunk_path(self._point, head.position, payload))
        if not self._chunks and frames.offset_of(chunk.first):
            raise BadStream("a log file does not begin at its beginning")
        self._put(chunk.path, payload)
        self._chunks.append(chunk)
        self._pieces[chunk.path.rpartition("/")[2]] = chunk
        self.shipped.bytes += len(payload)
        self.shipped.log_bytes += len(payload)

    def _complete(self, base: Base) -> None:
        """All of a base is there: describe it as a point."""
        first = frames.number_of(base.start)
        log = [chunk for chunk in self._chunks if chunk.number >= first]
        begins = not log or log[0].first == frames.position_of(first, 0)
        if not begins or (log[-1].end if log else base.start) < base.position:
            raise BadStream("some of the log is missing in the stream")
        flags = {name.removeprefix(FLAGS_PREFIX): self._object(name, identity) for name, identity in base.flags}
        point = Point(
            self._source,
            base.ts,
            base.position,
            base.flagged,
            base.start,
            [Entry(name, self._object(name, identity)) for name, identity in base.snapshot],
            [
                Entry(name, self._object(name, identity), flags.get(name.partition(".")[0].partition("-")[2], ""))
                for name, identity in base.segments
            ],
            [chunk.path for chunk in log],
        )
        self._describe(point)
        self._chunks = log
        self.shipped.point = self._log_point = self._point
        self.shipped.points += 1

    def _put(self, path: str, data: bytes) -> None:
        self._place.put(path, data)
        self._distrusted.discard(path)

    def _describe(self, point: Point) -> None:
        """Put the description of a point all of whose objects are there, and were not removed meanwhile."""
        text = msgspec.json.format(msgspec.json.encode(point))
        path = layout.point_path(self._point, xxh3_64_hexdigest(text))
        there, named = self._place.sizes(), {*objects_of(point), *point.log}
        missing = named - there.keys() if there else set()  # an archive that is being written lists nothing
        if missing:
            raise BadStream(f"{min(missing)} is gone from {self._place.name}; it is shipped again")
        self._place.put(path, text)
        self._described = path
        removed = named & being_removed(self._place, path)
        if removed:
            self.retract()
            raise BadStream(f"{self._place.name} is being pruned, or was until lately: {min(removed)} is to go")

    def _object(self, name: str, identity: str) -> str:
        if identity not in self._objects:
            raise BadStream(f"{name} is missing in the stream")
        return self._objects[identity]
