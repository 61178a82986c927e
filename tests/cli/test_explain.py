"""`explain`: why checkpoints are made as often as they are, told from a journal that nobody vouches for."""

import json
import os
import pty
import re
import subprocess
import sys
import unicodedata
from pathlib import Path
from xml.etree import ElementTree

import pytest

import holdfast
from holdfast.cli.figure import _draw_png
from holdfast.engine.pace_report import report_pace
from holdfast.testing import FakeClock
from tests.cli.paced_run import THREE_ATTEMPTS, Diary, write_run

_SOURCE = str(Path(holdfast.__file__).parents[1])
_SVG = "{http://www.w3.org/2000/svg}"


@pytest.fixture
def paced(tmp_path, monkeypatch):
    """A run of three attempts at `run`, in the directory that the test works in."""
    monkeypatch.chdir(tmp_path)
    return write_run("run")


def _columns(line):
    return sum(2 if unicodedata.east_asian_width(c) in "WF" else 1 for c in line)


def test_the_interval_comes_first_with_the_reason_and_what_it_costs(paced, holdfast_command):
    answer = holdfast_command("explain", "run")

    lines = answer.out.splitlines()
    assert answer.code == 0
    assert lines[0] == "run  every 88 steps (≈ 2.9 min)"
    assert (
        lines[1]
        == "  why            failures decides (least time lost at a failure every 3.4 h; at first 12 h is assumed)"
    )
    assert lines[2] == "  kept           88 is kept: failures wants 91 by now, but 3.4 % is too little to change it"
    assert lines[3] == "  at stake       1.8 min of work on average, 3.3 min at worst, if the machine dies"
    assert lines[4] == "  overhead       1.7 % lately, 2.4 % in all; the limit is 3.5 %"
    assert lines[5] == "  failures       2 killed, of 3 attempts and ≥ 7.3 h of running"
    assert " ".join("".join(lines[6:8]).split()) == (
        "expected one failure every 3.4 h: one a day is assumed (or auto's mtbf) before anything is known; "
        "2 seen before attempt 3"
    )
    assert lines[8] == "  checkpoints    120 durable, 1 failed"


@pytest.mark.parametrize(("steps", "wants", "apart"), [(15, 14, "6.7 %"), (2, 1, "part of a step")])
def test_an_interval_that_is_a_step_off_its_rule_is_said_to_be_kept(
    tmp_path, monkeypatch, holdfast_command, steps, wants, apart
):
    monkeypatch.chdir(tmp_path)
    diary = Diary()
    diary.begin()
    diary.pace(60, 30, steps, "overhead", wants=wants)
    write_run("run", diary.events)

    said = f"{steps} is kept: overhead wants {wants} by now, but {apart} is too little to change it"
    assert f"  kept           {said}\n" in holdfast_command("explain", "run").out
    assert json.loads(holdfast_command("explain", "run", "--json").out)["now"]["kept_against"] == wants


def test_measurements_and_the_wish_of_each_rule_are_shown_and_the_winner_is_marked(paced, holdfast_command):
    lines = holdfast_command("explain", "run").out.splitlines()

    measured = lines[lines.index("Measured") + 1 :][:4]
    assert [line.split("  ")[1] for line in measured] == ["a step takes", "stall", "slow-down", "until durable"]
    assert "140 ms" in measured[1]
    rules = lines[lines.index("What each rule wants") + 2 :][:4]
    assert [line[2:].split()[:3] for line in rules] == [
        ["durable", "14", "steps"],
        ["overhead", "19", "steps"],
        ["failures", "91", "steps"],
        ["lose_at_most", "280", "steps"],
    ]
    assert [line[0] for line in rules] == [" ", " ", "▸", " "]
    assert rules[3].endswith("≈ 9.3 min  no more than 10 min lost, the time to durable included")


def test_sensors_deadlines_attempts_and_changes_are_listed_oldest_first(paced, holdfast_command):
    out = holdfast_command("explain", "run").out

    assert "2  4.5 h  memory       × 8  the OOM killer may come (some avg10=41.2" in out
    assert "save and stop          Slurm   1.1 min  1 min 3 s left; a step takes up to 3.1 s" in out
    assert "stopped at step 12902                   nothing is lost\n" in out
    attempts = out.partition("\nAttempts\n")[2].partition("\n\n")[0].splitlines()
    assert [line.split()[-4:] for line in attempts[1:3]] == [
        ["≥", "4457", "33", "killed"],
        ["≥", "8386", "35", "killed"],
    ]
    assert attempts[3].split() == "3 2026-11-16 01:46 2.5 h 8386 12902 52 stopped itself".split()
    changes = out.partition("\nHow it changed\n")[2].partition("\n\n")[0].splitlines()
    assert [line.split()[3:5] for line in changes[2:]] == [
        ["13", "40"], ["320", "165"], ["4320", "107"], ["6080", "190"],
        ["7930", "38"], ["8400", "88"], ["9880", "62"], ["11080", "88"],
    ]  # fmt: skip
    assert changes[1].split()[:6] == ["1", "22", "s", "11", "–", "first"]


def test_the_newest_changes_are_listed_and_the_rest_is_counted(paced, holdfast_command):
    out = holdfast_command("explain", "run", "--changes", 2).out

    changes = out.partition("\nHow it changed\n")[2].partition("\n\n")[0].splitlines()
    assert len(changes) == 4
    assert changes[1].split()[3] == "9880"
    assert changes[3] == "and 7 before that, which --changes N lists"


def test_the_plot_has_the_curve_and_a_mark_for_each_thing_that_happened(paced, holdfast_command, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")

    plot = holdfast_command("explain", "run").out.partition("Steps between checkpoints")[2].splitlines()

    assert plot[1].split() == ["×", "o", "!!!×", "!!!!!!!!", "■"]
    restart = plot[1].index("×")
    assert [line[restart] for line in plot[2:11]] == ["┊", "┐", "│", "│", "└", "┊", "┊", "┊", "┊"]
    assert plot[-2:] == [
        "× killed   o a save failed   ! sensors saw trouble   ■ stopped itself",
        "┊ a new attempt begins",
    ]
    assert plot[2].startswith("200 ┤")
    assert plot[12].split() == ["0", "1", "h", "2", "h", "3", "h", "4", "h", "5", "h", "6", "h", "7", "h"]


@pytest.mark.parametrize("columns", [40, 60, 80, 120])
@pytest.mark.parametrize("ascii_only", [False, True])
def test_nothing_is_wider_than_the_terminal(paced, columns, ascii_only):
    arguments = ["--ascii"] if ascii_only else []

    done = _run("explain", "run", *arguments, COLUMNS=str(columns))

    assert max(map(_columns, done.splitlines())) <= columns
    assert done.isascii() == ascii_only
    assert "no more than 10 min lost" in " ".join(done.split())


def _run(*arguments, encoding="utf-8", **environment):
    command = [sys.executable, "-m", "holdfast", *arguments]
    variables = {"PATH": os.environ["PATH"], "PYTHONPATH": _SOURCE, "PYTHONIOENCODING": encoding, **environment}
    done = subprocess.run(command, capture_output=True, env=variables, check=True)
    assert not done.stderr
    return done.stdout.decode(encoding)


def test_a_terminal_without_unicode_gets_characters_that_look_alike(paced):
    plain = _run("explain", "run", encoding="ascii", COLUMNS="80")

    assert plain.startswith("run  every 88 steps (~ 2.9 min)\n")
    assert re.search(r"\n200 \+ +: +\+-+\+ +:\n", plain)
    assert "x killed   o a save failed" in plain
    assert "\\u" not in plain


def test_an_encoding_that_knows_some_of_them_is_used_as_far_as_it_goes(paced):
    shown = _run("explain", "run", encoding="latin-1", COLUMNS="80")

    assert "memory       × 8" in shown
    assert "x killed   o a save failed" in shown


def test_colours_are_for_terminals_of_people_who_want_them(paced):
    def on_terminal(**environment):
        ours, theirs = pty.openpty()
        command = [sys.executable, "-m", "holdfast", "explain", "run"]
        variables = {"PATH": os.environ["PATH"], "PYTHONPATH": _SOURCE, "COLUMNS": "80", "TERM": "xterm", **environment}
        with subprocess.Popen(command, stdout=theirs, env={**variables, "PYTHONUTF8": "1"}):
            os.close(theirs)
            said = b""
            try:
                while block := os.read(ours, 1 << 16):
                    said += block
            except OSError:  # the other side is closed
                pass
        os.close(ours)
        return said.decode()

    coloured, plain = on_terminal(), on_terminal(NO_COLOR="1")

    assert "\x1b[36m┌" in coloured
    assert "\x1b[31m×\x1b[0m" in coloured
    assert "\x1b" not in plain
    assert "┌" in plain


def test_a_pipe_gets_whole_texts_and_a_plot_of_ordinary_width(paced, holdfast_command):
    out = holdfast_command("explain", "run").out

    assert "…" not in out
    assert max(map(len, out.partition("Steps between checkpoints")[2].splitlines())) <= 80


def test_json_holds_all_of_it_whatever_is_shown(paced, holdfast_command):
    document = json.loads(holdfast_command("explain", "run", "--json", "--changes", 1).out)

    assert document["now"]["interval_steps"] == 88
    assert document["now"]["interval_s"] == 176
    assert document["now"]["kept_against"] == 91
    assert document["now"]["rules"][0]["name"] == "durable"
    assert len(document["changes"]) == 9
    assert [attempt["ending"] for attempt in document["attempts"]] == ["killed", "killed", "stopped itself"]
    assert document["killed"] == 2
    assert document["deadlines"][0]["left_s"] == 63
    assert document["stops"][0]["lost_steps"] == 0
    assert document["sensed"][0]["risk"] == 8
    assert document["checkpoints"]["committed"] == 120
    assert document["odd_values"] == 0


def test_a_plot_is_written_as_svg_without_a_library(paced, holdfast_command):
    answer = holdfast_command("explain", "run", "--plot", "pace.svg")

    root = ElementTree.parse("pace.svg").getroot()
    texts = ["".join(element.itertext()) for element in root.iter(f"{_SVG}text")]
    assert answer.out.endswith("plot: pace.svg\n")
    assert root.tag == f"{_SVG}svg"
    assert {"run", "attempt 2", "attempt 3", "Overhead", "killed, then restarted", "7 h"} <= set(texts)
    assert len(list(root.iter(f"{_SVG}circle"))) == 2  # the save that failed, and the legend
    for element in root.iter():
        for name in ("x", "y", "cx", "cy", "x1", "x2", "y1", "y2"):
            assert 0 <= float(element.get(name, "0")) <= 900


def _legend_of(path):
    """The words below the picture."""
    texts = [(element.get("y"), "".join(element.itertext())) for element in ElementTree.parse(path).iter(f"{_SVG}text")]
    return [text for y, text in texts if float(y) > 500]


def test_the_legend_of_a_plot_names_each_thing_that_is_drawn_and_nothing_else(tmp_path, monkeypatch, holdfast_command):
    monkeypatch.chdir(tmp_path)
    write_run("many")
    diary = Diary()
    diary.begin()
    diary.commit(30, 15)
    diary.pace(40, 20, 30, "failures", saved=1, overhead_window=0.0)
    write_run("few", diary.events)

    assert holdfast_command("explain", "many", "--plot", "many.svg").code == 0
    assert holdfast_command("explain", "few", "--plot", "few.svg").code == 0

    assert _legend_of("many.svg") == [
        *("interval", "checkpoints", "overhead lately", "overhead in all", "limit", "killed, then restarted"),
        *("sensors saw trouble", "stopped itself", "a save failed"),
    ]
    assert _legend_of("few.svg") == ["interval", "checkpoints", "overhead in all", "limit", "killed"]


def test_the_png_has_a_legend_of_the_same_things(tmp_path, monkeypatch):
    pytest.importorskip("matplotlib")
    report = report_pace(THREE_ATTEMPTS)

    legend = {text.get_text() for text in _draw_png(report, "run").legends[0].get_texts()}

    assert legend == {
        *("interval", "checkpoints", "overhead lately", "overhead in all", "limit", "killed, then restarted"),
        *("sensors saw trouble", "stopped itself", "a save failed"),
    }


def test_a_plot_that_is_there_is_replaced(paced, holdfast_command):
    Path("pace.svg").write_text("old")

    assert holdfast_command("explain", "run", "--plot", "pace.svg", "--json").code == 0
    assert ElementTree.parse("pace.svg").getroot().tag == f"{_SVG}svg"


def test_a_png_is_drawn_where_matplotlib_is_there(paced, holdfast_command):
    pytest.importorskip("matplotlib")

    assert holdfast_command("explain", "run", "--plot", "pace.png").code == 0
    assert Path("pace.png").read_bytes().startswith(b"\x89PNG")


def test_without_matplotlib_a_png_is_refused_with_what_to_write_instead(paced, holdfast_command, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)

    answer = holdfast_command("explain", "run", "--plot", "some.pace.png")

    assert answer.code == 2
    assert "takes matplotlib, which is not installed\n  hint: --plot some.pace.svg\n" in answer.err
    assert not list(Path().glob("*.png"))


@pytest.mark.parametrize("name", ["pace", "pace.pdf", "run.svg/pace"])
def test_a_plot_of_another_kind_is_refused(paced, holdfast_command, name):
    answer = holdfast_command("explain", "run", "--plot", name)

    assert answer.code == 2
    assert "a plot ends in .svg or .png\n  hint: for example --plot pace.svg" in answer.err


def test_a_plot_in_a_directory_that_is_not_there_says_how_to_make_it(paced, holdfast_command):
    answer = holdfast_command("explain", "run", "--plot", "my plots/pace.svg")
    assert answer.code == 3
    assert "my plots/pace.svg: there is no directory my plots" in answer.err
    assert "hint: mkdir -p 'my plots'" in answer.err


def test_a_run_with_a_rule_of_its_own_is_told_what_is_known(tmp_path, monkeypatch, holdfast_command):
    monkeypatch.chdir(tmp_path)
    clock = FakeClock()
    with holdfast.Checkpointer("run", {"progress": [0]}, clock=clock, background="off") as ckpt:
        for step in range(500, 5000, 500):
            clock.advance(600)
            ckpt.save(step=step)

    answer = holdfast_command("explain", "run", "--plot", "pace.svg")
    text = " ".join(answer.out.split())

    assert answer.code == 0
    assert 'the program\'s own rule (every=..., or save() where it wants): the interval was not found by "auto"' in text
    assert "checkpoints 9 durable, every 500 steps (≈ 10 min)" in text
    assert "failures none, of 1 attempt and 1.5 h of running" in text
    assert "Steps between checkpoints, as they were made" in text
    assert "How it changed" not in text
    assert len(list(ElementTree.parse("pace.svg").getroot().iter(f"{_SVG}path"))) > 1


def test_a_run_in_which_nothing_happened_yet_is_said_kindly(tmp_path, monkeypatch, holdfast_command):
    monkeypatch.chdir(tmp_path)
    write_run("run", [])

    answer = holdfast_command("explain", "run", "--plot", "pace.svg")

    assert answer.code == 0
    assert "checkpoints    none yet" in answer.out
    assert "nothing to plot yet" in Path("pace.svg").read_text()


def test_a_training_that_is_still_measuring_has_no_interval(tmp_path, monkeypatch, holdfast_command):
    monkeypatch.chdir(tmp_path)
    write_run("run", THREE_ATTEMPTS[:2])

    out = holdfast_command("explain", "run").out

    assert out.startswith("run  no interval yet: measuring\n")
    assert "one checkpoint, to see what one costs" in out
    assert "at stake" not in out


def test_a_new_attempt_that_has_not_measured_says_whose_figures_these_are(tmp_path, monkeypatch, holdfast_command):
    monkeypatch.chdir(tmp_path)
    diary = Diary()
    diary.begin()
    diary.pace(60, 30, 100, "failures")
    diary.begin(after_s=60, step=30)
    write_run("run", diary.events)

    assert "as of          attempt 1: the one that came after" in holdfast_command("explain", "run").out


def test_what_was_decided_in_one_attempt_comes_before_the_next_one_and_is_said_once(
    tmp_path, monkeypatch, holdfast_command
):
    monkeypatch.chdir(tmp_path)
    diary = Diary()
    diary.begin()
    diary.note("deadline", 5, source="Slurm", left_s=9.0, decided="save and stop", why="9 s left: save now, and stop")
    diary.note("stopped", 6, step=24, why="9 s left: save now, and stop", lost_steps=3)
    diary.begin()
    diary.note("deadline", 0, source="Slurm", left_s=900.0, decided="go on", why="15 min left")
    diary.note("stopped", 8, step=30, why="SIGTERM", lost_steps=0)
    write_run("run", diary.events)

    out = holdfast_command("explain", "run").out

    section = out.partition("\nDeadlines\n")[2].partition("\n\n")[0].splitlines()
    assert [line.split("  ")[-1] for line in section[1:]] == [
        "9 s left: save now, and stop",
        "3 steps lost",
        "15 min left",
        "SIGTERM; nothing is lost",
    ]


def test_why_it_changed_is_not_cut_in_a_narrow_terminal(paced):
    for columns in ("60", "80", "120"):
        out = _run("explain", "run", COLUMNS=columns)

        changes = out.partition("\nHow it changed\n")[2].partition("\n\n")[0]
        assert "…" not in changes
        if columns != "120":  # beside the other columns, else
            assert " ".join(changes.split()).count("while there is trouble, else") == 2
        assert not re.search(r"\d\n", changes)  # a figure keeps its unit


def test_the_overhead_is_unknown_before_there_are_two_checkpoints(tmp_path, monkeypatch, holdfast_command):
    monkeypatch.chdir(tmp_path)
    diary = Diary()
    diary.begin()
    diary.pace(60, 30, 100, "failures", saved=1, overhead_window=0.0, overhead_run=0.002)
    write_run("run", diary.events)

    assert "  overhead       – lately, 0.2 % in all; the limit is 3.5 %\n" in holdfast_command("explain", "run").out
    now = json.loads(holdfast_command("explain", "run", "--json").out)["now"]
    assert (now["overhead_lately"], now["overhead_window"]) == (None, 0.0)


def test_a_killed_attempt_is_no_failure_that_its_own_interval_knows_of(tmp_path, monkeypatch, holdfast_command):
    monkeypatch.chdir(tmp_path)
    diary = Diary()
    diary.begin()
    diary.pace(60, 30, 100, "failures", mtbf_s=86_400.0)
    write_run("run", diary.events)

    out = holdfast_command("explain", "run").out

    assert "  failures       1 killed, of 1 attempt and ≥ 1 min of running\n" in out
    assert "none seen before attempt 1" in " ".join(out.split())


def test_an_auto_that_only_measured_is_no_rule_of_the_program(tmp_path, monkeypatch, holdfast_command):
    monkeypatch.chdir(tmp_path)
    diary = Diary()
    diary.begin()
    diary.commit(3, 24)
    diary.note("paced", 4, step=24, elapsed_s=4.0, interval_steps=None, won="first", why="being measured", rules=[])
    write_run("run", diary.events)

    assert 'why            every="auto" has not measured enough yet\n' in holdfast_command("explain", "run").out


def test_trouble_is_shown_while_it_lasts(tmp_path, monkeypatch, holdfast_command):
    monkeypatch.chdir(tmp_path)
    diary = Diary()
    diary.begin()
    diary.note("sensed", 50, sensor="memory", read="97 %", risk=8.0, concluded="memory runs out")
    diary.pace(60, 30, 40, "failures", risk=8.0)
    write_run("run", diary.events)
    with holdfast.Checkpointer("run", {"progress": [0]}, background="off") as live:
        journal = Path("run/journal.jsonl").read_text()
        Path("run/journal.jsonl").write_text(journal.replace('"attempt": 1', f'"attempt": {live._session.attempt}'))

        answer = holdfast_command("explain", "run")

    assert "trouble        the failure rate counts 8 times: memory: memory runs out" in answer.out


def test_there_is_no_explaining_what_is_no_run(tmp_path, holdfast_command):
    assert holdfast_command("explain", tmp_path / "nowhere").code == 3


_BAD = [None, "12", "many", [], {}, True, -1, -1e308, 1e308, 10**30, float("nan"), float("inf"), "\x1b[31m\nred", 0.5]


@pytest.mark.parametrize("field", sorted({name for event in THREE_ATTEMPTS for name in event} - {"event", "attempt"}))
def test_no_value_of_the_journal_can_break_it_or_reach_the_terminal(tmp_path, monkeypatch, holdfast_command, field):
    monkeypatch.chdir(tmp_path)
    events = [dict(event) for event in THREE_ATTEMPTS]
    touched = [event for event in events if field in event]
    for index, event in enumerate(touched):
        event[field] = _BAD[index % len(_BAD)]
    for event in events[-20:]:
        event[field] = _BAD[len(field) % len(_BAD)]
    write_run("run", events)

    drawn = ("pace.svg", "pace.png") if field in ("elapsed_s", "interval_steps", "overhead_window") else ("pace.svg",)
    for arguments in ((), ("--json",), *(("--plot", name, "--ascii") for name in drawn)):
        answer = holdfast_command("explain", "run", *arguments)

        assert answer.code == 0, answer.err
        assert "\x1b" not in answer.out
        assert "nan" not in answer.out.lower()
    ElementTree.parse("pace.svg")
    json.loads(holdfast_command("explain", "run", "--json").out)


@pytest.mark.parametrize("number", [*_BAD, 0, 10**9])
def test_attempts_with_numbers_that_make_no_sense_are_left_out(tmp_path, monkeypatch, holdfast_command, number):
    monkeypatch.chdir(tmp_path)
    write_run(
        "run", [*THREE_ATTEMPTS, {**THREE_ATTEMPTS[0], "attempt": number}, {**THREE_ATTEMPTS[5], "attempt": number}]
    )

    answer = holdfast_command("explain", "run")

    assert answer.code == 0
    assert "every 88 steps" in answer.out


def test_texts_of_the_journal_are_shown_and_not_obeyed(tmp_path, monkeypatch, holdfast_command):
    monkeypatch.chdir(tmp_path)
    diary = Diary()
    diary.begin()
    bad = "\x1b]0;owned\x07<script>&\ud800\u202e" + "x" * 100_000
    diary.note("sensed", 5, sensor=bad[:40], read=bad, risk=3, concluded=bad)
    diary.note("deadline", 6, source=bad[:40], left_s=-5, decided=bad[:40], why=bad)
    rules = [{"name": bad[:30], "steps": 10**17, "text": bad}, "rule", {"name": 3}]
    diary.note("paced", 9, step=8, elapsed_s=9, interval_steps=40, won=bad[:30], why=bad, rules=rules)
    diary.note("stopped", 10, step=8, why=bad)
    write_run("run", diary.events)

    answer = holdfast_command("explain", "run", "--plot", "pace.svg")

    assert answer.code == 0
    assert "\x1b" not in answer.out
    assert "\\x1b]0;owned\\x07<script>&\\ud800\\u202exxx" in answer.out
    assert len(answer.out) < 10_000
    assert "2 values in the journal make no sense; left out" in answer.out
    assert json.loads(holdfast_command("explain", "run", "--json").out)["stops"][0]["why"].startswith("\\x1b]0;owned")
    assert "<script>" not in Path("pace.svg").read_text()
    ElementTree.parse("pace.svg")


def test_torn_lines_and_foreign_ones_are_skipped(tmp_path, monkeypatch, holdfast_command):
    monkeypatch.chdir(tmp_path)
    write_run("run", raw=b'{"event": "paced", "interval_st\n\x00\xff\n[1, 2]\n{"event": 5}\n{"event": "paced"}\n')

    answer = holdfast_command("explain", "run")

    assert answer.code == 0
    assert answer.out.startswith("run  every 88 steps")
    assert "4 lines of the journal could not be read; left out" in answer.out


def test_a_journal_that_tells_nothing_is_not_taken_for_a_run_without_checkpoints(run, holdfast_command):
    (run / "journal.jsonl").write_text("junk\n")

    text = holdfast_command("explain", "run").out
    document = json.loads(holdfast_command("explain", "run", "--json").out)

    assert "no program has made a checkpoint" not in text
    assert "checkpoints    6 here, of which the journal tells nothing" in text
    assert "1 line of the journal could not be read; left out" in text
    assert document["unread_lines"] == 1


def test_a_journal_whose_beginning_is_not_read_any_more_is_said_to_be_long(tmp_path, monkeypatch, holdfast_command):
    monkeypatch.chdir(tmp_path)
    write_run("run", THREE_ATTEMPTS[30:])

    assert "the journal is long: what happened before" in holdfast_command("explain", "run").out
