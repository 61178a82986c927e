"""`holdfast show`: all there is to know of one checkpoint."""

import argparse
import math
import time
from collections.abc import Iterator, Mapping, Sequence
from importlib import metadata
from typing import cast

from holdfast.cli.choosing import BEST, LATEST, best_of, pick
from holdfast.cli.exit_codes import OK
from holdfast.cli.layout import lines_beside
from holdfast.cli.memory import WithMemory
from holdfast.cli.output import Output
from holdfast.cli.parser import add_choice, add_run, whole
from holdfast.cli.reading import source_of
from holdfast.cli.runs import Run, parse_place
from holdfast.cli.states import STATE_STYLES, describe, states_of
from holdfast.cli.table import Cell, Column, Style
from holdfast.cli.tree import Item, Steps, grow, tree_lines
from holdfast.cli.words import age, amount, count, metric, size
from holdfast.core.clock import utc_text
from holdfast.core.errors import UsageError
from holdfast.core.values import DISK, MEMORY, Checkpoint
from holdfast.engine.leafwise import leaf_bytes
from holdfast.engine.loading import read_manifest
from holdfast.engine.marks import PINNED, read_reason
from holdfast.engine.outline import Entry, outline, path_steps, value_text
from holdfast.engine.provenance import Drift, collect_provenance, compare_provenance
from holdfast.format.manifest import Body, LeafRecord
from holdfast.format.nodes import Node
from holdfast.format.select import entries
from holdfast.storage.store import Store

__all__ = ["EXAMPLES", "SUMMARY", "add_arguments", "run"]

SUMMARY = """\
All there is to know of one checkpoint: what was said of it, what made it, where it comes from, and its tree with types,
shapes and sizes. Only the manifest is read."""
EXAMPLES = (
    "holdfast show runs/mnist",
    "holdfast show runs/mnist 1200 --depth 3",
    "holdfast show runs/mnist best --by val_loss --leaves",
    "holdfast show runs/mnist --drift               # what is not as it was then?",
)
_LABEL_WIDTH = 12


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The command's own options."""
    add_run(parser)
    add_choice(parser, optional=True)
    parser.add_argument(
        "--depth", metavar="N", type=whole(1), help="open the tree N levels deep (default: what fits a screen)"
    )
    parser.add_argument("--leaves", action="store_true", help="list every array on a line of its own")
    parser.add_argument("--drift", action="store_true", help="compare versions and host with this machine now")


def run(arguments: argparse.Namespace, out: Output) -> int:
    """Read the manifest and print it."""
    place = parse_place(arguments.run)
    if place.which and arguments.which:
        raise UsageError(f"{arguments.run} is one checkpoint, and {arguments.which} another", hint="name one of them")
    which = place.which or arguments.which or LATEST
    best = best_of(arguments, which)
    with Run(place.run) as opened, WithMemory(opened, opened.catalog()) as (catalog, snapshots):
        checkpoint = pick(catalog.checkpoints, which, best=best, where=place.run)
        states = states_of(catalog.checkpoints)[checkpoint.id]
        source, in_memory = source_of(opened), DISK not in checkpoint.where
        if in_memory:
            source = source._replace(store=cast("Store", snapshots[checkpoint.id].store))
        body = read_manifest(source, checkpoint.id, staged=in_memory).body
        pin_note = read_reason(opened.store, checkpoint.id, PINNED) if checkpoint.pinned else ""
    drift = _drift(body.provenance) if arguments.drift else None
    if out.json:
        out.document(_document(place.run, checkpoint, states, body, drift))
        return OK
    out.pieces((f"{place.run}  step {checkpoint.step}  ", Style.BOLD), (", ".join(states), STATE_STYLES[states[0]]))
    said_best = f"{best.in_words(checkpoint)} of all" if which == BEST else ""
    for label, text in [("best", said_best), *_facts(checkpoint, body, pin_note)]:
        if text:
            first, *more = lines_beside(text, 2 + _LABEL_WIDTH, out)
            out.pieces((f"  {label:<{_LABEL_WIDTH}}", Style.DIM), (first, Style.PLAIN))
            for line in more:
                out.line(f"  {'':<{_LABEL_WIDTH}}{line}")
    if drift is not None:
        _print_drift(drift, out)
    out.line()
    if arguments.leaves:
        _print_leaves(body.leaves, out)
    else:
        _print_tree(body, arguments.depth, out)
    return OK


def _facts(checkpoint: Checkpoint, body: Body, pin_note: str) -> Iterator[tuple[str, str]]:
    yield "id", checkpoint.id
    yield "saved", f"{utc_text(checkpoint.utc_s)} ({age(time.time() - checkpoint.utc_s)})"
    elements = sum(math.prod(leaf.shape) for leaf in body.leaves)
    yield "size", f"{size(checkpoint.size_bytes)}: {count(checkpoint.leaves, 'array')}, {amount(elements)} elements"
    yield "where", _where(checkpoint)
    yield "epoch", "" if checkpoint.epoch is None else str(checkpoint.epoch)
    yield "metrics", ", ".join(f"{name} {metric(value)}" for name, value in checkpoint.metrics.items())
    yield "note", checkpoint.note
    yield "tags", ", ".join(checkpoint.tags)
    yield "quarantined", checkpoint.quarantined
    yield "damaged", checkpoint.damaged
    yield "suspect", checkpoint.suspect
    yield "pinned", pin_note
    yield "attempt", f"{checkpoint.attempt}, its checkpoint number {checkpoint.seq}"
    yield "origin", f"{checkpoint.origin}, which the attempt went on from" if checkpoint.origin else "started fresh"
    yield "after", checkpoint.parent or ""
    yield "pickled", ", ".join(body.pickled)
    yield "parameters", ", ".join(f"{name}={value}" for name, value in _flat(body.hyperparameters))
    yield "made by", _made_by(body.provenance)


def _where(checkpoint: Checkpoint) -> str:
    if DISK not in checkpoint.where:
        return "in the memory of this machine only: not durable"
    return "on the disk, and in the memory of this machine" if MEMORY in checkpoint.where else "on the disk"


def _drift(then: Mapping[str, object]) -> list[Drift]:
    """What differs on this machine now. Only the program itself can say what code it runs: a restore reports that."""
    now = {name: value for name, value in collect_provenance().items() if name != "code"}
    libraries = then.get("libraries")
    now["libraries"] = {name: _version(name) for name in libraries} if isinstance(libraries, Mapping) else {}
    return compare_provenance({name: value for name, value in then.items() if name != "code"}, now)


def _version(library: str) -> str | None:
    try:
        return metadata.version({"sklearn": "scikit-learn"}.get(library, library))
    except metadata.PackageNotFoundError:
        return None


def _made_by(provenance: Mapping[str, object]) -> str:
    words = [f"{name} {provenance[name]}" for name in ("holdfast", "python") if name in provenance]
    libraries = provenance.get("libraries")
    words += [f"{name} {version}" for name, version in libraries.items()] if isinstance(libraries, Mapping) else []
    words += [f"on {provenance['host']}"] if provenance.get("host") else []
    code = provenance.get("code")
    if isinstance(code, Mapping):
        changed = ", with changes" if code.get("dirty") else ""
        words.append(f"code {str(code.get('commit'))[:12]}{changed}")
    return ", ".join(words)


def _flat(value: object, prefix: str = "") -> Iterator[tuple[str, object]]:
    if isinstance(value, Mapping):
        for name, item in value.items():
            yield from _flat(item, f"{prefix}.{name}" if prefix else str(name))
    elif prefix:
        yield prefix, value


def _print_drift(drift: Sequence[Drift], out: Output) -> None:
    out.pieces((f"  {'drift':<{_LABEL_WIDTH}}", Style.DIM), ("" if drift else "none: all is as it was", Style.GREEN))
    for change in drift:
        out.line(f"    {change}", Style.YELLOW)


def _print_leaves(leaves: Sequence[LeafRecord], out: Output) -> None:
    columns = [Column("array"), Column("dtype"), Column("shape"), Column("size", right=True)]
    out.table(columns, [[leaf.name, _dtype(leaf.dtype), _shape(leaf.shape), size(leaf_bytes(leaf))] for leaf in leaves])


def _print_tree(body: Body, depth: int | None, out: Output) -> None:
    items = [_item(entry, body.leaves) for entry in outline(body.tree)]  # first: it refuses a tree that is too deep
    root = grow(items, list(_objects(body.tree, "")))
    rows: list[list[Cell | str]] = [[what, Cell(weight, Style.DIM)] for what, weight in tree_lines(root, depth=depth)]
    if not rows:
        out.line("the tree is empty")
        return
    out.table([Column("tree", shrink=True), Column("size", right=True)], rows)
    if body.random is not None:
        out.line("and the state of the random generators", Style.DIM)


def _objects(tree: Node, path: str) -> Iterator[Steps]:
    """Where an object's `state_dict` begins."""
    for place, node in entries(tree, path):
        if isinstance(node, dict) and node.get("kind") == "state":
            yield tuple(path_steps(place))
        else:
            yield from _objects(node, place)


def _item(entry: Entry, leaves: Sequence[LeafRecord]) -> Item:
    steps = tuple(path_steps(entry.path))
    if entry.leaf is None or not 0 <= entry.leaf < len(leaves):
        return Item(steps, value_text(entry.node), 0, is_array=False)
    leaf, view = leaves[entry.leaf], entry.node.get("view")
    if isinstance(view, Mapping):
        return Item(
            steps, f"{_dtype(view.get('dtype'))}{_shape(view.get('shape', ()))}, part of {leaf.name}", 0, is_array=True
        )
    shared = f", same as {leaf.name}" if leaf.name != entry.path else ""
    text = f"{_dtype(leaf.dtype)}{_shape(leaf.shape)}{shared}"
    return Item(steps, text, 0 if shared else leaf_bytes(leaf), is_array=True)


def _dtype(dtype: object) -> str:
    return dtype if isinstance(dtype, str) else "structured"


def _shape(shape: Sequence[int]) -> str:
    return f"[{', '.join(map(str, shape))}]"


def _document(
    run_path: str, checkpoint: Checkpoint, states: tuple[str, ...], body: Body, drift: Sequence[Drift] | None
) -> dict[str, object]:
    leaves = [
        {"name": leaf.name, "dtype": leaf.dtype, "shape": leaf.shape, "size_bytes": leaf_bytes(leaf)}
        for leaf in body.leaves
    ]
    values = [entry for entry in outline(body.tree) if entry.leaf is None]
    return {
        "run": run_path,
        "checkpoint": describe(checkpoint, states),
        "hyperparameters": body.hyperparameters,
        "provenance": body.provenance,
        "pickled": body.pickled,
        "shards": [{"name": shard.name, "size_bytes": shard.size_bytes} for shard in body.shards],
        "leaves": leaves,
        "values": {entry.path: value_text(entry.node) for entry in values},
        "drift": None if drift is None else [change._asdict() for change in drift],
    }
