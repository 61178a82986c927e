"""What the figures were measured on."""

import importlib.metadata
import os
import platform
from pathlib import Path

import psutil

__all__ = ["describe_machine"]

_PACKAGES = ("numpy", "blake3", "msgspec", "torch", "safetensors")


def describe_machine(directory: Path) -> dict[str, str]:
    """Facts that say how the figures may carry over; nothing that identifies the machine."""
    memory = psutil.virtual_memory()
    return {
        "processor": _processor(),
        "cores": str(len(os.sched_getaffinity(0))),
        "memory": f"{memory.total / 1e9:.0f} GB, {memory.available / 1e9:.0f} GB free",
        "file system": _file_system(directory),
        "kernel": platform.release().split("-")[0],
        "python": platform.python_version(),
        **{name: version for name in _PACKAGES if (version := _version(name))},
    }


def _processor() -> str:
    for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.machine()


def _file_system(directory: Path) -> str:
    path = str(directory.resolve())
    holding = [part for part in psutil.disk_partitions(all=True) if path.startswith(part.mountpoint.rstrip("/") + "/")]
    return max(holding, key=lambda part: len(part.mountpoint)).fstype if holding else "unknown"


def _version(package: str) -> str:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return ""
