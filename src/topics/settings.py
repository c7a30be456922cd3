"""Settings: one table of what can be set from outside, with default, unit and meaning.

Each setting has a variable (`TOPICS_DATA_DIR`), a flag (`--data-dir`) and a key in the settings file (`data_dir`), all
made of its name. A flag wins over the file, the file over the environment. `Settings()` is the default,
`Settings.load(environ)` reads the environment alone, `gather` all three, and tells where each value came from.

The only module that reads the environment; it reads no file and no command line: those who do pass in what they found.
`ClientSettings` are those of a client. Invariants: a message names the place that a bad value came from, and never a
secret; no repr shows one.
"""

import os
from collections.abc import Callable, Mapping
from dataclasses import Field, dataclass, field, fields, replace
from typing import Any, Final, Literal, NamedTuple

from topics.errors import ConfigurationError
from topics.faults import nearest, one_of, quoted
from topics.units import DIGITS_MAX, duration_ms, size_bytes, whole

MIB: Final = 1024 * 1024
SEGMENT_EVENTS_MIN: Final = 100  # a file of less costs more than what is in it, and a stop writes them all
SEGMENT_BYTES_MIN: Final = 64 * 1024
PORT_MAX: Final = 65_535
LOG_LEVELS: Final = ("debug", "info", "warning", "error")
OTHER_VARIABLES: Final = ("TOPICS_URL", "TOPICS_TOKEN")  # those of clients
OTHER_PREFIXES: Final = ("TOPICS_TEST_", "TOPICS_JOB_")  # of tests; of what a worker tells its command

Kind = Literal["text", "path", "address", "list", "level", "flag", "count", "port", "size", "time"]


def _setting(
    default: Any, variable: str, meaning: str, *, kind: Kind | None = None, minimum: int = 1, secret: bool = False
) -> Any:
    """A setting. Its kind follows from the default, and of numbers from the name, unless it is given."""
    if kind is None:
        units: dict[str, Kind] = {"BYTES": "size", "MS": "time"}
        by_type: dict[type, Kind] = {bool: "flag", str: "text"}
        kind = by_type.get(type(default)) or units.get(variable.rpartition("_")[2], "count")
    return field(
        default=default,
        repr=not secret,
        metadata={"variable": variable, "meaning": meaning, "minimum": minimum, "secret": secret, "kind": kind},
    )


@dataclass(frozen=True, kw_only=True)
class Settings:
    """Everything that can be set from outside. Sizes are bytes, times milliseconds; 0 = off where it says so."""

    host: str = _setting(
        "127.0.0.1", "TOPICS_HOST", "address to bind; host:port or [v6]:port is accepted", kind="address"
    )
    port: int = _setting(4000, "TOPICS_PORT", "port to bind; 0 = any free one", kind="port", minimum=0)
    port_file: str = _setting("", "TOPICS_PORT_FILE", "after bind, host:port is written to this file", kind="path")
    unix_socket: str = _setting(
        "", "TOPICS_UNIX_SOCKET", "path of a Unix socket to listen on, too, for its owner", kind="path"
    )
    api_keys: str = _setting(
        "",
        "TOPICS_API_KEYS",
        "keys, comma-separated: key[:scopes[:prefixes]]; none = auth is off",
        kind="list",
        secret=True,
    )
    key_file: str = _setting(
        "", "TOPICS_KEY_FILE", "file of keys, one per line: name scopes prefixes sha256:HEX", kind="path"
    )
    allow_insecure_no_auth: bool = _setting(
        False, "TOPICS_ALLOW_INSECURE_NO_AUTH", "allow a bind beyond loopback without keys"
    )
    probe_auth: bool = _setting(False, "TOPICS_PROBE_AUTH", "health and ready need a key, too")
    cors_origins: str = _setting(
        "", "TOPICS_CORS_ORIGINS", "origins allowed by CORS, comma-separated; none = off", kind="list"
    )
    allowed_hosts: str = _setting(
        "",
        "TOPICS_ALLOWED_HOSTS",
        "without keys, on loopback: further names that Host may have, comma-separated",
        kind="list",
    )
    data_dir: str = _setting("./topics-data", "TOPICS_DATA_DIR", "data directory, created if absent", kind="path")
    cache_bytes: int = _setting(
        256 * MIB, "TOPICS_CACHE_BYTES", "memory for records of logged topics and their rendered form", minimum=MIB
    )
    segment_max_events: int = _setting(
        10_000, "TOPICS_SEGMENT_MAX_EVENTS", "records in one segment; at least 100", minimum=SEGMENT_EVENTS_MIN
    )
    segment_max_bytes: int = _setting(
        64 * MIB, "TOPICS_SEGMENT_MAX_BYTES", "record bytes in one segment; at least 65536", minimum=SEGMENT_BYTES_MIN
    )
    segment_max_age_ms: int = _setting(3_600_000, "TOPICS_SEGMENT_MAX_AGE_MS", "age at which records are sealed")
    max_body_bytes: int = _setting(64 * MIB, "TOPICS_MAX_BODY_BYTES", "request body, inflated")
    max_batch_records: int = _setting(10_000, "TOPICS_MAX_BATCH_RECORDS", "records in one write")
    max_record_bytes: int = _setting(MIB, "TOPICS_MAX_RECORD_BYTES", "data and meta of one record")
    max_meta_bytes: int = _setting(16_384, "TOPICS_MAX_META_BYTES", "meta of one record")
    max_tag_bytes: int = _setting(256, "TOPICS_MAX_TAG_BYTES", "tag of one record")
    max_node_bytes: int = _setting(128, "TOPICS_MAX_NODE_BYTES", "node name")
    max_limit: int = _setting(1000, "TOPICS_MAX_LIMIT", "records in one read or frame")
    max_claim: int = _setting(1000, "TOPICS_MAX_CLAIM", "jobs in one claim, ack, nack or extend")
    max_watch_topics: int = _setting(256, "TOPICS_MAX_WATCH_TOPICS", "topics in one watch session or socket")
    max_topics: int = _setting(100_000, "TOPICS_MAX_TOPICS", "topics; 0 = off", minimum=0)
    max_routers: int = _setting(10_000, "TOPICS_MAX_ROUTERS", "routers; 0 = off", minimum=0)
    max_cursors: int = _setting(1000, "TOPICS_MAX_CURSORS", "named cursors of one topic; 0 = off", minimum=0)
    max_watch_sessions: int = _setting(10_000, "TOPICS_MAX_WATCH_SESSIONS", "watch sessions; 0 = off", minimum=0)
    max_sse_connections: int = _setting(
        10_000, "TOPICS_MAX_SSE_CONNECTIONS", "watch, work and WebSocket connections; 0 = off", minimum=0
    )
    max_sse_connections_per_key: int = _setting(
        1000, "TOPICS_MAX_SSE_CONNECTIONS_PER_KEY", "the same per key; 0 = off", minimum=0
    )
    max_watch_sessions_per_key: int = _setting(
        1000, "TOPICS_MAX_WATCH_SESSIONS_PER_KEY", "watch sessions per key; 0 = off", minimum=0
    )
    max_connections: int = _setting(
        0, "TOPICS_MAX_CONNECTIONS", "open connections; 0 = what descriptors allow, less a reserve", minimum=0
    )
    max_held_bytes: int = _setting(
        256 * MIB, "TOPICS_MAX_HELD_BYTES", "what is held for connections: unsent answers, unfinished bodies"
    )
    max_inflight_per_key: int = _setting(
        1000, "TOPICS_MAX_INFLIGHT_PER_KEY", "running requests per key; 0 = off", minimum=0
    )
    max_total_bytes: int = _setting(
        0, "TOPICS_MAX_TOTAL_BYTES", "sizes of the live records of all topics; 0 = off", minimum=0
    )
    max_memory_bytes: int = _setting(
        0,
        "TOPICS_MAX_MEMORY_BYTES",
        "what is kept in memory, by estimate; 0 = three quarters of what the machine or its control group has",
        minimum=0,
    )
    max_metrics_topics: int = _setting(
        1000,
        "TOPICS_MAX_METRICS_TOPICS",
        "topics with metrics of their own: of more, the most active; 0 = none",
        minimum=0,
    )
    console: bool = _setting(True, "TOPICS_CONSOLE", "serve the console, at /console and to browsers at /")
    log_level: str = _setting("info", "TOPICS_LOG_LEVEL", "debug, info, warning or error", kind="level")
    access_log: bool = _setting(False, "TOPICS_ACCESS_LOG", "log every request")
    test_min_heartbeat_ms: int = _setting(
        1000, "TOPICS_TEST_MIN_HEARTBEAT_MS", "for tests: the lowest heartbeat_ms that is accepted"
    )

    @classmethod
    def load(cls, environ: Mapping[str, str] | None = None) -> "Settings":
        """Read the environment. A malformed variable raises, naming it."""
        return gather(environ=environ).settings

    def without_secrets(self) -> "Settings":
        """A copy in which secrets are empty."""
        return replace(self, api_keys="")

    @staticmethod
    def forget_secrets() -> None:
        """Take secrets out of this process's environment, so that no child inherits them."""
        for setting in fields(Settings):
            if setting.metadata["secret"]:
                os.environ.pop(variable_of(setting), None)


@dataclass(frozen=True, kw_only=True)
class ClientSettings:
    """What a client takes from the environment: where the server is, and its key."""

    url: str = "http://127.0.0.1:4000"
    token: str = field(default="", repr=False)
    token_file: str = ""  # with keys of single servers, where there are several

    @classmethod
    def load(cls, environ: Mapping[str, str] | None = None) -> "ClientSettings":
        """Read TOPICS_URL, TOPICS_TOKEN and TOPICS_TOKEN_FILE; a blank variable counts as unset."""
        environ = os.environ if environ is None else environ
        return cls(
            url=environ.get("TOPICS_URL", "").strip() or cls.url,
            token=environ.get("TOPICS_TOKEN", "").strip(),
            token_file=environ.get("TOPICS_TOKEN_FILE", "").strip(),
        )


def variable_of(setting: Field[Any]) -> str:
    return str(setting.metadata["variable"])


def flag_of(setting: Field[Any]) -> str:
    return "--" + setting.name.replace("_", "-")


def is_public(setting: Field[Any]) -> bool:
    """Whether it is for users: it has a flag and a key in the file, and is listed."""
    return not variable_of(setting).startswith("TOPICS_TEST_")


ALL: Final = fields(Settings)
PUBLIC: Final = tuple(filter(is_public, ALL))


class Origin(NamedTuple):
    """Where a value comes from, and under which name."""

    place: Literal["flag", "file", "environment", "default"]
    name: str = ""

    def __str__(self) -> str:
        return f"{self.place}: {self.name}" if self.name else self.place


@dataclass
class Gathered:
    """The settings in effect, where each comes from, and what the operator should hear."""

    settings: Settings
    origins: dict[str, Origin]
    notices: list[str]

    def take(self) -> Settings:
        """The settings; here they are without secrets from now on, and so is this process's environment."""
        settings, self.settings = self.settings, self.settings.without_secrets()
        Settings.forget_secrets()
        return settings


def gather(
    flags: Mapping[str, Any] | None = None,
    file: Mapping[str, Any] | None = None,
    environ: Mapping[str, str] | None = None,
    *,
    file_name: str = "the settings file",
) -> Gathered:
    """The settings of a command line, of a file, and of the environment; flags and keys go by the settings' names.

    Raises at a malformed value and at an unknown key, naming it. An unknown variable is a notice: others may have put
    it there.
    """
    environ = os.environ if environ is None else environ
    _check_keys(file or {}, file_name)
    variables = {one.name: text for one in ALL if (text := environ.get(variable_of(one), "").strip())}
    layers = (
        _read(flags or {}, lambda setting: Origin("flag", flag_of(setting))),
        _read(file or {}, lambda setting: Origin("file", f"{setting.name} in {file_name}")),
        _read(variables, lambda setting: Origin("environment", variable_of(setting))),
    )
    values: dict[str, Any] = {}
    origins = {one.name: Origin("default") for one in ALL}
    notices = _unknown_variables(environ)
    for read, places in layers:
        for name, value in read.items():
            if name not in values:
                values[name], origins[name] = value, places[name]
            elif values[name] != value and origins[name].place == "file":
                notices.append(f"{places[name].name} has no effect: {origins[name].name} wins over it")
    return Gathered(Settings(**values), origins, notices)


def _read(
    found: Mapping[str, Any], origin_of: Callable[[Field[Any]], Origin]
) -> tuple[dict[str, Any], dict[str, Origin]]:
    """The values of one place. A port in the host counts unless the same place has one of its own."""
    values: dict[str, Any] = {}
    origins: dict[str, Origin] = {}
    for setting in ALL:
        if (given := found.get(setting.name)) is not None:
            origins[setting.name] = origin_of(setting)
            values[setting.name] = _parse(setting, given, origins[setting.name].name)
    if "host" in values:
        values["host"], port = _split_host(origins["host"].name, values["host"])
        if port is not None and "port" not in values:
            values["port"], origins["port"] = port, origins["host"]
    return values, origins


def _check_keys(file: Mapping[str, Any], file_name: str) -> None:
    known = [setting.name for setting in PUBLIC]
    for key in file:
        if key not in known:
            close = nearest(key.replace("-", "_").lower().removeprefix("topics_"), known)
            hint = f"did you mean {close}?" if close else "topics serve --help lists the settings"
            raise ConfigurationError(f"{file_name}: there is no setting {quoted(key)}; {hint}")


def _unknown_variables(environ: Mapping[str, str]) -> list[str]:
    known = [*map(variable_of, ALL), *OTHER_VARIABLES]
    notices = []
    for name in sorted(environ):
        if name.startswith("TOPICS_") and name not in known and not name.startswith(OTHER_PREFIXES):
            close = next((one for one in known if one.lower() == name.lower()), None) or _near_variable(name, known)
            hint = f"did you mean {close}?" if close else "topics serve --help lists the settings"
            notices.append(f"{name} is set and is no setting; {hint}")
    return notices


def _near_variable(name: str, known: list[str]) -> str | None:
    """Compared without what all have in common, which would make everything alike."""
    close = nearest(name.removeprefix("TOPICS_"), [one.removeprefix("TOPICS_").lower() for one in known])
    return None if close is None else f"TOPICS_{close.upper()}"


def _parse(setting: Field[Any], given: Any, place: str) -> Any:
    """A value as text, or as the file has it: a number, true or false, a list of texts."""
    kind: Kind = setting.metadata["kind"]
    if kind == "flag":
        return _flag(given, place)
    if kind == "list" and isinstance(given, list) and all(isinstance(one, str) for one in given):
        return ",".join(given)
    if kind in ("count", "port", "size", "time"):
        return _number(setting, str(given) if type(given) is int else given, place)
    if not isinstance(given, str):
        raise ConfigurationError(f"{place} is not a string" + (" or a list of strings" if kind == "list" else ""))
    if not given.strip() and setting.default:
        raise ConfigurationError(f"{place} is empty")
    if kind == "level" and given.lower() not in LOG_LEVELS:
        raise ConfigurationError(f"{place} is {quoted(given)}; use {one_of(LOG_LEVELS)}")
    return given.lower() if kind == "level" else given.strip()


def _flag(given: Any, place: str) -> bool:
    if isinstance(given, str) and place.startswith("TOPICS_"):
        return given.lower() in ("1", "true")
    if not isinstance(given, bool):
        raise ConfigurationError(f"{place} is not true or false")
    return given


def _number(setting: Field[Any], text: Any, place: str) -> int:
    kind: Kind = setting.metadata["kind"]
    if not isinstance(text, str):
        raise ConfigurationError(
            f"{place} is not a whole number" + ("" if kind in ("count", "port") else " or a string")
        )
    reads: dict[str, Callable[[str], int]] = {"size": size_bytes, "time": duration_ms}
    try:
        number = reads.get(kind, _whole)(text)
    except ValueError as error:
        raise ConfigurationError(f"{place} is {quoted(text)}; {error}{_orchestrated(text)}") from None
    if number < (minimum := setting.metadata["minimum"]):
        raise ConfigurationError(f"{place} is {number}; it must be at least {minimum}")
    if kind == "port" and number > PORT_MAX:
        raise ConfigurationError(f"{place} names port {number}; it must be at most {PORT_MAX}")
    return number


def _orchestrated(text: str) -> str:
    if not text.startswith("tcp://"):
        return ""
    return ". Kubernetes sets this for a Service named topics: rename it, or set enableServiceLinks: false"


def _whole(text: str) -> int:
    if (number := whole(text.strip())) is None:
        raise ValueError(f"it must be a whole number of at most {DIGITS_MAX} digits")
    return number


def _split_host(place: str, host: str) -> tuple[str, int | None]:
    """Split `host:port` and `[v6]:port`; a bare address has no port."""
    if host.startswith("["):
        address, bracket, rest = host[1:].partition("]")
        if not address or not bracket or (rest and not rest.startswith(":")):
            raise ConfigurationError(f"{place} is {quoted(host)}; use [address] or [address]:port")
        return address, _host_port(place, rest[1:]) if rest else None
    if host.count(":") != 1:
        return host, None
    address, _, port = host.partition(":")
    if not address:
        raise ConfigurationError(f"{place} is {quoted(host)}; the address before the port is missing")
    return address, _host_port(place, port)


def _host_port(place: str, text: str) -> int:
    (setting,) = (one for one in ALL if one.name == "port")
    return _number(setting, text, place)
