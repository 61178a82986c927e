"""What can be said of a checkpoint in a word, and how programs are told of it."""

from collections.abc import Sequence

from holdfast.cli.table import Style
from holdfast.core.values import DISK, Checkpoint
from holdfast.policy.lineage import latest_undamaged, live_line

__all__ = ["STATE_STYLES", "States", "describe", "states_of"]

STATE_STYLES = {
    "quarantined": Style.RED,
    "damaged": Style.RED,
    "abandoned": Style.DIM,
    "suspect": Style.YELLOW,
    "pinned": Style.YELLOW,
    "verified": Style.GREEN,
    "staged": Style.YELLOW,
    "committed": Style.PLAIN,
}

States = tuple[str, ...]


def states_of(checkpoints: Sequence[Checkpoint]) -> dict[str, States]:
    """The words for each checkpoint, the most important first. `latest` is what a restore ends up with."""
    live = live_line(checkpoints)
    found: dict[str, States] = {}
    for checkpoint in checkpoints:
        words = []
        if checkpoint.quarantined:
            words.append("quarantined")
        elif checkpoint.damaged:
            words.append("damaged")
        if checkpoint.id not in live:
            words.append("abandoned")
        if checkpoint.suspect:
            words.append("suspect")
        if checkpoint.pinned:
            words.append("pinned")
        if checkpoint.verified and not checkpoint.quarantined:
            words.append("verified")
        found[checkpoint.id] = tuple(words) or ("committed" if DISK in checkpoint.where else "staged",)
    latest = latest_undamaged(checkpoints, live=live)
    if latest is not None:
        found[latest.id] += ("latest",)
    return found


def describe(checkpoint: Checkpoint, states: States) -> dict[str, object]:
    """The checkpoint for a JSON document."""
    forks = [fork._asdict() for fork in checkpoint.forks]
    return {**checkpoint._asdict(), "metrics": dict(checkpoint.metrics), "forks": forks, "states": list(states)}
