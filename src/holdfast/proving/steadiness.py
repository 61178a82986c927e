"""Whether a program does the same twice without interruption, and why not where it does not."""

import json
import math
import re
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from holdfast.format.generators import GENERATOR_KINDS
from holdfast.format.paths import RANDOM_ROOT
from holdfast.proving.cause_words import SHOWN, change_words, is_are, name_of, some_of
from holdfast.proving.comparing import Change, Parting, Unsteady
from holdfast.proving.reading import Cursor, Trace
from holdfast.proving.verdict import Cause

__all__ = ["Steadiness", "judge_undisturbed", "judge_unrepeatable"]

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
        f"{some_of(found)} in the state {is_are(found)} read from a clock: different in every run",
        tuple(f"{path}: {change_words(changes[-1])}" for path, changes in list(found.items())[:SHOWN]),
        "leave it out of the state, or accept that this value is never repeated",
    )


def _text_cause(found: Mapping[str, Sequence[Change]]) -> Cause:
    return Cause(
        "value-of-this-start",
        f"{some_of(found)} in the state {is_are(found)} different in every run: a random id, a path, a process number",
        tuple(f"{path}: {change_words(changes[-1])}" for path, changes in list(found.items())[:SHOWN]),
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
            found.append((still, False, f"the generator {name_of(thing)}"))
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
