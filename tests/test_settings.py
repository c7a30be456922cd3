"""The environment variables of docs/contract.md, section 22, as `topics.settings` reads them."""

import re
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest

from topics.errors import ConfigurationError
from topics.settings import Settings

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


@pytest.mark.parametrize("variable", sorted(FIELDS))
def test_a_blank_variable_means_its_default(variable: str) -> None:
    assert Settings.load({variable: "  "}) == Settings()


@pytest.mark.parametrize("variable", NUMBERS)
@pytest.mark.parametrize(
    "text", ["many", "-1", "+1", "1.5", "1e3", "1_000", "0x10", "²", "١", pytest.param("9" * 5000, id="huge")]
)
def test_a_malformed_number_stops_the_start_with_its_name(variable: str, text: str) -> None:
    """SC5"""
    with pytest.raises(ConfigurationError, match=variable):
        Settings.load({variable: text})


@pytest.mark.parametrize("variable", sorted(set(NUMBERS) - {"TOPICS_PORT", *LIMITS_THAT_MAY_BE_OFF}))
def test_a_limit_below_its_minimum_stops_the_start_with_its_name(variable: str) -> None:
    """SC5"""
    with pytest.raises(ConfigurationError, match=f"{variable} is 0; it must be at least"):
        Settings.load({variable: "0"})


@pytest.mark.parametrize("variable", LIMITS_THAT_MAY_BE_OFF)
def test_zero_switches_a_resource_cap_off(variable: str) -> None:
    assert value_of(variable, "0") == 0


@pytest.mark.parametrize("variable", NUMBERS)
def test_a_number_is_read_with_blanks_around_it(variable: str) -> None:
    minimum = max(1, FIELDS[variable].metadata["minimum"])
    assert value_of(variable, f" {minimum} ") == minimum


@pytest.mark.parametrize("variable", FLAGS)
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


def test_the_source_of_each_value_is_named() -> None:
    sources = Settings.sources({"TOPICS_HOST": "localhost:8080", "TOPICS_MAX_LIMIT": "5", "TOPICS_DATA_DIR": " "})
    named = {name: source for name, source in sources.items() if source != "default"}
    assert named == {"host": "TOPICS_HOST", "port": "TOPICS_HOST", "max_limit": "TOPICS_MAX_LIMIT"}


def test_the_process_environment_is_read_when_none_is_given(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TOPICS_MAX_CLAIM", "7")
    assert Settings.load().max_claim == 7
    assert Settings.sources()["max_claim"] == "TOPICS_MAX_CLAIM"
