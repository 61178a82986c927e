"""Signs of trouble, put together: the watch begins with the first question, and a loss that fails marks checkpoints."""

import json
import math
import threading
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch

import holdfast
from holdfast.core.errors import StorageError, UsageError
from holdfast.engine.outcome import PendingCheckpoint
from holdfast.engine.signs import Signs
from holdfast.policy.risk import CALM, SERIOUS
from holdfast.testing import FakeClock

_TIMEOUT_S = 30.0


_others: set[threading.Thread] = set()


@pytest.fixture(autouse=True)
def _without_those_of_other_tests() -> Iterator[None]:
    _others.update(threading.enumerate())
    yield
    _others.clear()


def _threads() -> list[str]:
    begun = [thread.name for thread in threading.enumerate() if thread not in _others]
    return [name for name in begun if name.startswith(("holdfast-watch", "holdfast-marks"))]


@pytest.fixture
def checkpointer(tmp_path: Path) -> Iterator[holdfast.Checkpointer]:
    made = holdfast.Checkpointer(tmp_path / "run", {"w": np.zeros(1)}, keep=holdfast.KEEP_ALL, clock=FakeClock())
    yield made
    made.close()


def _attached(checkpointer: holdfast.Checkpointer, **options: object) -> Signs:
    signs = Signs(**options)  # type: ignore[arg-type]
    signs.attach(checkpointer._session)
    return signs


def _suspects(checkpointer: holdfast.Checkpointer) -> list[int]:
    return [checkpoint.step for checkpoint in checkpointer.checkpoints() if checkpoint.suspect]


def test_a_failing_loss_marks_what_was_saved_and_what_comes(checkpointer: holdfast.Checkpointer) -> None:
    signs = _attached(checkpointer, sensors="off", health="loss")
    for step in range(1, 41):
        signs.note_loss(step, {"loss": 1 / step}, fetch=False)
        if step % 10 == 0:
            checkpointer.save(step=step)
    assert signs.suspect == ""

    signs.note_loss(46, {"loss": math.nan}, fetch=False)
    assert signs.suspect == "the loss is nan at step 46"
    signs.note_settled(checkpointer.save(step=50))  # on its way when the loss failed
    signs.close()

    assert _suspects(checkpointer) == [40, 50]
    assert _threads() == []


def test_a_restore_begins_anew(checkpointer: holdfast.Checkpointer) -> None:
    signs = _attached(checkpointer, sensors="off", health="loss")
    signs.note_loss(5, {"loss": math.inf}, fetch=False)

    signs.note_restored(5)

    assert signs.suspect == ""
    signs.close()


def test_a_step_counts_once_and_what_is_no_number_not_at_all(checkpointer: holdfast.Checkpointer) -> None:
    signs = _attached(checkpointer, sensors="off", health="loss")

    for metrics in ({}, {"loss": None}, {"loss": "low"}, {"loss": [1.0]}, {"other": math.nan}):
        signs.note_loss(1, metrics, fetch=True)
    signs.note_loss(1, {"loss": 2.0}, fetch=True)
    signs.note_loss(1, {"loss": math.nan}, fetch=True)

    assert signs.suspect == ""


@pytest.mark.parametrize(
    "kind", [float, np.float32, np.float64, np.array, torch.tensor], ids=lambda kind: kind.__name__
)
def test_what_is_at_hand_is_looked_at_at_every_step(checkpointer, kind) -> None:
    signs = _attached(checkpointer, sensors="off", health="loss")

    signs.note_loss(1, {"loss": kind(math.nan)}, fetch=False)

    assert signs.suspect
    signs.close()


class OnDevice:
    """A number that takes its time to come."""

    def __init__(self) -> None:
        self.fetched = 0

    def __float__(self) -> float:
        self.fetched += 1
        return math.nan


def test_what_is_elsewhere_is_fetched_only_where_that_is_asked_for(checkpointer: holdfast.Checkpointer) -> None:
    signs = _attached(checkpointer, sensors="off", health="loss")
    value = OnDevice()

    signs.note_loss(1, {"loss": value}, fetch=False)
    assert (value.fetched, signs.suspect) == (0, "")

    signs.note_loss(2, {"loss": value}, fetch=True)
    assert (value.fetched, bool(signs.suspect)) == (1, True)
    signs.close()


def test_without_health_nothing_is_looked_at(checkpointer: holdfast.Checkpointer) -> None:
    signs = _attached(checkpointer, sensors="off")

    signs.note_loss(1, {"loss": math.nan}, fetch=True)

    assert signs.suspect == ""


def test_the_first_question_for_the_risk_begins_the_watch_and_the_journal_hears(
    checkpointer: holdfast.Checkpointer, tmp_path: Path
) -> None:
    def pump() -> str:
        return "the pump is off"

    signs = _attached(checkpointer, sensors=["off", pump])
    assert (_threads(), dict(signs.readings())) == ([], {})

    assert signs.risk() == CALM
    assert _threads() == ["holdfast-watch"]
    never = threading.Event()
    for _ in range(int(_TIMEOUT_S / 0.01)):
        if signs.readings() or never.wait(0.01):
            break
    signs.close()

    assert _threads() == []
    assert signs.risk() == SERIOUS
    events = [json.loads(line) for line in (tmp_path / "run" / "journal.jsonl").read_text().splitlines()]
    (sensed,) = [event for event in events if event["event"] == "sensed"]
    del sensed["time"], sensed["attempt"]
    assert sensed == {
        "event": "sensed",
        "sensor": "pump",
        "read": "the pump is off",
        "risk": SERIOUS,
        "concluded": "the pump is off",
    }


def test_off_needs_no_thread(checkpointer: holdfast.Checkpointer) -> None:
    signs = _attached(checkpointer, sensors="off")

    assert signs.risk() == CALM
    assert _threads() == []
    signs.note_settled(checkpointer.save(step=1))
    signs.close()


def test_the_sensor_of_the_storage_is_told(checkpointer: holdfast.Checkpointer) -> None:
    signs = _attached(checkpointer, sensors=["storage"])
    signs.risk()

    for step in (1, 2):
        failed = PendingCheckpoint(step)
        failed.note_failed(StorageError("no space"))
        signs.note_settled(failed)

    assert signs._storage is not None
    assert signs._storage.read().risk == SERIOUS
    signs.close()


@pytest.mark.parametrize("options", [{"health": ""}, {"health": 3}, {"health": True}, {"sensors": ["pumpp"]}])
def test_bad_options_are_refused_at_once(options: dict[str, object]) -> None:
    with pytest.raises(UsageError):
        Signs(**options)  # type: ignore[arg-type]


def test_a_loss_that_is_no_number_is_said_once_where_nobody_follows_it(checkpointer, caplog) -> None:
    for step in (1, 2, 3):
        checkpointer.save(step=step, metrics={"train_loss": math.nan, "accuracy": math.inf})

    (said,) = [record.message for record in caplog.records if "health='train_loss'" in record.message]
    assert "train_loss is nan at step 1" in said


def test_other_metrics_may_be_anything(checkpointer, caplog) -> None:
    checkpointer.save(step=1, metrics={"accuracy": math.nan})

    assert caplog.text == ""


@pytest.mark.filterwarnings("error")
def test_a_loss_with_gradients_is_taken_without_a_warning(checkpointer) -> None:
    signs = _attached(checkpointer, sensors="off", health="loss")
    weight = torch.ones(1, requires_grad=True)

    signs.note_loss(1, {"loss": (weight * math.nan).sum()}, fetch=True)

    assert signs.suspect


def test_a_number_that_no_float_can_be_is_none(checkpointer) -> None:
    signs = _attached(checkpointer, sensors="off", health="loss")

    signs.note_loss(1, {"loss": 10**400}, fetch=False)

    assert signs.suspect == ""


def test_a_metric_to_follow_that_no_step_has_is_said_once(tmp_path, caplog):
    with holdfast.Checkpointer(tmp_path / "run", {"w": np.zeros(1)}, health="los", every=1) as ckpt:
        for _ in range(3):
            ckpt.step(loss=1.0, lr=0.1)

    said = [record.message for record in caplog.records if "health=" in record.message]
    assert said == ["health='los' follows a metric that no step has had so far; step 1 has loss, lr"]


def test_a_metric_to_follow_that_steps_have_is_not_missed_in_saves_without_it(tmp_path, caplog):
    with holdfast.Checkpointer(tmp_path / "run", {"w": np.zeros(1)}, health="loss", every=10) as ckpt:
        ckpt.step(loss=1.0)
        ckpt.save(metrics={"accuracy": 0.5}, step=2)

    assert "health=" not in caplog.text


@pytest.mark.parametrize("every", [1, 2, 5])
@pytest.mark.parametrize("background", ["off", "thread", "process"])
@pytest.mark.parametrize("loss", [math.nan, 50.0], ids=["not a number", "too high"])
def test_however_often_it_is_saved_there_is_a_healthy_one_to_go_back_to(tmp_path, every, background, loss):
    weights = np.zeros(1)
    options = {"health": "loss", "every": every, "background": background, "sensors": "off"}
    with holdfast.Checkpointer(tmp_path / "run", {"w": weights}, **options) as ckpt:
        for step in range(1, 121):
            weights[0] = step
            pending = ckpt.step(loss=loss if step > 90 else 1.0)
            if pending is not None:
                pending.wait()

    restored = holdfast.load(tmp_path / "run", "healthy")

    assert 60 <= restored["w"][0] <= 90


def test_a_restart_keeps_the_healthy_ones_before_it_has_seen_any_loss(tmp_path):
    weights, options = np.zeros(1), {"health": "loss", "every": 1, "sensors": "off"}
    with holdfast.Checkpointer(tmp_path / "run", {"w": weights}, **options) as ckpt:
        for step in range(1, 31):
            weights[0] = step
            ckpt.step(loss=1.0)

    with holdfast.Checkpointer(tmp_path / "run", {"w": weights}, **options) as ckpt:
        assert ckpt.restore().step == 30
        ckpt.prune()
        ckpt.save(step=30)
        for _ in range(5):
            ckpt.step(loss=math.nan)

    assert 5 <= holdfast.load(tmp_path / "run", "healthy")["w"][0] <= 20


def test_what_was_saved_after_the_last_good_value_is_not_healthy(tmp_path):
    weights = np.zeros(1)
    options = {"health": "loss", "every": 30, "sensors": "off", "keep": holdfast.keep(last=2)}
    with holdfast.Checkpointer(tmp_path / "run", {"w": weights}, **options) as ckpt:
        for step in range(1, 271):
            weights[0] = step if step < 105 else math.nan
            ckpt.step(**({"loss": weights[0]} if step % 100 == 0 else {}))

    assert holdfast.load(tmp_path / "run", "healthy")["w"][0] == 90


@pytest.mark.parametrize("background", ["off", "thread", "process"])
@pytest.mark.parametrize("which", ["healthy", "latest"])
def test_a_restore_right_after_the_loss_failed_knows_what_is_suspect(tmp_path, background, which):
    """Also what was on its way then."""
    w = np.zeros(1_000_000)
    options = {"background": background, "health": "loss", "keep": holdfast.KEEP_ALL, "every": None, "sensors": "off"}
    with holdfast.Checkpointer(tmp_path / "run", {"w": w}, **options) as ckpt:
        for step in range(1, 42):
            w[:] = step
            ckpt.step(loss=math.nan if step > 40 else 1 / step)
            if step in (20, 30):
                ckpt.save().wait()
            elif step == 40:
                ckpt.save()
        restored = ckpt.restore(which)

        assert (restored.step, w[0]) == ((30, 30) if which == "healthy" else (40, 40))
        assert _suspects(ckpt) == [40]


def test_a_mark_that_is_wanted_when_the_last_one_is_just_made_is_made(checkpointer, monkeypatch):
    signs = _attached(checkpointer, sensors="off", health="loss")
    checkpointer.save(step=1)
    for step, loss in ((1, 1.0), (2, math.nan)):
        signs.note_loss(step, {"loss": loss}, fetch=False)
    signs.mark()
    assert _suspects(checkpointer) == [1]
    ended = threading.Event()
    # Nothing is left to do, and nobody has seen the thread end.
    monkeypatch.setattr(signs, "_marker", threading.Thread(target=ended.wait, daemon=True))
    signs._marker.start()

    signs.note_settled(_settled(checkpointer.save(step=3)))
    ended.set()
    signs.mark()

    assert _suspects(checkpointer) == [1, 3]


def _settled(pending: PendingCheckpoint) -> PendingCheckpoint:
    pending.wait()
    return pending
