"""Python runs this before a program that `holdfast prove` has put it on the path of; then the one that it hides."""

import importlib.machinery
import importlib.util
import os
import sys

_OWN = os.path.dirname(os.path.abspath(__file__))


def _load(name: str, path: str) -> object:
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def _go_on() -> None:
    """The next one on the path is what the program would have had. PYTHONPATH stays, for those that it starts."""
    sys.path[:] = [path for path in sys.path if os.path.abspath(path) != _OWN]
    spec = importlib.machinery.PathFinder.find_spec("sitecustomize", sys.path)
    if spec is not None and spec.loader is not None:
        module = importlib.util.module_from_spec(spec)
        sys.modules["sitecustomize"] = module
        spec.loader.exec_module(module)


try:
    # Before 3.8 there is nothing to install it in; the kernel refuses all the same.
    if hasattr(sys, "addaudithook"):
        # Not by `import holdfast`: the program decides what is imported first.
        _load("_holdfast_guarding", os.path.join(os.path.dirname(_OWN), "guarding.py")).install_guard()  # type: ignore[attr-defined]
finally:
    _go_on()
