"""What the package shows: adding to it needs a page and a line in the changelog, taking from it a new version."""

import inspect
import re
import subprocess
import sys

import pytest

import holdfast
from tests.docs.pages import ROOT

PUBLIC = [
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
REFERENCE = "\n".join(page.read_text() for page in sorted(ROOT.glob("docs/reference/*.md")))


def test_the_public_names_are_these() -> None:
    assert holdfast.__all__ == PUBLIC


@pytest.mark.parametrize("module", ["numpy", "torch", "jax", "msgspec", "blake3", "logging"])
def test_importing_holdfast_does_not_import(module: str) -> None:
    program = f"import sys; known = set(sys.modules); import holdfast; print({module!r} in set(sys.modules) - known)"

    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)

    assert done.stdout == "False\n"


def test_using_the_checkpointer_does_not_import_torch_or_jax() -> None:
    program = "import sys, holdfast; holdfast.Checkpointer; print({'torch', 'jax'} & set(sys.modules))"

    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)

    assert done.stdout == "set()\n"


@pytest.mark.parametrize("name", PUBLIC)
def test_every_public_name_has_a_docstring(name: str) -> None:
    assert inspect.getdoc(getattr(holdfast, name))


@pytest.mark.parametrize("name", PUBLIC)
def test_every_public_name_is_described_in_the_reference(name: str) -> None:
    assert re.search(rf"`(holdfast\.)?{name}\b", REFERENCE)


METHODS = [name for name in vars(holdfast.Checkpointer) if not name.startswith("_")]


@pytest.mark.parametrize("method", METHODS)
def test_every_method_of_the_checkpointer_has_a_docstring_and_is_described(method: str) -> None:
    assert inspect.getdoc(getattr(holdfast.Checkpointer, method))
    assert re.search(rf"^#+ `{method}\b", REFERENCE, re.MULTILINE)


CALLED = [
    "Checkpointer",
    "data.resumable",
    "load",
    "prefetch",
    "auto",
    "every",
    "on_best",
    "when",
    "Moment",
    "Decision",
    "keep",
    "register",
]
CALLED += [f"Checkpointer.{method}" for method in METHODS if callable(getattr(holdfast.Checkpointer, method))]


@pytest.mark.parametrize("function", CALLED)
def test_every_option_of_a_public_function_is_described_in_the_reference(function: str) -> None:
    owner, _, method = function.partition(".")
    called = getattr(getattr(holdfast, owner), method) if method else getattr(holdfast, owner)

    options = [name for name in inspect.signature(called).parameters if name != "self"]

    assert [name for name in options if not re.search(rf"`{name}\b", REFERENCE)] == []


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="no attribute 'Checkpoint'"):
        holdfast.Checkpoint  # noqa: B018


@pytest.mark.parametrize("name", [name for name in PUBLIC if name.endswith("Error")])
def test_every_error_derives_from_holdfast_error(name: str) -> None:
    assert issubclass(getattr(holdfast, name), holdfast.HoldfastError)
