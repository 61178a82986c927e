"""The random state that no object of the program holds: Python's, numpy's and torch's global generators."""

import random
from collections.abc import Mapping
from typing import Any

import numpy as np

from holdfast.format.frameworks import loaded

__all__ = ["current_random", "restore_random"]


def current_random() -> dict[str, object]:
    """A copy of the global generators' states, to be encoded like any state."""
    python = random.Random()  # noqa: S311  # a container for the state, not for secrets
    python.setstate(random.getstate())
    found: dict[str, object] = {"python": python, "numpy": _numpy_twin()}
    torch = loaded("torch")
    if torch is not None:
        found["torch"] = torch.get_rng_state()
        if torch.cuda.is_available() and torch.cuda.is_initialized():
            found["torch_cuda"] = torch.cuda.get_rng_state_all()
        if torch.backends.mps.is_available():
            found["torch_mps"] = torch.mps.get_rng_state()
    return found


def restore_random(value: Mapping[str, Any]) -> list[str]:
    """Put the states back; returns what could not be, because the library is not loaded or the device not here."""
    left: list[str] = []
    for name, state in value.items():
        if name == "python":
            random.setstate(state.getstate())
        elif name == "numpy":
            np.random.set_state(state.get_state(legacy=False))
        elif not _restore_torch(name, state):
            left.append(name)
    return left


def _numpy_twin() -> "np.random.RandomState":
    state = np.random.get_state(legacy=False)
    assert isinstance(state, dict)
    twin = np.random.RandomState(getattr(np.random, state["bit_generator"])(0))
    twin.set_state(state)
    return twin


def _restore_torch(name: str, state: Any) -> bool:
    torch = loaded("torch")
    if torch is None:
        return False
    if name == "torch":
        torch.set_rng_state(torch.as_tensor(state))
    elif name == "torch_cuda" and torch.cuda.is_available() and len(state) <= torch.cuda.device_count():
        torch.cuda.set_rng_state_all([torch.as_tensor(one) for one in state])
    elif name == "torch_mps" and torch.backends.mps.is_available():
        torch.mps.set_rng_state(torch.as_tensor(state))
    else:
        return False
    return True
