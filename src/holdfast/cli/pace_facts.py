"""What is said of a run's pace at the beginning: why that often, what it costs, what is at stake."""

from collections.abc import Iterator

from holdfast.cli.table import Style
from holdfast.cli.words import count
from holdfast.engine.history import Ending
from holdfast.engine.pace_report import Pace, Report
from holdfast.engine.pace_words import share_words, steps_words, time_words

__all__ = ["RULES", "lately_words", "pace_facts", "unpaced_facts"]

RULES = {
    "durable": "a checkpoint is durable before the next one begins",
    "overhead": "what checkpoints cost stays within the limit",
    "failures": "for this failure rate, more checkpoints would cost more than they save",
    "lose_at_most": "never longer: more than this is not to be lost",
}
"""What a rule is for, where the journal does not say."""
_UNKNOWN = "–"
_FEW = 4  # steps: an interval that is wrong by a fifth of these is wrong by less than a step


def pace_facts(report: Report, pace: Pace) -> Iterator[tuple[str, str, str]]:
    """Labels, texts and their styles."""
    why = pace.why or RULES.get(pace.won, "no reason is known")
    if why.startswith(f"every {pace.interval_steps} steps") and ": " in why:
        why = why.partition(": ")[2]  # said in the line above
    yield "why", why + (f" (rule: {pace.won})" if pace.won and pace.won not in why else ""), ""
    if pace.kept_against is not None and pace.interval_steps is not None:
        apart = _apart(pace.kept_against, pace.interval_steps)
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


def unpaced_facts(report: Report, untold: int) -> Iterator[tuple[str, str, str]]:
    """Of a run in which no interval was chosen by measurement: what its checkpoints tell.

    `untold` is how many there are where the journal tells of none.
    """
    yield "why", _why_unpaced(report, untold), ""
    yield "checkpoints", _spaced(report, untold), ""
    if report.attempts:
        yield "failures", _failures(report), ""


def lately_words(pace: Pace) -> str:
    """What checkpoints cost lately."""
    return _UNKNOWN if pace.overhead_lately is None else share_words(pace.overhead_lately)


def _apart(wanted: int, kept: int) -> str:
    """In per cent; but of so few steps, what was rounded to one is part of one."""
    return "part of a step" if min(wanted, kept) < _FEW else share_words(abs(wanted / kept - 1))


def _why_unpaced(report: Report, untold: int) -> str:
    if report.is_auto:
        return 'every="auto" has not measured enough yet'
    if report.commits:
        return 'the program\'s own rule (every=..., or save() where it wants): the interval was not found by "auto"'
    if untold:
        return "the journal does not tell: it knows of no checkpoint, and of no interval"
    return "no program has made a checkpoint here yet, and no interval was found"


def _spaced(report: Report, untold: int) -> str:
    """How many checkpoints there are, and how far apart."""
    if not report.commits:
        return f"{untold:,} here, of which the journal tells nothing" if untold else "none yet"
    made, spacing = f"{len(report.commits):,} durable", report.spacing
    if spacing is None:
        return made
    steps = steps_words(round(spacing.steps))
    takes = f" (≈ {time_words(spacing.seconds)})" if spacing.seconds > 0 else ""
    return (
        f"{made}, every {steps}{takes}" if spacing.is_even else f"{made}, unevenly: half of them within {steps}{takes}"
    )


def _overhead(report: Report, pace: Pace) -> str:
    lately = lately_words(pace)
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
