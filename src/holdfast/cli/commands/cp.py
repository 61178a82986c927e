"""`holdfast cp`: copy a checkpoint or a run, verified at both ends."""

import argparse
import os

from holdfast.cli.choosing import best_of, pick
from holdfast.cli.exit_codes import OK
from holdfast.cli.output import Output
from holdfast.cli.parser import add_best
from holdfast.cli.progress import progress_bar
from holdfast.cli.reading import source_of
from holdfast.cli.runs import Run, parse_place
from holdfast.cli.words import count, size
from holdfast.core.clock import SystemClock
from holdfast.core.errors import NoCheckpointError, UsageError
from holdfast.engine.transfer import copy_checkpoints, copy_journal
from holdfast.policy.lineage import in_order
from holdfast.storage.posix import PosixStore

__all__ = ["EXAMPLES", "SUMMARY", "add_arguments", "run"]

SUMMARY = """\
Copy one checkpoint (RUN:WHICH) or a whole run (RUN) to the directory DST. Files stay the same byte for byte; each is
compared with its digests while it is read and once more when it is read back from DST. DST is a new directory, or an
earlier copy of the same run: what is there is skipped and not read again, and nothing is ever overwritten. An
interrupted copy is finished by the same command. Quarantined checkpoints are left out of a whole run; one that turns
out damaged ends the copy."""
EXAMPLES = (
    "holdfast cp runs/mnist /archive/mnist",
    "holdfast cp runs/mnist:best /archive/mnist --by val_loss",
    "holdfast cp runs/mnist:1200 /scratch/from-1200    # go on from step 1200 there",
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The command's own options."""
    parser.add_argument("source", metavar="RUN[:WHICH]", help="a run, or one checkpoint of it")
    parser.add_argument("target", metavar="DST", help="the directory of the copy")
    add_best(parser)


def run(arguments: argparse.Namespace, out: Output) -> int:
    """Copy and say what was copied."""
    place = parse_place(arguments.source)
    best = best_of(arguments, *([] if place.which is None else [place.which]))
    _check_apart(place.run, arguments.target)
    with Run(place.run) as opened:
        checkpoints = opened.catalog().checkpoints
        if place.which is None:
            wanted = [c for c in in_order(checkpoints) if not c.quarantined]
        else:
            wanted = [pick(checkpoints, place.which, best=best, where=place.run)]
        if not wanted:
            raise NoCheckpointError(f"{place.run} has no checkpoint to copy", hint=f"holdfast ls {place.run}")
        target = PosixStore(arguments.target, create=True)
        try:
            # Each byte is handled twice: copied, and read back.
            with progress_bar("copying", 2 * sum(c.size_bytes for c in wanted), quiet=out.json) as progress:
                done = copy_checkpoints(source_of(opened, progress), target, wanted, SystemClock())
            if place.which is None:
                copy_journal(opened.store, target)
        finally:
            target.close()
    left = [c.id for c in checkpoints if c.quarantined] if place.which is None else []
    if out.json:
        out.document({"source": place.run, "target": arguments.target, **done._asdict(), "quarantined": left})
        return OK
    copied = f"{count(len(done.copied), 'checkpoint')} copied"
    if done.copied:
        copied += f", {size(done.size_bytes)}, verified"
    out.line(f"{arguments.target}: {copied}")
    if done.already_there:
        present = len(done.already_there)
        there = "1 was there already and was" if present == 1 else f"{present} were there already and were"
        out.line(f"{there} not read again: `holdfast verify {arguments.target} --all` does that")
    for name in done.gone:
        out.remark(f"{name} was removed from the source meanwhile")
    for name in left:
        out.remark(f"{name} is quarantined and was not copied")
    return OK


def _check_apart(source: str, target: str) -> None:
    """UsageError where the copy would be the run itself, or foreign files inside of it."""
    run, copy = os.path.realpath(source), os.path.realpath(target)
    if copy == run or copy.startswith(os.path.join(run, "")):
        where = "is the run itself" if copy == run else f"is inside of {source}"
        raise UsageError(f"{target} {where}", hint="copy to a directory outside of the run")
