"""How far two states that programs wrote down are apart, leaf by leaf."""

import json
import math
import os
from collections.abc import Collection

from holdfast.core.errors import HoldfastError
from holdfast.engine.blocks import BlockPool
from holdfast.engine.catalog import read_catalog
from holdfast.engine.difference import ArrayChange, compare
from holdfast.engine.identity import identify
from holdfast.engine.loading import Source
from holdfast.engine.outline import value_text
from holdfast.engine.session import default_workers
from holdfast.proving.comparing import Change, Parting
from holdfast.proving.verdict import Difference
from holdfast.storage.posix import PosixStore

__all__ = ["describe_differences", "size_words"]

_SHOWN_CHARS = 60


def describe_differences(
    parting: Parting, dumps: tuple[str, str] | None, *, clocks: Collection[str] = ()
) -> tuple[Difference, ...]:
    """The leaves and metrics that differ, in order, with how far they are apart where both states were written down.

    `clocks`: leaves that are never the same; by which share of the seconds since 1970 they differ says nothing.
    """
    sizes = {} if dumps is None else _sizes(*dumps)
    found = [_of_leaf(path, change, sizes.get(path)) for path, change in parting.leaves.items()]
    found += [_of_metric(f"metric {name}", change) for name, change in parting.metrics.items()]
    return tuple(item._replace(max_rel=None) if item.path in clocks else item for item in found)


def size_words(difference: Difference) -> str:
    """`apart by 3.1e-08 at most, relative 1.2e-07, in 60 of 64 elements`."""
    parts = []
    if difference.max_abs is not None:
        parts.append(f"apart by {difference.max_abs:.3g} at most")
    if difference.max_rel is not None:
        parts.append(f"relative {difference.max_rel:.2g}")
    if difference.changed is not None and difference.elements is not None:
        parts.append(f"in {difference.changed:,} of {difference.elements:,} elements")
    return ", ".join(parts)


def _sizes(before: str, after: str) -> dict[str, ArrayChange]:
    if not os.path.isdir(before) or not os.path.isdir(after):
        return {}
    try:
        sides = [_open(before), _open(after)]
    except HoldfastError:
        return {}
    try:
        ids = [read_catalog(source.store, source.run_id).checkpoints[-1].id for source in sides]
        return {change.name: change for change in compare(sides[0], ids[0], sides[1], ids[1]).arrays}
    except (HoldfastError, IndexError):
        return {}  # it was killed while it wrote: that it differs is known all the same
    finally:
        for source in sides:
            source.store.close()


def _open(path: str) -> Source:
    store = PosixStore(path, readonly=True)
    return Source(store, identify(store), BlockPool(), default_workers())


def _of_leaf(path: str, change: Change, size: ArrayChange | None) -> Difference:
    before, after = _shown(change.before), _shown(change.after)
    if size is None:
        return _of_numbers(path, before, after)
    found = Difference(path, size.before, size.after)
    if size.what == "changed":
        found = found._replace(changed=size.changed, elements=size.elements)
    numbers = size.numbers
    # Where one is no number, or without an end, how far apart they are says nothing.
    if (
        numbers is not None
        and numbers.max_abs > 0
        and math.isfinite(numbers.max_abs)
        and math.isfinite(numbers.max_rel)
    ):
        found = found._replace(max_abs=numbers.max_abs, max_rel=numbers.max_rel)
    return found


def _of_metric(name: str, change: Change) -> Difference:
    def plain(text: str) -> str:
        if text.startswith("="):
            return text[1:]
        try:
            return repr(float.fromhex(text))
        except ValueError:
            return text

    return _of_numbers(name, plain(change.before), plain(change.after))


def _of_numbers(path: str, before: str, after: str) -> Difference:
    old: float
    new: float
    try:
        if before.lstrip("-").isdecimal() and after.lstrip("-").isdecimal():
            old, new = int(before), int(after)  # which floats may not tell apart
        else:
            old, new = float(before), float(after)
        gap, scale = float(abs(new - old)), float(max(abs(old), abs(new)))
    except (ValueError, OverflowError):
        return Difference(path, before, after)
    if not math.isfinite(gap):
        return Difference(path, before, after)
    return Difference(path, before, after, gap, gap / scale if scale else 0.0)


def _shown(text: str) -> str:
    plain = text[1:] if text.startswith("=") else text
    if plain.startswith('{"'):
        try:
            return value_text(json.loads(plain))
        except ValueError:
            pass
    return plain if len(plain) <= _SHOWN_CHARS else plain[: _SHOWN_CHARS - 1] + "…"
