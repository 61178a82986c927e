"""Which start of an HTCondor job this is, and what the job is called in the file of an attempt."""

from pathlib import Path

import pytest

from holdfast.core.errors import FencedError, RunBusyError
from holdfast.engine.attempts import begin_attempt, check_fence
from holdfast.engine.holders import Turn, latest_holder
from holdfast.engine.turns import find_turn


def be_in(monkeypatch: pytest.MonkeyPatch, path: Path, *, starts: object, job: str = "me@host#12.3#1794848645") -> None:
    """The ad as HTCondor 23.9 writes it."""
    path.write_text(f'ClusterId = 12\nGlobalJobId = "{job}"\nNumShadowStarts = {starts}\nProcId = 3\n')
    monkeypatch.setenv("_CONDOR_JOB_AD", str(path))


def test_the_file_of_an_attempt_names_the_job(store, clock, monkeypatch, tmp_path):
    be_in(monkeypatch, tmp_path / "ad", starts=1)

    begin_attempt(store, clock)

    holder = latest_holder(store)
    assert holder is not None
    assert (holder.job, holder.turn) == ("12.3", Turn("htcondor me@host#12.3#1794848645", 1))


def test_a_later_start_takes_over_from_an_earlier_one_that_lives(store, clock, monkeypatch, tmp_path):
    be_in(monkeypatch, tmp_path / "ad", starts=1)
    begin_attempt(store, clock)

    be_in(monkeypatch, tmp_path / "ad", starts=2)
    begin_attempt(store, clock)

    with pytest.raises(FencedError, match="attempt 1 may no longer write"):
        check_fence(store, 1)


@pytest.mark.parametrize(("starts", "job"), [(1, "me@host#12.3#1794848645"), (2, "me@host#13.0#1794848645")])
def test_another_job_or_the_same_start_is_not_disturbed(store, clock, monkeypatch, tmp_path, starts, job):
    be_in(monkeypatch, tmp_path / "ad", starts=1)
    begin_attempt(store, clock)

    be_in(monkeypatch, tmp_path / "ad", starts=starts, job=job)

    with pytest.raises(RunBusyError, match=r"job 12\.3"):
        begin_attempt(store, clock)


@pytest.mark.parametrize("starts", ["-1", "1e300", "undefined", '"2"', "true"])
def test_a_number_that_makes_no_sense_is_no_turn(monkeypatch, tmp_path, starts):
    be_in(monkeypatch, tmp_path / "ad", starts=starts)

    assert find_turn({"_CONDOR_JOB_AD": str(tmp_path / "ad")}) is None


@pytest.mark.parametrize("job", ["", "a b", "x" * 201, "a/b"])
def test_a_name_that_makes_no_sense_is_no_turn(monkeypatch, tmp_path, job):
    be_in(monkeypatch, tmp_path / "ad", starts=1, job=job)

    assert find_turn({"_CONDOR_JOB_AD": str(tmp_path / "ad")}) is None
