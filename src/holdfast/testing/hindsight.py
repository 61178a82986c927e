"""What would have been the best interval, by one who knows the whole scenario; and how far from it another one was."""

import math
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from holdfast.policy.failures import young_daly
from holdfast.testing.simulation import Piece, Result, Scenario

__all__ = ["Best", "Distance", "best_fixed", "best_here", "distance", "distance_of_the_job", "noise_of_a_write"]
__all__ += ["swings"]

_LATE = 0.05  # of the checkpoints of a fixed interval may still be under way when the next one is due
_Z_LATE = 1.645
_ROOM = 4  # checkpoints, at least, must be within the overhead of the whole job
_LONGEST = 10  # times the job: an interval that is longer than all of it
_TOLERANCE = 1.25
_JUMP = math.log(1.15)
_SETTLING = 4
_AFTER = 2


class Best(NamedTuple):
    """The best fixed interval, and what each rule asks for. Seconds, as the training takes them without checkpoints."""

    durable_s: float
    overhead_s: float
    failures_s: float
    lose_at_most_s: float
    interval_s: float
    """The shortest that keeps all rules, in whole steps."""
    exact_s: float
    """The same before it was rounded to whole steps."""
    rounded_up: bool
    longest_s: float
    """The longest that `lose_at_most`, the time between failures and the length of the job allow."""
    held: bool
    """Whether overhead and durability can be held at all: by a whole number of steps within `lose_at_most` and the time
    between failures, by one who is a quarter off (which an interval may be), and with room for a few checkpoints in the
    whole job."""


def best_fixed(scenario: Scenario, mtbf_s: float, dearer: float | None = None, *, begins: bool = True) -> Best:
    """For the whole job, and for this time between failures; by expected costs, or by those that came: `dearer`.

    `begins`: the first checkpoint of the job is part of it; those after failures always are.
    """
    times_s = [piece.steps * scenario.each_s(piece) for piece in scenario.pieces]
    base_s = sum(times_s)
    # Log-normal noise, with a mean of 1; and what spikes add in the mean.
    top = math.exp(_Z_LATE * scenario.cost_noise - scenario.cost_noise**2 / 2)
    spikes = 1 + scenario.spike_odds * (scenario.spike - 1) if dearer is None else dearer
    pieces = list(zip(scenario.pieces, times_s, strict=True))
    durable_s = _quantile(sorted((piece.durable_s * top, time_s) for piece, time_s in pieces), 1 - _LATE)
    # An interval of T makes time/T checkpoints in each piece; all together they may cost `overhead` of the whole time.
    cost_s2 = sum(time_s * piece.cost_s * spikes for piece, time_s in pieces)
    attempts = begins + base_s / scenario.mtbf_s
    allowed_s = scenario.overhead * base_s - attempts * (scenario.first - 1) * scenario.pieces[0].cost_s
    overhead_s = cost_s2 / allowed_s if allowed_s > 0 else math.inf
    failures_s = young_daly(cost_s2 / base_s, mtbf_s)
    longest_s = math.inf
    if scenario.lose_at_most_s is not None:
        longest_s = scenario.lose_at_most_s - top * max(piece.durable_s for piece in scenario.pieces)
    wanted_s = max(durable_s, min(longest_s, mtbf_s, max(overhead_s, failures_s)))
    step_s = base_s / scenario.steps
    steps = min(_LONGEST * base_s, wanted_s) / step_s
    rounded_up = not durable_s < wanted_s == longest_s
    whole = math.ceil(steps - 1e-9) if rounded_up else math.floor(steps + 1e-9)
    shortest = math.ceil(max(_TOLERANCE * overhead_s, durable_s) / step_s - 1e-9) if overhead_s < math.inf else math.inf
    held = max(1, shortest) * step_s <= min(longest_s, mtbf_s) and _ROOM * max(overhead_s, step_s) <= base_s
    most_s = min(longest_s, mtbf_s, base_s / _ROOM)
    return Best(
        durable_s=durable_s,
        overhead_s=overhead_s,
        failures_s=failures_s,
        lose_at_most_s=longest_s,
        interval_s=max(1, whole) * step_s,
        exact_s=steps * step_s,
        rounded_up=rounded_up,
        longest_s=most_s,
        held=held,
    )


def best_here(scenario: Scenario, step: int, mtbf_s: float) -> Best:
    """For the piece that the step is in, as if the job consisted of nothing else."""
    piece = scenario.at(step)
    alone = scenario._replace(pieces=(piece._replace(steps=scenario.steps),))
    return best_fixed(alone, mtbf_s, begins=False)


class Distance(NamedTuple):
    """How far intervals are from the best ones: a factor, 1 is the best."""

    exact: float
    """Before either is rounded to whole steps: 2 steps are what 1.1 are rounded up to, and 1.1 are near to 0.9."""
    whole: float
    """In whole steps."""


def distance(scenario: Scenario, result: Result, chosen: Iterable[tuple[int, float]]) -> Distance | None:
    """How far the intervals that were chosen are from the best for where they were.

    `chosen` are they, one a checkpoint, each with the time between failures that was assumed. The mean of the
    logarithms, by time; too short does not make up for too long. The first four checkpoints, and four after each jump
    of the scenario by more than 15 %, do not count: it takes a few to see what has changed. None where none is left.
    """
    calm, weight, off, off_whole = 0, 0.0, 0.0, 0.0
    before: Piece | None = None
    for (step, apart, first), (interval, mtbf_s) in zip(result.intervals, chosen, strict=True):
        piece = scenario.at(max(0, step - 1))
        calm = 0 if before is not None and _jumped(before, piece) else calm + 1
        before = piece
        if first or calm <= _SETTLING:
            continue
        best = best_here(scenario, max(0, step - 1), mtbf_s)
        found = _apart(max(1, interval), best, scenario.each_s(piece))
        weight += apart
        off += apart * math.log(found.exact)
        off_whole += apart * math.log(found.whole)
    return Distance(math.exp(off / weight), math.exp(off_whole / weight)) if weight else None


def distance_of_the_job(scenario: Scenario, result: Result, mtbf_s: float) -> Distance | None:
    """How far the mean interval of the job is from the best fixed one, for its actual costs.

    The mean by time, for it is time that is lost; the first four checkpoints do not count. None where none is left.
    """
    weight_s, sum_s2 = 0.0, 0.0
    for step, apart, first in result.intervals[_SETTLING:]:
        if not first:
            apart_s = apart * scenario.each_s(scenario.at(max(0, step - 1)))
            weight_s += apart_s
            sum_s2 += apart_s * apart_s
    if not weight_s:
        return None
    step_s = sum(piece.steps * scenario.each_s(piece) for piece in scenario.pieces) / scenario.steps
    return _apart(sum_s2 / weight_s / step_s, best_fixed(scenario, mtbf_s, result.dearer), step_s)


def _apart(steps: float, best: Best, step_s: float) -> Distance:
    exact, whole = (max(1.0, one_s / step_s) for one_s in (best.exact_s, best.interval_s))
    # What is rounded to these steps is anything from the step before them on, or until the one after them.
    low, high = (steps - 1, steps) if best.rounded_up else (steps, steps + 1)
    off = max(1.0, low / exact, exact / high)
    return Distance(off, max(steps / whole, whole / steps))


def noise_of_a_write(scenario: Scenario) -> float:
    """How much of the measured cost of one checkpoint is chance, as a fraction of that cost: one standard deviation.

    The slow-down is the difference between the steps during the write and those after it, and these differ anyway.
    """
    piece = scenario.pieces[0]
    steps = max(1, math.ceil(piece.durable_s / piece.step_s))
    variance = steps * (scenario.step_noise * piece.step_s) ** 2
    if scenario.update_every:
        variance += steps / scenario.update_every * (scenario.update * piece.step_s) ** 2
    if scenario.pause_every:
        variance += steps / scenario.pause_every * scenario.pause_s**2
    return min(piece.durable_s, math.sqrt(variance * (1 + 1 / _AFTER))) / piece.cost_s


def swings(intervals: Sequence[int], by: float = 1.1) -> int:
    """How often it turned: up by this factor at least after it had gone down by it, or the other way round."""
    turned, direction = 0, 0
    extreme = intervals[0] if intervals else 1
    for interval in intervals[1:]:
        if interval >= by * extreme:
            turned += direction < 0
            direction = 1
        elif interval * by <= extreme:
            turned += direction > 0
            direction = -1
        elif direction * (interval - extreme) <= 0:
            continue
        extreme = interval
    return turned


def _jumped(before: Piece, now: Piece) -> bool:
    pairs = ((before.step_s, now.step_s), (before.cost_s, now.cost_s), (before.durable_s, now.durable_s))
    return any(abs(math.log(one / other)) > _JUMP for one, other in pairs)


def _quantile(weighted: list[tuple[float, float]], fraction: float) -> float:
    left = fraction * sum(weight for _, weight in weighted)
    for value, weight in weighted:
        left -= weight
        if left <= 0:
            return value
    return weighted[-1][0]
