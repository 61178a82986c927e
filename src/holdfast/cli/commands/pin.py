"""`holdfast pin`: keep a checkpoint whatever retention says."""

import argparse

from holdfast.cli.choosing import best_of, pick
from holdfast.cli.exit_codes import NO, OK
from holdfast.cli.output import Output
from holdfast.cli.parser import add_choice, add_run
from holdfast.cli.runs import Run
from holdfast.core.clock import SystemClock
from holdfast.engine.commit import pin
from holdfast.engine.documents import check_note
from holdfast.engine.marks import PINNED, read_reason

__all__ = ["EXAMPLES", "SUMMARY", "add_arguments", "run"]

SUMMARY = "Keep a checkpoint, whatever retention says, until it is unpinned or removed by hand."
EXAMPLES = (
    "holdfast pin runs/mnist 1200",
    "holdfast pin runs/mnist best --by val_loss --note 'figure 3 of the paper'",
)
_NO_NOTE = "holdfast pin"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The command's own options."""
    add_run(parser)
    add_choice(parser)
    parser.add_argument("--note", metavar="TEXT", default="", help="why")


def run(arguments: argparse.Namespace, out: Output) -> int:
    """Set the mark."""
    note = check_note(arguments.note)
    best = best_of(arguments, arguments.which)
    with Run(arguments.run, writable=True) as opened:
        checkpoint = pick(opened.catalog().checkpoints, arguments.which, best=best, where=arguments.run)
        if not checkpoint.pinned:
            pin(opened.store, checkpoint.id, reason=note or _NO_NOTE, clock=SystemClock())
        said = read_reason(opened.store, checkpoint.id, PINNED)
    is_noted = not note or said == note
    if out.json:
        out.document({"run": arguments.run, "id": checkpoint.id, "pinned": True, "note": said})
    else:
        already = f" already, with the note {said!r}" if checkpoint.pinned and said != _NO_NOTE else ""
        already = already or (" already" if checkpoint.pinned else "")
        out.line(f"step {checkpoint.step} is pinned{already}: {checkpoint.id}")
    if not is_noted:
        out.remark(f"the note stays; to change it, `holdfast unpin {arguments.run} {arguments.which}`, then pin again")
    return OK if is_noted else NO
