"""CheckpointedTask without a scheduler: which run is whose, what is a failure, and what is left behind."""

import configparser
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

import holdfast
from holdfast.core.limits import MAX_NAME_BYTES
from holdfast.core.names import is_valid_name
from tests.docs.pages import ROOT, blocks
from tests.integrations.luigid import need_luigi

need_luigi()

import luigi  # noqa: E402
import luigi.retcodes  # noqa: E402
import luigi.scheduler  # noqa: E402
import luigi.worker  # noqa: E402

from holdfast.integrations.luigi_task import CheckpointedTask, TaskStoppedError, run_name  # noqa: E402


@pytest.fixture(autouse=True)
def _own_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for variable in ("SLURM_JOB_ID", "_CONDOR_JOB_AD", "HOLDFAST_JOB"):
        monkeypatch.delenv(variable, raising=False)


class Count(CheckpointedTask):
    """Counts to ten, and makes one checkpoint of each step."""

    name = luigi.Parameter(default="a")
    note = luigi.Parameter(default="", significant=False)
    own_process = False

    def output(self) -> luigi.LocalTarget:
        return luigi.LocalTarget(f"{self.task_id[:40]}.txt")

    def run(self) -> None:
        state = {"count": 0}
        with self.checkpointer({"state": state}, every=holdfast.every(steps=1), keep=holdfast.KEEP_ALL) as ckpt:
            ckpt.restore()
            while state["count"] < 10:
                state["count"] += 1
                self.disturb(state["count"], ckpt)
                ckpt.step()
        with self.output().open("w") as file:
            file.write(str(state["count"]))

    def disturb(self, count: int, ckpt: holdfast.Checkpointer) -> None:
        pass


def build(task: luigi.Task) -> bool:
    """One try, by a scheduler and a worker in this process; whether it went well."""
    scheduler = luigi.scheduler.Scheduler(prune_on_get_work=True)
    with luigi.worker.Worker(scheduler=scheduler, no_install_shutdown_handler=True) as worker:
        worker.add(task)
        done: bool = worker.run()
    return done


def steps_of(task: CheckpointedTask) -> list[int]:
    with holdfast.Checkpointer(task.checkpoint_run, {}) as ckpt:
        return [checkpoint.step for checkpoint in ckpt.checkpoints()]


def test_the_run_of_a_task_has_the_name_that_luigi_shows() -> None:
    task = Count(name="x")

    assert task.checkpoint_run == f"checkpoints/{task.task_id}"


def test_other_parameters_are_another_run_unless_they_are_insignificant() -> None:
    first = Count(name="x")

    assert Count(name="y").checkpoint_run != first.checkpoint_run
    assert Count(name="x", note="other").checkpoint_run == first.checkpoint_run


@pytest.mark.parametrize(
    "value", ["../../etc", "/", ".", "..", "a\nb", "-rf", "$(id)", "ü" * 500, "\0", "x" * 10_000, "", "\ud800"]
)
def test_values_of_parameters_never_leave_the_directory(value: str, tmp_path: Path) -> None:
    try:
        task = Count(name=value)
    except UnicodeEncodeError:
        assert value == "\ud800"  # luigi itself refuses it
        return

    task.run()

    name = os.path.basename(task.checkpoint_run)
    assert is_valid_name(name)
    assert os.listdir("checkpoints") == [name]
    assert sorted(os.listdir(tmp_path)) == sorted(["checkpoints", task.output().path])


@given(st.text(max_size=400), st.text(max_size=400))
def test_any_id_gives_a_valid_name_and_different_ids_different_ones(one: str, other: str) -> None:
    assert is_valid_name(run_name(one))
    assert len(run_name(one)) <= MAX_NAME_BYTES
    assert (run_name(one) == run_name(other)) == (one == other)


def test_the_directory_of_checkpoints_may_be_a_parameter(tmp_path: Path) -> None:
    class Elsewhere(Count):
        checkpoint_directory = luigi.Parameter(significant=False)

    task = Elsewhere(checkpoint_directory=str(tmp_path / "elsewhere"))

    task.run()

    assert os.listdir(tmp_path / "elsewhere") == [task.task_id]


def test_an_exception_of_the_program_reaches_luigi_as_it_is_and_the_next_try_goes_on() -> None:
    class Fails(Count):
        def disturb(self, count: int, ckpt: holdfast.Checkpointer) -> None:
            if count == 4 and ckpt.attempt == 1:
                raise KeyError("of the program")

    task = Fails()

    with pytest.raises(KeyError, match="of the program"):
        task.run()
    assert not task.complete()
    assert steps_of(task) == [1, 2, 3]
    task.run()

    assert Path(task.output().path).read_text() == "10"
    assert steps_of(task) == list(range(1, 11))


def test_a_stop_is_a_failure_that_says_what_is_saved_without_a_traceback() -> None:
    class Stops(Count):
        def disturb(self, count: int, ckpt: holdfast.Checkpointer) -> None:
            if count == 4:
                ckpt.stop("of the test")

    task = Stops()

    with pytest.raises(TaskStoppedError, match="step 4 is saved") as stopped:
        task.run()

    assert task.on_failure(stopped.value) == str(stopped.value)
    assert "keep_alive" in stopped.value.hint
    assert stopped.value.__cause__ is None


def test_a_stop_that_the_program_is_told_of_as_an_exception_is_the_same_failure() -> None:
    class Raises(CheckpointedTask):
        def run(self) -> None:
            with self.checkpointer({"state": {}}, on_stop="raise", exit_code=9) as ckpt:
                ckpt.stop("of the test")
                ckpt.step()

    with pytest.raises(TaskStoppedError, match="step 1 is saved") as stopped:
        Raises().run()

    assert stopped.value.status == 9


def test_ctrl_c_reaches_the_worker_as_an_interrupt() -> None:
    class Interrupts(Count):
        def run(self) -> None:
            with self.checkpointer({"state": {}}, on_stop="raise") as ckpt:
                ckpt.step()
                os.kill(os.getpid(), signal.SIGINT)
                ckpt.step()

    with pytest.raises(KeyboardInterrupt):
        build(Interrupts())


@pytest.mark.parametrize("status", [0, 1, 3, None, "85", "a message"])
def test_sys_exit_of_the_program_is_not_taken_for_a_stop(status: object) -> None:
    class Exits(Count):
        def disturb(self, count: int, ckpt: holdfast.Checkpointer) -> None:
            sys.exit(status)  # type: ignore[arg-type]

    with pytest.raises(SystemExit) as raised:
        Exits().run()

    assert raised.value.code == status


def test_an_error_explains_itself_to_the_scheduler_as_in_any_other_task() -> None:
    try:
        raise ValueError("of the program")
    except ValueError as error:
        said = Count().on_failure(error)

    assert "Traceback" in str(said)
    assert "of the program" in str(said)


def test_checkpoints_stay_when_the_task_is_done() -> None:
    task = Count()

    assert build(task)

    assert len(steps_of(task)) == 10


def test_checkpoints_are_removed_when_the_task_is_done_and_that_was_asked_for() -> None:
    class Tidy(Count):
        keep_checkpoints = False

        def disturb(self, count: int, ckpt: holdfast.Checkpointer) -> None:
            if count == 3:
                ckpt.pin()

    task = Tidy()

    assert build(task)

    assert steps_of(task) == [2]  # which is pinned


def test_checkpoints_stay_where_a_task_ends_without_its_output() -> None:
    class Forgets(Count):
        keep_checkpoints = False

        def output(self) -> luigi.LocalTarget:
            return luigi.LocalTarget("never-written.txt")

        def run(self) -> None:
            with self.checkpointer({"state": {}}) as ckpt:
                ckpt.save(step=1)

    task = Forgets()

    build(task)

    assert steps_of(task) == [1]


def test_a_task_whose_checkpoints_cannot_be_removed_is_done_all_the_same(caplog: pytest.LogCaptureFixture) -> None:
    class Tidy(Count):
        keep_checkpoints = False

        def run(self) -> None:
            os.makedirs(self.checkpoint_run)  # not a run
            Path(self.checkpoint_run, "holdfast.json").write_text("damaged")
            self.output().open("w").close()

    assert build(Tidy(name="odd"))


def test_a_task_that_waits_for_another_one_lets_its_run_go() -> None:
    class Asks(CheckpointedTask):
        def run(self):  # type: ignore[no-untyped-def]
            with self.checkpointer({"state": {}}) as ckpt:
                ckpt.save(step=1)
                yield Count()

    task = Asks()
    going = task.run()
    next(going)

    with pytest.raises(holdfast.RunBusyError):
        holdfast.Checkpointer(task.checkpoint_run, {})
    going.close()  # as luigi does; it calls run() again when the other one is complete

    assert steps_of(task) == [1]


def test_a_task_has_a_process_of_its_own_unless_told_otherwise() -> None:
    class Plain(CheckpointedTask):
        pass

    class Limited(CheckpointedTask):
        worker_timeout = 60

    assert Plain().worker_timeout > 10 * 365 * 86_400
    assert Count().worker_timeout is None
    assert Limited().worker_timeout == 60


def test_the_timeout_of_the_configuration_holds() -> None:
    class Plain(CheckpointedTask):
        pass

    config = luigi.configuration.get_config()
    config.set("worker", "timeout", "77")

    try:
        assert Plain().worker_timeout == 77
    finally:
        config.remove_option("worker", "timeout")


def test_the_task_comes_before_other_bases() -> None:
    with pytest.raises(TypeError):
        type("Wrong", (luigi.Task, CheckpointedTask), {})


def test_luigi_has_the_settings_that_the_how_to_shows_and_the_defaults_that_it_tells() -> None:
    page = ROOT / "docs/how-to/luigi.md"
    sections = {
        "scheduler": luigi.scheduler.scheduler,
        "worker": luigi.worker.worker,
        "retcode": luigi.retcodes.retcode,
    }

    for block in (block for block in blocks(page) if block.language == "ini"):
        shown = configparser.ConfigParser()
        shown.read_string(block.text)
        for section in shown.sections():
            known = dict(sections[section].get_params())
            assert sorted(set(shown[section]) - set(known)) == []
    scheduler, worker, status = (section() for section in sections.values())
    assert (scheduler.retry_delay, scheduler.prune_on_get_work, scheduler.worker_disconnect_delay) == (900, False, 60)
    assert (worker.keep_alive, worker.max_reschedules) == (False, 1)
    assert (status.task_failed, status.already_running, status.unhandled_exception) == (0, 0, 4)


def test_without_luigi_the_import_says_what_to_install() -> None:
    code = "import sys; sys.modules['luigi'] = None\nimport holdfast.integrations.luigi_task"

    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=False)

    assert done.returncode == 1
    said = done.stderr.splitlines()[-1]
    assert said.startswith("ImportError: holdfast.integrations.luigi_task needs luigi, which is not installed")
    assert "pip install 'holdfast[luigi]'" in said


def test_importing_holdfast_does_not_import_luigi() -> None:
    code = "import sys, holdfast; holdfast.Checkpointer; sys.exit('luigi' in sys.modules)"

    assert subprocess.run([sys.executable, "-c", code], timeout=120, check=False).returncode == 0
