"""Either side is killed or stopped at every message, and nothing is lost or left behind."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

import holdfast
from tests.agent.rig import DEADLINE_S, AgentGone, Durable, Ready, Rig, processes_of, rig, state_of, until

TRAINER = Path(__file__).with_name("fake_trainer.py")
PATH = os.pathsep.join([str(Path(__file__).parents[2]), str(Path(holdfast.__file__).parents[1])])

_ORDERS = (
    "Hello 1",
    "NewSlot 1",
    "NewSlot 2",
    "Begin 1",
    "Forget 1",
    "Begin 2",
    "Write 1",
    "Begin 3",
    "Write 2",
    "Close 1",
)
AGENT_POINTS = [
    *(f"receive {kind}" for kind in _ORDERS),
    *(
        f"{moment} {kind}"
        for kind in ("Ready 1", "Ahead 1", "Ahead 2", "Progress 1", "Durable 1", "Progress 2", "Durable 2", "Bye 1")
        for moment in ("send", "sent")
    ),
]
TRAINER_POINTS = [
    *(f"{moment} {kind}" for kind in _ORDERS for moment in ("send", "sent")),
    *(
        f"receive {kind}"
        for kind in ("Ready 1", "Ahead 1", "Ahead 2", "Progress 1", "Durable 1", "Progress 2", "Durable 2", "Bye 1")
    ),
]


@contextmanager
def trainer(place: Path, mode: str, point: str = "-", **wishes: object) -> Iterator[subprocess.Popen]:
    command = [sys.executable, str(TRAINER), str(place), mode, point, *(f"{key}={wishes[key]}" for key in wishes)]
    process = subprocess.Popen(command, env={**os.environ, "PYTHONPATH": PATH})
    try:
        yield process
    finally:
        process.kill()
        process.wait()


def agents(place: Path) -> list[int]:
    return processes_of(str(place / "mark"))


def durable(place: Path) -> set[int]:
    log = place / "log"
    lines = log.read_text().splitlines() if log.exists() else []
    return {int(line.split()[1]) for line in lines if line.startswith("durable")}


def sent(place: Path) -> set[int]:
    file = place / "sent"
    return set(map(int, file.read_text().split())) if file.exists() else set()


@pytest.mark.parametrize("point", AGENT_POINTS)
def test_an_agent_killed_at_any_message_costs_nothing(tmp_path, point):
    with rig(tmp_path, point=point) as made:
        made.write_with_hints(1)
        made.write_with_hints(2)
        made.heard.wait_for(Durable, 2)

    assert not made.mark.exists(), "it was not killed"
    assert {report.generation for report in made.heard.all(Durable)} == {1, 2}
    # Where all was done and said, its end is as good as any other.
    assert len(made.heard.all(AgentGone)) == (0 if point == "sent Bye 1" else 1)
    assert made.lines("durable")[-1] == "durable 2 zero"


@pytest.mark.parametrize("point", TRAINER_POINTS)
def test_a_training_killed_at_any_message_leaves_no_agent_and_loses_no_complete_snapshot(tmp_path, point):
    with trainer(tmp_path, "whole", point) as process:
        assert process.wait(DEADLINE_S) == -signal.SIGKILL

    until(lambda: not agents(tmp_path))
    assert durable(tmp_path) >= sent(tmp_path)
    if point == "sent Write 1":
        assert 1 in durable(tmp_path)
    if point in ("sent Write 2", "send Close 1", "sent Close 1"):
        assert durable(tmp_path) == {1, 2}


@pytest.mark.parametrize("mode", ["whole", "in_a_thread", "with_a_forked_trainer"])
def test_a_training_that_is_not_killed_ends_well(tmp_path, mode):
    with trainer(tmp_path, mode) as process:
        assert process.wait(DEADLINE_S) == 0

    assert not agents(tmp_path)
    assert durable(tmp_path) == {1, 2}


@pytest.mark.parametrize("mode", ["left_open", "killed"])
def test_what_was_ordered_is_finished_after_the_training_is_gone(tmp_path, mode):
    gate = tmp_path / "gate"
    with trainer(tmp_path, mode, gate=gate) as process:
        process.wait(DEADLINE_S)
    assert agents(tmp_path)
    assert durable(tmp_path) == set()

    gate.touch()

    until(lambda: not agents(tmp_path))
    assert durable(tmp_path) == {1, 2}


def test_orders_behind_unread_reports_are_not_lost(tmp_path):
    with trainer(tmp_path, "killed_with_reports_unread") as process:
        process.wait(DEADLINE_S)
    [agent] = agents(tmp_path)
    assert state_of(agent) == "T"

    os.kill(agent, signal.SIGCONT)

    until(lambda: not agents(tmp_path))
    assert durable(tmp_path) == {1, 2, 3}


def test_the_agent_ends_although_somebody_holds_the_trainings_end(tmp_path):
    with trainer(tmp_path, "killed_with_its_end_held") as process:
        process.wait(DEADLINE_S)
    holder = int((tmp_path / "holder").read_text())

    until(lambda: not agents(tmp_path))
    alive = state_of(holder)
    os.kill(holder, signal.SIGKILL)
    assert alive == "S"
    assert durable(tmp_path) == {1, 2}


def test_a_forked_child_cannot_use_the_agent_and_does_not_keep_it(tmp_path):
    with trainer(tmp_path, "forked") as process:
        assert process.wait(DEADLINE_S) == 0
    child, _, verdict = (tmp_path / "child").read_text().partition(" ")

    until(lambda: not agents(tmp_path))
    alive = state_of(int(child))
    os.kill(int(child), signal.SIGKILL)
    assert verdict == str([True] * 7)
    assert alive == "S"
    assert durable(tmp_path) == {1, 2}


def test_an_agent_whose_storage_hangs_gives_up_and_says_so_in_the_journal(tmp_path):
    with trainer(tmp_path, "killed", gate=tmp_path / "never", linger_s=0.5) as process:
        process.wait(DEADLINE_S)

    until(lambda: not agents(tmp_path))
    assert durable(tmp_path) == set()
    assert (tmp_path / "log").read_text().splitlines()[-1] == "close"


def test_a_stopped_training_does_not_stop_the_agent_and_hears_everything_later(tmp_path):
    gate = tmp_path / "gate"
    with trainer(tmp_path, "whole", gate=gate, flood=20_000) as process:
        until(lambda: (tmp_path / "sent").exists() and sent(tmp_path) == {1, 2})
        process.send_signal(signal.SIGSTOP)
        until(lambda: state_of(process.pid) == "T")
        gate.touch()
        until(lambda: durable(tmp_path) == {1, 2})
        process.send_signal(signal.SIGCONT)

        assert process.wait(DEADLINE_S) == 0
    assert not agents(tmp_path)


def test_a_stopped_agent_finishes_after_the_training_was_killed(tmp_path):
    gate = tmp_path / "gate"
    with trainer(tmp_path, "whole", gate=gate, linger_s=3):
        until(lambda: sent(tmp_path) == {1, 2})
        [agent] = agents(tmp_path)
        os.kill(agent, signal.SIGSTOP)
        until(lambda: state_of(agent) == "T")

    gate.touch()
    os.kill(agent, signal.SIGCONT)

    until(lambda: not agents(tmp_path))
    assert durable(tmp_path) == {1, 2}


def test_the_rig_sees_an_agent_that_is_there(tmp_path):
    made = Rig(tmp_path)
    made.start()
    made.heard.wait_for(Ready)
    assert agents(tmp_path) == [made.agent.pid]
    made.close()
