"""CheckpointedTask under a real luigi: tasks and workers that end in every way, and what comes out in the end."""

import os
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.integrations.luigi_tasks.training import undisturbed
from tests.integrations.luigid import ALREADY_RUNNING, DEADLINE_S, TASK_FAILED, Luigi, need_luigi

need_luigi()

pytestmark = [pytest.mark.slow, pytest.mark.scheduler]

_STEPS = 60


@pytest.fixture
def luigi(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Luigi]:
    """Nothing of it runs yet."""
    for variable in ("SLURM_JOB_ID", "_CONDOR_JOB_AD", "HOLDFAST_JOB"):
        monkeypatch.delenv(variable, raising=False)
    started = Luigi(tmp_path)
    yield started
    started.stop()


@pytest.fixture
def central(luigi: Luigi) -> Luigi:
    """With a central scheduler."""
    luigi.start_scheduler()
    return luigi


@pytest.mark.parametrize("seed", [1, 3])
def test_tasks_that_crash_at_random_finish_with_the_result_of_undisturbed_ones(
    central: Luigi, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("HOLDFAST_BACKGROUND")  # as users have it
    faults = '["raise", "exit", "kill", "stop", "status"]'

    status = central.run("Both", "--workers", "2", "--seed", str(seed), "--faults", faults)

    assert status == 0, central.log()
    assert result(central, "one") == undisturbed(_STEPS, seed)
    assert result(central, "two") == undisturbed(_STEPS, seed + 1)
    starts = [int(line.split()[2]) for line in notes(central) if " begins " in line]
    assert len(starts) > 6
    assert max(starts) >= 40
    # Or more often: a worker that is told twice of one death takes the next attempt for dead, too.
    assert notes(central).count("event success Train") >= 2


@pytest.mark.parametrize("fault", ["raise", "kill", "stop"])
def test_a_task_that_ends_in_each_way_is_run_again_by_its_only_worker(luigi: Luigi, fault: str) -> None:
    status = luigi.run("Train", "--name", "one", "--faults", f'["{fault}"]', local=True)

    assert status == 0, luigi.log()
    assert notes(luigi)[1].startswith(f"one {fault}")
    assert result(luigi, "one") == undisturbed(_STEPS, 1)
    seen = {line for line in notes(luigi) if line.startswith("event")}
    expected = {"raise": "RuntimeError", "stop": "TaskStoppedError"}.get(fault)
    how = f"event failure {expected}" if expected else "event process_failure"
    assert seen == {"event success Train", how}, luigi.log()


def test_a_worker_that_does_not_wait_says_that_the_task_failed_and_the_next_one_goes_on(luigi: Luigi) -> None:
    luigi.configure("worker", keep_alive="false")
    first = luigi.run("Train", "--name", "one", "--faults", '["stop"]', local=True)
    assert first == TASK_FAILED
    assert "was stopped before it was done" in luigi.log()
    assert not (luigi.folder / "one.model").exists()

    second = luigi.run("Train", "--name", "one", local=True)

    assert second == 0
    assert result(luigi, "one") == undisturbed(_STEPS, 1)
    assert notes(luigi)[-2] != "one begins 0"


def test_a_task_that_fails_for_good_is_given_up(central: Luigi) -> None:
    status = central.run(
        "Train", "--name", "one", "--faults", '["raise"]', "--at-random", "--tries", "3", "--steps", "999"
    )

    assert status == TASK_FAILED
    assert sum(" begins " in line for line in notes(central)) == 3
    assert not (central.folder / "one.model").exists()


def test_a_damaged_checkpoint_is_passed_over_at_the_next_try(central: Luigi) -> None:
    central.configure("worker", keep_alive="false")
    assert central.run("Train", "--name", "one", "--faults", '["stop"]') == TASK_FAILED
    run = next((central.folder / "checkpoints").iterdir())
    newest = max(run.glob("0*/rank-00000.safetensors"))
    damage(newest)
    saved = int(newest.parent.name.split("-")[0])

    status = central.run("Train", "--name", "one")

    assert status == 0, central.log()
    assert result(central, "one") == undisturbed(_STEPS, 1)
    last = [line for line in notes(central) if " begins " in line][-1]
    assert int(last.split()[2]) < saved


def test_when_a_worker_is_killed_its_task_ends_and_another_worker_goes_on(luigi: Luigi) -> None:
    luigi.configure("scheduler", worker_disconnect_delay=3)
    luigi.start_scheduler()
    first = luigi.start("Train", "--name", "one", "--faults", '["hang"]')
    wait_until(lambda: any(line.startswith("pid ") for line in notes(luigi)))
    task = int(next(line for line in notes(luigi) if line.startswith("pid ")).split()[1])

    os.kill(first.pid, signal.SIGKILL)  # not its process group
    first.wait(DEADLINE_S)
    (luigi.folder / "go").touch()
    wait_until(lambda: is_dead(task))
    # Until the scheduler misses the first one, it says that the task is being run.
    wait_until(lambda: luigi.run("Train", "--name", "one") != ALREADY_RUNNING)

    assert "event failure TaskStoppedError" in notes(luigi)
    assert result(luigi, "one") == undisturbed(_STEPS, 1)


@pytest.mark.parametrize(("scheduler", "own_process"), [("slurm", "true"), ("htcondor", "true"), ("none", "false")])
def test_a_stop_in_a_batch_job_or_in_the_process_of_the_worker_ends_that_with_the_status_for_it(
    central: Luigi, scheduler: str, own_process: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    central.configure("retcode", task_failed=85)
    monkeypatch.setenv("HOLDFAST_TIME_LEFT", "1 h")  # there is nobody to ask
    if scheduler == "slurm":
        monkeypatch.setenv("SLURM_JOB_ID", "17")
    elif scheduler == "htcondor":
        (central.folder / "job.ad").write_text("ClusterId = 17\nProcId = 0\nCheckpointExitCode = 77\n")
        monkeypatch.setenv("_CONDOR_JOB_AD", str(central.folder / "job.ad"))
    options = ["--name", "one", "--own-process", own_process]

    first = central.run("Train", *options, "--faults", '["stop"]')

    assert first == 85, central.log()
    assert sum(" begins " in line for line in notes(central)) == 1
    assert central.run("Train", *options) == 0, central.log()
    assert result(central, "one") == undisturbed(_STEPS, 1)


def test_sigusr1_to_the_worker_and_its_task_has_both_end_with_the_status_for_it(central: Luigi) -> None:
    central.configure("retcode", task_failed=85)
    worker = central.start("Train", "--name", "one", "--faults", '["hang"]')
    wait_until(lambda: any(line.startswith("pid ") for line in notes(central)))

    os.killpg(worker.pid, signal.SIGUSR1)
    (central.folder / "go").touch()

    assert worker.wait(DEADLINE_S) == 85, central.log()
    assert central.run("Train", "--name", "one") == 0
    assert result(central, "one") == undisturbed(_STEPS, 1)


def test_of_two_processes_that_one_worker_has_for_a_task_the_later_one_counts(luigi: Luigi) -> None:
    assert luigi.start_python("two_of_one.py").wait(DEADLINE_S) == 0, luigi.log()

    assert result(luigi, "one") == undisturbed(_STEPS, 1)
    assert "luigi has forgotten a process of this task" in luigi.log()


def test_one_that_runs_already_is_not_disturbed_by_a_second_one(luigi: Luigi) -> None:
    first = luigi.start("Train", "--name", "one", "--faults", '["hang"]', local=True)
    wait_until(lambda: any(line.startswith("pid ") for line in notes(luigi)))
    luigi.configure("worker", keep_alive="false")

    second = luigi.run("Train", "--name", "one", local=True)

    assert second == TASK_FAILED
    assert "RunBusyError" in luigi.log()
    assert first.poll() is None


def result(luigi: Luigi, name: str) -> bytes:
    return (luigi.folder / f"{name}.model").read_bytes()


def notes(luigi: Luigi) -> list[str]:
    path = luigi.folder / "notes.txt"
    return path.read_text().splitlines() if path.exists() else []


def damage(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.chmod(0o600)
    path.write_bytes(data)


def is_dead(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except FileNotFoundError:
        return True


def wait_until(is_so: Callable[[], bool]) -> None:
    give_up_s = time.monotonic() + DEADLINE_S
    while not is_so():
        assert time.monotonic() < give_up_s
        time.sleep(0.05)
