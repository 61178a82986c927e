"""`holdfast import`: a checkpoint made of a file of another program."""

import argparse
import os
from collections.abc import Mapping

from holdfast.cli.exit_codes import OK
from holdfast.cli.output import Output
from holdfast.cli.runs import Run
from holdfast.cli.words import count, size
from holdfast.core.clock import SystemClock
from holdfast.core.errors import RunError, UsageError
from holdfast.engine.documents import check_count, check_metrics, check_note, check_tags
from holdfast.engine.importing import import_state, newest_before, read_state_file
from holdfast.engine.laying import lay_out_state
from holdfast.engine.provenance import collect_provenance
from holdfast.engine.saving import Document
from holdfast.engine.session import Session, default_workers
from holdfast.format.encode import encode_state
from holdfast.storage.posix import PosixStore

__all__ = ["EXAMPLES", "SUMMARY", "add_arguments", "run"]

SUMMARY = """\
Make a checkpoint of a .safetensors, .npz or .pt file. Nothing in the file is executed: a .pt file may hold tensors and
plain values only. Its names become the state's; --as puts them under one name, as Checkpointer(run, {"model": model})
wants them. RUN is made if it does not exist; in a run that has checkpoints the new one follows the newest."""
EXAMPLES = (
    "holdfast import model.safetensors runs/finetune --step 0 --as model",
    "holdfast import old-checkpoint.pt runs/mnist --step 1200 --note 'from the old script'",
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The command's own options."""
    parser.add_argument("file", metavar="FILE", help="a .safetensors, .npz or .pt file")
    parser.add_argument("run", metavar="RUN", help="the run's directory")
    parser.add_argument("--step", metavar="N", type=int, required=True, help="the step of the new checkpoint")
    parser.add_argument("--epoch", metavar="N", type=int, help="its epoch")
    parser.add_argument("--as", dest="name", metavar="NAME", help="put everything under this name of the state")
    parser.add_argument("--metric", metavar="NAME=VALUE", action="append", default=[], help="a metric; may be repeated")
    parser.add_argument("--note", metavar="TEXT", help="a note (default: where it came from)")
    parser.add_argument("--tag", metavar="TAG", action="append", default=[], help="a tag; may be repeated")


def run(arguments: argparse.Namespace, out: Output) -> int:
    """Import and say what was made."""
    name = os.path.basename(arguments.file)
    document = Document(
        step=check_count("--step", arguments.step),
        epoch=None if arguments.epoch is None else check_count("--epoch", arguments.epoch),
        metrics=check_metrics(_metrics(arguments.metric)),
        note=check_note(f"imported from {name}" if arguments.note is None else arguments.note),
        tags=check_tags(arguments.tag),
        hyperparameters={},
        provenance=collect_provenance(),
    )
    state = _state(read_state_file(arguments.file), arguments.name, arguments.file)
    laid = lay_out_state(encode_state(state))
    _check_step(arguments.run, document.step)
    clock = SystemClock()
    session = Session(
        PosixStore(arguments.run, create=True), clock, takeover=False, fresh=True, workers=default_workers()
    )
    try:
        checkpoint = import_state(session, laid, document)
    finally:
        session.close()
    if out.json:
        out.document(
            {"run": arguments.run, "id": checkpoint.id, "leaves": checkpoint.leaves, **_place(checkpoint.origin)}
        )
        return OK
    made = f"{count(checkpoint.leaves, 'array')}, {size(checkpoint.size_bytes)}"
    after = f", after {checkpoint.origin}" if checkpoint.origin else ""
    out.line(f"{checkpoint.id}: step {checkpoint.step} of {arguments.run}, {made}{after}")
    return OK


def _check_step(path: str, step: int) -> None:
    """Looked at first, so that a run that refuses the step stays as it is; asked again when nobody else writes it."""
    try:
        with Run(path) as run:
            newest_before(run.catalog().checkpoints, step, where=path)
    except RunError:  # not there yet; whatever else is wrong with it is said when it is opened to be written
        pass


def _place(origin: str | None) -> dict[str, object]:
    return {"origin": origin}


def _state(tree: object, name: str | None, file: str) -> Mapping[str, object]:
    if name is not None:
        return {name: tree}
    if isinstance(tree, Mapping) and all(isinstance(key, str) for key in tree):
        return tree
    raise UsageError(f"{file} holds a {type(tree).__name__}, not a mapping of names", hint="give it a name with --as")


def _metrics(given: list[str]) -> dict[str, float]:
    metrics = {}
    for text in given:
        name, equals, value = text.partition("=")
        try:
            metrics[name] = float(value)
        except ValueError:
            wrong = f"{value!r} is not a number" if name and equals else "is not NAME=VALUE"
            raise UsageError(f"--metric {text!r}: {wrong}", hint="for example --metric val_loss=0.21") from None
    return metrics
