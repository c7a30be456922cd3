"""The nouns of live delivery: feeds, readers, hubs, and what one read gives to all feeds that share it.

Owns the JSON bodies of frames, which SSE and WebSocket share, and the state of each feed, which `delivery` changes.
Must not know: when a topic is read, how a frame is framed.
"""

from collections import deque
from collections.abc import Callable, Sequence
from typing import Final
from weakref import WeakValueDictionary

from msgspec import Struct

from topics.engine.answers import ReadResult
from topics.engine.instance import Followed, PageAddress, Projection
from topics.model import TagMatch
from topics.server.live.outlet import Outlet, Wheel
from topics.uring.lines import Line

FEED_BYTES: Final = 500  # what one weighs in memory, with its places in tables
NODE_BYTES: Final = 120  # of a template, beside its text
NO_LINE: Final = Line()


class Template(Struct, eq=False, weakref=True):
    """How a feed reads, whatever its cursor. Feeds with the same template object share their reads; see `of`."""

    limit: int
    bytes_max: int
    nodes: frozenset[str]
    match: TagMatch | None
    projection: Projection
    is_strong: bool  # show only what is synced (SS18)
    weight: int = 0  # in memory
    _base: "Template | None" = None

    def __post_init__(self) -> None:
        if self.nodes:
            self.weight = sum(NODE_BYTES + len(node) for node in self.nodes)
            self._base = Template.of(
                self.limit, self.bytes_max, frozenset(), self.match, self.projection, self.is_strong
            )

    @property
    def base(self) -> "Template":
        """The template without its nodes. Its reads serve this one, unless one of the nodes wrote a record in them."""
        return self._base or self

    @staticmethod
    def of(
        limit: int,
        bytes_max: int,
        nodes: frozenset[str] = frozenset(),
        match: TagMatch | None = None,
        projection: Projection = Projection(),  # noqa: B008 - it cannot change
        is_strong: bool = False,
    ) -> "Template":
        """The template with these values: always the same object, as long as somebody reads by it."""
        key = (limit, bytes_max, nodes, match, projection, is_strong)
        template = _templates.get(key)
        if template is None:
            template = _templates[key] = Template(*key)
        return template


_templates: "WeakValueDictionary[tuple[object, ...], Template]" = WeakValueDictionary()


class Feed:
    """One topic on one connection: where it stands, and how it reads."""

    __slots__ = (
        "cursor",
        "epoch",
        "head",
        "hub",
        "is_apart",
        "is_behind",
        "is_due",
        "is_first",
        "is_waiting",
        "name",
        "reader",
        "template",
        "weight",
    )

    def __init__(self, name: str, template: Template, epoch: int, cursor: int, head: int = 0) -> None:
        self.name = name
        self.template = template
        self.epoch = epoch  # the instance that the cursor belongs to
        self.cursor = cursor
        self.head = head  # the topic's, as last seen
        self.weight = 0  # what is held for it in memory, while it has a reader
        self.reader: Reader | None = None
        self.hub: Hub | None = None
        self.is_first = True  # the next read is the first of the connection, or the first after a stall (TM13)
        self.is_due = True  # to be told when it has caught up (SS11)
        self.is_waiting = False  # a read waits for its gate or its pages
        self.is_apart = False  # its next read is not shared: the last one had records of its own nodes
        self.is_behind = False  # there is something to read once the reader takes frames again

    @property
    def lag(self) -> int:
        """How many seqs the reader has not been told of, as of the end of the log."""
        if self.hub is None:
            return 0
        topic = self.hub.topic
        topic.refresh()
        return max(0, topic.head - (self.cursor if self.epoch == topic.epoch else 0))


class Push:
    """One read for all feeds at the same cursor. The JSON of its frames is rendered once."""

    __slots__ = ("_record_json", "after", "at", "rendered", "result", "start")

    def __init__(self, after: int, result: ReadResult, at: int) -> None:
        self.after = after  # the cursor of the read
        self.at = at  # when it was made, in ms of the wheel's clock
        self.result = result
        lost = result.tombstone
        # The cursor behind the tombstone: where the records begin.
        self.start = after if lost is None else lost.earliest_seq - 1 if lost.reason == "recreated" else lost.gap_to
        self.rendered: dict[object, bytes] = {}  # frames that readers rendered, by whatever distinguishes them
        self._record_json = b""

    @property
    def is_plain(self) -> bool:
        """Whether it gives records and nothing else: what a feed that has caught up is given."""
        result = self.result
        return result.tombstone is None and result.count > 0 and result.caught_up

    @property
    def record_json(self) -> bytes:
        """The body of the record frame."""
        if not self._record_json:
            result = self.result
            head = b'{"topic":"%b","records":[' % result.topic.encode()
            tail = b'],"from_seq":%d,"to_seq":%d,"head_seq":%d}' % (self.start, result.next_from_seq, result.head_seq)
            self._record_json = b"".join((head, b",".join(result.texts), tail))
        return self._record_json

    def tombstone_json(self, *, is_first: bool) -> bytes:
        """The body of the tombstone frame. `is_first`: whatever was lost before, the reason is a general one (TM13)."""
        lost = self.result.tombstone
        assert lost is not None
        reason = "from_seq_too_old" if is_first and lost.reason in ("cap", "ttl", "mixed") else lost.reason
        return b'{"topic":"%b","reason":"%b","gap_from":%d,"gap_to":%d,"earliest_seq":%d,"head_seq":%d}' % (
            self.result.topic.encode(),
            reason.encode(),
            lost.gap_from,
            lost.gap_to,
            lost.earliest_seq,
            lost.head_seq,
        )

    @property
    def caught_up_json(self) -> bytes:
        return b'{"topic":"%b","head_seq":%d}' % (self.result.topic.encode(), self.result.head_seq)


def topic_deleted_json(feed: Feed) -> bytes:
    return b'{"topic":"%b","head_seq":%d,"reason":"deleted"}' % (feed.name.encode(), feed.head)


class Reader(Outlet):
    """A connection with feeds. When a method is called, the feed's cursor is already past what the method tells."""

    __slots__ = ("advised_in", "feeds", "line", "style")

    def __init__(self, wheel: Wheel, line: Line = NO_LINE, style: object = None) -> None:
        super().__init__(wheel)
        self.line = line
        self.style = style  # readers of the same style get the same bytes of a read, `Push.rendered`; None: of its own
        self.feeds: dict[str, Feed] = {}  # by topic
        self.advised_in = 0  # the last episode of pressure that it was told of

    def followed(self) -> dict[str, int]:
        """The topics, and how far the reader is behind in each."""
        return {name: feed.lag for name, feed in self.feeds.items()}

    def tombstone(self, feed: Feed, push: Push, is_first: bool) -> None:
        """Something was lost. `feed.cursor` is push.start."""
        raise NotImplementedError

    def records(self, feed: Feed, push: Push) -> None:
        """There are records. `feed.cursor` is push.result.next_from_seq."""
        raise NotImplementedError

    def rest(self, feed: Feed, push: Push, rest: bytes) -> None:
        """There are records, and the socket has taken their bytes but for these."""
        raise NotImplementedError

    def caught_up(self, feed: Feed, push: Push) -> None:
        raise NotImplementedError

    def topic_deleted(self, feed: Feed) -> None:
        """The topic is gone; the feed is no longer among `feeds`."""
        raise NotImplementedError

    def paced(self, topics: Sequence[str], retry_after_ms: int) -> None:
        """Pushes of these topics wait until there is less pressure (PR6)."""
        raise NotImplementedError

    def failed(self, error: BaseException) -> None:
        """A topic cannot be read: end the connection."""
        raise NotImplementedError


class Hub:
    """The feeds of one topic instance, and which of them are to be read."""

    __slots__ = (
        "_wake",
        "cold",
        "feeds",
        "id",
        "is_dirty",
        "is_loading",
        "is_midway",
        "is_ready",
        "kept",
        "loaded",
        "name",
        "order",
        "pending",
        "topic",
    )

    def __init__(self, topic: Followed, wake: "Callable[[Hub], None]") -> None:
        self.id = topic.id
        self.name = topic.name
        self.topic = topic  # still known after its deletion, for its last head
        self.feeds: dict[Feed, None] = {}
        self.pending: deque[Feed] = deque()  # to be served in the next pass
        self.is_dirty = False  # all feeds are to be served
        self.is_midway = False  # a pass was interrupted, and `pending` starts with the feeds that it left out
        self.is_ready = False  # queued, being served, or deferred
        self.order = (0.0, 0)  # its place in the queue
        self._wake = wake
        self.cold: dict[PageAddress | int, list[list[Feed]]] = {}  # what is to be loaded, and who waits for it
        self.kept: PageAddress | int = 0  # what was loaded last, kept until it was read
        self.loaded = (0, 0)  # the place of the page loaded last
        self.is_loading = False

    def wake(self) -> None:
        """For the engine: there may be something new in the topic, or it is gone."""
        self._wake(self)

    def next_cold(self) -> tuple[PageAddress | int, list[list[Feed]]]:
        """What to load next: the page behind the last one, or the first one if there is none behind."""
        places = {missing: missing.place if isinstance(missing, PageAddress) else (0, 0) for missing in self.cold}
        behind = [missing for missing in places if places[missing] > self.loaded]
        chosen = min(behind or places, key=lambda missing: places[missing])
        self.loaded = places[chosen]
        return chosen, self.cold.pop(chosen)
