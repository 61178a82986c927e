"""What `holdfast submit slurm` makes of its options, where no Slurm is needed for it."""

import argparse
import shlex
import subprocess
from pathlib import Path

import pytest

from holdfast.core.errors import NotSubmittedError, StorageError, UsageError
from holdfast.integrations import slurm_submit

_COMMAND = ("python", "train.py")


def describe(*words: str, command: tuple[str, ...] = _COMMAND) -> str:
    parser = argparse.ArgumentParser(allow_abbrev=False)
    slurm_submit.add_arguments(parser)
    arguments, arguments.options = parser.parse_known_args(words)
    return slurm_submit.describe(arguments, command)


def directives(text: str) -> list[str]:
    """The options that sbatch reads: those above the first command."""
    top = text[: text.index("\nsay()")]
    found: list[str] = []
    for line in top.splitlines():
        found += shlex.split(line.removeprefix("#SBATCH"), comments=True) if line.startswith("#SBATCH") else []
    return found


def test_a_job_is_told_before_its_limit_requeued_and_its_output_appended():
    found = directives(describe("--time=4:00:00", "-p", "low"))

    assert {"--signal=USR1@120", "--requeue", "--open-mode=append", "--time=4:00:00", "--job-name=train"} <= set(found)
    assert found[found.index("-p") + 1] == "low"
    assert "--output=train-%j.out" in found


def test_a_chain_is_an_array_of_one_task_at_a_time_that_is_not_requeued():
    found = directives(describe("--array", "20"))

    assert {"--array=1-20%1", "--no-requeue", "--output=train-%A.out"} <= set(found)
    assert "--requeue" not in found


@pytest.mark.parametrize("words", [(), ("--array", "3"), ("--no-srun",)], ids=["requeue", "array", "no srun"])
def test_what_is_written_is_a_script_that_bash_understands(words, tmp_path):
    script = tmp_path / "script"
    script.write_text(describe(*words, '--comment=it\'s \\ "x"', command=("python", "a b.py", "$x", "it's", "\n")))

    checked = subprocess.run(["bash", "-n", script], capture_output=True, text=True, timeout=60, check=False)

    assert (checked.returncode, checked.stderr) == (0, "")


@pytest.mark.parametrize(
    ("words", "signal"),
    [
        ((), "--signal=USR1@120"),
        (("--time=1",), "--signal=USR1@15"),
        (("--time=UNLIMITED",), "--signal=USR1@120"),
        (("--signal-before", "10min"), "--signal=USR1@600"),
        (("--signal-before", "10min", "-t", "20"), "--signal=USR1@600"),
    ],
)
def test_the_program_is_told_two_minutes_before_or_a_quarter_or_as_it_is_wished(words, signal):
    assert signal in directives(describe(*words))


def test_own_wishes_for_the_output_count():
    found = directives(describe("-o", "log/%j"))

    assert not any(word.startswith("--output") for word in found)
    assert found[found.index("-o") + 1] == "log/%j"


def test_a_command_that_begins_with_srun_is_left_as_it_is():
    assert "\nsrun -n 4 ./simulate\n" in describe(command=("srun", "-n", "4", "./simulate"))


def test_the_cores_of_a_task_are_given_on_to_srun():
    assert '\nsrun --cpus-per-task="$SLURM_CPUS_PER_TASK" python train.py\n' in describe("-c", "8")


def test_without_srun_the_signal_goes_to_the_shell_which_starts_the_command_itself():
    text = describe("--no-srun", command=("mpirun", "python", "train.py"))

    assert "--signal=B:USR1@120" in directives(text)
    assert "\nmpirun python train.py &\n" in text
    assert "srun" not in text.replace("mpirun", "")


@pytest.mark.parametrize(
    ("command", "name"),
    [
        (("python3.12", "-u", "dir/my train.py"), "my-train"),
        (("./simulate", "input"), "simulate"),
        (("python", "-m", "package.train"), "package.train"),
        (("python",), "python"),
        (("/bin/bash", "-lc", "cd x; python train.py"), "bash"),
        (("/opt/bin/holdfast", "run", "--app", "gromacs", "--", "gmx", "mdrun"), "gmx"),
        (("holdfast", "run"), "holdfast"),
        (("...",), "job"),
        (("$(reboot)",), "reboot"),
        (("x" * 200,), "x" * 60),
    ],
)
def test_a_job_is_named_after_its_program(command, name):
    assert f"--job-name={name}" in directives(describe(command=command))


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--signal=B:USR1@90",), "--signal=B:USR1@90 is not given on"),
        (("--wrap=python",), "not given on"),
        (("-J", "x"), "-J is not given on"),
        (("-a", "1-5"), "-a is not given on"),
        (("--no-requeue",), "not given on"),
        (("--open-mode=truncate",), "not given on"),
        (("--array", "1-5"), "expected a whole number"),
        (("--array", "0"), "expected a whole number"),
        (("--max-restarts", "x"), "expected a whole number"),
        (("--signal-before", "soon"), "expected a duration"),
        (("--signal-before", "0"), "expected 1 s to 18 h"),
        (("--signal-before", "2min", "--time=2"), "as long as the whole job"),
        (("--time=soon",), "is no time"),
        (("--name", "a b"), "expected letters"),
        (("--name", "../x"), "expected letters"),
        (("--job", "$(reboot)"), "expected letters"),
        (("--comment=a\nb",), "control character"),
        (("train.py",), "is no option of sbatch"),
    ],
)
def test_what_makes_no_sense_is_refused(words, message):
    with pytest.raises(UsageError, match=message.replace("(", r"\(").replace("$", r"\$")):
        describe(*words)


def test_without_a_command_there_is_nothing_to_submit():
    with pytest.raises(UsageError, match="no command"):
        describe(command=())


def test_without_sbatch_nothing_is_written(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))

    with pytest.raises(UsageError, match="no sbatch here"):
        slurm_submit.submit("text", str(tmp_path / "job.sbatch"))

    assert list(tmp_path.iterdir()) == []


def with_sbatch(folder: Path, monkeypatch: pytest.MonkeyPatch, script: str) -> None:
    """A scheduler that is out of order: what a real one cannot be made to do."""
    (folder / "bin").mkdir()
    (folder / "bin" / "sbatch").write_text(f"#!/bin/sh\n{script}\n")
    (folder / "bin" / "sbatch").chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder / 'bin'}:/usr/bin:/bin")


@pytest.mark.parametrize(
    "script",
    ["echo 'Batch job submission failed' >&2; exit 1", "echo", "echo 'no number'", "echo 12; exit 1", "kill -9 $$"],
)
def test_a_job_that_was_not_submitted_is_never_told_as_submitted(tmp_path, monkeypatch, script):
    with_sbatch(tmp_path, monkeypatch, script)

    with pytest.raises(NotSubmittedError, match="sbatch: status"):
        slurm_submit.submit("text", str(tmp_path / "job.sbatch"))


def test_what_sbatch_complains_of_in_several_lines_is_told_in_one(tmp_path, monkeypatch):
    with_sbatch(tmp_path, monkeypatch, "printf 'error: no route\\nfatal: no controller\\n' >&2; exit 1")

    with pytest.raises(NotSubmittedError, match="status 1: error: no route; fatal: no controller") as caught:
        slurm_submit.submit("text", str(tmp_path / "job.sbatch"))

    assert f"`sbatch {tmp_path / 'job.sbatch'}`" in caught.value.hint
    assert (tmp_path / "job.sbatch").exists()


def test_the_number_is_told_with_or_without_the_name_of_a_cluster(tmp_path, monkeypatch):
    with_sbatch(tmp_path, monkeypatch, "echo 'sbatch: a remark'; echo '4711;cluster'")

    assert slurm_submit.submit("text", str(tmp_path / "job.sbatch")) == "4711"


def test_a_script_of_before_is_replaced_and_a_file_of_the_users_is_not(tmp_path, monkeypatch):
    with_sbatch(tmp_path, monkeypatch, "echo 1")
    ours, theirs, folder = tmp_path / "train.sbatch", tmp_path / "own.sbatch", tmp_path / "folder"
    ours.write_text(describe("--time=1"))
    theirs.write_text("#!/bin/bash\npython train.py\n")
    folder.mkdir()

    slurm_submit.submit(describe("--time=2"), str(ours))
    for path in (theirs, folder):
        with pytest.raises(UsageError, match="is there, and not written by"):
            slurm_submit.submit("text", str(path))

    assert ours.read_text() == describe("--time=2")
    assert theirs.read_text() == "#!/bin/bash\npython train.py\n"


def test_a_place_that_cannot_be_written_is_a_storage_error(tmp_path, monkeypatch):
    with_sbatch(tmp_path, monkeypatch, "echo 1")

    with pytest.raises(StorageError, match="there is no directory") as caught:
        slurm_submit.submit("text", str(tmp_path / "missing" / "job.sbatch"))
    assert caught.value.hint == f"mkdir -p {tmp_path / 'missing'}"


@pytest.mark.parametrize(
    ("words", "file"),
    [((), "train-4711.out"), (("--array", "5"), "train-4711.out"), (("--output=logs/%x-%j.txt",), "logs/%x-4711.txt")],
)
def test_the_file_that_a_job_prints_to_is_told(words, file):
    assert slurm_submit.output_of(describe(*words), "4711") == file
