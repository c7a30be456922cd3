"""The settings: the variables of docs/contract.md, section 22, and the same as flags and keys of a file."""

import os
import re
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.effort import swept
from topics.errors import ConfigurationError
from topics.settings import PUBLIC, Gathered, Settings, gather, variable_of
from topics.units import duration_ms, plain_duration, plain_size, size_bytes

CONTRACT = Path(__file__).parent.parent / "docs" / "contract.md"
FIELDS = {f.metadata["variable"]: f for f in fields(Settings)}
NUMBERS = [variable for variable, f in FIELDS.items() if type(f.default) is int]
LIMITS_THAT_MAY_BE_OFF = [
    "TOPICS_MAX_TOPICS",
    "TOPICS_MAX_ROUTERS",
    "TOPICS_MAX_CURSORS",
    "TOPICS_MAX_WATCH_SESSIONS",
    "TOPICS_MAX_SSE_CONNECTIONS",
    "TOPICS_MAX_SSE_CONNECTIONS_PER_KEY",
    "TOPICS_MAX_WATCH_SESSIONS_PER_KEY",
    "TOPICS_MAX_CONNECTIONS",
    "TOPICS_MAX_INFLIGHT_PER_KEY",
    "TOPICS_MAX_METRICS_TOPICS",
    "TOPICS_MAX_TOTAL_BYTES",
    "TOPICS_MAX_MEMORY_BYTES",
]
FLAGS = [variable for variable, f in FIELDS.items() if isinstance(f.default, bool)]


def load(**environ: str) -> Settings:
    return Settings.load(environ)


def value_of(variable: str, text: str) -> Any:
    return getattr(Settings.load({variable: text}), FIELDS[variable].name)


def documented_defaults() -> dict[str, Any]:
    """The variables of the contract's table with their defaults as Python values."""
    section = CONTRACT.read_text().split("## 22. Environment variables")[1].split("\n## ")[0]
    rows = re.findall(r"^\| (TOPICS_\w+)(?: \(\+\))? \| ([^|]+) \|", section, re.MULTILINE)
    return {variable: default_value(text.removesuffix(" (+)").strip()) for variable, text in rows}


def default_value(text: str) -> Any:
    if text in ("unset", "off"):
        return "" if text == "unset" else False
    number = re.match(r"(\d+)(, 0 = off| = off)?$", text)
    return int(number[1]) if number else text


def test_every_variable_of_the_contract_is_a_setting_with_the_documented_default() -> None:
    expected = documented_defaults() | {"TOPICS_TEST_MIN_HEARTBEAT_MS": 1000}
    assert len(expected) >= 28
    assert {v: FIELDS[v].default for v in expected} == expected


def test_an_empty_environment_gives_the_defaults() -> None:
    settings = load()
    assert settings == Settings()
    assert (settings.host, settings.port) == ("127.0.0.1", 4000)


@swept("variable", sorted(FIELDS))
def test_a_blank_variable_means_its_default(variable: str) -> None:
    assert Settings.load({variable: "  "}) == Settings()


@swept("variable", NUMBERS)
@pytest.mark.parametrize(
    "text", ["many", "-1", "+1", "1.5", "1e3", "1_000", "0x10", "²", "١", pytest.param("9" * 5000, id="huge")]
)
def test_a_malformed_number_stops_the_start_with_its_name(variable: str, text: str) -> None:
    """SC5"""
    with pytest.raises(ConfigurationError, match=variable):
        Settings.load({variable: text})


@swept("variable", sorted(set(NUMBERS) - {"TOPICS_PORT", *LIMITS_THAT_MAY_BE_OFF}))
def test_a_limit_below_its_minimum_stops_the_start_with_its_name(variable: str) -> None:
    """SC5"""
    with pytest.raises(ConfigurationError, match=f"{variable} is 0; it must be at least"):
        Settings.load({variable: "0"})


@swept("variable", LIMITS_THAT_MAY_BE_OFF)
def test_zero_switches_a_resource_cap_off(variable: str) -> None:
    assert value_of(variable, "0") == 0


@swept("variable", NUMBERS)
def test_a_number_is_read_with_blanks_around_it(variable: str) -> None:
    minimum = max(1, FIELDS[variable].metadata["minimum"])
    assert value_of(variable, f" {minimum} ") == minimum


@swept("variable", FLAGS)
@pytest.mark.parametrize(("text", "on"), [("1", True), ("true", True), ("0", False), ("false", False), ("yes", False)])
def test_a_flag_is_on_for_1_and_true_only(variable: str, text: str, on: bool) -> None:
    assert value_of(variable, text) is on


@pytest.mark.parametrize(
    ("text", "host", "port"),
    [
        ("0.0.0.0", "0.0.0.0", 4000),
        ("localhost:8080", "localhost", 8080),
        ("localhost:0", "localhost", 0),
        ("::1", "::1", 4000),
        ("[::1]", "::1", 4000),
        ("[::1]:8080", "::1", 8080),
    ],
)
def test_the_host_may_carry_a_port(text: str, host: str, port: int) -> None:
    settings = load(TOPICS_HOST=text)
    assert (settings.host, settings.port) == (host, port)


def test_a_set_port_wins_over_the_port_in_the_host() -> None:
    settings = load(TOPICS_HOST="localhost:8080", TOPICS_PORT="0")
    assert (settings.host, settings.port) == ("localhost", 0)


@pytest.mark.parametrize(
    "text",
    [
        ":4000",
        "localhost:",
        "localhost:http",
        "localhost:²",
        "localhost:70000",
        "[::1",
        "[::1]4000",
        "[::1]:",
        "[::1]:x",
        "[]:1",
    ],
)
def test_a_malformed_host_stops_the_start_with_its_name(text: str) -> None:
    """SC5: an empty address in particular never turns into a bind to all interfaces."""
    with pytest.raises(ConfigurationError, match="TOPICS_HOST"):
        load(TOPICS_HOST=text)


def test_a_port_beyond_the_last_one_stops_the_start() -> None:
    """SC5"""
    assert load(TOPICS_PORT="65535").port == 65535
    with pytest.raises(ConfigurationError, match="TOPICS_PORT"):
        load(TOPICS_PORT="65536")


def test_the_log_level_is_one_of_four_in_any_letter_case() -> None:
    """SC5"""
    assert load(TOPICS_LOG_LEVEL="WARNING").log_level == "warning"
    with pytest.raises(ConfigurationError, match="TOPICS_LOG_LEVEL"):
        load(TOPICS_LOG_LEVEL="loud")


def test_keys_are_kept_as_text_and_stay_out_of_the_repr() -> None:
    settings = load(TOPICS_API_KEYS="s3cret:read:a|b,other")
    assert settings.api_keys == "s3cret:read:a|b,other"
    assert "s3cret" not in repr(settings)


def named(found: Gathered) -> dict[str, str]:
    return {name: str(origin) for name, origin in found.origins.items() if origin.place != "default"}


def test_the_source_of_each_value_is_named() -> None:
    found = gather(environ={"TOPICS_HOST": "localhost:8080", "TOPICS_MAX_LIMIT": "5", "TOPICS_DATA_DIR": " "})
    assert named(found) == {
        "host": "environment: TOPICS_HOST",
        "port": "environment: TOPICS_HOST",
        "max_limit": "environment: TOPICS_MAX_LIMIT",
    }


def test_the_process_environment_is_read_when_none_is_given(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TOPICS_MAX_CLAIM", "7")
    assert Settings.load().max_claim == 7
    assert named(gather())["max_claim"] == "environment: TOPICS_MAX_CLAIM"


# --- flags and the file


def test_a_flag_wins_over_the_file_and_the_file_over_the_environment() -> None:
    found = gather(
        {"max_limit": "1", "max_claim": None},
        {"max_limit": 2, "max_claim": 2, "data_dir": "here"},
        {"TOPICS_MAX_LIMIT": "3", "TOPICS_MAX_CLAIM": "3", "TOPICS_MAX_TOPICS": "3"},
        file_name="t.toml",
    )
    settings = found.settings
    assert (settings.max_limit, settings.max_claim, settings.max_topics, settings.data_dir) == (1, 2, 3, "here")
    assert named(found) == {
        "max_limit": "flag: --max-limit",
        "max_claim": "file: max_claim in t.toml",
        "data_dir": "file: data_dir in t.toml",
        "max_topics": "environment: TOPICS_MAX_TOPICS",
    }
    assert found.notices == ["TOPICS_MAX_CLAIM has no effect: max_claim in t.toml wins over it"]


def test_a_host_brings_its_port_along_from_where_it_stands() -> None:
    found = gather({"host": "localhost:5000"}, {"port": 4001}, {"TOPICS_PORT": "4002"})
    assert (found.settings.host, found.settings.port) == ("localhost", 5000)
    found = gather({"host": "localhost"}, {"port": 4001}, {"TOPICS_HOST": "other:4002"})
    assert (found.settings.host, found.settings.port) == ("localhost", 4001)
    found = gather({"host": "localhost:5000", "port": "0"})
    assert found.settings.port == 0


@pytest.mark.parametrize(
    ("field", "given", "value"),
    [
        ("cache_bytes", "64MiB", 64 * 1024**2),
        ("cache_bytes", "1.5GiB", 3 * 1024**3 // 2),
        ("cache_bytes", "10MB", 10**7),
        ("cache_bytes", 2**20, 2**20),
        ("max_total_bytes", "0", 0),
        ("segment_max_age_ms", "1h30m", 5_400_000),
        ("segment_max_age_ms", 5, 5),
        ("cors_origins", ["https://a.example", "https://b.example"], "https://a.example,https://b.example"),
        ("cors_origins", "https://a.example", "https://a.example"),
        ("console", False, False),
        ("log_level", "WARNING", "warning"),
    ],
)
def test_a_value_of_the_file_is_read(field: str, given: Any, value: Any) -> None:
    assert getattr(gather(file={field: given}, environ={}).settings, field) == value


@pytest.mark.parametrize("variable", ["TOPICS_CACHE_BYTES", "TOPICS_MAX_HELD_BYTES"])
def test_a_variable_may_have_a_unit(variable: str) -> None:
    assert value_of(variable, "64MiB") == 64 * 1024**2
    assert value_of("TOPICS_SEGMENT_MAX_AGE_MS", "2h") == 7_200_000


@pytest.mark.parametrize(
    ("field", "given"),
    [
        ("cache_bytes", "64 parsecs"),
        ("cache_bytes", "1h"),
        ("cache_bytes", "1KiB"),
        ("cache_bytes", "9" * 17 + "TiB"),
        ("cache_bytes", 1.5e9),
        ("cache_bytes", -1),
        ("cache_bytes", True),
        ("cache_bytes", []),
        ("max_limit", "1k"),
        ("segment_max_age_ms", "64MiB"),
        ("segment_max_age_ms", {"h": 1}),
        ("console", "yes"),
        ("console", 1),
        ("host", 5),
        ("host", ""),
        ("host", ":4000"),
        ("data_dir", " "),
        ("data_dir", ["a"]),
        ("cors_origins", [1]),
        ("log_level", "loud"),
        ("port", 65536),
        ("port", "4000ms"),
    ],
)
def test_a_bad_value_stops_the_start_with_its_place(field: str, given: Any) -> None:
    """SC5: an empty address in particular never turns into a bind to all interfaces."""
    with pytest.raises(ConfigurationError, match=f"{field} in t.toml"):
        gather(file={field: given}, environ={}, file_name="t.toml")
    if isinstance(given, str):
        with pytest.raises(ConfigurationError, match=f"--{field.replace('_', '-')} "):
            gather({field: given}, environ={})


@pytest.mark.parametrize(
    ("key", "hint"),
    [
        ("data-dir", "did you mean data_dir?"),
        ("TOPICS_DATA_DIR", "did you mean data_dir?"),
        ("cache_byte", "did you mean cache_bytes?"),
        ("server", "topics serve --help"),
        ("test_min_heartbeat_ms", "topics serve --help"),
    ],
)
def test_an_unknown_key_of_the_file_is_refused_with_the_nearest_one(key: str, hint: str) -> None:
    with pytest.raises(ConfigurationError, match=re.escape(hint)) as error:
        gather(file={key: 1}, environ={}, file_name="t.toml")
    assert f't.toml: there is no setting "{key}"' in error.value.message


def test_an_unknown_variable_is_named_with_the_nearest_one_and_stops_nothing() -> None:
    environ = {
        "TOPICS_DATADIR": "x",
        "TOPICS_SERVICE_PORT_4000_TCP": "x",
        "TOPICS_URL": "http://x",
        "TOPICS_TOKEN": "s3cret",
        "TOPICS_TEST_MIN_HEARTBEAT_MS": "5",
        "TOPICS_JOB_SEQ": "5",
        "OTHER": "x",
    }
    found = gather(environ=environ)
    assert found.notices == [
        "TOPICS_DATADIR is set and is no setting; did you mean TOPICS_DATA_DIR?",
        "TOPICS_SERVICE_PORT_4000_TCP is set and is no setting; topics serve --help lists the settings",
    ]
    assert found.settings.test_min_heartbeat_ms == 5


def test_what_kubernetes_puts_into_topics_port_is_explained() -> None:
    with pytest.raises(ConfigurationError, match=r"TOPICS_PORT is .*enableServiceLinks"):
        load(TOPICS_PORT="tcp://10.0.0.1:4000")


def test_settings_of_tests_are_not_among_those_of_users() -> None:
    assert {variable_of(one) for one in fields(Settings)} - {variable_of(one) for one in PUBLIC} == {
        "TOPICS_TEST_MIN_HEARTBEAT_MS"
    }


def test_what_was_taken_is_nowhere_else(monkeypatch: pytest.MonkeyPatch) -> None:
    """AU3"""
    monkeypatch.setenv("TOPICS_API_KEYS", "s3cret")
    found = gather()
    assert found.take().api_keys == "s3cret"
    assert found.settings.api_keys == "" and "TOPICS_API_KEYS" not in os.environ


@given(count=st.integers(0, 10**15))
def test_a_size_and_a_time_are_read_as_they_are_shown(count: int) -> None:
    assert size_bytes(plain_size(count)) == count
    assert duration_ms(plain_duration(count)) == count
