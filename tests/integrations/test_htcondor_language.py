"""Words of a command in the language of HTCondor's submit descriptions; tests/htcondor asks HTCondor itself."""

import pytest

from holdfast.core.errors import UsageError
from holdfast.integrations.htcondor_language import (
    Statement,
    check_value,
    quote_arguments,
    quote_environment,
    read_statements,
    split_list,
)


@pytest.mark.parametrize(
    ("words", "value"),
    [
        (["train.py", "--lr", "0.1"], '"train.py --lr 0.1"'),
        (["a b"], "\"'a b'\""),
        (["it's"], "\"'it''s'\""),
        ([""], "\"''\""),
        (['say "hi"'], '"\'say ""hi""\'"'),
        (["$HOME", "$(pwd)"], '"$(DOLLAR)HOME $(DOLLAR)(pwd)"'),
        (["a\tb"], "\"'a\tb'\""),
        (["back\\slash\\"], '"back\\slash\\"'),
    ],
)
def test_words_are_quoted_as_htcondor_wants_them(words: list[str], value: str) -> None:
    assert quote_arguments(words) == value


@pytest.mark.parametrize("word", ["a\nb", "a\rb", "a\0b", "$$(OpSys)", "a$$b", "$(DOLLAR)", "$(dollar)"])
def test_words_that_htcondor_cannot_express_are_refused(word: str) -> None:
    with pytest.raises(UsageError):
        quote_arguments(["train.py", word])


def test_variables_are_quoted_as_words_are() -> None:
    assert quote_environment({"A": "1", "B": "it's 2"}) == "\"A=1 'B=it''s 2'\""


@pytest.mark.parametrize("value", ["a\nqueue 1000", "a\rb", "continued\\"])
def test_a_value_stays_on_its_line(value: str) -> None:
    with pytest.raises(UsageError, match="does not fit on a line"):
        check_value(value, "--set note")


def test_statements_are_read_with_their_lines() -> None:
    text = """\
# executable = no
Executable = a.py
arguments = one \\
   two
+Project = "x"
transform @=end
executable = inside
@end
if defined X
  memory = 1
endif
queue 3
"""

    assert [statement for statement in read_statements(text.splitlines()) if statement.name] == [
        Statement(1, 1, "executable", "a.py"),
        Statement(2, 3, "arguments", "one    two"),
        Statement(4, 4, "+project", '"x"'),
        Statement(8, 8, "if", "", 1),
        Statement(9, 9, "memory", "1", 1),
        Statement(10, 10, "endif", ""),
        Statement(11, 11, "queue", ""),
    ]


def test_lists_are_divided_by_commas() -> None:
    assert split_list(' a, b/c ,,"') == ["a", "b/c"]
