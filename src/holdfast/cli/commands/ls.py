"""`holdfast ls`: the checkpoints of a run, or the runs in a directory."""

import argparse
import os
import time
from collections.abc import Callable, Sequence

from holdfast.cli.exit_codes import OK
from holdfast.cli.output import Output
from holdfast.cli.parser import whole
from holdfast.cli.runs import Run, find_runs, parse_place
from holdfast.cli.states import STATE_STYLES, describe, states_of
from holdfast.cli.table import Cell, Column, Style
from holdfast.cli.words import age, count, metric, size
from holdfast.core.errors import HoldfastError
from holdfast.core.names import MARKER_NAME
from holdfast.core.values import Checkpoint
from holdfast.engine.attempts import Holder, latest_holder
from holdfast.engine.catalog import Catalog
from holdfast.policy.lineage import in_order

__all__ = ["EXAMPLES", "SUMMARY", "add_arguments", "run"]

SUMMARY = "List the checkpoints of a run, newest last, or the runs in a directory."
EXAMPLES = (
    "holdfast ls runs/mnist",
    "holdfast ls runs/mnist -n 10 --ids",
    "holdfast ls runs                               # which runs are there?",
    "holdfast ls runs/mnist --json | jq '.checkpoints[-1].metrics'",
)

# Columns give way where a terminal is narrow: first the metrics that few checkpoints have, then these.
_DROP_EPOCH, _DROP_ATTEMPT, _DROP_NOTE = 3, 2, 1
_DROP_METRICS = 10

_Field = tuple[Column, Callable[[Checkpoint], Cell]]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The command's own options."""
    parser.add_argument("run", metavar="RUN", nargs="?", default=".", help="a run, or a directory of runs (default: .)")
    parser.add_argument("-n", "--newest", metavar="N", type=whole(1), help="only the newest N")
    parser.add_argument("--ids", action="store_true", help="show the id of each checkpoint")
    parser.add_argument("--live", action="store_true", help="leave abandoned and quarantined ones out")


def run(arguments: argparse.Namespace, out: Output) -> int:
    """Print the listing."""
    path = parse_place(arguments.run).run
    if os.path.isdir(path) and not os.path.lexists(os.path.join(path, MARKER_NAME)):
        runs = find_runs(path)
        if runs or not os.listdir(path):
            return _list_runs(path, runs, out)
    with Run(path) as opened:
        return _list_checkpoints(opened, arguments, out)


def _list_checkpoints(opened: Run, arguments: argparse.Namespace, out: Output) -> int:
    catalog = opened.catalog()
    holder = latest_holder(opened.store)
    states = states_of(catalog.checkpoints)
    shown = in_order(catalog.checkpoints)
    if arguments.live:
        shown = [c for c in shown if not {"abandoned", "quarantined"} & set(states[c.id])]
    if arguments.newest is not None:
        shown = shown[-arguments.newest :]
    if out.json:
        out.document(_document(opened, catalog, [describe(c, states[c.id]) for c in shown], holder))
        return OK
    if shown:
        fields = _fields(shown, states, with_ids=arguments.ids)
        left_out = out.table([column for column, _ in fields], [[cell_of(c) for _, cell_of in fields] for c in shown])
        if left_out:
            out.line(f"no room for {', '.join(left_out)}", Style.DIM)
        out.line()
    for line, style in _summary(opened, catalog, len(shown), holder):
        out.line(line, style)
    return OK


def _fields(shown: Sequence[Checkpoint], states: dict[str, tuple[str, ...]], *, with_ids: bool) -> list[_Field]:
    now_s = time.time()

    def cell(text: str, c: Checkpoint, style: str = Style.PLAIN) -> Cell:
        return Cell(text, Style.DIM if "abandoned" in states[c.id] else style)

    def metric_field(place: int, name: str) -> _Field:
        column = Column(name, right=True, drop=_DROP_METRICS + place)
        return column, lambda c: cell(metric(c.metrics[name]) if name in c.metrics else "", c)

    def chosen(*fields: _Field, when: object) -> Sequence[_Field]:
        return fields if when else ()

    several = len({c.attempt for c in shown}) > 1
    epochs = any(c.epoch is not None for c in shown)
    remarks = any(map(_remark, shown))
    return [
        (Column("step", right=True), lambda c: cell(str(c.step), c, Style.BOLD)),
        *chosen((Column("epoch", right=True, drop=_DROP_EPOCH), lambda c: cell(_text(c.epoch), c)), when=epochs),
        *chosen((Column("attempt", right=True, drop=_DROP_ATTEMPT), lambda c: cell(str(c.attempt), c)), when=several),
        (Column("age", right=True), lambda c: cell(age(now_s - c.utc_s) if _is_readable(c) else "?", c)),
        (Column("size", right=True), lambda c: cell(size(c.size_bytes) if _is_readable(c) else "?", c)),
        *(metric_field(place, name) for place, name in enumerate(_metric_names(shown))),
        (Column("state"), lambda c: Cell(", ".join(states[c.id]), STATE_STYLES[states[c.id][0]])),
        *chosen((Column("id"), lambda c: Cell(c.id, Style.DIM)), when=with_ids),
        *chosen((Column("note", shrink=True, drop=_DROP_NOTE), lambda c: cell(_remark(c), c)), when=remarks),
    ]


def _text(number: int | None) -> str:
    return "" if number is None else str(number)


def _is_readable(checkpoint: Checkpoint) -> bool:
    return checkpoint.seq > 0


def _remark(checkpoint: Checkpoint) -> str:
    return checkpoint.quarantined or " ".join([*(f"#{tag}" for tag in checkpoint.tags), checkpoint.note]).strip()


def _metric_names(shown: Sequence[Checkpoint]) -> list[str]:
    """The most common first, then in the order in which they were saved."""
    counts: dict[str, int] = {}
    for checkpoint in shown:
        for name in checkpoint.metrics:
            counts[name] = counts.get(name, 0) + 1
    return sorted(counts, key=lambda name: -counts[name])


def _summary(opened: Run, catalog: Catalog, shown: int, holder: Holder | None) -> list[tuple[str, str]]:
    checkpoints = catalog.checkpoints
    some = f"{shown} of " if shown != len(checkpoints) else ""
    total = size(sum(c.size_bytes for c in checkpoints))
    free = size(opened.store.space().free_bytes)
    lines = [(f"{some}{count(len(checkpoints), 'checkpoint')}, {total}; {free} free", Style.PLAIN)]
    if holder is not None:
        written = f"being written by {holder}" if holder.alive else f"last written by {holder}, which has ended"
        lines.append((written, Style.PLAIN))
    if catalog.garbage and not (holder is not None and holder.alive and len(catalog.garbage) == 1):
        left = f"{count(len(catalog.garbage), 'unfinished directory', 'unfinished directories')} left by a crash"
        remedy = f"the next save or `holdfast prune {opened.path} --garbage` cleans up"
        lines.append((f"{left}; {remedy}", Style.YELLOW))
    return lines


def _document(
    opened: Run, catalog: Catalog, shown: Sequence[dict[str, object]], holder: Holder | None
) -> dict[str, object]:
    space = opened.store.space()
    return {
        "run": opened.path,
        "run_id": opened.run_id,
        "checkpoints": shown,
        "garbage": catalog.garbage,
        "total_bytes": sum(c.size_bytes for c in catalog.checkpoints),
        "free_bytes": space.free_bytes,
        "writer": None if holder is None else holder._asdict(),
    }


def _list_runs(directory: str, paths: Sequence[str], out: Output) -> int:
    found = [_glance(path) for path in paths]
    if out.json:
        out.document({"directory": directory, "runs": found})
        return OK
    if not found:
        out.line(f"{directory}: no runs here yet")
        return OK
    now_s = time.time()
    columns = [
        Column("run"),
        Column("checkpoints", right=True),
        Column("step", right=True),
        Column("age", right=True),
        Column("size", right=True),
        Column("writer", shrink=True),
    ]
    out.table(columns, [_run_row(entry, now_s) for entry in found])
    return OK


def _glance(path: str) -> dict[str, object]:
    """What a list of runs says of one; a run that cannot be read is listed with the reason."""
    try:
        with Run(path) as opened:
            checkpoints = in_order(opened.catalog().checkpoints)
            holder = latest_holder(opened.store)
    except HoldfastError as error:
        return {"run": path, "error": error.message}
    latest = next((c for c in reversed(checkpoints) if "latest" in states_of(checkpoints)[c.id]), None)
    return {
        "run": path,
        "checkpoints": len(checkpoints),
        "latest_step": None if latest is None else latest.step,
        "latest_utc_s": None if latest is None else latest.utc_s,
        "total_bytes": sum(c.size_bytes for c in checkpoints),
        "writer": None if holder is None else holder._asdict(),
    }


def _run_row(entry: dict[str, object], now_s: float) -> list[Cell | str]:
    if "error" in entry:
        return [str(entry["run"]), "", "", "", "", Cell(str(entry["error"]), Style.RED)]
    step, utc_s, total, writer = (entry[key] for key in ("latest_step", "latest_utc_s", "total_bytes", "writer"))
    alive = isinstance(writer, dict) and writer["alive"]
    return [
        Cell(str(entry["run"]), Style.BOLD),
        str(entry["checkpoints"]),
        "" if step is None else str(step),
        age(now_s - utc_s) if isinstance(utc_s, float) else "",
        size(total) if isinstance(total, int) else "",
        Cell(f"pid {writer['pid']} on {writer['host']}", Style.GREEN) if isinstance(writer, dict) and alive else "",
    ]
