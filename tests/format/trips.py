"""What writing and reading do to a state, in memory: nodes through JSON text, leaves copied byte by byte."""

from typing import Any, NamedTuple

import msgspec
import numpy as np

from holdfast.format.arrays import LeafInfo, copy_range, scatter_range
from holdfast.format.decode import build
from holdfast.format.encode import encode_state

__all__ = ["Stored", "fill", "round_trip", "store"]


class Stored(NamedTuple):
    """A state as it would be on disk."""

    tree: Any
    random: Any
    leaves: list[LeafInfo]
    data: list[bytes]


def store(state, *, random=None, allow_pickle=False) -> Stored:
    """Encode the state; later changes to it do not change what was stored."""
    encoded = encode_state(state, random=random, allow_pickle=allow_pickle)
    described = [(leaf.name, leaf.dtype, leaf.shape) for leaf in encoded.leaves]
    tree, random_tree, infos = msgspec.json.decode(msgspec.json.encode((encoded.tree, encoded.random, described)))
    data = []
    for leaf, carrier in zip(encoded.leaves, encoded.carriers, strict=True):
        content = bytearray(leaf.nbytes)
        copy_range(carrier, 0, leaf.nbytes, memoryview(content))
        data.append(bytes(content))
    leaves = [LeafInfo(name, dtype, tuple(shape)) for name, dtype, shape in infos]
    return Stored(tree, random_tree, leaves, data)


def fill(plan, stored: Stored) -> None:
    """Do what a reader does: put the bytes of each leaf into its destination."""
    for destination in plan.destinations:
        assert destination.carrier.shape == stored.leaves[destination.leaf].shape
        assert destination.carrier.nbytes == len(stored.data[destination.leaf])
        scatter_range(destination.carrier, 0, memoryview(stored.data[destination.leaf]))


def round_trip(value, *, like=None, arrays="native", allow_pickle=False):
    """The value after a save and a load without a program."""
    stored = store({"value": value}, allow_pickle=allow_pickle)
    like = None if like is None else {"value": like}
    plan = build(stored.tree, stored.leaves, like=like, arrays=arrays, allow_pickle=allow_pickle)
    fill(plan, stored)
    return plan.value()["value"]


def bits(array) -> bytes:
    """The C-order bytes of an array, to compare what equality would not (nan)."""
    return np.ascontiguousarray(array).tobytes()
