"""Trainings in jobs of a real HTCondor that are evicted, moved, held and killed, and finish as if nothing had been.

All are submitted at once, and disturbed together.
"""

import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest

import holdfast
from holdfast.integrations.htcondor_description import Wishes, describe_job
from holdfast.integrations.htcondor_submit import missing_runs
from tests.htcondor.pool import Pool

pytestmark = [pytest.mark.slow, pytest.mark.scheduler]

_TRAINING = Path(__file__).parent / "training.py"
_STEPS = 100
_STEP_S = 0.05
_HELD, _COMPLETED = "5", "4"


class Trained(NamedTuple):
    """A job, and where it was submitted."""

    job: str
    folder: Path
    run: str
    ways: tuple[str, ...]

    def told(self, name: str) -> list[str]:
        path = self.folder / "marks" / name
        # The last line may be half-written.
        return path.read_text().split("\n")[:-1] if path.exists() else []

    def starts(self) -> list[int]:
        """At which step it was started, each time."""
        return [int(line.split()[1]) for line in self.told("starts")]

    def slots(self) -> list[str]:
        return [line.split()[0] for line in self.told("starts")]


def begin(pool: Pool, name: str, *how: str, run: str = "runs/small", **wishes: object) -> Trained:
    """Submit a training with the description that holdfast writes for it."""
    folder = pool.folder(name)
    for path in (folder / "marks", folder / "runs"):
        path.mkdir()
        shutil.chown(path, pool.user_id, pool.user_id)
    shutil.copy(_TRAINING, folder / "training.py")
    command = (sys.executable, "training.py", run, str(_STEPS), str(_STEP_S), str(folder / "marks"), *how)
    description = describe_job(Wishes(command, run, name, folder=str(folder), **wishes))  # type: ignore[arg-type]
    # As `submit` does, which cannot be called here as another user.
    for missing in missing_runs(description, str(folder)):
        Path(missing).mkdir(mode=0o700)
        shutil.chown(missing, pool.user_id, pool.user_id)
    return Trained(pool.submit(description, folder=folder), folder, run, how)


def move(pool: Pool, trained: Trained) -> None:
    """Evict it, and let it run everywhere but there."""
    pool.wait_for(lambda: pool.query(trained.job, "RemoteHost")[0] != "undefined", f"{trained.folder.name} to run")
    slot = pool.query(trained.job, "RemoteHost")[0]
    pool.run("condor_qedit", trained.job, "Requirements", f'TARGET.Name != "{slot}"')
    pool.run("condor_vacate_job", trained.job)


def wait_for_steps(pool: Pool, trained: Trained, *, starts: int) -> None:
    """Until it was started that often, has come a bit further, and is where it goes slowly."""

    def is_there() -> bool:
        told, done = trained.starts(), trained.told("steps")
        return len(told) >= starts and bool(done) and int(done[-1]) > max(told[starts - 1], _STEPS // 2)

    pool.wait_for(is_there, f"{trained.folder.name} to be started {starts} times")


def ended(pool: Pool, trained: Trained) -> str:
    """Its status; waits for the end."""
    pool.wait_for(
        lambda: pool.query(trained.job, "JobStatus")[0] in (_COMPLETED, _HELD), f"the end of {trained.folder}"
    )
    state, reason, code = pool.query(trained.job, "JobStatus", "HoldReason", "ExitCode")
    assert state == _COMPLETED, reason
    return code


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> np.ndarray:
    """The weights of the same training outside of any job."""
    folder = tmp_path_factory.mktemp("undisturbed")
    (folder / "go").touch()
    words = [sys.executable, str(_TRAINING), "run", str(_STEPS), "0", str(folder)]
    subprocess.run(words, cwd=folder, check=True, timeout=120)
    return weights_of(folder / "run")


def weights_of(run: Path) -> np.ndarray:
    state = holdfast.load(str(run))
    assert isinstance(state, Mapping)
    return np.asarray(state["weights"])


@pytest.fixture(scope="module")
def jobs(pool: Pool) -> dict[str, Trained]:
    """All of them, disturbed as often as they are to be; they are not done yet."""
    moved = begin(pool, "moved")
    held = begin(pool, "held")
    killed = begin(pool, "killed", "deaf", "pauses", more={"job_max_vacate_time": "1"})
    # These also end by themselves, which nothing but their status tells from their end.
    other_status = begin(pool, "other-status", "pauses", exit_code=77, run="flat")
    shared = begin(pool, "shared", "pauses", is_shared=True)
    early = begin(pool, "early", "late", outputs=["plots"])
    stored = begin(pool, "stored", "pauses", destination=f"place://{pool.folder('elsewhere')}")
    pool.wait_for(lambda: early.told("awake") != [], "a program that begins")
    pool.run("condor_vacate_job", early.job)
    wait_for_steps(pool, moved, starts=1)
    move(pool, moved)
    wait_for_steps(pool, held, starts=1)
    pool.run("condor_hold", held.job)
    # These have paused twice by then.
    for trained in (killed, other_status, shared, stored):
        wait_for_steps(pool, trained, starts=3)
    pool.run("condor_vacate_job", killed.job, other_status.job, shared.job, stored.job)
    pool.wait_for(lambda: pool.query(held.job, "JobStatus")[0] == _HELD, "a job on hold")
    pool.run("condor_release", held.job)
    wait_for_steps(pool, moved, starts=2)
    move(pool, moved)
    for trained in (killed, other_status, shared, stored):
        wait_for_steps(pool, trained, starts=4)
    wait_for_steps(pool, moved, starts=3)
    everyone = (moved, held, killed, other_status, shared, early, stored)
    for trained in everyone:
        (trained.folder / "marks" / "go").touch()
    return {trained.folder.name: trained for trained in everyone}


def check_finished(pool: Pool, trained: Trained, undisturbed: np.ndarray) -> None:
    """Done, and what came home has the bits of a training that nobody disturbed."""
    assert ended(pool, trained) == "0"
    assert np.array_equal(weights_of(trained.folder / trained.run), undisturbed)


def test_a_job_that_is_evicted_and_moved_twice_loses_no_step(
    pool: Pool, jobs: dict[str, Trained], undisturbed: np.ndarray
) -> None:
    moved = jobs["moved"]

    check_finished(pool, moved, undisturbed)

    slots, stops = moved.slots(), [int(step) for step in moved.told("stops")]
    assert len(slots) == 3
    assert slots[0] != slots[1] != slots[2]
    assert moved.starts() == [0, *stops]
    assert 0 < stops[0] < stops[1]
    assert f"finished at step {_STEPS}" in (moved.folder / f"moved-{moved.job.split('.')[0]}.out").read_text()


def test_a_job_that_is_held_and_released_loses_no_step(
    pool: Pool, jobs: dict[str, Trained], undisturbed: np.ndarray
) -> None:
    held = jobs["held"]

    check_finished(pool, held, undisturbed)

    assert held.starts() == [0, *(int(step) for step in held.told("stops"))]


def test_a_job_that_is_killed_goes_on_from_what_was_brought_home(
    pool: Pool, jobs: dict[str, Trained], undisturbed: np.ndarray
) -> None:
    killed = jobs["killed"]

    check_finished(pool, killed, undisturbed)

    starts, stops = killed.starts(), [int(step) for step in killed.told("stops")]
    # It did not hear the signal: nothing of the third start is left but the steps that were made again.
    assert starts[:4] == [0, 25, 50, 50]
    assert starts[4:] == stops[2:]


def test_the_status_of_the_job_counts(pool: Pool, jobs: dict[str, Trained], undisturbed: np.ndarray) -> None:
    other = jobs["other-status"]

    check_finished(pool, other, undisturbed)

    assert other.starts() == [0, *(int(step) for step in other.told("stops"))]
    assert len(other.starts()) > 3


def test_on_a_shared_file_system_status_85_brings_a_job_back(
    pool: Pool, jobs: dict[str, Trained], undisturbed: np.ndarray
) -> None:
    shared = jobs["shared"]

    check_finished(pool, shared, undisturbed)

    assert shared.starts() == [0, *(int(step) for step in shared.told("stops"))]
    assert len(shared.starts()) > 3
    # Each start has a file of its own.
    printed = [path.read_text() for path in shared.folder.glob(f"shared-{shared.job.split('.')[0]}-*.out")]
    assert len(printed) == len(shared.starts())
    assert printed.count(f"finished at step {_STEPS}\n") == 1


def test_a_job_that_is_evicted_before_it_knows_holdfast_begins_again(
    pool: Pool, jobs: dict[str, Trained], undisturbed: np.ndarray
) -> None:
    early = jobs["early"]

    check_finished(pool, early, undisturbed)

    assert len(early.told("awake")) == 2
    assert early.starts() == [0]


def test_checkpoints_that_are_kept_elsewhere_come_from_there(
    pool: Pool, jobs: dict[str, Trained], undisturbed: np.ndarray
) -> None:
    stored = jobs["stored"]

    check_finished(pool, stored, undisturbed)

    assert list((pool.root / "jobs" / "elsewhere").glob("*/0000/runs/small/holdfast.json"))
    # The checkpoint of an eviction does not get there: HTCondor goes on from the one before.
    assert stored.starts()[:4] == [0, 25, 50, 50]
    assert int(stored.told("stops")[2]) > 50


def test_a_second_job_continues_what_the_first_brought_home(pool: Pool, jobs: dict[str, Trained]) -> None:
    held = jobs["held"]
    assert ended(pool, held) == "0"

    job = pool.run("condor_submit", "-terse", "job.sub", folder=held.folder).split(" - ")[0]
    again = held._replace(job=job)

    assert ended(pool, again) == "0"
    assert again.starts()[-1] == _STEPS
