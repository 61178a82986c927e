"""`holdfast prove` does not say more than it knows: programs that it once took for identical, or accused wrongly."""

import json
import os
import shutil
import sys
from pathlib import Path

import pytest

from holdfast.cli.main import main

pytestmark = pytest.mark.slow

_SCRIPTS = Path(__file__).parent / "scripts"


@pytest.fixture
def prove(tmp_path, monkeypatch, capsys):
    """Proves one of the scripts, in a directory with nothing else; the exit status and the JSON document."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("TMPDIR", str(tmp_path.parent / f"{tmp_path.name}-tmp"))
    os.makedirs(os.environ["TMPDIR"])
    monkeypatch.setattr("tempfile.tempdir", None)
    monkeypatch.setenv("PYTHON", sys.executable)

    def run(name, *options, command=None):
        shutil.copy(_SCRIPTS / f"{name}.py", tmp_path)
        capsys.readouterr()
        code = main(["prove", "--json", *options, "--", *(command or [sys.executable, f"{name}.py"])])
        return code, json.loads(capsys.readouterr().out)

    return run


@pytest.mark.parametrize(
    ("name", "run", "interruptions", "first"),
    [
        ("second_run_left_out", "runs/b", 1, 8),
        # The second of two is a kill, and comes first: asked to end, one that only saves comes as far as it can.
        ("saves_left_out", "runs/a", 2, 4),
    ],
)
def test_what_a_resumed_program_does_not_do_any_more_is_missed(name, run, interruptions, first, prove):
    code, found = prove(name, "--interruptions", str(interruptions))

    assert (code, found["answer"]) == (1, "differs")
    assert found["step"] >= first
    assert found["causes"][0]["kind"] == "work-left-out"
    assert f"save step {found['step']} of {run}" in found["causes"][0]["what"]


def test_a_model_that_is_not_in_the_state_is_missed_though_all_that_is_saved_is_equal(prove):
    pytest.importorskip("torch")

    code, found = prove("model_not_in_state", "--interruptions", "1")

    assert (code, found["answer"]) == (1, "differs")
    assert found["causes"][0]["kind"] == "object-not-in-state"
    assert "model" in found["causes"][0]["what"]


def test_a_program_that_ends_well_at_an_order_to_end_was_interrupted(prove):
    code, found = prove("ends_at_sigterm", "--interruptions", "1")

    assert (code, found["answer"]) == (0, "identical")
    assert (found["interruptions"], found["remarks"]) == (1, [])
    assert [start["status"] for start in found["starts"]] == [0, 0, 0, 0]


def test_phases_that_are_programs_of_their_own_are_proven_together(prove):
    command = ["bash", "-ec", '"$PYTHON" correct_phase.py a 6; "$PYTHON" correct_phase.py b 12']

    code, found = prove("correct_phase", "--interruptions", "3", command=command)

    assert (code, found["answer"], found["interruptions"]) == (0, "identical", 3)
    assert found["runs"] == ["runs/a", "runs/b"]


def test_a_program_that_a_shell_starts_again_is_struck_once_in_a_start(prove):
    command = ["bash", "-c", 'until "$PYTHON" correct_numpy.py; do :; done']

    code, found = prove("correct_numpy", "--interruptions", "2", "--time-limit", "60s", command=command)

    assert (code, found["answer"]) == (0, "identical")
    assert (found["interruptions"], found["remarks"]) == (2, [])


def test_where_the_state_cannot_be_had_nothing_is_said_of_every_bit(prove, capsys):
    code, found = prove("state_not_always_known", "--interruptions", "3")

    assert (code, found["answer"], found["interruptions"]) == (0, "identical", 3)
    assert 0 < found["unseen"] < found["points"]
    assert any("only metrics and generators were compared: the state is not known" in text for text in found["remarks"])

    assert main(["prove", "--interruptions", "1", "--", sys.executable, "state_not_always_known.py"]) == 0
    assert capsys.readouterr().out.startswith("identical where the state could be had: 1 interruption")


def test_a_program_that_goes_back_by_itself_is_no_other_one(prove):
    code, found = prove("correct_goes_back", "--interruptions", "3")

    assert (code, found["answer"], found["interruptions"]) == (0, "identical", 3)


def test_keys_in_another_order_are_a_difference(prove):
    code, found = prove("another_order", "--interruptions", "1")

    assert (code, found["path"]) == (1, "cache (order)")


def test_whole_numbers_that_are_logged_are_compared_to_the_last_digit(prove):
    code, found = prove("large_metric", "--interruptions", "1")

    assert (code, found["path"]) == (1, "metric tokens")
    assert 0 < found["differences"][0]["max_abs"] < 100


def test_a_run_that_is_called_otherwise_every_time_is_named(prove):
    code, found = prove("run_by_process")

    assert code == 2
    assert "a run is called runs/" in found["error"]["message"]


def test_the_number_of_a_process_is_no_generator(prove):
    code, found = prove("process_in_state", "--interruptions", "1")

    assert (code, found["path"]) == (1, "progress.pid")
    assert [cause["kind"] for cause in found["causes"]] == ["value-of-this-start"]


def test_a_variable_is_named_beside_a_generator_that_may_be_harmless(prove):
    code, found = prove("harmless_generator", "--interruptions", "1")

    assert code == 1
    assert [cause["kind"] for cause in found["causes"]] == ["generator-not-in-state", "variable-not-in-state"]
    assert "momentum" in found["causes"][1]["what"]
