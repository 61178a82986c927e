"""Builds the native part where there is a compiler. Without it holdfast is installed all the same, and is slower."""

import os
import subprocess
import sys
import sysconfig
import tempfile
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

_DIRECTORY = "src/holdfast/native"
_PARTS = ("starts", "streams")
_FLAGS = ["-O3", "-std=gnu11", "-Wall", "-Wextra", "-Werror=implicit", "-fPIC", "-shared", "-fvisibility=hidden"]


class NativeHook(BuildHookInterface):
    """One library of each part for every Python from 3.11 on."""

    PLUGIN_NAME = "custom"

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        directory = os.path.join(self.root, _DIRECTORY)
        if version == "editable":
            for part in _PARTS:
                _compile(directory, part, directory)
            return
        self._made = tempfile.TemporaryDirectory()
        platform = sysconfig.get_platform().replace("-", "_").replace(".", "_")
        for part in _PARTS:
            library = _compile(directory, part, self._made.name)
            if library is not None:
                build_data["pure_python"] = False
                build_data["tag"] = f"cp311-abi3-{platform}"
                build_data["force_include"][library] = f"holdfast/native/{os.path.basename(library)}"


def _compile(directory: str, part: str, target: str) -> str | None:
    """The library that was made of a part."""
    source, library = os.path.join(directory, f"{part}.c"), os.path.join(target, f"_{part}.abi3.so")
    compiler = os.environ.get("CC", "cc").split()
    include = sysconfig.get_path("include")
    # To a name of its own first: a process that runs may have the old one mapped.
    fresh = f"{library}.{os.getpid()}"
    try:
        subprocess.run([*compiler, *_FLAGS, f"-I{include}", "-o", fresh, source], check=True)
        os.replace(fresh, library)
    except (OSError, subprocess.CalledProcessError) as error:
        print(f"holdfast: its native part {part!r} is not built, it will be slower: {error}", file=sys.stderr)
        return None
    return library
