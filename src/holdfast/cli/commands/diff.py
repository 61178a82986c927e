"""`holdfast diff`: what differs between two checkpoints, and by how much."""

import argparse
import os

from holdfast.cli.choosing import LATEST, pick
from holdfast.cli.exit_codes import NO, OK
from holdfast.cli.output import Output
from holdfast.cli.parser import whole
from holdfast.cli.progress import progress_bar
from holdfast.cli.reading import source_of
from holdfast.cli.runs import Place, Run, hint_at_verify, parse_place
from holdfast.cli.table import Cell, Column, Style
from holdfast.cli.words import amount, count
from holdfast.core.errors import IntegrityError, UsageError
from holdfast.core.values import Checkpoint
from holdfast.engine.difference import ArrayChange, Difference, ValueChange, compare
from holdfast.format.paths import RANDOM_ROOT

__all__ = ["EXAMPLES", "SUMMARY", "add_arguments", "run"]

SUMMARY = """\
Which arrays and values differ between two checkpoints, and by how much: elements that changed in any bit, the largest
absolute and relative difference, and the norm of the difference. Arrays are compared one after the other, so memory
stays bounded. Exit status 0 where they are equal, 1 where they differ."""
EXAMPLES = (
    "holdfast diff runs/mnist 1000 2000",
    "holdfast diff runs/a:latest runs/b:latest      # of two runs",
    "holdfast diff runs/mnist 1000 latest --only model",
)
_LEAST_NAME = 36  # optimizer.state[0].exp_avg_sq, and more
_STYLES = {"added": Style.GREEN, "removed": Style.RED, "changed": Style.PLAIN}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The command's own options."""
    parser.add_argument("places", metavar="RUN A B | RUN1:A RUN2:B", nargs="+", help="a run and two of its checkpoints")
    parser.add_argument("--only", metavar="PATH", help="only this part of the tree, for example model")
    parser.add_argument(
        "--limit", metavar="N", type=whole(0), default=40, help="show at most N lines of each kind (default: 40)"
    )


def run(arguments: argparse.Namespace, out: Output) -> int:
    """Compare and print."""
    before, after = _places(arguments.places)
    with Run(before.run) as old_run, Run(after.run) as new_run:
        old = pick(old_run.catalog().checkpoints, before.which or LATEST, where=before.run)
        new = pick(new_run.catalog().checkpoints, after.which or LATEST, where=after.run)
        with progress_bar("comparing", old.size_bytes + new.size_bytes, quiet=out.json) as progress:
            old_source, new_source = source_of(old_run, progress), source_of(new_run, progress)
            try:
                found = compare(old_source, old.id, new_source, new.id, only=arguments.only)
            except IntegrityError as error:
                meant = [place.run for place, c in ((before, old), (after, new)) if c.id in error.message]
                hint_at_verify(error, *dict.fromkeys(meant or [before.run, after.run]))
                raise
    if out.json:
        out.document(_document(before, old, after, new, found))
    else:
        _print(old, new, found, arguments.limit, out)
    return OK if found.is_empty else NO


def _places(given: list[str]) -> tuple[Place, Place]:
    if len(given) == 3:
        run = parse_place(given[0]).run
        return Place(run, given[1]), Place(run, given[2])
    if len(given) != 2:
        found = f"{count(len(given), 'argument')} given, two checkpoints are to be compared"
        raise UsageError(f"diff: {found}", hint="holdfast diff RUN A B, or holdfast diff RUN1:A RUN2:B")
    before, after = parse_place(given[0]), parse_place(given[1])
    if after.which is None and os.sep not in after.run and not os.path.exists(after.run):
        # `diff runs/mnist 560` or `diff runs/mnist:560 570`: a WHICH where a run should be.
        lacking = "a second WHICH is missing" if before.which is None else f"{given[1]} names no run"
        hint = f"holdfast diff {before.run} {before.which or given[1]} {given[1] if before.which else LATEST}"
        raise UsageError(f"diff: {lacking}", hint=hint)
    return before, after


def _print(old: Checkpoint, new: Checkpoint, found: Difference, limit: int, out: Output) -> None:
    out.line(f"- {old.id}")
    out.line(f"+ {new.id}")
    if found.arrays:
        out.line()
        columns = [
            Column("array", shrink=True, least=_LEAST_NAME, keep_end=True),
            Column("type", drop=4),
            Column("changed", right=True),
            Column("max abs", right=True),
            Column("max rel", right=True, drop=2),
            Column("norm", right=True),
            Column("of", right=True, drop=3),
            Column("", shrink=True),
        ]
        out.table(columns, [_array_row(change) for change in found.arrays[:limit]])
        _more(len(found.arrays) - limit, "array", out)
    random = [change for change in found.values if change.path.startswith(RANDOM_ROOT)]
    values = [change for change in found.values if not change.path.startswith(RANDOM_ROOT)]
    if values:
        out.line()
        columns = [
            Column("value", shrink=True, least=_LEAST_NAME, keep_end=True),
            Column(""),
            Column("before", shrink=True),
            Column("after", shrink=True),
        ]
        out.table(columns, [_value_row(change) for change in values[:limit]])
        _more(len(values) - limit, "value", out)
    out.line()
    if random:
        out.line(f"random state differs: {', '.join(change.path.removeprefix(RANDOM_ROOT + '.') for change in random)}")
    _summarise(found, len(values), out)


def _array_row(change: ArrayChange) -> list[Cell | str]:
    name = Cell(change.name, _STYLES.get(change.what, Style.YELLOW))
    if change.what != "changed":
        text = {"added": f"added: {change.after}", "removed": f"removed: {change.before}"}
        other = text.get(change.what, f"{change.what}: {change.before} → {change.after}")
        return [name, "", "", "", "", "", "", Cell(other, name.style)]
    changed = f"{amount(change.changed)}/{amount(change.elements)}" if change.changed else "yes"
    if change.numbers is None:
        return [name, change.after, changed, "", "", "", "", ""]
    n = change.numbers
    nans = f"NaN: {n.nans_before} → {n.nans_after}" if n.nans_before or n.nans_after else ""
    figures = [f"{figure:.3g}" for figure in (n.max_abs, n.max_rel, n.norm, n.norm_before)]
    return [name, change.after, changed, *figures, Cell(nans, Style.RED)]


def _value_row(change: ValueChange) -> list[Cell | str]:
    style = _STYLES[change.what]
    what = "" if change.what == "changed" else change.what
    return [Cell(change.path, style), Cell(what, style), change.before, change.after]


def _more(left: int, noun: str, out: Output) -> None:
    if left > 0:
        out.line(f"… and {count(left, f'more {noun}')} (--limit)", Style.DIM)


def _summarise(found: Difference, values: int, out: Output) -> None:
    if found.is_empty:
        equal = f"{count(found.equal_arrays, 'array')}, {count(found.equal_values, 'value')}"
        out.line(f"equal, bit for bit: {equal}", Style.GREEN)
        return
    differing = f"{count(len(found.arrays), 'array')} and {count(values, 'value')} differ"
    out.line(f"{differing}; {found.equal_arrays:,} and {found.equal_values:,} are equal", Style.BOLD)


def _document(before: Place, old: Checkpoint, after: Place, new: Checkpoint, found: Difference) -> dict[str, object]:
    arrays = [
        {**change._asdict(), "numbers": None if change.numbers is None else change.numbers._asdict()}
        for change in found.arrays
    ]
    return {
        "equal": found.is_empty,
        "before": {"run": before.run, "id": old.id},
        "after": {"run": after.run, "id": new.id},
        "arrays": arrays,
        "values": [change._asdict() for change in found.values],
        "equal_arrays": found.equal_arrays,
        "equal_values": found.equal_values,
    }
