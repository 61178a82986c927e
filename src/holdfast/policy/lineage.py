"""Which checkpoint comes after which, which a rollback left behind, and which one a restore should try.

Order is (attempt, step, seq), never time: clocks go backwards, attempts do not. Imports are light, for `holdfast ls`.
"""

from collections.abc import Iterable, Sequence, Set
from math import isfinite, isnan
from operator import attrgetter

from holdfast.core.errors import NoCheckpointError, UsageError
from holdfast.core.names import parse_checkpoint_id
from holdfast.core.values import DISK, Checkpoint, CheckpointName, Fork

__all__ = [
    "ABANDONED",
    "LIVE",
    "abandoned_tips",
    "best_in_words",
    "branches",
    "choose",
    "healthy_before_suspects",
    "in_order",
    "latest",
    "latest_undamaged",
    "live_line",
]

LIVE = "live"
ABANDONED = "abandoned"
HEALTHY = "healthy"

# Where nothing readable is left of an attempt, nothing says where it came from. Most attempts continue the one before;
# assuming so keeps the older part of the line, where the opposite guess would give it up.
_UNKNOWN = "?"

# The id only makes the order total where hostile data repeats a place. Not a function: it is asked thousands of times.
_place = attrgetter("attempt", "step", "seq", "id")

_HOW_TO_LIST = "`holdfast ls RUN` lists what there is"
_NEAREST_SHOWN = 3
_MAX_STEP_DIGITS = 18  # as in an id; Python itself refuses thousands


def in_order(checkpoints: Iterable[Checkpoint]) -> list[Checkpoint]:
    """Oldest to newest."""
    return sorted(checkpoints, key=_place)


def live_line(
    checkpoints: Iterable[Checkpoint],
    *,
    origin: CheckpointName | None = None,
    attempt: int | None = None,
    forks: Sequence[Fork] = (),
) -> set[CheckpointName]:
    """The ids on the line that leads to the newest checkpoint; what is not on it was left behind by a rollback.

    A running attempt that may not have saved yet is given by its number, the checkpoint it was restored from, and the
    forks of its line.
    """
    by_attempt = _by_attempt(in_order(checkpoints))
    if attempt is None:
        if not by_attempt:
            return set()
        attempt = max(by_attempt)
        origin = _origin_said_by(by_attempt[attempt])
        forks = by_attempt[attempt][-1].forks
    line = {checkpoint.id for checkpoint in by_attempt.get(attempt, ())}
    return line | _ancestors(by_attempt, attempt, origin, forks)


def branches(
    checkpoints: Iterable[Checkpoint], *, origin: CheckpointName | None = None, attempt: int | None = None
) -> dict[CheckpointName, str]:
    """LIVE or ABANDONED for each id, oldest first."""
    ordered = in_order(checkpoints)
    live = live_line(ordered, origin=origin, attempt=attempt)
    return {checkpoint.id: LIVE if checkpoint.id in live else ABANDONED for checkpoint in ordered}


def abandoned_tips(checkpoints: Iterable[Checkpoint], live: Set[CheckpointName]) -> set[CheckpointName]:
    """The newest usable checkpoint of each abandoned branch: the one that says how far that branch came."""
    left = [c for c in in_order(checkpoints) if c.id not in live and c.is_sound]
    newest = {checkpoint.attempt: checkpoint for checkpoint in left}
    # A branch may run on through later attempts; then its tip is in the last of them.
    continued = dict(sorted(filter(None, map(_origin_place, newest.values()))))
    return {c.id for c in newest.values() if continued.get(c.attempt, -1) < c.step}


def latest(checkpoints: Iterable[Checkpoint], *, live: Set[CheckpointName] | None = None) -> Checkpoint:
    """What `choose` takes first for "latest"; NoCheckpointError where there is none. `live` is their line, if known."""
    ordered = in_order(checkpoints)
    if not ordered:
        raise _none_yet("latest")
    return _latest(ordered, live_line(ordered) if live is None else live)


def latest_undamaged(
    checkpoints: Sequence[Checkpoint], *, live: Set[CheckpointName] | None = None
) -> Checkpoint | None:
    """Of what a restore of "latest" tries, in that order, the first not known to be damaged; None where all are."""
    try:
        first = latest(checkpoints, live=live)
    except NoCheckpointError:
        return None
    if not first.damaged:
        return first
    return next((c for c in choose(checkpoints, "latest") if not c.damaged), None)


def healthy_before_suspects(checkpoints: Iterable[Checkpoint], live: Set[CheckpointName]) -> Checkpoint | None:
    """The last healthy one, which must stay while newer ones are suspect; None where the newest is healthy itself."""
    usable = [c for c in in_order(checkpoints) if c.is_sound]
    newest = _newest_of(usable, live)
    return _newest_of(filter(_is_healthy, usable), live) if newest is not None and newest.suspect else None


def choose(
    checkpoints: Iterable[Checkpoint], which: str | int, *, by: str | None = None, mode: str = "min", where: str = ""
) -> list[Checkpoint]:
    """The checkpoint asked for, followed by the fallbacks in the order in which a restore should try them.

    `which` is "latest", "healthy", "best", a step, an id, or an unambiguous beginning of an id. Fallbacks are the older
    ones on the same line, newest first, then older abandoned ones; never one of a later step than the one asked for.
    Quarantined checkpoints are left out unless named by id; with "healthy", so are suspect ones. `where` is the run, to
    be named where there is no such checkpoint.
    """
    ordered = in_order(checkpoints)
    try:
        if not ordered:
            raise _none_yet(which)
        chosen = _chosen(ordered, which, by=by, mode=mode)
    except NoCheckpointError as error:
        if not where:
            raise
        hint = error.hint.replace(_HOW_TO_LIST, _HOW_TO_LIST.replace("RUN", where))
        raise NoCheckpointError(f"{where}: {error.message}", hint=hint) from None
    older = [c for c in ordered if _place(c) < _place(chosen) and c.step <= chosen.step and not c.quarantined]
    if which == HEALTHY:
        older = [c for c in older if not c.suspect and _is_finite(c) >= _is_finite(chosen)]
    line = _line_to(ordered, chosen)
    return [
        chosen,
        *(c for c in reversed(older) if c.id in line),
        *(c for c in reversed(older) if c.id not in line),
    ]


def best_in_words(chosen: Checkpoint, *, by: str | None, mode: str) -> str:
    """What makes it the best: `the smallest loss (0.21)`. It is what `choose` took for "best", by the same metric."""
    name = by if by is not None else next(iter(chosen.metrics))  # without by= there was no other
    return f"the {'smallest' if mode == 'min' else 'largest'} {name} ({chosen.metrics[name]:.5g})"


def _by_attempt(ordered: Iterable[Checkpoint]) -> dict[int, list[Checkpoint]]:
    groups: dict[int, list[Checkpoint]] = {}
    for checkpoint in ordered:
        groups.setdefault(checkpoint.attempt, []).append(checkpoint)
    return groups


def _line_to(ordered: list[Checkpoint], tip: Checkpoint) -> set[CheckpointName]:
    by_attempt = _by_attempt(ordered)
    own = {c.id for c in by_attempt[tip.attempt] if _place(c) <= _place(tip)}
    return own | _ancestors(by_attempt, tip.attempt, _origin_said_by(by_attempt[tip.attempt]), tip.forks)


def _ancestors(
    by_attempt: dict[int, list[Checkpoint]], attempt: int, origin: CheckpointName | None, forks: Sequence[Fork]
) -> set[CheckpointName]:
    line: list[Checkpoint] = []
    while origin is not None:
        named = parse_checkpoint_id(origin)
        # An attempt continues an older one. Anything else is forged, and following it might never end.
        if origin != _UNKNOWN and (named is None or named.attempt >= attempt):
            break
        older = [number for number in by_attempt if number < attempt and (named is None or number <= named.attempt)]
        if not older:
            break
        step = named.step if named is not None else by_attempt[attempt][0].step
        attempt = max(older)
        shared = _up_to(by_attempt[attempt], origin, step=step)
        line += shared
        origin = _origin_said_by(by_attempt[attempt])
    # Where every checkpoint of an attempt in between was pruned, only the forks tell what it had left behind.
    return {checkpoint.id for checkpoint in line if not any(_left_behind(checkpoint, fork) for fork in forks)}


def _left_behind(checkpoint: Checkpoint, fork: Fork) -> bool:
    named = parse_checkpoint_id(fork.origin) if fork.origin is not None else None
    kept_up_to = (named.attempt, named.step) if named is not None else (-1, -1)
    return checkpoint.attempt < fork.attempt and (checkpoint.attempt, checkpoint.step) > kept_up_to


def _origin_said_by(checkpoints: list[Checkpoint]) -> CheckpointName | None:
    """Where the attempt of these checkpoints came from: they all say the same, as far as their heads can be read."""
    readable = [checkpoint for checkpoint in checkpoints if checkpoint.seq > 0]
    return readable[-1].origin if readable else _UNKNOWN


def _up_to(checkpoints: list[Checkpoint], origin: CheckpointName, *, step: int) -> list[Checkpoint]:
    for index, checkpoint in enumerate(checkpoints):
        if checkpoint.id == origin:
            return checkpoints[: index + 1]
    return [checkpoint for checkpoint in checkpoints if checkpoint.step <= step]  # the origin itself was pruned


def _origin_place(checkpoint: Checkpoint) -> tuple[int, int] | None:
    named = parse_checkpoint_id(checkpoint.origin) if checkpoint.origin is not None else None
    return (named.attempt, named.step) if named is not None and named.attempt < checkpoint.attempt else None


def _chosen(ordered: list[Checkpoint], which: str | int, *, by: str | None, mode: str) -> Checkpoint:
    if isinstance(which, bool) or not isinstance(which, str | int):
        raise UsageError(
            f"cannot choose a checkpoint by {which!r} ({type(which).__name__})",
            hint='give "latest", "healthy", "best", a step as an integer, or an id',
        )
    if isinstance(which, str) and which.isdecimal() and which.isascii() and len(which) <= _MAX_STEP_DIGITS:
        which = int(which)
    if isinstance(which, int):
        return _at_step(ordered, which)
    if which == "latest":
        return _latest(ordered, live_line(ordered))
    if which == HEALTHY:
        return _healthy(ordered)
    if which == "best":
        return _best(ordered, by=by, mode=mode)
    return _by_id(ordered, which)


def _latest(ordered: list[Checkpoint], live: Set[CheckpointName]) -> Checkpoint:
    newest = next(c for c in reversed(ordered) if c.id in live)
    usable = [c for c in ordered if not c.quarantined]
    line = [c for c in usable if c.id in live]
    # An abandoned one of a later step is what the rollback left on purpose: only its user may ask for it, by id.
    last = line or [c for c in usable if c.step <= newest.step]
    if last:
        return last[-1]
    left = [c.id for c in usable]
    hint = f"abandoned by a rollback, and usable by id: {_listed(left)}" if left else _HOW_TO_LIST
    raise NoCheckpointError(f"latest: {_all_quarantined(len(ordered) - len(usable))}", hint=hint)


def _healthy(ordered: list[Checkpoint]) -> Checkpoint:
    live = live_line(ordered)
    newest = next(c for c in reversed(ordered) if c.id in live)
    # As for the latest: what a rollback left on purpose at a later step is only for whoever asks for it.
    healthy = [c for c in ordered if _is_healthy(c) and (c.id in live or c.step <= newest.step)]
    # Without `health=` nobody looked at the loss; but one that is no number is seen by everybody, unless all are so.
    found = _newest_of(filter(_is_finite, healthy), live) or _newest_of(healthy, live)
    if found is not None:
        return found
    suspect = [c for c in ordered if c.suspect and not c.quarantined]
    if not suspect:
        raise NoCheckpointError(f"healthy: {_all_quarantined(len(ordered))}", hint=_HOW_TO_LIST)
    what = f"all {len(suspect)} usable checkpoints are" if len(suspect) > 1 else "the only usable checkpoint is"
    raise NoCheckpointError(
        f"healthy: {what} suspect: {suspect[-1].suspect}",
        hint='to use one all the same, give "latest", its step or its id',
    )


def _is_finite(checkpoint: Checkpoint) -> bool:
    return all(map(isfinite, checkpoint.metrics.values()))


def _is_healthy(checkpoint: Checkpoint) -> bool:
    # One that is in memory only does not count: marks are made of what is on the disk.
    return not checkpoint.quarantined and not checkpoint.suspect and DISK in checkpoint.where


def _newest_of(ordered: Iterable[Checkpoint], live: Set[CheckpointName]) -> Checkpoint | None:
    """The newest on the live line, or else the newest of all."""
    found = list(ordered)
    return next(reversed([c for c in found if c.id in live] or found), None)


def _best(ordered: list[Checkpoint], *, by: str | None, mode: str) -> Checkpoint:
    if mode not in ("min", "max"):
        raise UsageError(f"mode {mode!r} is not known", hint='use "min" or "max"')
    usable = [c for c in ordered if not c.quarantined]
    if not usable:
        raise NoCheckpointError(f"best: {_all_quarantined(len(ordered))}", hint=_HOW_TO_LIST)
    if by is not None and not isinstance(by, str):
        raise UsageError(f"by is {by!r}, expected the name of a metric", hint='for example by="val_loss"')
    name = by if by is not None else _only_metric(usable)
    scored = [c for c in usable if not isnan(c.metrics.get(name, float("nan")))]
    if not scored:
        known = sorted({metric for c in usable for metric in c.metrics})
        raise NoCheckpointError(
            f"best: none of {len(usable)} checkpoints has a number for metric {name!r} (there are: {_listed(known)})",
            hint="name a metric that was saved with by=, or save one with metrics={...}",
        )
    sign = 1 if mode == "min" else -1
    # A good model is a good model, also on an abandoned branch. Of equals `min` takes the first: reversed, the newer.
    return min(reversed(scored), key=lambda c: sign * c.metrics[name])


def _only_metric(usable: list[Checkpoint]) -> str:
    names = sorted({name for checkpoint in usable for name in checkpoint.metrics})
    if len(names) == 1:
        return names[0]
    if not names:
        raise NoCheckpointError("best: no checkpoint was saved with a metric", hint="save with metrics={...}")
    raise UsageError(f"best: by which metric? There are {_listed(names)}", hint=f"give by={names[0]!r}, for example")


def _at_step(ordered: list[Checkpoint], step: int) -> Checkpoint:
    live = live_line(ordered)
    at_step = [c for c in ordered if c.step == step]
    usable = [c for c in at_step if not c.quarantined]
    found = [c for c in usable if c.id in live] or usable
    if found:
        return found[-1]
    if at_step:
        raise NoCheckpointError(
            f"step {step} is quarantined: {at_step[-1].quarantined}",
            hint=f"another step, or, to use it all the same, its id: {at_step[-1].id}",
        )
    steps = sorted({c.step for c in ordered if not c.quarantined})
    below = [s for s in steps if s < step][-_NEAREST_SHOWN:]
    above = [s for s in steps if s > step][:_NEAREST_SHOWN]
    nearest = f"the nearest of {len(steps)}: {_listed(below + above)}" if steps else _all_quarantined(len(ordered))
    raise NoCheckpointError(f"there is no checkpoint of step {step}; {nearest}", hint=_HOW_TO_LIST)


def _by_id(ordered: list[Checkpoint], text: str) -> Checkpoint:
    matching = [c for c in ordered if c.id == text] or [c for c in ordered if text and c.id.startswith(text)]
    if len(matching) == 1:
        return matching[0]
    if matching:
        raise UsageError(
            f"id {text!r} is ambiguous, {len(matching)} begin like this: {_listed([c.id for c in matching])}",
            hint="give more of the id",
        )
    newest = ordered[-1]
    raise NoCheckpointError(
        f"no checkpoint is called {text!r}; the newest of {len(ordered)} is {newest.id}",
        hint=f'give "latest", "healthy", "best", a step such as {newest.step}, or an id; {_HOW_TO_LIST}',
    )


def _none_yet(which: str | int) -> NoCheckpointError:
    return NoCheckpointError(f"{_asked(which)}: the run has no checkpoints yet", hint="save one first")


def _asked(which: str | int) -> str:
    return f"step {which}" if isinstance(which, int) else str(which)


def _all_quarantined(count: int) -> str:
    return f"all {count} checkpoints are quarantined" if count > 1 else "the only checkpoint is quarantined"


def _listed(items: "list[str] | list[int]") -> str:
    shown = [str(item) for item in items[: 2 * _NEAREST_SHOWN]]
    more = len(items) - len(shown)
    return (", ".join(shown) + (f" and {more} more" if more else "")) or "none"
