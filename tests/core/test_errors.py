"""Errors: ours, of the type a user expects, and safe to print."""

import pytest

from holdfast.core import errors


def all_errors() -> list[type[errors.HoldfastError]]:
    return [getattr(errors, name) for name in errors.__all__ if name.endswith("Error")]


@pytest.mark.parametrize("kind", all_errors())
def test_every_error_says_its_message_and_hint(kind):
    error = kind("what failed", hint="what to do")

    assert str(error) == "what failed\n  hint: what to do"
    assert isinstance(error, errors.HoldfastError)


@pytest.mark.parametrize("kind", all_errors())
def test_control_characters_cannot_forge_a_line_or_a_colour(kind):
    error = kind("bad \x1b[31m name \x07", hint="also \x1b here")

    assert "\x1b" not in str(error)
    assert "\\x1b" in str(error)


def test_a_mismatch_lists_every_problem():
    error = errors.StateMismatchError("differs", problems=["a: missing", "b: shape"])

    assert error.problems == ("a: missing", "b: shape")
    assert "a: missing" in str(error)
    assert "b: shape" in str(error)


def test_storage_errors_keep_the_systems_number():
    assert errors.StorageError("full", errno=28).errno == 28
    assert isinstance(errors.NoSpaceError("full", errno=28), OSError)


def test_the_module_docstring_shows_every_error():
    for kind in all_errors():
        assert kind.__name__ in (errors.__doc__ or "")
