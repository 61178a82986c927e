"""Options of sbatch: what they say, and that what is written is read as it was meant."""

import math
import shlex

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.core.errors import UsageError
from holdfast.integrations.slurm_options import Notice, directive, last_value, limit_s, notice_of, read_options


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("90", 5400),
        ("90:30", 5430),
        ("1:30:00", 5400),
        ("1-12", 129_600),
        ("1-12:30", 131_400),
        ("1-12:30:15", 131_415),
        ("UNLIMITED", math.inf),
        ("0", math.inf),
        ("soon", None),
        ("1:2:3:4", None),
        ("-5", None),
        ("", None),
    ],
)
def test_a_limit_is_read_as_sbatch_reads_it(text, seconds):
    assert limit_s(text) == seconds


@pytest.mark.parametrize(
    ("text", "notice"),
    [
        ("USR1@120", Notice("USR1", 120, to_shell_only=False)),
        ("B:SIGUSR1@90", Notice("USR1", 90, to_shell_only=True)),
        ("RB:10@5", Notice("10", 5, to_shell_only=True)),
        ("R:USR2", Notice("USR2", 60, to_shell_only=False)),
        ("USR1@soon", None),
        ("", None),
        (None, None),
    ],
)
def test_a_notice_says_which_signal_when_and_to_whom(text, notice):
    assert notice_of(text) == notice


def test_long_short_and_glued_options_are_the_same():
    for words in (["--time=5"], ["--time", "5"], ["-t", "5"], ["-t5"], ["-t=5"]):
        assert last_value(read_options(words), "--time") == "5"


def test_of_two_options_the_later_counts():
    assert last_value(read_options(["-t", "5", "--requeue", "--time=6"]), "--time") == "6"


@pytest.mark.parametrize("words", [["python"], ["--time=5", "python"], ["-t", "5", "python"], ["-"]])
def test_a_word_that_belongs_to_no_option_is_refused(words):
    with pytest.raises(UsageError, match="is no option of sbatch"):
        read_options(words)


@given(st.lists(st.text(st.characters(codec="utf-8", categories=["L", "N", "P", "S", "Zs"])), min_size=1))
def test_a_line_for_sbatch_has_the_words_that_were_given_and_no_others(words):
    words = [word for word in words if word.isprintable()]

    line = directive(words)

    # Slurm reads double quotes and backslashes as shells do, but expands nothing.
    assert line.splitlines() == [line]
    assert shlex.split(line.removeprefix("#SBATCH"), comments=True) == words


@pytest.mark.parametrize("word", ["a\nb", "a\x00", "\x1b[31m", "a\rb", "\u2028"])
def test_a_control_character_never_comes_into_a_script(word):
    with pytest.raises(UsageError, match="control character"):
        directive([word])
