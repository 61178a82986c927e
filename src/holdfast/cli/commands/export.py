"""`holdfast export`: a checkpoint in a file that other programs read, or the files that it was made of."""

import argparse

from holdfast.cli.choosing import LATEST, best_of, pick
from holdfast.cli.exit_codes import OK
from holdfast.cli.output import Output
from holdfast.cli.parser import add_choice, add_run
from holdfast.cli.progress import progress_bar
from holdfast.cli.reading import source_of
from holdfast.cli.runs import Run
from holdfast.cli.words import count, size
from holdfast.core.errors import UsageError
from holdfast.core.values import Checkpoint
from holdfast.engine.exchange import export_checkpoint, suffix_of
from holdfast.engine.file_state import restore_files

__all__ = ["EXAMPLES", "SUMMARY", "add_arguments", "run"]

SUMMARY = """\
Write a checkpoint, or a part of it, as a new file: .safetensors and .npz hold the arrays, .pt (needs torch) also the
values around them, as `torch.load(weights_only=True)` takes them. With --only the names begin after that path. Types
that numpy does not know (bfloat16, float8) stand in an .npz as their bits. A checkpoint of files, as `holdfast run
--app` makes them, is written to a directory: --to DIR/. Every byte is verified on the way."""
EXAMPLES = (
    "holdfast export runs/mnist latest --only model --to model.safetensors",
    "holdfast export runs/mnist best --by val_loss --to best.pt",
    "holdfast export runs/mnist 1200 --to step1200.npz",
    "holdfast export runs/water latest --to brought-back/",
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The command's own options."""
    add_run(parser)
    add_choice(parser, optional=True)
    about = "the new file, ending in .safetensors, .pt or .npz; or for files a directory, ending in /"
    parser.add_argument("--to", metavar="FILE|DIR/", required=True, help=about)
    parser.add_argument("--only", metavar="PATH", help="only this part of the tree, for example model")
    parser.add_argument("--force", action="store_true", help="replace files that exist")


def run(arguments: argparse.Namespace, out: Output) -> int:
    """Export and say what was written."""
    is_folder = arguments.to.endswith("/")
    if is_folder and arguments.only is not None:
        raise UsageError(f"--only goes with one file, and {arguments.to} is a directory", hint="leave --only away")
    if not is_folder:
        suffix_of(arguments.to)
    which = arguments.which or LATEST
    best = best_of(arguments, which)
    with Run(arguments.run) as opened:
        checkpoint = pick(opened.catalog().checkpoints, which, best=best, where=arguments.run)
        with progress_bar("exporting", checkpoint.size_bytes, quiet=out.json) as progress:
            source = source_of(opened, progress)
            if is_folder:
                names = restore_files(source, checkpoint.id, arguments.to, replace=arguments.force)
                return _say_files(arguments, checkpoint, names, out)
            done = export_checkpoint(source, checkpoint.id, arguments.to, only=arguments.only, replace=arguments.force)
    if out.json:
        out.document({"run": arguments.run, "id": checkpoint.id, **done._asdict()})
        return OK
    out.line(f"{done.path}: {count(done.arrays, 'array')}, {size(done.size_bytes)}, of step {checkpoint.step}")
    if done.left_out:
        some = ", ".join(done.left_out[:5]) + (", …" if len(done.left_out) > 5 else "")
        more = "" if done.path.endswith(".pt") else "; a .pt file holds plain values, too"
        out.remark(f"{count(len(done.left_out), 'value')} left out, which the format cannot hold: {some}{more}")
    return OK


def _say_files(arguments: argparse.Namespace, checkpoint: Checkpoint, names: list[str], out: Output) -> int:
    if out.json:
        out.document({"run": arguments.run, "id": checkpoint.id, "path": arguments.to, "files": names})
    else:
        out.line(f"{arguments.to}: {count(len(names), 'file')} of step {checkpoint.step}: {', '.join(names)}")
    return OK
