"""Trainings that `holdfast submit slurm` submits to a real Slurm: through limits, preemption, a lost node, to the end.

The long ones are submitted first and run beside the others. A training that needs four minutes, with a limit of one,
takes about six; most of it asleep.
"""

import os
import signal
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.slurm.cluster import Slurm
from tests.slurm.conftest import require_slurm
from tests.slurm.jobs import Job, Jobs, result_of, wait_for

pytestmark = [pytest.mark.slow, pytest.mark.scheduler]

_LONG_STEPS, _LONG_PAUSE_S = 1200, 0.2
_STEPS, _PAUSE_S = 100, 0.2
_ENOUGH_TASKS = 16
# Saves only when it is killed at its limit: no warning is heeded, no deadline is known.
# Slurm signals a program at its limit more than once, and Python's handlers are gone before its last lines are: the
# second one would end it with another status.
_STUBBORN = """
import os, signal, sys, time
if os.environ.get("SLURM_RESTART_COUNT", "0") != "0":
    sys.exit(0)
signal.signal(signal.SIGUSR1, signal.SIG_IGN)
signal.signal(signal.SIGTERM, lambda number, frame: os._exit(85))
time.sleep(600)
"""


class Started(NamedTuple):
    """What runs from the beginning."""

    jobs: Jobs
    requeued: Job
    chain: Job
    stubborn: Job


@pytest.fixture(scope="module")
def started(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Started]:
    require_slurm()
    slurm = Slurm(nodes=6)
    try:
        jobs = Jobs(slurm, tmp_path_factory.mktemp("jobs"))
        with jobs.releasing():
            long = {"steps": _LONG_STEPS, "pause_s": _LONG_PAUSE_S}
            yield Started(
                jobs,
                requeued=jobs.train("requeued", "--requeue", "--time=1", "-w", "node1", **long),
                chain=jobs.train("chain", "--array", str(_ENOUGH_TASKS), "--time=1", "-w", "node1", **long),
                stubborn=jobs.submit("stubborn", "--time=1", "-w", "node2", "--", sys.executable, "-c", _STUBBORN),
            )
    finally:
        slurm.stop()


@pytest.fixture
def jobs(started: Started) -> Jobs:
    return started.jobs


def begin(jobs: Jobs, name: str, *options: str, before: Sequence[str] = ()) -> Job:
    """A training that has a checkpoint, and is not done."""
    job = jobs.train(name, "--time=20", *options, steps=_STEPS, pause_s=_PAUSE_S, before=before)
    wait_for(lambda: job.has_checkpoint, lambda: f"a checkpoint\n{job.output}")
    assert job.results == []
    return job


def preempt(jobs: Jobs, node: str, folder: Path) -> None:
    """Have a job of a higher priority take the node, and give it back."""
    jobs.slurm.submit("true", "--partition=high", f"--nodelist={node}", "--exclusive", "--time=1", folder=folder)


def restarts(jobs: Jobs, job: Job) -> int:
    return int(jobs.slurm.shown(job.number)["Restarts"])


def is_program(pid: int) -> bool:
    """Not the shell, nor srun, nor an agent."""
    try:
        first, *rest = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
    except OSError:
        return False
    return first.endswith(b"python") and any(b"long_training" in word for word in rest)


def test_a_job_on_a_lost_node_goes_on_elsewhere_while_the_old_one_still_runs(jobs: Jobs) -> None:
    job = jobs.train("lost", "--time=20", "-w", "node6", steps=900, pause_s=0.1)
    wait_for(lambda: job.has_checkpoint, lambda: f"a checkpoint\n{job.output}")
    jobs.slurm.lose("node6")
    wait_for(lambda: restarts(jobs, job) == 1, lambda: f"the node to be declared down\n{job.output}")
    # It may run anywhere now.
    jobs.slurm.run("scontrol", "update", f"jobid={job.number}", "ReqNodeList=")
    old = jobs.slurm.processes(job.number)
    wait_for(lambda: "taken over from attempt 1" in job.output, lambda: f"a new start\n{job.output}")
    # The old program, whose end must not bring the job back once more.
    programs = [pid for pid in old if is_program(pid)]
    for pid in programs:
        os.kill(pid, signal.SIGTERM)

    jobs.wait_for_end(job)

    assert programs != []
    assert jobs.state(job) == "COMPLETED", jobs.story(job)
    assert restarts(jobs, job) == 1
    assert job.results == [result_of(900)]


@pytest.mark.parametrize("partition", ["low", "graced", "cancelled"])
def test_a_preempted_training_comes_to_the_same_end(jobs: Jobs, tmp_path: Path, partition: str) -> None:
    job = begin(jobs, partition, "-p", partition, "-w", "node5", "--exclusive")

    preempt(jobs, "node5", tmp_path)

    jobs.wait_for_end(job)
    assert jobs.state(job) == "COMPLETED", jobs.story(job)
    assert restarts(jobs, job) == 1
    assert [event["lost_steps"] for event in job.events("stopped")] == [0]
    assert job.results == [result_of(_STEPS)]


def test_after_a_preempted_task_of_a_chain_the_next_one_continues(jobs: Jobs, tmp_path: Path) -> None:
    job = begin(jobs, "preempted-chain", "--array", "3", "-w", "node5", "--exclusive")

    preempt(jobs, "node5", tmp_path)

    jobs.wait_for_tasks(job)
    first, second, *rest = (state for _, state in sorted(jobs.tasks(job).items()))
    assert (first, second, rest) == ("PREEMPTED", "COMPLETED", ["CANCELLED"])
    assert [event["lost_steps"] for event in job.events("stopped")] == [0]
    assert job.results == [result_of(_STEPS)]


def test_a_training_that_is_sent_a_signal_saves_and_comes_back(jobs: Jobs) -> None:
    job = begin(jobs, "signalled")

    jobs.slurm.run("scancel", "--signal=USR1", job.number)

    jobs.wait_for_end(job)
    assert jobs.state(job) == "COMPLETED", jobs.story(job)
    assert restarts(jobs, job) == 1
    assert [event["lost_steps"] for event in job.events("stopped")] == [0]
    assert job.results == [result_of(_STEPS)]


def test_a_training_without_srun_is_told_by_the_shell(jobs: Jobs) -> None:
    job = begin(jobs, "by-shell", "--no-srun")

    jobs.slurm.run("scancel", "--batch", "--signal=USR1", job.number)

    jobs.wait_for_end(job)
    assert jobs.state(job) == "COMPLETED", jobs.story(job)
    assert restarts(jobs, job) == 1
    assert [event["lost_steps"] for event in job.events("stopped")] == [0]
    assert job.results == [result_of(_STEPS)]


_RUN = (sys.executable, "-m", "holdfast", "run", "--")


@pytest.mark.parametrize(
    ("name", "options", "before", "told"),
    [("srun-run", (), _RUN, ()), ("run-srun", ("--no-srun",), (*_RUN, "srun"), ("--batch",))],
    ids=["a supervisor that srun starts", "a supervisor that starts srun"],
)
def test_a_supervisor_in_a_job_passes_the_signal_and_the_status_on(
    jobs: Jobs, name: str, options: Sequence[str], before: Sequence[str], told: Sequence[str]
) -> None:
    job = begin(jobs, name, *options, before=before)

    jobs.slurm.run("scancel", *told, "--signal=USR1", job.number)

    jobs.wait_for_end(job)
    assert jobs.state(job) == "COMPLETED", jobs.story(job)
    assert restarts(jobs, job) == 1
    assert [event["lost_steps"] for event in job.events("stopped")] == [0]
    assert job.results == [result_of(_STEPS)]


def test_a_training_that_is_cancelled_saves_and_does_not_come_back(jobs: Jobs) -> None:
    job = begin(jobs, "cancelled-by-user")

    jobs.slurm.run("scancel", job.number)

    jobs.wait_for_end(job)
    assert jobs.state(job) == "CANCELLED"
    assert restarts(jobs, job) == 0
    assert "cancelled, and not requeued" in job.output
    assert [event["lost_steps"] for event in job.events("stopped")] == [0]


def test_a_program_that_fails_is_not_started_again(jobs: Jobs) -> None:
    job = jobs.submit("failing", "--", "sh", "-c", "exit 3")

    jobs.wait_for_end(job)

    assert (jobs.state(job), jobs.slurm.shown(job.number)["ExitCode"]) == ("FAILED", "3:0")
    assert restarts(jobs, job) == 0


def test_a_program_that_is_never_done_is_requeued_only_as_often_as_allowed(jobs: Jobs) -> None:
    job = jobs.submit("endless", "--max-restarts", "1", "--", "sh", "-c", "echo started >>starts; exit 85")

    jobs.wait_for_end(job)

    assert (job.folder / "starts").read_text() == "started\n" * 2
    assert jobs.slurm.shown(job.number)["ExitCode"] == "85:0"
    assert "not requeued (--max-restarts 1)" in job.output


def test_a_job_that_is_submitted_from_inside_of_another_is_not_taken_for_that(jobs: Jobs) -> None:
    variables = {
        "SLURM_JOB_ID": "99",
        "SLURM_ARRAY_JOB_ID": "98",
        "SLURM_RESTART_COUNT": "7",
        "HOLDFAST_TURN": "7",
        "SBATCH_SIGNAL": "B:USR2@5",
        "SBATCH_NO_REQUEUE": "1",
        "SBATCH_OPEN_MODE": "truncate",
    }
    script = "echo ${SLURM_RESTART_COUNT:-none} ${SLURM_ARRAY_JOB_ID:-none}; exit 85"

    job = jobs.submit("inside", "--max-restarts", "1", "--", "sh", "-c", script, **variables)
    jobs.wait_for_end(job)

    told = [line for line in job.output.splitlines() if line.endswith(" none")]
    assert told == ["none none", "1 none"], jobs.story(job)


def test_words_of_the_command_and_of_options_arrive_as_they_are(jobs: Jobs) -> None:
    nasty = [
        "a b",
        "$(touch pwned)",
        "`touch pwned`",
        "it's",
        '"',
        "\\",
        "#",
        "*",
        "",
        "--",
        "%j",
        "ü",
        "\n#SBATCH --nope\n",
    ]
    write = "import sys; open('words', 'w').write(repr(sys.argv[1:]))"
    comment = 'a \\ $(touch pwned) "b" it\'s #c'

    job = jobs.submit("nasty", f"--comment={comment}", "--", sys.executable, "-c", write, *nasty)
    jobs.wait_for_end(job)

    assert (job.folder / "words").read_text() == repr(nasty)
    assert f"Comment={comment}" in jobs.slurm.run("scontrol", "--oneliner", "show", "job", job.number)
    assert not (job.folder / "pwned").exists()


def test_the_name_of_the_job_reaches_the_program_also_where_sbatch_exports_nothing(jobs: Jobs) -> None:
    # Where the cluster is, the nodes do not know by themselves here.
    only = f"--export=SLURM_CONF={jobs.slurm.environ['SLURM_CONF']}"

    words = "echo $HOLDFAST_JOB $HOLDFAST_TURN >words"
    job = jobs.submit("bare", only, "--array", "2", "--name", "bare", "--", "/bin/sh", "-c", words)
    jobs.wait_for_tasks(job)

    assert (job.folder / "words").read_text() == f"bare-{job.number} 1\n"


def half_a_scheduler(folder: Path, *programs: str) -> str:
    """A directory that has only these."""
    folder.mkdir()
    for name in (*programs, "sh", "mkdir", "touch", "sleep"):
        for place in ("/usr/bin", "/bin"):
            if not (folder / name).is_symlink() and os.path.exists(f"{place}/{name}"):
                (folder / name).symlink_to(f"{place}/{name}")
    return str(folder)


def test_without_scontrol_the_job_says_that_it_is_not_done_and_ends_with_that_status(
    jobs: Jobs, tmp_path: Path
) -> None:
    path = half_a_scheduler(tmp_path / "bin", "srun")

    job = jobs.submit("half", "--", "sh", "-c", "exit 85", path=path)
    jobs.wait_for_end(job)

    assert jobs.slurm.shown(job.number)["ExitCode"] == "85:0"
    assert f"there is no scontrol here; elsewhere: scontrol requeue {job.number}" in job.output


def test_tasks_that_start_after_the_work_is_done_end_at_once(jobs: Jobs, tmp_path: Path) -> None:
    # Without scancel the chain cannot be cut short.
    path = half_a_scheduler(tmp_path / "bin", "srun")

    job = jobs.submit("uncut", "--array", "3", "--", "sh", "-c", "echo started >>starts", path=path)
    jobs.wait_for_tasks(job)

    assert set(jobs.tasks(job).values()) == {"COMPLETED"}
    assert (job.folder / "starts").read_text() == "started\n"
    assert job.output.count("the work is done already") == 2


def test_a_chain_that_is_too_short_ends_with_the_status_that_says_so(jobs: Jobs) -> None:
    job = jobs.submit(
        "short", "--array", "2", "--name", "short", "--", "sh", "-c", "echo $HOLDFAST_JOB >>names; exit 85"
    )

    jobs.wait_for_tasks(job)

    assert jobs.tasks(job) == {1: "COMPLETED", 2: "FAILED"}
    assert (job.folder / "names").read_text() == f"short-{job.number}\n" * 2
    assert f"--job short-{job.number}" in job.output


def test_a_job_that_only_its_limit_stops_is_requeued_all_the_same(started: Started) -> None:
    started.jobs.wait_for_end(started.stubborn)

    assert started.jobs.state(started.stubborn) == "COMPLETED", started.jobs.story(started.stubborn)
    assert restarts(started.jobs, started.stubborn) == 1
    assert "TIME LIMIT" in started.stubborn.output


def test_a_training_of_four_minutes_finishes_with_a_limit_of_one_by_requeue(started: Started) -> None:
    jobs, job = started.jobs, started.requeued
    jobs.wait_for_end(job)

    assert jobs.state(job) == "COMPLETED", jobs.story(job)
    assert restarts(jobs, job) >= 3
    assert job.results == [result_of(_LONG_STEPS)]
    assert len(list(job.folder.glob("runs/*"))) == 1
    assert [event["lost_steps"] for event in job.events("stopped")] == [0] * restarts(jobs, job)


def test_a_training_of_four_minutes_finishes_with_a_limit_of_one_by_a_chain_that_ends_early(started: Started) -> None:
    jobs, job = started.jobs, started.chain
    jobs.wait_for_tasks(job)

    states = jobs.tasks(job)
    used = sorted(task for task, state in states.items() if state == "COMPLETED")
    assert used == list(range(1, len(used) + 1))
    assert 4 <= len(used) < _ENOUGH_TASKS
    assert {states[task] for task in states if task not in used} == {"CANCELLED"}
    assert job.results == [result_of(_LONG_STEPS)]
    assert len(list(job.folder.glob("runs/*"))) == 1
