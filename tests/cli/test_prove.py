"""`holdfast prove` as a command: its command line, what it prints, and what `ls` says of a stored verdict."""

import json
import os
import select
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from holdfast.cli.runs import Run
from holdfast.proving.stored import StoredVerdict, store_verdict
from holdfast.proving.verdict import Difference, Verdict

_SCRIPTS = Path(__file__).parents[1] / "proving" / "scripts"
_PROVEN = StoredVerdict("identical", 1794836856.0, 6, 12, None, "", "", "", "python train.py")


def test_without_a_command_it_says_how_it_is_used(holdfast_command):
    answer = holdfast_command("prove")

    assert answer.code == 2
    assert "there is no command to prove\n  hint: holdfast prove -- python train.py" in answer.err


def test_a_command_without_dashes_before_it_is_told_where_they_go(holdfast_command):
    answer = holdfast_command("prove", "--steps", "3", "python", "train.py", "--lr", "0.1")

    assert answer.code == 2
    assert "put -- before the command: holdfast prove -- python train.py --lr 0.1" in answer.err


def test_a_run_beside_the_script_is_named_as_in_the_users_own_directory(holdfast_command, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").write_text((_SCRIPTS / "stored_beside_the_script.py").read_text())
    subprocess.run([sys.executable, "train.py"], check=True)

    answer = holdfast_command("prove", "--interruptions", 1, "--store", "--", sys.executable, "train.py")

    assert answer.code == 0, answer.err
    assert "\n  runs/beside: steps 1 to 6" in answer.out
    assert "stored with runs/beside" in answer.out
    assert "resume proven just now" in holdfast_command("ls", "runs/beside").out


def test_a_command_that_is_not_there_is_named(holdfast_command, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)

    answer = holdfast_command("prove", "--", "no-such-program", "--json")

    assert answer.code == 2
    assert answer.out == ""  # --json belongs to the program
    assert "no-such-program cannot be started: No such file or directory" in answer.err


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("--time-limit", "soon"), "--time-limit is 'soon', expected a duration"),
        (("--time-limit", "0"), "leaves no time"),
        (("--interruptions", "0"), "'0' is not a whole number of at least 1"),
        (("--report", "nowhere/report.html"), "its directory does not exist"),
        (("--dir", "."), "--dir .: is not empty"),
        (("--time-limit", "5", "minutes"), "before -- are only options, not minutes"),
    ],
)
def test_options_that_make_no_sense_are_refused_before_anything_runs(options, words, holdfast_command, run):
    answer = holdfast_command("prove", *options, "--", "false")

    assert answer.code == 2
    assert words in answer.err


def test_a_proof_is_printed_kept_reported_and_stored(holdfast_command, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    script = tmp_path / "train.py"
    script.write_text((_SCRIPTS / "correct_numpy.py").read_text())
    subprocess.run([sys.executable, "train.py"], check=True)  # there is a run, to store it with

    answer = holdfast_command(
        "prove",
        "--interruptions",
        2,
        "--store",
        "--report",
        "proof.html",
        "--dir",
        "proof",
        "--",
        sys.executable,
        "train.py",
    )

    assert answer.code == 0, answer.err
    assert answer.out.startswith("identical: 2 interruptions, every bit the same at every step\n")
    assert "stored with runs/correct" in answer.out
    assert "Identical" in (tmp_path / "proof.html").read_text()
    assert {"undisturbed", "again", "interrupted-1"} <= set(os.listdir(tmp_path / "proof"))
    assert "resume proven just now, 2 interruptions, steps up to 12" in holdfast_command("ls", "runs/correct").out


def test_differences_that_are_not_listed_are_counted(holdfast_command, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    parted = Verdict("differs", ("false",), ("runs/a",), 1, 12, 1, 2, 0, 4.2, 1794836856.0, 14, 4, step=2)
    parted = parted._replace(differences=(Difference("w", "float64[8]", "float64[8]"),), more_differences=5)
    monkeypatch.setattr("holdfast.cli.commands.prove.prove", lambda *_: parted)

    assert "\n  and 5 more\n" in holdfast_command("prove", "--", "false").out


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_proof_that_is_ended_leaves_nothing_behind(number, tmp_path):
    (tmp_path / "train.py").write_text((_SCRIPTS / "never_ends.py").read_text())
    work = tmp_path / "proof"
    command = [sys.executable, "-m", "holdfast", "prove", "--dir", str(work), "--", sys.executable, "train.py"]
    proof = subprocess.Popen(command, cwd=tmp_path, stderr=subprocess.PIPE, text=True)
    trace = work / "now" / "trace-1.jsonl"
    while proof.poll() is None and not (trace.exists() and trace.stat().st_size > 1000):
        select.select([], [], [], 0.05)

    proof.send_signal(number)

    _, said = proof.communicate(timeout=30)
    assert proof.returncode == 128 + number
    assert "Traceback" not in said
    assert not _processes_of(work)


def test_a_verdict_is_shown_by_ls_and_damaged_ones_are_not(run, holdfast_command):
    with Run("run", writable=True) as opened:
        store_verdict(opened.store, _PROVEN._replace(answer="differs", step=3, cause="rng is not in the state"))

    assert "resume differs at step 3 (proof of " in holdfast_command("ls", "run").out
    assert json.loads(holdfast_command("ls", "run", "--json").out)["proof"]["step"] == 3

    (run / "marks" / "proof.json").write_text("{")

    assert "resume" not in holdfast_command("ls", "run").out
    assert json.loads(holdfast_command("ls", "run", "--json").out)["proof"] is None


def _processes_of(work):
    found = []
    for entry in Path("/proc").iterdir():
        try:
            if entry.name.isdecimal() and str(work).encode() in (entry / "environ").read_bytes():
                found.append((entry / "cmdline").read_bytes())
        except OSError:
            continue
    return found
