"""Where a training is in its data, as it is saved; and whether a saved one fits the data of today."""

from collections.abc import Mapping
from typing import NamedTuple

from holdfast.core.errors import StateError
from holdfast.data.numbers import MAX_LENGTH, shown

__all__ = ["Position", "position_of", "state_of"]

_FORMAT = 1


class Position(NamedTuple):
    """So many samples of the epoch were consumed, by all ranks together."""

    epoch: int = 0
    consumed: int = 0


def state_of(position: Position, *, seed: int, length: int, shuffle: bool) -> dict[str, object]:
    """As plain values: the position, and what the order depends on."""
    return {
        "order": _FORMAT,
        "epoch": position.epoch,
        "consumed": position.consumed,
        "seed": seed,
        "length": length,
        "shuffle": shuffle,
    }


def position_of(state: Mapping[str, object], *, length: int, what: str) -> tuple[Position, int, int, bool]:
    """The position, the seed, the length of the data at the time, and whether it is shuffled.

    StateError where the state is none, is of a newer holdfast, or where the data has changed in the middle of an epoch:
    another length is another order, and samples would be repeated and left out.
    """
    known = {"order", "epoch", "consumed", "seed", "length", "shuffle"}
    if not isinstance(state, Mapping) or set(state) != known:
        found = sorted(map(str, state)) if isinstance(state, Mapping) else type(state).__name__
        raise StateError(f"{what}: {found} is not the position of a data source", hint="it was saved by something else")
    if state["order"] != _FORMAT:
        raise StateError(
            f"{what}: its order is of version {state['order']!r}, this holdfast knows {_FORMAT}", hint="update holdfast"
        )
    counts = [state[name] for name in ("epoch", "consumed", "seed", "length")]
    if any(type(count) is not int for count in counts) or not isinstance(state["shuffle"], bool):
        values = ", ".join(f"{name}={shown(value)}" for name, value in state.items())
        raise StateError(
            f"{what}: its position has values that are no whole numbers: {values}",
            hint="it was not saved by holdfast, or is damaged",
        )
    epoch, consumed, seed, length_then = (count for count in counts if isinstance(count, int))
    if epoch < 0 or not 0 <= consumed <= length_then or max(epoch, length_then) > MAX_LENGTH:
        said = f"{shown(consumed)} of {shown(length_then)} samples in epoch {shown(epoch)}"
        raise StateError(f"{what}: its position is {said}", hint="it was not saved by holdfast, or is damaged")
    if length_then != length and 0 < consumed < length_then:
        raise StateError(
            f"{what}: it has {length} samples, and had {length_then} when epoch {epoch} was left after {consumed} of "
            "them",
            hint='restore the data as it was; or finish="old" to finish the epoch with the samples of then, if there '
            'are more now; or finish="skip" to go on with the next epoch',
        )
    return Position(epoch, consumed), seed, length_then, state["shuffle"]
