"""`holdfast run --app` as a user types it, with real programs."""

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.supervising.apps.gromacs import MDRUN, frames_in, make_water, need_gromacs, step_in_checkpoint

pytestmark = pytest.mark.slow

_DEADLINE_S = 120
SOLVER = """\
import os, signal, sys, time
stopping = []
signal.signal(signal.SIGUSR2, lambda *_: stopping.append(1))
first = int(open("state.txt").read()) if "--resume" in sys.argv else 0
for step in range(first + 1, 201):
    time.sleep(0.02)
    print(step, flush=True)
    if step % 10 == 0 or stopping:
        with open("state.new", "w") as file:
            file.write(str(step))
        os.replace("state.new", "state.txt")
        with open("solver.log", "a") as log:
            log.write(f"wrote step {step}\\n")
    if stopping:
        sys.exit(0)
"""
RECIPE = """\
[checkpoint]
files = ["state.txt"]
atomic = true
[restart]
add = [["--resume"]]
[stop]
signal = "SIGUSR2"
[progress]
file = "solver.log"
step = '^wrote step (\\d+)'
total = 200
"""


class Run:
    """One `holdfast run`."""

    def __init__(self, folder: Path, *arguments: str) -> None:
        self.folder = folder
        with open(folder / "said.txt", "ab") as said, open(folder / "printed.txt", "ab") as printed:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "holdfast", "run", "--plain", "--backoff", "0", *arguments],
                cwd=folder,
                stdin=subprocess.DEVNULL,
                stdout=printed,
                stderr=said,
            )

    def send(self, number: signal.Signals) -> None:
        self._process.send_signal(number)

    def kill_program(self, name: str) -> bool:
        """Without its supervisor; whether there was one."""
        children = Path(f"/proc/{self._process.pid}/task/{self._process.pid}/children").read_text().split()
        for pid in map(int, children):
            if name in Path(f"/proc/{pid}/cmdline").read_text():
                os.kill(pid, signal.SIGKILL)
                return True
        return False

    def wait_until(self, is_there: Callable[[], bool]) -> None:
        end_s = time.monotonic() + _DEADLINE_S
        while not is_there():
            assert time.monotonic() < end_s, self.said()
            assert self._process.poll() is None, self.said()
            time.sleep(0.02)

    def end(self) -> int:
        return self._process.wait(_DEADLINE_S)

    def said(self) -> str:
        return (self.folder / "said.txt").read_text()


def number_in(path: Path) -> int:
    return int(path.read_text() or 0) if path.exists() else 0


def test_a_program_with_a_recipe_survives_a_stop_the_loss_of_its_files_and_a_kill(tmp_path: Path) -> None:
    (tmp_path / "solver.py").write_text(SOLVER)
    (tmp_path / "solver.toml").write_text(RECIPE)
    command = ("--app", "solver.toml", "--run", "kept", "--on-85", "exit", "--", sys.executable, "solver.py")
    state = tmp_path / "state.txt"

    run = Run(tmp_path, *command)
    run.wait_until(lambda: number_in(state) >= 20)
    run.send(signal.SIGTERM)  # the program would die of it; it is sent what it understands
    stopped = run.end()
    at_stop = number_in(state)
    state.unlink()
    run = Run(tmp_path, *command)
    run.wait_until(lambda: number_in(state) >= at_stop + 30)
    run.wait_until(lambda: run.kill_program("solver.py"))
    done = run.end()

    assert (stopped, done) == (85, 0), run.said()
    assert number_in(state) == 200
    printed = [int(line) for line in (tmp_path / "printed.txt").read_text().split()]
    assert set(printed) == set(range(1, 201))
    assert printed[at_stop] == at_stop + 1


def test_a_gromacs_whose_slices_end_by_maxh_and_by_a_kill_is_run_until_it_is_done(tmp_path: Path) -> None:
    need_gromacs()
    folder = tmp_path / "water"
    make_water(folder, steps=9000)
    mdrun = [*MDRUN, "-deffnm", "run", "-cpt", "0.004", "-maxh", "0.0003"]

    run = Run(folder, "--app", "gromacs", "--run", "kept", "--", *mdrun)
    run.wait_until(lambda: (folder / "run.cpt").exists())
    run.wait_until(lambda: run.kill_program("mdrun"))
    status = run.end()

    assert status == 0, run.said()
    assert "has more to do" in run.said()
    assert "killed by SIGKILL" in run.said()
    assert step_in_checkpoint(folder / "run.cpt") == 9000
    assert frames_in(folder / "run.xtc") == 19
    verified = subprocess.run([sys.executable, "-m", "holdfast", "verify", "kept", "--all"], cwd=folder, check=False)
    assert verified.returncode == 0


def test_a_counting_program_under_criu_survives_a_stop_and_a_kill(
    tmp_path: Path, criu: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOLDFAST_CRIU_EVERY", "1 s")
    folder = tmp_path / "count"
    folder.mkdir()
    shell = shutil.which("sh")
    assert shell is not None
    (folder / "count.sh").write_text("i=0\nwhile [ $i -lt 500 ]; do echo $i; i=$((i+1)); sleep 0.03; done\n")
    command = ("--app", "criu", "--run", "kept", "--on-85", "exit", "--", shell, "count.sh")

    def counted() -> list[str]:
        output = folder / "output.txt"
        return output.read_text().split() if output.exists() else []

    run = Run(folder, *command)
    run.wait_until(lambda: len(counted()) > 20)
    run.send(signal.SIGUSR1)
    stopped = run.end()
    saved = len(list((folder / "kept").glob("0*-a0002")))
    run = Run(folder, *command)
    run.wait_until(lambda: len(list((folder / "kept").glob("0*-a0002/manifest.json"))) > saved)
    os.kill(restored_in(folder), signal.SIGKILL)
    done = run.end()

    assert (stopped, done) == (85, 0), run.said()
    assert counted() == [str(number) for number in range(500)]


def test_a_program_that_a_killed_supervisor_left_stopped_during_a_dump_is_ended_and_restored(
    tmp_path: Path, criu: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOLDFAST_CRIU_EVERY", "0.5 s")
    folder = tmp_path / "count"
    folder.mkdir()
    (folder / "count.sh").write_text("i=0\nwhile [ $i -lt 60 ]; do echo $i; i=$((i+1)); sleep 0.1; done\n")
    command = ("--app", "criu", "--run", "kept", "--", "sh", "count.sh")
    deadly = tmp_path / "deadly-criu"
    deadly.write_text(
        f'#!/bin/sh\n{criu} "$@" || exit 1\n'
        f'if [ "$1" = dump ] && [ -e {tmp_path}/dumped ]; then kill -9 $PPID; fi\ntouch {tmp_path}/dumped\n'
    )
    deadly.chmod(0o755)

    monkeypatch.setenv("HOLDFAST_CRIU", str(deadly))
    first = Run(folder, *command)
    assert first.end() == -signal.SIGKILL, first.said()
    left = restored_in(folder)
    monkeypatch.setenv("HOLDFAST_CRIU", str(criu))
    run = Run(folder, *command)
    try:
        done = run.end()
    finally:
        if is_stopped(left):
            os.kill(left, signal.SIGKILL)

    assert done == 0, run.said()
    assert f"process {left} was left stopped" in run.said()
    assert (folder / "output.txt").read_text().split() == [str(number) for number in range(60)]


def is_stopped(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "T"
    except OSError:
        return False


def restored_in(folder: Path) -> int:
    """The program in that folder, whoever started it."""
    for path in Path("/proc").iterdir():
        try:
            is_here = path.name.isdigit() and os.readlink(path / "cwd") == str(folder)
            if is_here and (path / "cmdline").read_text().split("\0")[1:2] == ["count.sh"]:
                return int(path.name)
        except OSError:
            continue
    raise AssertionError("there is none")
