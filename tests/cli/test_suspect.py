"""Suspect checkpoints on the command line: shown, passed over by `healthy`, and the last healthy one guarded."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from holdfast.core.clock import SystemClock
from holdfast.engine.marks import SUSPECT, set_mark
from holdfast.storage.posix import PosixStore
from tests.cli.conftest import Answer

Command = Callable[..., Answer]


@pytest.fixture
def suspects(run: Path) -> Path:
    """The run, in which the newest two of the live line (30 and 50 of attempt 2) are suspect."""
    store = PosixStore(run, create=False)
    for entry in store.list():
        if entry.name.endswith("-a0002"):
            set_mark(store, entry.name, SUSPECT, reason="the loss is nan at step 31", clock=SystemClock())
    store.close()
    return run


def test_ls_shows_the_state_and_the_reason(suspects: Path, holdfast_command: Command) -> None:
    lines = holdfast_command("ls", "run").out.splitlines()

    newest = next(line for line in lines if line.split()[0] == "50")
    assert "suspect, latest" in newest
    assert "the loss is nan at step 31" in newest

    listed = json.loads(holdfast_command("ls", "run", "--json").out)["checkpoints"]
    assert [c["step"] for c in listed if c["suspect"]] == [30, 50]
    assert listed[-1]["states"] == ["suspect", "latest"]


def test_show_says_why_and_healthy_is_a_choice(suspects: Path, holdfast_command: Command) -> None:
    assert "suspect     the loss is nan at step 31" in holdfast_command("show", "run").out
    assert "step 20" in holdfast_command("show", "run", "healthy").out.splitlines()[0]


def test_a_suspect_one_can_be_verified_like_others(suspects: Path, holdfast_command: Command) -> None:
    assert holdfast_command("verify", "run", "50").code == 0

    assert json.loads(holdfast_command("ls", "run", "--json").out)["checkpoints"][-1]["states"] == [
        "suspect",
        "verified",
        "latest",
    ]


def test_rm_refuses_the_last_healthy_one_as_long_as_newer_ones_are_suspect(
    suspects: Path, holdfast_command: Command
) -> None:
    holdfast_command("verify", "run", "50")  # so that it is not refused for being the last verified one

    answer = holdfast_command("rm", "run", "20", "--yes")

    assert answer.code == 1
    assert "step 20 is the last healthy checkpoint of run: newer ones are suspect" in answer.err
    assert holdfast_command("rm", "run", "20", "--yes", "--force").code == 0


def test_prune_keeps_it_and_says_so(suspects: Path, holdfast_command: Command) -> None:
    holdfast_command("verify", "run", "50")

    answer = holdfast_command("prune", "run", "--keep-last", "1", "--dry-run")

    (line,) = [line for line in answer.out.splitlines() if line.split()[:2] == ["keep", "20"]]
    assert "the last healthy one: newer ones are suspect" in line
