"""Settings: one field per environment variable, with default, unit and meaning.

The only module that reads the environment. `Settings()` is the default;
`Settings.load(environ)` reads and checks the variables, `Settings.sources(environ)`
says where each value comes from. Secrets are left out of the repr. `ClientSettings`
are those of a client.
"""

import os
from collections.abc import Mapping
from dataclasses import Field, dataclass, field, fields, replace
from typing import Any, Final

from topics.errors import ConfigurationError

MIB: Final = 1024 * 1024
SEGMENT_EVENTS_MIN: Final = 100  # a file of less costs more than what is in it, and a stop writes them all
SEGMENT_BYTES_MIN: Final = 64 * 1024
PORT_MAX: Final = 65_535
NUMBER_DIGITS_MAX: Final = 18  # below 2^63, whatever the digits
LOG_LEVELS: Final = ("debug", "info", "warning", "error")


def _setting(default: Any, variable: str, meaning: str, *, minimum: int = 1, secret: bool = False) -> Any:
    return field(
        default=default,
        repr=not secret,
        metadata={"variable": variable, "meaning": meaning, "minimum": minimum, "secret": secret},
    )


@dataclass(frozen=True, kw_only=True)
class Settings:
    """Everything that can be set from outside. Sizes are bytes, times milliseconds; 0 = off where it says so."""

    host: str = _setting("127.0.0.1", "TOPICS_HOST", "address to bind; host:port or [v6]:port is accepted")
    port: int = _setting(4000, "TOPICS_PORT", "port to bind; 0 = any free one", minimum=0)
    port_file: str = _setting("", "TOPICS_PORT_FILE", "after bind, host:port is written to this file")
    unix_socket: str = _setting("", "TOPICS_UNIX_SOCKET", "path of a Unix socket to listen on, too, for its owner")
    api_keys: str = _setting(
        "", "TOPICS_API_KEYS", "keys, comma-separated: key[:scopes[:prefixes]]; none = auth is off", secret=True
    )
    key_file: str = _setting("", "TOPICS_KEY_FILE", "file of keys, one per line: name scopes prefixes sha256:HEX")
    allow_insecure_no_auth: bool = _setting(
        False, "TOPICS_ALLOW_INSECURE_NO_AUTH", "allow a bind beyond loopback without keys"
    )
    probe_auth: bool = _setting(False, "TOPICS_PROBE_AUTH", "health and ready need a key, too")
    cors_origins: str = _setting("", "TOPICS_CORS_ORIGINS", "origins allowed by CORS, comma-separated; none = off")
    allowed_hosts: str = _setting(
        "", "TOPICS_ALLOWED_HOSTS", "without keys, on loopback: further names that Host may have, comma-separated"
    )
    data_dir: str = _setting("./topics-data", "TOPICS_DATA_DIR", "data directory, created if absent")
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
    log_level: str = _setting("info", "TOPICS_LOG_LEVEL", "debug, info, warning or error")
    access_log: bool = _setting(False, "TOPICS_ACCESS_LOG", "log every request")
    test_min_heartbeat_ms: int = _setting(
        1000, "TOPICS_TEST_MIN_HEARTBEAT_MS", "for tests: the lowest heartbeat_ms that is accepted"
    )

    @classmethod
    def load(cls, environ: Mapping[str, str] | None = None) -> "Settings":
        """Read the environment. A malformed variable raises, naming it."""
        return cls(**_read(os.environ if environ is None else environ))

    def without_secrets(self) -> "Settings":
        """A copy in which secrets are empty."""
        return replace(self, api_keys="")

    @staticmethod
    def forget_secrets() -> None:
        """Take secrets out of this process's environment, so that no child inherits them."""
        for setting in fields(Settings):
            if setting.metadata["secret"]:
                os.environ.pop(_variable(setting), None)

    @staticmethod
    def sources(environ: Mapping[str, str] | None = None) -> dict[str, str]:
        """Where each field comes from: the name of its variable, or `default`."""
        environ = os.environ if environ is None else environ
        values = _read(environ)
        sources = {f.name: _variable(f) if _text(f, environ) else "default" for f in fields(Settings)}
        if "port" in values and sources["port"] == "default":
            sources["port"] = "TOPICS_HOST"
        return sources


@dataclass(frozen=True, kw_only=True)
class ClientSettings:
    """What a client takes from the environment: where the server is, and its key."""

    url: str = "http://127.0.0.1:4000"
    token: str = field(default="", repr=False)

    @classmethod
    def load(cls, environ: Mapping[str, str] | None = None) -> "ClientSettings":
        """Read TOPICS_URL and TOPICS_TOKEN; a blank variable counts as unset."""
        environ = os.environ if environ is None else environ
        return cls(
            url=environ.get("TOPICS_URL", "").strip() or cls.url,
            token=environ.get("TOPICS_TOKEN", "").strip(),
        )


def _variable(setting: Field[Any]) -> str:
    return str(setting.metadata["variable"])


def _text(setting: Field[Any], environ: Mapping[str, str]) -> str:
    """The variable's text without surrounding blanks; a blank variable counts as unset."""
    return environ.get(_variable(setting), "").strip()


def _read(environ: Mapping[str, str]) -> dict[str, Any]:
    values = {f.name: _parse(f, text) for f in fields(Settings) if (text := _text(f, environ))}
    if "host" in values:
        values["host"], port = _split_host(values["host"])
        if port is not None:
            values.setdefault("port", port)
    return values


def _parse(setting: Field[Any], text: str) -> Any:
    variable, default = _variable(setting), setting.default
    if isinstance(default, bool):
        return text.lower() in ("1", "true")
    if variable == "TOPICS_LOG_LEVEL":
        if text.lower() not in LOG_LEVELS:
            raise ConfigurationError(f"{variable} is {text!r}; use one of {', '.join(LOG_LEVELS)}")
        return text.lower()
    if isinstance(default, str):
        return text
    if variable == "TOPICS_PORT":
        return _port(variable, text)
    return _number(variable, text, setting.metadata["minimum"])


def _number(variable: str, text: str, minimum: int) -> int:
    if not text.isascii() or not text.isdigit() or len(text) > NUMBER_DIGITS_MAX:
        raise ConfigurationError(
            f"{variable} is {text!r}; it must be a whole number of at most {NUMBER_DIGITS_MAX} digits"
        )
    number = int(text)
    if number < minimum:
        raise ConfigurationError(f"{variable} is {number}; it must be at least {minimum}")
    return number


def _port(variable: str, text: str) -> int:
    port = _number(variable, text, 0)
    if port > PORT_MAX:
        raise ConfigurationError(f"{variable} names port {port}; it must be at most {PORT_MAX}")
    return port


def _split_host(host: str) -> tuple[str, int | None]:
    """Split `host:port` and `[v6]:port`; a bare address has no port."""
    if host.startswith("["):
        address, bracket, rest = host[1:].partition("]")
        if not address or not bracket or (rest and not rest.startswith(":")):
            raise ConfigurationError(f"TOPICS_HOST is {host!r}; use [address] or [address]:port")
        return address, _port("TOPICS_HOST", rest[1:]) if rest else None
    if host.count(":") != 1:
        return host, None
    address, _, port = host.partition(":")
    if not address:
        raise ConfigurationError(f"TOPICS_HOST is {host!r}; the address before the port is missing")
    return address, _port("TOPICS_HOST", port)
