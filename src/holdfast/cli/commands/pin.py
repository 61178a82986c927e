"""`holdfast pin`: keep a checkpoint whatever retention says."""

import argparse

from holdfast.cli.exit_codes import OK
from holdfast.cli.output import Output
from holdfast.cli.parser import add_choice, add_run
from holdfast.cli.runs import Run
from holdfast.core.clock import SystemClock
from holdfast.engine.commit import pin
from holdfast.engine.documents import check_note

__all__ = ["EXAMPLES", "SUMMARY", "add_arguments", "run"]

SUMMARY = "Keep a checkpoint, whatever retention says, until it is unpinned or removed by hand."
EXAMPLES = (
    "holdfast pin runs/mnist 1200",
    "holdfast pin runs/mnist best --by val_loss --note 'figure 3 of the paper'",
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The command's own options."""
    add_run(parser)
    add_choice(parser)
    parser.add_argument("--note", metavar="TEXT", default="", help="why")


def run(arguments: argparse.Namespace, out: Output) -> int:
    """Set the mark."""
    note = check_note(arguments.note)
    with Run(arguments.run, writable=True) as opened:
        checkpoint = opened.choose(arguments.which, by=arguments.by, mode=arguments.mode)
        if not checkpoint.pinned:
            pin(opened.store, checkpoint.id, reason=note or "holdfast pin", clock=SystemClock())
    if out.json:
        out.document({"run": arguments.run, "id": checkpoint.id, "pinned": True, "note": note})
    else:
        already = " already" if checkpoint.pinned and not note else ""
        out.line(f"step {checkpoint.step} is pinned{already}: {checkpoint.id}")
    return OK
