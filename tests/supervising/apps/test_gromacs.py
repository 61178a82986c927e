"""A real GROMACS: cut into slices, moved, damaged."""

import os
import shutil
import signal
from pathlib import Path

import pytest

from holdfast.cli.main import main
from holdfast.engine.catalog import read_catalog
from holdfast.engine.identity import identify
from holdfast.storage.posix import PosixStore
from holdfast.supervising.app import App
from holdfast.supervising.apps import find_app
from tests.supervising.apps.driving import attempt, until_done
from tests.supervising.apps.gromacs import MDRUN, frames_in, make_water, need_gromacs, step_in_checkpoint

pytestmark = pytest.mark.slow

STEPS = 6000
FRAMES = STEPS // 500 + 1


@pytest.fixture(scope="module")
def stopped(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder in which a simulation was asked to stop, as a job is before its time is over."""
    need_gromacs()
    os.environ.update(OMP_NUM_THREADS="1", GMX_MAXBACKUP="-1")
    folder = tmp_path_factory.mktemp("gromacs") / "water"
    make_water(folder, steps=STEPS)
    app = gromacs(folder)
    ending = attempt(app, folder, meanwhile=lambda pid: (app.look(pid) or 0) > 0 and app.ask_to_stop(pid))
    app.close()
    assert (ending.outcome, ending.status) == ("again", 85)
    assert 0 < (ending.step or 0) < STEPS
    return folder


@pytest.fixture
def water(stopped: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(stopped, tmp_path / "water"))


def gromacs(folder: Path, *options: str) -> App:
    command = [*MDRUN, "-deffnm", "run", "-cpt", "0.004", *options]
    return find_app("gromacs", command, run=str(folder / "kept"), folder=str(folder), restart_status=85)


def steps_of(folder: Path) -> list[int]:
    store = PosixStore(folder / "kept", readonly=True)
    try:
        return sorted(checkpoint.step for checkpoint in read_catalog(store, identify(store)).checkpoints)
    finally:
        store.close()


def kill_past(folder: Path, pid: int, step: int) -> bool:
    if steps_of(folder)[-1] <= step:
        return False
    os.kill(pid, signal.SIGKILL)
    return True


def test_slices_by_a_stop_by_maxh_and_by_a_kill_add_up_to_the_final_step(water: Path) -> None:
    began = steps_of(water)[-1]

    sliced = gromacs(water, "-maxh", "0.00003")
    first = attempt(sliced, water)
    sliced.close()
    app = gromacs(water)
    killed = attempt(app, water, meanwhile=lambda pid: kill_past(water, pid, first.step or 0))
    kept = steps_of(water)[-1]
    in_folder = step_in_checkpoint(water / "run.cpt")
    endings = until_done(app, water)
    app.close()

    assert (first.outcome, first.status) == ("again", 85)
    assert began < (first.step or 0) < kept == in_folder < STEPS
    assert (killed.outcome, killed.status) == ("failed", 128 + signal.SIGKILL)
    assert [(ending.outcome, ending.step) for ending in endings] == [("done", STEPS)]
    assert step_in_checkpoint(water / "run.cpt") == steps_of(water)[-1] == STEPS
    assert frames_in(water / "run.xtc") == FRAMES
    assert main(["verify", str(water / "kept"), "--all"]) == 0


def test_a_simulation_goes_on_in_another_folder_that_has_only_the_run(water: Path, tmp_path: Path) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    shutil.copy(water / "topol.tpr", elsewhere)
    shutil.copytree(water / "kept", elsewhere / "kept")
    began = steps_of(water)[-1]

    app = gromacs(elsewhere)
    ending = attempt(app, elsewhere)
    app.close()

    assert (ending.outcome, ending.step) == ("done", STEPS)
    assert "Restarting from checkpoint" in (elsewhere / "run.log").read_text()
    assert steps_of(elsewhere)[0] >= began
    assert frames_in(elsewhere / "run.xtc") == FRAMES


@pytest.mark.parametrize("damage", [b"", b"not a checkpoint of GROMACS" * 100])
def test_a_checkpoint_file_that_gromacs_cannot_read_is_replaced_from_the_run(water: Path, damage: bytes) -> None:
    good = (water / "run.cpt").read_bytes()
    (water / "run.cpt").write_bytes(damage)
    (water / "run_prev.cpt").unlink(missing_ok=True)

    app = gromacs(water)
    command = list(app.begin())
    app.close()

    assert command[-2:] == ["-cpi", "run.cpt"]
    assert (water / "run.cpt").read_bytes() == good


def test_where_mdrun_was_killed_between_its_two_renames_the_copy_of_the_one_before_is_gone_on_from(
    water: Path,
) -> None:
    newer = water / "run_prev.cpt"
    os.replace(water / "run.cpt", newer)
    os.utime(newer)  # written since holdfast looked last

    app = gromacs(water)
    app.begin()
    app.close()

    assert (water / "run.cpt").read_bytes() == newer.read_bytes()
