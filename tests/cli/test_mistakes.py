"""Wrong values of options: the message names the value and what to write instead, in no library's words."""

import pytest

from tests.cli.conftest import Shell


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (
            ("put", "a", "--durability", "fsnyc"),
            "'--durability': 'fsnyc' is not one of ephemeral, memory, disk or fsync; did you mean fsync?",
        ),
        (("put", "a", "--type", "x"), "'--type': 'x' is not one of log or queue\n"),
        (("put", "a", "--cap-records", "-5"), "'--cap-records': -5 is too small; use 0 or more"),
        (("put", "a", "--cap-records", "many"), "'--cap-records': 'many' is not a whole number"),
        (("put", "a", "--cap-bytes", "much"), "'--cap-bytes': 'much' is not a size; write"),
        (("read", "a", "--count", "1.5"), "'1.5' is not a whole number"),
        (("report", "--seconds", "soon"), "'soon' is not a number"),
    ],
)
def test_a_wrong_value_is_named_with_what_to_write(shell: Shell, arguments: tuple[str, ...], said: str) -> None:
    answer = shell.run(*arguments)
    assert answer.code == 2 and said in answer.err
