"""What can be said of a checkpoint in a word, and how programs are told of it."""

from collections.abc import Sequence

from holdfast.cli.table import Style
from holdfast.core.errors import HoldfastError
from holdfast.core.values import Checkpoint
from holdfast.policy.lineage import ABANDONED, branches, choose

__all__ = ["STATE_STYLES", "describe", "states_of"]

STATE_STYLES = {
    "quarantined": Style.RED,
    "abandoned": Style.DIM,
    "pinned": Style.YELLOW,
    "verified": Style.GREEN,
    "committed": Style.PLAIN,
}

States = tuple[str, ...]


def states_of(checkpoints: Sequence[Checkpoint]) -> dict[str, States]:
    """The words for each checkpoint, the most important first. `latest` is the one that a restore would take."""
    branch = branches(checkpoints)
    latest = _latest(checkpoints)
    found = {}
    for checkpoint in checkpoints:
        claims = {
            "quarantined": bool(checkpoint.quarantined),
            "abandoned": branch[checkpoint.id] == ABANDONED,
            "pinned": checkpoint.pinned,
            "verified": checkpoint.verified and not checkpoint.quarantined,
        }
        words = [word for word, holds in claims.items() if holds] or ["committed"]
        found[checkpoint.id] = (*words, "latest") if checkpoint.id == latest else tuple(words)
    return found


def describe(checkpoint: Checkpoint, states: States) -> dict[str, object]:
    """The checkpoint for a JSON document."""
    forks = [fork._asdict() for fork in checkpoint.forks]
    return {**checkpoint._asdict(), "metrics": dict(checkpoint.metrics), "forks": forks, "states": list(states)}


def _latest(checkpoints: Sequence[Checkpoint]) -> str:
    try:
        return choose(checkpoints, "latest")[0].id
    except HoldfastError:
        return ""
