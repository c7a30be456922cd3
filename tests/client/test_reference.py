"""The reference page says what the docstrings say, and has everything that the client exports."""

import inspect
from functools import cache

from tools import client_reference
from tools.client_reference import PAGE, fields_of, is_twin
from topics import client as api
from topics.client.errors import CODES


@cache
def page() -> str:
    return client_reference.page()


def test_the_page_is_what_would_be_written() -> None:
    """Write it with: python -m tools.client_reference"""
    assert PAGE.read_text() == page()


def test_the_page_has_every_class_method_and_code() -> None:
    text = page()
    for name in api.__all__:
        if inspect.isclass(getattr(api, name)) and not is_twin(name):
            assert f"### {name}\n" in text, name
    for name, _ in inspect.getmembers(api.Client, inspect.isfunction):
        assert name.startswith("_") or f"#### {name}\n" in text, name
    for code, kind in CODES.items():
        assert f"| `{kind.__name__}` | `{code}` |" in text


def test_a_field_that_a_subclass_declares_again_is_shown_once() -> None:
    fields = fields_of(api.Lost)
    assert len([field for field in fields if field.startswith("missed_estimate:")]) == 1
    assert [field.partition(":")[0] for field in fields][-2:] == ["topic", "missed_estimate"]


def test_nothing_of_the_asyncio_words_is_on_the_page() -> None:
    body = page().partition("## The client")[2]
    assert "await" not in body and "async" not in body.lower().replace("asyncio", "")
