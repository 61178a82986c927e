"""The random state that no object of the program holds: Python's, numpy's and torch's global generators.

Of torch also those of every accelerator that is in use. That was tested with stand-ins for their modules only, not yet
on real ones.
"""

import logging
import random
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import numpy as np
from numpy.random import mtrand
from numpy.random.bit_generator import ISeedSequence

from holdfast.engine.accelerators import device_module, devices_in_use
from holdfast.format.frameworks import loaded

__all__ = ["current_random", "restore_random"]

_TORCH = "torch_"

_log = logging.getLogger("holdfast")

_named: set[str] = set()
"""Of what was left out of a checkpoint, a program hears once."""


def current_random() -> dict[str, object]:
    """A copy of the global generators' states, to be encoded like any state."""
    python = random.Random(0)  # noqa: S311  # a container for the state, not for secrets
    python.setstate(random.getstate())
    found: dict[str, object] = {"python": python}
    _put(found, "numpy", _numpy_twin)
    torch = loaded("torch")
    if torch is not None:
        found["torch"] = torch.get_rng_state()
        for name, module in devices_in_use().items():
            _put(found, f"{_TORCH}{name}", partial(_device_states, module))
        if torch.backends.mps.is_available():
            _put(found, "torch_mps", torch.mps.get_rng_state)
    return found


def restore_random(value: Mapping[str, Any]) -> list[str]:
    """Put the states back; returns what could not be: the library is not loaded, the device not here, or it refuses.

    Where there are fewer devices than there were, those that are here go on, and the others are named by their number.
    """
    left: list[str] = []
    for name, state in value.items():
        if name == "python":
            random.setstate(state.getstate())
        elif name == "numpy":
            _restore_numpy(state)
        else:
            left += _restore_torch(name, state)
    return left


def _put(found: dict[str, object], name: str, ask: Callable[[], object]) -> None:
    try:
        found[name] = ask()
    except Exception as error:  # noqa: BLE001  # I7: what a backend lacks, or raises, must not end the training
        if name not in _named:
            _named.add(name)
            _log.warning("the random state of %s is not saved, since it cannot be asked for: %r", name, error)


def _numpy_twin() -> "np.random.RandomState":
    state = np.random.get_state(legacy=False)
    assert isinstance(state, dict)
    twin = np.random.RandomState(getattr(np.random, state["bit_generator"])(_NoSeed()))
    twin.set_state(state)
    return twin


class _NoSeed(ISeedSequence):
    """For a generator that is given its state at once: to make one of a seed takes three times as long."""

    def generate_state(self, n_words: int, dtype: Any = np.uint32) -> "np.ndarray[Any, Any]":
        return np.zeros(n_words, dtype)


def _restore_numpy(saved: "np.random.RandomState") -> None:
    """Also where the program has not chosen its bit generator yet, or another one."""
    state, now = saved.get_state(legacy=False), np.random.get_state(legacy=False)
    assert isinstance(state, dict)
    assert isinstance(now, dict)
    if state["bit_generator"] != now["bit_generator"]:
        mtrand.set_bit_generator(getattr(np.random, state["bit_generator"])(0))
    np.random.set_state(state)


def _restore_torch(name: str, state: Any) -> list[str]:
    torch = loaded("torch")
    if torch is None:
        return [name]
    if name == "torch":
        torch.set_rng_state(torch.as_tensor(state))
        return []
    try:
        return _restore_device(torch, name, state)
    except Exception as error:  # noqa: BLE001  # I7: the rest of the state is restored, and the training can go on
        _log.warning("the random state of %s is not restored, since it cannot be set: %r", name, error)
        return [name]


def _restore_device(torch: Any, name: str, state: Any) -> list[str]:
    if name == "torch_mps":
        if not torch.backends.mps.is_available():
            return [name]
        torch.mps.set_rng_state(torch.as_tensor(state))
        return []
    device = device_module(name.removeprefix(_TORCH))
    if device is None or not isinstance(state, list | tuple):
        return [name]
    count = device.device_count()
    for index, one in enumerate(state[:count]):
        device.set_rng_state(torch.as_tensor(one), index)
    return [f"{name}[{index}]" for index in range(count, len(state))]


def _device_states(module: Any) -> list[Any]:
    """Of all devices of that type."""
    return [module.get_rng_state(index) for index in range(module.device_count())]
