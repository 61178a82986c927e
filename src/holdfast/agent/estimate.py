"""How large a snapshot will be, guessed before the first save, so that its memory can be made ready meanwhile."""

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from holdfast.engine.adapters import is_optimizer
from holdfast.format.frameworks import loaded

__all__ = ["expected_bytes"]

_MAX_DEPTH = 4
# Moments of Adam and its kin are as large as two copies of the parameters, the momentum of most others as one.
_ADAM_COPIES, _OTHER_COPIES = 2, 1


def expected_bytes(state: object, depth: int = 0) -> int:
    """The bytes of the arrays in the state, and of what its optimizers will add in their first steps. Never raises."""
    torch = loaded("torch")
    try:
        if isinstance(state, np.ndarray) or (torch is not None and isinstance(state, torch.Tensor)):
            return int(state.nbytes)
        if torch is not None and isinstance(state, torch.nn.Module):
            return sum(tensor.nbytes for tensor in (*state.parameters(), *state.buffers()))
        if is_optimizer(state):
            return _expected_of_optimizer(state)
        if depth < _MAX_DEPTH and isinstance(state, Mapping):
            return _sum(state.values(), depth)
        if depth < _MAX_DEPTH and isinstance(state, list | tuple):
            return _sum(state, depth)
    except Exception:  # noqa: BLE001  a guess: whatever an odd object does, the first save finds out the size
        return 0
    return 0


def _sum(values: Iterable[object], depth: int) -> int:
    return sum(expected_bytes(value, depth + 1) for value in values)


def _expected_of_optimizer(optimizer: Any) -> int:
    parameters = sum(tensor.nbytes for group in optimizer.param_groups for tensor in group["params"])
    is_adam = "adam" in type(optimizer).__name__.lower()
    return int(parameters) * (_ADAM_COPIES if is_adam else _OTHER_COPIES)
