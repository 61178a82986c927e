"""A capture that overlaps with the computation has the state of one moment."""

import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

import holdfast
from holdfast.core.names import parse_checkpoint_id
from holdfast.engine import failures
from holdfast.engine.overlap import Overlapped
from tests.background.rig import PATH, Program, agents_of, arenas, command_of, garbage, steps, until

torch = pytest.importorskip("torch")
from tests.background import overlapped_training  # noqa: E402  needs torch

TRAINING = Path(__file__).with_name("overlapped_training.py")
STEPS = 25


def train(run: Path, root: Path, capture: str, kill_after: int | None) -> str:
    """The last line it said."""
    command = [sys.executable, str(TRAINING), str(run), str(root), capture, str(STEPS)]
    with subprocess.Popen(
        command, env={**os.environ, "PYTHONPATH": PATH}, stdout=subprocess.PIPE, text=True
    ) as process:
        last = ""
        for count, line in enumerate(process.stdout, 1):
            last = line
            if count == kill_after:
                process.send_signal(signal.SIGKILL)
                break
        process.stdout.close()
        assert process.wait(60) in ((0,) if kill_after is None else (0, -signal.SIGKILL))
    return last


@pytest.mark.slow
def test_a_training_killed_while_it_is_captured_ends_with_the_same_bits(tmp_path, root, capsys):
    threads = torch.get_num_threads()
    overlapped_training.main(str(tmp_path / "plain"), str(root), "now", STEPS)
    torch.set_num_threads(threads)
    undisturbed = capsys.readouterr().out.splitlines(keepends=True)[-1]

    for kill_after in (3, 8):
        train(tmp_path / "killed", root, "overlapped", kill_after)
    survived = train(tmp_path / "killed", root, "overlapped", None)

    assert undisturbed.startswith("end ")
    assert survived == undisturbed
    assert steps(tmp_path / "killed") == [STEPS - 2, STEPS - 1, STEPS]
    assert arenas(root) == []
    assert garbage(tmp_path / "killed") == []


@pytest.mark.parametrize("capture", ["overlapped", "auto"])
def test_weights_moments_and_batch_norm_statistics_are_those_of_the_moment_of_the_save(run, root, capture):
    torch.manual_seed(2)
    model = torch.nn.Sequential(torch.nn.Linear(64, 2048), torch.nn.BatchNorm1d(2048), torch.nn.Linear(2048, 512))
    optimizer = torch.optim.Adam(model.parameters())
    state = {"model": model, "optimizer": optimizer}
    expected = {}
    with holdfast.Checkpointer(run, state, background="process", capture=capture, keep=holdfast.KEEP_ALL) as ckpt:
        for step in range(8):
            model(torch.randn(8, 64)).square().mean().backward()
            optimizer.step()
            expected[step] = {name: tensor.clone() for name, tensor in model.state_dict().items()}
            moment = optimizer.state_dict()["state"][0]["exp_avg"].clone()
            assert ckpt.save(step=step).error is None
        ckpt.wait(60)
        for step, weights in expected.items():
            ckpt.restore(which=step)
            assert all(torch.equal(weights[name], tensor) for name, tensor in model.state_dict().items())
        assert torch.equal(optimizer.state_dict()["state"][0]["exp_avg"], moment)
    assert steps(run) == list(range(8))
    assert arenas(root) == []


def test_what_is_changed_inside_updating_waits_for_the_copy(run, root):
    parameter = torch.nn.Parameter(torch.zeros(1 << 20))
    optimizer = torch.optim.SGD([parameter], lr=1.0)
    state = {"parameter": parameter, "optimizer": optimizer}
    with holdfast.Checkpointer(run, state, background="process", capture="overlapped", keep=holdfast.KEEP_ALL) as ckpt:
        for step in range(6):
            assert ckpt.save(step=step).error is None
            with ckpt.updating(), torch.no_grad():
                parameter += 1
        ckpt.wait(60)
    for step in range(6):
        found = holdfast.load(run, step)["parameter"]
        assert (found == step).all()


def test_a_change_that_nothing_held_back_fails_that_save_and_no_other(run, root, monkeypatch):
    started = []
    original = Overlapped._copy_deferred

    def changed_meanwhile(self, *arguments):
        if not started:
            started.append(True)
            with torch.no_grad():
                parameter.add_(1)
        original(self, *arguments)

    monkeypatch.setattr(Overlapped, "_copy_deferred", changed_meanwhile)
    parameter = torch.nn.Parameter(torch.zeros(1000))
    state = {"parameter": parameter, "optimizer": torch.optim.SGD([parameter], lr=1.0)}
    with holdfast.Checkpointer(run, state, background="process", capture="overlapped") as ckpt:
        torn = ckpt.save(step=1)
        with pytest.raises(holdfast.StateError, match="changed while"):
            torn.wait(60)
        ckpt.save(step=2).wait(60)
        assert garbage(run) == []
    assert steps(run) == [2]


def test_close_tells_of_the_last_copy_that_failed_however_slow_the_log_is(run, root, monkeypatch):
    def torn(self, *_):
        raise holdfast.StateError("it changed while the state was captured")

    parameter = torch.nn.Parameter(torch.zeros(1000))
    state = {"parameter": parameter, "optimizer": torch.optim.SGD([parameter], lr=1.0)}
    ckpt = holdfast.Checkpointer(run, state, background="process", capture="overlapped")
    ckpt.save(step=1).wait(60)
    monkeypatch.setattr(failures._log, "warning", lambda *_: time.sleep(0.5))
    monkeypatch.setattr(Overlapped, "_copy_deferred", torn)
    ckpt.save(step=2)

    with pytest.raises(holdfast.SaveFailedError, match=r"step 2.*changed while"):
        ckpt.close()


@pytest.mark.parametrize("background", ["process", "thread"])
def test_snapshots_are_written_while_they_are_copied_and_keep_their_names(run, root, monkeypatch, background):
    from holdfast.agent.background import Background
    from holdfast.agent.messages import Ahead

    heard = []
    hear = Background.hear
    monkeypatch.setattr(Background, "hear", lambda self, report: (heard.append(report), hear(self, report))[1])
    parameter = torch.nn.Parameter(torch.zeros(3 << 20))
    state = {"parameter": parameter, "optimizer": torch.optim.SGD([parameter], lr=1.0)}
    keep = holdfast.KEEP_ALL
    with holdfast.Checkpointer(run, state, background=background, capture="overlapped", keep=keep) as ckpt:
        # Two without an update between them, as at the end of many programs.
        pending = [ckpt.save(step=step) for step in (1, 2)]
        assert all(each.wait(60) for each in pending)
        first, second = (parse_checkpoint_id(each.id) for each in ckpt.checkpoints())

    whole_bytes = (run / str(first) / "rank-00000.safetensors").stat().st_size
    assert [report.done_bytes for report in heard if isinstance(report, Ahead)].count(whole_bytes) == 2
    assert (first.twin, second.twin) == (0, 0)
    assert holdfast.load(run, 2)["parameter"].sum() == 0
    assert garbage(run) == []


@pytest.mark.parametrize("waits", [False, True])
def test_a_snapshot_is_written_while_it_is_copied_only_if_somebody_waits_for_it(run, root, monkeypatch, waits):
    from holdfast.agent.background import Background
    from holdfast.agent.messages import Ahead
    from holdfast.engine import overlap
    from holdfast.engine.outcome import PendingCheckpoint

    monkeypatch.setattr(PendingCheckpoint, "is_awaited", False)
    heard, goes_on = [], threading.Event()
    hear, note = Background.hear, overlap.Filled.note
    monkeypatch.setattr(Background, "hear", lambda self, report: (heard.append(report), hear(self, report))[1])
    monkeypatch.setattr(overlap.Filled, "note", lambda self, chunk: (goes_on.wait(60), note(self, chunk)))
    parameter = torch.nn.Parameter(torch.zeros(3 << 20))
    state = {"parameter": parameter, "optimizer": torch.optim.SGD([parameter], lr=1.0)}
    with holdfast.Checkpointer(run, state, background="process", capture="overlapped") as ckpt:
        pending = ckpt.save(step=1)
        if waits:
            with pytest.raises(holdfast.SaveFailedError, match="not durable yet"):
                pending.wait(0)
        goes_on.set()
        until(lambda: pending.durable)

    assert any(isinstance(report, Ahead) for report in heard) == waits
    assert steps(run) == [1]


def test_the_agent_of_a_training_that_was_killed_while_it_was_copied_leaves_nothing_of_that(run, root):
    code = """
import torch
from holdfast.engine import overlap
parameter = torch.nn.Parameter(torch.zeros(6 << 20))
state = {"parameter": parameter, "optimizer": torch.optim.SGD([parameter], lr=1.0)}
ckpt = Checkpointer(RUN, state, background="process", capture="overlapped")
ckpt.save(step=1).wait(60)
note = overlap.Filled.note
def stop_in_the_middle(self, chunk):
    note(self, chunk)
    if chunk == 15:
        say("copied")
        time.sleep(600)
overlap.Filled.note = stop_in_the_middle
ckpt.save(step=2)
time.sleep(600)
"""
    with Program(code, run, root) as program:
        program.hear("copied")
        until(lambda: any(path.name.startswith("000000002") for path in run.iterdir()))
        (agent,) = agents_of(program.pid)
        os.kill(program.pid, signal.SIGKILL)
        until(lambda: not command_of(agent))  # gone, or a zombie: that has none

    assert [path.name for path in run.iterdir() if path.name.startswith("000000002")] == []
    assert steps(run) == [1]
