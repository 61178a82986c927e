"""The submit descriptions that holdfast writes; tests/htcondor gives them to HTCondor."""

import argparse
import os
import sys
from pathlib import Path

import pytest

from holdfast.core.errors import HoldfastError, NotSubmittedError, UsageError
from holdfast.integrations.htcondor_submit import add_arguments, describe, missing_runs, output_of, path_of, submit


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where one submits: with a program, and without HTCondor."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").write_text("")
    return tmp_path


def parsed(*options: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser(exit_on_error=False)
    add_arguments(parser)
    return parser.parse_args(options)


def described(*options: str, command: tuple[str, ...] = (sys.executable, "train.py", "--lr", "0.1")) -> dict[str, str]:
    """The commands of the description, with their values."""
    lines = [line for line in describe(parsed(*options), command).splitlines() if line and not line.startswith("#")]
    assert lines[-1] == "queue"
    return {name.strip(): value.strip() for name, _, value in (line.partition("=") for line in lines[:-1])}


def test_a_description_brings_the_run_home_and_takes_the_program_along() -> None:
    found = described("--run", "runs/mnist")

    assert found == {
        "executable": sys.executable,
        "transfer_executable": "False",
        "arguments": '"train.py --lr 0.1"',
        "checkpoint_exit_code": "85",
        "transfer_checkpoint_files": "runs/mnist",
        "should_transfer_files": "YES",
        "when_to_transfer_output": "ON_EXIT_OR_EVICT",
        "transfer_output_files": "runs/mnist",
        "transfer_input_files": "runs/mnist, train.py",
        "preserve_relative_paths": "True",
        "output": "mnist-$(ClusterId).out",
        "error": "mnist-$(ClusterId).err",
        "log": "mnist-$(ClusterId).log",
        "request_cpus": "1",
    }


def test_a_program_of_ones_own_goes_along() -> None:
    (Path("bin")).mkdir()
    Path("bin/start").write_text("")

    found = described("--run", "runs/mnist", command=("bin/start", "train.py"))

    assert found["executable"] == "bin/start"
    assert "transfer_executable" not in found


def test_on_a_shared_file_system_nothing_is_transferred(folder: Path) -> None:
    found = described("--no-transfer", "--name", "mnist", "--exit-code", "77")

    assert found["initialdir"] == str(folder)
    assert found["should_transfer_files"] == "NO"
    assert found["on_exit_remove"] == "ExitCode =!= 77"
    assert found["+SuccessCheckpointExitCode"] == "77"
    assert found["output"] == "mnist-$(ClusterId)-$$([NumJobStarts+1]).out"
    assert not [name for name in found if name.startswith("transfer_") and name != "transfer_executable"]


def test_all_options_are_in_it() -> None:
    found = described(
        *("--run", "runs/mnist/", "--every", "1h", "--input", "data", "--output", "plots", "--exit-code", "7"),
        *("--checkpoint-destination", "osdf:///a/b", "--name", "first", "--cpus", "4", "--memory", "8GB"),
        *("--set", "request_gpus=1", "--set", '+Project = "x"', "--set", "Log=other.log"),
    )

    assert found["environment"] == "\"'HOLDFAST_TIME_LEFT=3600 s'\""
    assert found["transfer_input_files"] == "runs/mnist, plots, data, train.py"
    assert found["transfer_output_files"] == found["transfer_checkpoint_files"] == "runs/mnist, plots"
    assert found["checkpoint_exit_code"] == "7"
    assert found["checkpoint_destination"] == "osdf:///a/b"
    assert (found["request_cpus"], found["request_memory"], found["request_gpus"]) == ("4", "8GB", "1")
    assert found["+Project"] == '"x"'
    assert found["Log"] == "other.log"
    assert "log" not in found
    assert found["output"] == "first-$(ClusterId).out"


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ((), "which directory is the run"),
        (("--run", ""), "which directory is the run"),
        (("--run", "/abs/run"), "not a directory below"),
        (("--run", "../run"), "not a directory below"),
        (("--run", "a/../../run"), "not a directory below"),
        (("--run", "."), "not a directory below"),
        (("--run", "runs/{job}"), "names the job"),
        (("--run", "a,b"), "cannot transfer"),
        (("--run", "a$(x)"), "cannot transfer"),
        (("--run", "a\nqueue 1000"), "does not fit"),
        (("--run", "r", "--input", "a,b"), "cannot transfer"),
        (("--run", "r", "--set", "queue=3"), "KEY=VALUE"),
        (("--run", "r", "--set", "novalue"), "KEY=VALUE"),
        (("--run", "r", "--set", "a b=1"), "KEY=VALUE"),
        (("--run", "r", "--set", "note=1\nqueue 9"), "does not fit"),
        (("--run", "r", "--cpus", "0"), "at least 1"),
        (("--run", "r", "--memory", "1\nqueue"), "does not fit"),
        (("--run", "r", "--exit-code", "0"), "from 1 to 255"),
        (("--run", "r", "--every", "soon"), "--every"),
        (("--run", "r", "--every", "0"), "--every"),
        (("--run", "r", "--checkpoint-destination", "here"), "not a URL"),
        (("--run", "r", "--name", "a/b"), "--name"),
        (("--no-transfer", "--input", "data"), "nothing is transferred"),
        (("--run", "r", "--every", "1h", "--set", "Environment=A=1"), "would take away"),
    ],
)
def test_options_that_make_no_sense_are_refused(options: tuple[str, ...], says: str) -> None:
    with pytest.raises(UsageError, match=says):
        describe(parsed(*options), [sys.executable, "train.py"])


@pytest.mark.parametrize("command", [(), ("no-such-program",), ("./none.sh",)])
def test_a_command_that_is_not_there_is_refused(command: tuple[str, ...]) -> None:
    with pytest.raises(UsageError):
        describe(parsed("--run", "r"), command)


def test_without_htcondor_the_description_is_written_all_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    arguments = parsed("--run", "runs/mnist")
    text = describe(arguments, [sys.executable, "train.py"])

    with pytest.raises(NotSubmittedError, match="no HTCondor here") as failure:
        submit(text, path_of(arguments, ()))

    assert "mnist.sub" in failure.value.hint
    assert Path("mnist.sub").read_text() == text
    assert os.listdir("runs/mnist") == []


def test_what_condor_submit_says_is_told(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = folder / "condor_submit"
    program.write_text("#!/bin/sh\necho 'ERROR: no schedd' >&2\nexit 1\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")

    with pytest.raises(NotSubmittedError, match=r"failed with status 1: ERROR: no schedd"):
        submit("queue\n", "x.sub")


def test_what_htcondor_would_miss_is_named() -> None:
    text = "Initialdir = there\ntransfer_checkpoint_files = a, b, $(c), d\ntransfer_input_files = a, b, $(c)\nqueue\n"
    Path("there/b").mkdir(parents=True)

    assert missing_runs(text, "") == ["there/a"]


def test_a_condor_submit_that_cannot_be_started_is_told(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (folder / "condor_submit").write_bytes(b"\x7fELF no program")
    (folder / "condor_submit").chmod(0o755)
    monkeypatch.setenv("PATH", str(folder))

    with pytest.raises(NotSubmittedError, match="cannot be started"):
        submit("queue\n", "x.sub")


def test_words_that_are_no_text_are_written_as_they_are(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    arguments = parsed("--run", "runs/mnist")

    with pytest.raises(NotSubmittedError, match="no HTCondor here"):
        submit(describe(arguments, [sys.executable, os.fsdecode(b"\xff.py")]), "x.sub")

    assert b'arguments                 = "\xff.py"' in Path("x.sub").read_bytes()


def test_a_description_of_somebody_else_is_not_overwritten() -> None:
    Path("mnist.sub").write_text("executable = mine\nqueue\n")

    with pytest.raises(UsageError, match="not from holdfast"):
        submit("queue\n", "mnist.sub")

    assert Path("mnist.sub").read_text() == "executable = mine\nqueue\n"


def test_a_description_is_completed_in_a_file_of_its_own() -> None:
    Path("job.sub").write_text("executable = train.py\nqueue\n")
    arguments = parsed("--run", "runs/mnist", "--complete", "job.sub")

    assert "transfer_checkpoint_files = runs/mnist" in describe(arguments, ())
    assert path_of(arguments, ()) == "job.holdfast.sub"
    with pytest.raises(UsageError, match="is in the description"):
        describe(arguments, ["python"])


@pytest.mark.parametrize(
    "options", [("--cpus", "2"), ("--set", "a=1"), ("--no-transfer",), ("--checkpoint-destination", "a://b")]
)
def test_what_a_completed_description_would_not_say_is_refused(options: tuple[str, ...]) -> None:
    Path("job.sub").write_text("executable = train.py\nqueue\n")

    with pytest.raises(UsageError, match=f"{options[0]} does not go with --complete"):
        describe(parsed("--run", "r", "--complete", "job.sub", *options), ())


@pytest.mark.parametrize("content", [b"\xff\xfe\x00", None])
def test_a_description_that_cannot_be_read_is_said(content: bytes | None) -> None:
    if content is not None:
        Path("job.sub").write_bytes(content)

    with pytest.raises(HoldfastError, match=r"job\.sub"):
        describe(parsed("--run", "r", "--complete", "job.sub"), ())


def test_the_file_that_a_job_prints_to_is_told() -> None:
    text = describe(parsed("--run", "runs/mnist"), [sys.executable, "train.py"])

    assert output_of(text, "12.0") == "mnist-12.out"
    assert output_of("executable = a\nqueue\n", "12.0") == ""
