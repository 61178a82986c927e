"""Provenance: what made a checkpoint. An allow-list: no environment, no arguments, no addresses, no tokens."""

import os
import platform
import socket
import subprocess
import sys
from collections.abc import Mapping
from typing import NamedTuple

from holdfast.core.version import __version__

__all__ = ["Drift", "collect_provenance", "compare_provenance"]

# Only if the program has loaded them: their versions decide what the numbers mean.
_LIBRARIES = ("numpy", "torch", "jax", "jaxlib", "tensorflow", "keras", "lightning", "transformers", "scipy", "sklearn")
_GIT_DEADLINE_S = 5.0


class Drift(NamedTuple):
    """One thing that is not as it was when the checkpoint was made."""

    what: str
    then: str
    now: str

    def __str__(self) -> str:
        return f"{self.what}: {self.then} → {self.now}"


def collect_provenance() -> dict[str, object]:
    """What this process is: versions, host, and the state of the code it runs."""
    return {
        "holdfast": __version__,
        "python": platform.python_version(),
        "libraries": _library_versions(),
        "host": socket.gethostname(),
        "machine": platform.machine(),
        "code": _code_identity(),
    }


def compare_provenance(then: Mapping[str, object], now: Mapping[str, object], *, prefix: str = "") -> list[Drift]:
    """What changed, in the order of the fields; nested mappings field by field."""
    drifts: list[Drift] = []
    for what in dict.fromkeys([*then, *now]):
        before, after = then.get(what), now.get(what)
        if isinstance(before, Mapping) and isinstance(after, Mapping):
            drifts += compare_provenance(before, after, prefix=f"{prefix}{what}.")
        elif before != after:
            drifts.append(Drift(f"{prefix}{what}", _text(before), _text(after)))
    return drifts


def _text(value: object) -> str:
    return "none" if value is None else str(value)


def _library_versions() -> dict[str, str]:
    versions = ((name, getattr(sys.modules.get(name), "__version__", None)) for name in _LIBRARIES)
    return {name: str(version) for name, version in versions if version is not None}


def _code_identity() -> dict[str, object] | None:
    """The commit of the script's repository and whether its files differ from it; None outside of a repository."""
    main = getattr(sys.modules.get("__main__"), "__file__", None)
    folder = os.path.dirname(os.path.abspath(main)) if main else os.getcwd()
    commit = _git(folder, "rev-parse", "--verify", "HEAD")
    if not commit:
        return None
    changes = _git(folder, "status", "--porcelain", "--untracked-files=no")
    return {"commit": commit, "dirty": None if changes is None else bool(changes)}


def _git(folder: str, *arguments: str) -> str | None:
    try:
        done = subprocess.run(  # noqa: S603  a list, no shell, nothing from outside
            ["git", "-c", "core.fsmonitor=false", "-C", folder, *arguments],  # noqa: S607  the user's own git
            capture_output=True,
            timeout=_GIT_DEADLINE_S,
            check=False,
            stdin=subprocess.DEVNULL,
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.decode(errors="replace").strip() if done.returncode == 0 else None
