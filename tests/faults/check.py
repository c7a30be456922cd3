"""What must hold after a fault: one function per guarantee of the contract, from what the clients were told."""

from collections import Counter

from tests.crash.history import Seen, TopicSeen, observe
from tests.faults.told import Told, TopicTold
from topics.engine import Engine
from topics.errors import TopicFull
from topics.reader import Directory
from topics.testing.clock import ManualClock
from topics.testing.disk import MemoryDisk

LATER_MS = 10 * 86_400_000


async def check(told: Told, engine: Engine, *, is_power_loss: bool = False, is_running: bool = False) -> Seen:
    """Everything that can be checked without changing anything."""
    seen = await observe(engine)
    topics_are_those_that_were_acked(told, seen)
    for name, topic in told.topics.items():
        if name in seen and name not in told.uncertain:
            elsewhere = letters_of(topic, seen)
            what_was_acked_is_there(name, topic, seen[name], is_power_loss, is_running, elsewhere)
            nothing_is_invented_or_doubled(name, topic, seen[name], told)
            batches_are_whole(name, topic, seen[name])
            deletes_stay_done(name, topic, seen[name], is_power_loss)
            if name not in told.redriven:
                every_loss_is_announced(name, topic, seen[name])
    await copies_are_there_once(told, seen, is_power_loss)
    return seen


def topics_are_those_that_were_acked(told: Told, seen: Seen) -> None:
    """G1: config always survives."""
    for name, topic in told.topics.items():
        if name in told.uncertain:
            continue
        assert name in seen, f"G1: topic {name} is gone"
        found = seen[name].config
        for field, value in topic.config.items():
            assert getattr(found, field) == value, f"G1: {name}.{field} is {getattr(found, field)}, not {value}"
    unknown = set(seen) - set(told.topics) - told.dropped - told.uncertain
    assert not unknown, f"ER7: nobody was told of {unknown}"
    back = told.dropped & set(seen) - set(told.topics) - told.uncertain
    assert not back, f"G9: deleted topics are back: {back}"


def values(found: TopicSeen) -> dict[int, bytes]:
    return {record[0]: record[4] for record in found.records}


def letters_of(topic: TopicTold, seen: Seen) -> set[bytes]:
    """What a queue has in its dead-letter topic, and what came back from there under another seq."""
    dead = topic.config.get("dead_letter")
    letters = set(values(seen[dead]).values()) if dead in seen else set()
    back = {value for found in seen.values() for value in values(found).values()} if dead else set()
    return letters | back


def announced(found: TopicSeen) -> set[int]:
    return {seq for first, last in found.told for seq in range(first, last + 1)}


def what_was_acked_is_there(
    name: str, topic: TopicTold, found: TopicSeen, is_power_loss: bool, is_running: bool, elsewhere: set[bytes]
) -> None:
    """G1, G3, G13: under its seq, or its loss is one that the class allows."""
    there, lost = values(found), announced(found)
    for seq, value in {**topic.seen, **topic.written}.items():
        if seq in topic.gone or seq in topic.doubtful or (seq not in there and value in elsewhere):
            continue
        if seq in there:
            assert there[seq] == value, f"G2: {name}: seq {seq} is {there[seq]!r}, not {value!r}"
            continue
        if topic.durability == "ephemeral" and seq > found.head and not is_running:
            continue  # another instance: its epoch says so
        may_be_lost = topic.loses_by_itself or topic.is_weak(is_power_loss)
        assert may_be_lost and seq in lost, f"G1: {name}: seq {seq} was acked and is not there, {found.told}"
    if topic.durability != "ephemeral" or is_running:
        assert found.head >= max(topic.written, default=0), f"G3: {name}: the head fell to {found.head}"


def nothing_is_invented_or_doubled(name: str, topic: TopicTold, found: TopicSeen, told: Told) -> None:
    """G2: what is there was written, and not refused; nothing is there twice."""
    there = values(found)
    known = {*topic.written.values(), *topic.copied, *(value for one in topic.open for value in one.values)}
    for source, dest in told.routes.values():
        if dest == name and source in told.topics:
            origin = told.topics[source]
            known |= {*origin.written.values(), *(value for one in origin.open for value in one.values)}
    for queue in told.topics.values():
        if queue.config.get("dead_letter") == name:
            known |= {*queue.written.values()}
    for seq, value in there.items():
        assert value not in topic.refused, f"ER7: {name}: {value!r} was refused and is there, as seq {seq}"
        assert value in known, f"G2: {name}: nobody wrote {value!r}, seq {seq}"
    twice = [value for value, count in Counter(there.values()).items() if count > 1]
    assert not twice, f"G2: {name}: {twice} are there twice"


def batches_are_whole(name: str, topic: TopicTold, found: TopicSeen) -> None:
    """G8: of a write without an answer all is there, or nothing."""
    there = set(values(found).values())
    for one in topic.open:
        present = [value for value in one.values if value in there]
        assert not present or len(present) == len(one.values) or topic.loses_by_itself, f"G8: {name}: half of {one}"


def deletes_stay_done(name: str, topic: TopicTold, found: TopicSeen, is_power_loss: bool) -> None:
    """G9, G11"""
    back = topic.gone & set(values(found))
    assert not back or topic.is_weak(is_power_loss), f"G9: {name}: {sorted(back)} were deleted and are back"


def every_loss_is_announced(name: str, topic: TopicTold, found: TopicSeen) -> None:
    """G10: a reader from the start meets every seq, unless somebody deleted it."""
    met = {*values(found), *announced(found), *topic.gone, *topic.doubtful}
    silent = set(range(1, found.head + 1)) - met
    moved = bool(topic.config.get("dead_letter"))  # a dead letter leaves its queue, and is in its dead-letter topic
    assert not silent or moved, f"G10: {name}: {sorted(silent)} are lost silently"


async def copies_are_there_once(told: Told, seen: Seen, is_power_loss: bool) -> None:
    """G14: what the source has, the dest has, once and in the same order."""
    for source, dest in told.routes.values():
        if source not in seen or dest not in seen or {source, dest} & told.uncertain:
            continue
        wanted = [value for _, value in sorted(values(seen[source]).items())]
        copied = [value for _, value in sorted(values(seen[dest]).items()) if value in set(wanted)]
        is_losing = told.topics[dest].is_weak(is_power_loss) or told.topics[dest].loses_by_itself
        gone = {told.topics[dest].written.get(seq) for seq in told.topics[dest].gone}
        if not is_losing:
            assert copied == [value for value in wanted if value not in gone], f"G14: {dest} has {copied}, not {wanted}"


async def check_onwards(told: Told, engine: Engine, clock: ManualClock, *, is_power_loss: bool = False) -> None:
    """G12, G3, G11: keys are known or were never there, seqs go on, and every job can be done."""
    for name, topic in told.topics.items():
        if name in told.uncertain or topic.config.get("type") == "queue":
            continue
        for number, (key, (first, last)) in enumerate(topic.keys.items()):
            head = (await engine.topic_state(name)).head_seq
            records = [{"data": f"again {name} {number} {n}"} for n in range(last - first + 1)]
            answers = [await engine.append(name, records, key=key) for _ in range(2)]
            if not answers[0].deduped:
                assert topic.is_weak(is_power_loss), f"G12: {name}: key {key} is forgotten"
                assert answers[0].first_seq == head + 1, f"G12: {name}"
                first, last = answers[0].first_seq, answers[0].last_seq
            assert answers[1].deduped, f"G12: {name}: key {key} wrote twice"
            assert {(one.first_seq, one.last_seq) for one in answers} == {(first, last)}, f"G12: {name}"
        head = (await engine.topic_state(name)).head_seq
        try:
            assert (await engine.append(name, [{"data": f"next {name}"}])).first_seq == head + 1, f"G3: {name}"
        except TopicFull:
            assert topic.config.get("discard") == "reject"
    await every_job_can_be_done(told, engine, clock, is_power_loss)


async def every_job_can_be_done(told: Told, engine: Engine, clock: ManualClock, is_power_loss: bool) -> None:
    """G11: a job that was not acked is in the queue or a dead letter, once; one that was acked is in neither."""
    for name, topic in told.topics.items():
        if topic.config.get("type") != "queue" or name in told.uncertain:
            continue
        dead = str(topic.config["dead_letter"])
        letters = {bytes(one.data) for one in (await engine.read(dead)).records} if dead in told.topics else set()
        done: list[bytes] = []
        for _ in range(20):
            held = [one.deadline - clock.now_ms() for one in (await engine.queues.leases(name, 0, 1000))[0]]
            clock.advance(max(LATER_MS // 10, *held, 0) + 1)  # a clock that was set back makes leases longer
            claimed = await engine.claim(name, "closer", 100)
            if not claimed.jobs:
                break
            done += [bytes(job.data) for job in claimed.jobs]
            settled = await engine.ack(name, "closer", [job.seq for job in claimed.jobs])
            assert len(settled.done) == len(claimed.jobs), "G11: a job that was claimed cannot be acked"
        letters |= {bytes(one.data) for one in (await engine.read(dead)).records} if dead in told.topics else set()
        acked = {topic.written[seq] for seq in topic.gone if seq in topic.written}
        doubtful = {topic.written[seq] for seq in topic.doubtful if seq in topic.written}
        left = set(topic.written.values()) - acked - doubtful
        assert len(done) == len(set(done)), f"G11: {name}: a job came twice"
        assert topic.is_weak(is_power_loss) or not acked & (set(done) | letters), f"G11: {name}: acked, and came again"
        missing = left - set(done) - letters
        assert not missing or topic.is_weak(is_power_loss), f"G11: {name}: {missing} are stuck or lost"


async def leases_are_as_they_were(told: Told, engine: Engine) -> None:
    """G11: durable leases, as long as nobody had to let time pass."""
    for name, topic in told.topics.items():
        if topic.config.get("leases_durable"):
            held = {one.seq: one.node for one in (await engine.queues.leases(name, 0, 1000))[0]}
            for seq, node in topic.leases.items():
                assert held.get(seq) == node, f"G11: {name}: the lease of {seq} is {held.get(seq)}, not {node}"


def directory_is_sound(disk: MemoryDisk) -> None:
    """G5, G6, G7: the check of the public reader finds nothing wrong."""
    faults = Directory(disk.kill()).check().faults
    assert not faults, f"G6, G7: {faults}"
