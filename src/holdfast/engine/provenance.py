"""Provenance: what made a checkpoint. An allow-list: no arguments, no addresses, no tokens.

Of the environment only what decides whether computations give the same bits twice.
"""

import os
import platform
import socket
import subprocess
import sys
from collections.abc import Callable, Mapping
from typing import NamedTuple

from holdfast.core.version import __version__
from holdfast.engine.determinism import determinism

__all__ = ["Drift", "Provenance", "begin_provenance", "collect_provenance", "compare_provenance"]

# Only if the program has loaded them: their versions decide what the numbers mean.
_LIBRARIES = ("numpy", "torch", "jax", "jaxlib", "tensorflow", "keras", "lightning", "transformers", "scipy", "sklearn")
_GIT_DEADLINE_S = 5.0
_COMMIT = "# branch.oid "
_SWITCHES = "determinism"


class Drift(NamedTuple):
    """One thing that is not as it was when the checkpoint was made."""

    what: str
    then: str
    now: str

    def __str__(self) -> str:
        return f"{self.what}: {self.then} → {self.now}"


Provenance = Callable[[], dict[str, object]]
"""What a process is, when it is asked for."""


def begin_provenance() -> Provenance:
    """Ask for it now; git, which takes milliseconds, answers while the program goes on."""
    known: dict[str, object] = {
        "holdfast": __version__,
        "python": platform.python_version(),
        "libraries": _library_versions(),
        "host": socket.gethostname(),
        "machine": platform.machine(),
    }
    git = _start_git()

    def complete() -> dict[str, object]:
        if "code" not in known:
            known["code"] = None if git is None else _read_status(git)
        # Read now, since programs set switches when they like; a new mapping, since an earlier one may not be written
        # yet.
        return {**known, _SWITCHES: determinism()}

    return complete


def collect_provenance() -> dict[str, object]:
    """What this process is: versions, host, and the state of the code it runs. For commands, which compute nothing."""
    known = begin_provenance()()
    del known[_SWITCHES]  # those of a command say nothing of a training
    return known


def compare_provenance(then: Mapping[str, object], now: Mapping[str, object], *, prefix: str = "") -> list[Drift]:
    """What changed, in the order of the fields; nested mappings field by field."""
    drifts: list[Drift] = []
    for what in dict.fromkeys([*then, *now]):
        before, after = then.get(what), now.get(what)
        if what == _SWITCHES and (before is None or after is None):
            continue  # older checkpoints do not have them, and commands do not know them
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


def _start_git() -> "subprocess.Popen[bytes] | None":
    """git, telling the commit of the script's repository, and which of its files differ from that."""
    main = getattr(sys.modules.get("__main__"), "__file__", None)
    folder = os.path.dirname(os.path.abspath(main)) if main else os.getcwd()
    status = ("status", "--porcelain=v2", "--branch", "--untracked-files=no")
    try:
        return subprocess.Popen(  # noqa: S603  a list, no shell, nothing from outside
            ["git", "-c", "core.fsmonitor=false", "-C", folder, *status],  # noqa: S607  the user's own git
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
        )
    except (OSError, subprocess.SubprocessError):
        return None


def _read_status(git: "subprocess.Popen[bytes]") -> dict[str, object] | None:
    """The commit, and whether files differ from it; None outside of a repository, or where git does not answer."""
    try:
        lines = git.communicate(timeout=_GIT_DEADLINE_S)[0].decode(errors="replace").splitlines()
    except (OSError, subprocess.SubprocessError):
        git.kill()
        with git:  # closes the pipe, and waits
            return None
    commits = [line.removeprefix(_COMMIT) for line in lines if line.startswith(_COMMIT)]
    if git.returncode != 0 or not commits or not commits[0].isalnum():  # "(initial)" before the first commit
        return None
    return {"commit": commits[0], "dirty": any(not line.startswith("#") for line in lines)}
