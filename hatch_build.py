"""Builds the native part where there is a compiler. Without it holdfast is installed all the same, and is slower."""

import os
import subprocess
import sys
import sysconfig
import tempfile
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

_SOURCE = "src/holdfast/native/streams.c"
_LIBRARY = "_streams.abi3.so"
_FLAGS = ["-O3", "-std=gnu11", "-Wall", "-Wextra", "-Werror=implicit", "-fPIC", "-shared", "-fvisibility=hidden"]


class NativeHook(BuildHookInterface):
    """One library for every Python from 3.11 on."""

    PLUGIN_NAME = "custom"

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        source = os.path.join(self.root, _SOURCE)
        if version == "editable":
            _compile(source, os.path.join(os.path.dirname(source), _LIBRARY))
            return
        self._made = tempfile.TemporaryDirectory()
        library = os.path.join(self._made.name, _LIBRARY)
        if _compile(source, library):
            platform = sysconfig.get_platform().replace("-", "_").replace(".", "_")
            build_data["pure_python"] = False
            build_data["tag"] = f"cp311-abi3-{platform}"
            build_data["force_include"][library] = f"holdfast/native/{_LIBRARY}"


def _compile(source: str, library: str) -> bool:
    compiler = os.environ.get("CC", "cc").split()
    include = sysconfig.get_path("include")
    # To a name of its own first: a process that runs may have the old one mapped.
    fresh = f"{library}.{os.getpid()}"
    try:
        subprocess.run([*compiler, *_FLAGS, f"-I{include}", "-o", fresh, source], check=True)
        os.replace(fresh, library)
    except (OSError, subprocess.CalledProcessError) as error:
        print(f"holdfast: its native part is not built, copies take longer: {error}", file=sys.stderr)
        return False
    return True
