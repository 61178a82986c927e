"""Switches that decide whether the same program computes the same bits twice, and what is known to break that.

Only those of libraries that the program has loaded; none is imported. They are read at each save, since programs set
them when they like.
"""

import logging
import os
import sys
from collections.abc import Callable, Mapping
from typing import Any

from holdfast.core.errors import printable
from holdfast.engine.accelerators import devices_in_use
from holdfast.format.frameworks import loaded

__all__ = ["accelerator_in_use", "determinism", "sources_of_nondeterminism", "warn_of_nondeterminism"]

_log = logging.getLogger("holdfast")

# An allow-list: what changes the order of sums, or the numbers that are drawn, and holds no secrets.
_VARIABLES = (
    "CUBLAS_WORKSPACE_CONFIG",
    "MKL_CBWR",
    "MKL_NUM_THREADS",
    "NUMEXPR_NUM_THREADS",
    "NVIDIA_TF32_OVERRIDE",
    "OMP_NUM_THREADS",
    "OPENBLAS_NUM_THREADS",
    "PYTHONHASHSEED",
)
_MAX_VALUE_CHARS = 500
_TRUE = "True"

_was_warned = False


def determinism() -> dict[str, str]:
    """The switches as they are now; those that are not set are left out."""
    found = {name: _short(os.environ[name]) for name in _VARIABLES if name in os.environ}
    flags = _xla_flags(os.environ.get("XLA_FLAGS", ""))
    if flags:
        found["XLA_FLAGS"] = flags
    torch, jax = loaded("torch"), loaded("jax")
    if torch is not None:
        _ask(found, "torch.use_deterministic_algorithms", lambda: _algorithms(torch))
        _ask(found, "torch.backends.cudnn.benchmark", lambda: torch.backends.cudnn.benchmark)
        _ask(found, "torch.backends.cudnn.deterministic", lambda: torch.backends.cudnn.deterministic)
        _ask(found, "torch.float32_matmul_precision", torch.get_float32_matmul_precision)
        _ask(found, "torch.backends.cudnn.allow_tf32", lambda: torch.backends.cudnn.allow_tf32)
        _ask(found, "torch.num_threads", torch.get_num_threads)
    if jax is not None:
        _ask(found, "jax.default_matmul_precision", lambda: jax.config.jax_default_matmul_precision)
        _ask(found, "jax.enable_x64", lambda: jax.config.jax_enable_x64)
        _ask(found, "jax.threefry_partitionable", lambda: jax.config.jax_threefry_partitionable)
    return found


def sources_of_nondeterminism(facts: Mapping[str, str], *, accelerator: bool) -> list[str]:
    """What is known to give other bits from run to run with these switches. The list is not complete."""
    if not accelerator:
        return []
    found = []
    if "torch.num_threads" in facts:
        exact = facts.get("torch.use_deterministic_algorithms") == _TRUE
        if facts.get("torch.backends.cudnn.benchmark") == _TRUE:
            found.append("cuDNN benchmark picks kernels by timing (torch.backends.cudnn.benchmark = False)")
        if not exact:
            found.append(
                "scatter, index_add and others add in any order on the device (atomics) unless "
                "torch.use_deterministic_algorithms(True)"
            )
            if facts.get("torch.backends.cudnn.deterministic") != _TRUE:
                found.append("cuDNN may take such kernels, too (torch.backends.cudnn.deterministic = True)")
        if "CUBLAS_WORKSPACE_CONFIG" not in facts:
            found.append("cuBLAS may add in another order with several streams unless CUBLAS_WORKSPACE_CONFIG=:4096:8")
    if "jax.enable_x64" in facts and "xla_gpu_deterministic_ops=true" not in facts.get("XLA_FLAGS", ""):
        found.append(
            "XLA picks kernels by timing and scatters in any order (atomics) unless "
            "XLA_FLAGS=--xla_gpu_deterministic_ops=true"
        )
    return found


def accelerator_in_use() -> bool:
    """Whether torch or JAX has a device other than the CPU in use; starts none."""
    if devices_in_use():
        return True
    # Asked which backend it uses, JAX starts one to find out; so it is asked only where one has started.
    jax, bridge = loaded("jax"), sys.modules.get("jax._src.xla_bridge")
    has_started = getattr(bridge, "backends_are_initialized", None)
    return bool(jax is not None and has_started is not None and has_started() and jax.default_backend() != "cpu")


def warn_of_nondeterminism() -> None:
    """Once per process, as soon as an accelerator is in use: what is known to make a resumed training differ."""
    global _was_warned
    if _was_warned or not accelerator_in_use():
        return
    _was_warned = True
    found = sources_of_nondeterminism(determinism(), accelerator=True)
    if found:
        _log.warning("resuming is exact, but this program may not compute the same bits twice: %s", "; ".join(found))


def _algorithms(torch: Any) -> object:
    if not torch.are_deterministic_algorithms_enabled():
        return False
    return "warn_only" if torch.is_deterministic_algorithms_warn_only_enabled() else True


def _ask(found: dict[str, str], name: str, ask: Callable[[], object]) -> None:
    try:
        value = ask()
    except (AttributeError, RuntimeError):
        return  # another version, or a program that mixes old and new settings
    if value is not None:
        found[name] = str(value)


def _xla_flags(text: str) -> str:
    """Without those that name files: paths are nobody's business."""
    return _short(" ".join(flag for flag in text.split() if "/" not in flag and "\\" not in flag)) if text else ""


def _short(value: str) -> str:
    return printable(value[:_MAX_VALUE_CHARS])
