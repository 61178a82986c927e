"""A small box of water for a real GROMACS: 213 molecules, about 2,000 steps a second."""

import shutil
import subprocess
from pathlib import Path

from tests.supervising.apps.conftest import missing

__all__ = ["MDRUN", "frames_in", "make_water", "need_gromacs", "step_in_checkpoint"]

MDRUN = "gmx -quiet mdrun -ntmpi 1 -ntomp 1 -pin off -s topol.tpr".split()
_SETTINGS = """\
integrator = md
dt = 0.002
nsteps = {steps}
nstxout-compressed = 500
nstenergy = 500
nstlog = 500
cutoff-scheme = Verlet
coulombtype = PME
rcoulomb = 0.8
rvdw = 0.8
tcoupl = V-rescale
tc-grps = System
tau_t = 0.5
ref_t = 300
gen_vel = yes
gen_seed = 7
constraints = h-bonds
"""
_TOPOLOGY = """\
#include "oplsaa.ff/forcefield.itp"
#include "oplsaa.ff/spc.itp"
[ system ]
water
[ molecules ]
"""
_DEADLINE_S = 60


def need_gromacs() -> None:
    if shutil.which("gmx") is None:
        missing("there is no gmx here: tests/components installs it")


def make_water(folder: Path, *, steps: int) -> None:
    """topol.tpr in the folder."""
    folder.mkdir(exist_ok=True)
    (folder / "md.mdp").write_text(_SETTINGS.format(steps=steps))
    (folder / "topol.top").write_text(_TOPOLOGY)
    _gmx(folder, "solvate", "-cs", "spc216", "-box", "1.9", "1.9", "1.9", "-p", "topol.top", "-o", "water.gro")
    _gmx(folder, "grompp", "-f", "md.mdp", "-c", "water.gro", "-p", "topol.top", "-o", "topol.tpr")


def step_in_checkpoint(path: Path) -> int:
    """What GROMACS itself says."""
    text = _gmx(path.parent, "dump", "-cp", path.name)
    return next(int(line.split("=")[1]) for line in text.splitlines() if line.startswith("step ="))


def frames_in(path: Path) -> int:
    """How many frames a trajectory has, none of them twice, as GROMACS counts them."""
    text = _gmx(path.parent, "check", "-f", path.name, with_errors=True)
    return next(int(line.split()[1]) for line in text.splitlines() if line.startswith("Coords"))


def _gmx(folder: Path, *arguments: str, with_errors: bool = False) -> str:
    done = subprocess.run(
        ["gmx", "-quiet", *arguments], cwd=folder, capture_output=True, text=True, timeout=_DEADLINE_S
    )
    assert done.returncode == 0, done.stderr
    return done.stdout + (done.stderr if with_errors else "")
