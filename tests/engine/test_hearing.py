"""How long there is after a signal."""

import signal
import time

import pytest

from holdfast.core.errors import UsageError
from holdfast.engine.hearing import Grace, Heard, Hearing, grace_of


def test_only_sigterm_has_a_grace_where_nobody_says_one_and_it_is_only_likely():
    grace = grace_of(None, {})

    assert grace.of(signal.SIGTERM) == (None, 30.0)
    assert grace.of(signal.SIGUSR1) == (None, None)
    assert grace.of(signal.SIGINT) == (None, None)


def test_what_the_program_says_is_sure_and_comes_before_the_environment():
    grace = grace_of("1 min", {"HOLDFAST_GRACE": "5"})

    assert grace.of(signal.SIGTERM) == (60.0, 60.0)
    assert grace.of(signal.SIGUSR2) == (60.0, 60.0)
    assert grace.of(signal.SIGINT) == (None, None)


def test_the_environment_says_it_in_words_too():
    assert grace_of(None, {"HOLDFAST_GRACE": "2 min"}).of(signal.SIGTERM) == (120.0, 120.0)


@pytest.mark.parametrize("nonsense", ["soon", "-3", "nan", "1e400"])
def test_nonsense_in_the_environment_is_refused(nonsense):
    with pytest.raises(UsageError, match="HOLDFAST_GRACE"):
        grace_of(None, {"HOLDFAST_GRACE": nonsense})


def test_in_an_htcondor_job_the_shorter_of_both_limits_counts_but_for_the_transfer(tmp_path):
    (tmp_path / "job").write_text("ClusterId = 3\nJobMaxVacateTime = 100\n")
    (tmp_path / "machine").write_text("MachineMaxVacateTime = 600\n")
    environ = {"_CONDOR_JOB_AD": str(tmp_path / "job"), "_CONDOR_MACHINE_AD": str(tmp_path / "machine")}

    assert grace_of(None, environ).of(signal.SIGTERM) == (None, 80.0)


def test_what_the_environment_says_does_not_count_from_warnings():
    grace = grace_of(None, {"HOLDFAST_GRACE": "2 min"})

    assert grace.of(signal.SIGUSR1) == grace.of(signal.SIGUSR2) == (None, None)
    assert grace.of(signal.SIGHUP) == (120.0, 120.0)


class _Target:
    def __init__(self):
        self.asked = []

    def ask_to_stop(self, *asked):
        self.asked.append(asked)

    def tell(self, *_, **__):
        pass


def _late(ago_s, grace, actions=None):
    target = _Target()
    hearing = Hearing(actions or {signal.SIGTERM: "stop"}, grace, lambda: target)
    hearing.hear_late(Heard(signal.SIGTERM, time.monotonic() - ago_s))
    return target.asked


def test_what_is_heard_late_has_the_rest_of_its_time_and_none_that_is_over():
    ((reason, sure_s, likely_s),) = _late(10, Grace(None))
    assert (reason, sure_s, likely_s) == ("SIGTERM", None, pytest.approx(20, abs=1))
    assert _late(100, Grace(None)) == [("SIGTERM", None, None)]
    assert _late(10, Grace(60.0)) == [("SIGTERM", pytest.approx(50, abs=1), pytest.approx(50, abs=1))]


def test_who_does_not_stop_at_a_signal_does_not_stop_late_either():
    assert _late(1, Grace(None), {signal.SIGTERM: "save"}) == _late(1, Grace(None), {signal.SIGUSR1: "stop"}) == []


def test_the_first_interrupt_does_not_promise_that_the_second_ends_at_once(caplog):
    target = _Target()  # a second one waits for what is being written; only the third does not
    Hearing({signal.SIGINT: "stop"}, Grace(None), lambda: target).heard(signal.SIGINT)

    assert "at once" not in caplog.text
    assert "Ctrl-C again does not wait for the step" in caplog.text
