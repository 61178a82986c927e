"""Options of the Checkpointer, checked before anything is changed."""

import os
from collections.abc import Callable, Mapping, Sequence
from datetime import timedelta

from holdfast.core.errors import UsageError, in_words
from holdfast.engine.adapters import check_restorable
from holdfast.engine.documents import check_count
from holdfast.engine.loading import TREE_NAME
from holdfast.policy.auto import auto
from holdfast.policy.functions import Answer
from holdfast.policy.keep import Keep
from holdfast.policy.moment import Moment
from holdfast.policy.triggers import Trigger, as_trigger
from holdfast.storage.files import Files

__all__ = [
    "Every",
    "background_kind",
    "check_choice",
    "check_keep",
    "check_least",
    "check_mapping",
    "check_state",
    "trigger_of",
]

Every = Trigger | Callable[[Moment], Answer] | int | str | timedelta | None
"""When to save: "auto", a trigger, a function, a number of steps, a time; None is never."""

_VARIABLE = "HOLDFAST_BACKGROUND"


def check_choice(what: str, given: object, choices: Sequence[str]) -> None:
    """One of these."""
    if given not in choices:
        expected = ", ".join(map(repr, choices[:-1])) + f" or {choices[-1]!r}"
        raise UsageError(f"{what} is {given!r}, expected {expected}")


def check_least(what: str, given: int | None, least: int) -> None:
    """A whole number of at least that, or None."""
    if given is not None and check_count(what, given) < least:
        raise UsageError(f"{what} is {given}, expected None or at least {least}")


def check_keep(given: object) -> None:
    """What stays."""
    if not isinstance(given, Keep):
        raise UsageError(f"keep is {given!r}, expected keep(...) or KEEP_ALL", hint="keep=holdfast.keep(last=3)")


def trigger_of(every: Every) -> Trigger:
    """When to save."""
    given: object = every
    if given is auto:
        raise UsageError("auto is given without its parentheses", hint='every="auto", or every=holdfast.auto(…)')
    trigger = auto() if isinstance(every, str) and every == "auto" else as_trigger(every)
    try:
        frozenset(trigger.watches)
    except TypeError as error:
        what = f"{type(trigger).__name__}.watches: {in_words(error)}; expected names of what it looks at"
        raise UsageError(what, hint='for example watches = frozenset({"metrics"})') from error
    return trigger


def check_mapping(what: str, given: Mapping[str, object] | None) -> dict[str, object]:
    """A mapping, or None; as a dictionary of its own."""
    if given is not None and not isinstance(given, Mapping):
        raise UsageError(f"{what} is {type(given).__name__}, expected a mapping", hint='for example {"model": model}')
    return dict(given or {})


def check_state(given: Mapping[str, object] | None) -> dict[str, object]:
    """What can be restored in place, by names that are free."""
    state = check_mapping("state", given)
    check_restorable(state)
    if TREE_NAME in state:
        raise UsageError(f"the name {TREE_NAME!r} is taken: it is where save(tree=...) goes", hint="rename it")
    return state


def background_kind(wanted: str | None, files: Files | None) -> str:
    """The process is the default; storage that only this process can reach is written by this process."""
    if wanted is None:
        return "off" if files is not None else _check_kind(os.environ.get(_VARIABLE) or "process", _VARIABLE)
    kind = _check_kind(wanted, "background")
    if kind == "process" and files is not None:
        raise UsageError("background='process' cannot use files= of this process", hint="background='thread' can")
    return kind


def _check_kind(kind: str, what: str) -> str:
    check_choice(what, kind, ("process", "thread", "off"))
    return kind
