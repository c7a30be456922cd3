"""The texts of jobs, out of the pages that readers get.

Owns the way from seqs to texts for one pass, which goes through a page once. Must not know: leases, who claims. Changes
nothing but the cache. A page that is not in memory raises Cold, if the pass cannot do without.
"""

from collections.abc import Sequence

from topics.core.topic.log import Log
from topics.core.topic.pages import JOB, Cache, Cold, Page
from topics.core.topic.parts import Chunk, Part
from topics.errors import StorageError

_PREFIX = len(b'{"$seq":,')


class JobPages:
    """The pages of a log in which the jobs of one pass lie."""

    __slots__ = ("_bytes_max", "_cache", "_has_given", "_log", "_page", "_part")

    def __init__(self, cache: Cache, log: Log, bytes_max: int | None = None) -> None:
        self._cache = cache
        self._log = log
        self._bytes_max = bytes_max  # of the texts that are given at a time; the first always is. None: all of them
        self._part: Part | None = None
        self._page: Page | None = None
        self._has_given = False

    def texts(self, seqs: Sequence[int], takes_what_is_warm: bool = False) -> list[bytearray]:
        """The jobs' texts, each without `{"$seq":n,` at its start; of the first ones only, if all are too many bytes.

        If a page is missing or damaged: with `takes_what_is_warm` those before it, if there are any, and none of these
        seqs if the pass has texts already.
        """
        texts = self._run(seqs)
        if texts is None:
            texts = []
            try:
                self._collect(seqs, texts)
            except (Cold, StorageError):
                if not self._has_given and not (takes_what_is_warm and texts):
                    raise
                if not takes_what_is_warm:
                    texts = []
        self._has_given = self._has_given or bool(texts)
        return texts

    def _collect(self, seqs: Sequence[int], texts: list[bytearray]) -> None:
        """Add the jobs' texts, one by one."""
        part, page, size = self._part, self._page, 0
        for seq in seqs:
            if part is None or not part.first <= seq <= part.last:
                part, page = self._log.part_at(seq), None
                assert part is not None, "a job that is not in the log"
            row = seq - part.first if type(part) is Chunk else part.row_from(seq)
            if page is None or not page.start <= row < page.start + page.count:
                page = self._cache.page(part, row, JOB)
            row -= page.start
            start, stop = (page.ends[row - 1] if row else 0) + _PREFIX + len(str(seq)), page.ends[row] - 1
            size += stop - start
            if self._bytes_max is not None and size > self._bytes_max and texts:
                break
            texts.append(page.text[start:stop])
        self._part, self._page = part, page

    def _run(self, seqs: Sequence[int]) -> list[bytearray] | None:
        """The texts of jobs that lie in a row, as most do, in the page at hand; None: these do not, or are too many."""
        if not seqs:
            return None
        first, count, part, page = seqs[0], len(seqs), self._part, self._page
        if page is None:
            part = self._part = self._log.part_at(first)
        if type(part) is not Chunk:
            return None
        if page is None:
            page = self._page = self._cache.page(part, first - part.first, JOB)
        row = first - part.first - page.start
        digits = len(str(first))
        if row < 0 or row + count > len(page.ends) or seqs[-1] - first != count - 1 or len(str(seqs[-1])) != digits:
            return None
        text, ends, start = page.text, page.ends[row : row + count].tolist(), page.ends[row - 1] if row else 0
        if self._bytes_max is not None and ends[-1] - start > self._bytes_max:
            return None
        texts, before = [], _PREFIX + digits
        for end in ends:
            texts.append(text[start + before : end - 1])
            start = end
        return texts
