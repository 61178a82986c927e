"""When a training is checkpointed, through the front class: every=, step, due, exceptions, the end of its time."""

import gc
import logging
import math
import os
import re
import signal
import time
import weakref
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import numpy as np
import pytest
import torch

import holdfast
from holdfast.agent.exiting import wait_for_dropped
from holdfast.policy.auto import auto
from holdfast.testing import FakeClock, Fault, FaultyFiles
from tests.background.conftest import root as arena_root
from tests.background.rig import Program, agents_of, events, steps, until

root = arena_root

RESTART_STATUS = 85


@pytest.fixture
def run(tmp_path: Path) -> Path:
    return tmp_path / "run"


@pytest.fixture(autouse=True)
def no_limit_from_outside(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in list(os.environ):
        if name.startswith(("HOLDFAST_TIME", "HOLDFAST_DEADLINE", "SLURM_", "_CONDOR")):
            monkeypatch.delenv(name)


class NoLastCall:
    """A thread that sleeps by the machine's clock would end these tests when a fake one says that the time is over."""

    def __init__(self, *callbacks: object) -> None:
        pass

    def start(self) -> None:
        pass

    def look_again(self) -> None:
        pass

    def close(self) -> None:
        pass


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> FakeClock:
    monkeypatch.setattr("holdfast.engine.pace.LastCall", NoLastCall)
    # The seconds that this clock leaves are no measure of how long a busy machine takes to save.
    monkeypatch.setattr("holdfast.engine.pace.Pace.wait_s", lambda pace: 60.0)
    return FakeClock()


def open_run(run: Path, **options: object) -> holdfast.Checkpointer:
    options.setdefault("keep", holdfast.KEEP_ALL)
    return holdfast.Checkpointer(run, {"w": np.zeros(10)}, **options)


def train(
    ckpt: holdfast.Checkpointer, count: int, clock: FakeClock | None = None, step_s: float = 1.0, **metrics: object
) -> list[int]:
    """The steps that were saved."""
    saved = []
    for _ in range(count):
        if clock is not None:
            clock.advance(step_s)
        pending = ckpt.step(**metrics)
        if pending is not None:
            saved.append(pending.step)
            # Steps of no length would not wait for a busy machine, and leave out what is due.
            pending.settle(60)
    return saved


class TestEvery:
    @pytest.mark.parametrize(
        ("every", "saved"),
        [
            (4, [4, 8, 12]),
            (np.int64(4), [4, 8, 12]),
            (holdfast.every(steps=5), [5, 10]),
            (holdfast.every(seconds=5), [5, 10]),
            ("5 s", [5, 10]),
            ("0:00:05", [5, 10]),
            (timedelta(seconds=5), [5, 10]),
            pytest.param(lambda moment: moment.step in (3, 7), [3, 7], id="a function"),
            (holdfast.when(lambda moment: "third" if moment.step == 3 else ""), [3]),
            (holdfast.every(steps=6) | holdfast.every(steps=4), [4, 6, 8, 12]),
            (holdfast.never(), []),
            (None, []),
        ],
        ids=repr,
    )
    def test_it_takes_what_says_when(self, run, clock, every, saved):
        with open_run(run, every=every, clock=clock) as ckpt:
            assert train(ckpt, 12, clock) == saved
        assert steps(run) == saved

    @pytest.mark.parametrize("options", [{}, {"every": "auto"}, {"every": auto()}], ids=str)
    def test_automatic_is_the_default(self, run, clock, options):
        with open_run(run, clock=clock, **options) as ckpt:
            assert "measured" in ckpt.due().reason
            saved = train(ckpt, 60, clock, step_s=0.1)

        # After five seconds, to see what one costs, which is nothing by this clock.
        assert saved[0] in range(50, 54)
        assert events(run, "paced")[-1]["saved"] == len(saved)

    @pytest.mark.parametrize(
        "every",
        [0, -1, True, 1.5, "", "500", "soon", "Auto", "0 s", "-5 min", timedelta(0), timedelta(-1), math.nan, [], {}],
        ids=repr,
    )
    def test_what_makes_no_sense_is_refused_before_anything_is_made(self, run, every):
        with pytest.raises(holdfast.UsageError, match="every is "):
            open_run(run, every=every)

        assert not run.exists()

    @pytest.mark.parametrize("every", [holdfast.every, lambda: True, np.zeros(3)], ids=["every", "no moment", "array"])
    def test_neither_are_functions_and_arrays_that_cannot_be_asked(self, run, every):
        with pytest.raises(holdfast.UsageError):
            open_run(run, every=every)

        assert not run.exists()

    @pytest.mark.parametrize("option", [{"overhead": 0}, {"overhead": 1.1}, {"lose_at_most": "often"}], ids=str)
    def test_nor_limits_of_the_automatic_one_that_nobody_can_hold(self, run, option):
        with pytest.raises(holdfast.UsageError, match="auto"):
            open_run(run, every=auto(**option))

        assert not run.exists()

    def test_a_function_that_fails_ends_nothing(self, run):
        def careless(moment: holdfast.Moment) -> bool:
            return moment.metrics["val_loss"] < 1

        with open_run(run, every=careless) as ckpt:
            assert train(ckpt, 5) == []
            assert "careless raised KeyError" in ckpt.due().reason
            assert train(ckpt, 1, val_loss=0.5) == [6]

    def test_after_a_restore_the_multiples_count(self, run):
        with open_run(run, every=10) as ckpt:
            train(ckpt, 7)
            ckpt.save(step=7)
        with open_run(run, every=10) as ckpt:
            assert ckpt.restore().step == 7
            assert train(ckpt, 30) == [10, 20, 30]

    def test_a_rollback_counts_from_where_it_went_to(self, run, clock):
        with open_run(run, every="100 s", clock=clock) as ckpt:
            assert train(ckpt, 250, clock) == [100, 200]
            ckpt.restore(100)
            assert train(ckpt, 250, clock) == [200, 300]

    def test_a_save_by_the_program_counts(self, run):
        with open_run(run, every=10) as ckpt:
            train(ckpt, 12)
            ckpt.save(step=12)
            assert train(ckpt, 9) == [20]

    def test_a_step_that_the_program_has_just_saved_is_not_saved_again(self, run):
        with open_run(run, every=10) as ckpt:
            train(ckpt, 9)
            ckpt.save(step=10)
            assert train(ckpt, 5) == []

    def test_a_new_best_is_saved_and_a_restart_knows_the_old_one(self, run):
        losses = iter([3.0, 4.0, 2.0, 2.5])
        with open_run(run, every=holdfast.on_best("loss")) as ckpt:
            saved = [ckpt.step(loss=torch.tensor(loss)) for loss in losses]
            assert [pending is not None for pending in saved] == [True, False, True, False]
        with open_run(run, every=holdfast.on_best("loss")) as ckpt:
            ckpt.restore()
            assert train(ckpt, 1, loss=2.2) == []
            assert train(ckpt, 1, loss=1.9) == [5]

    def test_epochs(self, run):
        with open_run(run, every=holdfast.every(epochs=2)) as ckpt:
            saved = [step for epoch in range(5) for step in _steps(ckpt, 10, epoch)]
        assert saved == [21, 41]
        with open_run(run, every=holdfast.every(epochs=2)) as ckpt:
            assert ckpt.restore().epoch == 4
            assert _steps(ckpt, 10, 5) == []
            assert _steps(ckpt, 10, 6) == [52]

    @pytest.mark.parametrize("epoch", ["two", 1.5, -1, True])
    def test_an_epoch_that_is_none_is_refused(self, run, epoch):
        with open_run(run, every=holdfast.every(epochs=1)) as ckpt:
            with pytest.raises(holdfast.UsageError, match="epoch is"):
                ckpt.step(epoch=epoch)

    def test_a_save_that_fails_is_made_up_for_when_the_next_is_due(self, run):
        files = FaultyFiles()
        with open_run(run, every=10, files=files) as ckpt:
            assert train(ckpt, 10) == [10]
            files.plan.append(Fault(at=len(files.calls), error=28, lasting=True, methods={"sync"}))
            assert train(ckpt, 10) == [20]
            files.plan.clear()
            assert train(ckpt, 10) == [30]
        assert steps(run) == [10, 30]

    def test_a_closed_one_counts_no_steps(self, run):
        ckpt = open_run(run, every=1000)
        train(ckpt, 3)
        ckpt.close()

        for call in (ckpt.step, ckpt.due):
            with pytest.raises(holdfast.UsageError, match="closed"):
                call()

    @pytest.mark.parametrize("background", ["process", "thread"])
    def test_what_is_due_while_two_are_on_their_way_is_left_out_and_made_when_there_is_room(
        self, run, root, background
    ):
        with open_run(run, every=10, background=background) as ckpt:
            full = [True]
            ckpt._stager.background.is_full = lambda: full[0]
            assert train(ckpt, 24) == []
            assert ckpt.status().skipped == 2
            full[0] = False
            assert train(ckpt, 10) == [25, 30]
            assert ckpt.status().skipped == 2


def _steps(ckpt: holdfast.Checkpointer, count: int, epoch: int) -> list[int]:
    found = [ckpt.step(epoch=epoch) for _ in range(count)]
    return [pending.step for pending in found if pending is not None]


class TestTheEnd:
    @pytest.mark.parametrize("every", ["auto", auto() | holdfast.every(steps=4)], ids=["auto", "auto or steps"])
    def test_where_it_is_left_to_us_when_to_save_the_end_is_saved(self, run, clock, every):
        with open_run(run, every=every, clock=clock) as ckpt:
            train(ckpt, 7, clock)

        assert steps(run)[-1] == 7
        assert holdfast.Checkpointer(run, {"w": np.zeros(10)}).restore().note == "the end of the program"

    def test_it_has_the_metrics_of_the_last_step(self, run):
        with open_run(run) as ckpt:
            for loss in (3.0, 2.0, 1.5):
                ckpt.step(loss=loss, val_loss=None)

        assert holdfast.Checkpointer(run, {"w": np.zeros(10)}).restore().metrics == {"loss": 1.5}

    def test_it_has_the_epoch_of_the_last_step_and_a_restart_does_not_save_that_again(self, run):
        every = auto() | holdfast.every(epochs=1)
        with open_run(run, every=every) as ckpt:
            assert _steps(ckpt, 5, 1) == [1]

        with open_run(run, every=every) as ckpt:
            assert ckpt.restore().epoch == 1
            assert _steps(ckpt, 5, 1) == []
            assert _steps(ckpt, 5, 2) == [11]

    def test_an_epoch_that_makes_no_sense_does_not_keep_it_from_being_saved(self, run, clock, caplog):
        with open_run(run, every="auto", clock=clock) as ckpt:
            for epoch in [0] * 5000 + ["x"]:
                clock.advance(1e-6)
                ckpt.step(epoch=epoch)

        assert "without its epoch" in caplog.text
        restored = holdfast.Checkpointer(run, {"w": np.zeros(10)}).restore()
        assert (restored.step, restored.epoch) == (5001, None)

    def test_metrics_that_make_no_sense_do_not_keep_it_from_being_saved(self, run, caplog):
        with open_run(run) as ckpt:
            ckpt.step(loss=3.0)
            ckpt.step(loss="low")

        assert steps(run) == [2]
        assert "without its metrics" in caplog.text

    def test_one_that_was_left_out_is_made_at_the_end(self, run):
        with open_run(run, every=2, background="thread") as ckpt:
            is_full = ckpt._stager.background.is_full
            ckpt._stager.background.is_full = lambda: True
            for _ in range(5):
                ckpt.step()
            ckpt._stager.background.is_full = is_full

        assert steps(run) == [5]

    def test_it_is_not_saved_twice(self, run, clock):
        with open_run(run, clock=clock) as ckpt:
            train(ckpt, 7, clock)
            ckpt.save(step=7)

        assert steps(run) == [7]

    def test_nor_where_nothing_was_done_since_the_restore(self, run, clock):
        with open_run(run, clock=clock) as ckpt:
            train(ckpt, 7, clock)
        with open_run(run, clock=clock) as ckpt:
            ckpt.restore()

        assert steps(run) == [7]

    def test_nor_where_somebody_says_when_to_save(self, run, caplog):
        with open_run(run, every=4) as ckpt:
            train(ckpt, 7)

        assert steps(run) == [4]
        assert caplog.text == ""

    @pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt, SystemExit])
    def test_nor_at_an_exception(self, run, clock, error):
        with pytest.raises(error), open_run(run, clock=clock) as ckpt:
            train(ckpt, 7, clock)
            raise error

        assert steps(run) == []

    def test_one_that_fails_is_raised(self, run, clock):
        files = FaultyFiles()
        ckpt = open_run(run, clock=clock, files=files)
        train(ckpt, 7, clock)
        files.plan.append(Fault(at=len(files.calls), error=28, lasting=True, methods={"sync"}))

        with pytest.raises(holdfast.SaveFailedError, match="step 7"):
            ckpt.close()

    def test_a_trigger_that_waited_for_what_nobody_gave_is_said(self, run, caplog):
        with open_run(run, every=holdfast.on_best("val_loss")) as ckpt:
            train(ckpt, 7, valloss=1.0)

        assert "no checkpoint was made in 7 steps" in caplog.text
        assert "the metric 'val_loss' is not given at this step; the steps had valloss" in caplog.text

    def test_a_trigger_that_waited_for_a_metric_where_nobody_gave_any_is_said(self, run, caplog):
        with open_run(run, every=holdfast.on_best("val_loss")) as ckpt:
            train(ckpt, 7)

        assert "the metric 'val_loss' is not given at this step; no step had any metrics" in caplog.text

    def test_a_misspelt_metric_is_said_long_before_the_end(self, run, caplog):
        with open_run(run, every=holdfast.on_best("val_los")) as ckpt:
            train(ckpt, 10, val_loss=1.0)

            assert "on_best('val_los') follows a metric that no step has had so far" in caplog.text
            assert "step 10 has val_loss (did you mean 'val_loss'?)" in caplog.text


class TestOwnTriggers:
    @pytest.mark.parametrize("answer", [ZeroDivisionError(), RecursionError(), None, (True, "so"), "due"], ids=repr)
    @pytest.mark.parametrize("combined", [False, True])
    def test_one_that_fails_ends_nothing_and_is_said_once(self, run, caplog, answer, combined):
        class Own(holdfast.Trigger):
            def decide(self, moment):
                if isinstance(answer, Exception):
                    raise answer
                return answer

        with open_run(run, every=Own() | holdfast.every(steps=5) if combined else Own()) as ckpt:
            train(ckpt, 20)

        assert caplog.text.count("fails") == 1
        assert "this is said once" in caplog.text

    @pytest.mark.parametrize("steps", [10**400, 2**63])
    def test_more_steps_than_anybody_makes(self, run, steps):
        with open_run(run, every=steps) as ckpt:
            assert train(ckpt, 20) == []


class TestStop:
    def test_due_knows_of_it(self, run):
        with pytest.raises(SystemExit), open_run(run, every=None) as ckpt:
            train(ckpt, 2)
            assert not ckpt.due().due
            ckpt.stop("please")
            decision = ckpt.due()
            assert decision.due
            assert "please" in decision.reason
            ckpt.step()

        assert steps(run) == [3]

    def test_one_that_comes_at_the_end_of_a_look_is_not_lost(self, run, monkeypatch):
        ckpt = open_run(run, every=None)
        leave = ckpt._pace.leave

        def leave_and_be_asked(*, writing):
            leave(writing=writing)
            ckpt.stop("please")

        monkeypatch.setattr(ckpt._pace, "leave", leave_and_be_asked)
        ckpt.step()

        with pytest.raises(SystemExit):
            train(ckpt, 5)


@pytest.mark.parametrize("options", [{}, {"time_left": 1000}], ids=repr)
def test_one_that_is_dropped_is_let_go(run, options):
    """Or the run would be held, and the end of the program would be told to a store that is closed."""
    gc.disable()
    try:
        ckpt = open_run(run, **options)
        ckpt.save(step=1)
        train(ckpt, 3)
        dropped = weakref.ref(ckpt)
        del ckpt
        wait_for_dropped()
        assert dropped() is None
    finally:
        gc.enable()


class TestOptions:
    @pytest.mark.parametrize("function", [lambda step: 5, lambda: None, print], ids=["too many", "none", "any"])
    def test_functions_that_cannot_be_asked_are_refused(self, run, function):
        if function.__name__ == "<lambda>" and function.__code__.co_argcount:
            with pytest.raises(holdfast.UsageError, match="time_left: <lambda> cannot be called with nothing"):
                open_run(run, time_left=function)
        else:
            open_run(run, time_left=function).close()

    def test_a_name_that_is_nearly_right_is_recognised(self, run):
        with pytest.raises(holdfast.UsageError, match="did you mean 'every'"):
            open_run(run, evry=100)

    def test_a_step_does_not_take_its_number(self, run):
        with open_run(run) as ckpt, pytest.raises(holdfast.UsageError, match="counts by itself"):
            ckpt.step(step=5)

    @pytest.mark.parametrize("loss", ["low", [1.0], np.zeros(2)], ids=["text", "list", "array"])
    def test_a_metric_that_is_no_number_is_refused_at_the_first_step_though_nothing_is_due(self, run, loss):
        with open_run(run, every=1000) as ckpt, pytest.raises(holdfast.UsageError, match="expected a number"):
            ckpt.step(loss=loss)

    def test_the_values_of_metrics_are_not_asked_for_while_nothing_is_due(self, run):
        class OnADevice(float):
            def item(self) -> float:
                raise AssertionError("that would wait for the device")

        with open_run(run, every=1000) as ckpt:
            ckpt.step(loss=OnADevice(1.0))

    def test_a_metric_that_is_no_number_does_not_keep_a_stop_from_saving(self, run):
        with open_run(run, every=1000, on_stop="return") as ckpt:
            ckpt.step(loss=1.0)
            ckpt.stop()
            ckpt.step(loss="low")

        assert steps(run) == [2]


class TestTheStepOfASave:
    def test_where_step_counts_it_is_what_was_counted(self, run):
        with open_run(run, every=None) as ckpt:
            for _ in range(3):
                ckpt.step()
            assert ckpt.save().step == 3
        with open_run(run, every=None) as ckpt:
            ckpt.restore()
            assert ckpt.save(note="nothing was done").step == 3
            ckpt.step()
            assert ckpt.save().step == 4

    def test_where_nobody_counts_it_must_be_given(self, run):
        with open_run(run, every=None) as ckpt:
            with pytest.raises(holdfast.UsageError, match="not told which step this is") as refused:
                ckpt.save()
            assert "save(step=...)" in refused.value.hint
            ckpt.save(step=0)

    def test_a_program_that_counts_by_itself_is_not_taken_back_to_the_restored_step(self, run):
        with open_run(run, every=None) as ckpt:
            ckpt.save(step=5)
        with open_run(run, every=None) as ckpt:
            ckpt.restore()
            ckpt.save(step=9)
            with pytest.raises(holdfast.UsageError, match="step 5 comes after step 9"):
                ckpt.save()


class TestDue:
    @pytest.mark.parametrize(
        "every",
        [3, "2 s", holdfast.on_best("loss"), holdfast.every(steps=4) & holdfast.every(seconds=9), None],
        ids=repr,
    )
    def test_it_says_what_the_next_step_does(self, run, clock, every):
        losses = np.random.default_rng(0).random(200)
        with open_run(run, every=every, clock=clock) as ckpt:
            for loss in losses:
                clock.advance(0.4)
                first, second = ckpt.due(loss=loss), ckpt.due(loss=loss)
                assert first == second
                assert first.reason
                assert first.due == (ckpt.step(loss=loss) is not None)

    def test_it_changes_nothing(self, run, clock):
        asked, unasked = run / "a", run / "b"
        with open_run(asked, every="3 s", clock=clock) as ckpt:
            saved = []
            for _ in range(20):
                clock.advance(1.0)
                before = sorted(asked.rglob("*")), (asked / "journal.jsonl").read_bytes()
                ckpt.due()
                assert (sorted(asked.rglob("*")), (asked / "journal.jsonl").read_bytes()) == before
                pending = ckpt.step()
                saved += [] if pending is None else [pending.step]
        with open_run(unasked, every="3 s", clock=FakeClock()) as ckpt:
            twin = ckpt._session.clock
            assert train(ckpt, 20, twin) == saved

    def test_a_time_that_is_up_between_two_looks_is_found_by_the_step_after_it(self, run, clock):
        with open_run(run, every="10 min", clock=clock) as ckpt:
            train(ckpt, 5000, clock, step_s=1e-4)
            assert not ckpt.due().due
            clock.advance(700)

            assert ckpt.due().due
            assert ckpt.step() is not None


class TestErrors:
    def lose(self, run: Path, error: BaseException, every: object = None, **options: object) -> None:
        every = holdfast.every(steps=10) | holdfast.on_error() if every is None else every
        with pytest.raises(type(error)) as caught:
            with open_run(run, every=every, **options) as ckpt:
                train(ckpt, 15)
                raise error
        assert caught.value is error

    def test_what_was_done_is_saved_and_the_exception_goes_on(self, run):
        self.lose(run, RuntimeError("a bad batch"), tags=["mine"])

        assert steps(run) == [10, 15]
        with open_run(run) as ckpt:
            restored = ckpt.restore()
        assert restored.step == 15
        assert set(restored.checkpoint.tags) == {"mine", "error"}
        assert restored.note == "at RuntimeError"

    def test_it_has_the_epoch_of_the_last_step_and_a_restart_does_not_save_that_again(self, run):
        every = holdfast.every(epochs=1) | holdfast.on_error()
        with pytest.raises(RuntimeError):
            with open_run(run, every=every) as ckpt:
                assert _steps(ckpt, 5, 1) == [1]
                raise RuntimeError

        with open_run(run, every=every) as ckpt:
            assert ckpt.restore().epoch == 1
            assert _steps(ckpt, 5, 1) == []
            assert _steps(ckpt, 5, 2) == [11]

    def test_an_exception_without_a_text_is_one_too(self, run):
        class Mute(Exception):
            def __str__(self):
                raise RuntimeError

        self.lose(run, Mute())

        assert steps(run) == [10, 15]

    def test_nothing_is_saved_where_nobody_asked_for_it(self, run):
        self.lose(run, RuntimeError("a bad batch"), every=10)

        assert steps(run) == [10]

    @pytest.mark.parametrize("error", [KeyboardInterrupt(), SystemExit(3), GeneratorExit()], ids=repr)
    def test_a_program_that_is_asked_to_end_ends(self, run, error):
        self.lose(run, error)

        assert steps(run) == [10]

    def test_nothing_is_saved_twice(self, run):
        with pytest.raises(RuntimeError):
            with open_run(run, every=holdfast.every(steps=5) | holdfast.on_error()) as ckpt:
                train(ckpt, 5)
                raise RuntimeError
        assert steps(run) == [5]

    def test_nothing_is_saved_before_the_first_step(self, run):
        with pytest.raises(RuntimeError):
            with open_run(run, every=holdfast.on_error()):
                raise RuntimeError
        assert steps(run) == []

    def test_not_in_the_middle_of_a_step_of_an_optimizer(self, run, caplog):
        class HalfWay(torch.optim.SGD):
            def step(self, closure=None):
                with torch.no_grad():
                    self.param_groups[0]["params"][0].add_(1.0)
                raise RuntimeError("out of memory")

        first, second = torch.nn.Parameter(torch.zeros(2)), torch.nn.Parameter(torch.zeros(2))
        optimizer = HalfWay([first, second], lr=0.1)
        state = {"first": first, "second": second, "optimizer": optimizer}

        with pytest.raises(RuntimeError, match="out of memory"):
            with holdfast.Checkpointer(run, state, every=holdfast.every(steps=2) | holdfast.on_error()) as ckpt:
                train(ckpt, 3)
                optimizer.step()

        assert steps(run) == [2]
        assert "half done" in caplog.text

    @pytest.mark.parametrize("background", ["off", "thread"])
    @pytest.mark.parametrize("capture", ["now", "overlapped"])
    def test_not_in_the_middle_of_an_announced_update(self, run, root, background, capture, caplog):
        every = holdfast.every(steps=2) | holdfast.on_error()
        with pytest.raises(RuntimeError):
            with open_run(run, every=every, background=background, capture=capture) as ckpt:
                train(ckpt, 3)
                with ckpt.updating():
                    raise RuntimeError

        assert steps(run) == [2]
        assert "half done" in caplog.text

    def test_after_an_update_that_was_completed_it_is_saved(self, run):
        with pytest.raises(RuntimeError):
            with open_run(run, every=holdfast.on_error()) as ckpt:
                train(ckpt, 3)
                with ckpt.updating():
                    pass
                raise RuntimeError

        assert steps(run) == [3]

    @pytest.mark.parametrize("on_error", ["warn", "raise"])
    def test_a_storage_that_fails_at_that_moment_does_not_hide_the_exception(self, run, on_error, caplog):
        files = FaultyFiles()
        error = RuntimeError("the program's own")
        with pytest.raises(RuntimeError) as caught:
            with open_run(run, every=holdfast.on_error(), files=files, on_error=on_error) as ckpt:
                train(ckpt, 3)
                files.plan.append(Fault(at=len(files.calls), error=28, lasting=True, methods={"sync"}))
                raise error

        assert caught.value is error
        assert steps(run) == []
        assert re.search("no checkpoint could be made|was not saved", caplog.text)

    def test_a_state_that_cannot_be_saved_does_not_hide_it_either(self, run, caplog):
        state = {"progress": {"step": 0}}
        with pytest.raises(RuntimeError):
            with holdfast.Checkpointer(run, state, every=holdfast.on_error()) as ckpt:
                train(ckpt, 3)
                state["progress"]["hook"] = lambda: None
                raise RuntimeError

        assert "no checkpoint could be made at this exception" in caplog.text


class TestTimeLeft:
    @pytest.mark.parametrize("time_left", ["soon", -5, math.nan, "1:30", True, []], ids=repr)
    def test_what_makes_no_sense_is_refused_before_anything_is_made(self, run, time_left):
        with pytest.raises(holdfast.UsageError, match="time_left"):
            open_run(run, time_left=time_left)

        assert not run.exists()

    @pytest.mark.parametrize("name", ["HOLDFAST_TIME_LEFT", "HOLDFAST_DEADLINE"])
    def test_so_is_an_environment_that_makes_none(self, run, monkeypatch, name):
        monkeypatch.setenv(name, "soon")

        with pytest.raises(holdfast.UsageError, match=name):
            open_run(run)
        assert not run.exists()

    @pytest.mark.parametrize("total_steps", [-1, 1.5, "many", True])
    def test_so_are_steps_that_cannot_be_counted(self, run, total_steps):
        with pytest.raises(holdfast.UsageError, match="total_steps"):
            open_run(run, total_steps=total_steps)
        assert not run.exists()

    def test_a_program_that_only_saves_asks_nobody(self, run):
        asked = []

        with open_run(run, time_left=lambda: asked.append(1) or 1000.0) as ckpt:
            ckpt.save(step=1)
            time.sleep(0.2)  # for a thread that would ask

        assert asked == []

    def test_the_time_counts_from_when_it_was_given(self, run, clock):
        with pytest.raises(SystemExit) as caught:
            with open_run(run, every=None, time_left="100 s", clock=clock) as ckpt:
                clock.advance(95)
                train(ckpt, 5, clock)

        assert caught.value.code == RESTART_STATUS
        assert steps(run) == [2]  # with three of its hundred seconds left, it would be dead at the fifth

    def test_a_job_stops_itself_with_a_checkpoint_of_its_last_step_and_goes_on_from_it(self, run, clock, caplog):
        caplog.set_level(logging.INFO, "holdfast")
        ckpt = open_run(run, every=50, time_left=500, clock=clock)
        with pytest.raises(SystemExit) as caught:
            train(ckpt, 1000, clock)

        assert caught.value.code == RESTART_STATUS
        (stopped,) = events(run, "stopped")
        assert stopped["lost_steps"] == 0
        assert "left" in stopped["why"]
        last = steps(run)[-1]
        assert last == stopped["step"]
        assert 470 <= last <= 499
        assert [event["decided"] for event in events(run, "deadline")] == ["go on", "save and stop"]
        assert f"stopping at step {last}, which is saved" in caplog.text
        with pytest.raises(holdfast.UsageError, match="closed"):
            ckpt.save(step=1000)
        with open_run(run) as ckpt:
            assert ckpt.restore().step == last

    def test_a_step_that_is_due_anyway_is_saved_once(self, run, clock):
        with pytest.raises(SystemExit), open_run(run, every=1, time_left=100, clock=clock) as ckpt:
            train(ckpt, 200, clock)

        found = steps(run)
        assert found == list(range(1, found[-1] + 1))
        assert events(run, "stopped")[0]["step"] == found[-1]

    def test_one_that_will_be_done_is_not_stopped(self, run, clock):
        with open_run(run, every=50, time_left=500, total_steps=490, clock=clock) as ckpt:
            train(ckpt, 490, clock)
        assert events(run, "stopped") == []
        assert events(run, "deadline")[-1]["decided"] == "finish"

    def test_due_tells_of_it(self, run, clock):
        with open_run(run, every=None, time_left="100 s", clock=clock) as ckpt:
            train(ckpt, 2, clock)
            assert not ckpt.due().due
            clock.advance(80)
            decision = ckpt.due()
            assert decision.due
            assert "left" in decision.reason
            with pytest.raises(SystemExit):
                ckpt.step()

    def test_with_no_time_at_all_what_is_lost_is_said(self, run, clock, caplog):
        with open_run(run, every=10, clock=clock) as ckpt:
            train(ckpt, 10, clock)
        with pytest.raises(SystemExit) as caught, open_run(run, every=10, time_left=4, clock=clock) as ckpt:
            ckpt.restore()
            clock.advance(10)
            train(ckpt, 5, clock)

        assert caught.value.code == RESTART_STATUS
        assert steps(run) == [10]
        assert events(run, "stopped")[-1]["lost_steps"] == 1
        assert "the last 1 of them are not saved" in caplog.text

    def test_a_last_save_that_fails_is_said_and_the_status_is_not_that_of_success(self, run, clock, caplog):
        files = FaultyFiles()
        with pytest.raises(SystemExit) as caught:
            with open_run(run, every=None, time_left=100, clock=clock, files=files) as ckpt:
                train(ckpt, 2, clock)
                clock.advance(80)
                files.plan.append(Fault(at=len(files.calls), error=28, lasting=True, methods={"sync"}))
                train(ckpt, 1, clock)

        assert caught.value.code == RESTART_STATUS
        assert "did not become durable" in caplog.text
        assert events(run, "stopped")[-1]["lost_steps"] == 3

    def test_steps_since_a_rollback_count_from_where_it_went_to(self, run, clock):
        with pytest.raises(SystemExit), open_run(run, every=10, time_left=1000, clock=clock) as ckpt:
            train(ckpt, 40, clock)
            ckpt.restore(10)
            train(ckpt, 5, clock)
            clock.advance(2000)
            train(ckpt, 1, clock)

        assert events(run, "stopped")[-1]["lost_steps"] == 6


LOOP = """
from holdfast.engine import time_left
time_left._ASK_S = 0.05
left = [1e6, 0.0]
def left_s():
    return left[0] - (time.monotonic() - left[1])
w = np.zeros(1000)
ckpt = Checkpointer(RUN, {"w": w}, every="100 s", time_left=left_s)
ckpt.restore()
first = int(w[0])
say("began", first)
def train():
    for step in range(first + 1, 10**9):
        w[:] += 1
        if step == first + 100:
            BEFORE
            say("hundred")
            left[:] = [float(hear()), time.monotonic()]
        time.sleep(0.001)
        ckpt.step()
"""
PLAIN = LOOP.replace("BEFORE", "") + "train()\n"
INSIDE = LOOP.replace("BEFORE", "") + "with ckpt:\n    train()\n"
HANGING = (
    LOOP.replace("BEFORE", "ckpt.save(step=step)")
    + """
from holdfast.agent import staging
from holdfast.engine import pace
pace._Reserves.of = lambda _: pace._Reserves(exit_s=15.0)  # for the last words of a busy machine
staging._CLOSE_DEADLINE_S = staging._CLOSE_PATIENCE_S = 1e6
ckpt.save(step=first).wait(60)
say("agent", *agents_of(os.getpid()))
hear()
train()
"""
)


@pytest.fixture
def no_agents_left() -> Iterator[None]:
    yield
    until(lambda: not agents_of(os.getpid()))


@pytest.mark.parametrize("whole_s", [2.0, 4.0, 6.0, 20.0, 3600.0])
def test_what_is_left_for_the_end_is_time_to_wait_for_the_last_save_however_short_the_limit(run, monkeypatch, whole_s):
    monkeypatch.setattr("holdfast.engine.pace.LastCall", NoLastCall)
    clock = FakeClock()
    end_s = min(5.0, 0.15 * whole_s)  # what decisions leave: policy.deadline

    with open_run(run, every=None, time_left=whole_s, clock=clock, background="off") as ckpt:
        clock.advance(whole_s - end_s)
        assert ckpt._pace.wait_s() >= end_s / 2
        assert not ckpt._pace.is_over()
        clock.advance(end_s)
        assert ckpt._pace.is_over()


class TestPrograms:
    """Real ones, with an agent, and a clock that nobody sets."""

    @pytest.fixture(autouse=True)
    def settings(self, no_agents_left: None) -> None:
        pass

    @pytest.mark.slow
    @pytest.mark.parametrize("code", [PLAIN, INSIDE], ids=["plain", "with"])
    def test_it_ends_with_85_before_its_time_is_over_and_goes_on_where_it_was(self, run, root, code):
        last = 0
        for start in range(2):
            with Program(code, run, root) as program:
                assert program.hear("began") == [str(last)]
                program.hear("hundred")
                program.say("20")  # nothing is known of what a checkpoint takes: that is too little to go on
                status, _, err = program.end()

            assert status == RESTART_STATUS, err
            stopped = events(run, "stopped")[start]
            assert stopped["step"] >= last + 100
            assert (stopped["lost_steps"], stopped["step"]) == (0, steps(run)[-1])
            last = stopped["step"]
            assert (holdfast.load(run)["w"] == last).all()
        assert [event["clean"] for event in events(run, "closed")] == [False, False]

    @pytest.mark.parametrize("left_s", [18, 0])
    def test_it_does_not_wait_longer_than_its_time_for_a_storage_that_hangs(self, run, root, left_s):
        """The agent is stopped: nothing more becomes durable, and the program ends all the same."""
        with Program(HANGING, run, root) as program:
            program.hear("began")
            (agent,) = map(int, program.hear("agent"))
            os.kill(agent, signal.SIGSTOP)
            try:
                program.say()
                program.hear("hundred")

                program.say(str(left_s))
                status, _, err = program.end()

            finally:
                os.kill(agent, signal.SIGCONT)
            until(lambda: not Path(f"/proc/{agent}").exists())

        assert status == RESTART_STATUS, err
        found = re.search(r"stopping at step (\d+); the last (\d+) of them are not saved", err)
        assert found, err
        assert found[1] == found[2]  # since step 0, which was durable

        # What was copied is not lost: the agent, or the next start, makes it durable.
        with holdfast.Checkpointer(run, {"w": np.zeros(1000)}, background="process") as ckpt:
            assert ckpt.restore().step >= 100
