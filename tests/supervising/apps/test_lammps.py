"""A real LAMMPS, whose restart files are written in place."""

import os
import shutil
import signal
from pathlib import Path

import pytest

from holdfast.supervising.app import App
from holdfast.supervising.apps import find_app
from tests.supervising.apps.conftest import missing
from tests.supervising.apps.driving import attempt

pytestmark = pytest.mark.slow

BEGIN = """\
lattice fcc 0.8442
region box block 0 4 0 4 0 4
create_box 1 box
create_atoms 1 box
mass 1 1.0
velocity all create 3.0 87287 loop geom
"""
MELT = """\
units lj
atom_style atomic
if "$(is_defined(variable,restart))" then "read_restart ${restart}" else "include begin.in"
pair_style lj/cut 2.5
pair_coeff 1 1 1.0 1.0 2.5
neighbor 0.3 bin
fix 1 all nve
thermo 500
restart 1000 melt.restart
run 80500 upto
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    if shutil.which("lmp") is None:
        missing("there is no lmp here: tests/components installs it")
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    folder = tmp_path / "melt"
    folder.mkdir()
    (folder / "begin.in").write_text(BEGIN)
    (folder / "in.melt").write_text(MELT)
    return folder


def test_a_melt_that_is_killed_goes_on_from_its_last_restart_file_and_ends(folder: Path) -> None:
    def kill_past_6000(pid: int) -> bool:
        if not (folder / "melt.restart.6000").exists():
            return False
        os.kill(pid, signal.SIGKILL)
        return True

    app = melting(folder)
    killed = attempt(app, folder, meanwhile=kill_past_6000)
    command = list(app.begin())
    ended = attempt(app, folder)
    app.close()

    assert killed.outcome == "failed"
    assert command[-3:-1] == ["-var", "restart"]
    assert int(command[-1].rpartition(".")[2]) >= 5000
    assert (ended.outcome, ended.step) == ("done", 80500)
    assert "read_restart melt.restart." in (folder / "log.lammps").read_text()


def melting(folder: Path) -> App:
    command = ["lmp", "-in", "in.melt"]
    return find_app("lammps", command, run=str(folder / "kept"), folder=str(folder), restart_status=85)
