"""Who is calling, and what their key allows.

Owns the grammar of TOPICS_API_KEYS, and the keys made from it and from the key file: digests, scopes, prefixes. Must
not know: routes, requests, files. After `Keyring.parse` no plaintext is kept, and no message here holds a secret.
Rules: AU1-AU10, AU17.

Invariants: there is one `Key` per secret for as long as that is known, also if what it allows changes; names and
digests are unique; whether auth is on never changes.
"""

from collections.abc import Iterable
from hashlib import sha256
from hmac import compare_digest
from typing import Final
from urllib.parse import unquote_to_bytes

from topics.errors import ConfigurationError, Forbidden, Unauthorized

READ, WRITE, DELETE, ADMIN = "read", "write", "delete", "admin"
SCOPES: Final = frozenset((READ, WRITE, DELETE, ADMIN))
SCOPE_WORDS: Final = {
    **{word: frozenset((word,)) for word in (READ, WRITE, DELETE, ADMIN)},
    "r": frozenset((READ,)),
    "w": frozenset((WRITE,)),
    "d": frozenset((DELETE,)),
    "del": frozenset((DELETE,)),
    "a": frozenset((ADMIN,)),
    "rw": frozenset((READ, WRITE)),
}
VARIABLE: Final = "TOPICS_API_KEYS"
FIELDS_MAX: Final = 512  # of a query, among which a secret is looked for
VALUE_BYTES_MAX: Final = 8192  # of a secret in a query; no longer one is known


class Key:
    """A key as the server knows it. Compared by identity: there is one object per key."""

    __slots__ = ("digest", "inflight", "is_gone", "name", "prefixes", "scopes", "streams", "tickets")

    def __init__(
        self, digest: bytes, scopes: frozenset[str], prefixes: tuple[str, ...], name: str | None = None
    ) -> None:
        self.digest = digest
        self.name = name  # None: it comes from the environment
        self.is_gone = False  # it was taken out of the key file
        self.tickets = 0  # unused ones
        self.scopes = scopes
        self.prefixes = prefixes  # none = any name
        self.inflight = 0  # running requests
        self.streams = 0  # open streams and sockets

    def may_name(self, name: str) -> bool:
        return not self.prefixes or name.startswith(self.prefixes)

    def check_names(self, names: Iterable[str]) -> None:
        for name in names:
            if not self.may_name(name):
                raise Forbidden(f'this key may not name "{name}"')

    def check_scopes(self, scopes: frozenset[str]) -> None:
        if not scopes <= self.scopes:
            missing = " and ".join(sorted(scopes - self.scopes))
            raise Forbidden(f"this key does not have the scope {missing}")

    def permits(self, scopes: frozenset[str], names: Iterable[str]) -> bool:
        """Whether the key still allows what was begun with it."""
        return not self.is_gone and scopes <= self.scopes and all(map(self.may_name, names))

    def check_still(self, scopes: frozenset[str], names: Iterable[str]) -> None:
        """Repeat a check made some time ago: keys change (AU17)."""
        if self.is_gone:
            raise Unauthorized("the key is no longer known")
        self.check_scopes(scopes)
        self.check_names(names)


ANYONE: Final = Key(b"", SCOPES, ())  # while auth is off


class Keyring:
    """All keys: those of the environment, and those of a key file, which may change. True if auth is on."""

    def __init__(self, keys: Iterable[Key] = ()) -> None:
        self._fixed = self._keys = tuple(keys)
        self._is_on = bool(self._keys)

    def __bool__(self) -> bool:
        return self._is_on

    def __len__(self) -> int:
        return len(self._keys)

    @property
    def names(self) -> set[str]:
        """Those of the key file; the others have none."""
        return {key.name for key in self._keys if key.name is not None}

    def take(self, filed: Iterable[Key]) -> None:
        """Put these in place of the keys of the key file; auth is on from the first time on, even if there are none.

        A key that is there already goes on as the same object, with what it allows now. ConfigurationError: a name or
        a secret is there twice; nothing has changed.
        """
        filed = tuple(filed)
        _check_unique((*self._fixed, *filed))
        fresh = {key.digest: key for key in filed}
        known = {key.digest: key for key in self._keys[len(self._fixed) :]}
        for digest, key in known.items():
            if digest in fresh:
                key.name, key.scopes, key.prefixes = fresh[digest].name, fresh[digest].scopes, fresh[digest].prefixes
            else:
                key.is_gone = True
        self._keys = (*self._fixed, *(known.get(digest, key) for digest, key in fresh.items()))
        self._is_on = True

    def find(self, token: bytes) -> Key | None:
        """The key that a token stands for; takes the same time for every key."""
        digest = sha256(token).digest()
        found = None
        for key in self._keys:
            if compare_digest(digest, key.digest):
                found = key
        return found

    @classmethod
    def parse(cls, text: str) -> "Keyring":
        """Read the text of the variable. Errors name the place of an entry, never its secret."""
        entries = [(n, entry.strip()) for n, entry in enumerate(text.split(","), 1) if entry.strip()]
        if text.strip() and not entries:
            raise ConfigurationError(f"{VARIABLE} is set and holds no key")
        keys = [_key(entry, f"{VARIABLE}, entry {n}") for n, entry in entries]
        if len({key.digest for key in keys}) < len(keys):
            raise ConfigurationError(f"{VARIABLE} holds the same secret twice")
        return cls(keys)


def _check_unique(keys: Iterable[Key]) -> None:
    digests: dict[bytes, str | None] = {}
    names: set[str] = set()
    for key in keys:
        if key.digest in digests:
            first = digests[key.digest]
            where = f'keys "{first}" and "{key.name}"' if first else f'key "{key.name}" and one of {VARIABLE}'
            raise ConfigurationError(f"{where} have the same secret")
        if key.name is not None and key.name in names:
            raise ConfigurationError(f'two keys are named "{key.name}"')
        digests[key.digest] = key.name
        names.update(() if key.name is None else (key.name,))


def bearer_token(header: bytes) -> bytes | None:
    """The token of an Authorization header; None if it is not a bearer token."""
    scheme, _, token = header.strip().partition(b" ")
    return token.strip() if scheme.lower() == b"bearer" and token.strip() else None


def query_token(query: bytes) -> bytes | None:
    """The token in a query string; the first one counts."""
    return query_value(query, b"token")


def query_value(query: bytes, wanted: bytes) -> bytes | None:
    """The first value of a field in a query string, form-decoded; nobody is known yet, so the search is bounded."""
    for pair in query.split(b"&", FIELDS_MAX)[:FIELDS_MAX]:
        name, _, value = pair.partition(b"=")
        if len(name) <= 3 * len(wanted) and unquote_to_bytes(name.replace(b"+", b" ")) == wanted:
            return unquote_to_bytes(value.replace(b"+", b" ")).strip() if len(value) <= VALUE_BYTES_MAX else b""
    return None


def _key(entry: str, place: str) -> Key:
    secret, has_scopes, rest = entry.partition(":")
    scopes, _, prefixes = rest.partition(":")
    if not secret.strip():
        raise ConfigurationError(f"{place}: the secret before the colon is empty")
    digest = sha256(secret.strip().encode("utf-8", "surrogateescape")).digest()
    return Key(digest, scopes_in(scopes, place) if has_scopes and scopes else SCOPES, prefixes_in(prefixes, place))


def scopes_in(text: str, place: str) -> frozenset[str]:
    words = [word.strip().lower() for word in text.split("+")]
    for word in words:
        if not word:
            raise ConfigurationError(f"{place}: a scope is empty; leave the whole field empty for all scopes")
        if word not in SCOPE_WORDS:
            raise ConfigurationError(f"{place}: a scope is none of {', '.join(SCOPE_WORDS)}")
    return frozenset().union(*(SCOPE_WORDS[word] for word in words))


def prefixes_in(text: str, place: str) -> tuple[str, ...]:
    if not text:
        return ()
    prefixes = tuple(text.split("|"))
    if not all(prefix.strip() for prefix in prefixes):
        raise ConfigurationError(f"{place}: a prefix is empty, which would allow every name; leave all out for that")
    return prefixes
