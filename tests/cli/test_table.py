"""The table: aligned, within the width, never obeying what it shows."""

import io

from holdfast.cli.table import Cell, Column, Style, fit, render, use_colour


def _lines(columns, rows, width=None, colour=False):
    return render(columns, rows, width=width, colour=colour).lines


def test_columns_are_aligned_to_the_side_they_ask_for():
    columns = [Column("name"), Column("n", right=True)]

    assert _lines(columns, [["a", "1"], ["bbbbb", "100"]]) == ["name     n", "a        1", "bbbbb  100"]


def test_a_column_in_which_nothing_stands_is_not_shown():
    columns = [Column("name"), Column("note"), Column("n")]

    assert _lines(columns, [["a", "", "1"]]) == ["name  n", "a     1"]


def test_a_long_text_gives_way_first_then_columns_from_the_least_important():
    columns = [Column("step"), Column("loss", drop=10), Column("accuracy", drop=11), Column("note", shrink=True)]
    row = ["1000", "0.12345", "0.98765", "a note that goes on and on"]

    wide, middle, narrow = (render(columns, [row], width=width, colour=False) for width in (80, 40, 24))

    assert wide.lines[1] == "1000  0.12345  0.98765   a note that goes on and on"
    assert middle.lines[1] == "1000  0.12345  0.98765   a note that go…"
    assert narrow.lines[1] == "1000  0.12345  a note t…"
    assert (wide.left_out, middle.left_out, narrow.left_out) == ([], [], ["accuracy"])
    assert all(len(line) <= 24 for line in narrow.lines)


def test_paths_are_cut_at_their_beginning_and_not_before_columns_are_left_out():
    columns = [Column("array", shrink=True, least=20, keep_end=True), Column("type", drop=1), Column("n")]
    row = ["optimizer.state[0].exp_avg_sq", "float32[256, 8]", "1"]

    lines = {width: render(columns, [row], width=width, colour=False) for width in (45, 30, 16)}

    assert lines[45].lines[1] == "…izer.state[0].exp_avg_sq  float32[256, 8]  1"
    assert (lines[30].lines[1], lines[30].left_out) == ("…imizer.state[0].exp_avg_sq  1", ["type"])
    assert lines[16].lines[1] == "…].exp_avg_sq  1"


def test_colours_do_not_disturb_the_alignment():
    columns = [Column("state"), Column("n")]
    rows = [[Cell("bad", Style.RED), "1"], [Cell("verified", Style.GREEN), "2"]]

    painted = _lines(columns, rows, colour=True)

    assert painted[1] == "\x1b[31mbad\x1b[0m       1"
    assert _lines(columns, rows)[1] == "bad       1"


def test_control_characters_in_data_are_shown_and_not_obeyed():
    lines = _lines([Column("note")], [["red \x1b[31m alert\nforged line"]])

    assert lines == ["note", "red \\x1b[31m alert\\nforged line"]


def test_a_title_is_data_as_well_and_gets_the_room_that_it_takes():
    assert _lines([Column("\x1b[31m"), Column("n")], [["1", "2"]]) == ["\\x1b[31m  n", "1         2"]


def test_a_column_paints_the_texts_that_bring_no_style_and_nothing_that_it_added():
    columns = [Column("step", right=True, style=Style.BOLD), Column("state", style=Style.BOLD)]
    rows = [["1", Cell("bad", Style.RED)], [Cell("10", Style.DIM), ""]]

    painted = _lines(columns, rows, colour=True)

    assert painted[1:] == ["   \x1b[1m1\x1b[0m  \x1b[31mbad\x1b[0m", "  \x1b[2m10\x1b[0m"]


def test_wide_characters_count_twice():
    assert _lines([Column("a"), Column("b")], [["学習", "x"], ["abcd", "y"]])[1:] == ["学習  x", "abcd  y"]
    assert fit("学習学習", 5) == "学習…"


def test_colours_are_for_terminals_of_people_who_want_them(monkeypatch):
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.delenv("NO_COLOR", raising=False)

    assert use_colour(Terminal())
    assert not use_colour(io.StringIO())
    monkeypatch.setenv("NO_COLOR", "1")
    assert not use_colour(Terminal())
