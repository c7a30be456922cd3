"""What the clients were told, over all lives of a server on one directory, and what they asked without an answer.

Owns the bookkeeping, and what can be seen from the answers alone: a seq is never told with two contents, a write is
told once and a repeat of its key the same seqs, a job is handed out to one holder at a time and acked once, a reader
is shown all that was told before and nothing twice. An AssertionError says what was contradicted. What a recovered
server must have is in `check.py`. Must not know: protocols, the server.

A life of the server ends with `adopt`: what was found then is what was told, and nothing is open any more.
"""

from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

from tests.pipelining.clients import STATUS, Heard, Pushed, Request
from tests.pipelining.look import Found, Lease, TopicFound
from tests.pipelining.workload import AGING, BOUND, BRIEF, DEAD, LOSSY, ROUTERS, class_of, config_of

NEVER = 1 << 62
WITHDRAWN = 499
ANSWERED_EARLY = (429, 503)  # by the head of a request, whatever becomes of its body


@dataclass(eq=False)
class Call:
    """A request of this life, and its answer if there was one; times are places in the order of all that happened."""

    request: Request
    asked_at: int
    answered_at: int = NEVER
    status: int = 0
    body: dict[str, Any] = field(default_factory=dict)
    asked_ms: int = 0  # by the clock
    deadlines: dict[int, int] = field(default_factory=dict)  # of the leases that it names; 0 = a later one was told

    @property
    def is_open(self) -> bool:
        return self.answered_at == NEVER

    @property
    def is_done(self) -> bool:
        return 200 <= self.status < 300

    @property
    def may_have_happened(self) -> bool:
        return self.is_open or self.is_done


@dataclass(eq=False)
class Write:
    """The records of one write. Under a key, all requests with this key are this write."""

    topic: str
    records: list[tuple[str, str | None]]  # data, tag
    calls: list[Call] = field(default_factory=list)  # of this life
    first: int | None = None  # its first seq, once told
    asked_at: int = 0
    asked_ms: int = 0  # by the clock; it was written at this time or later
    is_void: bool = False  # it did not survive the life in which it was asked
    is_old: bool = False  # it was there in an earlier life, so that copies of it may be, whatever becomes of a repeat
    was_there: bool = False  # it was told in some life; copies of it may have outlived it

    @property
    def is_refused(self) -> bool:
        """Every attempt was answered with an error: nothing of it may be there."""
        is_asked = self.first is None and bool(self.calls) and not self.is_old
        return is_asked and not any(call.may_have_happened for call in self.calls)


class Told:
    """With `is_faulty` the disk fails: 500 is an answer. With `may_throttle` 429 is one, too. `clock` is the server's,
    if it is known."""

    def __init__(
        self, *, is_faulty: bool = False, may_throttle: bool = False, clock: Callable[[], int] | None = None
    ) -> None:
        self.is_faulty = is_faulty
        self.refusals = {404} | ({500} if is_faulty else set()) | ({429} if may_throttle else set())
        self.clock: Callable[[], int] = clock or (lambda: 0)
        self._has_clock = clock is not None
        self.may_have_stopped = False  # the last life may have ended gracefully
        self.is_stopping = False  # the server stops: 503 is an answer
        self.lives = 1
        self.now = 0
        self.calls: list[Call] = []  # of this life
        self.by_data: dict[str, tuple[Write, int]] = {}  # each record's write, and its place in that
        self.ever: defaultdict[str, dict[int, str]] = defaultdict(dict)  # topic → seq → data, acked or shown
        self.told_at: defaultdict[str, dict[int, int]] = defaultdict(dict)  # topic → seq → when it was first told
        self.gone: defaultdict[str, set[int]] = defaultdict(set)  # seqs without a record when this life began
        self.lost: defaultdict[str, set[int]] = defaultdict(set)  # those of them that tombstones announce
        self.epochs: dict[str, int] = {}  # when this life began
        self.created: defaultdict[str, int] = defaultdict(int)  # how often each topic was told to be new
        self.dropped: set[str] = set()  # topics that somebody asked to delete: they may be gone, or new ones
        self.held: defaultdict[str, dict[int, Lease]] = defaultdict(dict)  # jobs handed out, nobody asked to settle
        self.acked: defaultdict[str, set[int]] = defaultdict(set)  # jobs
        self.nacked: defaultdict[str, set[int]] = defaultdict(set)  # asked for, whatever came of it
        self.released: set[str] = set()  # nodes whose stream of jobs was dropped
        self._lease_ids: defaultdict[str, dict[int, str | None]] = defaultdict(dict)  # the last one told
        self._deliveries: defaultdict[str, dict[int, int]] = defaultdict(dict)  # in this life
        self._open: dict[Request, Call] = {}
        self._withdrawn: set[Request] = set()
        self._removing: defaultdict[str, list[Call]] = defaultdict(list)  # deletes and acks of this life
        self._keyed: dict[tuple[str, str], Write] = {}
        self._places: defaultdict[str, dict[str, int]] = defaultdict(dict)  # topic → data → seq
        self._cursors: dict[tuple[str, str], int] = {}  # stream, topic → how far it was examined
        self.streamed: defaultdict[tuple[str, str], set[int]] = defaultdict(set)

    # --- what happens

    def asked(self, request: Request) -> None:
        self.now += 1
        call = self._open[request] = Call(request, self.now, asked_ms=self.clock())
        self.calls.append(call)
        if request.kind in ("delete", "ack"):
            self._removing[request.topic].append(call)
        if request.kind == "write":
            self._asked_write(call)
        elif request.kind == "drop":
            self.dropped.add(request.topic)
        elif request.kind in ("ack", "nack", "extend"):
            self._asked_about_jobs(call)

    def _asked_about_jobs(self, call: Call) -> None:
        """What becomes of these jobs is open; those that were handed out again since are not the caller's."""
        topic, body = call.request.topic, call.request.body or {}
        for seq, lease_id in zip(body["seqs"], body.get("lease_ids") or [None] * len(body["seqs"]), strict=True):
            if self._lease_ids[topic].get(seq, lease_id) != lease_id:
                call.deadlines[seq] = 0
            elif (lease := self.held[topic].pop(seq, None)) is not None:
                call.deadlines[seq] = lease.deadline
        if call.request.kind == "nack":
            self.nacked[topic].update(body["seqs"])

    def _asked_write(self, call: Call) -> None:
        topic, body = call.request.topic, call.request.body or {}
        key = body.get("idempotency_key")
        write = self._keyed.get((topic, key)) if key is not None else None
        if write is None:
            write = Write(topic, [(record["data"], record.get("tag")) for record in body["records"]])
            write.asked_at, write.asked_ms = self.now, call.asked_ms
            self.by_data |= {data: (write, place) for place, (data, _) in enumerate(write.records)}
            if key is not None:
                self._keyed[topic, key] = write
        write.calls.append(call)
        write.is_void = False

    def heard(self, heard: Heard, stream: str) -> None:
        """An answer, or something pushed on the connection `stream`."""
        self.now += 1
        if isinstance(heard, Pushed):
            self._pushed(heard, stream)
            return
        call = self._open.pop(heard.request, None)
        if call is None:  # it may be refused by its head alone
            assert heard.request in self._withdrawn and heard.status in ANSWERED_EARLY, f"nobody asked {heard.request}"
            return
        call.answered_at, call.status, call.body = self.now, heard.status, heard.body
        if call.is_done:
            learn = getattr(self, f"_told_{heard.request.kind}", None)
            if learn is not None:
                learn(call, heard.body)
        else:
            assert self._may_refuse(call), f"{heard.request} was answered with {heard.status} {heard.body}"

    def _may_refuse(self, call: Call) -> bool:
        if call.status == 422 and call.request.topic == "bounded":
            return self._may_be_full(call)
        also = {500: self.is_faulty, 503: self.is_stopping}
        return call.status in self.refusals or also.get(call.status, False)

    def _may_be_full(self, call: Call) -> bool:
        """WR11: whether there may be so many records that the write does not fit."""
        topic, count = call.request.topic, len((call.request.body or {})["records"])
        gone = set(self.gone[topic])
        for removal in self.removals(topic):
            if removal.is_done and removal.answered_at < call.asked_at:
                gone |= self.must_take(removal)
        places = self._places[topic]
        writes = [(data, write) for data, (write, _) in self.by_data.items() if write.topic == topic]
        there = [data for data, write in writes if not write.is_refused and not write.is_void]
        return sum(places.get(data) not in gone for data in there) + count > BOUND

    def withdrawn(self, request: Request) -> None:
        """The end of a request was never sent: it has not been made."""
        call = self._open.pop(request, None)
        if call is not None:  # else it was refused before its end, by a server that stops
            call.answered_at, call.status = self.now, WITHDRAWN
            self._withdrawn.add(request)

    def cursor(self, stream: str, topic: str) -> int:
        """How far a stream has come."""
        return self._cursors.get((stream, topic), 0)

    def hung_up(self, node: str) -> None:
        """The stream of jobs of this node broke off: the server ends its leases."""
        self.released.add(node)
        for held in self.held.values():
            for seq in [seq for seq, lease in held.items() if lease.node == node]:
                del held[seq]

    def undone(self, requests: list[Request]) -> list[Request]:
        """Those that nothing was told of yet, or that were refused."""
        done = {call.request.target for call in self.calls if call.is_done}
        return [request for request in requests if request.target not in done]

    @property
    def open_calls(self) -> list[Call]:
        return [call for call in self.calls if call.is_open]

    # --- answers

    def _told_write(self, call: Call, body: dict[str, Any]) -> None:
        write = self.by_data[call.request.body["records"][0]["data"]][0]  # type: ignore[index]
        first, count = body["first_seq"], len(write.records)
        assert body["seqs"] == list(range(first, first + count)), f"{call.request} got the seqs {body['seqs']}"
        assert (body["last_seq"], body["count"]) == (first + count - 1, count), body
        assert write.first in (None, first), f"{call.request} is at {write.first}, and its repeat was told {first}"
        appends = [one for one in write.calls if one.is_done and not one.body["deduped"]]
        assert len(appends) <= 1, f"{call.request} was appended {len(appends)} times"
        write.first, write.was_there = first, True
        self._told_created(call, body)
        for seq, (data, _) in enumerate(write.records, first):
            self._note(write.topic, seq, data)

    def _told_put(self, call: Call, body: dict[str, Any]) -> None:
        topic = call.request.topic
        assert config_of(topic).items() <= body["config"].items(), body
        self._told_created(call, body)

    def _told_created(self, call: Call, body: dict[str, Any]) -> None:
        """TP14"""
        topic = call.request.topic
        assert body["created"] == (call.status == 201), body
        self.created[topic] += body["created"]
        assert self.created[topic] <= 1 or topic in self.dropped, f"{topic} was created twice"

    def _told_diff(self, call: Call, body: dict[str, Any]) -> None:
        topic = call.request.topic
        self._shown(topic, body["records"])
        ttl_ms = config_of(topic).get("ttl_ms")
        late = [one["$seq"] for one in body["records"] if ttl_ms and call.asked_ms - one["$ts"] > ttl_ms]
        # A log that stands still cannot take their loss, which is shown only once it is there (TM14).
        assert not late or self.is_faulty, f"{topic}: {late} had expired by {call.asked_ms}, and were shown"
        after, gap = call.request.body["from_seq"], body["tombstone"]  # type: ignore[index]
        if gap is not None:
            self._check_tombstone(topic, gap)
            after = max(after, gap["gap_to"])
        seqs = {record["$seq"] for record in body["records"]}
        self._check_shown_all(topic, seqs, after, body["next_from_seq"])

    def _told_claim(self, call: Call, body: dict[str, Any]) -> None:
        assert body["count"] == len(body["claimed"]), body
        least = call.asked_ms + config_of(call.request.topic)["lease_ms"]
        for job in body["claimed"]:
            assert job["deadline"] >= least, f"{call.request}: {job}, asked for at {call.asked_ms}"
            self._handed_out(call.request.topic, call.request.body["node"], job)  # type: ignore[index]

    def _told_ack(self, call: Call, body: dict[str, Any]) -> None:
        for seq in self._settled(call, body["acked"], body["skipped"]):
            topic = call.request.topic
            assert seq not in self.acked[topic], f"job {seq} of {topic} was acked twice"
            self.acked[topic].add(seq)

    def _told_nack(self, call: Call, body: dict[str, Any]) -> None:
        self._settled(call, body["nacked"], body["skipped"])

    def _told_extend(self, call: Call, body: dict[str, Any]) -> None:
        topic, asked = call.request.topic, call.request.body or {}
        ids = dict(zip(asked["seqs"], asked["lease_ids"], strict=True))
        for seq in self._settled(call, body["extended"], body["skipped"]):
            deadline = body["deadlines"][str(seq)]
            if self._lease_ids[topic].get(seq) == ids[seq] and asked["node"] not in self.released:
                self.held[topic][seq] = Lease(asked["node"], deadline)

    def _settled(self, call: Call, done: int, skipped: list[int]) -> list[int]:
        """The jobs that a call settled. It skips those that its node does not hold any more, and no others."""
        topic, body = call.request.topic, call.request.body or {}
        assert done == len(body["seqs"]) - len(skipped), f"{call.request} was answered with {call.body}"
        if not self.is_faulty and body["node"] not in self.released:
            held = [seq for seq in skipped if topic not in BRIEF or self.clock() <= call.deadlines.get(seq, 0)]
            assert not held, f"{call.request} skipped {held}, whose leases end at {call.deadlines}"
        settled = [seq for seq in body["seqs"] if seq not in skipped]
        others = [seq for seq in settled if call.deadlines.get(seq) == 0]
        assert not others, f"{call.request} settled {others}, which were handed out again before it was asked"
        return settled

    # --- what is shown

    def _pushed(self, pushed: Pushed, stream: str) -> None:
        body = pushed.body
        topic = body.get("topic", "")
        if pushed.event == "error":
            status = STATUS.get(body["code"], body["code"])
            may = {429: 429 in self.refusals, 503: 503 in self.refusals or self.is_stopping}
            assert may.get(status), f"{stream}: {body}"
        if pushed.event == "job":
            self._handed_out(topic, f"{topic}.stream", body)
            if self.is_stopping:  # its stream ends, and so do its leases
                self.held[topic].pop(body["$seq"], None)
        elif pushed.event == "record":
            seqs = [record["$seq"] for record in body["records"]]
            cursor = self._cursors.get((stream, topic), 0)  # what was removed meanwhile is passed without a frame
            assert body["from_seq"] >= cursor, f"{stream} of {topic} goes on at {body['from_seq']}, not at {cursor}"
            assert all(cursor < seq <= body["to_seq"] for seq in seqs), body
            self._shown(topic, body["records"])
            self._check_shown_all(topic, set(seqs), cursor, body["to_seq"])
            self._cursors[stream, topic] = body["to_seq"]
            self.streamed[stream, topic] |= set(seqs)
        elif pushed.event == "tombstone":
            self._check_tombstone(topic, body)
            self._cursors[stream, topic] = body["gap_to"]

    def _shown(self, topic: str, records: list[dict[str, Any]]) -> None:
        seqs = [record["$seq"] for record in records]
        assert all(one < other for one, other in pairwise(seqs)), f"{topic}: seqs {seqs}"
        for record in records:
            self._note(topic, record["$seq"], record["data"], record.get("$tag"), has_tag=True)

    def _note(self, topic: str, seq: int, data: str, tag: str | None = None, *, has_tag: bool = False) -> None:
        """A seq was told with this content (G2, G3): it has no other, and this content no other seq."""
        write, place = self._write_of(topic, seq, data)
        is_copy = topic != write.topic and write.was_there
        assert is_copy or not write.is_refused, f"{topic}: {data} is shown as {seq}, and was refused"
        assert not write.is_void or topic != write.topic, f"{topic}: {data} is shown as {seq}, and was lost before"
        if topic in self.dropped:
            return
        known = self.ever[topic].setdefault(seq, data)
        assert known == data, f"{topic}: seq {seq} was told as {known} and as {data}"
        if has_tag:
            assert tag == write.records[place][1], f"{topic}: {data} has the tag {tag}"
        at = self._places[topic].setdefault(data, seq)
        assert at == seq or self.may_repeat(topic), f"{topic}: {data} was told as {at} and as {seq}"
        self.told_at[topic].setdefault(seq, self.now)

    def _write_of(self, topic: str, seq: int, data: str) -> tuple[Write, int]:
        assert data in self.by_data, f"{topic}: nobody wrote {data}, which is shown as {seq}"
        write, place = self.by_data[data]
        assert topic in self.homes(write.topic), f"{topic}: {data} was written to {write.topic}"
        return write, place

    def homes(self, topic: str) -> Iterator[str]:
        """Where records that were written to a topic may be: there, in copies, among its dead letters."""
        yield topic
        yield from (dest for dest, (source, _) in ROUTERS.items() if source == topic)
        if topic in DEAD:
            yield DEAD[topic]

    def may_repeat(self, topic: str) -> bool:
        """Copies may be made again after a crash (G14)."""
        return self.lives > 1 and topic in ROUTERS and ROUTERS[topic][1] == "at_least_once"

    def _handed_out(self, topic: str, node: str, job: dict[str, Any]) -> None:
        seq = job["$seq"]
        self._note(topic, seq, job["data"], job.get("$tag"), has_tag=True)
        assert seq not in self.acked[topic], f"job {seq} of {topic} was acked, and handed out again"
        if self._has_clock and job["deadline"] < self.clock():
            return  # the lease was over when it was heard of, and the job may be somebody else's since
        times, before = job.get("deliveries", 0), self._deliveries[topic].get(seq, -1)
        if self.may_have_stopped and node.endswith(".stream") and times < before:
            return  # a stop ended the stream, and the job was somebody else's before the end was heard
        lease = self.held[topic].get(seq)
        is_over = lease is None or lease.node in self.released or lease.deadline < self.clock()
        assert is_over, f"job {seq} of {topic} is held by {lease}, and by {node}"
        is_late = self._has_clock and job["deadline"] > self.clock() + config_of(topic)["lease_ms"]
        assert not is_late, f"{topic}: {job} at {self.clock()}"
        most = config_of(topic).get("max_deliveries", 0)
        assert not most or times <= most, f"job {seq} of {topic} is handed out for the {times}th time"
        assert times > before or self.is_faulty, f"job {seq} of {topic}: delivery {times} after {before}"
        self._deliveries[topic][seq] = times
        self.held[topic][seq] = Lease(node, job["deadline"])
        self._lease_ids[topic][seq] = job.get("lease_id")

    def _check_tombstone(self, topic: str, gap: dict[str, Any]) -> None:
        """Nothing is lost while the server runs; a tombstone for what was lost before covers what was removed since."""
        announced = range(gap["gap_from"], gap["gap_to"] + 1)
        if topic in AGING:
            early = {seq for seq in announced if seq in self.ever[topic] and not self.may_have_expired(topic, seq)}
            assert not early - self.gone[topic], f"{topic}: a tombstone for {announced}, and {early} are too young"
        elif topic not in LOSSY:
            self._check_may_be_passed(topic, set(announced) - self.gone[topic], f"a tombstone for {announced}")

    def may_have_expired(self, topic: str, seq: int) -> bool:
        """TM7: by now."""
        write, _ = self.by_data[self.ever[topic][seq]]
        return bool(self.clock() - write.asked_ms > config_of(topic)["ttl_ms"])

    def _check_shown_all(self, topic: str, seqs: set[int], after: int, last: int) -> None:
        """A reader passes only what somebody asked to remove (WR5, TM9)."""
        unseen = {seq for seq in self.ever[topic].keys() - seqs - self.gone[topic] if after < seq <= last}
        self._check_may_be_passed(topic, unseen, f"a reader from {after} to {last}")

    def _check_may_be_passed(self, topic: str, seqs: set[int], what: str) -> None:
        if topic in DEAD:
            return  # dead letters leave their queue without being asked to
        removals = self.removals(topic)
        for seq in seqs:
            is_removed = any(self.selects(call, seq) for call in removals)
            assert is_removed, f"{topic}: {what} was not shown {seq}"

    # --- what was asked to be removed

    def removals(self, topic: str) -> list[Call]:
        """Calls of this life that remove records, and may have happened."""
        return [call for call in self._removing[topic] if call.may_have_happened]

    def selects(self, call: Call, seq: int) -> bool:
        """Whether a call asks to remove this record; of one that nobody was told of it may."""
        body = call.request.body or {}
        if call.request.kind == "ack":
            return seq in body["seqs"] and seq not in call.body.get("skipped", ())
        if "before_seq" in body:
            return bool(seq < body["before_seq"])
        data = self.ever[call.request.topic].get(seq)
        if data is None:
            return True
        write, place = self.by_data[data]
        return bool(write.records[place][1] == body["match"]) and write.asked_at < call.answered_at

    def must_take(self, call: Call) -> set[int]:
        """What a call that removes something has taken, if it happened."""
        topic, body = call.request.topic, call.request.body or {}
        if call.request.kind == "ack":
            is_sure = call.is_done or not (self.is_faulty or body["node"] in self.released or topic in BRIEF)
            return {seq for seq in body["seqs"] if self.selects(call, seq)} if is_sure else set()
        if "before_seq" in body:  # at most a head that was told
            return set(range(1, body["before_seq"]))
        told_at = self.told_at[topic]
        return {seq for seq in self.ever[topic] if told_at[seq] < call.asked_at and self.selects(call, seq)}

    # --- the next life

    def adopt(self, found: Found) -> None:
        """The server started again, and this is what it had."""
        self.lives += 1
        for name, topic in found.items():
            self._adopt_topic(name, topic)
        for write, _ in self.by_data.values():
            self._adopt_write(write, found)
        self.calls, self._open = [], {}
        self._removing.clear()
        self.released = set()
        self.is_stopping = self.may_have_stopped = False
        self._cursors.clear()
        self.streamed.clear()
        self._deliveries.clear()

    def _adopt_topic(self, name: str, topic: TopicFound) -> None:
        if class_of(name) == "ephemeral":
            for kept in (self.ever, self.acked, self.nacked):
                kept.pop(name, None)
        self.epochs[name] = topic.epoch
        self.gone[name] = set(range(1, topic.head + 1)) - topic.records.keys()
        self.lost[name] = set(topic.lost)
        self.ever[name] |= {seq: record.data for seq, record in topic.records.items()}
        self._places[name] = {record.data: seq for seq, record in topic.records.items()}
        self.told_at[name] = dict.fromkeys(self.ever[name], 0)
        self.acked[name] -= topic.records.keys()
        self.held[name] = {seq: lease for seq, lease in self.held[name].items() if topic.leases.get(seq) == lease}
        self.created[name] = 1

    def _adopt_write(self, write: Write, found: Found) -> None:
        """What is there is told; what is not, is not going to be, unless it is asked for again."""
        is_maybe_lost = write.topic in LOSSY and any(call.is_open for call in write.calls)
        write.is_old |= write.first is not None or is_maybe_lost
        write.calls, write.asked_at = [], 0
        topic, places = found.get(write.topic), self._places[write.topic]
        there = [places[data] - place for place, (data, _) in enumerate(write.records) if data in places]
        if write.topic in self.dropped:
            write.first = None
        elif there:
            write.first, write.was_there = there[0], True
        elif write.first is None or topic is None or class_of(write.topic) == "ephemeral":
            write.first, write.is_void = None, True
        elif write.first in topic.lost:  # lost with its key, unless it was removed before
            write.first = None
