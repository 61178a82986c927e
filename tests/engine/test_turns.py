"""Which start of a job this is, and that a later one takes the run over from an earlier one that still lives."""

import os

import pytest

from holdfast.core.errors import FencedError, RunBusyError
from holdfast.engine.attempts import begin_attempt, check_fence
from holdfast.engine.holders import Turn, latest_holder
from holdfast.engine.turns import find_turn

_FIRST = {"SLURM_JOB_ID": "17"}
_SECOND = {"SLURM_JOB_ID": "17", "SLURM_RESTART_COUNT": "1"}
_OTHER = {"SLURM_JOB_ID": "18", "SLURM_RESTART_COUNT": "1"}


def _chained(task: str, job: str = "17") -> dict[str, str]:
    return {"SLURM_JOB_ID": job, "SLURM_ARRAY_JOB_ID": "17", "SLURM_ARRAY_TASK_ID": task, "HOLDFAST_TURN": task}


def _be_in(monkeypatch: pytest.MonkeyPatch, environ: dict[str, str]) -> None:
    for name in [name for name in os.environ if name.startswith("SLURM_")] + ["HOLDFAST_TURN"]:
        monkeypatch.delenv(name, raising=False)
    for name, value in environ.items():
        monkeypatch.setenv(name, value)


@pytest.mark.parametrize(
    ("earlier", "later"), [(_FIRST, _SECOND), (_chained("1", "18"), _chained("2", "19"))], ids=["requeued", "chain"]
)
def test_a_later_start_of_a_job_takes_over_from_an_earlier_one_that_lives(store, clock, monkeypatch, earlier, later):
    _be_in(monkeypatch, earlier)
    begin_attempt(store, clock)

    _be_in(monkeypatch, later)
    second = begin_attempt(store, clock)

    assert second == 2
    with pytest.raises(FencedError, match="attempt 1 may no longer write"):
        check_fence(store, 1)


@pytest.mark.parametrize(
    ("earlier", "later"),
    [
        (_SECOND, _SECOND),
        (_SECOND, _FIRST),
        (_FIRST, _OTHER),
        (_FIRST, {}),
        ({}, _SECOND),
        (_FIRST, {**_SECOND, "SLURM_RESTART_COUNT": "1; reboot"}),
        # The same number on another cluster.
        ({**_FIRST, "SLURM_CLUSTER_NAME": "north"}, {**_SECOND, "SLURM_CLUSTER_NAME": "south"}),
        ({**_chained("1"), "SLURM_CLUSTER_NAME": "north"}, {**_chained("2"), "SLURM_CLUSTER_NAME": "south"}),
        # Tasks that are not a chain run side by side.
        ({**_chained("1", "18"), "HOLDFAST_TURN": ""}, {**_chained("2", "19"), "HOLDFAST_TURN": ""}),
    ],
)
def test_a_live_writer_of_the_same_start_or_another_job_is_not_disturbed(store, clock, monkeypatch, earlier, later):
    _be_in(monkeypatch, earlier)
    begin_attempt(store, clock)

    _be_in(monkeypatch, later)
    with pytest.raises(RunBusyError, match="attempt 1"):
        begin_attempt(store, clock)

    check_fence(store, 1)


@pytest.mark.parametrize("turn", ['"1"', "null", "true", "[]", "1.5"])
def test_a_turn_that_makes_no_sense_counts_as_not_there(tmp_path, store, clock, monkeypatch, turn):
    _be_in(monkeypatch, _FIRST)
    begin_attempt(store, clock)
    file = tmp_path / "run" / "attempts" / "000001.json"
    file.write_text(file.read_text().replace('"turn": 0', f'"turn": {turn}'))

    holder = latest_holder(store)

    assert holder is not None
    assert (holder.job, holder.turn) == ("17", None)


def test_what_is_no_number_is_no_turn():
    assert find_turn({}) is None
    assert find_turn({"SLURM_JOB_ID": "17 "}) is None
    assert find_turn({"SLURM_JOB_ID": "17", "SLURM_RESTART_COUNT": "-1"}) is None
    assert find_turn({"SLURM_JOB_ID": "17", "SLURM_ARRAY_JOB_ID": "x", "HOLDFAST_TURN": "3"}) == Turn("slurm 17", 0)
