"""`holdfast prove`: whether a training that is interrupted goes on exactly as if it had not been."""

import argparse
import os
import shlex
import signal
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from textwrap import wrap

from holdfast.cli.exit_codes import NO, OK, code_of
from holdfast.cli.output import Output
from holdfast.cli.parser import whole
from holdfast.cli.progress import step_line
from holdfast.cli.table import Cell, Column, Style
from holdfast.cli.words import count, duration
from holdfast.core.errors import HoldfastError, StorageError, UsageError
from holdfast.policy.durations import seconds_of
from holdfast.proving.leftovers import held, make_directory, remove_leftovers
from holdfast.proving.measuring import size_words
from holdfast.proving.processes import adopting
from holdfast.proving.proof import Wishes, prove
from holdfast.proving.report import write_report
from holdfast.proving.running import Workspace
from holdfast.proving.stored import StoredVerdict, store_verdict
from holdfast.proving.verdict import DIFFERS, HARMLESS, IDENTICAL, UNFINISHED, Cause, Difference, Started, Verdict

__all__ = ["EXAMPLES", "SUMMARY", "TAKES_COMMAND", "add_arguments", "run"]

SUMMARY = """\
Whether a training that is interrupted goes on exactly as if it had not been. Runs the command undisturbed, twice, and
then again with interruptions (SIGKILL and SIGTERM, in the middle of a save, of an epoch, at the first and at the last
step), and compares every bit of the state, every random generator and every logged metric at every step. Says
`identical`, or at which step and in which leaf the runs part, by how much, and the likely cause. Everything happens in
a directory of its own; what the command would write elsewhere is refused. Exit status 0 where all is identical, 1 where
it is not."""
EXAMPLES = (
    "holdfast prove -- python train.py",
    "holdfast prove --steps 200 --time-limit 20min -- python train.py --lr 0.1",
    "holdfast prove --store --report proof.html -- python train.py",
    "holdfast prove --json -- python train.py | jq -r .causes[0].kind",
)
TAKES_COMMAND = True
"""What stands behind `--` is the program's."""

_DEFAULT_LIMIT = "10 min"
_TEXT_WIDTH = 110
_ANSWERS = {IDENTICAL: Style.GREEN, DIFFERS: Style.RED, UNFINISHED: Style.YELLOW}
_ENDING_SIGNALS = (signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The command's own options."""
    parser.usage = "holdfast prove [OPTION]... -- COMMAND..."
    # The command itself is taken from behind `--`; whatever else is no option stands where it does not belong.
    parser.add_argument("words", metavar="COMMAND", nargs=argparse.REMAINDER, help="what to run, behind `--`")
    parser.add_argument("--steps", metavar="N", type=whole(1), help="only the first N steps (default: all)")
    about = f"for all runs of the program together (default: {_DEFAULT_LIMIT})"
    parser.add_argument("--time-limit", metavar="DURATION", default=_DEFAULT_LIMIT, help=about)
    about = "how often to interrupt it (default: 6)"
    parser.add_argument("--interruptions", metavar="N", type=whole(1), default=6, help=about)
    parser.add_argument("--seed", metavar="N", type=whole(0), default=0, help="of the random moments (default: 0)")
    parser.add_argument("--report", metavar="FILE", help="also write a report: a web page, whole in one file")
    parser.add_argument("--store", action="store_true", help="store the verdict with the run, so that `ls` shows it")
    about = "let the program write there too; may be repeated"
    parser.add_argument("--allow", metavar="PATH", action="append", default=[], help=about)
    parser.add_argument("--dir", metavar="DIR", help="work in this new directory, and keep it")
    parser.add_argument("--keep-files", action="store_true", help="keep the traces, outputs and checkpoints")


def run(arguments: argparse.Namespace, out: Output) -> int:
    """Prove, and say what was found."""
    wishes = _wishes(arguments)
    remove_leftovers()
    root = _directory(arguments.dir)
    keeps = arguments.keep_files or arguments.dir is not None
    with _signals_end(), adopting() as spared, held(root):
        workspace = Workspace(
            root, wishes.command, origin=os.getcwd(), allow=arguments.allow, spared=spared, keeps=keeps
        )
        try:
            verdict = prove(wishes, workspace, lambda title, total: step_line(title, total, quiet=out.json))
        finally:
            if not keeps:
                workspace.remove()
    remarks = [*verdict.remarks, *workspace.remarks(), *([f"files: {root}"] if keeps else [])]
    if arguments.store:
        remarks += [_store(path, verdict) for path in verdict.runs]
    verdict = verdict._replace(remarks=tuple(remarks))
    failure = None
    if arguments.report is not None:
        failure = _report(arguments.report, verdict)
        remarks.append(failure.message if failure is not None else f"report: {arguments.report}")
        verdict = verdict._replace(remarks=tuple(remarks))
    if out.json:
        out.document(verdict.document())
    else:
        _print(verdict, out)
    if failure is not None and verdict.answer == IDENTICAL:
        return code_of(failure)
    return OK if verdict.answer == IDENTICAL else NO


def _wishes(arguments: argparse.Namespace) -> Wishes:
    command, words = tuple(arguments.command), shlex.join(arguments.words)
    if words and not command:
        raise UsageError(
            f"the command is not behind --: {words}", hint=f"put -- before the command: holdfast prove -- {words}"
        )
    if words:
        raise UsageError(
            f"before -- are only options, not {words}",
            hint='what has spaces in it goes into quotes: --time-limit "5 minutes"',
        )
    if not command:
        raise UsageError("there is no command to prove", hint="holdfast prove -- python train.py")
    limit_s = seconds_of(arguments.time_limit, "--time-limit")
    if limit_s <= 0:
        raise UsageError("--time-limit is 0, which leaves no time", hint="for example --time-limit 10min")
    if arguments.report is not None:
        _check_report(arguments.report)
    if "" in arguments.allow:
        raise UsageError("--allow names nothing", hint="name a directory or a file: --allow results")
    return Wishes(command, arguments.steps, limit_s, arguments.interruptions, arguments.seed)


def _check_report(path: str) -> None:
    """UsageError where a report cannot be written: better now than when all is done."""
    directory = os.path.dirname(os.path.abspath(path))
    if not os.path.isdir(directory):
        raise UsageError(f"{path}: its directory does not exist", hint="make it, or choose another place")
    if os.path.isdir(path):
        raise UsageError(f"--report {path}: is a directory", hint="name a file in it")
    if not os.access(path if os.path.exists(path) else directory, os.W_OK):
        raise UsageError(f"--report {path}: cannot be written", hint="choose another place")


def _report(path: str, verdict: Verdict) -> StorageError | None:
    """Write it; what became of it, which is no reason to keep the verdict back."""
    try:
        write_report(path, verdict)
    except StorageError as error:
        return error
    return None


def _directory(given: str | None) -> str:
    if given is None:
        return make_directory()
    if os.path.lexists(given) and not os.path.isdir(given):
        raise UsageError(f"--dir {given}: is no directory", hint="name a new one")
    try:
        if os.path.isdir(given) and os.listdir(given):
            raise UsageError(f"--dir {given}: is not empty", hint="name a new directory")
        os.makedirs(given, mode=0o700, exist_ok=True)
    except OSError as error:
        raise UsageError(f"--dir {given}: {error.strerror}", hint="choose another place") from error
    return given


@contextmanager
def _signals_end() -> Iterator[None]:
    """An order to end comes as an exception, so that no program is left running."""

    def leave(number: int, _: object) -> None:
        raise SystemExit(128 + number)

    before = [(number, signal.signal(number, leave)) for number in _ENDING_SIGNALS]
    try:
        yield
    finally:
        for number, handler in before:
            signal.signal(number, handler)


def _store(path: str, verdict: Verdict) -> str:
    """Put the verdict into the run; what became of it."""
    from holdfast.cli.runs import Run

    cause = verdict.causes[0] if verdict.causes else Cause("", "")
    stored = StoredVerdict(
        answer=verdict.answer,
        utc_s=verdict.utc_s,
        interruptions=verdict.interruptions,
        last_step=verdict.last_step,
        step=verdict.step,
        path=verdict.path,
        cause=cause.what,
        kind=cause.kind,
        command=shlex.join(verdict.command),
    )
    try:
        with Run(path, writable=True) as opened:
            store_verdict(opened.store, stored)
    except HoldfastError as error:
        return f"not stored: {error.message}"
    return f"stored with {path}"


def _print(verdict: Verdict, out: Output) -> None:
    width = min(out.width or _TEXT_WIDTH, _TEXT_WIDTH)
    out.pieces((_headline(verdict), f"{Style.BOLD};{_ANSWERS[verdict.answer]}"))
    for line in wrap(_scope(verdict), width - 2):
        out.line(f"  {line}")
    if verdict.differences:
        out.line()
    for item in verdict.differences:
        _print_difference(item, out, width)
    if verdict.more_differences:
        out.line(f"  and {verdict.more_differences:,} more", Style.DIM)
    for number, cause in enumerate(verdict.causes):
        out.line()
        _print_cause(cause, "likely cause" if number == 0 else "also", out, width)
    if verdict.tail:
        out.line()
        out.line("its last lines:")
        for line in verdict.tail:
            out.line(f"    {line}", Style.DIM)
    out.line()
    _print_starts(verdict.starts, out)
    for remark in verdict.remarks:
        for line in wrap(remark, width):
            out.line(line, Style.DIM)


def _headline(verdict: Verdict) -> str:
    if verdict.answer == IDENTICAL and verdict.unseen:
        struck = count(verdict.interruptions, "interruption")
        return (
            f"identical where the state could be had: {struck}, {verdict.unseen} of {verdict.points} points without it"
        )
    if verdict.answer == IDENTICAL:
        return f"identical: {count(verdict.interruptions, 'interruption')}, every bit the same at every step"
    if verdict.answer == UNFINISHED:
        return f"not finished: {verdict.interruptions} of {count(verdict.wanted, 'interruption')}, identical so far"
    if verdict.leaf:
        return f"differs: since step {verdict.step}, {verdict.leaf} is not saved any more"
    if verdict.undisturbed and verdict.causes[0].kind in HARMLESS:
        struck = count(verdict.interruptions, "interruption")
        return f"not identical: {verdict.path} never is; all else is, after {struck}"
    if verdict.undisturbed:
        return f"not repeatable: two undisturbed runs differ at step {verdict.step}: {verdict.path}"
    if verdict.at == "restored":
        return f"differs right after the restore of step {verdict.step}: {verdict.path}"
    if not verdict.step:
        return "differs: a resumed program does not come to its first step"
    return f"differs at step {verdict.step}" + (f": {verdict.path}" if verdict.path else "")


def _scope(verdict: Verdict) -> str:
    runs = ", ".join(verdict.runs)
    compared = f"{count(verdict.points, 'point')} of {count(verdict.leaves, 'leaf', 'leaves')} compared"
    took = duration(verdict.took_s)
    return f"{runs}: steps {verdict.first_step} to {verdict.last_step}; {compared}; seed {verdict.seed}; {took}"


def _print_difference(item: Difference, out: Output, width: int) -> None:
    size = size_words(item)
    if item.before.startswith("b3:") or item.after.startswith("b3:"):
        words = "other bits"
    elif item.before == item.after:
        words = f"{item.before}, {size or 'other bits'}"
    else:
        words = f"{item.before or 'nothing'} undisturbed, {item.after or 'nothing'} now"
        words += f"; {size}" if size else ""
    lines = wrap(f"{item.path}  {words}", width - 2, subsequent_indent="    ", break_on_hyphens=False)
    out.pieces((f"  {item.path}", Style.RED), (lines[0].removeprefix(item.path), Style.PLAIN))
    for line in lines[1:]:
        out.line(f"  {line}")


def _print_cause(cause: Cause, label: str, out: Output, width: int) -> None:
    out.pieces((f"{label}: ", Style.BOLD), (cause.kind, f"{Style.BOLD};{Style.YELLOW}"))
    for text in (cause.what, *(f"- {text}" for text in cause.evidence)):
        for line in wrap(text, width - 2, subsequent_indent="  " if text.startswith("- ") else ""):
            out.line(f"  {line}")
    if cause.advice:
        for number, line in enumerate(wrap(cause.advice, width - 4)):
            out.line(f"  {'→' if number == 0 else ' '} {line}", Style.GREEN)


def _print_starts(starts: Sequence[Started], out: Output) -> None:
    columns = [
        Column("start", shrink=True),
        Column("from", right=True),
        Column("to", right=True),
        Column("interrupted", shrink=True),
        Column("took", right=True, drop=1),
        Column("", shrink=True),
    ]
    out.table(columns, [_start_row(start) for start in starts])


def _start_row(start: Started) -> Sequence[Cell | str]:
    name = start.case if start.case != "interrupted" else f"{start.number}  {start.why}"
    style = Style.GREEN if start.outcome.startswith("equal") else Style.PLAIN if start.outcome == "ended" else Style.RED
    return [
        name,
        "" if start.from_step is None else str(start.from_step),
        "" if start.to_step is None else str(start.to_step),
        start.struck_words,
        f"{start.took_s:.1f} s" if start.took_s else "",
        Cell(start.outcome, style),
    ]
