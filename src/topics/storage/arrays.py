"""Records as Arrow arrays: from rows that were decoded, or from a text in which it is known where they lie.

The texts of such rows (`LaidRows`) need not be looked for: one array of strings over the whole text, with what lies
between the texts as strings of their own, and of these only the texts are taken. That costs a sixth of decoding. Knows
nothing of files, streams and which rows are live.
"""

from array import array
from collections.abc import Sequence
from functools import lru_cache
from itertools import accumulate, chain, starmap
from typing import Any, NamedTuple

from topics.model import Columns, LaidRows

_LAST_BYTES = len("}]}")  # behind the fields of the last record
_TAG_BYTES, _NODE_BYTES = len(',"tag":"'), len(',"node":"')  # before the text of a field; behind it is a quote


class Arrays(NamedTuple):
    """Rows by columns, in the types of a segment."""

    seq: Any
    ts: Any
    node: Any
    tag: Any
    meta: Any
    data: Any

    def select(self, runs: Sequence[tuple[int, int]]) -> "Arrays":
        """Only the rows in `runs`, at least one."""
        import pyarrow as pa

        if len(runs) == 1:
            ((start, stop),) = runs
            return Arrays(*(column.slice(start, stop - start) for column in self))
        rows = number_array(pa.uint32(), array("I", chain.from_iterable(starmap(range, runs))))
        return Arrays(*(plain(column.take(rows)) for column in self))


def arrays_of(columns: Columns) -> Arrays:
    """Rows that were decoded, at least one."""
    import pyarrow as pa

    seqs, timestamps, *texts = columns
    count = len(seqs)
    return Arrays(
        _seq_array(seqs),
        number_array(pa.timestamp("ms", "UTC"), array("q", timestamps)),
        *(_text_array(column, count) for column in texts),
    )


def arrays_of_laid(rows: LaidRows) -> Arrays:
    """All of the rows, cut out of their text."""
    import pyarrow as pa
    from pyarrow import compute

    count = len(rows.others)
    ends, between = (number_array(pa.uint32(), sizes).view(pa.int32()) for sizes in (rows.sums, rows.others))
    tags, nodes = (number_array(pa.int32(), array("i", field)) if field else None for field in (rows.tags, rows.nodes))
    for field in (tags, nodes):
        if field is not None:
            before = compute.call_function("subtract", [compute.call_function("cumulative_sum", [field]), field])
            between = compute.call_function("add", [between, before])
    starts = compute.call_function("add", [ends.slice(0, count), between])
    stops = compute.call_function("add", [ends.slice(1), between])
    borders = [starts, stops]
    for field, size in ((tags, _TAG_BYTES), (nodes, _NODE_BYTES)):
        if field is not None:
            borders += _within(stops, field, size)
            stops = compute.call_function("add", [stops, field])
    assert stops[count - 1].as_py() + _LAST_BYTES == len(rows.text), "rows are not where they are said to be"
    texts, absent = _texts(rows.text, borders), pa.nulls(count, pa.string())
    step = len(borders)
    return Arrays(
        _seq_array(range(rows.first, rows.first + count)),
        number_array(pa.timestamp("ms", "UTC"), rows.timestamps),
        absent if nodes is None else _taken(texts, count, step, step - 2, nodes),
        absent if tags is None else _taken(texts, count, step, 2, tags),
        absent,
        _taken(texts, count, step, 0),
    )


def _within(starts: Any, field: Any, size: int) -> tuple[Any, Any]:
    """Where the texts of fields begin and end; an absent field begins and ends where it would be."""
    import pyarrow as pa
    from pyarrow import compute

    before = compute.call_function("min_element_wise", [field, pa.scalar(size, pa.int32())])
    whole = compute.call_function("subtract", [field, pa.scalar(1, pa.int32())])
    without_quote = compute.call_function("max_element_wise", [whole, pa.scalar(0, pa.int32())])
    add = compute.get_function("add")
    return add.call([starts, before]), add.call([starts, without_quote])


def _texts(body: bytes | memoryview, borders: Sequence[Any]) -> Any:
    """What lies between any two of the borders, which are those of the first row, then those of the second, …"""
    import pyarrow as pa

    count, step = len(borders[0]), len(borders)
    offsets = memoryview(bytearray(4 * count * step)).cast("i")
    for place, border in enumerate(borders):
        offsets[place::step] = memoryview(border.buffers()[1]).cast("B")[: 4 * count].cast("i")
    buffers = [None, pa.py_buffer(offsets), pa.py_buffer(body)]
    return pa.Array.from_buffers(pa.string(), count * step - 1, buffers)


def _taken(texts: Any, count: int, step: int, first: int, sizes: Any = None) -> Any:
    """Every `step`th text, from the text `first` on; nulls where a size is 0, if sizes are given."""
    import pyarrow as pa
    from pyarrow import compute

    chosen = number_array(pa.int32(), _every(count, step, first))
    if sizes is not None and compute.call_function("min", [sizes]).as_py() == 0:
        is_present = compute.call_function("greater", [sizes, pa.scalar(0, pa.int32())])
        chosen = compute.call_function("if_else", [is_present, chosen, pa.scalar(None, pa.int32())])
    return plain(texts.take(chosen))


def number_array(kind: Any, values: "array[int] | bytes") -> Any:
    import pyarrow as pa

    return pa.Array.from_buffers(kind, len(values), [None, pa.py_buffer(values)])


def plain(column: Any) -> Any:
    """A column that was computed just now, without a bitmap that says no more than that nothing is missing: a file does
    not have it either."""
    import pyarrow as pa

    if column.null_count or column.buffers()[0] is None:
        return column
    return pa.Array.from_buffers(column.type, len(column), [None, *column.buffers()[1:]])


@lru_cache(maxsize=32)
def _every(count: int, step: int, first: int) -> "array[int]":
    return array("i", range(first, first + count * step, step))


@lru_cache(maxsize=8)
def row_numbers(count: int) -> Any:
    """The numbers of `count` rows."""
    import pyarrow as pa

    return number_array(pa.uint64(), array("Q", range(count)))


def _seq_array(seqs: Sequence[int]) -> Any:
    import pyarrow as pa
    from pyarrow import compute

    if isinstance(seqs, range):
        return plain(compute.call_function("add", [row_numbers(len(seqs)), pa.scalar(seqs[0], pa.uint64())]))
    return number_array(pa.uint64(), array("Q", seqs))


def _text_array(values: Sequence[Any] | None, count: int) -> Any:
    """A column of strings from str, JSON text or None; `values` is None if it has none."""
    import pyarrow as pa

    if values is None:
        return pa.nulls(count, pa.string())
    nulls = values.count(None)
    if nulls == count or isinstance(next(value for value in values if value is not None), str):
        return pa.array(values, pa.string())
    if nulls:
        return pa.array([None if value is None else bytes(value) for value in values], pa.binary()).view(pa.string())
    offsets = array("i", accumulate(map(len, values), initial=0))
    return pa.Array.from_buffers(pa.string(), count, [None, pa.py_buffer(offsets), pa.py_buffer(b"".join(values))])
