"""`holdfast submit` and `holdfast doctor --script`, as commands."""

import json
import os
import subprocess

import pytest


def test_a_dry_run_shows_the_script_and_where_it_would_go_and_writes_nothing(tmp_path, monkeypatch, holdfast_command):
    monkeypatch.chdir(tmp_path)

    answer = holdfast_command("submit", "slurm", "--dry-run", "--time=5", "-p", "low", "--", "python", "train.py")

    assert answer.code == 0
    assert answer.out.startswith("#!/bin/bash\n")
    assert "\n#SBATCH -p low\n" in answer.out
    assert "\nsrun python train.py\n" in answer.out
    assert answer.err == "not submitted; it would be written to train.sbatch\n"
    assert os.listdir(tmp_path) == []


def test_json_has_the_script_and_no_job_where_none_was_submitted(holdfast_command):
    answer = holdfast_command("submit", "slurm", "--dry-run", "--json", "--array", "3", "--", "python", "train.py")

    document = json.loads(answer.out)
    assert (document["scheduler"], document["job"]) == ("slurm", None)
    assert document["text"].startswith("#!/bin/bash\n")
    assert document["file"].endswith("/train.sbatch")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["submit"], "the following arguments are required"),
        (["submit", "pbs", "--", "python"], "invalid choice"),
        (["submit", "slurm", "--dry-run"], "there is no command"),
        (["submit", "slurm", "--dry-run", "python", "train.py"], "no option of sbatch"),
        (["submit", "slurm", "--requeue", "--array", "3", "--", "python"], "not allowed with argument"),
        (["submit", "slurm", "--array"], "expected one argument"),
        (["doctor", "--script", "."], "is no file"),
        (["doctor", "--script", "/dev/null"], "is no file"),
    ],
)
def test_a_command_line_that_makes_no_sense_is_said_so(holdfast_command, tmp_path, monkeypatch, words, message):
    monkeypatch.chdir(tmp_path)

    answer = holdfast_command(*words)

    assert answer.code == 2
    assert message in answer.err
    assert "hint:" in answer.err


def test_a_script_that_is_not_there_is_missing_as_any_other_file(holdfast_command, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)

    answer = holdfast_command("doctor", "--script", "missing")

    assert answer.code == 3
    assert "--script missing: No such file or directory\n  hint: name a batch script" in answer.err


def test_a_word_that_is_no_text_is_shown_and_kept(holdfast_command):
    word = os.fsdecode(b"caf\xe9")

    for given in ((), ("--json",)):
        answer = holdfast_command("submit", "slurm", "--dry-run", *given, "--", "python", word)

        assert (answer.code, answer.err.count("error")) == (0, 0)
        assert "caf" in answer.out


def test_a_job_that_the_scheduler_refuses_is_not_called_a_wrong_command_line(holdfast_command, tmp_path, monkeypatch):
    """Which would mean that nothing was changed; but the script is written."""
    sbatch = tmp_path / "bin" / "sbatch"
    sbatch.parent.mkdir()
    sbatch.write_text("#!/bin/sh\necho 'error: invalid account' >&2\nexit 1\n")
    sbatch.chmod(0o755)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PATH", f"{sbatch.parent}:/usr/bin:/bin")

    answer = holdfast_command("submit", "slurm", "--", "python", "train.py")

    assert answer.code == 1
    assert "sbatch: status 1: error: invalid account" in answer.err
    assert "sbatch train.sbatch" in answer.err
    assert (tmp_path / "train.sbatch").exists()


def test_without_a_scheduler_it_says_so(holdfast_command, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PATH", str(tmp_path))

    answer = holdfast_command("submit", "slurm", "--", "python", "train.py")

    assert answer.code == 2
    assert "there is no sbatch here" in answer.err


def test_help_lists_the_options_of_the_scheduler(holdfast_command, capsys):
    with pytest.raises(SystemExit) as left:
        holdfast_command("submit", "slurm", "--help")

    assert left.value.code == 0
    said = capsys.readouterr().out
    for option in ("--dry-run", "--array", "--signal-before", "--job"):
        assert option in said


def test_the_doctor_looks_at_a_script_and_knows_from_the_run_what_a_checkpoint_takes(holdfast_command, run, tmp_path):
    script = tmp_path / "job.sh"
    script.write_text("#!/bin/bash\n#SBATCH --time=1 --signal=USR1@20\nsrun python train.py\n")
    with open(run / "journal.jsonl", "a") as journal:
        paced = {"time": "2026-11-15T18:42:01Z", "attempt": 2, "event": "paced", "interval_steps": 10, "durable_s": 90}
        journal.write(json.dumps(paced) + "\n")

    alone = holdfast_command("doctor", "--script", script, "--json")
    with_run = holdfast_command("doctor", "--script", script, run)

    assert alone.code == 0
    assert json.loads(alone.out)["path"] == str(script)
    assert with_run.code == 1
    assert "1 min; a checkpoint takes 1 min 30 s" in with_run.out
    assert "1 failure," in with_run.out


@pytest.mark.parametrize("content", [b"\xff\xfe", b"#!/bin/sh\n\0", b"#!/bin/sh\n" + b"#" * (5 << 20)])
def test_what_is_no_script_is_refused(holdfast_command, tmp_path, content):
    path = tmp_path / "job.sh"
    path.write_bytes(content)

    assert holdfast_command("doctor", "--script", path).code == 2


@pytest.mark.parametrize(
    ("shown", "is_requeued"),
    [
        ("JobState=RUNNING Reason=None Requeue=1 Restarts=2 BatchFlag=1 PreemptTime=None", True),
        ("JobState=TIMEOUT Reason=TimeLimit Requeue=1 Restarts=2 BatchFlag=1 PreemptTime=None", True),
        ("JobState=PREEMPTED Reason=None Requeue=1 Restarts=2 BatchFlag=1 PreemptTime=2026-11-16T22:50:34", True),
        ("JobState=CANCELLED Reason=None Requeue=1 Restarts=2 BatchFlag=1 PreemptTime=None", False),
        # What runs now is the next start: this one's node was declared down.
        ("JobState=RUNNING Reason=None Requeue=1 Restarts=3 BatchFlag=1 PreemptTime=None", False),
        ("JobState=TIMEOUT Reason=TimeLimit Requeue=1 Restarts=3 BatchFlag=1 PreemptTime=None", False),
    ],
)
def test_the_script_brings_back_what_nobody_else_has_brought_back_or_cancelled(
    holdfast_command, tmp_path, monkeypatch, shown, is_requeued
):
    """A real Slurm cannot be made to say all of these at will: tests/slurm has those that it can."""
    monkeypatch.chdir(tmp_path)
    text = json.loads(holdfast_command("submit", "slurm", "--dry-run", "--json", "--", "train").out)["text"]
    (tmp_path / "job").write_text(text)
    scontrol = f'case "$*" in *requeue*) touch requeued;; *) echo {shown};; esac'
    for name, words in {"srun": "exit 85", "scontrol": scontrol}.items():
        (tmp_path / name).write_text(f"#!/bin/sh\n{words}\n")
        (tmp_path / name).chmod(0o755)
    environ = {"PATH": f"{tmp_path}:{os.environ['PATH']}", "SLURM_JOB_ID": "7", "SLURM_RESTART_COUNT": "2"}

    ended = subprocess.run(["bash", "job"], env=environ, capture_output=True, text=True, check=False)

    assert (tmp_path / "requeued").exists() == is_requeued, ended.stdout
    assert ended.returncode == (0 if is_requeued else 85)
