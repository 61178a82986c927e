"""Traces of a program under proof: written point by point, and followed point by point where another is compared."""

import os
import platform
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import msgspec
import numpy as np
from blake3 import blake3

from holdfast.engine.evidence import Point
from holdfast.engine.outline import Entry, outline
from holdfast.format.arrays import Carrier, bytes_view
from holdfast.format.dtypes import carrier_dtype
from holdfast.format.encode import Encoded
from holdfast.format.nodes import Node
from holdfast.format.paths import RANDOM_ROOT
from holdfast.format.select import MAPPING_KINDS, entries, inner

__all__ = [
    "ORDER",
    "Reference",
    "Trace",
    "differing",
    "leaf_texts",
    "metric_bits",
    "order_texts",
    "short_digest",
    "versions",
]

ORDER = " (order)"
"""Behind the path of a mapping: the order of its keys."""

_SHOWN_CHARS = 200
_FILE_MODE = 0o666
_EXACT = 2**53


class Trace:
    """A line for each point; it is with the system when `write` returns, whatever happens to the program then."""

    def __init__(self, path: str) -> None:
        self._descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, _FILE_MODE)
        self._lock = threading.Lock()
        self.began_s = time.monotonic() - _age_s()

    def write(self, point: Point) -> None:
        """Append it."""
        line = msgspec.json.encode(point) + b"\n"
        with self._lock:
            while line:
                line = line[os.write(self._descriptor, line) :]

    def at_s(self) -> float:
        """The seconds since the program began."""
        return round(time.monotonic() - self.began_s, 6)


def _age_s() -> float:
    """Of this process: what it loads before it comes to us belongs to its beginning. 0 where that is not known."""
    try:
        with open("/proc/self/stat", encoding="ascii", errors="replace") as file:
            ticks = int(file.read().rpartition(")")[2].split()[19])
        return max(0.0, time.clock_gettime(time.CLOCK_BOOTTIME) - ticks / os.sysconf("SC_CLK_TCK"))
    except (OSError, ValueError, IndexError, AttributeError):
        return 0.0


class _Met(NamedTuple):
    """A point, all leaves that there were then, and how many of its kind there were of that step before."""

    point: Point
    leaves: dict[str, str]
    before: int


class Reference:
    """The trace of an undisturbed program, followed at the pace of this one: in memory is one point of each run."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._walks: dict[str, Iterator[_Met]] = {}
        self._now: dict[str, _Met | None] = {}
        self._counts: dict[str, Counter[tuple[str, int]]] = {}

    def at(self, point: Point) -> list[tuple[Point, dict[str, str]]]:
        """What it saw at the end of the same step, or at the same save, with all leaves; nothing where it did not.

        What was restored may be as it was at the end of that step, or at any save of it.
        """
        if point.kind == "restored":
            found = [met for met in self._walk(point.run) if met.point.step == point.step]
            return [(met.point, met.leaves) for met in found]
        before = _count(self._counts.setdefault(point.run, Counter()), point)
        met = self._now.get(point.run)
        if met is None or met.point.step > point.step:
            self._walks[point.run] = self._walk(point.run)
            met = next(self._walks[point.run], None)
        while met is not None and met.point.step <= point.step:
            if (met.point.kind, met.point.step, met.before) == (point.kind, point.step, before):
                self._now[point.run] = met
                return [(met.point, met.leaves)]
            met = next(self._walks[point.run], None)
        self._now[point.run] = met
        return []

    def anywhere(self, point: Point) -> list[tuple[Point, dict[str, str]]]:
        """All times that it came to that step: a program that goes back makes steps twice. Reads the whole trace."""
        found = [met for met in self._walk(point.run) if (met.point.kind, met.point.step) == (point.kind, point.step)]
        return [(met.point, met.leaves) for met in found]

    def _walk(self, run: str) -> Iterator[_Met]:
        leaves: dict[str, str] = {}
        counts: Counter[tuple[str, int]] = Counter()
        with open(self._path, "rb") as file:
            for line in file:
                try:
                    point = msgspec.json.decode(line, type=Point)
                except msgspec.DecodeError:  # torn
                    return
                if point.run == run and point.kind in ("step", "save", "restored"):
                    kept = {} if point.whole else leaves
                    leaves = {path: text for path, text in kept.items() if path not in point.gone} | point.leaves
                    if point.kind != "restored":
                        yield _Met(point, leaves, _count(counts, point))


def _count(counts: "Counter[tuple[str, int]]", point: Point) -> int:
    """How many of the same kind and step there were; those of earlier steps are forgotten."""
    key = (point.kind, point.step)
    if not any(step == point.step for _, step in counts):
        counts.clear()
    counts[key] += 1
    return counts[key] - 1


def differing(known: Mapping[str, str], found: Mapping[str, str], ignored: tuple[str, ...] = ()) -> list[str]:
    """The paths of leaves that are not the same in both."""
    paths = [path for path in found if known.get(path) != found[path]]
    paths += [path for path in known if path not in found]
    return [path for path in paths if path not in ignored]


def leaf_texts(encoded: Encoded) -> dict[str, str]:
    """Every leaf of the state and of the random generators by its path: the digest of an array, or the plain value."""
    found = {entry.path: _text(entry, encoded) for entry in outline(encoded.tree)}
    if encoded.random is not None:
        found.update((entry.path, _text(entry, encoded)) for entry in outline(encoded.random, RANDOM_ROOT))
    return found


def order_texts(encoded: Encoded) -> dict[str, str]:
    """For every mapping in the state a digest of its keys in their order, which a program may well go by."""
    return {f"{path}{ORDER}": text for path, text in _orders(encoded.tree, "")}


def _orders(node: Node, path: str) -> Iterator[tuple[str, str]]:
    node = inner(node)
    parts = list(entries(node, path))
    if path and len(parts) > 1 and isinstance(node, dict) and node.get("kind") in MAPPING_KINDS:
        yield path, f"=b3:{short_digest(repr([name for name, _ in parts]).encode())}"
    for name, part in parts:
        if isinstance(part, dict | list):
            yield from _orders(part, name)


def metric_bits(metrics: Mapping[str, object]) -> dict[str, str]:
    """Of those that are numbers; a large whole number as "=" and its digits."""
    found: dict[str, str] = {}
    for name, value in metrics.items() if isinstance(metrics, Mapping) else ():
        item = getattr(value, "item", None)
        try:
            plain = item() if callable(item) else value
            number = float(plain)  # type: ignore[arg-type]
            # Beyond that, floats are further apart than whole numbers are.
            is_large = type(plain) is int and abs(plain) > _EXACT
            found[str(name)] = f"={plain}" if is_large else number.hex()
        except Exception:  # noqa: BLE001, S112  # any object may be given; the program hears of it when it saves
            continue
    return found


def versions() -> dict[str, str]:
    """Of Python, and of what computes, where the program has imported it."""
    found = {name: getattr(sys.modules.get(name), "__version__", None) for name in ("numpy", "torch", "jax")}
    return {"python": platform.python_version(), **{name: str(text) for name, text in found.items() if text}}


def short_digest(data: Any) -> str:
    """16 hexadecimal digits of a BLAKE3."""
    return blake3(data).hexdigest(8)


def _text(entry: Entry, encoded: Encoded) -> str:
    if entry.leaf is None:
        text = msgspec.json.encode(entry.node).decode()
        return f"={text}" if len(text) <= _SHOWN_CHARS else f"=b3:{short_digest(text.encode())}"
    leaf, carrier = encoded.leaves[entry.leaf], encoded.carriers[entry.leaf]
    dtype, shape = leaf.dtype, list(leaf.shape)
    view = entry.node.get("view")
    if view is not None:
        dtype, shape = view["dtype"], view["shape"]
        carrier = _view(carrier, view)
    hasher = blake3(msgspec.json.encode([dtype, shape]))
    hasher.update(bytes_view(np.ascontiguousarray(carrier)))
    return f"b3:{hasher.hexdigest(8)}"


def _view(base: Carrier, view: Mapping[str, Any]) -> Carrier:
    """Its own part of memory that arrays share: what the others have there is not its business."""
    data = np.frombuffer(bytes_view(np.ascontiguousarray(base)), np.uint8)
    return np.ndarray(tuple(view["shape"]), carrier_dtype(view["dtype"]), data, view["offset"], tuple(view["strides"]))
