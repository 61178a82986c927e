"""`holdfast explain`: how often checkpoints are made, and why that often."""

import argparse
import re
import sys
import time
from collections.abc import Iterator, Sequence
from textwrap import wrap

from holdfast.cli.chart import draw
from holdfast.cli.exit_codes import OK
from holdfast.cli.figure import pace_chart, suffix_of_plot, write_figure
from holdfast.cli.output import Output
from holdfast.cli.parser import add_run, whole
from holdfast.cli.plain_text import speaks_unicode
from holdfast.cli.runs import Run
from holdfast.cli.table import Cell, Column, Style, paint, render
from holdfast.cli.words import count
from holdfast.core.clock import utc_text
from holdfast.core.errors import printable
from holdfast.engine.history import Attempt, Ending
from holdfast.engine.holders import latest_holder
from holdfast.engine.journal import read_events
from holdfast.engine.pace_report import Pace, Report, Stop, report_pace
from holdfast.engine.pace_words import pace_words, share_words, steps_words, time_words

__all__ = ["EXAMPLES", "SUMMARY", "add_arguments", "run"]

SUMMARY = """\
How often checkpoints are made, and why that often: the interval, what was measured, what each rule wanted and which one
won, what checkpoints cost against the limit, failures, what sensors saw, deadlines, and how all that changed over the
run, with a plot. Reads the journal only; also while the run is being written."""
EXAMPLES = (
    "holdfast explain runs/mnist",
    "holdfast explain runs/mnist --changes 100",
    "holdfast explain runs/mnist --plot pace.svg",
    "holdfast explain runs/mnist --json | jq .now.overhead_run",
)

_LABEL_WIDTH = 15
_PIPE_WIDTH = 80  # of a plot: a line may be as long as it likes in a pipe
_TEXT_WIDTH = 110  # longer lines of prose are hard to read
_LEAST_TEXT_WIDTH = 30
_NARROW = 60  # texts are not put beside their label any more
_LOOK_ALIKES_ADD = 4
_RULES = {
    "durable": "a checkpoint is durable before the next one begins",
    "overhead": "what checkpoints cost stays within the limit",
    "failures": "for this failure rate, more checkpoints would cost more than they save",
    "lose_at_most": "never longer: more than this is not to be lost",
}
_MEASURED = (
    ("step_s", "a step takes", ""),
    ("stall_s", "stall", "the training waits for a checkpoint to be copied"),
    ("slow_s", "slow-down", "steps take longer while it is written, in all"),
    ("durable_s", "until durable", "usually, from its beginning until it is on the disk"),
)
_UNKNOWN = "–"
_TIED = "\N{NO-BREAK SPACE}"
_BEFORE_UNIT = re.compile(r"(?<=\d) (?=(?:%|µs|ms|s|min|h|d|[KMGT]iB)(?!\w))")
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
        report = report_pace(read_events(opened.store), alive=alive, now_utc_s=time.time())
        run_id = opened.run_id
    if arguments.plot is not None:
        write_figure(report, arguments.plot, title=arguments.run)
    if out.json:
        out.document(_document(arguments.run, run_id, report))
        return OK
    ascii_only = not speaks_unicode(sys.stdout, ascii_only=arguments.ascii)
    if ascii_only and out.width is not None:
        out.width -= _LOOK_ALIKES_ADD
    _print_summary(arguments.run, report, out)
    if report.now is not None:
        _print_measured(report.now, out)
        _print_rules(report.now, out)
    _print_sensed(report, arguments.changes, out)
    _print_endings(report, arguments.changes, out)
    _print_attempts(report, arguments.changes, out)
    _print_changes(report, arguments.changes, out)
    _print_chart(report, out, ascii_only=ascii_only)
    for remark in _remarks(report, arguments.plot):
        out.line(remark, Style.DIM)
    return OK


def _print_summary(path: str, report: Report, out: Output) -> None:
    pace = report.now
    if pace is None:
        _print_unpaced(path, report, out)
        return
    words = pace_words(None if pace.is_measuring else pace.interval_steps, pace.step_s)
    out.pieces((f"{path}  ", Style.BOLD), (words, Style.BOLD + ";" + Style.CYAN))
    for label, text, style in _facts(report, pace):
        _print_fact(label, text, out, style)


def _print_unpaced(path: str, report: Report, out: Output) -> None:
    """Of a run in which no interval was chosen by measurement: what its checkpoints tell."""
    out.line(path, Style.BOLD)
    _print_fact("why", _why_unpaced(report), out)
    _print_fact("checkpoints", _spaced(report), out)
    if report.attempts:
        _print_fact("failures", _failures(report), out)


def _why_unpaced(report: Report) -> str:
    if report.is_auto:
        return 'every="auto" has not measured enough yet'
    if report.commits:
        return 'the program\'s own rule (every=..., or save() where it wants): the interval was not found by "auto"'
    return "no checkpoint was made, and no interval was found"


def _spaced(report: Report) -> str:
    """How many checkpoints there are, and how far apart."""
    if not report.commits:
        return "none yet"
    made, spacing = f"{len(report.commits):,} durable", report.spacing
    if spacing is None:
        return made
    steps = steps_words(round(spacing.steps))
    takes = f" (≈ {time_words(spacing.seconds)})" if spacing.seconds > 0 else ""
    return (
        f"{made}, every {steps}{takes}" if spacing.is_even else f"{made}, unevenly: half of them within {steps}{takes}"
    )


def _facts(report: Report, pace: Pace) -> Iterator[tuple[str, str, str]]:
    why = pace.why or _RULES.get(pace.won, "no reason is known")
    if why.startswith(f"every {pace.interval_steps} steps") and ": " in why:
        why = why.partition(": ")[2]  # said in the line above
    yield "why", why + (f" (rule: {pace.won})" if pace.won and pace.won not in why else ""), ""
    if pace.kept_against is not None and pace.interval_steps is not None:
        apart = share_words(abs(pace.kept_against / pace.interval_steps - 1))
        wants = f"{pace.won} wants {pace.kept_against:,} by now, but {apart} is too little to change it"
        yield "kept", f"{pace.interval_steps:,} is kept: {wants}", ""
    if pace.interval_s is not None and not pace.is_measuring:
        late_s = pace.durable_s or 0.0
        average, worst = time_words(pace.interval_s / 2 + late_s), time_words(pace.interval_s + late_s)
        yield "at stake", f"{average} of work on average, {worst} at worst, if the machine dies", ""
    if pace.overhead_window is not None or pace.overhead_run is not None:
        yield "overhead", _overhead(report, pace), Style.YELLOW if _is_over(pace) else ""
    yield "failures", _failures(report), ""
    if pace.mtbf_s is not None:
        yield "expected", _expected(report, pace, pace.mtbf_s), ""
    if report.seeing and report.attempts[-1].ending == Ending.RUNNING:
        raised = f"the failure rate counts {pace.risk:.3g} times: " if pace.risk and pace.risk > 1 else ""
        yield "trouble", raised + "; ".join(f"{s.sensor}: {s.concluded or s.read}" for s in report.seeing), Style.YELLOW
    failed = sum(attempt.save_failed for attempt in report.attempts)
    words = [f"{len(report.commits):,} durable"]
    words += [f"{failed:,} failed"] if failed else []
    words += [f"{pace.skipped:,} skipped by attempt {pace.attempt}"] if pace.skipped else []
    yield "checkpoints", ", ".join(words), ""
    if report.attempts and report.attempts[-1].number != pace.attempt:
        yield "as of", f"attempt {pace.attempt}: the one that came after it has not measured enough yet", Style.YELLOW


def _overhead(report: Report, pace: Pace) -> str:
    lately = _UNKNOWN if pace.overhead_lately is None else share_words(pace.overhead_lately)
    words = f"{lately} lately" + ("" if report.overhead_all is None else f", {share_words(report.overhead_all)} in all")
    return words + (f"; the limit is {share_words(pace.limit)}" if pace.limit is not None else "")


def _is_over(pace: Pace) -> bool:
    return pace.limit is not None and max(pace.overhead_lately or 0, pace.overhead_run or 0) > pace.limit


def _failures(report: Report) -> str:
    found = [f"{report.killed} killed"] if report.killed else []
    found += [f"{report.raised} {Ending.RAISED}"] if report.raised else []
    found += [f"{report.left} {Ending.LEFT}"] if report.left else []
    least = "≥ " if report.killed else ""
    lived = f"{count(len(report.attempts), 'attempt')} and {least}{time_words(report.running_s)} of running"
    return f"{', '.join(found) or 'none'}, of {lived}"


def _expected(report: Report, pace: Pace, mtbf_s: float) -> str:
    """What is expected is not what was seen: at first it is hardly more than what is assumed."""
    seen = report.failed_before(pace.attempt)
    return (
        f"one failure every {time_words(mtbf_s)}: one a day is assumed (or auto's mtbf) before anything is known; "
        f"{seen or 'none'} seen before attempt {pace.attempt}"
    )


def _print_measured(pace: Pace, out: Output) -> None:
    known = [(label, getattr(pace, name), about) for name, label, about in _MEASURED if getattr(pace, name) is not None]
    if not known:
        return
    _print_title("Measured", out)
    for label, value, about in known:
        _print_fact(label, time_words(value), out, about=about)


def _print_rules(pace: Pace, out: Output) -> None:
    if not pace.rules:
        return
    _print_title("What each rule wants", out)
    rows: list[list[Cell | str]] = []
    for rule in pace.rules:
        won = rule.name == pace.won
        style = Style.BOLD if won else Style.PLAIN
        wants = "no limit" if rule.steps is None else steps_words(rule.steps)
        takes = "" if rule.steps is None or pace.step_s is None else f"≈ {time_words(rule.steps * pace.step_s)}"
        rows.append([Cell(f"{'▸' if won else ' '} {rule.name}", style), Cell(wants, style), Cell(takes, style)])
    texts = [rule.text or _RULES.get(rule.name, "") for rule in pace.rules]
    _print_reasons([Column("  rule"), Column("wants", right=True), Column("in time")], rows, texts, out)


def _print_sensed(report: Report, limit: int, out: Output) -> None:
    if not report.sensed:
        return
    _print_title("What sensors saw", out)
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
    _print_reasons(columns, rows, texts, out, left_out=len(report.sensed) - len(shown))


def _print_endings(report: Report, limit: int, out: Output) -> None:
    if not report.deadlines and not report.stops:
        return
    _print_title("Deadlines", out)
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
    _print_reasons(columns, rows, texts, out, left_out=len(found) - len(shown))


def _lost(stop: Stop) -> str:
    if stop.lost_steps is None:
        return ""
    return "nothing is lost" if stop.lost_steps == 0 else f"{steps_words(stop.lost_steps)} lost"


def _print_attempts(report: Report, limit: int, out: Output) -> None:
    if len(report.attempts) < 2:
        return
    _print_title("Attempts", out)
    columns = [
        Column("attempt", right=True, style=Style.BOLD),
        Column("began", drop=3),
        Column("lived", right=True),
        Column("from step", right=True, drop=4),
        Column("to step", right=True, drop=2),
        Column("checkpoints", right=True, drop=1),
        Column("ended"),
    ]
    _print_table(columns, [_attempt_row(attempt) for attempt in report.attempts[-limit:]], len(report.attempts), out)


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
    _print_title("How it changed", out)
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
            _UNKNOWN if p.overhead_lately is None else share_words(p.overhead_lately),
            p.won,
        ]
        for p in shown
    ]
    _print_reasons(columns, rows, [p.reason for p in shown], out, left_out=len(report.changes) - len(shown))


def _print_chart(report: Report, out: Output, *, ascii_only: bool) -> None:
    lines = draw(pace_chart(report), width=out.width or _PIPE_WIDTH, ascii_only=ascii_only)
    if lines:
        out.line()
    for line in lines:
        out.pieces(*line)


def _remarks(report: Report, plot: str | None) -> Iterator[str]:
    if not report.is_whole:
        yield "the journal is long: what happened before its latest part is not shown"
    if report.odd:
        yield f"{count(report.odd, 'value')} in the journal {'make' if report.odd > 1 else 'makes'} no sense; left out"
    if plot is not None:
        yield f"plot: {plot}"


def _when_columns(report: Report) -> list[Column]:
    """At which running time, and in which attempt, where there are several."""
    return [Column("attempt" if len(report.attempts) > 1 else "", right=True, drop=5), Column("at", right=True)]


def _when(report: Report, number: int, at_s: float) -> list[Cell | str]:
    return [str(number) if len(report.attempts) > 1 else "", Cell(time_words(at_s), Style.DIM)]


def _print_title(title: str, out: Output) -> None:
    out.line()
    out.line(title, Style.BOLD)


def _print_fact(label: str, text: str, out: Output, style: str = Style.PLAIN, *, about: str = "") -> None:
    """A label and a text beside it, on as many lines as that takes."""
    narrow = out.width is not None and out.width < _NARROW
    head = f"  {label}: " if narrow else f"  {label:<{_LABEL_WIDTH}}"
    if narrow:
        first, *more = _wrapped(head.lstrip() + text, (out.width or 0) - 4) or [""]
        out.pieces((head, Style.DIM), (first[len(head) - 2 :], style))
        for line in more:
            out.line(f"    {line}", style)
        return
    width = min(out.width or _TEXT_WIDTH, _TEXT_WIDTH) - len(head)
    if about:
        text = f"{text:<8} {about}" if len(text) + len(about) < width else text
    lines = _wrapped(text, width) or [""]
    out.pieces((head, Style.DIM), (lines[0], style))
    for line in lines[1:]:
        out.pieces((" " * len(head), Style.PLAIN), (line, style))


def _wrapped(text: str, width: int) -> list[str]:
    """Lines of the text; a figure and its unit are not torn apart."""
    lines = wrap(_BEFORE_UNIT.sub(_TIED, text), width)
    return [line.replace(_TIED, " ") for line in lines]


def _print_table(columns: Sequence[Column], rows: Sequence[Sequence[Cell | str]], total: int, out: Output) -> None:
    out.table(columns, rows)
    _print_left_out(total - len(rows), out)


def _print_reasons(
    columns: Sequence[Column],
    rows: Sequence[Sequence[Cell | str]],
    texts: Sequence[str],
    out: Output,
    *,
    left_out: int = 0,
) -> None:
    """A table with a text to each row that is not cut: beside it where there is room, else below."""
    plain = render(columns, rows, width=out.width, colour=False).lines
    painted = render(columns, rows, width=out.width, colour=out.colour).lines
    widest = max(map(len, plain))
    room = min(_TEXT_WIDTH, (out.width or _TEXT_WIDTH + widest) - widest - 2)
    head = paint("why", Style.DIM, colour=out.colour) if room >= _LEAST_TEXT_WIDTH else ""
    print((painted[0] + " " * (widest - len(plain[0]) + 2) + head).rstrip())
    for bare, line, text in zip(plain[1:], painted[1:], texts, strict=True):
        if room >= _LEAST_TEXT_WIDTH:
            beside = _wrapped(printable(text), room) or [""]
            print((line + " " * (widest - len(bare) + 2) + beside[0]).rstrip())
            below = [" " * (widest + 2) + more for more in beside[1:]]
        else:
            print(line)
            below = ["    " + more for more in _wrapped(printable(text), (out.width or _TEXT_WIDTH) - 4)]
        for more in below:
            out.line(more)
    _print_left_out(left_out, out)


def _print_left_out(left_out: int, out: Output) -> None:
    if left_out > 0:
        out.line(f"and {left_out:,} before that, which --changes N lists", Style.DIM)


def _document(path: str, run_id: str, report: Report) -> dict[str, object]:
    def pace(value: Pace) -> dict[str, object]:
        rules = [rule._asdict() for rule in value.rules]
        return {
            **value._asdict(),
            "rules": rules,
            "interval_s": value.interval_s,
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
    }
