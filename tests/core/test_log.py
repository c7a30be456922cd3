"""One topic's log: marks at the borders of blocks and pages, bounds of a walk, big batches."""

from array import array
from collections.abc import Callable, Iterable
from random import Random

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.effort import swept
from topics.core.topic import walk
from topics.core.topic.blocks import BLOCK, Blocks
from topics.core.topic.log import Log
from topics.core.topic.pages import PAUSE, Cache, Cold, Projection
from topics.core.topic.parts import PAGE_ROWS, Chunk
from topics.core.topic.records import Batch
from topics.core.topic.walk import Plan, Query
from topics.model import EXAMINED_MIN, Gap, TagMatch

CACHE_BYTES = 10**9
PLENTY = 10**6


def batch(count: int, size: int = 1, tag: str | None = None, node: str | None = None) -> Batch:
    fields = "".join(f',"{name}":"{value}"' for name, value in (("tag", tag), ("node", node)) if value is not None)
    record = f'{{"data":{"1" * size}{fields}}}'
    body = f'{{"records":[{",".join([record] * count)}]}}'.encode()
    return Batch(body, array("I", [size] * count), tag is not None)


def log_of(count: int, tag: str | None = None, step: int = PAGE_ROWS) -> Log:
    log = Log()
    while log.head < count:
        log.append(batch(min(step, count - log.head), tag=tag), 0)
    return log


def read(log: Log, after: int = 0, limit: int = PLENTY, bytes_max: int = PLENTY, **query: object) -> Plan:
    return walk.read(log, Query(after, limit, bytes_max, **query), 1, Cache(CACHE_BYTES))  # type: ignore[arg-type]


def read_with(cache: Cache, log: Log, after: int, limit: int = PLENTY, **query: object) -> Plan:
    return walk.read(log, Query(after, limit, PLENTY, **query), 1, cache)  # type: ignore[arg-type]


def plan_next(cache: Cache, log: Log, after: int, **query: object) -> int:
    """The cursor from which one more read comes to the end."""
    while (plan := read_with(cache, log, after, **query)).next < log.head:
        after = plan.next
    return after


def live(log: Log) -> list[int]:
    """The live seqs, found in every way a log knows; all must agree."""
    by_reading = [seq for text in read(log).texts() for seq in seqs_in(text)]
    by_runs = [
        part.seq_at(row) for part in log.parts for a, b in log.live_runs(part, 0, part.count) for row in range(a, b)
    ]
    by_asking = [seq for seq in range(log.head + 2) if log.is_live(seq)]
    assert by_reading == by_runs == by_asking
    log.check()
    assert log.highest_live(log.head) == (by_runs[-1] if by_runs else 0)
    return by_runs


def seqs_in(text: bytes) -> Iterable[int]:
    return [record["$seq"] for record in msgspec.json.decode(b"[" + text + b"]")]


def blocks(seqs: Iterable[int]) -> Blocks:
    selected: Blocks = {}
    for seq in seqs:
        selected[seq // BLOCK] = selected.get(seq // BLOCK, 0) | 1 << seq % BLOCK
    return selected


BORDERS = [1, 2, BLOCK - 1, BLOCK, BLOCK + 1, PAGE_ROWS, 2 * BLOCK - 1, 2 * BLOCK, 2 * BLOCK + 1, 2499, 2500]


@swept("seq", BORDERS)
@pytest.mark.parametrize("step", [PAGE_ROWS, 700, 2500], ids=["full chunks", "short chunks", "one chunk"])
def test_deleting_one_record_at_a_border_takes_just_that_one(seq: int, step: int) -> None:
    """DL5, TM2"""
    log = log_of(2500, step=step)
    log.delete_blocks(blocks([seq]).items())
    assert live(log) == [other for other in range(1, 2501) if other != seq]
    assert log.floor == 1


@swept("seq", BORDERS)
@pytest.mark.parametrize("lose", [Log.evict, Log.expire, lambda log, last: log.delete_before(last + 1)])
@pytest.mark.parametrize("step", [PAGE_ROWS, 700, 2500], ids=["full chunks", "short chunks", "one chunk"])
def test_losing_a_prefix_up_to_a_border_takes_just_that(seq: int, lose: Callable[[Log, int], None], step: int) -> None:
    """TM2, TM8"""
    log = log_of(2500, step=step)
    lose(log, seq)
    assert live(log) == list(range(seq + 1, 2501))
    assert log.floor in (1, seq + 1)


@swept("seq", BORDERS)
def test_deletes_on_both_sides_of_a_border_add_up(seq: int) -> None:
    """DL5, TM2, TM8"""
    log = log_of(2500)
    gone = {seq - 1, seq, seq + 1, seq + 5} & set(range(1, 2501))
    for one in (*gone, *gone):
        log.delete_blocks(blocks([one]).items())
    assert live(log) == [other for other in range(1, 2501) if other not in gone]
    log.evict(min(seq + 3, log.head))
    assert live(log) == [other for other in range(seq + 4, 2501) if other not in gone]
    log.delete_blocks(blocks(range(1, 2501)).items())
    assert live(log) == []
    log.append(batch(3), 0)
    assert live(log) == [2501, 2502, 2503]


@given(st.integers(0, 2**32), st.sampled_from([PAGE_ROWS, 700, 2500]))
def test_runs_of_jobs_that_go_in_any_order_leave_just_the_others(seed: int, step: int) -> None:
    """DL5, TM2, QU5: as acks take them; and a run of live seqs is the start of all live ones."""
    chance = Random(seed)
    log, left = log_of(2500, step=step), set(range(1, 2501))
    for _ in range(chance.randrange(1, 40)):
        first = chance.choice([1, log.earliest, chance.randrange(1, 2501), chance.choice(BORDERS)])
        gone = range(first, min(2501, first + chance.choice([1, 2, 8, 300, 1100])))
        log.delete_blocks(blocks(gone).items())
        left.difference_update(gone)
        assert (log.count, log.earliest) == (len(left), min(left, default=2501))
        after = chance.choice([0, log.earliest - 1, chance.randrange(2502)])
        run, later = log.run_after(after, chance.choice([1, 8, 3000])), sorted(seq for seq in left if seq > after)
        assert list(run) == later[: len(run)]
        assert run or after + 1 not in left
    assert live(log) == sorted(left)


def test_every_other_record_deleted_and_the_rest_evicted_one_by_one() -> None:
    """TM10, TM2"""
    log = log_of(2500)
    log.delete_blocks(blocks(range(1, 2501, 2)).items())
    assert live(log) == list(range(2, 2501, 2))
    for cap in (1249, 1000, 738, 737, 736, 226, 225, 1):
        log.evict(log.overflow(cap, 0))
        assert log.count == cap
        assert live(log) == list(range(2502 - 2 * cap, 2501, 2))


def test_a_batch_larger_than_a_page_is_one_chunk_of_several_pages() -> None:
    """WR4, WR5"""
    log = Log()
    log.append(batch(1), 0)
    log.append(batch(3 * PAGE_ROWS + 5), 0)
    log.append(batch(2), 0)
    assert [part.count for part in log.parts] == [1, 3 * PAGE_ROWS + 5, 2]
    assert live(log) == list(range(1, 3 * PAGE_ROWS + 9))
    for after in (0, 1, PAGE_ROWS, PAGE_ROWS + 1, PAGE_ROWS + 2, 3 * PAGE_ROWS + 6):
        plan = read(log, after, 3)
        assert (plan.count, plan.next) == (min(3, log.head - after), min(log.head, after + 3))


def test_small_writes_share_a_chunk_up_to_a_page() -> None:
    log = log_of(PAGE_ROWS + 1, step=1)
    assert [part.count for part in log.parts] == [PAGE_ROWS, 1]


@pytest.mark.parametrize(
    ("cap_records", "cap_bytes", "incoming", "last"),
    [
        (0, 0, 5, 0),
        (10, 0, 0, 0),
        (9, 0, 0, 1),
        (9, 0, 1, 2),
        (3, 0, 1, 8),
        (1, 0, 1, 10),
        (3, 0, 5, 12),
        (0, 100, 0, 0),
        (0, 99, 0, 1),
        (0, 91, 0, 1),
        (0, 90, 0, 1),
        (0, 89, 0, 2),
        (0, 10, 1, 10),
        (0, 25, 4, 12),
        (9, 50, 0, 5),
        (2, 50, 0, 8),
        (2, 50, 1, 9),
    ],
)
def test_overflow_names_the_last_record_that_must_go(
    cap_records: int, cap_bytes: int, incoming: int, last: int
) -> None:
    """TM10, WR12: 10 records of 10 bytes, and some more to come."""
    log = Log()
    for _ in range(10):
        log.append(batch(1, size=10), 0)
    sizes = array("I", [10] * incoming) if incoming else None
    assert log.overflow(cap_records, cap_bytes, sizes) == last


def test_overflow_passes_over_what_is_deleted() -> None:
    """TM10, TM8"""
    log = log_of(10)
    log.delete_blocks(blocks([2, 3, 5]).items())
    assert log.overflow(6, 0) == 1
    assert log.overflow(5, 0) == 4
    assert log.overflow(4, 0) == 6


@pytest.mark.parametrize("step", [1, 3, 10])
def test_what_has_expired_is_found_by_its_ts(step: int) -> None:
    """TM7"""
    log = Log()
    for ts in (10, 10, 20, 30, 30, 40):
        log.append(batch(step), ts)
        log.parts[-1].is_closed = ts == 20  # type: ignore[union-attr]
    for before, writes in ((10, 0), (11, 2), (20, 2), (21, 3), (30, 3), (31, 5), (40, 5), (41, 6)):
        assert log.expired_through(before) == writes * step
    log.delete_blocks(blocks([2 * step]).items())
    assert log.expired_through(11) == (2 * step - 1)


@pytest.mark.parametrize("query", [{"nodes": frozenset(["me"])}, {"match": TagMatch("Glob", "other")}])
def test_a_filtered_walk_stops_after_a_bounded_number_of_seqs_with_progress(query: dict[str, object]) -> None:
    """LM13, DF6: whatever it finds, and whatever limit it has."""
    log = Log()
    while log.head < 2 * EXAMINED_MIN + 5000:
        log.append(batch(1000, node="me", tag="mine"), 0)
    cache = Cache(CACHE_BYTES)
    assert plan_next(cache, log, 0, **query)  # what filters look at is in memory now
    cursor, answers = 0, []
    while cursor < log.head:
        plan = read_with(cache, log, cursor, limit=20_000, **query)
        assert plan.count == 0 and plan.next > cursor
        assert plan.scanned == plan.next - cursor
        answers.append(plan.scanned)
        cursor = plan.next
    assert max(answers) <= EXAMINED_MIN + PAGE_ROWS


def test_a_filtered_walk_takes_its_share_of_a_turn_and_renders_nothing_that_nobody_gets() -> None:
    """LM13, LM10: the pages of 100,000 records would be half a second of work."""
    log = log_of(100_000, tag="a")
    cache = Cache(CACHE_BYTES)
    plan = read_with(cache, log, 0, match=TagMatch("Eq", "b"))
    assert plan.count == 0 and 0 < plan.next < log.head
    assert cache.made_us < 3 * walk.SHARE_US
    log.append(batch(1, tag="b"), 0)
    cursor, count, answers = 0, 0, 0
    while cursor < log.head:
        plan = read_with(cache, log, cursor, match=TagMatch("Eq", "b"))
        cursor, count, answers = plan.next, count + plan.count, answers + 1
    assert count == 1 and answers < 100
    assert [key for key in cache._fresh.pages if key[2] is not None] == [(log.parts[-1], 0, Projection())]


def test_what_has_no_tags_is_passed_without_a_look_at_its_records() -> None:
    """LM13"""
    log, cache = log_of(90_000), Cache(CACHE_BYTES)
    assert read_with(cache, log, 0, match=TagMatch("Eq", "b")).next == log.head
    assert not cache.made_us


def test_a_walk_without_a_filter_pauses_and_goes_on_over_what_it_has_made() -> None:
    """LM10, DF5: it may not end early, so it gives others a turn instead."""
    log = log_of(40 * PAGE_ROWS)
    log.delete_blocks(blocks(n for n in range(log.head) if n % BLOCK).items())
    cache, pauses = Cache(CACHE_BYTES), 0
    while True:
        before = cache.made_us
        try:
            plan = read_with(cache, log, 0, limit=100)
            break
        except Cold as cold:
            pauses += cold.missing == PAUSE
        finally:
            assert cache.made_us - before < 2 * walk.SHARE_US
    assert plan.count == 40 and pauses
    patient = walk.read(log, Query(0, 100, PLENTY, stops_at_cold=True), 1, Cache(CACHE_BYTES))
    assert 0 < patient.count < 40


def test_a_large_limit_raises_the_bound_of_a_walk_without_a_filter() -> None:
    """DF5"""
    log = Log()
    while log.head < EXAMINED_MIN + 20_000:
        log.append(batch(10_000), 0)
    log.delete_blocks(blocks(range(1, log.head)).items())
    assert read(log, 0, limit=20_000).next == log.head


@pytest.mark.parametrize("budget", [1, 10, 11, 19, 20, 29, 30, 31, 10 * 1024, 10 * 1025, 10 * 1500])
def test_a_budget_holds_across_pages_and_parts(budget: int) -> None:
    """DF5, LM6"""
    log = Log()
    for count in (1, 2, 1200, 300):
        log.append(batch(count, size=10), 0)
        log.parts[-1].is_closed = True  # type: ignore[union-attr]
    plan = read(log, bytes_max=budget)
    fitting = max(1, min(1503, budget // 10))
    assert (plan.count, plan.next) == (fitting, fitting)
    assert read(log, plan.next, bytes_max=budget).count == max(0, min(fitting, 1503 - fitting))


def test_tags_are_found_part_by_part_and_below_a_bound() -> None:
    """DL2, DL3, DL7"""
    log = Log()
    for tag in ("a", "ab", "b", None, "abc", "a"):
        log.append(batch(2, tag=tag), 0)

    def found(match: TagMatch, before: int = 99) -> list[int]:
        seqs = []
        for part in log.matching(match, before):
            for number, mask in part.items():
                seqs += [number * BLOCK + bit for bit in range(BLOCK) if mask >> bit & 1]
        return sorted(seqs)

    assert found(TagMatch("Eq", "a")) == [1, 2, 11, 12]
    assert found(TagMatch("Eq", "a"), 12) == [1, 2, 11]
    assert found(TagMatch("Glob", "a")) == [1, 2, 3, 4, 9, 10, 11, 12]
    assert found(TagMatch("Glob", "ab"), 10) == [3, 4, 9]
    assert found(TagMatch("Glob", "")) == [1, 2, 3, 4, 5, 6, 9, 10, 11, 12]
    assert found(TagMatch("Eq", "abcd")) == []
    log.append(batch(1, tag="a"), 0)
    assert found(TagMatch("Eq", "a")) == [1, 2, 11, 12, 13]


def test_marks_of_dead_records_go_with_the_records() -> None:
    """Memory follows what is live, not what was ever deleted."""
    log = Log()
    for _ in range(50):
        log.append(batch(1000), 0)
        log.delete_blocks(blocks(range(log.head - 999, log.head, 2)).items())
        log.evict(log.overflow(100, 0))
    assert len(log._dead) <= 2
    assert sum(part.count for part in log.parts) <= 2000


def test_gaps_merge_stay_apart_and_go_below_the_floor() -> None:
    """TM12, TM16, TM17"""
    log = log_of(2)
    log.open_gap(4, "cap")
    log.open_gap(6, "cap")
    log.open_gap(6, "cap")
    log.open_gap(8, "source_trim")
    log.append(batch(2), 0)
    log.open_gap(12, "cap")
    assert [(gap.first, gap.last, gap.reason) for gap in log.gaps] == [
        (3, 6, "cap"),
        (7, 8, "source_trim"),
        (11, 12, "cap"),
    ]
    assert [read(log, after).next for after in (0, 2, 6, 8)] == [2, 6, 10, 10]
    log.evict(9)
    assert [(gap.first, gap.last) for gap in log.gaps] == [(11, 12)]


def test_a_chunk_is_found_by_any_of_its_seqs() -> None:
    log = log_of(2500, step=500)
    log.evict(1100)
    for seq in (0, 1, 1000):
        assert log.part_at(seq) is None
    for seq in (1001, 1100, 2000, 2001, 2500):
        part = log.part_at(seq)
        assert isinstance(part, Chunk) and part.first <= seq <= part.last
    assert log.part_at(2501) is None


# --- what became of every seq


def test_every_seq_is_live_deleted_or_lost_and_counted_once() -> None:
    """TM1, TM3, TM12, DL5"""
    log = log_of(2500)
    log.delete_blocks(blocks([3, 4, 1024, 2000]).items())
    log.delete_blocks(blocks([4, 5]).items())
    assert (log.deleted, log.lost) == (5, 0)
    log.evict(10)
    assert (log.deleted, log.lost) == (5, 7), "three of the ten were deleted"
    log.open_gap(2600, "source_trim")
    log.append(batch(10), 0)
    log.delete_before(1025)
    assert (log.deleted, log.lost) == (5 + 1013, 107)
    log.expire(2000)
    log.expire(2000)
    assert (log.deleted, log.lost) == (1018, 107 + 975)
    assert (log.count, log.unaccounted) == (510, 0)


def test_a_head_inherited_after_a_crash_counts_as_lost_what_was_not_deleted() -> None:
    """DU5, DU9"""
    log = Log()
    log.inherit_head(10, 8, 3)
    assert (log.head, log.deleted, log.lost, log.floor) == (10, 3, 7, 9)
    log.append(batch(5), 0)
    log.delete_before(13)
    log.inherit_head(20, 20)
    assert (log.count, log.deleted, log.lost) == (0, 5, 15)
    assert live(log) == []


@pytest.mark.parametrize("seqs", [range(0), range(1, 11), range(5, 2050), range(1020, 1030), range(2400, 9999)])
def test_what_a_delete_takes_is_known_before_it_is_done(seqs: range) -> None:
    """DL6"""
    log = log_of(2500)
    log.delete_blocks(blocks(range(1, 2501, 3)).items())
    for before, chosen in ((seqs.stop, ()), (0, blocks(seqs).items())):
        expected = sum(log.is_live(seq) for seq in (range(seqs.stop) if before else seqs))
        assert log.measure(before, chosen) == expected


def test_a_record_taken_behind_the_back_of_the_log_is_missing_from_its_account() -> None:
    log = log_of(50)
    log.open_gap(60, "cap")
    log.append(batch(40), 0)
    part = log.parts.pop(0)
    log.count -= part.live_count
    log.bytes -= part.live_bytes
    assert log.unaccounted == 50
    log.delete_before(80)
    log.evict(90)
    log.append(batch(10), 0)
    assert (log.unaccounted, log.deleted, log.lost) == (50, 19, 21)


def lossy_log() -> Log:
    """Two parts, the first with deletes, below them an eviction and above them a gap."""
    log = log_of(2 * PAGE_ROWS)
    log.evict(10)
    log.delete_blocks(blocks([20, 21, 40]).items())
    log.open_gap(log.head + 5, "cap")
    log.append(batch(3), 1)
    return log


BROKEN: dict[str, Callable[[Log], object]] = {
    "a record too many": lambda log: setattr(log, "count", log.count + 1),
    "a byte too many": lambda log: setattr(log, "bytes", log.bytes + 1),
    "a part that counts wrong": lambda log: (
        setattr(log.parts[0], "live_count", log.parts[0].live_count + 1),
        setattr(log, "count", log.count + 1),
        setattr(log, "deleted", log.deleted - 1),
    ),
    "a mark that nobody counted": lambda log: log.mark_dead([50]),
    "a part without a live record": lambda log: log.parts.append(Chunk(log.head + 1)),
    "parts out of order": lambda log: log.parts.reverse(),
    "an earliest that is too high": lambda log: setattr(log, "earliest", 12),
    "a floor above the earliest": lambda log: setattr(log, "expired_last", 500),
    "a head that was not handed out": lambda log: setattr(log, "head", log.head + 1),
    "a delete that nobody counted": lambda log: setattr(log, "deleted", log.deleted - 1),
    "a loss that is not announced": lambda log: (
        setattr(log, "gaps", []),
        setattr(log, "lost", log.lost + 1),
        setattr(log, "deleted", log.deleted - 1),
    ),
    "a gap with a live record": lambda log: log.gaps.insert(0, Gap(30, 35, "cap")),
    "gaps out of order": lambda log: log.gaps.append(Gap(20, 21, "cap")),
    "a gap below the floor": lambda log: log.gaps.insert(0, Gap(1, 5, "cap")),
}


@pytest.mark.parametrize("broken", BROKEN)
def test_a_broken_invariant_is_found(broken: str) -> None:
    log = lossy_log()
    log.check()
    BROKEN[broken](log)
    with pytest.raises(AssertionError):
        log.check()


def contents(log: Log) -> object:
    """All that a log of chunks holds."""
    pace = None if log._pace is None else (log._pace._seconds, log._pace._totals)
    chunks = [{slot: getattr(chunk, slot) for slot in Chunk.__slots__} for chunk in (*log.parts, *log.dropped)]
    slots = {slot for kind in Log.__mro__ for slot in getattr(kind, "__slots__", ())} - {"_pace", "parts", "dropped"}
    return chunks, pace, {slot: getattr(log, slot) for slot in slots}


@given(st.integers(0, 2**32))
def test_single_writes_that_are_added_together_make_the_log_of_writes_added_one_by_one(seed: int) -> None:
    """ST8: with bodies that fill a chunk, a chunk that is there and may be closed, and samples on the way."""
    random = Random(seed)
    one_by_one, together = Log(), Log()
    ts = random.choice([0, 5_000])
    for _ in range(random.randrange(1, 4)):
        has_tags, large = random.random() < 0.3, random.random() < 0.5
        sizes = [random.choice([1, 200_000, 1_100_000]) if large else 1 for _ in range(random.choice([1, 2, 9, 1500]))]
        sizes = sizes[:12] if large else sizes
        writes = [batch(1, size, "a" if has_tags else None) for size in sizes]
        times = []
        for _ in writes:
            ts += random.choice([0, 0, 0, 1, 700]) if random.random() < 0.1 else 0
            times.append(ts)
        if random.random() < 0.2:
            times = [random.randrange(ts + 9000) for _ in writes]
        for write, at in zip(writes, times, strict=True):
            one_by_one.append(write, at)
        together.append_singles([write.body for write in writes], sizes, times, has_tags)
        assert contents(together) == contents(one_by_one)
        ts = max(times)
        change = random.random()
        for log in (one_by_one, together):
            if change < 0.3:
                log.evict(log.head // 2, ts)
            elif change < 0.5:
                log.open_gap(log.head + 7, "cap", ts)
            elif change < 0.7 and isinstance(log.parts[-1], Chunk):
                log.fold(log.parts[-1])
