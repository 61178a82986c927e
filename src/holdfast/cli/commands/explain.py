"""`holdfast explain`: how often checkpoints are made, and why that often."""

import argparse
import sys
import time
from collections.abc import Iterator

from holdfast.cli.chart import draw
from holdfast.cli.exit_codes import OK
from holdfast.cli.figure import pace_chart, suffix_of_plot, write_figure
from holdfast.cli.layout import print_fact, print_reasons, print_title
from holdfast.cli.output import Output
from holdfast.cli.pace_facts import RULES, lately_words, pace_facts, unpaced_facts
from holdfast.cli.parser import add_run, whole
from holdfast.cli.plain_text import speaks_unicode
from holdfast.cli.runs import Run
from holdfast.cli.table import Cell, Column, Style
from holdfast.cli.words import count
from holdfast.core.clock import utc_text
from holdfast.engine.history import Attempt, Ending
from holdfast.engine.holders import latest_holder
from holdfast.engine.journal import read_journal
from holdfast.engine.pace_report import Pace, Report, Stop, report_pace
from holdfast.engine.pace_words import pace_words, steps_words, time_words

__all__ = ["EXAMPLES", "SUMMARY", "add_arguments", "run"]

SUMMARY = """\
How often checkpoints are made, and why that often: the interval, what was measured, what each rule wanted and which one
won, what checkpoints cost against the limit, failures, what sensors saw, deadlines, and how all that changed over the
run, with a plot. Reads the journal; also while the run is being written."""
EXAMPLES = (
    "holdfast explain runs/mnist",
    "holdfast explain runs/mnist --changes 100",
    "holdfast explain runs/mnist --plot pace.svg",
    "holdfast explain runs/mnist --json | jq .now.overhead_run",
)

_PIPE_WIDTH = 80  # of a plot: a line may be as long as it likes in a pipe
_LOOK_ALIKES_ADD = 4
_MEASURED = (
    ("step_s", "a step takes", ""),
    ("stall_s", "stall", "the training waits for a checkpoint to be copied"),
    ("slow_s", "slow-down", "steps take longer while it is written, in all"),
    ("queued_s", "no core", "threads of the training wait for one meanwhile, in all"),
    ("durable_s", "until durable", "usually, from its beginning until it is on the disk"),
)
# Of these, the journal has the last sign of life, and not the end.
_WITHOUT_END = (Ending.KILLED, Ending.RUNNING, Ending.ROLLED_BACK)
_ENDING_STYLES = {Ending.KILLED: Style.RED, Ending.RUNNING: Style.GREEN}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The command's own options."""
    add_run(parser)
    about = "how many changes, attempts and conclusions to list, newest last (default: 10)"
    parser.add_argument("--changes", metavar="N", type=whole(1), default=10, help=about)
    parser.add_argument("--plot", metavar="FILE", help="also write the plot: .svg, or .png where matplotlib is there")
    parser.add_argument("--ascii", action="store_true", help="draw with ASCII characters only")


def run(arguments: argparse.Namespace, out: Output) -> int:
    """Read the journal and report."""
    if arguments.plot is not None:
        suffix_of_plot(arguments.plot)
    with Run(arguments.run) as opened:
        holder = latest_holder(opened.store)
        alive = holder.attempt if holder is not None and holder.alive else None
        events, unread = read_journal(opened.store)
        report = report_pace(events, alive=alive, now_utc_s=time.time())
        # A journal may be lost, and checkpoints may come without one, by `holdfast cp`.
        untold = 0 if report.commits else len(opened.catalog().checkpoints)
        run_id = opened.run_id
    if arguments.plot is not None:
        write_figure(report, arguments.plot, title=arguments.run)
    if out.json:
        out.document(_document(arguments.run, run_id, report, unread))
        return OK
    ascii_only = not speaks_unicode(sys.stdout, ascii_only=arguments.ascii)
    if ascii_only and out.width is not None:
        out.width -= _LOOK_ALIKES_ADD
    _print_summary(arguments.run, report, untold, out)
    if report.now is not None:
        _print_measured(report.now, out)
        _print_rules(report.now, out)
    _print_sensed(report, arguments.changes, out)
    _print_endings(report, arguments.changes, out)
    _print_attempts(report, arguments.changes, out)
    _print_changes(report, arguments.changes, out)
    _print_chart(report, out, ascii_only=ascii_only)
    for remark in _remarks(report, unread, arguments.plot):
        out.line(remark, Style.DIM)
    return OK


def _print_summary(path: str, report: Report, untold: int, out: Output) -> None:
    pace = report.now
    if pace is None:
        out.line(path, Style.BOLD)
    else:
        words = pace_words(None if pace.is_measuring else pace.interval_steps, pace.step_s)
        out.pieces((f"{path}  ", Style.BOLD), (words, Style.BOLD + ";" + Style.CYAN))
    for label, text, style in unpaced_facts(report, untold) if pace is None else pace_facts(report, pace):
        print_fact(label, text, out, style)


def _print_measured(pace: Pace, out: Output) -> None:
    known = [(label, getattr(pace, name), about) for name, label, about in _MEASURED if getattr(pace, name) is not None]
    if not known:
        return
    print_title("Measured", out)
    for label, value, about in known:
        print_fact(label, time_words(value), out, about=about)


def _print_rules(pace: Pace, out: Output) -> None:
    if not pace.rules:
        return
    print_title("What each rule wants", out)
    rows: list[list[Cell | str]] = []
    for rule in pace.rules:
        won = rule.name == pace.won
        style = Style.BOLD if won else Style.PLAIN
        wants = "no limit" if rule.steps is None else steps_words(rule.steps)
        takes = "" if rule.steps is None or pace.step_s is None else f"≈ {time_words(rule.steps * pace.step_s)}"
        rows.append([Cell(f"{'▸' if won else ' '} {rule.name}", style), Cell(wants, style), Cell(takes, style)])
    texts = [rule.text or RULES.get(rule.name, "") for rule in pace.rules]
    print_reasons([Column("  rule"), Column("wants", right=True), Column("in time")], rows, texts, out)


def _print_sensed(report: Report, limit: int, out: Output) -> None:
    if not report.sensed:
        return
    print_title("What sensors saw", out)
    columns = [*_when_columns(report), Column("sensor", style=Style.BOLD), Column("risk", right=True)]
    shown = report.sensed[-limit:]
    rows: list[list[Cell | str]] = [
        [
            *_when(report, s.attempt, s.at_s),
            s.sensor,
            "" if s.risk is None else Cell(f"× {s.risk:.3g}", Style.YELLOW if s.risk > 1 else Style.GREEN),
        ]
        for s in shown
    ]
    texts = [f"{s.concluded} ({s.read})" if s.concluded and s.read else s.concluded or s.read for s in shown]
    print_reasons(columns, rows, texts, out)
    _print_left_out(len(report.sensed) - len(shown), out)


def _print_endings(report: Report, limit: int, out: Output) -> None:
    if not report.deadlines and not report.stops:
        return
    print_title("Deadlines", out)
    found: list[tuple[tuple[int, float], list[Cell | str], str]] = []
    for d in report.deadlines:
        row = [*_when(report, d.attempt, d.at_s), Cell(d.decided, Style.BOLD), d.source]
        found.append(((d.attempt, d.at_s), [*row, "" if d.left_s is None else time_words(d.left_s)], d.why))
    decided = {(d.attempt, d.why) for d in report.deadlines}
    for s in report.stops:
        what = "stopped" + ("" if s.step is None else f" at step {s.step}")
        why = "" if (s.attempt, s.why) in decided else s.why  # said in the line above
        row = [*_when(report, s.attempt, s.at_s), Cell(what, Style.BOLD), "", ""]
        found.append(((s.attempt, s.at_s), row, "; ".join(filter(None, (why, _lost(s))))))
    found.sort(key=lambda entry: entry[0])
    shown = found[-limit:]
    columns = [*_when_columns(report), Column("decided"), Column("source", drop=2), Column("left", right=True, drop=1)]
    rows, texts = [row for _, row, _ in shown], [text for _, _, text in shown]
    print_reasons(columns, rows, texts, out)
    _print_left_out(len(found) - len(shown), out)


def _lost(stop: Stop) -> str:
    if stop.lost_steps is None:
        return ""
    return "nothing is lost" if stop.lost_steps == 0 else f"{steps_words(stop.lost_steps)} lost"


def _print_attempts(report: Report, limit: int, out: Output) -> None:
    if len(report.attempts) < 2:
        return
    print_title("Attempts", out)
    columns = [
        Column("attempt", right=True, style=Style.BOLD),
        Column("began", drop=3),
        Column("lived", right=True),
        Column("from step", right=True, drop=4),
        Column("to step", right=True, drop=2),
        Column("checkpoints", right=True, drop=1),
        Column("ended"),
    ]
    shown = report.attempts[-limit:]
    out.table(columns, [_attempt_row(attempt) for attempt in shown])
    _print_left_out(len(report.attempts) - len(shown), out)


def _attempt_row(attempt: Attempt) -> list[Cell | str]:
    return [
        str(attempt.number),
        "" if attempt.began_utc_s is None else utc_text(attempt.began_utc_s).replace("T", " ")[:-4],
        ("≥ " if attempt.failed else "") + time_words(attempt.lived_s),
        str(attempt.restored_step or 0),
        "" if attempt.last_step is None else ("≥ " if attempt.ending in _WITHOUT_END else "") + str(attempt.last_step),
        str(attempt.committed),
        Cell(attempt.ending, _ENDING_STYLES.get(attempt.ending, Style.PLAIN)),
    ]


def _print_changes(report: Report, limit: int, out: Output) -> None:
    if not report.changes:
        return
    print_title("How it changed", out)
    columns = [
        *_when_columns(report),
        Column("step", right=True),
        Column("interval", right=True, style=Style.BOLD),
        Column("time", right=True, drop=1),
        Column("overhead", right=True, drop=3),
        Column("won", style=Style.CYAN),
    ]
    shown = report.changes[-limit:]
    rows: list[list[Cell | str]] = [
        [
            *_when(report, p.attempt, p.at_s),
            "" if p.step is None else str(p.step),
            "" if p.interval_steps is None or p.is_measuring else steps_words(p.interval_steps),
            "" if p.interval_s is None or p.is_measuring else time_words(p.interval_s),
            lately_words(p),
            p.won,
        ]
        for p in shown
    ]
    print_reasons(columns, rows, [p.reason for p in shown], out)
    _print_left_out(len(report.changes) - len(shown), out)


def _print_chart(report: Report, out: Output, *, ascii_only: bool) -> None:
    lines = draw(pace_chart(report), width=out.width or _PIPE_WIDTH, ascii_only=ascii_only)
    if lines:
        out.line()
    for line in lines:
        out.pieces(*line)


def _remarks(report: Report, unread: int, plot: str | None) -> Iterator[str]:
    if not report.is_whole:
        yield "the journal is long: what happened before its latest part is not shown"
    if unread:
        yield f"{count(unread, 'line')} of the journal could not be read; left out"
    if report.odd:
        yield f"{count(report.odd, 'value')} in the journal {'make' if report.odd > 1 else 'makes'} no sense; left out"
    if plot is not None:
        yield f"plot: {plot}"


def _when_columns(report: Report) -> list[Column]:
    """At which running time, and in which attempt, where there are several."""
    return [Column("attempt" if len(report.attempts) > 1 else "", right=True, drop=5), Column("at", right=True)]


def _when(report: Report, number: int, at_s: float) -> list[Cell | str]:
    return [str(number) if len(report.attempts) > 1 else "", Cell(time_words(at_s), Style.DIM)]


def _print_left_out(left_out: int, out: Output) -> None:
    if left_out > 0:
        out.line(f"and {left_out:,} before that, which --changes N lists", Style.DIM)


def _document(path: str, run_id: str, report: Report, unread: int) -> dict[str, object]:
    def pace(value: Pace) -> dict[str, object]:
        rules = [rule._asdict() for rule in value.rules]
        return {
            **value._asdict(),
            "rules": rules,
            "interval_s": value.interval_s,
            "kept_against": value.kept_against,
            "overhead_lately": value.overhead_lately,
        }

    return {
        "run": path,
        "run_id": run_id,
        "now": None if report.now is None else pace(report.now),
        "changes": [pace(change) for change in report.changes],
        "attempts": [{**attempt._asdict(), "failed": attempt.failed} for attempt in report.attempts],
        "killed": report.killed,
        "ended_by_exception": report.raised,
        "ended_without_close": report.left,
        "running_s": report.running_s,
        "overhead_all": report.overhead_all,
        "sensed": [s._asdict() for s in report.sensed],
        "deadlines": [d._asdict() for d in report.deadlines],
        "stops": [s._asdict() for s in report.stops],
        "checkpoints": {
            "committed": len(report.commits),
            "spacing": None if report.spacing is None else report.spacing._asdict(),
        },
        "whole": report.is_whole,
        "odd_values": report.odd,
        "unread_lines": unread,
    }
