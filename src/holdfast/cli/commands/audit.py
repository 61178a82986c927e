"""`holdfast audit`: was every sample handed out exactly once?"""

import argparse
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import groupby

from holdfast.cli.choosing import LATEST, best_of, pick
from holdfast.cli.exit_codes import NO, OK
from holdfast.cli.layout import lines_beside
from holdfast.cli.output import Output
from holdfast.cli.parser import add_choice, add_run
from holdfast.cli.progress import progress_bar
from holdfast.cli.reading import source_of
from holdfast.cli.runs import Run
from holdfast.cli.table import Cell, Column, Style
from holdfast.cli.words import count
from holdfast.core.errors import FormatError, NoCheckpointError
from holdfast.core.values import Checkpoint
from holdfast.engine.auditing import Epoch, SourceAudit, audit
from holdfast.engine.ledger import Entry, entries_of
from holdfast.engine.loading import read_manifest
from holdfast.engine.recomputing import cost_of, is_computable
from holdfast.format.manifest import Body

__all__ = ["EXAMPLES", "SUMMARY", "add_arguments", "run"]

SUMMARY = """\
Check from the ledger of a checkpoint that every sample of every epoch was handed out exactly once and in order, over
all attempts that led to it. What was repeated, skipped, out of order or not what seed and position stand for is named,
with attempt and steps. Exit status 1 where anything is. Only the manifest is read."""
EXAMPLES = (
    "holdfast audit runs/mnist",
    "holdfast audit runs/mnist 1200",
    "holdfast audit runs/mnist --quick              # positions only, without computing the samples again",
)
_COLUMNS = (
    Column("epoch"),
    Column("attempt"),
    Column("steps"),
    Column("batches", right=True),
    Column("positions"),
    Column("verdict"),
)
_SHOWN = 20
_NUMBER_BYTES = 8


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The command's own options."""
    add_run(parser)
    add_choice(parser, optional=True)
    parser.add_argument("--quick", action="store_true", help="compare positions only, not the samples themselves")


def run(arguments: argparse.Namespace, out: Output) -> int:
    """Read the ledger, judge it, print the verdict."""
    which = arguments.which or LATEST
    best = best_of(arguments, which)
    with Run(arguments.run) as opened:
        checkpoint = pick(opened.catalog().checkpoints, which, best=best, where=arguments.run)
        body = _body(opened, checkpoint, arguments.run)
    entries = _entries(body.ledger, checkpoint, arguments.run)
    work = 0 if arguments.quick else sum(map(cost_of, filter(is_computable, entries)))
    with progress_bar("computing the samples again", work * _NUMBER_BYTES, quiet=out.json) as bar:
        sources = audit(
            entries,
            compare=not arguments.quick,
            ended=_ended(body.tree, {entry.source for entry in entries}),
            progress=lambda done: bar(done * _NUMBER_BYTES),
        )
    sound = not any(source.findings for source in sources)
    if out.json:
        out.document(_document(arguments.run, checkpoint, sources, sound=sound))
    else:
        out.line(f"{arguments.run}  step {checkpoint.step}, attempt {checkpoint.attempt}", Style.BOLD)
        for source in sources:
            _print_source(source, out)
        _print_verdict(sources, out)
    return OK if sound else NO


def _body(run: Run, checkpoint: Checkpoint, where: str) -> Body:
    try:
        return read_manifest(source_of(run), checkpoint.id).body
    except FormatError as error:
        hint = error.hint or f"`holdfast ls {where}` has the others; `holdfast audit {where} STEP` judges one of them"
        raise type(error)(f"{where}: step {checkpoint.step}: {error.message}", hint=hint) from error


def _ended(tree: object, sources: Iterable[str]) -> dict[str, int]:
    """The epochs that streams were at the end of when they were saved, which is in their state."""
    found = {}
    for source in sources:
        node = tree
        for name in source.split("."):
            node = _inner(node, "items", name)
        if _inner(node, "state", "items", "ended") is True:
            epoch = _inner(node, "state", "items", "epoch")
            if isinstance(epoch, int):
                found[source] = epoch
    return found


def _inner(node: object, *names: str) -> object:
    """None where it is not there."""
    for name in names:
        node = node.get(name) if isinstance(node, Mapping) else None
    return node


def _entries(ledger: object, checkpoint: Checkpoint, where: str) -> list[Entry]:
    try:
        entries = entries_of(ledger)
    except FormatError as error:
        raise FormatError(f"{where}: step {checkpoint.step}: {error.message}") from error
    if not entries:
        raise NoCheckpointError(
            f"{where}: the checkpoint of step {checkpoint.step} has no ledger",
            hint="it is kept for data that the loop takes from `ckpt.over(data, epochs=…)`, unless ledger=False",
        )
    return entries


def _print_source(source: SourceAudit, out: Output) -> None:
    out.line()
    out.line(source.source, Style.CYAN)
    faults = Counter(finding.epoch for finding in source.findings)
    out.table(_COLUMNS, [_row(epochs, faults) for epochs in _alike(source.epochs, faults)])
    for remark in source.remarks:
        out.line(f"  {remark}", Style.DIM)
    for finding in source.findings[:_SHOWN]:
        out.line(f"  {finding.text}", Style.RED)
    if len(source.findings) > _SHOWN:
        out.line(f"  and {len(source.findings) - _SHOWN} more; --json has all")


def _alike(epochs: Sequence[Epoch], faults: Counter[int]) -> Iterator[list[Epoch]]:
    """Epochs that follow each other and were handed out in the same way are one line."""

    def kind(numbered: tuple[int, Epoch]) -> tuple[object, ...]:
        at, epoch = numbered
        own = epoch.number if faults[epoch.number] or epoch.under_way else None
        return epoch.number - at, epoch.end, epoch.length, epoch.left_out, epoch.counts, own

    for _, group in groupby(enumerate(epochs), kind):
        yield [epoch for _, epoch in group]


def _row(epochs: Sequence[Epoch], faults: Counter[int]) -> list[Cell | str]:
    first, last = epochs[0], epochs[-1]
    attempts = sorted({attempt for epoch in epochs for attempt in epoch.attempts})
    length = "" if last.length is None else f" of {last.length:,}"
    unit = "" if last.counts == "samples" else f" {last.counts}"
    found = faults[first.number]
    if found:
        verdict = Cell(count(found, "fault"), Style.RED)
    elif last.under_way:
        verdict = Cell("each once so far", Style.GREEN)
    elif last.left_out:
        verdict = Cell(f"each once; the last {last.left_out}, less than a batch, left out on purpose", Style.GREEN)
    else:
        verdict = Cell("each once", Style.GREEN)
    return [
        _range(first.number, last.number),
        _range(attempts[0], attempts[-1]),
        _range(min(epoch.first_step for epoch in epochs), max(epoch.last_step for epoch in epochs)),
        f"{sum(epoch.batches for epoch in epochs):,}",
        f"{last.end:,}{length}{unit}",
        verdict,
    ]


def _print_verdict(sources: Sequence[SourceAudit], out: Output) -> None:
    kinds = Counter(finding.kind for source in sources for finding in source.findings)
    out.line()
    if kinds:
        listed = ", ".join(f"{number:,} {kind}" for kind, number in kinds.items())
        out.line(f"NO: {listed}", Style.RED)
        return
    compared, entries = sum(source.compared for source in sources), sum(source.entries for source in sources)
    if not compared:
        samples = "by position"
    elif compared == entries:
        samples = "and the samples are those of seed, epoch and position"
    else:
        samples = f"by position, and the samples of {compared:,} of {entries:,} entries were compared"
    batches = count(sum(epoch.batches for source in sources for epoch in source.epochs), "batch", "batches")
    for line in lines_beside(f"every sample exactly once per epoch, in order, {samples}: {batches}", 0, out):
        out.line(line, Style.GREEN)


def _range(first: int, last: int) -> str:
    return str(first) if first == last else f"{first}–{last}"


def _document(run: str, checkpoint: Checkpoint, sources: Iterable[SourceAudit], *, sound: bool) -> dict[str, object]:
    return {
        "run": run,
        "id": checkpoint.id,
        "step": checkpoint.step,
        "attempt": checkpoint.attempt,
        "exactly_once": sound,
        "sources": [
            {
                "source": source.source,
                "epochs": [epoch._asdict() for epoch in source.epochs],
                "findings": [finding._asdict() for finding in source.findings],
                "remarks": source.remarks,
                "entries": source.entries,
                "compared_entries": source.compared,
            }
            for source in sources
        ],
    }
