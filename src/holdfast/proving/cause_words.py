"""How causes name things, and show what they were and what they are."""

from collections.abc import Mapping

from holdfast.engine.evidence import Bystander
from holdfast.proving.comparing import Change

__all__ = ["SHOWN", "change_words", "is_are", "metric_words", "name_of", "some_of"]

SHOWN = 3
"""Of many alike, so many are shown."""


def name_of(thing: Bystander) -> str:
    """What the program calls it."""
    return thing.name or f"(without a name, {thing.type})"


def some_of(found: Mapping[str, object]) -> str:
    """The first few names, and how many more there are."""
    names = list(found)
    return ", ".join(names[:SHOWN]) + (f" and {len(names) - SHOWN} more" if len(names) > SHOWN else "")


def is_are(found: Mapping[str, object]) -> str:
    """The verb to that many names."""
    return "is" if len(found) == 1 else "are"


def change_words(change: Change) -> str:
    """What a leaf of the state was and is."""
    if change.before.startswith("=") and change.after.startswith("="):
        return f"{_cut(change.before[1:])} undisturbed, {_cut(change.after[1:])} now"
    if not change.before or not change.after:
        return "only in the undisturbed run" if change.before else "only in the resumed run"
    return "other bits"


def metric_words(change: Change) -> str:
    """What a metric was and is, as a number to read."""

    def number(text: str) -> str:
        if text.startswith("="):
            return text[1:]
        try:
            return f"{float.fromhex(text):.9g}"
        except ValueError:
            return text or "none"

    return f"{number(change.before)} undisturbed, {number(change.after)} resumed"


def _cut(text: str) -> str:
    return text if len(text) <= 40 else text[:39] + "…"
