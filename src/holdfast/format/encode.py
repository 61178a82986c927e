"""From the program's state to a tree of JSON nodes and a list of leaves. Nothing is copied, nothing is written."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from holdfast.format.arrays import Carrier, Leaf
from holdfast.format.carriers import ToHost
from holdfast.format.encoder import Encoder
from holdfast.format.footprint import Footprint, KnownArrays, make_footprint
from holdfast.format.leaves import LeafCollector
from holdfast.format.nodes import Node

__all__ = ["Encoded", "encode_again", "encode_state"]


class Encoded(NamedTuple):
    """A state, ready to be written."""

    tree: Node
    random: Node | None
    leaves: list[Leaf]
    carriers: Sequence[Carrier]
    """One for each leaf."""
    pickled: list[str]
    """The paths of objects that were pickled."""
    footprint: Footprint | None
    """For encoding the same state again; the same object as long as nothing has moved."""
    fresh: frozenset[int]
    """The leaves that may be elsewhere than in the footprint."""
    tensors: Sequence[Any]
    """For each array the program's own tensor, if it is where the footprint says; nothing without a footprint."""


def encode_state(
    state: Mapping[str, object],
    *,
    random: Mapping[str, object] | None = None,
    allow_pickle: bool = False,
    to_host: ToHost | None = None,
    again: bool = False,
) -> Encoded:
    """The state as nodes and leaves; one StateError lists everything in it that cannot be represented.

    With `again` it comes with a footprint, for `encode_again`.
    """
    arrays = LeafCollector()
    encoder = Encoder(arrays, allow_pickle=allow_pickle, to_host=to_host)
    encoder.remembers = again
    try:
        tree, random_node = encoder.trees(state, random)
        encoder.refusals.check()
        arrays.finish((tree, random_node))
    finally:
        encoder.release()
    footprint, tensors = None, []
    if again:
        tensors = [encoder.tensors.get(index) for index in range(len(arrays))]
        footprint = make_footprint(
            arrays.paths,
            encoder.blocks,
            encoder.modules,
            leaves=arrays.leaves,
            owners=arrays.owners,
            leaf_of=arrays.leaf_of,
        )
    fresh = frozenset(range(len(arrays.leaves)))
    return Encoded(tree, random_node, arrays.leaves, arrays.carriers, encoder.pickled, footprint, fresh, tensors)


def encode_again(
    footprint: Footprint,
    state: Mapping[str, object],
    *,
    random: Mapping[str, object] | None = None,
    allow_pickle: bool = False,
    to_host: ToHost | None = None,
) -> Encoded:
    """The same, of a state whose arrays are where they were; Moved where they are not."""
    arrays = KnownArrays(footprint)
    encoder = Encoder(arrays, allow_pickle=allow_pickle, to_host=to_host)
    try:
        tree, random_node = encoder.trees(state, random)
        encoder.refusals.check()
    finally:
        encoder.release()
    fresh = arrays.finish()
    leaves = list(footprint.leaves)
    for index, leaf in fresh.items():
        leaves[index] = leaf
    return Encoded(
        tree,
        random_node,
        leaves,
        arrays.carriers(),
        encoder.pickled,
        footprint,
        frozenset(fresh),
        arrays.tensors,
    )
