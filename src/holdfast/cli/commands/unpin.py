"""`holdfast unpin`: let retention decide again."""

import argparse

from holdfast.cli.choosing import best_of, pick
from holdfast.cli.exit_codes import OK
from holdfast.cli.output import Output
from holdfast.cli.parser import add_choice, add_run
from holdfast.cli.runs import Run
from holdfast.engine.marks import PINNED, clear_mark

__all__ = ["EXAMPLES", "SUMMARY", "add_arguments", "run"]

SUMMARY = "Take the pin off a checkpoint: retention decides again."
EXAMPLES = ("holdfast unpin runs/mnist 1200",)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The command's own options."""
    add_run(parser)
    add_choice(parser)


def run(arguments: argparse.Namespace, out: Output) -> int:
    """Take the mark off."""
    best = best_of(arguments, arguments.which)
    with Run(arguments.run, writable=True) as opened:
        checkpoint = pick(opened.catalog().checkpoints, arguments.which, best=best, where=arguments.run)
        clear_mark(opened.store, checkpoint.id, PINNED)
    if out.json:
        out.document({"run": arguments.run, "id": checkpoint.id, "pinned": False})
    else:
        out.line(f"step {checkpoint.step} {'is no longer' if checkpoint.pinned else 'was not'} pinned: {checkpoint.id}")
    return OK
