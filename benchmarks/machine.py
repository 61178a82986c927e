"""What the figures were measured on."""

import importlib.metadata
import os
import platform
from pathlib import Path

__all__ = ["describe_machine", "free_memory_bytes"]

_PACKAGES = ("numpy", "blake3", "msgspec", "torch", "safetensors", "torchsnapshot", "lightning", "orbax-checkpoint")


def describe_machine(directory: Path) -> dict[str, str]:
    """Facts that say how the figures may carry over; nothing that identifies the machine."""
    return {
        "processor": _processor(),
        "cores": str(len(os.sched_getaffinity(0))),
        "load before": f"{os.getloadavg()[0]:.1f}",
        "memory": f"{_memory_bytes('MemTotal') / 1e9:.0f} GB, {free_memory_bytes() / 1e9:.0f} GB free",
        "file system": _file_system(directory),
        "kernel": platform.release().split("-")[0],
        "python": platform.python_version(),
        **{name: version for name in _PACKAGES if (version := _version(name))},
    }


def free_memory_bytes() -> int:
    """What can be allocated without anything being swapped out."""
    return _memory_bytes("MemAvailable")


def _memory_bytes(field: str) -> int:
    for line in Path("/proc/meminfo").read_text(encoding="ascii").splitlines():
        if line.startswith(field + ":"):
            return int(line.split()[1]) << 10
    raise RuntimeError(f"/proc/meminfo has no {field}")


def _processor() -> str:
    for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.machine()


def _file_system(directory: Path) -> str:
    path = f"{directory.resolve()}/"
    mounts = [line.split() for line in Path("/proc/mounts").read_text(encoding="utf-8").splitlines()]
    holding = [(point, kind) for _, point, kind, *_ in mounts if path.startswith(point.rstrip("/") + "/")]
    return max(holding, key=lambda mount: len(mount[0]))[1] if holding else "unknown"


def _version(package: str) -> str:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return ""
