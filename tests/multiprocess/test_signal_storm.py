"""Signals at random moments to a training with long calls of libraries: each is heard, each stop is saved."""

import pytest

import holdfast
from tests.multiprocess.storm import storm

pytestmark = pytest.mark.slow


def _checker(run):
    def check(step: int) -> None:
        saved = holdfast.load(run)["w"]
        assert saved[0] == step, (saved[0], step)

    return check


def test_every_signal_is_heard_and_every_stop_is_durable(tmp_path):
    seen = storm(tmp_path / "run", 300, on_stop="return", seed=1, check=_checker(tmp_path / "run"))

    assert seen.heard == seen.sent >= 300
    assert seen.stops >= seen.sent * 0.8  # two at once may be answered by one stop


def test_every_program_ends_with_the_status_that_asks_for_a_restart_and_the_next_goes_on(tmp_path):
    steps = []

    def check(step: int) -> None:
        steps.append(step)

    seen = storm(tmp_path / "run", 15, on_stop="exit", seed=2, check=check)

    assert set(seen.statuses) == {85}
    assert len(seen.statuses) == len(steps)
    assert steps == sorted(set(steps))
    assert holdfast.load(tmp_path / "run")["w"][0] == steps[-1]
