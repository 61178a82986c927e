"""Which job a process is in, by what Slurm and HTCondor say; nonsense counts as not there."""

from collections.abc import Mapping
from pathlib import Path

import pytest

from holdfast.core.errors import UsageError
from holdfast.engine.jobs import Job, fill_in_job, find_job, restart_status


def condor(tmp_path: Path, ad: str) -> dict[str, str]:
    (tmp_path / "ad").write_text(ad)
    return {"_CONDOR_JOB_AD": str(tmp_path / "ad")}


def test_outside_of_any_job_there_is_none() -> None:
    assert find_job({}) is None
    assert restart_status(None, {}) == 85


@pytest.mark.parametrize(
    ("environ", "job"),
    [
        ({"SLURM_JOB_ID": "17"}, Job("slurm", "17", "17", 0)),
        ({"SLURM_JOB_ID": "17", "SLURM_RESTART_COUNT": "3"}, Job("slurm", "17", "17", 3)),
        (
            {
                "SLURM_JOB_ID": "19",
                "SLURM_ARRAY_JOB_ID": "17",
                "SLURM_ARRAY_TASK_ID": "2",
                "SLURM_ARRAY_TASK_MAX": "5",
            },
            Job("slurm", "17", "19", 0, 2, 5),
        ),
        ({"HOLDFAST_JOB": "first-try"}, Job("", "first-try", "first-try", 0)),
        ({"HOLDFAST_JOB": "first-try", "SLURM_JOB_ID": "17"}, Job("slurm", "first-try", "17", 0)),
    ],
)
def test_a_job_has_the_same_name_in_all_its_parts(environ: Mapping[str, str], job: Job) -> None:
    assert find_job(environ) == job


def test_a_job_of_htcondor_is_the_one_in_its_ad(tmp_path: Path) -> None:
    environ = condor(tmp_path, "ClusterId = 12\nProcId = 3\nNumJobStarts = 2\n")

    assert find_job(environ) == Job("htcondor", "12.3", "12.3", 2)


@pytest.mark.parametrize(
    "environ",
    [
        {"SLURM_JOB_ID": ""},
        {"SLURM_JOB_ID": "$(rm -rf /)"},
        {"SLURM_JOB_ID": "../../etc"},
        {"SLURM_JOB_ID": "1" * 13},
        {"HOLDFAST_JOB": "../up"},
        {"HOLDFAST_JOB": "a/b"},
        {"HOLDFAST_JOB": "x" * 101},
        {"HOLDFAST_JOB": "a\nb"},
    ],
)
def test_names_that_make_no_sense_are_none(environ: Mapping[str, str]) -> None:
    assert find_job(environ) is None


@pytest.mark.parametrize(
    "ad",
    [
        "",
        "ClusterId = -1\n",
        "ClusterId = 1.5\n",
        'ClusterId = "1"\n',
        "ClusterId = 1e999\n",
        "ClusterId = 1e15\n",
        "ClusterId = true\n",
        "ClusterId = 1\nProcId = -2\n",
        "ProcId = 0\n",
    ],
)
def test_ads_that_make_no_sense_are_of_no_job(ad: str, tmp_path: Path) -> None:
    assert find_job(condor(tmp_path, ad)) is None


def test_a_count_of_starts_that_makes_no_sense_counts_nothing(tmp_path: Path) -> None:
    environ = condor(tmp_path, "ClusterId = 1\nProcId = 0\nNumJobStarts = -7\n")

    assert find_job(environ) == Job("htcondor", "1.0", "1.0", 0)


def test_the_name_of_the_job_is_filled_into_a_path() -> None:
    assert fill_in_job("runs/x-{job}", {"SLURM_JOB_ID": "17"}) == "runs/x-17"
    assert fill_in_job("runs/x", {}) == "runs/x"
    with pytest.raises(UsageError, match="this process is in none"):
        fill_in_job("runs/x-{job}", {})


@pytest.mark.parametrize(
    ("ad", "status"),
    [
        # HTCondor 23 writes the first; the other is met in descriptions that were written by hand.
        ("SuccessCheckpointExitCode = 77\n", 77),
        ("CheckpointExitCode = 78\n", 78),
        ("CheckpointExitCode = 78\nSuccessCheckpointExitCode = 77\n", 77),
        ("SuccessCheckpointExitCode = 0\n", 85),
        ("SuccessCheckpointExitCode = 256\n", 85),
        ("SuccessCheckpointExitCode = 8.5\n", 85),
        ('SuccessCheckpointExitCode = "77"\n', 85),
        ("SuccessCheckpointExitCode = 300\nCheckpointExitCode = 78\n", 78),
    ],
)
def test_the_status_is_the_one_that_the_job_promised(ad: str, status: int, tmp_path: Path) -> None:
    assert restart_status(None, condor(tmp_path, f"ClusterId = 1\n{ad}")) == status


def test_a_status_that_is_given_counts_more_than_the_job(tmp_path: Path) -> None:
    assert restart_status(3, condor(tmp_path, "SuccessCheckpointExitCode = 77\n")) == 3


@pytest.mark.parametrize("given", [0, 256, -1, True, 1.0, "85"])
def test_a_status_that_is_none_is_refused(given: object) -> None:
    with pytest.raises(UsageError, match="from 1 to 255"):
        restart_status(given, {})  # type: ignore[arg-type]
