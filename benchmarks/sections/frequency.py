"""How often to checkpoint: the automatic interval, CheckFreq's rule and a fixed time in random trainings, simulated."""

import math
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context

import msgspec

from benchmarks.results import Check, Role, Row, Section, at_least, at_most, row
from benchmarks.setting import Setting, cores
from holdfast.testing.trials import AUTO, BEST, POLICIES, Trial, figures, share, trial

__all__ = ["SCENARIOS", "UNSEEN", "run", "summed_up"]

SCENARIOS = 10_000
_QUICK_SCENARIOS = 40
UNSEEN = 10_000
_NEAR = 1.25
_MOST = 1.2
_CALM = 10
_NAMES = {AUTO: "holdfast, auto"}
_GROUP = "lost at a failure"


def run(setting: Setting) -> Section:
    """All policies in the same scenarios; nothing here depends on the machine."""
    count = _QUICK_SCENARIOS if setting.quick else SCENARIOS
    with ProcessPoolExecutor(cores(), mp_context=get_context("spawn")) as pool:
        # Others than those that the rules were made with.
        trials = list(pool.map(trial, range(UNSEEN, UNSEEN + count), chunksize=10))
    return summed_up(trials)


def summed_up(trials: list[Trial]) -> Section:
    """The figures of all of them."""
    section = Section(name="frequency", title=f"How often to checkpoint: {len(trials):,} simulated trainings")
    section.rows = [_row(trials, policy) for policy in POLICIES]
    _check(section, trials)
    section.notes = [_note(trials, policy) for policy in POLICIES]
    held = share(one.held for one in trials)
    section.notes.append(
        f"In {held:.1%} of the scenarios the limits can be held together, and leave room for four checkpoints; all "
        "figures are of these. Slow-down: checkpoints only, the mean and the median over scenarios. The best fixed "
        "interval is that of one who knows the whole scenario beforehand."
    )
    return section


def _row(trials: list[Trial], policy: str) -> Row:
    """Times are deciles of the work lost at a failure; the slow-down is the overhead."""
    found = [one.results[policy] for one in trials if one.held]
    lost_s = sorted(result.lost_s / result.failures for result in found if result.failures) or [0.0]
    deciles = [lost_s[min(len(lost_s) - 1, math.floor(part / 10 * len(lost_s)))] for part in range(1, 10)]
    overheads = sorted(result.overhead for result in found)
    roles: dict[str, Role] = {AUTO: "holdfast", BEST: "limit"}
    return msgspec.structs.replace(
        row(_GROUP, _NAMES.get(policy, policy), roles.get(policy, "peer"), deciles),
        slowdown_median=round(sum(overheads) / len(overheads), 5),
        slowdown_best=round(overheads[len(overheads) // 2], 5),
    )


def _check(section: Section, trials: list[Trial]) -> None:
    ours = figures(trials, AUTO)
    stretches = [one.distance for one in trials if one.held and one.distance is not None]
    jobs = [one.job_distance for one in trials if one.held and one.job_distance is not None]
    turns = [one.turns for one in trials if one.turns is not None]
    best = figures(trials, BEST)
    section.checks = [
        at_least("overhead within the limit, of the scenarios", 99.0, 100 * ours.within, "%"),
        at_most("the largest overhead, of the limit", 1.2, ours.worst),
        at_most(
            "above 1.2 times the limit, of the scenarios",
            0.0,
            100 * share(one.of_limit() > _MOST for one in trials if one.held),
            "%",
        ),
        at_most(
            "the same, where not lose_at_most decided all intervals",
            0.0,
            100 * share(one.of_limit() > _MOST and not one.forced for one in trials if one.held),
            "%",
        ),
        _near("mean interval of the job within 25 % of the best fixed one", [one.exact for one in jobs]),
        _near("interval within 25 % of the best of each stretch", [one.exact for one in stretches]),
        _near("the first, compared in whole steps", [one.whole for one in jobs]),
        _near("the second, compared in whole steps", [one.whole for one in stretches]),
        at_least(
            f"at most {_CALM} swings in 100 steady checkpoints", 95.0, 100 * share(t <= _CALM for t in turns), "%"
        ),
        at_most("efficiency lost to the best fixed interval", 0.5, 100 * (best.efficiency - ours.efficiency), "%"),
    ]


def _near(what: str, distances: list[float]) -> Check:
    return at_least(what, 90.0, 100 * share(one <= _NEAR for one in distances), "%")


def _note(trials: list[Trial], policy: str) -> str:
    found = figures(trials, policy)
    return (
        f"{_NAMES.get(policy, policy)}: within the limit in {found.within:.1%}, at worst {found.worst:.3g} times the "
        f"limit; overhead {found.overhead:.2%}; {found.lost_s:.0f} s lost at a failure (median over scenarios); "
        f"efficiency {found.efficiency:.2%}."
    )
