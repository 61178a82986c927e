"""The Pacer: looks rarely, decides as if it looked at every step, measures, leaves a profile to the next attempt."""

import json
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from itertools import pairwise

import numpy as np
import pytest
import torch

from holdfast.core.errors import SaveFailedError
from holdfast.engine.outcome import PendingCheckpoint
from holdfast.engine.pace_history import Past, read_past
from holdfast.engine.pacing import Look, Pacer
from holdfast.policy.auto import auto
from holdfast.policy.deadline import Action, Ending
from holdfast.policy.moment import Decision, Moment
from holdfast.policy.triggers import Trigger, every, never, on_best, on_error, when
from holdfast.testing import FakeClock

NOTHING: Mapping[str, object] = {}
OFTEN = auto(mtbf="5 min")


@dataclass
class FakeLimit:
    """A job that may run so long, or whatever is assigned to it."""

    clock: FakeClock
    end_s: float | None
    source: str = "the test"

    def left_s(self) -> float | None:
        return None if self.end_s is None else self.end_s - self.clock.monotonic_s()

    def close(self) -> None:
        pass


@dataclass
class Loop:
    """A training that costs no time but the fake clock's, driven as Checkpointer.step drives it."""

    trigger: Trigger
    step_s: Callable[[int], float] | float = 0.01
    stall_s: float = 0.0
    durable_s: float = 0.0
    """After the call has returned."""
    past: Past = field(default_factory=Past)
    limit_s: float | None = None
    total_steps: int | None = None
    everywhere: bool = False
    """Look at every step, as if that were cheap."""
    fails: Callable[[int], bool] = lambda step: False
    is_full: Callable[[int], bool] = lambda step: False
    queued: Callable[[], float | None] = lambda: None

    def __post_init__(self) -> None:
        self.clock = FakeClock()
        self.journal: list[dict[str, object]] = []
        self.limit = None if self.limit_s is None else FakeLimit(self.clock, self.limit_s)
        self.pacer = Pacer(
            self.trigger,
            self.clock,
            note=self.note,
            past=self.past,
            time_left=self.limit,
            total_steps=self.total_steps,
            queued=self.queued,
        )
        self.step = 0
        self.ask_at: float = 0
        self.looked: list[int] = []
        self.saved: list[int] = []
        self.stopped: Look | None = None
        self._writing: list[tuple[float, PendingCheckpoint]] = []

    def note(self, event: str, **details: object) -> None:
        # As the real one: what cannot be written as JSON must not get that far.
        self.journal.append(json.loads(json.dumps({"event": event, **details})))

    def events(self, kind: str) -> list[dict[str, object]]:
        return [event for event in self.journal if event["event"] == kind]

    def run(
        self, steps: int, *, epoch: Callable[[int], int | None] | None = None, **metrics: Callable[[int], object]
    ) -> "Loop":
        for _ in range(steps):
            if self.stopped is not None:
                break
            self.step += 1
            self.clock.advance(self.step_s(self.step) if callable(self.step_s) else self.step_s)
            self._write()
            given = {name: value(self.step) for name, value in metrics.items()}
            given = {name: value for name, value in given.items() if value is not None}
            if self.everywhere or self.step >= self.ask_at:
                self._look(None if epoch is None else epoch(self.step), given)
        return self

    def save(self, epoch: int | None = None) -> PendingCheckpoint:
        self.saved.append(self.step)
        pending = PendingCheckpoint(self.step, self.clock)
        self.clock.advance(self.stall_s)
        if self.fails(self.step):
            pending.note_failed(SaveFailedError("the disk is full"))
        elif self.durable_s == 0:
            pending.note_durable(f"id-{self.step}")
        else:
            self._writing.append((self.clock.monotonic_s() + self.durable_s, pending))
        self.pacer.note_saved(pending, self.stall_s, epoch=epoch)
        return pending

    def restore(self, step: int, epoch: int | None = None, **metrics: float) -> None:
        self.pacer.note_restored(step, epoch, metrics, at_s=self.clock.monotonic_s())
        self.step, self.ask_at = step, self.pacer.ask_at

    def _look(self, epoch: int | None, metrics: Mapping[str, object]) -> None:
        self.looked.append(self.step)
        look = self.pacer.look(self.step, epoch, metrics, writing=bool(self._writing))
        if look.stops:
            self.stopped = look
        elif look.decision.due and self.is_full(self.step):
            self.pacer.note_skipped()
        elif look.decision.due:
            self.save(epoch)
        self.pacer.leave(writing=bool(self._writing))
        self.ask_at = self.pacer.ask_at

    def _write(self) -> None:
        for due_s, pending in list(self._writing):
            if self.clock.monotonic_s() >= due_s:
                self._writing.remove((due_s, pending))
                pending.note_durable(f"id-{pending.step}")


def alternating(step: int) -> float:
    return 0.001 if step // 500 % 2 else 0.03


class TestLooks:
    @pytest.mark.parametrize(
        "step_s", [1e-6, 1e-3, 0.03, 2.0, 4000.0, pytest.param(alternating, id="alternating")], ids=str
    )
    @pytest.mark.parametrize(
        "trigger",
        [
            every(steps=1),
            every(steps=2),
            every(steps=7),
            every(steps=1000),
            every(steps=7) & every(steps=5),
            never(),
            when(lambda moment: moment.step % 11 == 0),
            every(epochs=1),
            on_best("loss"),
        ],
        ids=repr,
    )
    def test_looking_only_where_it_was_asked_for_finds_the_same_steps(self, trigger, step_s):
        def epoch(step: int) -> int:
            return step // 100

        def loss(step: int) -> float | None:
            return 1 / step + 0.05 * (step * 7 % 11) if step % 4 == 0 else None

        rarely = Loop(trigger, step_s).run(3000, epoch=epoch, loss=loss)
        everywhere = Loop(trigger, step_s, everywhere=True).run(3000, epoch=epoch, loss=loss)

        assert rarely.saved == everywhere.saved
        assert bool(rarely.saved) == (trigger != never())

    @pytest.mark.parametrize("seconds", [0.5, 10, 100])
    @pytest.mark.parametrize("step_s", [1e-3, 0.03, 0.5, 7.0])
    def test_a_time_trigger_is_found_at_the_same_steps(self, step_s, seconds):
        rarely = Loop(every(seconds=seconds), step_s).run(5000)
        everywhere = Loop(every(seconds=seconds), step_s, everywhere=True).run(5000)

        assert rarely.saved == everywhere.saved

    def test_a_fast_loop_is_looked_at_rarely(self):
        loop = Loop(every(hours=1), step_s=1e-5).run(100_000)

        # A time trigger wants to be asked after a hundred steps at most.
        assert len(loop.looked) < 1200

    def test_a_loop_with_nothing_to_look_at_is_not_looked_at(self):
        assert Loop(never()).run(1000).looked == [1]

    def test_the_automatic_interval_costs_few_looks(self):
        loop = Loop(OFTEN, step_s=1e-4, stall_s=0.02).run(200_000)

        assert len(loop.saved) >= 5
        assert len(loop.looked) < 1.5 * 200_000 * 1e-4 / 0.1

    def test_the_gap_between_two_looks_grows_at_most_twofold(self):
        loop = Loop(never(), step_s=1e-4, limit_s=1e6).run(20_000)

        gaps = np.diff(loop.looked)
        assert (gaps[1:] <= 2 * gaps[:-1]).all()
        assert gaps.max() == pytest.approx(1000, abs=1)

    def test_there_are_never_more_than_a_thousand_steps_between_two_looks(self):
        loop = Loop(never(), step_s=1e-7, limit_s=1e6).run(20_000)

        assert np.diff(loop.looked).max() == 1000

    @pytest.mark.parametrize("factor", [1000, 1 / 1000])
    def test_a_loop_that_becomes_a_thousand_times_slower_or_faster_is_followed(self, factor):
        before_s = 1e-4 if factor > 1 else 0.1
        loop = Loop(never(), step_s=lambda step: before_s if step <= 10_000 else before_s * factor, limit_s=1e9)

        loop.run(10_000 + 60_000)

        late = [look for look in loop.looked if look > 10_000]
        gaps = np.diff(late)
        # At most one gap is as long as the steps were fast; then it is a tenth of a second again.
        assert late[0] - 10_000 <= 1000
        assert gaps[-1] == pytest.approx(max(1, min(1000, 0.1 / (before_s * factor))), abs=1)
        if factor > 1:
            assert sum(gap > 1 for gap in gaps) <= 10

    def test_an_own_trigger_that_names_nonsense_is_asked_at_the_next_step(self):
        class Odd(Trigger):
            def decide(self, moment: Moment) -> Decision:
                return Decision(moment.step == 9, "odd", ask_at=[math.nan, -1, moment.step][moment.step % 3])

        assert Loop(Odd(), step_s=1e-5).run(20).saved == [9]

    def test_an_own_trigger_that_says_nothing_of_the_next_step_is_asked_there_after_it_was_due(self):
        class Thirds(Trigger):
            def decide(self, moment: Moment) -> Decision:
                target = moment.since_step // 3 * 3 + 3
                return Decision(moment.step >= target, "a third", ask_at=math.inf if moment.step >= target else target)

        assert Loop(Thirds(), step_s=1e-5).run(20).saved == [3, 6, 9, 12, 15, 18]


class TestSaves:
    def test_a_save_by_the_program_itself_counts(self):
        loop = Loop(every(steps=10)).run(9)
        loop.save()

        loop.run(4)

        assert loop.saved == [9, 10]
        assert loop.pacer.saved == 2

    def test_the_time_counts_from_the_begin_of_the_save_of_the_program(self):
        loop = Loop(every(seconds=10), step_s=1.0, stall_s=3.0).run(6)
        loop.save()

        loop.run(12)

        # Saved at 6 s, until 9 s: due at 16 s, which is the seventh step after it.
        assert loop.saved == [6, 13]

    def test_what_the_program_spends_on_its_own_saves_is_not_blamed_on_its_steps(self):
        loop = Loop(every(seconds=1e6), step_s=0.01, stall_s=5.0)
        for _ in range(20):
            loop.run(7)
            loop.save()

        assert loop.pacer.peek(loop.step + 1, None, NOTHING).due is False
        assert loop.pacer._steps.usual_s == pytest.approx(0.01)
        assert loop.pacer._steps.longest_s == pytest.approx(0.01)

    def test_a_save_that_failed_is_not_tried_again_before_the_next_is_due(self):
        loop = Loop(every(steps=10), fails=lambda step: step == 20).run(35)

        assert loop.saved == [10, 20, 30]

    def test_saves_that_fail_do_not_keep_the_tuner_from_an_interval(self):
        loop = Loop(OFTEN, stall_s=0.5, fails=lambda step: True).run(20_000)

        assert loop.pacer.tuner.interval_steps > 100
        assert len(loop.saved) >= 2

    def test_one_that_is_left_out_is_made_as_soon_as_there_is_room_and_counted_once(self):
        loop = Loop(every(steps=10), is_full=lambda step: 20 <= step <= 24).run(40)

        assert loop.saved == [10, 25, 30, 40]
        assert loop.pacer.skipped == 1

    def test_each_that_becomes_due_meanwhile_counts(self):
        loop = Loop(every(steps=10), is_full=lambda step: 20 <= step <= 44).run(60)

        assert loop.saved == [10, 45, 50, 60]
        assert loop.pacer.skipped == 3

    def test_every_step_that_is_left_out_counts_where_every_step_is_due(self):
        assert Loop(every(steps=1), is_full=lambda step: step > 5).run(30).pacer.skipped == 25

    def test_one_that_is_infinite_is_not_the_best_for_ever(self):
        losses = {1: 5.0, 2: -math.inf, 3: 4.0, 4: 3.0}

        assert Loop(on_best("loss")).run(4, loss=losses.get).saved == [1, 3, 4]

    def test_a_best_one_that_is_left_out_does_not_stand_in_the_way_of_the_next(self, caplog):
        losses = {1: 5.0, 2: 3.0, 3: 4.0, 4: 4.5}
        loop = Loop(on_best("loss"), is_full=lambda step: step == 2).run(4, loss=losses.get)

        assert loop.saved == [1, 3]
        assert "step 2 is left out" in caplog.text

    def test_a_restore_begins_the_time_anew(self):
        loop = Loop(every(minutes=10), step_s=1.0).run(595)

        loop.restore(3)
        loop.run(700)

        assert loop.saved == [603]

    def test_after_a_restore_multiples_count(self):
        loop = Loop(every(steps=10))
        loop.restore(17, 1)

        loop.run(30)

        assert loop.saved == [20, 30, 40]

    def test_the_epoch_of_what_was_restored_is_not_saved_again(self):
        loop = Loop(every(epochs=1))
        loop.restore(250, 2)

        loop.run(150, epoch=lambda step: step // 100)

        assert loop.saved == [300, 400]

    def test_a_save_by_the_program_without_an_epoch_is_one_of_the_epoch_that_it_is_in(self):
        loop = Loop(every(epochs=1)).run(13, epoch=lambda step: step // 10)
        loop.save()

        loop.run(27, epoch=lambda step: step // 10)

        assert loop.saved == [10, 13, 20, 30, 40]

    def test_a_save_after_a_step_without_an_epoch_is_one_of_the_epoch_that_was_saved_last(self):
        def at_ends(step):
            return step // 10 if step % 10 == 0 else None

        loop = Loop(every(epochs=2)).run(25, epoch=at_ends)
        loop.save()

        loop.run(15, epoch=at_ends)

        assert loop.saved == [20, 25, 40]


class TestMetrics:
    @pytest.mark.parametrize(
        "of",
        [
            float,
            np.float32,
            np.float64,
            np.array,
            torch.tensor,
            lambda value: torch.tensor(value, requires_grad=True),
            lambda value: torch.tensor([value]),
        ],
        ids=["float", "float32", "float64", "array", "tensor", "with gradient", "one element"],
    )
    def test_scalars_of_all_kinds_are_numbers(self, of):
        losses = [3.0, 4.0, 2.0, 2.0, 1.0]
        loop = Loop(on_best("loss")).run(5, loss=lambda step: of(losses[step - 1]))

        assert loop.saved == [1, 3, 5]

    @pytest.mark.parametrize(
        "bad", ["text", None, torch.zeros(3), pytest.param(object(), id="object"), math.nan, 10**400, [1.0]], ids=repr
    )
    def test_what_is_no_number_is_never_the_best_and_ends_nothing(self, bad):
        loop = Loop(on_best("loss")).run(4, loss=lambda step: bad if step % 2 else 1 / step)

        assert loop.saved == [2, 4]

    def test_a_number_that_cannot_be_had_ends_nothing(self):
        class Lost:
            def __float__(self) -> float:
                raise KeyError("the device is gone")

        assert Loop(on_best("loss")).run(3, loss=lambda step: Lost()).saved == []

    def test_metrics_that_nobody_wants_are_not_fetched(self):
        class Far:
            def item(self) -> float:
                fetched.append(self)
                return 1.0

        fetched: list[Far] = []
        loop = Loop(every(steps=2)).run(4, loss=lambda step: Far())

        assert loop.saved == [2, 4]
        assert fetched == []

    @pytest.mark.parametrize(("mode", "saved"), [("min", [3]), ("max", [4])])
    def test_the_best_goes_on_from_the_checkpoint_that_was_restored(self, mode, saved):
        values = [0.5, 0.4, 0.2, 0.8]
        loop = Loop(on_best("score", mode))
        loop.restore(0, score=0.3 if mode == "min" else 0.7)

        loop.run(4, score=lambda step: values[step - 1])

        assert loop.saved == saved

    def test_a_restore_forgets_what_was_seen_after_that_checkpoint(self):
        loop = Loop(on_best("loss")).run(3, loss=lambda step: 1 / step)
        loop.restore(1, loss=1.0, other=math.nan)

        loop.run(2, loss=lambda step: 1 / step)

        assert loop.saved == [1, 2, 3, 2, 3]


class TestPeek:
    @pytest.mark.parametrize(
        "trigger", [every(steps=3), every(seconds=0.25), on_best("loss"), every(steps=4) | every(steps=6)], ids=repr
    )
    def test_a_peek_says_what_the_next_step_does_and_changes_nothing(self, trigger):
        loop, twin = Loop(trigger, step_s=0.0), Loop(trigger, step_s=0.1)
        for step in range(1, 30):
            loop.clock.advance(0.1)
            peeked = [loop.pacer.peek(step, None, {"loss": 1 / step}) for _ in range(3)]
            before = len(loop.saved)
            loop.run(1, loss=lambda step: 1 / step)

            assert peeked == peeked[:1] * 3
            assert peeked[0].due == (len(loop.saved) > before)
        twin.run(29, loss=lambda step: 1 / step)
        assert loop.saved == twin.saved
        assert loop.journal == twin.journal

    def test_a_peek_tells_of_the_end_of_the_job(self):
        loop = Loop(never(), limit_s=1000.0, step_s=1.0).run(50)
        assert loop.pacer.peek(51, None, NOTHING).due is False

        loop.limit.end_s = 80.0

        decision = loop.pacer.peek(51, None, NOTHING)
        assert decision.due
        assert "left" in decision.reason


class TestErrors:
    def test_an_exception_is_due_at_the_step_it_came_after_though_nobody_looked_there(self):
        loop = Loop(never() | on_error()).run(100)
        loop.save()
        loop.run(50)

        decision = loop.pacer.due_on_error(150, "RuntimeError: lost")

        assert loop.looked == [1]
        assert decision.due
        assert "RuntimeError: lost" in decision.reason

    def test_nothing_is_due_where_nothing_was_done_since(self):
        loop = Loop(every(steps=100) | on_error()).run(100)

        assert not loop.pacer.due_on_error(100, "RuntimeError: lost").due

    def test_nothing_is_due_where_nobody_asked_for_it(self):
        loop = Loop(every(steps=100)).run(150)

        assert not loop.pacer.due_on_error(150, "RuntimeError: lost").due


class TestAutomatic:
    def test_the_journal_hears_of_changes_only(self):
        loop = Loop(OFTEN, step_s=0.01, stall_s=0.05, durable_s=0.3).run(100_000)

        paced = loop.events("paced")
        assert len(loop.saved) > 50
        assert 2 <= len(paced) < len(loop.saved) / 5
        kept = [((event["interval_steps"], event["won"]), event["profile"]["base_s"]) for event in paced]
        assert all(was != now or base_s > 2 * max(60, was_s) for (was, was_s), (now, base_s) in pairwise(kept))

    def test_one_that_is_killed_leaves_at_least_half_of_its_time_to_the_next(self):
        loop = Loop(OFTEN, step_s=0.1, stall_s=30.0, durable_s=0.3)

        for _ in range(20):
            loop.run(1000)

            told_s = loop.events("paced")[-1]["profile"]["base_s"]
            assert told_s >= 0.1 * loop.step / 2 - 60
        assert len(loop.events("paced")) < 20

    def test_noise_does_not_fill_the_journal(self):
        noise = np.random.default_rng(0).lognormal(sigma=0.5, size=200_000)
        loop = Loop(OFTEN, step_s=lambda step: 0.01 * noise[step - 1], stall_s=0.05, durable_s=0.3).run(200_000)

        assert len(loop.events("paced")) < len(loop.saved) / 3

    def test_the_interval_is_told_with_all_that_explains_it(self):
        loop = Loop(auto(overhead=0.02), step_s=0.01, stall_s=0.05, durable_s=0.3).run(50_000)

        last = loop.events("paced")[-1]
        assert set(last) == {
            *("event", "step", "elapsed_s", "interval_steps", "won", "why", "rules", "step_s", "stall_s", "slow_s"),
            *(
                "durable_s",
                "queued_s",
                "overhead_window",
                "overhead_run",
                "limit",
                "mtbf_s",
                "risk",
                "saved",
                "skipped",
            ),
            *("profile", "margin"),
        }
        assert last["limit"] == 0.02
        assert last["step_s"] == pytest.approx(0.01, rel=0.05)
        assert last["stall_s"] == pytest.approx(0.05)
        assert last["durable_s"] == pytest.approx(0.35, rel=0.1)
        assert {rule["name"] for rule in last["rules"]} == {"durable", "overhead", "failures", "lose_at_most"}

    def test_the_limit_of_the_overhead_is_held(self):
        loop = Loop(auto(overhead=0.02, lose_at_most=None), step_s=0.01, stall_s=0.05, durable_s=0.3).run(100_000)

        assert len(loop.saved) * 0.05 / loop.clock.monotonic_s() < 0.02

    def test_the_tuner_knows_the_risk(self):
        risks = [1.0]
        clock = FakeClock()
        pacer = Pacer(auto(), clock, note=lambda event, **details: None, risk=lambda: risks[0])
        pacer.look(1, None, NOTHING, writing=False)
        assert pacer.tuner.risk == 1.0

        for risk, held in ((8.0, 8.0), (math.nan, 1.0), (0.1, 1.0), (math.inf, 1.0)):
            risks[0] = risk
            pacer.look(2, None, NOTHING, writing=False)
            assert pacer.tuner.risk == held

    def test_the_automatic_one_is_found_among_others(self):
        loop = Loop((every(steps=50) & every(steps=100)) | (auto(overhead=0.5) | never()), stall_s=0.01).run(2000)

        assert loop.pacer.tuner is not None
        assert 100 in loop.saved

    def test_the_next_attempt_begins_with_what_this_one_measured(self):
        first = Loop(auto(), step_s=0.01, stall_s=0.05, durable_s=0.3).run(50_000)
        first.pacer.close()
        past = read_past([{**event, "attempt": 1} for event in first.journal], attempt=2)

        second = Loop(auto(), step_s=0.01, stall_s=0.05, durable_s=0.3, past=past)

        learnt = first.pacer.tuner.interval_steps
        assert second.pacer.tuner.interval_steps == pytest.approx(learnt, rel=0.25)
        # It need not make one early to see what it costs.
        second.run(12_000)
        assert second.saved[0] == pytest.approx(learnt, rel=0.3)
        assert first.saved[0] < learnt / 2

    def test_what_the_next_attempt_finds_otherwise_it_corrects(self):
        first = Loop(OFTEN, step_s=0.01, stall_s=0.05, durable_s=0.3).run(50_000)
        first.pacer.close()
        past = read_past([{**event, "attempt": 1} for event in first.journal], attempt=2)

        second = Loop(OFTEN, step_s=0.01, stall_s=0.5, durable_s=3.0, past=past).run(300_000)
        fresh = Loop(OFTEN, step_s=0.01, stall_s=0.5, durable_s=3.0).run(300_000)

        assert second.pacer.tuner.interval_steps == pytest.approx(fresh.pacer.tuner.interval_steps, rel=0.25)
        assert second.pacer.tuner.interval_steps > 1.5 * first.pacer.tuner.interval_steps

    @pytest.mark.parametrize(
        "garbage",
        [
            "text",
            7,
            [1, 2],
            {"step_s": "fast", "stall_s": -1, "durable_s": math.nan, "interval_steps": True, "saved": 1.5},
            {"step_s": math.inf, "stall_s": 10**400, "slow_s": None, "steps": -3},
            {"step_s": 0.0, "stall_s": 0.0, "slow_s": 0.0, "durable_s": 0.0, "interval_steps": 0},
        ],
        ids=repr,
    )
    def test_a_profile_of_nonsense_is_no_profile(self, garbage):
        loop = Loop(OFTEN, stall_s=0.05, durable_s=0.3, past=Past(profile=garbage, margin=garbage)).run(50_000)
        fresh = Loop(OFTEN, stall_s=0.05, durable_s=0.3).run(50_000)

        assert loop.pacer.tuner.interval_steps == pytest.approx(fresh.pacer.tuner.interval_steps, rel=0.25)

    def test_closing_leaves_a_profile_though_nothing_changed_at_the_end(self):
        loop = Loop(OFTEN, stall_s=0.05, durable_s=0.3).run(50_000)
        told = len(loop.events("paced"))

        loop.pacer.close()

        assert len(loop.events("paced")) == told + 1
        assert loop.events("paced")[-1]["saved"] == len(loop.saved)

    def test_without_the_automatic_one_the_journal_hears_nothing(self):
        loop = Loop(every(steps=10)).run(100)
        loop.pacer.close()

        assert loop.journal == []


class TestDeadlines:
    def test_a_job_saves_and_stops_while_there_is_time_for_it(self):
        loop = Loop(never(), step_s=1.0, limit_s=60.0).run(100)

        assert loop.stopped is not None
        assert loop.stopped.saves
        assert loop.stopped.waits
        assert "left" in loop.stopped.why
        # Nothing is known of what a checkpoint costs: a quarter of the time with a margin is left for it.
        assert 28 <= loop.step <= 34

    def test_in_a_long_job_half_a_minute_is_left_for_an_unknown_checkpoint(self):
        loop = Loop(never(), step_s=1.0, limit_s=600.0).run(1000)

        assert loop.stopped.saves
        assert 543 <= loop.step <= 551

    def test_what_checkpoints_took_is_known_and_the_job_goes_on_longer(self):
        loop = Loop(every(steps=5), step_s=1.0, stall_s=0.1, durable_s=1.5, limit_s=60.0).run(100)

        assert loop.stopped.saves
        assert 42 <= loop.step <= 52

    def test_what_they_took_in_the_last_attempt_is_known_too(self):
        past = Past(profile={"durable_s": 1.0}, margin={"factor": 1.2, "saves": 9})
        loop = Loop(never(), step_s=1.0, limit_s=60.0, past=past).run(100)

        assert loop.stopped.saves
        assert 50 <= loop.step <= 54

    @pytest.mark.parametrize("durable_s", [1.0, "long", None, -1.0])
    def test_so_is_what_the_last_save_of_a_stopped_attempt_took(self, durable_s):
        loop = Loop(every(steps=1000), step_s=1.0, limit_s=60.0, past=Past(durable_s=durable_s)).run(100)

        assert loop.step > 50 if durable_s == 1.0 else loop.step < 35

    def test_a_stall_is_counted_once(self):
        # In the foreground: the call is the whole of it.
        loop = Loop(when(lambda moment: moment.step in (5, 10)), step_s=0.1, stall_s=10.0, limit_s=200.0).run(2000)

        left_s = loop.limit.left_s()
        assert loop.stopped.saves
        assert 10 * 1.2 < left_s < 10 * 1.5 + 6

    def test_with_too_little_time_the_last_snapshot_is_waited_for(self):
        loop = Loop(every(steps=10), step_s=1.0, durable_s=8.0, limit_s=1e6).run(35)

        loop.limit.end_s = loop.clock.monotonic_s() + 12.0
        loop.run(1)

        assert loop.stopped.ending.action is Action.FLUSH
        assert (loop.stopped.saves, loop.stopped.waits) == (False, True)

    def test_with_nearly_none_there_is_only_a_report(self):
        loop = Loop(every(steps=10), step_s=1.0, durable_s=8.0, limit_s=1e6).run(35)

        loop.limit.end_s = loop.clock.monotonic_s() + 3.0
        loop.run(1)

        assert loop.stopped.ending.action is Action.REPORT
        assert (loop.stopped.saves, loop.stopped.waits) == (False, False)

    def test_a_job_that_will_be_done_before_goes_on(self):
        loop = Loop(every(steps=5), step_s=1.0, durable_s=1.5, limit_s=60.0, total_steps=48).run(48)

        assert loop.stopped is None
        assert loop.events("deadline")[-1]["decided"] == "finish"

    def test_and_stops_where_it_will_not_be_done(self):
        loop = Loop(every(steps=5), step_s=1.0, durable_s=1.5, limit_s=60.0, total_steps=80).run(80)

        assert loop.stopped is not None

    @pytest.mark.parametrize("action", Action)
    def test_what_to_do_follows_from_the_action(self, action):
        look = Look(Decision(due=True, reason="due"), Ending(action, "the end"))

        assert look.stops == (action in (Action.SAVE_AND_STOP, Action.FLUSH, Action.REPORT))
        assert look.saves == (action is Action.SAVE_AND_STOP)
        assert look.waits == (action in (Action.SAVE_AND_STOP, Action.FLUSH))
        assert look.why == "the end"

    def test_without_a_limit_nothing_ends(self):
        look = Look(Decision(due=False, reason="not yet"))

        assert (look.stops, look.saves, look.waits, look.why) == (False, False, False, "not yet")

    def test_the_journal_hears_of_the_limit_of_its_change_and_of_the_end(self):
        loop = Loop(every(steps=5), step_s=1.0, durable_s=0.5, limit_s=600.0).run(100)
        loop.limit.end_s = 1200.0
        loop.run(100)
        loop.limit.end_s = 1230.0  # not worth a line
        loop.run(2000)

        told = [(event["decided"], round(event["left_s"])) for event in loop.events("deadline")]
        assert [decided for decided, _ in told] == ["go on", "go on", "save and stop"]
        assert told[0][1] == 599
        assert told[1][1] == 1099
        assert {event["source"] for event in loop.events("deadline")} == {"the test"}

    @pytest.mark.parametrize("end_s", [None, math.inf, math.nan])
    def test_a_limit_that_nobody_knows_ends_nothing_and_is_not_told(self, end_s):
        loop = Loop(every(steps=5), step_s=1.0, limit_s=1.0)
        loop.limit.end_s = end_s

        loop.run(100)

        assert loop.stopped is None
        assert loop.events("deadline") == []

    def test_a_limit_that_is_lifted_is_told(self):
        loop = Loop(every(steps=5), step_s=1.0, limit_s=600.0).run(10)
        loop.limit.end_s = math.inf

        loop.run(2000)

        assert loop.stopped is None
        assert [event["left_s"] for event in loop.events("deadline")] == [599.0, None]

    def test_one_that_was_over_from_the_beginning_stops_at_the_first_step(self):
        loop = Loop(never(), step_s=1.0, limit_s=0.0).run(5)

        assert loop.step == 1
        assert loop.stopped.ending.action is Action.REPORT


def test_threads_that_have_no_core_while_a_checkpoint_is_written_are_measured_and_kept() -> None:
    loop = Loop(auto(lose_at_most=None, at_least_every_steps=1), step_s=0.1, stall_s=0.5, durable_s=2.0)
    others, ours = 0.01, 0.2  # of each second: always, and while something is written
    queued_s = [0.0]
    loop.pacer = Pacer(loop.trigger, loop.clock, note=loop.note, queued=lambda: queued_s[0])
    for _ in range(2000):
        queued_s[0] += 0.1 * (others + ours * bool(loop._writing))
        loop.run(1)
    loop.pacer.close()

    profile = loop.journal[-1]["profile"]
    assert isinstance(profile, dict)
    assert profile["queued_s"] == pytest.approx(0.2 * 2.0, rel=0.1)
