"""Calls of public functions with options that they do not have: UsageError, with the name that was likely meant.

By a decorator, and not by `**unknown` in each signature: so type checkers and editors find the mistake, too.
"""

from collections.abc import Callable, Mapping
from functools import wraps

from holdfast.core.errors import UsageError

# As in holdfast/__init__.py: type checkers know this name, and importing typing takes longer than the rest.
TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import ParamSpec, TypeVar

    _Options = ParamSpec("_Options")
    _Result = TypeVar("_Result")

__all__ = ["public_call"]


def public_call(what: str) -> "Callable[[Callable[_Options, _Result]], Callable[_Options, _Result]]":
    """Decorates a function that users know as `what`; UsageError where it is called as it cannot be."""

    def decorate(function: "Callable[_Options, _Result]") -> "Callable[_Options, _Result]":
        @wraps(function)
        def call(*given: "_Options.args", **options: "_Options.kwargs") -> "_Result":
            try:
                return function(*given, **options)
            except TypeError:
                # Looked at only now: calls that are right cost next to nothing.
                misuse = _misuse(what, function, given, options)
                if misuse is None:
                    raise
                raise misuse from None

        return call

    return decorate


def _misuse(
    what: str, function: Callable[..., object], given: tuple[object, ...], options: Mapping[str, object]
) -> UsageError | None:
    """None where the call is as it should be: then the TypeError is about something else."""
    import inspect  # which takes its time, and is hardly ever needed
    import reprlib

    signature = inspect.signature(function)
    try:
        signature.bind(*given, **options)
    except TypeError as error:
        known = signature.parameters
        if unknown := [name for name in options if name not in known]:
            return _unknown(what, unknown, [name for name in known if name != "self"])
        named = [f"{each.name}=" for each in known.values() if each.kind is each.KEYWORD_ONLY]
        places = len(known) - len(named)
        if len(given) > places:
            hint = f"name it: {_one_of(named)}" if named else f"help({what}) says what it takes"
            return UsageError(f"{what} takes no {reprlib.repr(given[places])} without a name", hint=hint)
        return UsageError(f"{what}: {error}", hint=f"help({what}) lists the options")
    return None


def _unknown(what: str, unknown: list[str], known: list[str]) -> UsageError:
    import difflib

    likely = difflib.get_close_matches(unknown[0], known, n=1)
    hint = f"did you mean {likely[0]!r}? " if likely else ""
    return UsageError(
        f"{what} has no option {', '.join(map(repr, unknown))}", hint=f"{hint}help({what}) lists the options"
    )


def _one_of(names: list[str]) -> str:
    return " or ".join(filter(None, [", ".join(names[:-1]), names[-1]]))
