"""What requests say: JSON bodies, query strings and list cursors, decoded and checked.

The structs here are the request bodies of the API; the OpenAPI document is made of the same types. Fields that are
unknown are ignored (CV4); a null where a rule does not allow it is a type error (CV19). Must not know: the engine's
state, who is calling. Rules: CV3, CV15, CV18-CV24.
"""

import re
from base64 import urlsafe_b64decode, urlsafe_b64encode
from functools import lru_cache
from typing import Annotated, Any, Final, TypeVar
from urllib.parse import parse_qsl

import msgspec
from msgspec import Meta, Struct

from topics.core.config import ConfigIn
from topics.core.log import Query
from topics.core.parts import Projection
from topics.core.records import WriteIn, decode_json
from topics.errors import InvalidRequest
from topics.model import SEQ_MAX, TagMatch
from topics.settings import Settings

T = TypeVar("T")

LIMIT_DEFAULT: Final = 256
BATCH_BYTES_DEFAULT: Final = 1024 * 1024
BATCH_BYTES_MAX: Final = 8 * 1024 * 1024
WAIT_MS_MAX: Final = 30_000
PAGE_SIZE_DEFAULT: Final = 100
PAGE_SIZE_MAX: Final = 1000
DIGITS_MAX: Final = 40  # read of a number in a query; one of as many is above every range

Natural = Annotated[int, Meta(ge=0)]
Match = str | list[str]


class DiffIn(Struct, frozen=True):
    """The body of a diff."""

    from_seq: Natural = 0
    limit: Natural = 0
    node: str | list[str] | None = None
    include_tags: bool = False
    include_meta: bool = True
    wait_ms: Natural = 0
    max_batch_bytes: Natural = 0
    epoch: Natural | None = None
    from_ts: Natural | None = None
    filter: Match | None = None


class DeleteIn(Struct, frozen=True):
    """The body of a delete."""

    before_seq: Natural | None = None
    match: Match | None = None


_decode_config = msgspec.json.Decoder(ConfigIn).decode
_decode_diff = msgspec.json.Decoder(DiffIn).decode
_decode_delete = msgspec.json.Decoder(DeleteIn).decode
_decode_write = msgspec.json.Decoder(WriteIn).decode
_decode_texts = msgspec.json.Decoder(list[str]).decode
_decode_cursor = msgspec.json.Decoder(dict[str, Any]).decode

EMPTY_DIFF: Final = DiffIn()
EMPTY_CONFIG: Final = ConfigIn()


def config_in(body: bytes) -> ConfigIn:
    """The body of PUT topic; an empty one stands for {}."""
    return decode_json(_decode_config, body) if body else EMPTY_CONFIG


def write_in(body: bytes) -> WriteIn:
    return decode_json(_decode_write, body)  # type: ignore[no-any-return]


def diff_in(body: bytes) -> DiffIn:
    """The body of a diff; an empty one stands for {}."""
    return decode_json(_decode_diff, body) if body else EMPTY_DIFF


def delete_in(body: bytes) -> tuple[int | None, TagMatch | None]:
    """The selector of a delete: at least one of the two."""
    given: DeleteIn = decode_json(_decode_delete, body)
    if given.before_seq is None and given.match is None:
        raise InvalidRequest("a delete needs before_seq or match")
    before = None if given.before_seq is None else seq("before_seq", given.before_seq)
    return before, None if given.match is None else TagMatch.parse(given.match)


def query_of(diff: DiffIn, settings: Settings) -> Query:
    """The read that a diff asks for; ranges are clamped (DF1)."""
    node = diff.node
    if diff.from_ts is not None:
        seq("from_ts", diff.from_ts)
    return Query(
        seq("from_seq", diff.from_seq),
        min(diff.limit or LIMIT_DEFAULT, settings.max_limit),
        min(diff.max_batch_bytes or BATCH_BYTES_DEFAULT, BATCH_BYTES_MAX),
        frozenset() if node is None else frozenset((node,)) if isinstance(node, str) else frozenset(node),
        None if diff.filter is None else TagMatch.parse(diff.filter, "filter"),
        None if diff.epoch is None else seq("epoch", diff.epoch),
        Projection(diff.include_tags, diff.include_meta, True),
    )


def seq(field: str, number: int) -> int:
    """A number that is taken exactly, not clamped (CV18)."""
    if number > SEQ_MAX:
        raise InvalidRequest(f"{field} is {number}; it must be at most 2^64-1")
    return number


class Parameters:
    """A query string. Of a name that comes twice the first one counts."""

    def __init__(self, query: bytes) -> None:
        self._values: dict[str, str] = {}
        for name, value in parse_qsl(query.decode("latin-1"), keep_blank_values=True, errors="replace"):
            self._values.setdefault(name, value)

    def text(self, name: str) -> str | None:
        return self._values.get(name)

    def flag(self, name: str, default: bool) -> bool:
        """A boolean; what is neither true nor false means the default (CV24)."""
        return {"true": True, "1": True, "false": False, "0": False}.get(self._values.get(name, ""), default)

    def natural(self, name: str) -> int | None:
        """A whole number, or None if it is left out. One of many digits stands for any above every range."""
        text = self._values.get(name)
        if text is None:
            return None
        if not text.isascii() or not text.isdigit():
            raise InvalidRequest(f"{name} is {text[:40]!r}; it must be a whole number")
        return int(text) if len(text) <= DIGITS_MAX else int(text.lstrip("0")[:DIGITS_MAX] or "0")

    def page_size(self) -> int:
        """How many entries a list page has; what cannot be read means the default."""
        text = self._values.get("page_size", "")
        if not text.isascii() or not text.isdigit():
            return PAGE_SIZE_DEFAULT
        return max(1, min(PAGE_SIZE_MAX, int(text[-4:]) if len(text.lstrip("0")) <= 4 else PAGE_SIZE_MAX))

    def cursor(self) -> str:
        """The name after which a list page starts; empty = at the beginning."""
        text = self._values.get("cursor")
        return decode_cursor(text) if text else ""


@lru_cache(maxsize=1024)
def parameters_of(query: bytes) -> Parameters:
    """The parameters of a query string; clients repeat the same ones."""
    return Parameters(query)


def diff_of(parameters: Parameters) -> DiffIn:
    """The same as a diff's body, as a query string."""
    given = {name: parameters.natural(name) for name in ("from_seq", "limit", "wait_ms", "max_batch_bytes")}
    return DiffIn(
        **{name: value for name, value in given.items() if value is not None},
        node=parameters.text("node"),
        include_tags=parameters.flag("include_tags", False),
        include_meta=parameters.flag("include_meta", True),
        epoch=parameters.natural("epoch"),
        from_ts=parameters.natural("from_ts"),
        filter=_match_text(parameters.text("filter")),
    )


def _match_text(text: str | None) -> Match | None:
    """A match in a query string: a tuple as JSON; anything else is a bare tag."""
    try:
        return _decode_texts(text or "")
    except (msgspec.MsgspecError, UnicodeEncodeError):
        return text


CURSOR_TEXT: Final = re.compile(r"[A-Za-z0-9_+/ -]+={0,2}", re.ASCII)


def encode_cursor(after: str) -> str:
    """The cursor of a list page that starts behind `after`."""
    return urlsafe_b64encode(msgspec.json.encode({"after": after})).rstrip(b"=").decode()


def decode_cursor(text: str) -> str:
    """Both base64 alphabets are taken, with or without padding, a space standing for a plus (CV15)."""
    try:
        if not CURSOR_TEXT.fullmatch(text):
            raise ValueError("it is not base64")
        bare = text.rstrip("=").replace(" ", "-").replace("+", "-").replace("/", "_")
        after = _decode_cursor(urlsafe_b64decode(bare + "=" * (-len(bare) % 4))).get("after")
        if not isinstance(after, str):
            raise ValueError("it does not say where to go on")
    except (ValueError, msgspec.MsgspecError, RecursionError) as error:
        raise InvalidRequest(f"cursor is not one that a list gave: {error}") from None
    return after
