"""One random scenario with all policies side by side, and the figures over many of them."""

import math
from collections.abc import Callable, Iterable, Sequence
from itertools import pairwise
from typing import NamedTuple

from holdfast.policy.tuning import FIRST
from holdfast.testing.hindsight import Distance, best_fixed, distance, distance_of_the_job, noise_of_a_write, swings
from holdfast.testing.scenarios import MACHINE, random_scenario
from holdfast.testing.simulated_policies import CheckFreq, Every, Tuned
from holdfast.testing.simulation import Policy, Result, Scenario, simulate

__all__ = ["AUTO", "BEST", "POLICIES", "Figures", "Trial", "figures", "share", "trial"]

AUTO = Tuned.name
BEST = "best fixed"
POLICIES = (AUTO, CheckFreq.name, Every().name, BEST)
"""The last one knows the whole scenario beforehand."""

_STEADY_OF = 5
_STEADY_FROM = 16
_STEADY_LEAST = 32
_NO_FAILURES_S = 1e9


class Trial(NamedTuple):
    """What came of one scenario."""

    seed: int
    limit: float
    held: bool
    """Whether the limits can be held together at all: see `hindsight.Best`. Not where chance made the checkpoints of
    this job so dear that neither `auto` nor the best fixed interval nor the longest one is within the overhead."""
    forced: bool
    """Whether `lose_at_most`, which comes before the overhead, decided all automatic intervals but the first."""
    noise: float
    """How much of the measured cost of one checkpoint is chance."""
    distance: Distance | None
    """Of the automatic interval from the best one of each stretch, as a factor; None where it had no time to settle."""
    job_distance: Distance | None
    """Of the mean of the automatic interval from the best fixed one for the whole job."""
    turns: float | None
    """How often the automatic interval swings in a hundred checkpoints while nothing changes. Looked at in every fifth
    scenario, and where there are enough checkpoints; else None."""
    changes: float | None
    """How often it changes at all, in the same hundred."""
    results: dict[str, Result]

    def of_limit(self, policy: str = AUTO) -> float:
        """Its overhead as a fraction of the limit: above 1 is too much."""
        return self.results[policy].overhead / self.limit


class Figures(NamedTuple):
    """Of one policy, over the scenarios in which the limits can be held."""

    within: float
    """In which fraction of the scenarios the overhead was within the limit."""
    worst: float
    """The largest overhead, as a fraction of the limit."""
    overhead: float
    """The mean."""
    lost_s: float
    """The mean work lost at a failure: the median over scenarios with failures."""
    efficiency: float
    """The mean."""


def trial(
    seed: int, *, policies: Sequence[str] = POLICIES, tuned: Callable[[], Tuned] = Tuned, draw: str = MACHINE
) -> Trial:
    """Run the scenario of this number; see `random_scenario`."""
    scenario = random_scenario(seed, draw=draw)
    ours = tuned()
    results = {AUTO: simulate(scenario, ours)}
    chosen = [one for pacing in ours.pacings for one in pacing.chosen]
    deciding = {name for pacing in ours.pacings for name in pacing.deciding}
    true_mtbf_s = min(scenario.mtbf_s, _NO_FAILURES_S)
    others: dict[str, Policy] = {
        CheckFreq.name: CheckFreq(),
        Every().name: Every(),
        BEST: Every(best_fixed(scenario, true_mtbf_s).interval_s),
    }
    results |= {name: simulate(scenario, policy) for name, policy in others.items() if name in policies}
    steady = _steady(scenario, tuned) if seed % _STEADY_OF == 0 else []
    return Trial(
        seed=seed,
        limit=scenario.overhead,
        held=_held(scenario, ours.mtbf_s, results[AUTO]),
        forced=deciding <= {FIRST, "lose_at_most"},
        noise=noise_of_a_write(scenario),
        distance=distance(scenario, results[AUTO], chosen),
        job_distance=distance_of_the_job(scenario, results[AUTO], ours.mtbf_s),
        turns=100 * swings(steady) / len(steady) if steady else None,
        changes=100 * sum(one != next_one for one, next_one in pairwise(steady)) / len(steady) if steady else None,
        results=results,
    )


def figures(trials: Iterable[Trial], policy: str) -> Figures:
    """Sum up."""
    held = [one for one in trials if one.held]
    found = [one.results[policy] for one in held]
    lost = sorted(result.lost_s / result.failures for result in found if result.failures)
    return Figures(
        within=share(one.of_limit(policy) <= 1.0 for one in held),
        worst=max(one.of_limit(policy) for one in held),
        overhead=sum(result.overhead for result in found) / len(found),
        lost_s=lost[len(lost) // 2] if lost else 0.0,
        efficiency=sum(result.efficiency for result in found) / len(found),
    )


def share(answers: Iterable[bool]) -> float:
    """Which fraction of them is true; nan of none."""
    listed = list(answers)
    return sum(listed) / len(listed) if listed else math.nan


def _held(scenario: Scenario, mtbf_s: float, ours: Result) -> bool:
    best = best_fixed(scenario, mtbf_s)
    if not best.held or ours.overhead <= scenario.overhead:
        return best.held
    # Not for ours alone: no policy can be asked for what no interval gives.
    return any(
        simulate(scenario, Every(interval_s)).overhead <= scenario.overhead
        for interval_s in (best.interval_s, best.longest_s)
    )


def _steady(scenario: Scenario, tuned: Callable[[], Tuned]) -> list[int]:
    """The intervals where the scenario stays as it begins, without failures and spikes; nothing of a short job."""
    steady = scenario._replace(
        pieces=(scenario.pieces[0]._replace(steps=scenario.steps),), mtbf_s=math.inf, spike_odds=0.0
    )
    ours = tuned()
    simulate(steady, ours)
    intervals = [interval for pacing in ours.pacings for interval, _ in pacing.chosen][_STEADY_FROM:]
    return intervals if len(intervals) >= _STEADY_LEAST else []
