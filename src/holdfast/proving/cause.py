"""Why a resumed run is another one, as far as the evidence goes: what was not in the state, or not restored."""

import re
from collections.abc import Iterable, Mapping, Sequence

from holdfast.engine.evidence import Bystander, Point
from holdfast.format.paths import RANDOM_ROOT, is_inside
from holdfast.proving.cause_words import SHOWN, change_words, is_are, metric_words, name_of, some_of
from holdfast.proving.comparing import Parting
from holdfast.proving.reading import WORKING, Cursor, Trace
from holdfast.proving.verdict import Cause

__all__ = ["judge_beside", "judge_resumed", "restore_not_called"]

_ORDER = ("optimizer", "stateful", "loader", "iterator", "generator")
_KINDS = {
    "optimizer": "optimizer-not-in-state",
    "stateful": "object-not-in-state",
    "loader": "loader-without-position",
    "iterator": "loader-without-position",
    "generator": "generator-not-in-state",
}


def judge_resumed(
    reference: Trace, other: Trace, parting: Parting, *, unsteady_bystanders: Iterable[str] = ()
) -> tuple[Cause, ...]:
    """Why a resumed run parts, the likeliest cause first; never nothing."""
    if parting.beyond:
        last = max(point.step for point in reference.work())
        return (
            Cause(
                "goes-on-too-far",
                f"the resumed program makes step {parting.step}, the undisturbed one ends after step {last}",
                advice="put what the loop counts (step, epoch, position) into the state, and count from there",
            ),
        )
    if parting.kind == "restored" and parting.leaves:
        return (_state_not_restored(parting),)
    culprits = _culprits(reference, other, parting, set(unsteady_bystanders))
    if culprits:
        further = _variables(reference, other, parting, set(unsteady_bystanders))
        return (
            *(_not_in_state(before, after, parting) for before, after in culprits),
            *([_variable_not_in_state(further)] if further else []),
        )
    variables = _variables(reference, other, parting, set(unsteady_bystanders))
    if not parting.leaves:
        return (_metric_not_from_state(parting, variables),)
    return (_variable_not_in_state(variables),) if variables else (_unknown(parting),)


def judge_beside(
    reference: Trace, other: Trace, *, unsteady_bystanders: Iterable[str] = ()
) -> tuple[int, tuple[Cause, ...]] | None:
    """Models and optimizers beside the state that a resumed run, equal in all that is saved, has otherwise at its end.

    What trains is then not in the state. Only those that change as the undisturbed program works count. A schedule need
    not be saved to go on alike, nor need the position in a data set: there are other ways to find it again.
    """
    for run in other.runs:
        before, after = Cursor(reference.of(run)), Cursor(other.of(run))
        pair = _last_common(before.points, after.points)
        if pair is None:
            continue
        place, index = pair
        point = after.points[index]
        unlike = _unlike(dict(before.bystanders(place)), dict(after.bystanders(index)))
        first = dict(before.bystanders(0))
        found = [
            (known, seen)
            for key, (known, seen) in unlike.items()
            if known.kind in ("optimizer", "stateful")
            and "scheduler" not in known.type.lower()
            and key not in unsteady_bystanders
            and key in first
            and first[key].digest != known.digest
        ]
        if found:
            parting = Parting(run, point.kind, point.step, point.start, index, place, {}, {})
            return point.step, tuple(_not_in_state(known, seen, parting) for known, seen in found[:SHOWN])
    return None


def restore_not_called(first_step: int, saved_step: int, *, number: int, asked: bool = False) -> Cause:
    """Of a start that began anew although there was something to go on from. `asked`: restore() found nothing."""
    if asked:
        return Cause(
            "checkpoint-not-found",
            f"it starts over at step {first_step}: restore() found nothing, though step {saved_step} was saved",
            (f"start {number} called restore() before its first step",),
            "see that nothing removes checkpoints, and that restore() is not asked for another step",
        )
    return Cause(
        "restore-not-called",
        f"the program starts over at step {first_step}, though step {saved_step} was saved",
        (f"start {number} made no call of restore() or load() before its first step",),
        "call ckpt.restore() before the loop; it gives None where there is nothing to restore",
    )


def _state_not_restored(parting: Parting) -> Cause:
    names = list(dict.fromkeys(re.split(r"[.\[]", path)[0] for path in parting.leaves))
    random = [path for path in parting.leaves if path.startswith(RANDOM_ROOT)]
    advice = "let load_state_dict take all that state_dict gives"
    if len(random) == len(parting.leaves):
        advice = "draw nothing from the global generators between the restore and the loop"
    return Cause(
        "state-not-restored",
        f"{names[0]} does not hold, after the restore, what was saved of it",
        tuple(f"{path}: {change_words(change)}" for path, change in list(parting.leaves.items())[:SHOWN]),
        advice,
    )


def _culprits(
    reference: Trace, other: Trace, parting: Parting, unsteady: set[str]
) -> list[tuple[Bystander, Bystander | None]]:
    """What was beside the state and not as in the reference: at the last point before they part, else where they do.

    Before they part is better evidence: afterwards, one difference makes others.
    """
    before, after = Cursor(reference.of(parting.run)), Cursor(other.of(parting.run))
    found: dict[str, tuple[Bystander, Bystander | None]] = {}
    if parting.place > 0 and parting.reference_place > 0:
        known, seen = before.bystanders(parting.reference_place - 1), after.bystanders(parting.place - 1)
        found = _unlike(known, seen)
    known, seen = before.bystanders(parting.reference_place), after.bystanders(parting.place)
    there = _unlike(known, seen)
    # Positions are not made other by weights that are; and what was made only after the restore shows up only now.
    positions = {key: pair for key, pair in there.items() if pair[0].kind in ("loader", "iterator")}
    # What is equal again by the time that they part was set right in between.
    found = {key: pair for key, pair in found.items() if key in there and pair[0].kind != "variable"} | positions
    chosen = {
        key: pair
        for key, pair in (found or there).items()
        if key not in unsteady and pair[0].kind != "variable"  # after a step, those may follow from anything
    }
    return sorted(chosen.values(), key=lambda pair: _ORDER.index(pair[0].kind) if pair[0].kind in _ORDER else 9)


def _variables(
    reference: Trace, other: Trace, parting: Parting, unsteady: set[str]
) -> list[tuple[Bystander, Bystander]]:
    """Plain variables that were there right after the restore, and not as in the reference at that step.

    Those that are as in the reference one step later were set by the program itself.
    """
    before, after = Cursor(reference.of(parting.run)), Cursor(other.of(parting.run))
    restored = [index for index, point in enumerate(after.points[: parting.place]) if point.kind == "restored"]
    if not restored or parting.reference_place < 0:
        return []
    step = after.points[restored[-1]].step
    same = [index for index, point in enumerate(before.points) if point.kind in WORKING and point.step == step]
    if not same:
        return []
    found = _unlike(dict(before.bystanders(same[-1])), dict(after.bystanders(restored[-1])))
    later = _unlike(dict(before.bystanders(parting.reference_place)), dict(after.bystanders(parting.place)))
    return [
        (known, seen)
        for key, (known, seen) in found.items()
        if known.kind == "variable" and key in later and key not in unsteady and seen is not None
    ]


def _unlike(
    known: Mapping[str, Bystander], seen: Mapping[str, Bystander]
) -> dict[str, tuple[Bystander, Bystander | None]]:
    return {key: (thing, seen[key]) for key, thing in known.items() if key in seen and seen[key].digest != thing.digest}


def _not_in_state(before: Bystander, after: Bystander | None, parting: Parting) -> Cause:
    kind = _KINDS.get(before.kind, "object-not-in-state")
    called = name_of(before)
    evidence = [f"{called} is a {before.type} and not in the state that is saved"]
    if after is not None and (before.shown or after.shown):
        evidence.append(f"before step {parting.step}: {before.shown or '?'} undisturbed, {after.shown or '?'} resumed")
    elif after is not None:
        evidence.append("its own state is another one after the restore than it was without the interruption")
    adding = _adding(before)
    if before.kind in ("loader", "iterator"):
        what = f"the position of {called} is lost at a restart: the resumed run sees other data"
        advice = "take the data from holdfast.data and put it into the state; see docs/how-to/data-order.md"
    elif before.kind == "generator":
        what = f"the random generator {called} is not in the state"
        advice = f"add it: {adding}"
        if "….dataset" in before.name:
            advice = (
                "draw from the global generators of torch, numpy or random in __getitem__, which holdfast.data seeds "
                "for each sample; or put it into the state"
            )
    else:
        noun = "the optimizer" if before.kind == "optimizer" else "the object"
        what = f"{noun} {called} is not in the state"
        advice = f"add it: {adding}"
    return Cause(kind, what, tuple(evidence), advice)


def _variable_not_in_state(found: Sequence[tuple[Bystander, Bystander]]) -> Cause:
    names = {name_of(before): before for before, _ in found}
    first = found[0][0]
    return Cause(
        "variable-not-in-state",
        f"{some_of(names)} {is_are(names)} not in the state",
        tuple(_variable_shown(before, after) for before, after in found[:SHOWN]),
        f"add it: {_adding(first)}"
        if first.type in ("numpy.ndarray", "torch.Tensor", "dict", "list")
        else f'keep it in a dict that is in the state, which is restored in place: {{"{_key(first)}": ...}}',
    )


def _adding(thing: Bystander) -> str:
    """How the program would say it: an attribute of itself is `self.rng` to an object."""
    return f'Checkpointer(run, {{..., "{_key(thing)}": {thing.code or _key(thing)}}})'


def _key(thing: Bystander) -> str:
    words = re.findall(r"[^\W\d]\w*", thing.code or thing.name)
    return str(words[-1]) if words else thing.type.rpartition(".")[2].lower()


def _variable_shown(before: Bystander, after: Bystander) -> str:
    values = f": {before.shown} undisturbed, {after.shown} now" if before.shown and after.shown else ""
    return f"{name_of(before)} ({before.type}) is not what it was, right after the restore{values}"


def _metric_not_from_state(parting: Parting, variables: Sequence[tuple[Bystander, Bystander]]) -> Cause:
    names = ", ".join(parting.metrics)
    return Cause(
        "metric-not-from-state",
        f"the state is the same, bit for bit; only what is logged differs: {names}",
        (
            *(f"{name}: {metric_words(change)}" for name, change in list(parting.metrics.items())[:SHOWN]),
            *(_variable_shown(before, after) for before, after in variables[:SHOWN]),
        ),
        "compute it from the state, or put what it is computed from (a running mean, a count) into the state",
    )


def _unknown(parting: Parting) -> Cause:
    random = [path for path in parting.leaves if is_inside(path, RANDOM_ROOT)]
    ruled_out = [
        "the restored state was the same as in the undisturbed run",
        "two undisturbed runs were the same, so it is neither a seed nor the computation itself",
        "no generator, optimizer, loader or other object with a state of its own was found beside the state",
        "no plain variable (a number, a small array) has another value right after the restore",
    ]
    if random:
        ruled_out.append(f"numbers were drawn that the undisturbed run does not draw: {random[0]} differs")
    return Cause(
        "unknown",
        f"something that {parting.path} is computed from is not in the state",
        tuple(ruled_out),
        "look for what changes from step to step: objects without a state_dict, large arrays, files, and objects whose "
        "state_dict leaves some out",
    )


def _last_common(before: Sequence[Point], after: Sequence[Point]) -> tuple[int, int] | None:
    """The last piece of work behind a restore that both did, of those that are done once only."""
    restored = next((index for index, point in enumerate(after) if point.kind == "restored"), None)
    if restored is None:
        return None
    places: dict[tuple[str, int], list[int]] = {}
    for index, point in enumerate(before):
        places.setdefault((point.kind, point.step), []).append(index)
    for index in range(len(after) - 1, restored, -1):
        found = places.get((after[index].kind, after[index].step), [])
        if after[index].kind in WORKING and len(found) == 1:
            return found[0], index
    return None
