"""What must be true after a crash: one function per guarantee of the contract, section 24.

Frames are one after the other in one log, so what a crash leaves is the state after one of
the commits: `moment_of` finds which. What is then left to check is that it is not too old
(G1), and what a restart may change about it: gaps after a power loss (DU10), and ephemeral
topics, which come back empty (DU9).
"""

from dataclasses import dataclass, fields, replace

from tests.crash.history import History, Seen, TopicSeen, merged, observe, predict
from topics.engine import Engine
from topics.errors import TopicFull
from topics.testing.clock import ManualClock
from topics.testing.oracle import Oracle, Write

Routers = dict[str, tuple[str, str, int, int]]


@dataclass(frozen=True)
class Aftermath:
    """How the process ended."""

    name: str
    is_power_loss: bool = False
    is_clean: bool = False  # a graceful stop that came to its end
    may_be_clean: bool = False  # one that was interrupted
    is_second: bool = False  # a power loss before it, whose recovery it interrupted


async def check_recovered(history: History, engine: Engine, clock: ManualClock, aftermath: Aftermath) -> Oracle:
    """Check what was recovered against the history. Gives the oracle in the same state."""
    seen = await observe(engine)
    now = clock.now_ms()
    number, oracle = moment_of(history, seen, routers_of(engine), now, aftermath)
    acked_operations_survive(history, number, aftermath)
    no_acked_seq_falls_out(history, oracle, seen)
    every_loss_is_announced(oracle, seen)
    totals_are_right(engine, seen)
    losses_are_right(history, oracle, engine, now)
    return oracle


def routers_of(engine: Engine) -> Routers:
    """The routers, each with its source, dest, cursor and total."""
    by_id = engine.state.by_id
    return {
        name: (by_id[router.source].name, by_id[router.dest].name, router.cursor, router.total)
        for name, router in engine.state.routers.by_name.items()
    }


def moment_of(history: History, seen: Seen, routers: Routers, now: int, aftermath: Aftermath) -> tuple[int, Oracle]:
    """G2, G8: the newest commit whose state this is, operations there as a whole or not at all."""
    wrong: list[str] = []
    for number in range(len(history.moments) - 1, -1, -1):
        for is_clean in {aftermath.is_clean, aftermath.is_clean or aftermath.may_be_clean}:
            oracle = _after_restart(history, history.moments[number], seen, now, replace(aftermath, is_clean=is_clean))
            different = [
                f"{name}: {_difference(expected, found)}"
                for name in sorted({*seen, *oracle.names()})
                if (expected := _expected(oracle, name, now)) != (found := _comparable(seen.get(name)))
            ]
            different += instances_keep_their_epochs(history, oracle, seen)
            routes = {name: (r.source, r.dest, r.cursor, r.total) for name, r in oracle.routers().items()}
            if routes != routers:
                different.append(f"routers are {routers}, not {routes}")
            if not is_clean:
                different += ephemeral_heads_are_those_of_a_checkpoint(history, history.moments[number], seen)
            if not different:
                return number, oracle
            wrong.append(f"not commit {number}: " + "; ".join(different))
    raise AssertionError("this is the state after no commit\n" + "\n".join(wrong[:3]))


def _expected(oracle: Oracle, name: str, now: int) -> TopicSeen | None:
    return _comparable(predict(oracle, name, now)) if name in oracle.names() else None


def _difference(expected: TopicSeen | None, found: TopicSeen | None) -> str:
    """Where the two differ."""
    if expected is None or found is None:
        return "should not be there" if expected is None else "is missing"
    names = [field.name for field in fields(TopicSeen) if getattr(expected, field.name) != getattr(found, field.name)]
    return ", ".join(f"{name} is {getattr(found, name)}, not {getattr(expected, name)}" for name in names)


def _comparable(seen: TopicSeen | None) -> TopicSeen | None:
    """Epochs are compared elsewhere; when an ephemeral topic was last written is not kept.

    Gaps of two reasons that touch are told apart, but reasons may be guesses (TM15).
    """
    if seen is None:
        return None
    is_ephemeral = seen.config.durability == "ephemeral"
    told = merged(seen.told)
    return replace(seen, epoch=0, last_write_ts=None if is_ephemeral else seen.last_write_ts, told=told)


def _after_restart(history: History, moment: Oracle, seen: Seen, now: int, aftermath: Aftermath) -> Oracle:
    """What the restart does to a moment, as far as it may."""
    oracle = moment.clone()
    heads = {name: found.head for name, found in seen.items()}
    weak_seqs = history.weak
    later: dict[str, int] = {}  # gaps that a topic got in the last of two recoveries, behind what routers gave it
    oracle.restart(clean=aftermath.is_clean, power_loss=aftermath.is_power_loss and not aftermath.is_clean, heads=heads)
    for name in _sources_first(oracle):
        topic, found = oracle._topics[name], seen.get(name)
        if found is None:
            continue
        weak = weak_seqs.get((name, topic.epoch), 0)
        if topic.config.durability == "ephemeral":
            continue
        has_lost_weak = topic.floor < found.floor <= weak + 1
        if has_lost_weak and not aftermath.is_clean:  # they were in memory only
            for record in topic.live():
                if record.seq <= weak:
                    topic.take(record, "evicted")
            topic.cap_hi = max(topic.cap_hi, found.floor - 1)
            topic.keys = {key: kept for key, kept in topic.keys.items() if kept[1].first > weak}
            if topic.head <= weak:
                topic.last_write_ts = found.last_write_ts
        may_gap = aftermath.is_power_loss and topic.config.durability in ("disk", "memory")
        size = found.head - topic.head - _forwarded_to(oracle, name, later, now)
        if may_gap and size > 0:
            first = min(size, _gap_behind(found, topic.head)) if aftermath.is_second else size
            oracle.open_gap(name, first, "cap")
            later[name] = size - first
    _forward(oracle, later, now)
    return oracle


def _forward(oracle: Oracle, later: dict[str, int], now: int) -> None:
    oracle.forward_all(now)
    for name, size in later.items():
        oracle.open_gap(name, size, "cap")
    oracle.forward_all(now)


def _gap_behind(found: TopicSeen, seq: int) -> int:
    """The length of the gap that begins right behind a seq."""
    return next((last - seq for first, last in found.gaps if first == seq + 1), 0)


def _sources_first(oracle: Oracle) -> list[str]:
    """The topics, each behind those that routers feed it from."""
    names = oracle.names()
    for _ in names:
        for route in oracle.routers().values():
            if names.index(route.source) > names.index(route.dest):
                names.remove(route.source)
                names.insert(names.index(route.dest), route.source)
    return names


def _forwarded_to(oracle: Oracle, name: str, later: dict[str, int], now: int) -> int:
    """How many seqs routers give to a topic as soon as they run again."""
    after = oracle.clone()
    _forward(after, later, now)
    return after._topics[name].head - oracle._topics[name].head


def acked_operations_survive(history: History, number: int, aftermath: Aftermath) -> None:
    """G1, G9, G13: nothing that was acked, or seen by a reader, under a promise is undone."""
    bound = len(history.commits) if aftermath.is_clean else history.lower_bound(aftermath.is_power_loss)
    lost = [call for call in history.calls if number < call.number <= bound and call.status == "acked"]
    assert number >= bound, f"the state is that after commit {number}; these were acked: {lost}"


def no_acked_seq_falls_out(history: History, oracle: Oracle, seen: Seen) -> None:
    """G3: the head is at or above every acked seq of its instance."""
    for (name, epoch), head in history.acked_heads.items():
        if name in oracle.names() and oracle._topics[name].epoch == epoch:
            assert seen[name].head >= head, f"{name}: seq {head} was acked, the head is {seen[name].head}"


def every_loss_is_announced(oracle: Oracle, seen: Seen) -> None:
    """G10: a reader from 0 meets every seq as a record or in a tombstone, unless someone deleted it."""
    for name, found in seen.items():
        met = {record[0] for record in found.records}
        for first, last in found.told:
            met.update(range(first, last + 1))
        deleted = {slot.seq for slot in oracle._topics[name].slots if slot.status == "deleted"}
        silent = set(range(1, found.head + 1)) - met - deleted
        assert not silent, f"{name}: seqs {sorted(silent)} are lost silently"


def instances_keep_their_epochs(history: History, oracle: Oracle, seen: Seen) -> list[str]:
    """TP16: an instance keeps its epoch, a later one has a higher one. Gives what is wrong."""
    wrong = []
    for name, found in seen.items():
        epoch = oracle._topics[name].epoch if name in oracle.names() else 0
        known = history.epochs.get((name, epoch))
        if known not in (None, found.epoch):
            wrong.append(f"{name}: epoch {known} became {found.epoch}")
        earlier = [theirs for (other, e), theirs in history.epochs.items() if other == name and e < epoch]
        is_unused = (
            name,
            found.epoch,
        ) not in history.acked_in_memory  # by a start on a full disk, which writes nothing
        is_same = history.is_faulty and found.epoch in earlier and is_unused
        if found.epoch <= max(earlier, default=0) and not is_same:
            wrong.append(f"{name}: epoch {found.epoch} is not above {earlier}")
    return wrong


def ephemeral_heads_are_those_of_a_checkpoint(history: History, moment: Oracle, seen: Seen) -> list[str]:
    """G3, DU1: an ephemeral topic's head is one it had, not below that of the last checkpoint. Gives what is wrong."""
    wrong = []
    for name, topic in moment._topics.items():
        if topic.config.durability == "ephemeral" and name in seen:
            least = min(topic.head, history.checkpointed.get((name, topic.epoch), 0))
            if not least <= seen[name].head <= topic.head:
                wrong.append(f"{name}: the head is {seen[name].head}, not between {least} and {topic.head}")
    return wrong


def totals_are_right(engine: Engine, seen: Seen) -> None:
    """TP15, TM2: counts and sizes are those of the records, and the invariants of logs and files hold."""
    assert engine.state.records == sum(found.count for found in seen.values())
    assert engine.state.bytes == sum(found.bytes for found in seen.values())
    for name, found in seen.items():
        assert found.count == len(found.records), name
        assert found.bytes == sum(len(record[4]) + len(record[5] or b"") for record in found.records), name
        assert 1 <= found.floor <= found.earliest <= found.head + 1, name
        engine.state.topics[name].log.check()
    engine._ledger.store.catalogue.check()


def losses_are_right(history: History, oracle: Oracle, engine: Engine, now: int) -> None:
    """LS1, LS2: every seq is live, deleted or in a loss, and the totals tell which.

    Of records that were in memory only, a crash also takes what became of them: then only the sums are known.
    """
    oracle = oracle.clone()
    for name in oracle.names():
        oracle.expire(name, now)  # as it did when it was looked at
    for name, topic in oracle._topics.items():
        log = engine.state.topics[name].log
        assert log.head == log.count + log.lost + log.deleted, name
        lost = {slot.seq for slot in topic.slots if slot.status not in ("live", "deleted")}
        listed = {seq for loss in log.losses for seq in range(loss.first, loss.last + 1)}
        assert lost <= listed, f"{name}: {sorted(lost - listed)} are in no loss of {log.losses}"
        assert not listed & {record.seq for record in topic.live()}, f"{name}: live, and in one of {log.losses}"
        if (name, topic.epoch) in history.weak:
            continue
        assert sum(loss.count for loss in log.losses) == len(lost), f"{name}: {log.losses}, lost is {sorted(lost)}"
        statuses = [slot.status for slot in topic.slots]
        assert (log.deleted, log.expired) == (statuses.count("deleted"), statuses.count("expired")), name
        assert log.trimmed == sum(slot.reason == "source_trim" for slot in topic.slots), name


async def keys_and_seqs_go_on(history: History, oracle: Oracle, engine: Engine, clock: ManualClock) -> None:
    """G12, G3: a repeated key gives the first seqs or appends once; new seqs are above all acked ones."""
    oracle = oracle.clone()
    now = clock.now_ms()
    used = {(call.operation.topic, key) for call in history.calls if (key := getattr(call.operation, "key", None))}
    probe = {"data": "probe"}
    for name, key in sorted(used):
        if name not in oracle.names():
            continue
        for _ in range(2):
            expected = oracle.append(name, [Write(b'"probe"')], now, key=key)
            oracle.forward_all(now)
            done = await engine.append(name, [probe], key=key)
            await observe(engine)
            assert (done.first_seq, done.last_seq, done.deduped) == (expected.first, expected.last, expected.deduped)
            assert done.mismatch == expected.mismatch, "the digest of a key (ID9)"
    for name in oracle.names():
        try:
            expected = oracle.append(name, [Write(b'"probe"')], now)
        except TopicFull:
            continue
        oracle.forward_all(now)
        done = await engine.append(name, [probe])
        await observe(engine)
        assert (done.first_seq, done.head_seq) == (expected.first, expected.head)
        acked = history.acked_heads.get((name, oracle._topics[name].epoch), 0)
        assert done.first_seq > acked, f"{name}: seq {done.first_seq} was acked before"


def is_same_state(first: Seen, second: Seen) -> None:
    """G4: recovering again changes nothing; only the epoch of an ephemeral topic rises with each crash (DU9)."""
    for name in sorted({*first, *second}):
        one, two = first.get(name), second.get(name)
        if one is not None and two is not None and one.config.durability == "ephemeral":
            assert two.epoch >= one.epoch
            two = replace(two, epoch=one.epoch)
        assert one == two, f"{name}: {one} became {two}"
