"""`holdfast doctor`: test what the storage can do, and say what to change."""

import argparse
import os
from collections.abc import Iterator

from holdfast.cli.exit_codes import NO, OK
from holdfast.cli.layout import lines_beside
from holdfast.cli.output import Output
from holdfast.cli.progress import progress_bar
from holdfast.cli.runs import Run
from holdfast.cli.table import Style
from holdfast.cli.words import count, parse_bytes
from holdfast.core.clock import SystemClock
from holdfast.core.errors import BlobMissingError, HoldfastError, StorageError, UsageError
from holdfast.core.names import MARKER_NAME, parse_checkpoint_id
from holdfast.engine import doctor
from holdfast.engine.checkup import examine_run
from holdfast.engine.doctor import Finding, examine_directory
from holdfast.engine.journal import read_events
from holdfast.engine.memory_checkup import examine_memory
from holdfast.engine.pace_report import report_pace
from holdfast.integrations.slurm_doctor import examine_script

__all__ = ["EXAMPLES", "SUMMARY", "add_arguments", "run"]

SUMMARY = """\
Test what the storage under a run, or under a directory that is to hold runs, can do: direct I/O, fsync, rename, locks
between processes, space, speed. Of a run, also look for what crashes left behind. Then say what your trainings have in
the memory of this machine. The tests write into a directory of their own and remove it. With --script, look at a batch
script of Slurm instead: whether the job saves when it is stopped, and comes back. Exit status 1 where something fails;
warnings do not count, unless --strict."""
EXAMPLES = (
    "holdfast doctor runs/mnist",
    "holdfast doctor /scratch --speed 1G            # before the first run",
    "holdfast doctor runs/mnist --speed 0 --strict  # in a job script",
    "holdfast doctor --script job.sh runs/mnist     # knows from the run how long a checkpoint takes",
)
_INDENT = 19  # of what was found: behind status and name
_MOST_SCRIPT_BYTES = 4 << 20  # as much as Slurm takes by default
_STYLES = {doctor.OK: Style.GREEN, doctor.WARN: Style.YELLOW, doctor.FAIL: Style.RED}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The command's own options."""
    parser.add_argument("path", metavar="RUN|DIR", nargs="?", default=".", help="a run, or any directory (default: .)")
    about = "write this much for the speed test, at least 8M; 0 leaves it out (default: 256M)"
    parser.add_argument("--speed", metavar="SIZE", default="256M", help=about)
    about = "look at this batch script instead of the storage"
    parser.add_argument("--script", metavar="FILE", help=about)
    parser.add_argument("--strict", action="store_true", help="warnings count as failures")


def run(arguments: argparse.Namespace, out: Output) -> int:
    """Examine and report."""
    if arguments.script is not None:
        findings = list(_examine_script(arguments.script, arguments.path))
        if not out.json:
            for finding in findings:
                _report(finding, out)
        return _conclude(findings, arguments, out)
    speed_bytes = parse_bytes(arguments.speed, option="--speed")
    findings = []
    with progress_bar("testing", 2 * speed_bytes, quiet=out.json) as progress:
        storage = examine_directory(arguments.path, SystemClock(), speed_bytes=speed_bytes, progress=progress)
        for finding in _examine(arguments.path, storage):
            findings.append(finding)
            if not out.json:
                _report(finding, out)
    return _conclude(findings, arguments, out)


def _conclude(findings: list[Finding], arguments: argparse.Namespace, out: Output) -> int:
    failed = sum(finding.status == doctor.FAIL for finding in findings)
    warned = sum(finding.status == doctor.WARN for finding in findings)
    healthy = not failed and not (arguments.strict and warned)
    if out.json:
        path = arguments.script if arguments.script is not None else arguments.path
        out.document({"path": path, "healthy": healthy, "findings": [f._asdict() for f in findings]})
    else:
        out.line()
        verdict = f"{count(failed, 'failure')}, {count(warned, 'warning')}" if failed or warned else "all is well"
        out.line(verdict, Style.RED if failed else Style.YELLOW if warned else Style.GREEN)
    return OK if healthy else NO


def _examine(path: str, storage: Iterator[Finding]) -> Iterator[Finding]:
    """What is the run's own first, then what is under it, then what is beside it."""
    if not _holds_run(path):
        yield from storage
        yield from examine_memory(None)
        return
    try:
        opened = Run(path)
    except HoldfastError:
        yield from storage  # which may say why
        raise
    with opened:
        yield from examine_run(opened.store, opened.run_id)
        yield from storage
        yield from examine_memory(opened.run_id)


def _holds_run(path: str) -> bool:
    """Whether it is a run, or the rest of one: without its marker it is used all the same, if checkpoints are there."""
    if os.path.lexists(os.path.join(path, MARKER_NAME)):
        return True
    try:
        return any(parse_checkpoint_id(name) for name in os.listdir(path))
    except OSError:
        return False  # the tests of the storage say why


def _examine_script(path: str, run_path: str) -> Iterator[Finding]:
    if os.path.exists(path) and not os.path.isfile(path):
        raise UsageError(f"--script {path}: is no file", hint="name a batch script, as sbatch takes it")
    try:
        with open(path, "rb") as file:
            text = file.read(_MOST_SCRIPT_BYTES + 1).decode()
    except OSError as error:
        kind = BlobMissingError if isinstance(error, FileNotFoundError) else StorageError
        raise kind(f"--script {path}: {error.strerror}", hint="name a batch script, as sbatch takes it") from error
    except UnicodeDecodeError as error:
        raise UsageError(f"--script {path}: is no text", hint="name a batch script, as sbatch takes it") from error
    if len(text) > _MOST_SCRIPT_BYTES or "\0" in text:
        raise UsageError(f"--script {path}: is no script", hint="name a batch script, as sbatch takes it")
    return examine_script(text, where=path, checkpoint_s=_checkpoint_s(run_path))


def _checkpoint_s(path: str) -> float | None:
    """What the checkpoints of the run take until they are durable, as its journal says; None where it does not."""
    if not _holds_run(path):
        return None
    with Run(path) as opened:
        report = report_pace(list(read_events(opened.store)))
    return max((pace.durable_s for pace in report.paces[-20:] if pace.durable_s is not None), default=None)


def _report(finding: Finding, out: Output) -> None:
    first, *more = lines_beside(finding.found, _INDENT, out)
    out.pieces((f"{finding.status:<4}", _STYLES[finding.status]), (f"  {finding.what:<12} {first}", Style.PLAIN))
    for line in more:
        out.line(" " * _INDENT + line)
    if finding.advice:  # whole: it may end in a command, to be copied
        out.line(" " * _INDENT + finding.advice, Style.DIM)
