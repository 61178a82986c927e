"""When a running training checkpoints: looks at it now and then, measures it, asks the trigger, and says why.

`Checkpointer.step()` counts, and calls a Pacer at the step that the Pacer asked for (`ask_at`): what happens here takes
microseconds, but not at every step of a fast loop.
"""

import logging
import math
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from holdfast.core.clock import Clock
from holdfast.core.errors import UsageError, in_words
from holdfast.engine.awaited_metrics import AwaitedMetrics
from holdfast.engine.job_end import JobEnd
from holdfast.engine.outcome import PendingCheckpoint
from holdfast.engine.pace_history import Past
from holdfast.engine.pace_notes import PaceNotes
from holdfast.engine.queueing import Queueing
from holdfast.engine.time_left import TimeLeft
from holdfast.policy.auto import Auto
from holdfast.policy.deadline import Action, Ending, StepTimes
from holdfast.policy.failures import FailureRate
from holdfast.policy.moment import Decision, Moment
from holdfast.policy.profile import Profile
from holdfast.policy.triggers import Trigger, decided
from holdfast.policy.tuning import Plan, Tuner

__all__ = ["Look", "Pacer", "auto_in", "saved"]

_log = logging.getLogger("holdfast")

# From one look to the next it takes about this long: no checkpoint is later than that, and steps are measured so.
_LOOK_S = 0.1
# A loop that becomes slower is noticed, because there are never more steps from one look to the next than these, and
# at most twice as many as before. So many share the cost of a look that each of them pays next to nothing.
_MOST_STEPS = 1000
_GROWTH = 2


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
        queued: Callable[[], float | None] = lambda: None,
    ) -> None:
        """`note` writes an event to the journal; `risk` says by what the failure rate is raised now; `queued` for how
        long threads of the program have had no core.

        The attempt began at `began_s`, by default now. `total_steps` is at which step the program is done, where it
        knows.
        """
        self._trigger = trigger
        self._clock = clock
        self._risk = risk
        self._on_settled = on_settled
        auto = auto_in(trigger)
        profile = Profile.from_plain(past.profile)
        failures = None if auto is None else FailureRate.of(past.lifetimes, prior_mtbf_s=auto.mtbf_s)
        self.tuner = None if auto is None else Tuner(auto, profile=profile, failures=failures)
        self._queueing = Queueing(queued)
        self._watches = frozenset(trigger.watches)
        self._wants_metrics = "metrics" in self._watches
        self._awaited = AwaitedMetrics(trigger)
        self._notes = PaceNotes(note, limit=None if auto is None else auto.overhead)
        self._end = JobEnd(past, time_left=time_left, total_steps=total_steps)
        self._steps = StepTimes()
        self._began_s = clock.monotonic_s() if began_s is None else began_s
        self._moment = self._asked = Moment(step=0, now_s=self._began_s, began_s=self._began_s)
        self._looked_step: int | None = None
        self._looked_s = self._began_s
        self._was_writing = False
        self._gap = 1
        self._pending: list[PendingCheckpoint] = []
        self._left_out: Moment | None = None
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
        self._awaited.note(step, metrics)
        moment = self._asked = self._at(step, now_s, epoch, metrics)._replace(stop=stop)
        decision = self._decide(moment)
        left_s, ending = self._ending(step, stop, grace_s)
        self._notes.tell_end(ending, left_s, now_s=now_s, source=self._end.source)
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
        look = Look(decision, self._ending(step, stop, grace_s)[1])
        return Decision(look.saves, look.why) if look.stops else decision

    def due_on_error(self, step: int, error: str) -> Decision:
        """Whether a checkpoint is due because an exception leaves the loop after that step."""
        if "error" not in self._watches:
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
            self._queueing.begin(self._clock.monotonic_s())
        # Where the program saves by itself, between two looks: neither its steps nor their slowness are to blame.
        self._looked_s += stall_s
        self._was_writing = self._was_writing or not pending.settled
        self._moment = self._moment._replace(
            saved_step=pending.step,
            saved_s=self._clock.monotonic_s() - stall_s,
            saved_epoch=self._last_known(epoch),
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
        self._awaited.note_known(metrics)
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

    @property
    def durable_s(self) -> float | None:
        """What the slowest of the last few checkpoints took to be durable; None where that is not known."""
        self._settle()
        return self._end.durable_s

    def flush_s(self) -> float:
        """What is on its way takes no longer than this to become durable."""
        return (self._end.durable_s or 0.0) if self._pending else 0.0

    def why_none(self, step: int) -> str:
        """Why no checkpoint was made until the end of that step, by a trigger that may wait for what nobody gave."""
        reason, instead = self.peek(step, None, {}).reason, self._awaited.instead
        return f"{reason}; {instead}" if instead else reason

    def close(self) -> None:
        """Leave the profile to the next attempt."""
        self._settle()
        if self.tuner is not None and self._looked_step is not None:
            self._tell(self.tuner, self.tuner.plan(), self._moment.step, self._clock.monotonic_s())

    def _last_known(self, epoch: int | None) -> int | None:
        """Or whoever does not say it with each save, or each step, would have saved none, and save it once more."""
        known = (epoch, self._moment.epoch, self._moment.saved_epoch)
        return next((each for each in known if each is not None), None)

    def _decide(self, moment: Moment) -> Decision:
        """What the trigger says. One of the program may raise, or say what is no decision: that ends nothing (I7)."""
        try:
            return decided(self._trigger, moment)
        except Exception as error:  # noqa: BLE001  even what it gave may have no text
            found = error.message if isinstance(error, UsageError) else in_words(error)
        if not self._is_odd_said:
            self._is_odd_said = True
            _log.warning("%s; not due (this is said once)", found)
        return Decision(due=False, reason=found, ask_at=moment.step + 1)

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
            queued_s = None if self.tuner is None else self._queueing.end(self._clock.monotonic_s())
            if pending.durable and pending.took_s is not None:
                self._end.note_durable(pending.took_s)
                if self.tuner is not None:
                    self.tuner.note_durable(pending.took_s, queued_s)
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
        if self._notes.is_news(plan, saved=self.saved):
            self._tell(self.tuner, plan, step, now_s)

    def _tell(self, tuner: Tuner, plan: Plan, step: int, now_s: float) -> None:
        self._notes.tell_plan(
            plan,
            tuner,
            step=step,
            elapsed_s=now_s - self._began_s,
            margin=self._end.margin,
            saved=self.saved,
            skipped=self.skipped,
        )

    def _ending(self, step: int, stop: str, grace_s: float | None) -> tuple[float | None, Ending | None]:
        """The time that is left, and what to do about it."""
        left_s, pending = self._end.left_s(), bool(self._pending)
        if stop:
            return left_s, self._end.decide_asked(step, stop, grace_s, self._steps, pending=pending)
        return left_s, self._end.decide(step, left_s, self._steps, pending=pending)

    def _next_look(self, step: int, decision: Decision) -> float:
        # After one that is due, it depends on what becomes of it.
        if decision.due or self._watches & {"epoch", "metrics"}:
            return step + 1
        # An own trigger of the program may say nan, or a step that is over.
        wanted = decision.ask_at if decision.ask_at > step else step + 1
        if self.tuner is None and not self._end.is_watched and math.isinf(wanted):
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
    # One that is infinite once would be the best for ever.
    found = {name: number for name, number in numbers.items() if math.isfinite(number)}
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
