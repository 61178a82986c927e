"""`holdfast submit htcondor` at the command line; tests/htcondor has it submit to a real pool."""

import json
from pathlib import Path

import pytest

from holdfast.cli.dispatch import dispatch


@pytest.fixture(autouse=True)
def _folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PATH", "/bin")


def test_a_dry_run_shows_the_description_and_makes_nothing(capsys):
    assert dispatch(["submit", "htcondor", "--dry-run", "--run", "runs/x", "--", "/bin/sh", "-c", "exit 85"]) == 0

    shown = capsys.readouterr()
    assert "arguments                 = \"-c 'exit 85'\"" in shown.out
    assert "x.sub" in shown.err
    assert list(Path().iterdir()) == []


def test_a_dry_run_is_a_document_too(capsys):
    assert dispatch(["submit", "htcondor", "--dry-run", "--json", "--no-transfer", "--", "/bin/sh"]) == 0

    document = json.loads(capsys.readouterr().out)
    assert document["job"] is None
    assert "on_exit_remove" in document["text"]


def test_without_htcondor_it_fails_and_says_what_to_do(capsys):
    assert dispatch(["submit", "htcondor", "--run", "runs/x", "--", "/bin/sh"]) == 1

    said = capsys.readouterr().err
    assert "there is no HTCondor here" in said
    assert "the description is in x.sub" in said
    assert "Traceback" not in said


@pytest.mark.parametrize(
    "words", [["--run", "/abs"], ["--complete", "none.sub"], ["--set", "x"], ["--nonsense"], ["--cpus", "0"], []]
)
def test_nonsense_is_refused_without_a_traceback(capsys, words):
    assert dispatch(["submit", "htcondor", *words, *([] if "--complete" in words else ["--", "/bin/sh"])]) != 0

    assert "Traceback" not in capsys.readouterr().err
    assert list(Path().iterdir()) == []
