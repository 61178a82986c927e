"""What an object of the program has to say against a saved state, asked before anything is loaded.

An object may have `check_state_dict(state)`, which raises a StateError where `load_state_dict` would refuse. It is
given what is known before any array is read: an entry that holds one is left out.
"""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from holdfast.core.errors import HoldfastError, StateMismatchError, in_words
from holdfast.format.arrays import LeafInfo
from holdfast.format.decode import build
from holdfast.format.frameworks import Frameworks
from holdfast.format.keys import mapping_entries
from holdfast.format.nodes import Node
from holdfast.format.registry import type_name
from holdfast.format.select import MAPPING_KINDS

__all__ = ["Objection", "objection_to"]


class Objection(NamedTuple):
    """Why the object cannot take the state, and what to do about it."""

    reason: str
    hint: str


def objection_to(
    owner: Any, node: Node, current: object, leaves: Sequence[LeafInfo], frameworks: Frameworks
) -> Objection | None:
    """None where the object takes it, or has no say. Classes are those of `current`, its state as it is."""
    check = getattr(type(owner), "check_state_dict", None)
    if not callable(check) or not isinstance(node, dict) or node.get("kind") not in MAPPING_KINDS:
        return None
    try:
        owner.check_state_dict(_known_of(node, current, leaves, frameworks))
    except HoldfastError as error:
        return Objection(error.message, error.hint)
    except Exception as error:  # noqa: BLE001 - code of any class; told with the other differences
        failed = f"check_state_dict of {type_name(type(owner))} failed: {in_words(error)}"
        return Objection(failed, "mend its class")
    return None


def _known_of(node: Node, current: object, leaves: Sequence[LeafInfo], frameworks: Frameworks) -> dict[Any, Any]:
    models = current if isinstance(current, Mapping) else {}
    known = {}
    for key, item in mapping_entries(node, frameworks, models):
        try:
            plan = build(item, leaves, like=models.get(key))
        except StateMismatchError:  # pickled
            continue
        if not plan.destinations:
            known[key] = plan.value()
    return known
