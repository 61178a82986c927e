"""What a verdict says of things that are beside the state, where nothing that was compared depends on them."""

from collections.abc import Iterable

from holdfast.engine.evidence import Bystander
from holdfast.proving.reading import WORKING, Cursor, Trace, bystander_key

__all__ = ["beside_the_state", "other_arrays", "unsteady_bystanders"]

_WITH_A_STATE = ("optimizer", "stateful", "generator")
_ARRAYS = ("numpy.ndarray", "torch.Tensor")
_SHOWN = 6


def unsteady_bystanders(reference: Trace, again: Trace) -> set[str]:
    """What is beside the state and different even in two undisturbed runs: no evidence for anything."""
    seen = [
        {
            (point.run, point.kind, point.step, bystander_key(thing)): thing.digest
            for point in trace.points
            for thing in point.bystanders
        }
        for trace in (reference, again)
    ]
    return {key[3] for key, digest in seen[0].items() if seen[1].get(key, digest) != digest}


def beside_the_state(reference: Trace) -> list[str]:
    """A remark on objects with a state of their own, as they were at the end of an undisturbed run."""
    points = [trace[-1] for run in reference.runs if (trace := reference.of(run))]
    found = [thing for point in points for thing in point.bystanders if thing.kind in _WITH_A_STATE]
    return _remark("not in the state, though nothing that was compared depends on it", map(_called, found))


def other_arrays(reference: Trace, resumed: Iterable[Trace], unsteady: set[str]) -> list[str]:
    """A remark on arrays that were others in the resumed runs than at the same step of the undisturbed one."""
    found: list[str] = []
    for trace in resumed:
        for run in trace.runs:
            before, after = Cursor(reference.of(run)), Cursor(trace.of(run))
            places = {point.step: index for index, point in enumerate(before.points) if point.kind in WORKING}
            last = len(after.points) - 1
            if last < 0 or after.points[last].kind not in WORKING or after.points[last].step not in places:
                continue
            known, seen = before.bystanders(places[after.points[last].step]), after.bystanders(last)
            found += [
                _called(thing)
                for key, thing in known.items()
                if thing.type in _ARRAYS and key in seen and seen[key].digest != thing.digest and key not in unsteady
            ]
    what = "not in the state, and another one after a restore, though nothing that was compared depends on it"
    return _remark(what, found)


def _remark(what: str, names: Iterable[str]) -> list[str]:
    found = list(dict.fromkeys(names))
    more = f" and {len(found) - _SHOWN} more" if len(found) > _SHOWN else ""
    return [f"{what}: {', '.join(found[:_SHOWN])}{more}"] if found else []


def _called(thing: Bystander) -> str:
    short = thing.type.rpartition(".")[2]
    return f"{thing.code or thing.name} ({short})" if thing.code or thing.name else short
