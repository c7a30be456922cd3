"""What a server must have, after what its clients were told and asked: one function per rule.

`check` holds what was found (`look.py`) against what was told (`told.py`): on a server that runs, after a kill, after a
stop that was asked for, or after a loss of power. Must not know: how either came about.

Classes. What a topic promised is exact while the server runs, after a kill for all that is logged, and after a loss of
power for class fsync: then nothing is missing but what somebody asked to remove. A disk or memory topic may lose its
tail with the power, announced. An ephemeral one is empty after every restart; after a crash it is another instance.
"""

from dataclasses import dataclass
from functools import cached_property
from typing import Literal

from tests.pipelining.look import Found, Record, TopicFound
from tests.pipelining.told import Call, Told, Write
from tests.pipelining.workload import AGING, BOUND, CAP, DEAD, LOGS, LOSSY, ROUTERS, TAGS, class_of, config_of

End = Literal["alive", "stop", "kill", "power loss"]
QUEUE_OF = {dead: queue for queue, dead in DEAD.items()}


def check(told: Told, found: Found, end: End) -> None:
    topics_are_those_that_were_asked_for(told, found)
    for name, topic in found.items():
        subject = Subject(told, found, end, name, topic)
        state_fits_the_records(subject)
        if subject.is_emptied:
            an_ephemeral_topic_is_empty_and_says_so(subject)
            continue
        every_record_has_its_origin(subject)
        if not subject.is_another:
            what_was_told_is_there(subject)
            what_is_not_there_was_to_go(subject)
            what_was_to_go_is_not_there(subject)
        if name in LOGS:
            a_delete_is_a_moment(subject)
        if name == "capped" and subject.is_kept:
            a_cap_leaves_the_newest(subject)
        if name == "bounded":
            assert len(topic.records) <= BOUND, f"{subject}: has {len(topic.records)} records"
        if name in AGING:
            records_expire_when_they_are_due(subject)
        if name in ROUTERS and ROUTERS[name][0] in found:
            copies_follow_their_source(subject)
        if name in QUEUE_OF:
            a_letter_is_no_job_any_more(subject)
        if topic.is_queue:
            leases_are_those_that_were_given(subject)


@dataclass
class Subject:
    """One topic, and what it is held against."""

    told: Told
    found: Found
    end: End
    name: str
    topic: TopicFound

    @property
    def is_exact(self) -> bool:
        """Nothing may be lost."""
        return self.name not in LOSSY and self.is_kept

    @property
    def is_kept(self) -> bool:
        """What was promised holds."""
        return self.end != "power loss" or class_of(self.name) == "fsync"

    @property
    def may_announce(self) -> bool:
        """There may be a new tombstone; in a dest also for what its source has lost (RT12)."""
        source = ROUTERS.get(self.name, (self.name, ""))[0]
        is_sure = self.end != "power loss" or class_of(self.name) == class_of(source) == "fsync"
        has_lost_memory = self.end != "alive" and self.name in ROUTERS and class_of(source) == "ephemeral"
        return self.name in LOSSY or not is_sure or has_lost_memory

    @property
    def is_emptied(self) -> bool:
        """It was in memory only. A dest is filled again by its routers."""
        return self.end != "alive" and class_of(self.name) == "ephemeral" and self.name not in ROUTERS

    @property
    def is_another(self) -> bool:
        """It need not be the instance that was told of: a dest in memory after a crash, or a topic that was deleted."""
        is_refilled = self.end != "alive" and class_of(self.name) == "ephemeral" and self.name in ROUTERS
        return is_refilled or self.name in self.told.dropped

    @property
    def ever(self) -> dict[int, str]:
        return self.told.ever[self.name]

    @cached_property
    def happened(self) -> list[Call]:
        """Calls that removed something, or may have: of those without an answer only what was taken as a whole."""
        live = self.topic.records.keys()
        removals = self.told.removals(self.name)
        return [call for call in removals if call.is_done or not self.told.must_take(call) & live]

    @cached_property
    def letters(self) -> dict[int, str]:
        """The jobs of this queue that are dead letters now: seq → data."""
        dead = self.found.get(DEAD.get(self.name, ""))
        return {} if dead is None else {source_seq(one): one.data for one in dead.records.values()}

    def __str__(self) -> str:
        return f"{self.name} ({class_of(self.name)}, {self.end})"


def source_seq(letter: Record) -> int:
    return int(letter.meta["$dead_letter_src_seq"])


def topics_are_those_that_were_asked_for(told: Told, found: Found) -> None:
    """G1, TP13: what was told to be created is there with its config, and nothing else but what may be."""
    asked = {call.request.topic for call in told.calls if call.request.kind in ("put", "write", "router")}
    unknown = found.keys() - asked - told.epochs.keys() - set(DEAD.values())
    assert not unknown, f"nobody asked for the topics {sorted(unknown)}"
    absent = {name for name, count in told.created.items() if count} - found.keys() - told.dropped
    assert not absent, f"the topics {sorted(absent)} were created, and are not there"
    for name, topic in found.items():
        assert config_of(name).items() <= topic.state["config"].items(), f"{name} has the config {topic.state}"


def state_fits_the_records(subject: Subject) -> None:
    """TM2, TP15, QU16"""
    topic = subject.topic
    state, seqs = topic.state, topic.records.keys()
    assert state["count"] == len(seqs), f"{subject}: {state}, and {len(seqs)} records"
    assert state["earliest_seq"] == min(seqs, default=topic.head + 1), f"{subject}: {state}, and {sorted(seqs)}"
    assert state["next_seq"] == topic.head + 1 > max(seqs, default=0), f"{subject}: {state}"
    if topic.is_queue:
        queue = state["queue"]
        assert queue["ready"] + queue["in_flight"] + queue["delayed"] == len(seqs), f"{subject}: {state}"
        assert queue["in_flight"] == len(topic.leases), f"{subject}: {state}, leases {topic.leases}"


def an_ephemeral_topic_is_empty_and_says_so(subject: Subject) -> None:
    """DU1, DU7, DU9: after a stop that came to its end in the same epoch, with no seq to be given twice."""
    topic = subject.topic
    assert not topic.records, f"{subject}: has {topic.records}"
    silent = set(range(1, topic.head + 1)) - topic.lost
    if subject.end == "stop" or subject.told.may_have_stopped:  # what was removed before the stop is not lost
        silent = {seq for seq in silent if not is_accounted_for(subject, seq)}
    before = subject.told.epochs.get(subject.name, 0)
    if topic.epoch == before:
        head = max(subject.ever, default=0)
        assert topic.head >= head, f"{subject}: seq {head} was told, the head is {topic.head}"
    assert not silent, f"{subject}: of {topic.head} seqs it announces {topic.lost}, not {silent}"
    may_be_same = (
        subject.end == "stop" or subject.told.may_have_stopped or subject.told.is_faulty
    )  # a start on a full disk, without a write
    assert topic.epoch > before or (may_be_same and topic.epoch == before), f"{subject}: epoch {topic.epoch}"


def every_record_has_its_origin(subject: Subject) -> None:
    """G2, G8, G12: nothing is invented, changed, moved, refused or there twice, and batches are whole."""
    told, name = subject.told, subject.name
    places: dict[str, int] = {}
    for seq, record in subject.topic.records.items():
        assert record.data in told.by_data, f"{subject}: nobody wrote {record.data}, which is at {seq}"
        write, place = told.by_data[record.data]
        assert name in told.homes(write.topic), f"{subject}: {record.data} at {seq} was written to {write.topic}"
        is_copy = name != write.topic and write.was_there
        assert is_copy or not write.is_refused, f"{subject}: {record.data} at {seq} was refused"
        assert record.tag == write.records[place][1], f"{subject}: {record.data} at {seq} has the tag {record.tag}"
        is_again = places.setdefault(record.data, seq) != seq
        assert not is_again or (name in ROUTERS and may_have_copies_twice(subject)), (
            f"{subject}: {record.data} is at {places[record.data]} and at {seq}"
        )
        if name == write.topic:
            assert not write.is_void, f"{subject}: {record.data} at {seq} was lost in an earlier life"
        if name == write.topic and name not in told.dropped:
            told_at = seq if write.first is None else write.first + place
            assert seq == told_at, f"{subject}: {record.data} is at {seq}, and was told as {told_at}"
            a_batch_is_whole(subject, write, seq - place)


def may_have_copies_twice(subject: Subject) -> bool:
    """G14"""
    return (subject.end != "alive" or subject.told.lives > 1) and ROUTERS[subject.name][1] == "at_least_once"


def a_batch_is_whole(subject: Subject, write: Write, first: int) -> None:
    """WR4, G8"""
    for seq, (data, _) in enumerate(write.records, first):
        at = subject.topic.records.get(seq)
        if at is not None:
            assert at.data == data, f"{subject}: {at.data} is at {seq}, inside the batch of {data}"
        else:
            is_evicted = subject.name in LOSSY and seq in subject.topic.lost
            assert is_evicted or is_accounted_for(subject, seq), f"{subject}: of a batch {data} is missing, seq {seq}"


def what_was_told_is_there(subject: Subject) -> None:
    """G1, G3, G13, DU3, DU4, DU10: acked or shown, it is there with its content, or was to go, or its loss is told."""
    topic = subject.topic
    for seq, data in subject.ever.items():
        assert seq <= topic.head, f"{subject}: seq {seq} was told, the head is {topic.head}"
        record = topic.records.get(seq)
        if record is not None:
            assert record.data == data, f"{subject}: seq {seq} was told as {data}, and is {record.data}"
            assert seq not in subject.told.gone[subject.name], f"{subject}: seq {seq} was gone, and came back"
        elif subject.is_exact or seq not in topic.lost:
            assert is_accounted_for(subject, seq), f"{subject}: {data} was told as {seq}, and is not there"


def what_is_not_there_was_to_go(subject: Subject) -> None:
    """G2, G10, DU7, S17: every seq up to the head is live, was asked to go, or is announced as lost; that only where
    the class admits it."""
    topic = subject.topic
    if not subject.may_announce:
        passed = subject.told.gone[subject.name]  # a tombstone for what was lost before covers what was removed since
        new = {seq for seq in topic.lost - passed if not is_accounted_for(subject, seq)}
        assert not new, f"{subject}: a tombstone for {min(new)} to {max(new)}"
    silent = {seq for seq in topic.missing if not is_accounted_for(subject, seq)}
    assert not silent, f"{subject}: {sorted(silent)} are missing, and nobody asked for that; the head is {topic.head}"


def is_accounted_for(subject: Subject, seq: int) -> bool:
    """Whether somebody asked to remove a record, or it is a dead letter."""
    told, name = subject.told, subject.name
    if seq in told.gone[name] or seq in subject.letters:
        return True
    if name in QUEUE_OF and class_of(name) == "ephemeral" and told.is_faulty and seq not in subject.ever:
        return True  # the job could not leave its queue, so its letter was taken back before anybody saw it
    if class_of(DEAD.get(name, "")) == "ephemeral" and subject.end != "alive" and seq in told.nacked[name]:
        return True  # the letter was lost with its topic
    return any(told.selects(call, seq) for call in subject.happened)


def what_was_to_go_is_not_there(subject: Subject) -> None:
    """G9, G11: an answered delete or ack stays done."""
    if not subject.is_exact:
        return
    for call in subject.told.removals(subject.name):
        back = subject.told.must_take(call) & subject.topic.records.keys()
        assert call.is_open or not back, f"{subject}: {call.request} was done, and {sorted(back)} are there"
    acked = subject.told.acked[subject.name]
    back = acked & subject.topic.records.keys()
    assert not back, f"{subject}: jobs {sorted(back)} were acked, and are there"
    again = acked & subject.letters.keys() if class_of(subject.name) != "ephemeral" else set()
    assert not again, f"{subject}: jobs {sorted(again)} were acked, and are dead letters"


def a_delete_is_a_moment(subject: Subject) -> None:
    """DL4, G8: of each tag, what is gone was written before what is there."""
    by_tag: dict[str | None, list[int]] = {tag: [] for tag in (None, *TAGS)}
    for seq, data in subject.ever.items():
        write, place = subject.told.by_data[data]
        if seq not in subject.topic.records and seq not in subject.topic.lost:
            by_tag[write.records[place][1]].append(seq)
    for seq, record in subject.topic.records.items():
        later = [gone for gone in by_tag[record.tag] if gone > seq]
        assert not later, f"{subject}: {seq} with tag {record.tag} is there, the later {later} with it are gone"


def a_cap_leaves_the_newest(subject: Subject) -> None:
    """TM10, G9: nobody deletes from it, so it has as many records as it may have."""
    head = subject.topic.head
    lost = subject.told.lost[subject.name]  # before this life
    expected = [seq for seq in range(1, head + 1) if seq not in lost][-CAP:]
    assert sorted(subject.topic.records) == expected, f"{subject}: {sorted(subject.topic.records)}, the head is {head}"


def records_expire_when_they_are_due(subject: Subject) -> None:
    """TM7, TM14, G9: not before, and not later."""
    told, name, topic = subject.told, subject.name, subject.topic
    now, ttl_ms = told.clock(), config_of(name)["ttl_ms"]
    late = [seq for seq, record in topic.records.items() if now - record.ts > ttl_ms]
    assert not late or told.is_faulty, f"{subject}: {late} have expired by {now}"
    if subject.is_kept:
        early = subject.ever.keys() - topic.records.keys() - told.gone[name]
        early = {seq for seq in early if not told.may_have_expired(name, seq)}
        assert not early, f"{subject}: {sorted(early)} are gone, and too young for that at {now}"


def copies_follow_their_source(subject: Subject) -> None:
    """RT10, RT13, RT24, G14: in order, none is missing, and none is of something that is not there."""
    source_name, _ = ROUTERS[subject.name]
    source = subject.found[source_name]
    seqs = {record.data: seq for seq, record in source.records.items()}
    copied: list[int] = []
    for record in subject.topic.records.values():
        if record.data in seqs and seqs[record.data] not in copied:
            copied.append(seqs[record.data])
        is_orphan = record.data not in seqs and class_of(source_name) != "ephemeral" and source_name not in LOSSY
        assert not is_orphan or not subject.is_exact, f"{subject}: {record.data} is not in {source_name}"
    assert copied == sorted(copied), f"{subject}: copies of {source_name} in the order {copied}"
    if class_of(subject.name) != "ephemeral" or (subject.told.lives == 1 and subject.end == "alive"):
        uncopied = set(seqs.values()) - set(copied)
        assert not uncopied, f"{subject}: {sorted(uncopied)} of {source_name} were not copied"
    if subject.end == "alive" and subject.told.lives == 1:  # RT12: each seq of the source is a copy or a hole
        assert subject.topic.head == source.head, f"{subject}: the head is {subject.topic.head}, not {source.head}"


def a_letter_is_no_job_any_more(subject: Subject) -> None:
    """QU14, G11: a job is in its queue or among the dead letters, never in both and never there twice."""
    queue = QUEUE_OF[subject.name]
    letters = [source_seq(record) for record in subject.topic.records.values()]
    if class_of(queue) == "ephemeral" and (subject.end != "alive" or subject.told.lives > 1):
        return  # seqs of its earlier instances
    assert len(set(letters)) == len(letters), f"{subject}: {letters}"
    both = set(letters) & subject.found[queue].records.keys()
    assert not both, f"{subject}: {sorted(both)} are dead letters, and still jobs"


def leases_are_those_that_were_given(subject: Subject) -> None:
    """QU18, G11: a lease that is kept is the one that was told; one that is not kept is none."""
    config, leases = subject.topic.state["config"], subject.topic.leases
    if subject.end != "alive" and not config["leases_durable"]:
        assert not leases, f"{subject}: {leases}"
        return
    if subject.is_exact:
        now = subject.told.clock()
        for seq, lease in subject.told.held[subject.name].items():
            if lease.deadline < now:
                continue
            assert leases.get(seq) == lease, f"{subject}: job {seq} was handed out as {lease}; now: {leases.get(seq)}"


def nothing_is_stuck(found: Found, claimed: dict[str, set[int]], after: Found) -> None:
    """G11: every job was handed out, is held by somebody, or has become a dead letter."""
    for name, seqs in claimed.items():
        dead = after.get(DEAD.get(name, ""))
        letters = set() if dead is None else {source_seq(record) for record in dead.records.values()}
        stuck = found[name].records.keys() - seqs - found[name].leases.keys() - letters
        assert not stuck, f"{name}: jobs {sorted(stuck)} are given to nobody"


def is_same(found: Found, again: Found) -> None:
    """G4: only the epoch of an ephemeral topic rises with a crash, which announces all that it ever had (DU9)."""
    assert found.keys() == again.keys()
    for name in found:
        with_epoch = class_of(name) != "ephemeral"
        one, two = found[name].as_text(with_epoch=with_epoch), again[name].as_text(with_epoch=with_epoch)
        assert one == two, f"{name} was\n{one}\nand is\n{two}"
