"""Which states of the disk a power cut may leave, given the operations that were issued: three persistence models.

A state is named by a tuple of small numbers, one per operation that was not yet durable; 0 means *as issued*. So a
violation can be replayed from (sequence, model, crash point, choices) alone.
"""

import itertools
import math
import random
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from holdfast.testing.memory_files import overwrite, resize
from holdfast.testing.recording import Operation, OpKind

__all__ = ["ANY_SUBSET", "EXT4", "MODELS", "ORDERED", "Choices", "CrashPoint", "Nodes", "Tree"]

Tree = dict[str, bytes | None]
Nodes = dict[int, bytes | dict[str, int]]
Choices = tuple[int, ...]

ORDERED = "ordered"
EXT4 = "ext4-like"
ANY_SUBSET = "any-subset"
MODELS = (ORDERED, EXT4, ANY_SUBSET)

_ROOT = 1
_SECTOR_BYTES = 512
_PAGE_BYTES = 4096
_FEW = 20_000
_MOST_LAYOUTS = 1000
_MOST_CONTENTS = 2000
_DIRECTORY_KINDS = {OpKind.MAKE_DIR, OpKind.CREATE, OpKind.RENAME, OpKind.UNLINK, OpKind.REMOVE_DIR}
_DATA_KINDS = {OpKind.WRITE, OpKind.TRUNCATE}
_SYNC_KINDS = {OpKind.SYNC, OpKind.SYNC_DIR}


class Variant(NamedTuple):
    """What became of one write that was not synced. The first of a list is always "kept"."""

    what: str
    cut: int = 0


KEPT = Variant("kept")


class CrashPoint:
    """All legal states after a power cut between two operations, under one model."""

    def __init__(self, initial: Nodes, operations: Sequence[Operation], model: str) -> None:
        self._model = model
        self._initial = initial
        directory_ops = [(i, op) for i, op in enumerate(operations) if op.kind in _DIRECTORY_KINDS]
        data_ops = [(i, op) for i, op in enumerate(operations) if op.kind in _DATA_KINDS]
        is_durable = _durable_directory_ops(operations, directory_ops, model)
        self._directory_ops = [op for _, op in directory_ops]
        self._open_ops = [n for n, durable in enumerate(is_durable) if not durable]

        last_sync = {op.inode: i for i, op in enumerate(operations) if op.kind == OpKind.SYNC}
        self._contents = {inode: node for inode, node in initial.items() if isinstance(node, bytes)}
        self._open_writes: list[tuple[Operation, list[Variant]]] = []
        for i, op in data_ops:
            if i < last_sync.get(op.inode, -1):
                self._contents[op.inode] = _applied(self._contents.get(op.inode, b""), op, KEPT)
            else:
                self._open_writes.append((op, _variants(op, model)))
        self._writes_of: dict[int, list[int]] = {}
        for n, (op, _) in enumerate(self._open_writes):
            self._writes_of.setdefault(op.inode, []).append(n)
        self._layouts: dict[Choices, list[tuple[str, int | None]]] = {}
        self._built: dict[tuple[int, Choices], bytes] = {}

    @property
    def options(self) -> list[int]:
        """How many choices there are for each operation that was not yet durable."""
        # Where order holds, one number says how many of the last directory operations did not make it.
        directory = [2] * len(self._open_ops) if self._model == ANY_SUBSET else [len(self._open_ops) + 1]
        return directory + [len(variants) for _, variants in self._open_writes]

    def choices(self, rng: random.Random, *, is_last: bool = True) -> Iterator[Choices]:
        """As issued, then every single deviation, then pairs, then anything; all of them where they are few.

        Without `is_last` only single deviations: more operations follow before anything becomes durable, and dropping
        those gives every state of this point again.
        """
        options = self.options
        as_issued = (0,) * len(options)
        yield as_issued
        singles = [(n, choice) for n, count in enumerate(options) for choice in range(1, count)]
        for single in singles:
            yield _deviating(as_issued, [single])
        if not is_last:
            return
        if math.prod(options) <= _FEW:
            everything = list(itertools.product(*map(range, options)))
            rng.shuffle(everything)
            yield from everything
            return
        pairs = [pair for pair in itertools.combinations(singles, 2) if pair[0][0] != pair[1][0]]
        rng.shuffle(pairs)
        for pair in pairs:
            yield _deviating(as_issued, pair)
        while True:
            rate = rng.choice((0.2, 0.5, 0.9))
            yield tuple(rng.randrange(count) if rng.random() < rate else 0 for count in options)

    def tree(self, choices: Choices) -> Tree:
        """The disk in the chosen state: what can be reached from the root."""
        directory_dimensions = len(self._open_ops) if self._model == ANY_SUBSET else 1
        written = choices[directory_dimensions:]
        if len(written) != len(self._open_writes):
            raise ValueError(f"{len(choices)} choices for {len(self.options)} operations")
        layout = self._layout(choices[:directory_dimensions])
        return {path: None if inode is None else self._content(inode, written) for path, inode in layout}

    def _layout(self, choices: Choices) -> list[tuple[str, int | None]]:
        """Every path that can be reached, with the inode of a file; None for a directory."""
        known = self._layouts.get(choices)
        if known is not None:
            return known
        entries = self._entries(choices)
        found: list[tuple[str, int | None]] = []
        pending = [(_ROOT, "")]
        while pending:
            inode, path = pending.pop()
            for name, child in entries[inode].items():
                is_directory = child in entries
                found.append((path + name, None if is_directory else child))
                if is_directory:
                    pending.append((child, f"{path}{name}/"))
        if len(self._layouts) > _MOST_LAYOUTS:
            self._layouts.clear()
        self._layouts[choices] = found
        return found

    def _entries(self, choices: Choices) -> dict[int, dict[str, int]]:
        if self._model == ANY_SUBSET:
            lost = {n for n, choice in zip(self._open_ops, choices, strict=True) if choice}
        else:
            lost = set(self._open_ops[len(self._open_ops) - choices[0] :])
        entries = {inode: dict(node) for inode, node in self._initial.items() if isinstance(node, dict)}
        for n, op in enumerate(self._directory_ops):
            if op.kind == OpKind.MAKE_DIR:
                entries.setdefault(op.child, {})
            if n not in lost:
                _apply_entry(entries[op.inode], op)
        return entries

    def _content(self, inode: int, written: Choices) -> bytes:
        writes = self._writes_of.get(inode)
        if writes is None:
            return self._contents.get(inode, b"")
        chosen = tuple([written[n] for n in writes])
        known = self._built.get((inode, chosen))
        if known is not None:
            return known
        content = self._contents.get(inode, b"")
        for n, choice in zip(writes, chosen, strict=True):
            op, variants = self._open_writes[n]
            content = _applied(content, op, variants[choice])
        if len(self._built) > _MOST_CONTENTS:
            self._built.clear()
        self._built[inode, chosen] = content
        return content


def _durable_directory_ops(
    operations: Sequence[Operation], directory_ops: list[tuple[int, Operation]], model: str
) -> list[bool]:
    last_sync_of = {op.inode: i for i, op in enumerate(operations) if op.kind == OpKind.SYNC_DIR}
    durable = [i < last_sync_of.get(op.inode, -1) for i, op in directory_ops]
    if model == ANY_SUBSET:
        return durable
    if model == EXT4:  # any fsync commits the journal, and with it every earlier directory operation
        last_sync = max((i for i, op in enumerate(operations) if op.kind in _SYNC_KINDS), default=-1)
        return [i < last_sync for i, _ in directory_ops]
    # ordered: what comes before a durable operation is durable
    last_durable = max((n for n, is_durable in enumerate(durable) if is_durable), default=-1)
    return [n <= last_durable for n in range(len(durable))]


def _apply_entry(entries: dict[str, int], op: Operation) -> None:
    if op.kind in (OpKind.MAKE_DIR, OpKind.CREATE):
        entries[op.name] = op.child
    elif op.kind == OpKind.RENAME:
        entries[op.new_name] = op.child
        if entries.get(op.name) == op.child:
            del entries[op.name]
    elif entries.get(op.name) == op.child:
        del entries[op.name]


def _variants(op: Operation, model: str) -> list[Variant]:
    if op.kind == OpKind.TRUNCATE:
        return [KEPT, Variant("dropped")]
    variants = [KEPT, Variant("dropped"), Variant("zeroed")]
    cuts = _cuts(op)
    variants += [Variant("head", cut) for cut in cuts]
    variants += [Variant("tail", cut) for cut in cuts[:1]]
    if model == EXT4:
        variants.append(Variant("longer"))
    return variants


def _cuts(op: Operation) -> list[int]:
    """Where the write may tear: the first, middle and last sector and page boundary inside it."""
    end = op.offset + len(op.data)
    cuts: set[int] = set()
    for unit in (_SECTOR_BYTES, _PAGE_BYTES):
        inside = range((op.offset // unit + 1) * unit, end, unit)
        if inside:
            cuts |= {inside[0] - op.offset, inside[len(inside) // 2] - op.offset, inside[-1] - op.offset}
    # Harsher than a disk, which writes whole sectors: what is smaller tears in its middle.
    return sorted(cuts) or ([len(op.data) // 2] if len(op.data) > 1 else [])


def _applied(content: bytes, op: Operation, variant: Variant) -> bytes:
    if variant.what == "dropped":
        return content
    if op.kind == OpKind.TRUNCATE:
        return resize(content, op.offset)
    if variant.what == "zeroed":
        return overwrite(content, op.offset, bytes(len(op.data)))
    if variant.what == "head":
        return overwrite(content, op.offset, op.data[: variant.cut])
    if variant.what == "tail":
        return overwrite(content, op.offset + variant.cut, op.data[variant.cut :])
    whole = overwrite(content, op.offset, op.data)
    if variant.what == "longer":
        return resize(whole, -(-len(whole) // _PAGE_BYTES) * _PAGE_BYTES)
    return whole


def _deviating(choices: Choices, deviations: Sequence[tuple[int, int]]) -> Choices:
    changed = list(choices)
    for n, choice in deviations:
        changed[n] = choice
    return tuple(changed)
