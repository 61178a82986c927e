"""What HTCondor does with the checkpoints of a job, by its ads."""

from pathlib import Path

import pytest

from holdfast.engine.condor_settings import CondorSettings, checkpoint_settings

# Lines of the ads that HTCondor 23.9 wrote beside a job.
_JOB = """\
ClusterId = 1
JobMaxVacateTime = 20
ProcId = 0
ShouldTransferFiles = "YES"
SuccessCheckpointExitCode = 85
TransferCheckpoint = "runs/x, other"
TransferIn = false
TransferOutput = "run"
WantFTOnCheckpoint = true
WhenToTransferOutput = "ON_EXIT_OR_EVICT"
"""
_MACHINE = "MachineMaxVacateTime = 10 * 60\n"


def environ(tmp_path: Path, job: str, machine: str = "") -> dict[str, str]:
    (tmp_path / "job").write_text(job)
    (tmp_path / "machine").write_text(machine)
    return {
        "_CONDOR_JOB_AD": str(tmp_path / "job"),
        "_CONDOR_MACHINE_AD": str(tmp_path / "machine"),
        "_CONDOR_SCRATCH_DIR": "/execute/dir_7",
    }


def test_outside_of_a_job_there_are_none(tmp_path: Path) -> None:
    assert checkpoint_settings({}) is None
    assert checkpoint_settings({"_CONDOR_JOB_AD": str(tmp_path / "none")}) is None


def test_all_of_a_job(tmp_path: Path) -> None:
    assert checkpoint_settings(environ(tmp_path, _JOB, _MACHINE)) == CondorSettings(
        85, ("runs/x", "other"), "", "ON_EXIT_OR_EVICT", transfers=True, scratch="/execute/dir_7", grace_s=20
    )


def test_a_job_that_says_nothing_promises_nothing(tmp_path: Path) -> None:
    assert checkpoint_settings(environ(tmp_path, "ClusterId = 1\n")) == CondorSettings(
        None, (), "", "", transfers=False, scratch="/execute/dir_7", grace_s=None
    )


def test_a_destination_is_told(tmp_path: Path) -> None:
    settings = checkpoint_settings(environ(tmp_path, _JOB + 'CheckpointDestination = "osdf:///a/b"\n'))

    assert settings is not None
    assert settings.destination == "osdf:///a/b"


@pytest.mark.parametrize(
    ("job", "machine", "grace_s"),
    [
        ("", "MachineMaxVacateTime = 10 * 60\n", 600),
        ("JobMaxVacateTime = 20\n", "MachineMaxVacateTime = 10 * 60\n", 20),
        # A job may ask for less, not for more.
        ("JobMaxVacateTime = 900\n", "MachineMaxVacateTime = 10 * 60\n", 600),
        ("JobMaxVacateTime = 900\n", "", 900),
        ("JobMaxVacateTime = -3\n", "MachineMaxVacateTime = something(7)\n", None),
    ],
)
def test_the_shortest_time_counts(job: str, machine: str, grace_s: float | None, tmp_path: Path) -> None:
    settings = checkpoint_settings(environ(tmp_path, f"ClusterId = 1\n{job}", machine))

    assert settings is not None
    assert settings.grace_s == grace_s


def test_values_of_the_wrong_kind_are_not_there(tmp_path: Path) -> None:
    ad = 'ClusterId = 1\nTransferCheckpoint = 5\nCheckpointDestination = true\nShouldTransferFiles = "maybe"\n'

    settings = checkpoint_settings(environ(tmp_path, ad))

    assert settings is not None
    assert (settings.files, settings.destination, settings.transfers) == ((), "", False)
