"""holdfast: checkpoint/restart for long-running trainings and HPC jobs.

    data = holdfast.data.resumable(loader, seed=7)
    ckpt = holdfast.Checkpointer("runs/mnist", {"model": model, "optimizer": optimizer, "data": data})
    ckpt.restore()
    for batch in ckpt.over(data, epochs=10):
        ...
        ckpt.step(loss=loss)

Importing it is light: what a name needs is imported when the name is used first.
"""

from holdfast.core.version import __version__ as __version__

# Type checkers know the name; importing typing would take longer than all that `holdfast --version` does.
TYPE_CHECKING = False
if TYPE_CHECKING:
    from holdfast import data
    from holdfast.checkpointer import Checkpointer
    from holdfast.core.errors import (
        FencedError,
        FormatError,
        FormatVersionError,
        HoldfastError,
        IntegrityError,
        Interrupted,
        NoCheckpointError,
        NoSpaceError,
        RestoreError,
        RunBusyError,
        RunError,
        SaveFailedError,
        StateError,
        StateMismatchError,
        Stopped,
        StorageError,
        UnsupportedError,
        UsageError,
    )
    from holdfast.engine.outcome import PendingCheckpoint, Restored
    from holdfast.engine.prefetch import Prefetch, prefetch
    from holdfast.engine.readonly import load
    from holdfast.format.registry import Record, register
    from holdfast.policy.auto import Auto, auto
    from holdfast.policy.keep import KEEP_ALL, Keep, keep
    from holdfast.policy.moment import Decision, Moment
    from holdfast.policy.triggers import Trigger, every, never, on_best, on_error, on_stop, when

_HOMES = {
    "Checkpointer": "holdfast.checkpointer",
    "load": "holdfast.engine.readonly",
    **dict.fromkeys(["PendingCheckpoint", "Restored"], "holdfast.engine.outcome"),
    **dict.fromkeys(["prefetch", "Prefetch"], "holdfast.engine.prefetch"),
    **dict.fromkeys(["keep", "Keep", "KEEP_ALL"], "holdfast.policy.keep"),
    **dict.fromkeys(
        ["every", "on_best", "on_error", "on_stop", "never", "when", "Trigger"], "holdfast.policy.triggers"
    ),
    **dict.fromkeys(["auto", "Auto"], "holdfast.policy.auto"),
    **dict.fromkeys(["Moment", "Decision"], "holdfast.policy.moment"),
    **dict.fromkeys(["register", "Record"], "holdfast.format.registry"),
}

__all__ = [
    "Checkpointer",
    "data",
    "load",
    "prefetch",
    "auto",
    "every",
    "on_best",
    "on_error",
    "on_stop",
    "never",
    "when",
    "keep",
    "KEEP_ALL",
    "register",
    "PendingCheckpoint",
    "Prefetch",
    "Restored",
    "Keep",
    "Auto",
    "Trigger",
    "Moment",
    "Decision",
    "Record",
    "HoldfastError",
    "UsageError",
    "StateError",
    "StateMismatchError",
    "FormatError",
    "FormatVersionError",
    "UnsupportedError",
    "IntegrityError",
    "NoCheckpointError",
    "RestoreError",
    "SaveFailedError",
    "RunError",
    "RunBusyError",
    "FencedError",
    "StorageError",
    "NoSpaceError",
    "Stopped",
    "Interrupted",
]


def __getattr__(name: str) -> object:
    # Every other public name is an error.
    home = _HOMES.get(name, "holdfast.core.errors" if name in __all__ else None)
    if home is None:
        raise AttributeError(f"module 'holdfast' has no attribute {name!r}")
    from importlib import import_module

    value = import_module("holdfast.data") if name == "data" else getattr(import_module(home), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return [*__all__, "__version__"]
