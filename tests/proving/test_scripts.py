"""`holdfast prove` on real programs: correct ones, and one for each known cause, found and named."""

import json
import os
import shutil
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from holdfast.cli.main import main

_SCRIPTS = Path(__file__).parent / "scripts"

# One interruption, in the middle: in the step after 7 of 12, 5 of 8, in the second epoch where there are two. It asks
# the program to stop, which does so at the end of that step.
_BROKEN = {
    "generator_not_in_state": (9, "step", "w", "generator-not-in-state", "rng"),
    "iterator_without_position": (9, "step", "w", "loader-without-position", "source"),
    "lossy_state_dict": (8, "restored", "model.momentum", "state-not-restored", "model"),
    "metric_not_from_state": (9, "step", "metric mean", "metric-not-from-state", "mean"),
    "variable_not_in_state": (9, "step", "w", "variable-not-in-state", "rate"),
    "rebound_array": (1, "", "w", "rebound", "`w` stands for another array than the one in the state, since step 1"),
    "hidden_in_a_file": (9, "step", "w", "unknown", "w"),
    "restore_not_called": (1, "", "", "restore-not-called", "step 5 was saved"),
    "clock_in_state": (1, "step", "progress.updated", "wall-clock", "progress.updated"),
    "not_seeded": (1, "step", "w", "not-seeded", "numpy"),
    "nondeterministic_kernel": (1, "step", "w", "nondeterministic-kernels", "not repeatable"),
    "optimizer_not_registered": (7, "step", "model.weight", "optimizer-not-in-state", "optimizer"),
    "scheduler_not_registered": (7, "step", "model.weight", "object-not-in-state", "scheduler"),
    "loader_without_position": (12, "step", "w", "loader-without-position", "loader"),
}
_TORCH = ("optimizer_not_registered", "scheduler_not_registered", "loader_without_position", "correct_torch")
_CORRECT = ("correct_numpy", "correct_save_only", "correct_two_runs", "correct_asks_for_run", "correct_torch")
_QUICK = ("generator_not_in_state", "rebound_array", "correct_numpy")


def _marked(names):
    return [name if name in _QUICK else pytest.param(name, marks=pytest.mark.slow) for name in names]


@pytest.fixture
def prove(tmp_path, monkeypatch, capsys):
    """Proves one of the scripts, in a directory with nothing else; the exit status and the JSON document."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("TMPDIR", str(tmp_path.parent / f"{tmp_path.name}-tmp"))
    os.makedirs(os.environ["TMPDIR"])
    monkeypatch.setattr("tempfile.tempdir", None)

    def run(name, *options, command=None):
        if name in _TORCH and find_spec("torch") is None:
            pytest.skip("torch is not installed")
        shutil.copy(_SCRIPTS / f"{name}.py", tmp_path)
        capsys.readouterr()
        code = main(["prove", "--json", *options, "--", *(command or [sys.executable, f"{name}.py"])])
        said = capsys.readouterr()
        assert not list(Path(os.environ["TMPDIR"]).glob("holdfast-*"))
        return code, json.loads(said.out)

    return run


@pytest.mark.parametrize("name", _marked(_BROKEN))
def test_the_step_the_leaf_and_the_cause_are_found(name, prove, tmp_path):
    step, at, path, kind, word = _BROKEN[name]

    code, found = prove(name, "--interruptions", "1")

    assert code == 1
    assert found["answer"] == "differs"
    assert (found["step"], found["at"], found["path"]) == (step, at, path)
    assert found["causes"][0]["kind"] == kind
    assert word in found["causes"][0]["what"]
    assert [entry.name for entry in tmp_path.iterdir()] == [f"{name}.py"]  # nothing of the user's is touched


@pytest.mark.parametrize("name", _marked(_CORRECT))
def test_a_correct_program_is_identical(name, prove, tmp_path):
    code, found = prove(name, "--interruptions", "1" if name in _TORCH else "5")

    assert (code, found["answer"]) == (0, "identical")
    assert found["interruptions"] == found["wanted"]
    resumed = [start for start in found["starts"] if start["case"] == "interrupted" and start["from_step"]]
    assert resumed
    assert [entry.name for entry in tmp_path.iterdir()] == [f"{name}.py"]


@pytest.mark.slow
def test_a_signal_that_the_program_survives_is_no_interruption_and_the_rest_is_tried_all_the_same(prove):
    code, found = prove("correct_ignores_sigterm", "--interruptions", "4")

    assert (code, found["answer"]) == (0, "identical")
    assert (found["interruptions"], found["wanted"]) == (3, 4)
    assert "the program went on after SIGTERM, so this was no interruption: at step 7" in found["remarks"]
    assert {start["why"] for start in found["starts"] if start["status"] == -9} == {
        "at the first step",
        "in the middle of a save",
        "at the last step",
    }


@pytest.mark.slow
def test_without_an_interruption_nothing_is_proven(prove):
    code, found = prove("correct_ignores_sigterm", "--interruptions", "1")

    assert (code, found["answer"], found["interruptions"]) == (1, "unfinished", 0)
    assert "no interruption was made, so nothing is proven" in found["remarks"]
    assert [start["was_struck"] for start in found["starts"] if start["signal"]] == [True]


@pytest.mark.slow
def test_where_no_step_comes_after_a_restore_nothing_is_proven(prove):
    code, found = prove("correct_numpy", "--interruptions", "1", "--steps", "1")

    assert (code, found["answer"]) == (1, "unfinished")
    assert "no step that was made after a restore could be compared, so nothing is proven" in found["remarks"]
    assert not any("went on" in remark for remark in found["remarks"])


@pytest.mark.slow
def test_a_command_that_sets_pythonpath_is_told_what_was_not_watched(tmp_path, prove, monkeypatch):
    (tmp_path / "train.sh").write_text('PYTHONPATH=/nowhere exec "$PYTHON" correct_numpy.py\n')
    monkeypatch.setenv("PYTHON", sys.executable)

    code, found = prove("correct_numpy", "--interruptions", "1", command=["bash", "train.sh"])

    assert code == 0
    assert any("were not watched" in remark for remark in found["remarks"])


@pytest.mark.slow
def test_a_clock_is_apart_by_seconds_and_by_no_share_of_them(prove):
    _, found = prove("clock_in_state", "--interruptions", "1")

    assert found["differences"][0]["max_abs"] > 0
    assert found["differences"][0]["max_rel"] is None


@pytest.mark.slow
def test_a_metric_that_is_never_the_same_is_not_compared_and_said(prove):
    code, found = prove("correct_logs_seconds", "--interruptions", "1")

    assert (code, found["answer"]) == (0, "identical")
    assert "different in every run, and not compared: seconds" in found["remarks"][0]


@pytest.mark.slow
def test_a_program_in_a_shell_script_is_proven_too(tmp_path, prove, monkeypatch):
    (tmp_path / "train.sh").write_text('"$PYTHON" correct_numpy.py\nexit $?\n')
    monkeypatch.setenv("PYTHON", sys.executable)

    code, found = prove("correct_numpy", "--interruptions", "3", command=["bash", "train.sh"])

    assert (code, found["answer"], found["interruptions"]) == (0, "identical", 3)


@pytest.mark.slow
def test_the_size_of_the_difference_is_measured(prove):
    _, found = prove("lossy_state_dict", "--interruptions", "1")

    difference = found["differences"][0]
    assert (difference["changed"], difference["elements"]) == (4, 4)
    assert difference["max_abs"] == pytest.approx(5.6953279)  # (1 - 0.9**8) / 0.1, against nothing


@pytest.mark.slow
def test_only_the_first_steps_are_looked_at_where_that_is_asked_for(prove):
    code, found = prove("correct_numpy", "--interruptions", "2", "--steps", "5")

    assert (code, found["last_step"]) == (0, 5)


@pytest.mark.slow
def test_a_program_without_an_end_is_proven_as_far_as_time_allows(prove):
    code, found = prove("never_ends", "--interruptions", "1", "--time-limit", "60s")

    assert (code, found["answer"]) == (0, "identical")
    assert "did not end within" in found["remarks"][0]


@pytest.mark.slow
def test_a_proof_of_fewer_interruptions_than_there_was_time_for_is_not_finished(prove):
    code, found = prove("never_ends", "--interruptions", "200", "--time-limit", "60s")

    assert (code, found["answer"], found["wanted"]) == (1, "unfinished", 200)
    assert any("200 interruptions want about" in remark for remark in found["remarks"])


@pytest.mark.slow
def test_a_program_that_hangs_is_ended_with_its_children(prove):
    code, found = prove("hangs", "--time-limit", "10s")

    assert code == 2
    assert "made no step within 2 s" in found["error"]["message"]
    assert not _processes_with("sleep\x001000")


def test_a_program_without_a_checkpointer_is_told_what_is_missing(prove):
    code, found = prove("never_calls")

    assert code == 2
    assert found["error"]["kind"] == "CannotProveError"
    assert "never calls the checkpointer" in found["error"]["message"]
    assert "trained without checkpoints: 10.0" in found["error"]["message"]


def test_a_program_that_fails_by_itself_is_shown_with_its_last_lines(prove):
    code, found = prove("fails")

    assert code == 2
    assert "fails by itself, with status 1" in found["error"]["message"]
    assert "ValueError: no such dataset" in found["error"]["message"]


def test_a_write_outside_is_refused_and_named_and_the_file_is_as_it_was(prove, tmp_path, monkeypatch):
    log = tmp_path / "log.txt"
    log.write_text("mine\n")
    monkeypatch.setenv("PROOF_TEST_LOG", str(log))

    code, found = prove("writes_outside")

    assert code == 2
    assert f"outside of its directory: opening {log} (writes_outside.py:" in found["error"]["message"]
    assert "--allow" in found["error"]["hint"]
    assert log.read_text() == "mine\n"


@pytest.mark.slow
def test_what_is_allowed_is_written(prove, tmp_path, monkeypatch):
    log = tmp_path / "log.txt"
    monkeypatch.setenv("PROOF_TEST_LOG", str(log))

    code, _ = prove("writes_outside", "--allow", str(log), "--interruptions", "1")

    assert code == 0
    assert log.exists()


def _processes_with(command):
    found = []
    for entry in Path("/proc").iterdir():
        try:
            if entry.name.isdecimal() and command in (entry / "cmdline").read_text():
                found.append(entry.name)
        except OSError:
            continue
    return found
