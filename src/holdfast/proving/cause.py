"""Why two runs part, as far as the evidence goes: what was not in the state, not restored, or never the same."""

import json
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from holdfast.engine.evidence import Bystander, Point
from holdfast.format.generators import GENERATOR_KINDS
from holdfast.format.paths import RANDOM_ROOT, is_inside
from holdfast.proving.comparing import Change, Parting, Unsteady
from holdfast.proving.reading import WORKING, Cursor, Trace
from holdfast.proving.verdict import Cause

__all__ = [
    "Steadiness",
    "judge_beside",
    "judge_resumed",
    "judge_undisturbed",
    "judge_unrepeatable",
    "restore_not_called",
]

_ORDER = ("optimizer", "stateful", "loader", "iterator", "generator")
_KINDS = {
    "optimizer": "optimizer-not-in-state",
    "stateful": "object-not-in-state",
    "loader": "loader-without-position",
    "iterator": "loader-without-position",
    "generator": "generator-not-in-state",
}
_CLOCK_NAMES = re.compile(
    r"(^|_)((wall|up|run|date)?times?|(time)?stamps?|clock|elapsed|date|seconds|duration)(_|$)|(^|_)(s|ms|ns|utc)$",
    re.IGNORECASE,
)
_DATE = re.compile(r"\d{4}-\d\d-\d\d[T ]\d\d:\d\d")
_UNIX_S = (1.2e9, 4.2e9)
"""From 2008 to 2103."""
_UNITS_A_SECOND = (1.0, 1e3, 1e6, 1e9)
_GENERATOR_NAMES = re.compile(r"rng|random|gen|seed", re.IGNORECASE)
_ROUNDING = 1e-4
"""Sums in another order differ by less, at the step at which they first do."""
_SHOWN = 3


class Steadiness(NamedTuple):
    """What two undisturbed runs of the same program tell."""

    ignored: tuple[str, ...] = ()
    """Leaves that are different every time and nothing depends on."""
    ignored_metrics: tuple[str, ...] = ()
    causes: tuple[Cause, ...] = ()
    is_serious: bool = False
    """The computation itself is not repeatable: there is nothing to compare an interrupted run with."""
    remarks: tuple[str, ...] = ()


def judge_undisturbed(found: Unsteady, first: Parting | None) -> Steadiness:
    """Whether the program does the same twice, but for values that nothing depends on.

    `first` is where the two part first.
    """
    metrics = tuple(found.metrics)
    if not found.leaves and (first is None or not first.beyond):
        return Steadiness((), metrics)
    clocks = {path: changes for path, changes in found.leaves.items() if _is_clock(path, changes)}
    texts = {path: changes for path, changes in found.leaves.items() if path not in clocks and _are_texts(changes)}
    unused = {path: changes for path, changes in found.leaves.items() if path.startswith(RANDOM_ROOT)}
    harmless = (*clocks, *texts, *unused)
    if set(harmless) == found.leaves.keys() and (first is None or not first.beyond):
        causes = [_clock_cause(clocks)] if clocks else []
        causes += [_text_cause(texts)] if texts else []
        return Steadiness(harmless, metrics, tuple(causes), remarks=_unused_remarks(unused))
    still = [path for path, changes in unused.items() if len({change.before for change in changes}) == 1]
    return Steadiness(tuple(still), is_serious=True)


def judge_unrepeatable(reference: Trace, again: Trace, first: Parting, max_rel: float | None) -> Cause:
    """Why two undisturbed runs part. `max_rel` is how far apart their arrays are there, where that is known."""
    unseeded = _unseeded(reference, again, first, max_rel)
    if unseeded:
        return Cause(
            "not-seeded",
            f"{unseeded} is not seeded: it is different in two undisturbed runs from the first step on",
            (f"first seen at step {first.step}: {first.path}",),
            "seed it (random.seed, numpy.random.seed, torch.manual_seed, default_rng(seed)) before anything is drawn",
        )
    settings = _determinism(reference)
    return Cause(
        "nondeterministic-kernels",
        f"two undisturbed runs part at step {first.step}: the computation itself is not repeatable",
        (
            f"first seen in {first.path}; no random generator that is drawn from is different",
            *([] if max_rel is None else [f"the relative difference there is {max_rel:.2g} at most"]),
            *(f"{name} = {value}" for name, value in settings.items()),
        ),
        _determinism_advice(settings),
    )


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
            return point.step, tuple(_not_in_state(known, seen, parting) for known, seen in found[:_SHOWN])
    return None


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


def _is_clock(path: str, changes: Sequence[Change]) -> bool:
    """Whether both runs have a value there that only a clock gives."""
    last = re.split(r"[.\[]", path)[-1].strip("]\"'")
    named = bool(_CLOCK_NAMES.search(re.sub(r"(?<=[a-z])(?=[A-Z])", "_", last)))
    flat = [_plain(side) for change in changes for side in change]
    if all(_is_date(value) for value in flat):
        return True
    if not all(isinstance(value, int | float) and not isinstance(value, bool) for value in flat):
        return False
    numbers = [value for value in flat if isinstance(value, int | float) and math.isfinite(value)]
    for unit in _UNITS_A_SECOND:
        if numbers and all(_UNIX_S[0] <= value / unit <= _UNIX_S[1] for value in numbers):
            return True
    return named


def _is_date(value: object) -> bool:
    if isinstance(value, dict):
        return str(value.get("kind")) in ("datetime", "date", "time")
    return isinstance(value, str) and bool(_DATE.search(value))


def _are_texts(changes: Sequence[Change]) -> bool:
    """Names of hosts, paths, random ids: not what a computation gives. Nor is a number that never changes."""
    sides = [{change.before for change in changes}, {change.after for change in changes}]
    if all(len(side) == 1 and type(_plain(*side)) is int for side in sides):
        return True
    return all(isinstance(_plain(side), str) for change in changes for side in change)


def _plain(text: str) -> object:
    """The value that a trace shows; None for arrays and for what is too long to be shown."""
    if not text.startswith("="):
        return None
    try:
        return json.loads(text[1:])
    except ValueError:
        return None


def _clock_cause(found: Mapping[str, Sequence[Change]]) -> Cause:
    return Cause(
        "wall-clock",
        f"{_some(found)} in the state {_is_are(found)} read from a clock: different in every run",
        tuple(f"{path}: {_shown(changes[-1])}" for path, changes in list(found.items())[:_SHOWN]),
        "leave it out of the state, or accept that this value is never repeated",
    )


def _text_cause(found: Mapping[str, Sequence[Change]]) -> Cause:
    return Cause(
        "value-of-this-start",
        f"{_some(found)} in the state {_is_are(found)} different in every run: a random id, a path, a process number",
        tuple(f"{path}: {_shown(changes[-1])}" for path, changes in list(found.items())[:_SHOWN]),
        "leave it out of the state, or accept that this value is never repeated",
    )


def _unused_remarks(found: Mapping[str, Sequence[Change]]) -> tuple[str, ...]:
    """Of global generators that nobody seeds and nothing in the state depends on."""
    drawn = [path for path, changes in found.items() if len({change.before for change in changes}) > 1]
    names = ", ".join(dict.fromkeys(_generator_name(path) for path in drawn))
    return (f"not seeded, but nothing that is saved depends on it: the global generator of {names}",) if drawn else ()


def _generator_name(path: str) -> str:
    return re.split(r"[.\[]", path.removeprefix(f"{RANDOM_ROOT}."))[0]


def _unseeded(reference: Trace, again: Trace, first: Parting, max_rel: float | None) -> str:
    """A generator that differs at the first point of both, as later a difference may follow from anything.

    Programs leave generators unseeded that they never draw from. One that does not move afterwards counts only where
    the runs are far apart from the first point on, as with weights that were drawn before.
    """
    before, after = Cursor(reference.of(first.run)), Cursor(again.of(first.run))
    if not before.points or not after.points:
        return ""
    last = len(before.points) - 1
    known, other = dict(before.leaves(0)), dict(after.leaves(0))
    seen, others = dict(before.bystanders(0)), dict(after.bystanders(0))
    later, seen_later = before.leaves(last), before.bystanders(last)
    found: list[tuple[bool, bool, str]] = []
    for path, text in known.items():
        is_global = path.startswith(RANDOM_ROOT)
        if other.get(path) != text and (is_global or _is_generator(path, text)):
            name = f"the global generator of {_generator_name(path)}" if is_global else f"the generator {path}"
            found.append((later.get(path) == text, name.endswith(" python"), name))
    for key, thing in seen.items():
        if thing.kind == "generator" and key in others and others[key].digest != thing.digest:
            still = key in seen_later and seen_later[key].digest == thing.digest
            found.append((still, False, f"the generator {_called(thing)}"))
    found.sort()
    has_arrays = any(change.before.startswith("b3:") for change in first.leaves.values())
    is_far = first.reference_place == 0 and has_arrays and (max_rel is None or max_rel > _ROUNDING)
    return found[0][2] if found and (not found[0][0] or is_far) else ""


def _is_generator(path: str, text: str) -> bool:
    # The state of most is too long for the trace to show it.
    return any(f'"kind":"{kind}"' in text for kind in GENERATOR_KINDS) or (
        text.startswith("=b3:") and bool(_GENERATOR_NAMES.search(re.split(r"[.\[]", path)[-1]))
    )


def _determinism(trace: Trace) -> dict[str, str]:
    found: dict[str, str] = {}
    for point in trace.points:
        found.update(point.determinism)
    return found


def _determinism_advice(settings: Mapping[str, str]) -> str:
    if settings.get("torch.use_deterministic_algorithms") == "False":
        return "torch.use_deterministic_algorithms(True), cudnn.benchmark = False, CUBLAS_WORKSPACE_CONFIG=:4096:8"
    if settings.get("torch.backends.cudnn.benchmark") == "True":
        return "torch.backends.cudnn.benchmark = False"
    return "look for sums in an order that changes (threads, atomics), reads of clocks, and sources of random bytes"


def _state_not_restored(parting: Parting) -> Cause:
    names = list(dict.fromkeys(re.split(r"[.\[]", path)[0] for path in parting.leaves))
    random = [path for path in parting.leaves if path.startswith(RANDOM_ROOT)]
    advice = "let load_state_dict take all that state_dict gives"
    if len(random) == len(parting.leaves):
        advice = "draw nothing from the global generators between the restore and the loop"
    return Cause(
        "state-not-restored",
        f"{names[0]} does not hold, after the restore, what was saved of it",
        tuple(f"{path}: {_shown(change)}" for path, change in list(parting.leaves.items())[:_SHOWN]),
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
    called = _called(before)
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
    names = {_called(before): before for before, _ in found}
    first = found[0][0]
    return Cause(
        "variable-not-in-state",
        f"{_some(names)} {_is_are(names)} not in the state",
        tuple(_variable_shown(before, after) for before, after in found[:_SHOWN]),
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
    return f"{_called(before)} ({before.type}) is not what it was, right after the restore{values}"


def _metric_not_from_state(parting: Parting, variables: Sequence[tuple[Bystander, Bystander]]) -> Cause:
    names = ", ".join(parting.metrics)
    return Cause(
        "metric-not-from-state",
        f"the state is the same, bit for bit; only what is logged differs: {names}",
        (
            *(f"{name}: {_hex_shown(change)}" for name, change in list(parting.metrics.items())[:_SHOWN]),
            *(_variable_shown(before, after) for before, after in variables[:_SHOWN]),
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


def _called(thing: Bystander) -> str:
    return thing.name or f"(without a name, {thing.type})"


def _some(found: Mapping[str, object]) -> str:
    names = list(found)
    return ", ".join(names[:_SHOWN]) + (f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else "")


def _is_are(found: Mapping[str, object]) -> str:
    return "is" if len(found) == 1 else "are"


def _shown(change: Change) -> str:
    if change.before.startswith("=") and change.after.startswith("="):
        return f"{_cut(change.before[1:])} undisturbed, {_cut(change.after[1:])} now"
    if not change.before or not change.after:
        return "only in the undisturbed run" if change.before else "only in the resumed run"
    return "other bits"


def _hex_shown(change: Change) -> str:
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
