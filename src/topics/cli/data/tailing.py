"""`topics tail` and `topics watch`: the end of topics, and what comes.

A tail outlives its server: when the connection is gone it says so, tries again until somebody answers, and goes on
where it was; what was lost meanwhile comes as a gap. Topics that come to fit a pattern later are followed, too, each in
a thread of its own; one lock keeps lines whole.
"""

import fnmatch
import sys
import threading
from contextlib import closing
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from topics.cli.data.reading import Count, Format, before_last, printer, show_gap
from topics.cli.shell import display, exits
from topics.cli.shell.completing import Filter, Topics
from topics.cli.shell.invoking import Call
from topics.cli.shell.quantities import moment_ms, tag_match
from topics.model import Tombstone

if TYPE_CHECKING:
    from topics.client import Client, Record

LISTED_EVERY_S: Final = 2.0
WAIT_FIRST_S: Final = 0.2
WAIT_MAX_S: Final = 5.0
TOPICS_MAX: Final = 256  # in one watch
PASSING: Final = ("client", "throttled", "not_ready", "shutting_down", "internal")


def tail(
    call: Call,
    topics: Topics,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Go on with what comes.")] = False,
    count: Annotated[int, typer.Option("--count", "-n", min=0, help="So many records of each topic.")] = 10,
    since: Annotated[str | None, typer.Option(metavar="WHEN", help="From 5m (ago) or a time on; not -n.")] = None,
    filter: Filter = None,
    format: Format = None,
) -> None:
    """Print the last records of topics, and with -f what comes from then on.

    It goes on after a restart of the server, and follows topics that come to fit a pattern. What was lost is announced
    loudly on stderr, with its range and reason.

    Example: topics tail orders -n 5

    Example: topics tail -f orders 'jobs*' --since 5m
    """
    from_ts = None if since is None else moment_ms(since, call.clock.now_ms())
    tailing = _Tail(call, topics, format, tag_match(filter))
    starts = tailing.starts(count, from_ts)
    if follow:
        tailing.follow(starts)
    else:
        tailing.print_ends(starts)


def watch(
    call: Call,
    topics: Topics,
    start: Annotated[
        str, typer.Option("--from", metavar="WHERE", help="latest, earliest, or a seq to start at.")
    ] = "latest",
    count: Count = None,
    filter: Filter = None,
) -> None:
    """Print what the server pushes about topics, one JSON object per event.

    The events are record, tombstone (what was lost), caught-up and topic-deleted, with the fields of the API. With -n
    it ends after that many events; otherwise it continues, even after a restart of the server.

    Example: topics watch orders --from earliest -n 2
    """
    names = named(call, topics) or call.fail("no topic fits", exits.ABSENT)
    after: int | None
    if start == "latest":
        after = None
    elif start == "earliest":
        after = 0
    elif start.isdigit():
        after = max(0, int(start) - 1)
    else:
        raise typer.BadParameter(f"{start!r} is no position; use latest, earliest or a seq", param_hint="--from")
    follower = _Follower(call, tag_match(filter), dict.fromkeys(names, after))
    left = count
    with closing(follower):
        while left != 0 and (event := follower.next_event()) is not None:
            call.emit(_event_fields(event))
            left = None if left is None else left - 1


def _event_fields(event: Any) -> dict[str, Any]:
    import msgspec

    kinds = {"Records": "record", "Lost": "tombstone", "CaughtUp": "caught-up", "TopicGone": "topic-deleted"}
    found: dict[str, Any] = {"event": kinds[type(event).__name__], **msgspec.structs.asdict(event)}
    if "records" in found:
        fields = (display.fields_of(record, event.topic) for record in event.records)
        found["records"] = [{name: value for name, value in one.items() if name != "topic"} for one in fields]
    return found


def named(call: Call, patterns: list[str]) -> list[str]:
    """The topics of these names and patterns, each once. A pattern may fit none."""
    found = dict.fromkeys(name for name in patterns if not is_pattern(name))
    for pattern in filter(is_pattern, patterns):
        found |= dict.fromkeys(matching(call.client, pattern))
    if len(found) > TOPICS_MAX:
        call.fail(f"{len(found):,} topics fit; at most {TOPICS_MAX} can be followed at a time", exits.USAGE)
    return list(found)


def is_pattern(name: str) -> bool:
    return any(char in name for char in "*?[")


def matching(client: "Client", pattern: str) -> list[str]:
    prefix = pattern[: min(pattern.find(char) for char in "*?[" if char in pattern)]
    return [one.topic for one in client.topics(prefix) if fnmatch.fnmatchcase(one.topic, pattern)]


class _Follower:
    """A watch that is opened again, for as long as it takes, after the server was gone."""

    def __init__(self, call: Call, match: Any, positions: dict[str, int | None]) -> None:
        self._call = call
        self._match = match
        self._positions = positions
        self._epochs: dict[str, int] = {}
        self._client = call.new_client()
        self._watch: Any = None
        self._waited = threading.Event()
        self._wait_s = 0.0

    def next_event(self) -> Any:
        """The next event; None when the last topic is gone."""
        from topics.errors import TopicsError

        while True:
            try:
                if self._watch is None:
                    self._watch = self._client.watch(
                        self._positions, epochs=self._epochs, filter=self._match, include_tags=True
                    )
                event = next(self._watch, None)
            except TopicsError as error:
                if error.code not in PASSING or (self._wait_s == 0 and not self._has_begun()):
                    raise
                self._keep()
                self._rest(error)
            else:
                if self._wait_s:
                    display.say(f"topics {self._call.name}: connected again")
                    self._wait_s = 0.0
                return event

    def close(self) -> None:
        if self._watch is not None:
            self._watch.close()

    def _has_begun(self) -> bool:
        return self._watch is not None and bool(self._watch.epochs)

    def _keep(self) -> None:
        """Remember how far it has come, for the next watch."""
        if self._watch is not None:
            self._positions = self._watch.positions
            self._epochs = self._watch.epochs
            self._watch.close()
            self._watch = None

    def _rest(self, error: Any) -> None:
        if self._wait_s == 0:
            display.say(f"topics {self._call.name}: {error.message}; waiting for {self._call.server.url}")
        self._wait_s = min(WAIT_MAX_S, self._wait_s * 2 or WAIT_FIRST_S)
        self._waited.wait(self._wait_s)


class _Tail:
    """The ends of several topics, and what comes."""

    def __init__(self, call: Call, patterns: list[str], format: str | None, match: Any) -> None:
        self._call = call
        self._patterns = patterns
        self._match = match
        several = len(patterns) > 1 or is_pattern(patterns[0])
        self._show = printer(call, format, names_topic=several)
        self._lock = threading.Lock()
        self._known: set[str] = set()  # those that are followed
        self._failure: BaseException | None = None
        self._ended = threading.Event()

    def starts(self, count: int, from_ts: int | None) -> dict[str, int]:
        """The cursor of each topic."""
        client, found = self._call.client, {}
        for topic in named(self._call, self._patterns):
            if from_ts is not None:
                diff = client.diff(topic, from_ts=from_ts, limit=1, filter=self._match, include_meta=False)
                if diff.tombstone is not None:  # to be announced by the read that follows
                    found[topic] = diff.tombstone.gap_from - 1
                else:
                    found[topic] = diff.records[0].seq - 1 if diff.records else diff.next_from_seq
            else:
                head = client.state(topic, touch=False).head_seq
                found[topic] = before_last(client, topic, head, count, self._match)
        return found

    def print_ends(self, starts: dict[str, int]) -> None:
        """What there is, in the order of time across topics."""
        if not starts:
            self._call.fail("no topic fits", exits.ABSENT)
        found: list[tuple[int, str, Record]] = []
        for topic, after in starts.items():
            for item in self._call.client.consume(
                topic, after, follow=False, include_tags=True, filter=self._match, limit=1000
            ):
                if isinstance(item, Tombstone):
                    show_gap(self._call, topic, item)
                else:
                    found.append((item.ts, topic, item))
        for _, topic, record in sorted(found, key=lambda one: one[:2]) if len(starts) > 1 else found:
            self._show(topic, record)

    def follow(self, starts: dict[str, int]) -> None:
        if not any(map(is_pattern, self._patterns)):
            self._follow(_Follower(self._call, self._match, dict(starts)))
            return
        fresh: dict[str, int | None] = dict(starts)
        while self._failure is None:
            if fresh:
                self._known |= fresh.keys()
                follower = _Follower(self._call, self._match, fresh)
                threading.Thread(target=self._follow_beside, args=(follower,), daemon=True).start()
            self._ended.wait(LISTED_EVERY_S)
            fresh = dict.fromkeys(self._appeared(), 0)
        raise self._failure

    def _appeared(self) -> list[str]:
        from topics.errors import TopicsError

        try:
            patterns = filter(is_pattern, self._patterns)
            found = [name for pattern in patterns for name in matching(self._call.client, pattern)]
        except TopicsError as error:
            if error.code not in PASSING:
                raise
            return []
        return [name for name in dict.fromkeys(found) if name not in self._known]

    def _follow_beside(self, follower: _Follower) -> None:
        try:
            self._follow(follower)
        except BaseException as error:
            self._failure = error
            self._ended.set()

    def _follow(self, follower: _Follower) -> None:
        with closing(follower):
            while (event := follower.next_event()) is not None:
                with self._lock:
                    self._print(event)

    def _print(self, event: Any) -> None:
        match type(event).__name__:
            case "Records":
                for record in event.records:
                    self._show(event.topic, record)
                sys.stdout.flush()
            case "Lost":
                show_gap(self._call, event.topic, event)
            case "TopicGone":
                self._known.discard(event.topic)  # it may come again
                display.say(display.coloured(f"!!! {event.topic}: the topic was deleted", display.RED, sys.stderr))
