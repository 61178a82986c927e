"""Random scenarios for the simulation.

| what | how it is drawn |
|---|---|
| step | log-uniform, 1 ms to 1 h |
| noise of one step | log-uniform, 2 to 100 % below 1 s, 1 to 25 % of longer ones |
| gradient accumulation | in 30 %: every 2nd to 32nd step takes 0.2 to 2 steps longer |
| evaluation | in 40 %: every 200 to 5,000 steps, 1 to 20 % of the time between them |
| first step | in 50 %: compiles for 1 to 120 s, in each attempt |
| first steps | in 50 %: 5 to 200 of them, 10 min at most, take twice as long, in each attempt |
| stall, time to durable, slow-down | those of a machine that is drawn: `testing.machines` |
| noise of costs | log-normal, sigma uniform 0 to 0.3; in 30 %: 2 to 5 % of the checkpoints cost 2 to 10 times as much |
| first checkpoint | costs 1 to 3 times as much |
| step time over the run | 40 % constant; 30 % a jump, by 1/3 to 3; 30 % a drift, by 1/3 to 3 |
| costs over the run | 40 % constant; 30 % a storage 2 to 10 times slower in 10 to 40 % of it; 30 % growth, up to 3 |
| cores that others take | in 30 %: log-uniform, 1 to 100 ms of noise for a second, with the root of the time |
| overhead that is allowed | log-uniform, 0.5 to 10 % |
| lose_at_most | in 40 % none; else log-uniform, 2 min to 2 h |
| failures | in 30 % none; else mtbf log-uniform, 1 h to 30 days; 0 to 20 attempts before, of 24 h at most each |
| length | log-uniform, 30 min to 5 days, at least 20 steps; cut where it would be more than 200 intervals |

Two other draws are kept, from before there were machines. `INDEPENDENT`: each cost by itself, whatever the others are
(stall log-uniform, 1 ms to 30 s; time to durable: the stall, and log-uniform 10 ms to 10 min; slow-down while writing:
in 40 % none, else log-uniform, 0.5 to 50 %), all dearer by the same factor over the run, and nothing said of cores.
`HARSH`: the same with a noise of one step that is uniform, 0 to 30 %.
"""

import math
import random
from collections.abc import Callable
from itertools import pairwise

from holdfast.policy.failures import PRIOR_MTBF_S, Lifetime
from holdfast.testing.hindsight import best_fixed
from holdfast.testing.machines import random_machine
from holdfast.testing.simulation import Piece, Scenario

__all__ = ["DRAWS", "HARSH", "INDEPENDENT", "MACHINE", "random_scenario"]

MACHINE, INDEPENDENT, HARSH = "machine", "independent", "harsh"
DRAWS = (MACHINE, INDEPENDENT, HARSH)

_DAY_S = 86_400.0
# Standard deviation of one step: from the quietest to the noisiest of `benchmarks.step_noise`, rounded outwards.
# A long step is a sum of many parts, and quieter: there it is that of a second or of four.
_NOISE_OF_SHORT = (0.02, 1.0)
_NOISE_OF_LONG = (0.01, 0.25)
_LONG_S = 1.0
_HARSH_NOISE = 0.3
_WARM_UP_S = 600.0
_MOST_INTERVALS = 200
_RAMP_PIECES = 12


def random_scenario(seed: int, *, draw: str = MACHINE) -> Scenario:
    """The scenario of this number; the same each time. `draw`: one of `DRAWS`."""
    chance = random.Random(seed)  # noqa: S311 - a simulation
    step_s = _log_uniform(chance, 1e-3, 3600.0)
    length_s = _log_uniform(chance, 1800.0, 5 * _DAY_S)
    costs = _of_a_machine(chance) if draw == MACHINE else _independent(chance)
    usual = costs(max(20, round(length_s / step_s)), step_s, 1.0, 1.0)
    mtbf_s = math.inf if chance.random() < 0.3 else _log_uniform(chance, 3600.0, 30 * _DAY_S)
    scenario = Scenario(
        seed=seed,
        pieces=(usual,),
        overhead=_log_uniform(chance, 0.005, 0.1),
        lose_at_most_s=None if chance.random() < 0.4 else _log_uniform(chance, 120.0, 7200.0),
        step_noise=_step_noise(chance, step_s, harsh=draw == HARSH),
        cost_noise=chance.uniform(0.0, 0.3),
        first=chance.uniform(1.0, 3.0),
        others=_log_uniform(chance, 0.001, 0.1) if draw == MACHINE and chance.random() < 0.3 else 0.0,
        mtbf_s=mtbf_s,
        history=_history(chance, mtbf_s),
    )
    scenario = _habits(chance, scenario)
    # The length in intervals is bounded, not the interval: what is cut is only more of the same.
    best = best_fixed(scenario, PRIOR_MTBF_S)
    most = math.ceil(_MOST_INTERVALS * best.interval_s / step_s)
    steps = max(20, min(usual.steps, most))
    return scenario._replace(pieces=_over_the_run(chance, steps, step_s, costs))


# Steps, seconds of one, how much slower the storage is, how much larger the state: to a piece with its costs.
_Costs = Callable[[int, float, float, float], Piece]


def _of_a_machine(chance: random.Random) -> _Costs:
    machine = random_machine(chance)
    return lambda steps, step_s, slower, grown: machine.piece(steps, step_s, grown=grown, slower=slower)


def _independent(chance: random.Random) -> _Costs:
    stall_s = _log_uniform(chance, 1e-3, 30.0)
    durable_s = stall_s + _log_uniform(chance, 0.01, 600.0)
    slow = 0.0 if chance.random() < 0.4 else _log_uniform(chance, 0.005, 0.5)
    return lambda steps, step_s, slower, grown: Piece(
        steps, step_s, stall_s * slower * grown, durable_s * slower * grown, slow
    )


def _step_noise(chance: random.Random, step_s: float, *, harsh: bool) -> float:
    low, high = _NOISE_OF_SHORT if step_s < _LONG_S else _NOISE_OF_LONG
    return chance.uniform(0.0, _HARSH_NOISE) if harsh else _log_uniform(chance, low, high)


def _habits(chance: random.Random, scenario: Scenario) -> Scenario:
    """What makes the steps and the checkpoints of a program differ."""
    step_s = scenario.pieces[0].step_s
    if chance.random() < 0.3:
        scenario = scenario._replace(update_every=chance.randint(2, 32), update=chance.uniform(0.2, 2.0))
    if chance.random() < 0.4:
        every = chance.randint(200, 5000)
        scenario = scenario._replace(pause_every=every, pause_s=every * step_s * chance.uniform(0.01, 0.2))
    if chance.random() < 0.5:
        scenario = scenario._replace(compile_s=_log_uniform(chance, 1.0, 120.0))
    if chance.random() < 0.5:
        scenario = scenario._replace(slow_first=min(chance.randint(5, 200), int(_WARM_UP_S / step_s)))
    if chance.random() < 0.3:
        scenario = scenario._replace(spike_odds=chance.uniform(0.02, 0.05), spike=chance.uniform(2.0, 10.0))
    return scenario


def _history(chance: random.Random, mtbf_s: float) -> tuple[Lifetime, ...]:
    if mtbf_s == math.inf:
        return tuple(Lifetime(_DAY_S, failed=False) for _ in range(chance.randint(0, 20)))
    lived_s = [chance.expovariate(1 / mtbf_s) for _ in range(chance.randint(0, 20))]
    return tuple(Lifetime(min(one_s, _DAY_S), failed=one_s < _DAY_S) for one_s in lived_s)


def _over_the_run(chance: random.Random, steps: int, step_s: float, costs: _Costs) -> tuple[Piece, ...]:
    """Step time and costs change at places of their own."""
    pace = _course(chance, *_PACES[_choice(chance)])
    kind = _COSTS[_choice(chance)]
    dearer = _course(chance, *kind)
    edges = sorted({0.0, 1.0, *(at for at, _ in pace), *(at for at, _ in dearer)})
    pieces = []
    for begin, end in pairwise(edges):
        count = round(steps * end) - round(steps * begin)
        factor = _at(dearer, begin)
        # For a while the storage is slower; over the whole run the state grows.
        slower, grown = (factor, 1.0) if kind[0] == "phase" else (1.0, factor)
        if count > 0:
            pieces.append(costs(count, step_s * _at(pace, begin), slower, grown))
    return tuple(pieces)


_PACES = (("constant", 1.0, 1.0), ("jump", 1 / 3, 3.0), ("drift", 1 / 3, 3.0))
_COSTS = (("constant", 1.0, 1.0), ("phase", 2.0, 10.0), ("drift", 1.0, 3.0))


def _choice(chance: random.Random) -> int:
    return chance.choices((0, 1, 2), (0.4, 0.3, 0.3))[0]


def _course(chance: random.Random, kind: str, low: float, high: float) -> list[tuple[float, float]]:
    """(from this fraction of the steps on, this factor)."""
    to = _log_uniform(chance, low, high)
    if kind == "jump":
        return [(0.0, 1.0), (chance.uniform(0.1, 0.9), to)]
    if kind == "phase":
        length = chance.uniform(0.1, 0.4)
        begin = chance.uniform(0.0, 1 - length)
        return [(0.0, 1.0), (begin, to), (begin + length, 1.0)]
    if kind == "drift":
        return [(i / _RAMP_PIECES, to ** (i / (_RAMP_PIECES - 1))) for i in range(_RAMP_PIECES)]
    return [(0.0, 1.0)]


def _at(course: list[tuple[float, float]], place: float) -> float:
    return next(factor for at, factor in reversed(course) if at <= place)


def _log_uniform(chance: random.Random, low: float, high: float) -> float:
    return low * math.exp(chance.random() * math.log(high / low))
