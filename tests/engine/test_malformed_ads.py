"""A training goes on, and stops as always, whatever lies where HTCondor's ads should be."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

_TRAINING = """\
import os, signal
import numpy as np
import holdfast
weights = np.zeros(10)
ckpt = holdfast.Checkpointer("run", {"weights": weights})
for number in range(5):
    weights += 1
    if number == 3:
        os.kill(os.getpid(), signal.SIGTERM)
    ckpt.step()
"""


def _binary(path: Path) -> None:
    path.write_bytes(os.urandom(10_000))


def _hostile(path: Path) -> None:
    path.write_text(
        'ClusterId = $(touch hacked)\nGlobalJobId = "`touch hacked`"\nNumShadowStarts = 1e999\n'
        'SuccessCheckpointExitCode = "85; touch hacked"\nJobMaxVacateTime = -1e400\nMachineMaxVacateTime = 0x\n'
        'AllowedExecuteDuration = "soon"\nTransferCheckpoint = "../../etc\n'
    )


def _huge(path: Path) -> None:
    with open(path, "wb") as file:
        file.write(b"ClusterId = 1\n")
        file.truncate(1 << 40)


@pytest.mark.parametrize(
    "make", [_binary, _hostile, _huge, os.mkfifo, os.mkdir, lambda path: None, lambda path: path.symlink_to(path)]
)
def test_ads_that_make_no_sense_change_nothing(make, tmp_path):
    make(tmp_path / "ad")
    environ = {**os.environ, "_CONDOR_JOB_AD": str(tmp_path / "ad"), "_CONDOR_MACHINE_AD": str(tmp_path / "ad")}

    ended = subprocess.run(
        [sys.executable, "-c", _TRAINING], cwd=tmp_path, env=environ, capture_output=True, timeout=120, check=False
    )

    assert ended.returncode == 85, ended.stderr
    assert not (tmp_path / "hacked").exists()
