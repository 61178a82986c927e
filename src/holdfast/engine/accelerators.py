"""Which accelerators torch has, and which of them the program has begun to use. Starts none of them."""

from collections.abc import Iterator
from typing import Any

from holdfast.format.frameworks import loaded

__all__ = ["device_module", "devices_in_use"]

_KNOWN = ("cuda", "xpu")


def devices_in_use() -> dict[str, Any]:
    """torch's modules for them, by the type of device: `cuda` (ROCm, too), `xpu`, or what a backend calls itself."""
    return {name: module for name, module in _modules() if _is_in_use(module)}


def device_module(name: str) -> Any:
    """That for a type of device which this machine has; None for any other name, whatever else torch has under it."""
    return next((module for known, module in _modules() if known == name and _is_available(module)), None)


def _modules() -> Iterator[tuple[str, Any]]:
    torch = loaded("torch")
    if torch is None:
        return
    for name in dict.fromkeys((*_KNOWN, *_backends(torch))):
        module = getattr(torch, name, None)
        if hasattr(module, "is_available") and hasattr(module, "get_rng_state"):
            yield name, module


def _backends(torch: Any) -> Iterator[str]:
    """What was added to torch from outside; the questions are newer than the oldest torch that is supported."""
    try:
        current = torch.accelerator.current_accelerator()
        if current is not None and current.type not in ("cpu", "mps"):  # of the latter there is only one generator
            yield current.type
        yield torch._C._get_privateuse1_backend_name()
    except (AttributeError, RuntimeError):
        return


def _is_in_use(module: Any) -> bool:
    if not _is_available(module):
        return False
    # Backends from outside need not have it, or say it: being there is all that is known of them.
    is_initialized = getattr(module, "is_initialized", None)
    try:
        return True if is_initialized is None else bool(is_initialized())
    except Exception:  # noqa: BLE001  # I7: whatever a backend raises, the program did not ask it
        return True


def _is_available(module: Any) -> bool:
    try:
        return bool(module.is_available())
    except Exception:  # noqa: BLE001  # I7: what cannot even say that it is there is not
        return False
