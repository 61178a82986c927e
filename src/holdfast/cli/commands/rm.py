"""`holdfast rm`: remove checkpoints by hand."""

import argparse
from collections.abc import Sequence

from holdfast.cli.exit_codes import NO, OK
from holdfast.cli.output import Output
from holdfast.cli.parser import add_choice, add_run, add_yes
from holdfast.cli.runs import Run, pick
from holdfast.cli.words import count, size
from holdfast.core.clock import SystemClock
from holdfast.core.errors import UsageError
from holdfast.core.values import Checkpoint
from holdfast.engine.commit import remove_checkpoint
from holdfast.engine.journal import Journal
from holdfast.engine.pruning import is_complete

__all__ = ["EXAMPLES", "SUMMARY", "add_arguments", "run"]

SUMMARY = """\
Remove checkpoints. The last good one, the last verified one and pinned ones are refused without --force: after that the
training could only start over."""
EXAMPLES = (
    "holdfast rm runs/mnist 1200",
    "holdfast rm runs/mnist 1000 1100 --yes",
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The command's own options."""
    add_run(parser)
    add_choice(parser, several=True)
    parser.add_argument(
        "--force", action="store_true", help="also the last good one, the last verified one, pinned ones"
    )
    add_yes(parser)


def run(arguments: argparse.Namespace, out: Output) -> int:
    """Check, ask, remove."""
    with Run(arguments.run, writable=True) as opened:
        checkpoints = opened.catalog().checkpoints
        by, mode = arguments.by, arguments.mode
        picked = [pick(checkpoints, which, by=by, mode=mode, where=arguments.run) for which in arguments.which]
        doomed = list({checkpoint.id: checkpoint for checkpoint in picked}.values())
        if not arguments.force:
            _check(opened, checkpoints, doomed)
        listed = ", ".join(f"step {c.step} ({c.id})" for c in doomed)
        if not out.confirm(f"remove {listed}?", yes=arguments.yes):
            return NO
        for checkpoint in doomed:
            remove_checkpoint(opened.store, checkpoint.id, attempt=None)
        removed = [checkpoint.id for checkpoint in doomed]
        Journal(opened.store, SystemClock(), 0).record("removed", by="holdfast rm", removed=removed)
    freed_bytes = sum(checkpoint.size_bytes for checkpoint in doomed)
    if out.json:
        out.document({"run": arguments.run, "removed": removed, "freed_bytes": freed_bytes})
    else:
        out.line(f"{count(len(removed), 'checkpoint')} removed, {size(freed_bytes)} freed")
    return OK


def _check(opened: Run, checkpoints: Sequence[Checkpoint], doomed: Sequence[Checkpoint]) -> None:
    """UsageError where a restart would miss one of them (I6)."""
    names = {checkpoint.id for checkpoint in doomed}
    left = [c for c in checkpoints if c.id not in names and not c.quarantined]
    hint = "--force removes it all the same"
    for checkpoint in doomed:
        if checkpoint.pinned:
            raise UsageError(f"step {checkpoint.step} is pinned", hint=f"holdfast unpin first, or {hint}")
    good = [checkpoint for checkpoint in doomed if not checkpoint.quarantined]
    if good and not any(is_complete(opened.store, opened.run_id, c.id) for c in reversed(left)):
        raise UsageError(f"step {good[-1].step} is the last good checkpoint of {opened.path}", hint=hint)
    verified = [checkpoint for checkpoint in good if checkpoint.verified]
    if verified and not any(c.verified for c in left):
        hint = f"verify another one first (holdfast verify {opened.path} --all); {hint}"
        raise UsageError(f"step {verified[-1].step} is the last verified checkpoint of {opened.path}", hint=hint)
