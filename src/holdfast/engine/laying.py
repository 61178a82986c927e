"""Where each leaf of a state goes in the shard: found anew, or as at the last save where nothing has moved."""

from collections.abc import Callable
from typing import NamedTuple

from holdfast.format.dtypes import safetensors_type
from holdfast.format.encode import Encoded
from holdfast.format.footprint import Footprint, Moved
from holdfast.format.manifest import LeafRecord
from holdfast.format.shard import Layout, TensorEntry, lay_out

__all__ = ["Laid", "Layouts", "lay_out_leaves", "lay_out_state"]


class Laid(NamedTuple):
    """A state that has its places in a shard."""

    encoded: Encoded
    layout: Layout
    records: list[LeafRecord]


def lay_out_state(encoded: Encoded) -> Laid:
    """A place in the shard for every leaf, and what the manifest says of it."""
    layout = lay_out_leaves(encoded)
    records = [
        LeafRecord(name=leaf.name, dtype=leaf.dtype, shape=list(leaf.shape), shard=0, begin=place.begin, end=place.end)
        for leaf, place in zip(encoded.leaves, layout.places, strict=True)
    ]
    return Laid(encoded, layout, records)


def lay_out_leaves(encoded: Encoded) -> Layout:
    """A place in the shard for every leaf."""
    entries = []
    for leaf in encoded.leaves:
        tag, extra = safetensors_type(leaf.dtype)
        entries.append(TensorEntry(leaf.name, tag, (*leaf.shape, *extra), leaf.nbytes, alignment=leaf.itemsize))
    return lay_out(entries)


class Layouts:
    """Lays out the state of one save after the other."""

    def __init__(self) -> None:
        self._before: tuple[Footprint, Layout, list[LeafRecord]] | None = None

    def take(self, encode: Callable[[Footprint | None], Encoded]) -> Laid:
        """The state as it is now. `encode` is asked with a footprint first, if there is one, and may raise Moved."""
        if self._before is not None:
            footprint, layout, records = self._before
            try:
                return Laid(encode(footprint), layout, records)
            except Moved:
                self._before = None
        laid = lay_out_state(encode(None))
        if laid.encoded.footprint is not None:
            self._before = laid.encoded.footprint, laid.layout, laid.records
        return laid
