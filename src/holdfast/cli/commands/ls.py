"""`holdfast ls`: the checkpoints of a run, or the runs in a directory."""

import os
import time
from collections import Counter
from collections.abc import Sequence
from types import SimpleNamespace

from holdfast.cli.exit_codes import OK
from holdfast.cli.memory import WithMemory
from holdfast.cli.output import Output
from holdfast.cli.runs import Run, find_runs, parse_place
from holdfast.cli.states import STATE_STYLES, States, describe, states_of
from holdfast.cli.table import Cell, Column, Style
from holdfast.cli.words import age, count, metric, size
from holdfast.core.errors import HoldfastError
from holdfast.core.names import MARKER_NAME
from holdfast.core.values import DISK, Checkpoint
from holdfast.engine.catalog import Catalog
from holdfast.engine.holders import Holder, is_being_written, latest_holder
from holdfast.policy.lineage import in_order, latest_undamaged
from holdfast.proving.stored import StoredVerdict, read_verdict

# As in holdfast/__init__.py: it is to start at once.
TYPE_CHECKING = False
if TYPE_CHECKING:
    import argparse

__all__ = ["EXAMPLES", "SUMMARY", "add_arguments", "parse_plain", "run"]

SUMMARY = "List the checkpoints of a run, newest last, or the runs in a directory."
EXAMPLES = (
    "holdfast ls runs/mnist",
    "holdfast ls runs/mnist -n 10 --ids",
    "holdfast ls runs                               # which runs are there?",
    "holdfast ls runs/mnist --json | jq '.checkpoints[-1].metrics'",
)

# Columns give way where a terminal is narrow. A note is cut first, down to a few words. The metric that most of the
# checkpoints have says more than anything else of how good they are; the other metrics go before the note. Size and age
# go only where ids were asked for: one that is broken over two lines cannot be copied.
_DROP_METRICS, _DROP_WHERE, _DROP_EPOCH, _DROP_ATTEMPT, _DROP_NOTE, _DROP_FIRST_METRIC = 10, 7, 6, 5, 4, 3
_DROP_SIZE_FOR_IDS, _DROP_AGE_FOR_IDS = 2, 1

_Filled = tuple[Column, Sequence[Cell | str]]


def add_arguments(parser: "argparse.ArgumentParser") -> None:
    """The command's own options."""
    from holdfast.cli.parser import whole

    parser.add_argument("run", metavar="RUN", nargs="?", default=".", help="a run, or a directory of runs (default: .)")
    parser.add_argument("-n", "--newest", metavar="N", type=whole(1), help="only the newest N")
    parser.add_argument("--ids", action="store_true", help="show the id of each checkpoint")
    parser.add_argument("--live", action="store_true", help="leave abandoned and quarantined ones out")


def parse_plain(arguments: Sequence[str]) -> SimpleNamespace | None:
    """What a parser would make of `holdfast ls RUN`, without the time to load one; None where there are options."""
    if len(arguments) > 1 or any(argument.startswith("-") for argument in arguments):
        return None
    return SimpleNamespace(run=next(iter(arguments), "."), newest=None, ids=False, live=False, json=False)


def run(arguments: "argparse.Namespace | SimpleNamespace", out: Output) -> int:
    """Print the listing."""
    path = parse_place(arguments.run).run
    if os.path.isdir(path) and not os.path.lexists(os.path.join(path, MARKER_NAME)):
        runs = find_runs(path)
        if runs or _is_empty(path):
            return _list_runs(path, runs, out)
    with Run(path) as opened, WithMemory(opened, opened.catalog()) as (catalog, _):
        return _list_checkpoints(opened, catalog, arguments, out)


def _is_empty(path: str) -> bool:
    try:
        return not os.listdir(path)
    except OSError:
        return False  # whoever opens it as a run says why that cannot be done


def _list_checkpoints(
    opened: Run, catalog: Catalog, arguments: "argparse.Namespace | SimpleNamespace", out: Output
) -> int:
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
        columns, cells = zip(*_columns(shown, states, with_ids=arguments.ids), strict=True)
        rows = zip(*cells, strict=True)
        left_out = out.table(
            columns, [_dimmed(row) if "abandoned" in states[c.id] else row for c, row in zip(shown, rows, strict=True)]
        )
        if left_out:
            out.line(f"no room for {', '.join(left_out)}", Style.DIM)
        if not arguments.ids and (twice := _saved_again(shown)):
            named = f"{twice[-1]}" + (f" (and {len(twice) - 1} more)" if len(twice) > 1 else "")
            out.line(f"step {named} was saved more than once: the number means the newest; see --ids", Style.DIM)
        out.line()
    for text, style in _summary(opened, catalog, len(shown), holder):
        for line in _fitting(text, out):
            out.line(line, style)
    return OK


def _fitting(text: str, out: Output) -> list[str]:
    if out.width is None or len(text) <= out.width:
        return [text]
    from holdfast.cli.layout import lines_beside  # only where it is needed: a listing is to start at once

    return lines_beside(text, 0, out)


def _saved_again(shown: Sequence[Checkpoint]) -> list[int]:
    """The steps that one attempt has saved more than once."""
    counts = Counter((c.attempt, c.step) for c in shown)
    return sorted({step for (_, step), times in counts.items() if times > 1})


def _columns(shown: Sequence[Checkpoint], states: dict[str, States], *, with_ids: bool) -> list[_Filled]:
    """The columns, each with its cells. Whole columns at a time: a listing has thousands of cells.

    A checkpoint of which only the name can be read has the sequence number 0.
    """
    now_s = time.time()
    several = len({c.attempt for c in shown}) > 1
    ages_s = [int(now_s - c.utc_s) if c.seq > 0 else None for c in shown]
    ages = {age_s: "?" if age_s is None else age(age_s) for age_s in set(ages_s)}
    sizes = {size_bytes: size(size_bytes) for size_bytes in {c.size_bytes for c in shown}}
    state_cells = {words: Cell(", ".join(words), STATE_STYLES[words[0]]) for words in set(states.values())}
    return [
        (Column("step", right=True, style=Style.BOLD), [str(c.step) for c in shown]),
        (Column("epoch", right=True, drop=_DROP_EPOCH), ["" if c.epoch is None else str(c.epoch) for c in shown]),
        (Column("attempt", right=True, drop=_DROP_ATTEMPT), [str(c.attempt) if several else "" for c in shown]),
        (
            Column("age", right=True, drop=_DROP_AGE_FOR_IDS if with_ids else 0),
            [ages[age_s] for age_s in ages_s],
        ),
        (
            Column("size", right=True, drop=_DROP_SIZE_FOR_IDS if with_ids else 0),
            [sizes[c.size_bytes] if c.seq > 0 else "?" for c in shown],
        ),
        *(_metric_column(shown, place, name) for place, name in enumerate(_metric_names(shown))),
        (Column("where", drop=_DROP_WHERE), [", ".join(c.where) for c in shown]),
        (Column("state"), [state_cells[states[c.id]] for c in shown]),
        (Column("id", style=Style.DIM), [c.id if with_ids else "" for c in shown]),
        (Column("note", shrink=True, drop=_DROP_NOTE), [_remark(c) for c in shown]),
    ]


def _metric_column(shown: Sequence[Checkpoint], place: int, name: str) -> _Filled:
    texts = [metric(c.metrics[name]) if name in c.metrics else "" for c in shown]
    return Column(name, right=True, drop=_DROP_METRICS + place if place else _DROP_FIRST_METRIC), texts


def _dimmed(row: Sequence[Cell | str]) -> Sequence[Cell | str]:
    return [cell if isinstance(cell, Cell) else Cell(cell, Style.DIM) for cell in row]


def _remark(checkpoint: Checkpoint) -> str:
    text = checkpoint.quarantined or checkpoint.damaged or checkpoint.note or checkpoint.suspect
    if not checkpoint.is_sound or not checkpoint.tags:
        return text.strip()
    return " ".join([*(f"#{tag}" for tag in checkpoint.tags), text]).strip()


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
    total = size(_disk_bytes(catalog))
    free = size(opened.store.space().free_bytes)
    lines = [(f"{some}{count(len(checkpoints), 'checkpoint')}, {total}; {free} free", Style.PLAIN)]
    unsafe = sum(DISK not in c.where for c in checkpoints)
    if unsafe:
        lines.append((f"{unsafe} in the memory of this machine only", Style.YELLOW))
    is_busy = holder is not None and is_being_written(opened.store, holder.attempt)
    if holder is not None:
        ended = ", which has ended" + ("; its agent finishes what it has" if is_busy else "")
        written = f"being written by {holder}" if holder.alive else f"last written by {holder}{ended}"
        lines.append((written, Style.PLAIN))
    proof = read_verdict(opened.store)
    if proof is not None:
        lines.append(_proof_line(proof))
    if catalog.garbage and not (is_busy and len(catalog.garbage) == 1):
        left = f"{count(len(catalog.garbage), 'unfinished directory', 'unfinished directories')} left by a crash"
        remedy = f"the next save or `holdfast prune {opened.path} --garbage` cleans up"
        lines.append((f"{left}; {remedy}", Style.YELLOW))
    return lines


def _proof_line(proof: StoredVerdict) -> tuple[str, str]:
    when, tried = age(time.time() - proof.utc_s), count(proof.interruptions, "interruption")
    if proof.answer == "identical":
        return f"resume proven {when}, {tried}, steps up to {proof.last_step}", Style.GREEN
    if proof.answer == "differs":
        where = "" if proof.step is None else f" at step {proof.step}"
        return f"resume differs{where} (proof of {when}): {proof.cause}", Style.RED
    return f"resume not proven to the end (proof of {when}), {tried}", Style.YELLOW


def _disk_bytes(catalog: Catalog) -> int:
    return sum(c.size_bytes for c in catalog.checkpoints if DISK in c.where)


def _document(
    opened: Run, catalog: Catalog, shown: Sequence[dict[str, object]], holder: Holder | None
) -> dict[str, object]:
    space = opened.store.space()
    return {
        "run": opened.path,
        "run_id": opened.run_id,
        "checkpoints": shown,
        "garbage": catalog.garbage,
        "total_bytes": _disk_bytes(catalog),
        "free_bytes": space.free_bytes,
        "writer": None if holder is None else holder._asdict(),
        "proof": None if (proof := read_verdict(opened.store)) is None else proof._asdict(),
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
    latest = latest_undamaged(checkpoints)
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
