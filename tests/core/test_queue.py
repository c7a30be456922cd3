"""The places of jobs, and the text of dead letters."""

from collections.abc import Callable, Iterator, Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import Raw

from topics.core.queue import leasing
from topics.core.queue.jobs import Queue
from topics.core.queue.leasing import due_letters
from topics.core.queue.letters import StoredJob, batch_of_copies, letter, origin, restored
from topics.core.queue.seqs import Seqs
from topics.errors import InvalidRequest
from topics.model import TopicConfig, lease_id, lease_number, lease_numbers


class Jobs:
    """Live seqs, by hand."""

    def __init__(self, *seqs: int) -> None:
        self.seqs = sorted(seqs)
        self.looked_at = 0

    def live_after(self, seq: int) -> Iterator[int]:
        for one in self.seqs:
            if one > seq:
                self.looked_at += 1
                yield one

    def run_after(self, seq: int, count_max: int) -> range:
        later = [one for one in self.seqs if one > seq][:count_max]
        length = next((at for at, one in enumerate(later) if one != later[0] + at), len(later))
        self.looked_at += length
        return range(later[0], later[0] + length) if later else range(0)

    def is_live(self, seq: int) -> bool:
        return seq in self.seqs


def leased(queue: Queue, *seqs: int, node: str = "w", deadline: int = 100, number: int = 0) -> None:
    """Hand out jobs, as a claim does."""
    queue.lease(node, [(seq, number or 1000 + seq, deadline, queue.handed_out(seq) + 1) for seq in seqs])


# --- a set that knows its smallest


def test_the_smallest_seqs_come_first_whatever_came_and_went() -> None:
    """QU5"""
    seqs = Seqs()
    for seq in (5, 3, 9, 3, 1):
        seqs.add(seq)
    assert (seqs.first(2), len(seqs)) == ([1, 3], 4)
    seqs.discard(3)
    seqs.discard(77)
    seqs.add(4)
    assert seqs.first(9) == [1, 4, 5, 9] == sorted(seqs)
    seqs.add(3)
    assert seqs.first(3) == [1, 3, 4] and 3 in seqs and 2 not in seqs


def test_seqs_that_have_left_take_no_memory_for_long() -> None:
    seqs = Seqs()
    for seq in range(10_000):
        seqs.add(seq)
    for seq in range(9_990):
        seqs.discard(seq)
    assert len(seqs._heap) < 200
    assert seqs.first(3) == [9990, 9991, 9992]


# --- leases


def test_leases_end_strictly_behind_their_deadline() -> None:
    """QU8"""
    queue, jobs = Queue(), Jobs(1, 2)
    leased(queue, 1, deadline=100)
    leased(queue, 2, deadline=200)
    queue.advance(100)
    assert queue.pick(jobs, 9) == []
    queue.advance(101)
    assert (queue.pick(jobs, 9), list(queue.leases), queue.next_end()) == ([1], [2], 201)


def test_a_lease_with_a_new_deadline_ends_then() -> None:
    """QU13"""
    queue = Queue()
    leased(queue, 1, deadline=100)
    queue.lease("w", [(1, 1001, 300, 1)])
    queue.advance(200)
    assert queue.leases == {1: (1000, "w", 300, 1)} and queue.has_lease(1, 1001)
    queue.lease("w", [(1, 1001, 250, 1)])
    queue.advance(251)
    assert not queue.leases


def test_jobs_that_are_handed_out_together_share_one_lease_and_keep_their_numbers() -> None:
    """QU4, LM11: also those that come back from a snapshot."""
    queue, back = Queue(), Queue()
    leased(queue, *range(1, 101))
    leased(queue, 102, 101, number=7)  # numbers that do not count up with the seqs: a lease each
    leased(queue, 103, node="v")
    numbers = {seq: 1000 + seq for seq in range(1, 101)} | {101: 7, 102: 7, 103: 1103}
    back.restore(
        dict.fromkeys(numbers, 1),
        {seq: (numbers[seq], node, deadline) for seq, (_, node, deadline, _) in queue.leases.items()},
        {},
        {},
    )
    for one in (queue, back):
        assert len({id(lease) for lease in one.leases.values()}) == 4
        assert all(one.has_lease(seq, number) and not one.has_lease(seq, number + 1) for seq, number in numbers.items())
        one.check(Jobs(*numbers))
    assert back.leases == queue.leases


def test_an_event_reaches_only_the_lease_that_it_names() -> None:
    """QU18"""
    queue = Queue()
    leased(queue, 1, number=7)
    queue.release([(1, 8, 0), (2, 7, 0)])
    assert list(queue.leases) == [1]
    queue.release([(1, 7, 0)])
    assert not queue.leases and list(queue.returned) == [1]


def test_stale_ends_do_not_pile_up() -> None:
    """QU8: however many leases are acked or extended long before they end."""
    queue = Queue()
    for seq in range(1, 5001):
        leased(queue, seq, deadline=10**9 + seq)
        queue.forget_many([[seq]])
    leased(queue, 1)
    for _ in range(5000):
        queue.lease("w", [(1, 1001, 10**9, 1)])
    for seq in range(1, 5001):
        queue.delay(seq, 10**9)
        queue.forget_many([[seq]])
    assert len(queue.deadlines) < 200 and len(queue._ends) < 200


def test_who_asks_hears_which_leases_have_ended() -> None:
    """WK2, WK5: acked, expired, given back, superseded."""
    queue = Queue()
    leased(queue, 1, 2, 3, 4, deadline=100)
    queue.ended = []
    queue.forget_many([[1]])
    queue.release([(2, 1002, 0)])
    queue.lease("other", [(3, 77, 100, 2)])
    queue.advance(101)
    assert sorted(queue.ended) == [77, 1001, 1002, 1003, 1004]


def test_jobs_picked_and_not_leased_are_picked_again() -> None:
    """QU5, G11: nothing is behind the pointer that is in no place."""
    queue, jobs = Queue(), Jobs(1, 2, 3, 4)
    assert queue.pick(jobs, 3) == [1, 2, 3]
    leased(queue, 1, 3)
    assert queue.pick(jobs, 9) == [2, 4]
    leased(queue, 2, 4)
    assert queue.pick(jobs, 9) == [] and queue.pointer == 4


def test_a_claim_takes_jobs_of_several_places_out_of_all_of_them() -> None:
    """G11, QU3, QU5: the last one that was given back, and one whose delay is over."""
    queue, log = Queue(), Jobs(1, 2, 3)
    queue.delay(2, 50)
    leased(queue, *queue.pick(log, 3))
    assert queue.pick(log, 3) == []
    queue.release([(1, 1001, 0)])
    queue.advance(50)
    assert queue.pick(log, 3) == [1, 2]
    leased(queue, 1, 2)
    queue.check(log)
    assert queue.pick(log, 3) == []


def test_the_walk_over_handed_out_jobs_is_not_made_twice() -> None:
    """QU5: a pass costs what it hands out, not what is held."""
    queue, jobs = Queue(), Jobs(*range(1, 1001))
    for _ in range(100):
        leased(queue, *queue.pick(jobs, 10))
    assert jobs.looked_at <= 2000
    assert queue.pick(jobs, 10) == [] and queue.pointer == 1000


def test_a_restored_queue_finds_all_its_jobs() -> None:
    """S11, QU5, QU18"""
    queue, jobs = Queue(TopicConfig(max_deliveries=2, dead_letter="d")), Jobs(*range(1, 9))
    queue.restore({1: 1, 2: 1, 3: 2, 5: 1}, {1: (7, "w", 100)}, {2: 50}, {4: 60})
    queue.recovered(jobs)
    queue.advance(10)
    assert queue.pick(jobs, 9) == [5, 6, 7, 8]
    assert list(queue.exhausted) == [3]
    queue.advance(101)
    assert queue.pick(jobs, 9) == [1, 2, 5, 4, 6, 7, 8]


def test_what_is_known_of_jobs_that_are_gone_is_forgotten_at_recovery() -> None:
    """G11"""
    queue = Queue()
    queue.restore({1: 1, 2: 1, 3: 1}, {1: (7, "w", 100), 2: (8, "w", 100)}, {3: 50}, {4: 60, 5: 60})
    queue.recovered(Jobs(2, 5))
    assert (queue.deliveries, queue.leases, queue.delayed) == ({}, {2: (6, "w", 100, 1)}, {5: 60})


@pytest.mark.parametrize("known", [3, 300])
def test_removed_jobs_are_forgotten_whichever_is_shorter_to_go_through(known: int) -> None:
    """QU17"""
    queue = Queue()
    leased(queue, *range(1, known + 1))
    queue.delay(1000, 99)
    queue.forget_many([range(1, known)])
    assert list(queue.leases) == [known]
    queue.forget_many([range(2, 5), range(known, known + 1), range(1000, 1001)])
    assert not queue.leases and not queue.delayed and not queue.deliveries
    queue.delay(7, 99)
    queue.forget_many([range(1, 5), range(6, 2000)])
    assert not queue.delayed


@pytest.mark.parametrize("step", [10, 250, 10**6])
@pytest.mark.parametrize("many", [1, 100, 10**6])
def test_what_ends_at_once_ends_in_steps_of_which_each_is_a_moment(
    step: int, many: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """QU5, QU8, QU12, LM10: between two steps the queue is as it was a moment ago; at the end all has ended."""
    monkeypatch.setattr("topics.core.queue.jobs.STEP_JOBS_MAX", step)
    monkeypatch.setattr("topics.core.queue.jobs.MANY_MIN", many)
    queue, jobs = Queue(TopicConfig(type="queue", max_deliveries=2, dead_letter="d")), Jobs(*range(1, 1001))
    for start in range(1, 401, 8):
        leased(queue, *range(start, start + 8), deadline=500 + start)
    leased(queue, *range(41, 49), deadline=900)  # again: one more delivery, and a stale end
    queue.release([(seq, 1000 + seq, 450 + seq) for seq in range(2, 401, 50)])
    for seq in range(401, 1001):
        if seq % 3:
            queue.delay(seq, 600 + seq % 7)
    assert queue.pick(jobs, 200) == list(range(402, 1001, 3))
    leased(queue, *range(402, 1001, 3), deadline=10_000)
    before, steps = len(queue.leases) + len(queue.delayed), 0
    while queue.is_due(2000):
        queue.advance(2000)
        queue.check(jobs)
        left = len(queue.leases) + len(queue.delayed)
        assert before - left < step + 8
        ends = [lease[2] for lease in queue.leases.values() if lease[2] < 2000]
        ended = [500 + (seq - 1) // 8 * 8 + 1 for seq in queue.returned if seq <= 400 and seq % 50 != 2]
        assert max(ended, default=0) <= min(ends, default=10_000), "what ends later has ended first"
        before, steps = left, steps + 1
    assert (len(queue.leases), len(queue.delayed), steps > 1) == (200, 0, step < 10**6)
    assert queue.exhausted.first(9) == list(range(41, 49))
    claimable = [seq for seq in range(1, 1001) if seq not in range(41, 49) and seq not in queue.leases]
    assert queue.pick(jobs, 2000) == claimable


@pytest.mark.parametrize("gone", [range(1, 4001), range(500, 3500), range(1, 2), range(3999, 4001)])
@pytest.mark.parametrize("now", [0, 150, 500])
def test_many_jobs_at_once_end_where_each_alone_would(gone: range, now: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """QU8, QU12, QU17, LM10: held, returned, delayed and exhausted ones."""

    def play() -> tuple[object, ...]:
        queue = Queue(TopicConfig(type="queue", max_deliveries=2, dead_letter="d"))
        queue.ended = []
        for start in range(1, 4001, 100):
            leased(queue, *range(start, start + 100), deadline=100 + start % 300)
        queue.release([(seq, 1000 + seq, 0) for seq in range(1, 4001, 3)])
        leased(queue, *range(1, 4001, 6))
        queue.release([(seq, 1000 + seq, 200) for seq in range(2, 4001, 5)])
        queue.advance(now)
        queue.forget_many([gone])
        queue.forget_many([range(100, 110), range(200, 1200)])
        queue.configure(TopicConfig(type="queue", max_deliveries=1, dead_letter="d"))
        left = [
            seq for seq in range(1, 4001) if not any(seq in run for run in (gone, range(100, 110), range(200, 1200)))
        ]
        jobs = Jobs(*left)
        jobs.is_live = set(left).__contains__  # type: ignore[method-assign]
        queue.check(jobs)
        places = [sorted(place) for place in (queue.leases, queue.returned, queue.exhausted, queue.delayed)]
        return places, queue.deliveries, sorted(queue.ended), queue.pick(jobs, 50), queue.exhausted.first(5000)

    together = play()
    monkeypatch.setattr("topics.core.queue.jobs.MANY_MIN", 10**9)
    monkeypatch.setattr("topics.core.queue.jobs.EACH_TIMES", 0)
    assert play() == together


@pytest.mark.parametrize("known", [2, 50, 500, 5000])
@pytest.mark.parametrize(
    "gone",
    [
        [range(1, 5001)],
        [range(1, 3001)],
        [list(range(1, 5001, 2))],
        [list(range(1, 1001, 3)), range(1001, 2000), list(range(2001, 4000, 7))],
        [range(4000, 4001)],
    ],
)
def test_jobs_that_go_together_are_forgotten_wherever_they_are(gone: list[Sequence[int]], known: int) -> None:
    """QU17, LM10: and what was known of all of them is left for the owner of memory."""
    queue = Queue()
    queue.ended = []
    for start in range(1, known + 1, 50):
        leased(queue, *range(start, min(start + 50, known + 1)))
    queue.release([(seq, 1000 + seq, seq % 2 * 200) for seq in range(1, known + 1, 5)])
    queue.ended.clear()
    held, counts = set(queue.leases), set(queue.deliveries)
    left = set(range(1, 5001)).difference(*gone)
    queue.forget_many(gone)
    assert (set(queue.leases), set(queue.deliveries)) == (held & left, counts & left)
    assert sorted(queue.ended) == sorted(1000 + seq for seq in held - left)
    jobs = Jobs(*sorted(left))
    jobs.is_live = left.__contains__  # type: ignore[method-assign]
    queue.pointer = 0
    queue.check(jobs)


def test_another_limit_makes_and_unmakes_exhausted_jobs() -> None:
    """QU14"""
    queue, jobs = Queue(TopicConfig(max_deliveries=2, dead_letter="d")), Jobs(1, 2)
    leased(queue, 1)
    queue.release([(1, 1001, 0)])
    assert queue.pick(jobs, 9) == [1, 2]
    queue.configure(TopicConfig(max_deliveries=1, dead_letter="d"))
    assert (queue.pick(jobs, 9), due_letters(queue, [2], 1)) == ([2], [1])
    queue.configure(TopicConfig(max_deliveries=1))
    assert queue.pick(jobs, 9) == [1, 2]


def test_a_delivery_that_did_not_take_place_does_not_count() -> None:
    """QU6, QU11"""
    queue, jobs = Queue(), Jobs(1, 2)
    leased(queue, *queue.pick(jobs, 2))
    queue.free([(1, 1001, 0), (2, 999, 1)])
    assert (queue.pick(jobs, 9), queue.handed_out(1), queue.handed_out(2)) == ([1], 0, 1)
    queue.check(jobs)


def test_the_last_job_given_back_and_an_overdue_one_leave_their_places_in_one_claim() -> None:
    """QU4, G11: the overdue one is nobody else's, though no job given back is left when it is leased."""
    queue, jobs = Queue(), Jobs(1, 2)
    queue.delay(2, 50)
    leased(queue, *queue.pick(jobs, 2))
    assert queue.pick(jobs, 9) == []
    queue.release([(1, 1001, 0)])
    queue.advance(50)
    assert queue.pick(jobs, 9) == [1, 2]
    leased(queue, 1, 2)
    assert (queue.pick(jobs, 9), sorted(queue.leases)) == ([], [1, 2])
    queue.check(jobs)


def test_leases_survive_a_failure_of_the_log_and_counts_with_them() -> None:
    """QU3, QU11"""
    old, new, jobs = Queue(), Queue(), Jobs(1, 2, 3)
    leased(old, 1, 2, 3, 4, deadline=500)
    old.release([(2, 1002, 300), (3, 1003, 0)])
    new.restore({3: 4}, {}, {}, {})
    new.take_over(old, jobs)
    assert (new.leases, new.delayed, list(new.returned)) == ({1: (1000, "w", 500, 1)}, {2: 300}, [3])
    assert [new.handed_out(seq) for seq in (1, 2, 3)] == [1, 1, 4]
    new.free([(3, 0, 9), (2, 0, 7), (1, 0, 5)])
    assert [new.handed_out(seq) for seq in (1, 2, 3)] == [5, 7, 9]
    assert (new.leases, new.delayed, list(new.returned)) == ({1: (1000, "w", 500, 5)}, {2: 300}, [3])
    new.check(jobs)


# --- lease ids


def test_a_lease_id_is_the_number_in_hex() -> None:
    """QU4, QU21"""
    assert lease_number(lease_id(0x7F3A9C), "x") == 0x7F3A9C
    assert lease_number("", "x") is None
    assert lease_number("lease_0" + lease_id(5)[6:], "x") == lease_number("lease_" + "f" * 50, "x") == -1


@pytest.mark.parametrize("text", ["lease_", "lease", "5", "LEASE_5", "lease_5F", "lease_5\n", "lease_-5", " lease_5"])
def test_what_is_no_lease_id_is_refused(text: str) -> None:
    """QU21"""
    with pytest.raises(InvalidRequest, match=r"lease_ids\[3\]"):
        lease_number(text, "lease_ids[3]")


@given(st.lists(st.one_of(st.text(max_size=24), st.from_regex(r"lease_[ +_-]?[0-9a-fA-FxX_٣]{0,18}", fullmatch=True))))
def test_lease_ids_are_read_together_as_each_is(texts: list[str]) -> None:
    """QU21"""

    def outcome(read: Callable[[], list[int | None]]) -> list[int | None] | str:
        try:
            return read()
        except InvalidRequest as error:
            return error.message

    each = outcome(lambda: [lease_number(text, f"lease_ids[{at}]") for at, text in enumerate(texts)])
    assert outcome(lambda: lease_numbers(texts, "lease_ids")) == each


# --- letters


def job(meta: bytes = b"", tag: str | None = None) -> StoredJob:
    return StoredJob(Raw(b'{"a": 1.0}'), "n", tag, Raw(meta))


STAMP = b'"$dead_letter_from":"q","$dead_letter_deliveries":"3","$dead_letter_src_seq":"41"}'


@pytest.mark.parametrize(
    ("meta", "stamped"),
    [
        (b"", b"{" + STAMP),
        (b"{}", b"{" + STAMP),
        (b'{"x": 1.0,"x":2}', b'{"x": 1.0,"x":2,' + STAMP),
        (b'{"x":"}"}', b'{"x":"}",' + STAMP),
    ],
    ids=str,
)
def test_a_letter_is_the_job_with_where_it_came_from(meta: bytes, stamped: bytes) -> None:
    """QU14, CV6: to the byte, and back."""
    made = letter(job(meta, "t"), "q", 3, 41)
    assert (bytes(made.data), made.tag, made.node, bytes(made.meta)) == (b'{"a": 1.0}', "t", "n", stamped)
    again = StoredJob(made.data, made.node, made.tag, made.meta)
    assert origin(again) == "q"
    assert bytes(restored(again).meta) == (b"" if meta == b"{}" else meta)


def test_a_letter_that_is_dead_lettered_again_says_so_once() -> None:
    """QU14"""
    first = letter(job(b'{"x":1}'), "q", 3, 41)
    second = letter(StoredJob(first.data, first.node, first.tag, first.meta), "r", 1, 2)
    assert bytes(second.meta) == (
        b'{"x":1,"$dead_letter_from":"r","$dead_letter_deliveries":"1","$dead_letter_src_seq":"2"}'
    )


def test_what_a_router_adds_behind_the_stamp_is_kept() -> None:
    """RT14"""
    copied = job(b'{"x":1,' + STAMP[:-1] + b',"_topics_router":{"k":1}}')
    assert origin(copied) == "q"
    assert bytes(restored(copied).meta) == b'{"x":1,"_topics_router":{"k":1}}'


@pytest.mark.parametrize("meta", [b"", b"{}", b'{"$dead_letter_from":1}', b'{"x":"$dead_letter_from"}'], ids=str)
def test_what_is_no_letter_came_from_nowhere(meta: bytes) -> None:
    assert origin(job(meta)) is None


def test_copies_are_sized_as_they_are_stored() -> None:
    """TP15"""
    made = [letter(job(b'{"x":1}', "t"), "q", 3, 41), restored(job())]
    batch = batch_of_copies(made)
    assert list(batch.sizes) == [len(made[0].data) + len(made[0].meta), 10]
    assert batch.has_tags and not batch.has_delays


def test_one_pass_sees_to_so_many_letters(monkeypatch: pytest.MonkeyPatch) -> None:
    """QU14: the next one goes on."""
    monkeypatch.setattr(leasing, "LETTERS_MAX", 2)
    queue = Queue(TopicConfig(max_deliveries=1, dead_letter="d"))
    leased(queue, 1, 2, 3)
    queue.advance(101)
    assert due_letters(queue, [], 1) == [1, 2]
    queue.forget_many([[1]])
    queue.forget_many([[2]])
    assert due_letters(queue, [], 1) == [3]
