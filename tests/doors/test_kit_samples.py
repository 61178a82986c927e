"""The code samples of the document of the KIT class, as they stand but for the import.

Where its typesetting broke a sample, `_mended` has the least that makes it a program; `...` stands for the arguments of
the first sample. What the samples take for granted is in the prelude.
"""

import shutil
import signal
from pathlib import Path

import pytest

from tests.doors.scripts import Ended, run, started
from tests.doors.xrootd_server import XRootD

_IMPORT = "from checkpointer.checkpointer import Checkpointer\n"
_OURS = "from holdfast.doors.kit import Checkpointer\n"

_CLASS = """\
from checkpointer.checkpointer import Checkpointer
checkpointer = Checkpointer(
    local_checkpoint_file=Path("checkpoint.pt"), # define checkpoint file
    # define a function, that saves the checkpoint
    checkpoint_function=lambda path, model: torch.save(model.state_dict(),
        path),
    # define a function, that restores the checkpoint
    restore_function=lambda path: model.load_state_dict(torch.load(path)["
        model_state_dict"]),
    # Reload checkpoint and give default value if there is none
    model = checkpointer.restore(model)
    # Trigger the checkpoint creation and transfer
    checkpointer.checkpoint(i)
"""

_WRAPPER = """\
# push program to the background
#!/bin/bash
python3 train.py &
pid=$! # get pid
trap "kill -15 $pid" 15 #SIGINT
trap "kill -10 $pid" 10 #SIGTERM
wait $pid
"""

_EVERY = """\
checkpointer = Checkpointer(
    ...
    checkpoint_every = 100)
    ...
for i in range(epochs):
    ...
    checkpointer.step(i, model)
"""

_SHARED = """\
checkpointer = Checkpointer(
    ...
    checkpoint_transfer_mode = "shared",
    checkpoint_transfer_target = Path("...")
"""

_XROOTD = """\
checkpointer = Checkpointer(
    ...
    checkpoint_transfer_mode = "xrootd",
    checkpoint_transfer_target = "/pnfs/...",
    xrootd_server_name = "...")
"""

_HTCONDOR = """\
checkpointer = Checkpointer(
    ...
    checkpoint_transfer_mode="htcondor"
"""

_PRELUDE = """\
import sys
from pathlib import Path
import torch

class Model(torch.nn.Linear):
    # The sample saves state_dict(), reads ["model_state_dict"] of that, and takes what loading it gives for the model.
    def state_dict(self):
        return {"model_state_dict": super().state_dict()}
    def load_state_dict(self, state):
        super().load_state_dict(state)
        return self

torch.manual_seed(int(sys.argv[1]) if len(sys.argv) > 1 else 1)
model = Model(2, 2)
i = model  # what the sample's checkpoint_function takes
epochs = 101
"""
_SAY = "print('weight', model.weight.flatten().tolist(), flush=True)\n"


def _mended(sample: str) -> str:
    sample = sample.replace(_IMPORT, _OURS)
    sample = sample.replace('["\n        model_state_dict"]),\n', '["model_state_dict"]))\n')
    for line in ("# Reload", "model = checkpointer", "# Trigger", "checkpointer.checkpoint"):
        sample = sample.replace("    " + line, line)
    return sample


def _in_full(sample: str, **places: str) -> str:
    """With the arguments of the first sample in the place of its dots, and the user's own places."""
    arguments = _mended(_CLASS).split("Checkpointer(\n")[1].split("# Reload")[0].rstrip().removesuffix(")")
    for old, new in places.items():
        sample = sample.replace({"target": '"..."', "pnfs": '"/pnfs/..."', "server": '"..."'}[old], repr(new))
    sample = sample.replace("(\n    ...\n", f"(\n{arguments},\n", 1)
    sample = sample.replace("100)\n    ...\n", "100)\nmodel = checkpointer.restore(model)\n")
    sample = sample.rstrip()
    return _OURS + sample + (")\n" if sample.count("(") > sample.count(")") else "\n")


def _run(folder: Path, text: str, seed: int, environ: dict[str, str] | None = None) -> Ended:
    (folder / "train.py").write_text(_PRELUDE + text)
    ended = run(folder, ["python", "train.py", str(seed)], environ)
    assert ended.status == 0, ended.err
    return ended


def _weight(ended: Ended) -> str:
    return next(line for line in ended.out.splitlines() if line.startswith("weight"))


_WAIT = "import signal\nwhile True:\n    signal.pause()\n"
_USE = "model = checkpointer.restore(model)\n" + _SAY + "checkpointer.step(i)\n"


def test_the_sample_of_the_class_checkpoints_and_restores_the_model(tmp_path: Path) -> None:
    sample = _mended(_CLASS) + _SAY

    first, second = _run(tmp_path, sample, seed=1), _run(tmp_path, sample, seed=2)

    assert (tmp_path / "checkpoint.pt").exists()
    assert _weight(second) == _weight(first)


def test_the_sample_of_checkpoint_every_writes_at_the_first_and_the_hundred_and_first_step(tmp_path: Path) -> None:
    sample = _in_full(_EVERY).replace("torch.save(", "print('saved') or torch.save(") + _SAY

    first, second = _run(tmp_path, sample, seed=1), _run(tmp_path, sample, seed=2)

    assert first.out.count("saved") == 2
    assert _weight(second) == _weight(first)


def test_the_sample_of_shared_file_systems_leaves_the_checkpoint_at_the_target(tmp_path: Path) -> None:
    (tmp_path / "shared").mkdir()
    sample = _in_full(_SHARED, target="shared/me.pt") + _USE

    first = _run(tmp_path, sample, seed=1)
    (tmp_path / "checkpoint.pt").unlink()
    second = _run(tmp_path, sample, seed=2)

    assert (tmp_path / "shared" / "me.pt").exists()
    assert _weight(second) == _weight(first)


def test_the_sample_of_grid_storage_leaves_the_checkpoint_on_the_server(tmp_path: Path, xrootd: XRootD) -> None:
    sample = _in_full(_XROOTD, pnfs="/data/me.pt", server=xrootd.name) + _USE

    first = _run(tmp_path, sample, seed=1)
    elsewhere = tmp_path / "another machine"
    elsewhere.mkdir()
    second = _run(elsewhere, sample, seed=2)

    assert [path.name for path in xrootd.data.iterdir()] == ["me.pt"]
    assert _weight(second) == _weight(first)


@pytest.mark.parametrize("spelling", ["CheckpointExitCode", "SuccessCheckpointExitCode"])
def test_the_sample_of_htcondor_takes_its_settings_from_the_job_ad(tmp_path: Path, spelling: str) -> None:
    (tmp_path / ".job.ad").write_text(f'ClusterId = 7\nTransferCheckpoint = "checkpoint.pt"\n{spelling} = 77\n')
    environ = {"_CONDOR_JOB_AD": str(tmp_path / ".job.ad")}
    sample = _in_full(_HTCONDOR) + _USE
    wait = "print('target', checkpointer.checkpoint_transfer_target, flush=True)\n" + _WAIT

    first = _run(tmp_path, sample, 1, environ)
    (tmp_path / "train.py").write_text(_PRELUDE + sample + wait)
    with started(tmp_path, ["python", "train.py", "2"], environ) as script:
        script.wait_for("target checkpoint.pt")
        script.send(signal.SIGTERM)
        second = script.end()

    assert second.status == 77
    assert _weight(second) == _weight(first)
    assert (tmp_path / "checkpoint.pt").exists()  # for HTCondor to take along


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGUSR1])
def test_the_signal_wrapper_has_the_training_keep_its_checkpoint(tmp_path: Path, number: signal.Signals) -> None:
    if shutil.which("bash") is None:
        pytest.skip("not installed: bash")
    (tmp_path / "train.py").write_text(
        _PRELUDE.replace("sys.argv", "['', '1']") + _in_full(_EVERY).replace("range(epochs)", "range(7)") + _SAY + _WAIT
    )
    (tmp_path / "wrapper.sh").write_text(_WRAPPER)
    with started(tmp_path, ["bash", "wrapper.sh"]) as wrapper:
        wrapper.wait_for("weight")
        (tmp_path / "checkpoint.pt").unlink()

        wrapper.send(number)
        ended = wrapper.end()

    # The wrapper does not wait a second time, so its own status is that of the trap: `holdfast run` passes 85 on.
    assert ended.status == 128 + number
    assert f"stopping at step 7, on signal {number.value}; status 85" in ended.err
    assert (tmp_path / "checkpoint.pt").exists()
