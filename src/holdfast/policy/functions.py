"""Functions of the program that say when a checkpoint is due: what they may be, and what their answers mean."""

import math
from collections.abc import Callable

from holdfast.core.errors import UsageError, in_words, printable
from holdfast.policy.moment import Decision, Moment

__all__ = ["Answer", "ask", "check_function", "in_short", "name_of"]

Answer = bool | str | Decision
"""What a function may return: due or not; why it is due, or an empty text; or all of it."""

_LENGTH = 200


def check_function(function: object, what: str = "when", *, given: str = "a moment") -> None:
    """UsageError where it is clear beforehand that the function can give no answer.

    It is called with what is `given`; an empty text is nothing.
    """
    import inspect

    if not callable(function):
        hint = "for example when(lambda moment: moment.step == 5)"
        raise UsageError(f"{what}: {in_short(repr(function))} is not a function", hint=hint)
    if inspect.iscoroutinefunction(function):
        raise UsageError(f"{what}: {name_of(function)} is a coroutine function", hint="give a plain function")
    try:
        inspect.signature(function).bind(*((None,) if given else ()))
    except TypeError as error:
        found = f"{what}: {name_of(function)} cannot be called with {given or 'nothing'}: {error}"
        raise UsageError(found, hint="give it one parameter" if given else "give it no parameters") from error
    except ValueError:
        pass  # some functions in C have no signature to look at


def ask(function: Callable[[Moment], Answer], moment: Moment) -> Decision:
    """What the function decides. Not due where it raises or returns something else; the reason says so."""
    name = name_of(function)
    try:
        return _understood(function(moment), moment, name)
    except Exception as error:  # noqa: BLE001 - I7: the program's own mistake must not end its training either
        return _undecided(moment, f"{name} raised {in_words(error)}")


def name_of(function: object) -> str:
    """The function as reasons call it."""
    return in_short(str(getattr(function, "__name__", None) or repr(function)))


def in_short(text: str) -> str:
    """At most 200 characters, on one line."""
    if not text.isprintable():
        text = printable(text)
    return text if len(text) <= _LENGTH else f"{text[: _LENGTH - 1]}…"


def _understood(answer: object, moment: Moment, name: str) -> Decision:
    item = getattr(answer, "item", None)
    if callable(item):  # a comparison of arrays or tensors gives one of them
        answer = item()
    match answer:
        case bool():
            return _decision(moment, Decision(answer, ""), name)
        case str():
            return _decision(moment, Decision(bool(answer), answer), name)
        case Decision(due=bool(), reason=str(), ask_at=int() | float()):
            return _decision(moment, answer, name)
    return _undecided(moment, f"{name} returned {answer!r}, expected True, False, a text or a Decision")


def _decision(moment: Moment, answer: Decision, name: str) -> Decision:
    reason = answer.reason or f"{name} says {'so' if answer.due else 'no'}"
    # Left out, it is infinite; a function that does not know of it must be asked again all the same.
    said = not answer.due and moment.step < answer.ask_at < math.inf
    return Decision(answer.due, in_short(reason), answer.ask_at if said else moment.step + 1)


def _undecided(moment: Moment, reason: str) -> Decision:
    return Decision(due=False, reason=in_short(reason), ask_at=moment.step + 1)
