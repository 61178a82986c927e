"""How much memory a save and a restore need on top of the state itself."""

import json
import shutil
import subprocess
import sys
from pathlib import Path

from benchmarks.contenders import Holdfast
from benchmarks.machine import free_memory_bytes
from benchmarks.measure import timed
from benchmarks.results import Section, at_most, row
from benchmarks.setting import Setting
from benchmarks.states import huge_state

__all__ = ["run"]

_LARGE_BYTES = 10 * 10**9
_QUICK_BYTES = 64 << 20
_TENSOR_BYTES = 512 << 20
_QUICK_TENSOR_BYTES = 8 << 20
_FREE_SHARE = 0.55  # others use the machine, too
_ALLOWED_BYTES = 256 << 20


def run(setting: Setting) -> Section:
    """Peak growth of the process while it saves and restores a state that fills much of the memory."""
    size_bytes, tensor_bytes = _sizes(setting)
    allowed_bytes = max(_ALLOWED_BYTES, tensor_bytes)
    # A process of its own: nothing that other sections left behind is counted, and all of it is given back.
    command = [sys.executable, "-m", __spec__.name, str(setting.directory / "run"), str(size_bytes), str(tensor_bytes)]
    found = json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE).stdout.splitlines()[-1])
    return Section(
        name="memory",
        title=f"Extra memory, {found['size_bytes'] / 1e9:.1f} GB in tensors of {found['tensor_bytes'] / 1e6:.0f} MB",
        rows=[
            row(doing, "holdfast", "holdfast", [found[doing]["wall_s"]], extra_bytes=found[doing]["extra_bytes"])
            for doing in ("save", "restore")
        ],
        checks=[
            at_most(f"{doing}: peak growth of the memory", allowed_bytes / 1e6, found[doing]["extra_bytes"] / 1e6, "MB")
            for doing in ("save", "restore")
        ],
    )


def _sizes(setting: Setting) -> tuple[int, int]:
    if setting.quick:
        return _QUICK_BYTES, _QUICK_TENSOR_BYTES
    free_bytes = min(free_memory_bytes(), shutil.disk_usage(setting.directory).free)
    return int(min(_LARGE_BYTES, _FREE_SHARE * free_bytes)), _TENSOR_BYTES


def _child(directory: Path, size_bytes: int, tensor_bytes: int) -> None:
    state = huge_state(size_bytes, tensor_bytes=tensor_bytes)
    with Holdfast(first=True).saving(state, directory) as call:  # the first one allocates the buffers
        saved = timed(call)
    state.wipe()
    with Holdfast().restoring(state, directory) as call:
        restored = timed(call)
    found = {
        "size_bytes": state.size_bytes,
        "tensor_bytes": max(tensor.nbytes for tensor in state.flat.values()),
        "save": saved._asdict(),
        "restore": restored._asdict(),
    }
    print(json.dumps(found))


if __name__ == "__main__":
    _child(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]))
