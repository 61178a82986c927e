"""From what was typed to one checkpoint: a step, `latest`, `healthy`, `best` by a metric, an id or its beginning."""

import argparse
from collections.abc import Iterable, Sequence, Set
from math import isnan
from typing import NamedTuple

from holdfast.core.errors import NoCheckpointError, UsageError
from holdfast.core.values import Checkpoint
from holdfast.policy.lineage import best_in_words, choose, in_order, latest_undamaged, live_line

__all__ = ["BEST", "LATEST", "Best", "best_of", "check_metric", "pick", "unreadable_after"]

LATEST, BEST = "latest", "best"
_NAMES_SHOWN = 10


class Best(NamedTuple):
    """What `best` means."""

    by: str | None = None
    """None where there is only one metric."""
    mode: str = "min"

    def in_words(self, chosen: Checkpoint) -> str:
        """What makes the chosen one the best."""
        return best_in_words(chosen, by=self.by, mode=self.mode)


def best_of(arguments: argparse.Namespace, *which: str) -> Best:
    """--by and --mode, which make sense only where `best` is among what was asked for."""
    given = _option_of(arguments)
    if given and BEST not in which:
        asked = ", ".join(which) or "a whole run"
        raise UsageError(
            f"{given} goes with `best`, and {asked} is asked for", hint=f"leave {given} out, or ask for `best`"
        )
    return Best(arguments.by, arguments.mode or "min")


def pick(checkpoints: Sequence[Checkpoint], which: str, *, where: str, best: Best | None = None) -> Checkpoint:
    """The checkpoint that is meant; errors name the run."""
    # Where all of them are damaged, reading the newest says what is wrong with it.
    if which == LATEST and (undamaged := latest_undamaged(checkpoints)) is not None:
        return undamaged
    by, mode = best or Best()
    if which == BEST:
        _check_best(checkpoints, by, where)
    try:
        return choose(checkpoints, which, by=by, mode=mode, where=where)[0]
    except NoCheckpointError:
        # A person may want to look at a quarantined one by its step; only restoring must not take it.
        named = [c for c in checkpoints if which.isdecimal() and str(c.step) == (which.lstrip("0") or "0")]
        live = live_line(checkpoints)
        if named:
            return ([c for c in named if c.id in live] or named)[-1]
        raise


def unreadable_after(
    newest: Checkpoint | None, checkpoints: Sequence[Checkpoint], *, quarantined: Set[str]
) -> list[Checkpoint]:
    """Those that would be the latest, were more than their names readable, oldest first.

    Those that are marked as quarantined are known, and not among them. `newest` is the latest that can be read.
    """
    unreadable = [c for c in in_order(checkpoints) if c.quarantined and c.seq == 0 and c.id not in quarantined]
    return [c for c in unreadable if newest is None or (c.attempt, c.step) > (newest.attempt, newest.step)]


def check_metric(checkpoints: Iterable[Checkpoint], name: str, *, where: str) -> None:
    """UsageError where none of the checkpoints has a number for the metric."""
    known = sorted({metric for c in checkpoints for metric, value in c.metrics.items() if not isnan(value)})
    if name not in known:
        hint = f"there {'are' if len(known) > 1 else 'is'} {_listed(known)}" if known else "save with metrics={...}"
        raise UsageError(f"{where}: no checkpoint has a number for --by {name}", hint=hint)


def _check_best(checkpoints: Sequence[Checkpoint], by: str | None, where: str) -> None:
    usable = [c for c in checkpoints if not c.quarantined]
    names = sorted({name for c in usable for name in c.metrics})
    if by is not None and usable:
        check_metric(usable, by, where=where)
    elif len(names) > 1:
        raise UsageError(
            f"{where}: best by which metric? There are {_listed(names)}", hint=f"for example --by {names[0]}"
        )


def _option_of(arguments: argparse.Namespace) -> str:
    return "--by" if arguments.by is not None else "--mode" if arguments.mode is not None else ""


def _listed(names: Sequence[str]) -> str:
    more = f" and {len(names) - _NAMES_SHOWN} more" if len(names) > _NAMES_SHOWN else ""
    return ", ".join(names[:_NAMES_SHOWN]) + more
