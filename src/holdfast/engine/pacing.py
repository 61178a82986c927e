"""When a running training checkpoints: looks at it now and then, measures it, asks the trigger, and says why.

`Checkpointer.step()` counts, and calls a Pacer at the step that the Pacer asked for (`ask_at`): what happens here takes
microseconds, but not at every step of a fast loop.
"""

import logging
import math
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from holdfast.core.clock import Clock
from holdfast.engine.outcome import PendingCheckpoint
from holdfast.engine.pace_history import PACED, Past
from holdfast.engine.time_left import TimeLeft
from holdfast.policy.auto import Auto
from holdfast.policy.deadline import Action, Costs, Ending, Margin, StepTimes, decide_end, decide_grace
from holdfast.policy.failures import FailureRate
from holdfast.policy.moment import Decision, Moment
from holdfast.policy.profile import Profile
from holdfast.policy.triggers import Trigger
from holdfast.policy.tuning import Plan, Tuner

__all__ = ["Look", "Pacer", "auto_in", "saved"]

_log = logging.getLogger("holdfast")

# From one look to the next it takes about this long: no checkpoint is later than that, and steps are measured so.
_LOOK_S = 0.1
# A loop that becomes slower is noticed, because there are never more steps from one look to the next than these, and
# at most twice as many as before. So many share the cost of a look that each of them pays next to nothing.
_MOST_STEPS = 1000
_GROWTH = 2
# The journal hears of an interval that changed by more than this; and of another rule that decides, once a checkpoint.
_WORTH_TELLING = 0.1
# And of an end of the job that moved by more than this.
_WORTH_TELLING_S = 60.0
# The end of a job is planned with the slowest of the last few checkpoints.
_REMEMBERED = 5


DEADLINE = "deadline"


class Look(NamedTuple):
    """What a look found."""

    decision: Decision
    ending: Ending | None = None
    """What to do about the end of the job, where there is a limit."""

    @property
    def stops(self) -> bool:
        """Whether the program has to end now."""
        return self.ending is not None and self.ending.action not in (Action.GO_ON, Action.FINISH)

    @property
    def saves(self) -> bool:
        """Whether there is time for one more checkpoint before that."""
        return self.ending is not None and self.ending.action is Action.SAVE_AND_STOP

    @property
    def waits(self) -> bool:
        """Whether there is time for what is on its way."""
        return self.ending is not None and self.ending.action in (Action.SAVE_AND_STOP, Action.FLUSH)

    @property
    def why(self) -> str:
        return self.decision.reason if self.ending is None else self.ending.reason


def saved(reason: str) -> Look:
    """What is to be done by a program that was asked to stop, and has just saved by itself."""
    return Look(Decision(due=False, reason="saved"), Ending(Action.FLUSH, f"asked to stop: {reason}"))


class Pacer:
    """One per Checkpointer. Called by the training thread only."""

    def __init__(
        self,
        trigger: Trigger,
        clock: Clock,
        *,
        note: Callable[..., None],
        began_s: float | None = None,
        past: Past = Past(),  # noqa: B008  a frozen value
        time_left: TimeLeft | None = None,
        total_steps: int | None = None,
        risk: Callable[[], float] = lambda: 1.0,
        on_settled: Callable[[PendingCheckpoint], None] | None = None,
    ) -> None:
        """`note` writes an event to the journal; `risk` says by what the failure rate is raised now.

        The attempt began at `began_s`, by default now. `total_steps` is at which step the program is done, where it
        knows.
        """
        self._trigger = trigger
        self._clock = clock
        self._note = note
        self._time_left = time_left
        self._total_steps = total_steps
        self._risk = risk
        self._on_settled = on_settled
        auto = auto_in(trigger)
        profile = Profile.from_plain(past.profile)
        failures = None if auto is None else FailureRate.of(past.lifetimes, prior_mtbf_s=auto.mtbf_s)
        self.tuner = None if auto is None else Tuner(auto, profile=profile, failures=failures)
        self._wants_metrics = "metrics" in trigger.watches
        self._limit = None if auto is None else auto.overhead
        self._margin = Margin.from_plain(past.margin)
        self._steps = StepTimes()
        # Of one that was stopped before its plan told anything, or had none.
        self._durable_before_s = Profile.from_plain({"durable_s": past.durable_s}).durable_s or profile.durable_s
        self._durables_s: deque[float] = deque(maxlen=_REMEMBERED)
        self._began_s = clock.monotonic_s() if began_s is None else began_s
        self._moment = self._asked = Moment(step=0, now_s=self._began_s, began_s=self._began_s)
        self._looked_step: int | None = None
        self._looked_s = self._began_s
        self._was_writing = False
        self._gap = 1
        self._pending: list[PendingCheckpoint] = []
        self._left_out: Moment | None = None
        self._told: tuple[int | None, str, int] = (None, "", 0)
        self._told_end: tuple[Action, float] | None = None
        self._whole_s: float | None = None
        self._is_odd_said = False
        self.saved = 0
        self.skipped = 0
        self.ask_at: float = 0

    def look(
        self,
        step: int,
        epoch: int | None,
        metrics: Mapping[str, object],
        *,
        writing: bool,
        stop: str = "",
        grace_s: float | None = None,
    ) -> Look:
        """At the end of a step: whether a checkpoint is due, and whether the job has to end. Sets `ask_at`.

        `stop` is why the program is asked to stop, if it is; `grace_s` how long it may take, None for no limit.
        """
        now_s = self._clock.monotonic_s()
        self._measure(step, now_s, writing=writing)
        self._follow_plan(step, now_s)
        moment = self._asked = self._at(step, now_s, epoch, metrics)._replace(stop=stop)
        decision = self._decide(moment)
        left_s = None if self._time_left is None else self._time_left.left_s()
        ending = self._asked_to_end(step, stop, grace_s) if stop else self._ending(step, left_s)
        self._tell_end(ending, left_s, now_s)
        self._moment = moment._replace(
            metrics={},
            lowest=_extremes(moment.lowest, moment.metrics, min),
            highest=_extremes(moment.highest, moment.metrics, max),
        )
        self.ask_at = self._next_look(step, decision)
        return Look(decision, ending)

    def peek(
        self,
        step: int,
        epoch: int | None,
        metrics: Mapping[str, object],
        *,
        stop: str = "",
        grace_s: float | None = None,
    ) -> Decision:
        """Whether a look at that step would have a checkpoint made, as far as is known now."""
        decision = self._decide(self._at(step, self._clock.monotonic_s(), epoch, metrics)._replace(stop=stop))
        left_s = None if self._time_left is None else self._time_left.left_s()
        look = Look(decision, self._asked_to_end(step, stop, grace_s) if stop else self._ending(step, left_s))
        return Decision(look.saves, look.why) if look.stops else decision

    def due_on_error(self, step: int, error: str) -> Decision:
        """Whether a checkpoint is due because an exception leaves the loop after that step."""
        if "error" not in self._trigger.watches:
            return Decision(due=False, reason="the trigger does not ask for checkpoints at exceptions")
        moment = self._at(step, self._clock.monotonic_s(), self._moment.epoch, {})
        return self._decide(moment._replace(error=error))

    def note_saved(self, pending: PendingCheckpoint, stall_s: float, *, epoch: int | None) -> None:
        """A checkpoint was begun, whoever asked for it; the call took so long."""
        self.saved += 1
        self._left_out = None
        self._pending.append(pending)
        if self.tuner is not None:
            self.tuner.note_saved(stall_s)
        # Where the program saves by itself, between two looks: neither its steps nor their slowness are to blame.
        self._looked_s += stall_s
        self._was_writing = self._was_writing or not pending.settled
        self._moment = self._moment._replace(
            saved_step=pending.step, saved_s=self._clock.monotonic_s() - stall_s, saved_epoch=epoch
        )

    def note_skipped(self) -> bool:
        """The one that is due was left out, and stays due. Whether it counts: not where it only still is."""
        asked, before = self._asked, self._left_out
        if before is not None:
            since = asked._replace(saved_step=before.step, saved_s=before.now_s, saved_epoch=before.epoch)
            if not self._decide(since).due:
                return False
        self._left_out = asked
        if not self.skipped:
            _log.warning(
                "the checkpoint of step %d is left out, because the storage has not finished the last two; it is made "
                "as soon as there is room (this is said once)",
                asked.step,
            )
        self.skipped += 1
        # The best one is the best of those that were saved: the next that is as good is due again.
        self._moment = self._moment._replace(lowest=asked.lowest, highest=asked.highest)
        return True

    def note_restored(self, step: int, epoch: int | None, metrics: Mapping[str, float], *, at_s: float) -> None:
        """The training goes on from that checkpoint, which was restored at that time."""
        self._began_s = at_s
        self._left_out = None
        self._moment = self._moment._replace(
            step=step,
            epoch=epoch,
            began_s=self._began_s,
            began_step=step,
            saved_step=None,
            saved_s=None,
            saved_epoch=epoch,
            lowest=_extremes({}, metrics, min),
            highest=_extremes({}, metrics, max),
        )
        self._looked_step = None
        self.ask_at = 0

    def leave(self, *, writing: bool) -> None:
        """The program goes on: what happens from now on is the program's."""
        self._looked_step = self._moment.step
        self._looked_s = self._clock.monotonic_s()
        self._was_writing = writing

    @property
    def owes_one(self) -> bool:
        """Whether one that was due was left out, and not made since."""
        return self._left_out is not None

    def unsaved_steps(self, step: int) -> int:
        """How many there are since the last checkpoint that was begun, or restored."""
        return max(0, step - self._moment.since_step)

    def close(self) -> None:
        """Leave the profile to the next attempt."""
        self._settle()
        if self.tuner is not None and self._looked_step is not None:
            self._tell(self.tuner.plan(), self._moment.step, self._clock.monotonic_s())

    def _decide(self, moment: Moment) -> Decision:
        """What the trigger says. One of the program may raise, or say what is no decision: that ends nothing (I7)."""
        try:
            decision: object = self._trigger.decide(moment)
            if isinstance(decision, Decision) and isinstance(decision.due, bool):
                return decision
            found = f"it gave {decision!r}"
        except Exception as error:  # noqa: BLE001
            found = f"{type(error).__name__}: {error}"
        if not self._is_odd_said:
            self._is_odd_said = True
            _log.warning("the trigger %s fails: %s; not due (this is said once)", type(self._trigger).__name__, found)
        return Decision(due=False, reason=f"the trigger fails: {found}", ask_at=moment.step + 1)

    def _measure(self, step: int, now_s: float, *, writing: bool) -> None:
        if self._looked_step is not None and step > self._looked_step:
            count, seconds = step - self._looked_step, now_s - self._looked_s
            self._steps = self._steps.note(count, seconds)
            if self.tuner is not None:
                self.tuner.note_steps(count, seconds, writing=writing or self._was_writing)
        self._settle()

    def _settle(self) -> None:
        """What became of the checkpoints that were begun."""
        for pending in [each for each in self._pending if each.settled]:
            self._pending.remove(pending)
            if self._on_settled is not None:
                self._on_settled(pending)
            if pending.durable and pending.took_s is not None:
                if self._durables_s:
                    self._margin = self._margin.note(max(self._durables_s), pending.took_s)
                self._durables_s.append(pending.took_s)
                if self.tuner is not None:
                    self.tuner.note_durable(pending.took_s)
            elif self.tuner is not None:
                self.tuner.note_failed()

    def _at(self, step: int, now_s: float, epoch: int | None, metrics: Mapping[str, object]) -> Moment:
        return self._moment._replace(
            step=step,
            now_s=now_s,
            epoch=epoch,
            # A number may have to come from a device: they are looked at only where somebody wants them.
            metrics={name: _number(value) for name, value in metrics.items()} if self._wants_metrics else {},
            step_s=self._steps.usual_s,
            interval_steps=None if self.tuner is None else self.tuner.interval_steps,
        )

    def _follow_plan(self, step: int, now_s: float) -> None:
        """Have the tuner know of risks, and the journal of another interval."""
        if self.tuner is None:
            return
        self.tuner.risk = max(1.0, self._risk())
        plan = self.tuner.plan()
        before, won, saved = self._told
        if plan.interval_steps is not None and (
            before is None
            or abs(plan.interval_steps - before) > _WORTH_TELLING * before
            # Two rules that want nearly the same may take turns.
            or (won != plan.won and saved != self.saved)
        ):
            self._tell(plan, step, now_s)

    def _tell(self, plan: Plan, step: int, now_s: float) -> None:
        tuner, measured = self.tuner, plan.measured
        assert tuner is not None
        self._told = (plan.interval_steps, plan.won, self.saved)
        _log.info("checkpoints: %s", plan.why)
        self._note(
            PACED,
            step=step,
            elapsed_s=round(now_s - self._began_s, 3),
            interval_steps=plan.interval_steps,
            won=plan.won,
            why=plan.why,
            rules=[{"name": wish.name, "steps": wish.steps, "text": wish.text} for wish in plan.rules],
            step_s=measured.step_s,
            stall_s=measured.stall_s,
            slow_s=measured.slow_s,
            durable_s=measured.durable_s,
            overhead_window=tuner.overhead_window,
            overhead_run=tuner.overhead_run,
            limit=self._limit,
            mtbf_s=tuner.mtbf_s,
            risk=tuner.risk,
            saved=self.saved,
            skipped=self.skipped,
            profile=measured.to_plain(),
            margin=self._margin.to_plain(),
        )

    @property
    def durable_s(self) -> float | None:
        """What the slowest of the last few checkpoints took to be durable; None where that is not known."""
        self._settle()
        return max(self._durables_s, default=self._durable_before_s)

    def flush_s(self) -> float:
        """What is on its way takes no longer than this to become durable."""
        return max(self._durables_s, default=self._durable_before_s or 0.0) if self._pending else 0.0

    def _ending(self, step: int, left_s: float | None) -> Ending | None:
        if self._time_left is None:
            return None
        if self._whole_s is None and left_s is not None and not math.isnan(left_s):
            self._whole_s = left_s
        return decide_end(
            left_s,
            costs=self._costs(),
            steps=self._steps,
            steps_left=self._steps_left(step),
            margin=self._margin,
            whole_s=math.inf if self._whole_s is None else self._whole_s,
        )

    def _asked_to_end(self, step: int, stop: str, grace_s: float | None) -> Ending:
        if grace_s is None:
            return Ending(Action.SAVE_AND_STOP, f"asked to stop: {stop}")
        ending = decide_grace(grace_s, costs=self._costs(), steps=self._steps, steps_left=self._steps_left(step))
        return ending._replace(reason=f"{stop}: {ending.reason}")

    def _costs(self) -> Costs:
        # The stall is part of it: it counts from the call.
        durable_s = max(self._durables_s, default=self._durable_before_s)
        return Costs(durable_s=durable_s, pending_s=(durable_s or 0.0) if self._pending else None)

    def _steps_left(self, step: int) -> int | None:
        return None if self._total_steps is None else self._total_steps - step

    def _tell_end(self, ending: Ending | None, left_s: float | None, now_s: float) -> None:
        """The journal hears of a limit, of one that moved, and of what is to be done about it."""
        if ending is None or self._time_left is None or left_s is None or math.isnan(left_s):
            return
        told, end = self._told_end, (ending.action, now_s + left_s)
        if told is None and left_s == math.inf:
            return  # nobody asked for a limit, and there is none
        # Infinity minus infinity is no number, which is not more than a minute.
        if told is None or told[0] is not end[0] or abs(told[1] - end[1]) > _WORTH_TELLING_S:
            self._told_end = end
            known_s = round(left_s, 3) if math.isfinite(left_s) else None
            self._note(
                DEADLINE, source=self._time_left.source, left_s=known_s, decided=ending.action.value, why=ending.reason
            )

    def _next_look(self, step: int, decision: Decision) -> float:
        # After one that is due, it depends on what becomes of it.
        if decision.due or self._trigger.watches & {"epoch", "metrics"}:
            return step + 1
        # An own trigger of the program may say nan, or a step that is over.
        wanted = decision.ask_at if decision.ask_at > step else step + 1
        if self.tuner is None and self._time_left is None and math.isinf(wanted):
            return wanted
        usual_s = self._steps.usual_s
        fine = int(min(_MOST_STEPS, _LOOK_S / usual_s)) if usual_s else 1
        self._gap = max(1, min(fine, self._gap * _GROWTH))
        return min(wanted, step + self._gap)


def auto_in(trigger: Trigger) -> Auto | None:
    """The automatic one, or the first of those that it is combined from."""
    if isinstance(trigger, Auto):
        return trigger
    parts: Sequence[Trigger] = getattr(trigger, "triggers", ())
    return next((found for found in map(auto_in, parts) if found is not None), None)


def _extremes(
    before: Mapping[str, float], numbers: Mapping[str, float], better: Callable[[float, float], float]
) -> Mapping[str, float]:
    found = {name: number for name, number in numbers.items() if not math.isnan(number)}
    return (
        before
        if not found
        else {**before, **{name: better(before.get(name, number), number) for name, number in found.items()}}
    )


def _number(value: object) -> float:
    item = getattr(value, "item", None)  # of a tensor: no warning about gradients, and one transfer from a device
    try:
        return float(item() if callable(item) else value)  # type: ignore[arg-type]
    except Exception:  # noqa: BLE001  whatever it is: the save that is given it says so
        return math.nan
