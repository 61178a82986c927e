"""torch and JAX, if they are there: never imported for encoding, and for decoding only by these fixed names."""

import sys
from importlib import import_module
from typing import Any, Literal

from holdfast.core.errors import FormatError

__all__ = ["Arrays", "Frameworks", "loaded"]

Arrays = Literal["native", "numpy"]


def loaded(name: Literal["torch", "jax"]) -> Any:
    """The module, if the program imported it, else None."""
    module = sys.modules.get(name)
    # A half-imported module (an import cycle, a failed import) has no version yet.
    return module if hasattr(module, "__version__") else None


class Frameworks:
    """What values may be built of. In native form torch and JAX are imported when a node of theirs is met."""

    def __init__(self, arrays: Arrays) -> None:
        self._native = arrays == "native"
        self._found: dict[str, Any] = {}

    @property
    def torch(self) -> Any:
        """torch, or None where it is not wanted or not installed."""
        return self._find("torch")

    @property
    def jax(self) -> Any:
        """JAX, or None where it is not wanted or not installed."""
        return self._find("jax")

    def _find(self, name: Literal["torch", "jax"]) -> Any:
        if name not in self._found:
            self._found[name] = _import(name) if self._native else None
        return self._found[name]


def _import(name: Literal["torch", "jax"]) -> Any:
    try:
        return import_module(name)
    except ImportError:
        return None
    except OSError as error:  # a broken installation: a shared library is missing
        raise FormatError(f"{name} is installed but cannot be imported: {error}", hint="load with numpy") from error
