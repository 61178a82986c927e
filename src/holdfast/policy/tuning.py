"""Finds the interval: takes what was measured, asks the rules, and does not follow every wind."""

import math

from holdfast.policy.auto import FIRST_LATEST_S, FIRST_S, FIRST_STEPS, Auto
from holdfast.policy.failures import FailureRate
from holdfast.policy.measuring import Costs, Pace, Spending
from holdfast.policy.profile import Profile
from holdfast.policy.rules import MOST, Demand, Facts, Plan, Wish, demand, explain
from holdfast.policy.writes import Recent, Write

__all__ = ["FIRST", "Plan", "Profile", "Tuner", "Wish"]

FIRST = "first"
"""What wins before anything is known of the costs: the one checkpoint that measures them."""

# By how much, as a logarithm, the interval must be wrong before it is changed: on in the same direction, or back.
_ONWARD = math.log(1.08)
_BACK = math.log(1.2)
# The way back becomes easier with the checkpoints since the last change: what they say becomes surer.
_PATIENCE = 8
_LEAST_BAND = math.log(1.05)
_LEAST_STEPS = 1e-3
_MOST_STEPS = 1e15
_ROUNDING = 1e-9
_BINS_PER_INTERVAL = 16
_LOOKS = 8
# After so many checkpoints with hardly a step in between, a gap is left: the first few times, and when costs are known.
_BLIND_FIRST = 2
_BLIND = 64
_OWED_MOST = 4  # checkpoints


class Tuner:
    """Driven by what happens: note it, then ask for the plan. Pure: the same notes give the same plan.

    Notes that make no sense (a clock that jumped: negative times, nan) are left out.
    """

    def __init__(self, auto: Auto, *, profile: Profile | None = None, failures: FailureRate | None = None) -> None:
        profile = profile or Profile()
        self._auto = auto
        self._failures = failures or FailureRate.of((), prior_mtbf_s=auto.mtbf_s)
        self._pace = Pace(profile.step_s)
        self._costs = Costs(profile)
        self._spending = Spending()
        self._recent = Recent(0)
        self._write: Write | None = None
        self._steps = 0
        self._elapsed_s = 0.0
        self._saved = 0
        self._blind = 0
        self._write_steps = 0
        self._saved_base_s = 0.0
        self._before = profile
        # Attempts that fail early pay for the dear first checkpoint again and again. What they owe is bounded, for the
        # limit may have been another one.
        owed_s = profile.spent_s - auto.overhead * profile.base_s
        self._owed_s = max(0.0, min(owed_s, _OWED_MOST * (profile.cost_s or 0.0)))
        self._risk = 1.0
        self._held: float | None = None
        self._direction = 0
        self._kept = 0
        self._facts: Facts | None = None
        self._demand: Demand | None = None
        self._interval: int | None = None
        self._plan: Plan | None = None
        self._weigh()

    @property
    def risk(self) -> float:
        """How many times the failure rate is raised while sensors see trouble; 1 is no trouble."""
        return self._risk

    @risk.setter
    def risk(self, risk: float) -> None:
        risk = max(1.0, risk) if math.isfinite(risk) else 1.0
        if risk != self._risk:
            self._risk = risk
            self._held = None  # at once, in either direction
            self._weigh()

    @property
    def interval_steps(self) -> int | None:
        """That of the plan, without the words."""
        if self._interval is None and self._first_is_due():
            return 1
        return self._interval

    @property
    def won(self) -> str:
        """The name of the rule that decides."""
        return FIRST if self._demand is None else self._demand.won

    @property
    def step_s(self) -> float | None:
        """What a step takes while nothing is written."""
        return self._pace.step_s

    @property
    def mtbf_s(self) -> float:
        """Mean time between failures, as it is estimated now, without what sensors see."""
        return self._failures.mtbf_after_s(self._elapsed_s)

    @property
    def overhead_window(self) -> float:
        """What checkpoints cost, as a fraction of the time that the training takes without: the last few of them."""
        return self._spending.overhead

    @property
    def overhead_run(self) -> float:
        """The same over the whole run, the attempts before this one included as far as the profile knows them."""
        base_s = self._before.base_s + self._base_s
        return (self._before.spent_s + self._costs.spent_s) / base_s if base_s > 0 else 0.0

    def note_steps(self, count: int, seconds: float, *, writing: bool) -> None:
        """So many steps took so long, without stalls. `writing`: a checkpoint was on its way during some of them."""
        if count <= 0 or not (math.isfinite(seconds) and seconds >= 0):
            return
        self._steps += count
        self._elapsed_s += seconds
        write = self._write
        odd = self._pace.is_odd(count, seconds)
        if write is not None and writing != write.ended:
            write.note(count, seconds, odd=odd)
            # The first one is waited for, so that less has to do.
            unknown = not self._costs.slowing.known
            if write.ended and (not write.left or (unknown and write.is_seen)):
                self._end_write()
                self._weigh()
        if not writing:
            if not odd:
                self._recent.add(count, seconds)
            if self._pace.add(count, seconds):
                self._weigh()

    def note_saved(self, stall_s: float) -> None:
        """A checkpoint was begun; the call took so long from the training thread."""
        self._end_write()
        self._saved += 1
        self._blind += 1
        self._kept += 1
        self._saved_base_s = self._base_s
        self._spending.note(self._base_s, self._costs.spent_s)
        # The steps before the first one warm up.
        before = (self._recent.steps, self._recent.step_s) if self._saved > 1 else (0.0, 0.0)
        sound = math.isfinite(stall_s) and stall_s >= 0
        self._write = Write(before, stall_s if sound else 0.0)
        if sound:
            self._costs.note_stall(stall_s)
        self._weigh()

    def note_durable(self, seconds: float, queued_s: float | None = None) -> None:
        """It became durable so long after it was begun. The steps until then have been noted.

        `queued_s`: for so long, all together, the threads of the training had no core meanwhile, more than they usually
        have none; None where nobody knows.
        """
        sound = math.isfinite(seconds) and seconds >= 0
        if queued_s is not None and not math.isfinite(queued_s):
            queued_s = None
        if sound:
            self._costs.note_durable(seconds, queued_s)
        self._written(seconds if sound else None)

    def note_failed(self) -> None:
        """It did not become durable; what it cost, it cost."""
        self._written(None)

    @property
    def look_steps(self) -> int:
        """After so many steps at the latest, they are to be noted: fewer notes would measure less."""
        if self._write is not None and self._write.left:
            # Before the first one is known there is no interval: the sooner the better.
            return self._write.left if self._costs.slowing.known else self._write.left_at_least
        if self._write is not None and self._facts is not None:
            return max(1, math.ceil(self._facts.durable_s / self._facts.step_s / _LOOKS))
        if self._interval is None:
            return max(1, math.ceil(FIRST_S / _LOOKS / self.step_s)) if self.step_s else 1
        return max(1, math.ceil(self._interval / _LOOKS))

    def plan(self) -> Plan:
        """The interval, and why it is that."""
        interval = self.interval_steps
        if self._plan is not None and self._plan.interval_steps == interval:
            return self._plan
        measured = self._measured(interval)
        if self._facts is None or self._demand is None or interval is None or self._interval is None:
            why = "the first steps are being measured" if interval is None else "one checkpoint, to see what one costs"
            return Plan(interval, FIRST, (), why, measured)
        self._plan = explain(self._auto, self._facts, self._demand, interval, measured)
        return self._plan

    @property
    def _base_s(self) -> float:
        return max(0.0, self._elapsed_s - self._costs.slowing.total_s)

    def _first_is_due(self) -> bool:
        if self._saved or self._costs.cost_s is not None:
            return False
        enough = self._steps >= FIRST_STEPS and self._elapsed_s >= FIRST_S
        return enough or (self._steps > 0 and self._elapsed_s >= FIRST_LATEST_S)

    def _written(self, took_s: float | None) -> None:
        write = self._write
        if write is not None and not write.ended:
            write.ended, write.took_s = True, took_s
            self._write_steps = write.steps
            self._recent = Recent(write.steps)
            if write.short:
                self._pace.add(write.steps, write.seconds)
            elif write.steps and self._blind > 1:
                self._pace.add_write(write.steps, write.seconds)
            if not write.left:
                self._end_write()
        self._weigh()

    def _end_write(self) -> None:
        if self._write is not None:
            self._costs.note_write(self._write, self._pace)
            if self._write.is_seen or self._write.short:
                self._blind = 0
        self._write = None

    def _measured(self, interval: int | None) -> Profile:
        costs = self._costs
        return Profile(
            step_s=self._pace.step_s,
            stall_s=costs.stall.value,
            slow_s=costs.slow_s,
            slow_error_s=costs.slow_error_s,
            durable_s=costs.durable.value,
            queued_s=None if costs.queued.value is None else max(0.0, costs.queued.value),
            interval_steps=interval,
            steps=self._steps,
            saved=self._saved,
            spent_s=self._before.spent_s + costs.spent_s,
            base_s=self._before.base_s + self._base_s,
        )

    def _weigh(self) -> None:
        """Ask the rules again, and change the interval where it is wrong by more than noise is."""
        self._plan = None
        step_s, cost_s = self._pace.step_s, self._costs.cost_s
        durable_s = self._costs.durable_latest_s
        if step_s is None or cost_s is None or not self._pace.warm or self._awaits_first():
            return
        blind = self._blind > (_BLIND if self._costs.slowing.sure else _BLIND_FIRST)
        self._facts = Facts(
            step_s=self._pace.each_s or step_s,
            cost_s=cost_s,
            careful_s=self._costs.careful_s,
            dearest_s=self._costs.dearest_s,
            durable_s=durable_s or 0.0,  # none ever was: they all failed
            mtbf_s=self.mtbf_s / self._risk,
            lifetime_s=self.mtbf_s,
            spent_s=self._owed_s + self._costs.spent_s,
            spent_most_s=self._owed_s + self._costs.spent_most_s,
            credit_s=max(0.0, MOST * self._auto.overhead * self._before.base_s - self._before.spent_s),
            saved=self._saved,
            saved_base_s=self._saved_base_s,
            risky=self._risk > 1.0,
            gap_steps=self._write_steps + self._pace.gap_steps(self._write_steps) if blind else 0,
        )
        self._demand = demand(self._auto, self._facts)
        self._settle(self._demand)

    def _awaits_first(self) -> bool:
        """Whether the first checkpoint is on its way, or not over for long enough to know what it cost."""
        write = self._write
        if write is None:
            return False
        if not write.ended:
            return self._costs.durable.value is None
        return not self._costs.slowing.known and not write.short

    def _settle(self, wishes: Demand) -> None:
        wanted = max(wishes.wanted, _LEAST_STEPS)
        if self._held is None:
            self._held = wanted
        change = math.log(wanted / self._held)
        direction = 1 if change > 0 else -1
        band = _ONWARD if direction == self._direction else _BACK / math.sqrt(1 + self._kept / _PATIENCE)
        # What is promised is held at once, whatever the band.
        if abs(change) > max(_LEAST_BAND, band) or self._held > wishes.bound:
            self._held, self._direction, self._kept = wanted, direction, 0
        # Whole steps: no fewer than is asked for, but where that is more than is promised, no more than can be helped.
        interval = math.ceil(min(self._held, _MOST_STEPS) - _ROUNDING)
        if interval > wishes.bound:
            interval = max(math.floor(wishes.bound + _ROUNDING), math.ceil(wishes.durable - _ROUNDING))
        self._interval = max(1, interval)
        self._pace.bin_steps = math.ceil(self._interval / _BINS_PER_INTERVAL)
        self._pace.bin_s = self._interval * (self._pace.step_s or math.inf) / _BINS_PER_INTERVAL
