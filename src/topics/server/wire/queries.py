"""Query strings: parameters, which topics a list holds and in which order, and the cursors of list pages.

The cursor of a walk holds, beside the last name, which walk it is and how far it has come. Must not know: request
bodies, how an order is made, who is calling. Rules: CV15, CV24, OB1, OB2.
"""

import re
from base64 import urlsafe_b64decode, urlsafe_b64encode
from functools import lru_cache
from typing import Any, Final, get_args
from urllib.parse import parse_qsl

import msgspec

from topics.engine.instance import TopicFilter
from topics.errors import InvalidRequest
from topics.faults import quoted
from topics.model import Durability, TopicType
from topics.server.seeing.history import HISTORY_MS_DEFAULT, HISTORY_MS_MAX

PAGE_SIZE_DEFAULT: Final = 100
PAGE_SIZE_MAX: Final = 1000
LOSSES_DEFAULT: Final = 100
LOSSES_MAX: Final = 1000
PARAMETERS_MAX: Final = 512  # of a query: each costs a microsecond; a reader may name 256 nodes
QUERY_KEPT_BYTES_MAX: Final = 256  # of a query string whose parameters are remembered
DIGITS_MAX: Final = 40  # of a number in a query; further ones are ignored, it is above every range anyway
CURSOR_TEXT: Final = re.compile(r"[A-Za-z0-9_+/ -]+={0,2}", re.ASCII)
BY_NAME: Final = "name"
ORDERS: Final = (BY_NAME, "-written_rate", "-bytes", "-count", "-lost_total", "-ready")
TYPES: Final = get_args(TopicType)
CLASSES: Final = get_args(Durability)
PLACE_DIGITS_MAX: Final = 9

_decode_members = msgspec.json.Decoder(dict[str, Any]).decode


class Parameters:
    """A query string. If a name comes twice, the first one counts."""

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
        """A whole number; None if it is left out. A very long one is cut: it is above every range anyway."""
        text = self._values.get(name)
        if text is None:
            return None
        if not text.isascii() or not text.isdigit():
            raise InvalidRequest(f"{name} is {quoted(text)}; it must be a whole number")
        return int(text) if len(text) <= DIGITS_MAX else int(text.lstrip("0")[:DIGITS_MAX] or "0")

    def losses_limit(self) -> int:
        """How many losses are asked for, 1 to 1000."""
        limit = self.natural("limit")
        return LOSSES_DEFAULT if limit is None else max(1, min(LOSSES_MAX, limit))

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


_remembered = lru_cache(maxsize=1024)(Parameters)


def check_query(query: bytes) -> None:
    """Refuse a query string before it is taken apart (LM9)."""
    if query.count(b"&") >= PARAMETERS_MAX:
        raise InvalidRequest(f"the query has more than {PARAMETERS_MAX} parameters")


def parameters_of(query: bytes) -> Parameters:
    """The parameters of a query string. Clients repeat short ones; secrets, nodes and what is large are not kept."""
    if len(query) > QUERY_KEPT_BYTES_MAX or b"node" in query or b"token" in query or b"ticket" in query:
        return Parameters(query)
    return _remembered(query)


# --- lists


def filter_in(parameters: Parameters, allowed: tuple[str, ...]) -> TopicFilter:
    """Which topics a list is to hold."""
    return TopicFilter(
        prefix=parameters.text("prefix") or "",
        contains=parameters.text("contains") or "",
        type=_choice(parameters, "type", TYPES),
        durability=_choice(parameters, "class", CLASSES),
        allowed=allowed,
    )


def order_in(parameters: Parameters) -> Any:
    """One of ORDERS."""
    order = parameters.text("sort")
    if order is None:
        return BY_NAME
    if order not in ORDERS:
        raise InvalidRequest(f"sort is {quoted(order)}; use one of {', '.join(ORDERS)}")
    return order


def _choice(parameters: Parameters, name: str, choices: tuple[str, ...]) -> str | None:
    text = parameters.text(name)
    if not text:
        return None
    if text not in choices:
        raise InvalidRequest(f"{name} is {quoted(text)}; use one of {', '.join(choices)}")
    return text


def walk_in(parameters: Parameters) -> tuple[str, int] | None:
    """The walk that a cursor goes on with, and how far it has come; None: there is no cursor."""
    text = parameters.text("cursor")
    if not text:
        return None
    decode_cursor(text)  # it is one of a list
    walk, _, place = str(_decode_members(unpacked(text)).get("walk")).rpartition(":")
    if not walk or not place.isascii() or not place.isdigit() or len(place) > PLACE_DIGITS_MAX:
        raise InvalidRequest("cursor is of a list in another order; ask again without one")
    return walk, int(place)


def walk_cursor(after: str, walk: str, place: int) -> str:
    """The cursor of the page of a walk that begins at `place`, behind the name `after`."""
    return urlsafe_b64encode(msgspec.json.encode({"after": after, "walk": f"{walk}:{place}"})).rstrip(b"=").decode()


def history_in(parameters: Parameters, default: int = HISTORY_MS_DEFAULT) -> int:
    """How far back samples are asked for, in milliseconds."""
    given = parameters.natural("history")
    return default if given is None else min(HISTORY_MS_MAX, given)


# --- cursors of list pages


def encode_cursor(after: str) -> str:
    """The cursor of the list page that starts after the name `after`."""
    return urlsafe_b64encode(msgspec.json.encode({"after": after})).rstrip(b"=").decode()


def decode_cursor(text: str) -> str:
    """The name in a cursor. Both base64 alphabets are taken, with or without padding, and a space as a plus (CV15)."""
    try:
        after = _decode_members(unpacked(text)).get("after")
        if not isinstance(after, str):
            raise ValueError("it does not say where to go on")
    except (msgspec.MsgspecError, RecursionError):
        raise InvalidRequest("cursor is not one that a list gave: it holds something else") from None
    except ValueError as error:
        raise InvalidRequest(f"cursor is not one that a list gave: {error}") from None
    return after


def unpacked(text: str) -> bytes:
    """The bytes that a base64 text stands for, in any of the spellings of CV15. ValueError: the text is not base64."""
    if not CURSOR_TEXT.fullmatch(text):
        raise ValueError("it is not base64")
    bare = text.rstrip("=").replace(" ", "-").replace("+", "-").replace("/", "_")
    return urlsafe_b64decode(bare + "=" * (-len(bare) % 4))
