"""How long one waits for the command line."""

import shutil
import subprocess
import sys
from pathlib import Path

import holdfast
from benchmarks.measure import in_turn, timed
from benchmarks.results import Role, Row, Section, at_most, row
from benchmarks.sections.history import save_many, small_run
from benchmarks.setting import Setting

__all__ = ["run"]

_CHECKPOINTS = 1_000
_QUICK_CHECKPOINTS = 5
_LEAST_REPEAT = 10
_MOST_VERSION = 3.0
_MOST_LS = 5.0


def run(setting: Setting) -> Section:
    """`holdfast --version` and `holdfast ls` of a long run, beside the start of Python itself."""
    count = _QUICK_CHECKPOINTS if setting.quick else _CHECKPOINTS
    section = Section(name="command_line", title=f"Command line, a run with {count:,} checkpoints")
    program = _program()
    if program is None:
        section.skipped = "there is no `holdfast` command beside this Python, or it does not start"
        return section
    directory = str(setting.directory / "run")
    with small_run(directory, holdfast.KEEP_ALL) as ckpt:
        save_many(ckpt, count)
    contenders: list[tuple[str, Role, list[str]]] = [
        ("python -c pass", "limit", [sys.executable, "-c", "pass"]),
        ("holdfast --version", "holdfast", [program, "--version"]),
        ("holdfast ls", "holdfast", [program, "ls", directory]),
    ]
    for _, _, command in contenders:
        _call(command)  # once, so that modules are compiled and files cached
    samples = in_turn(contenders, max(_LEAST_REPEAT, setting.repeat), lambda one: timed(lambda: _call(one[2])))
    section.rows = [
        row(name, name, role, [sample.wall_s for sample in found])
        for (name, role, _), found in zip(contenders, samples, strict=True)
    ]
    section.checks = [
        at_most("holdfast --version / python -c pass", _MOST_VERSION, _ratio(section.rows, 1)),
        at_most("holdfast ls / python -c pass", _MOST_LS, _ratio(section.rows, 2)),
    ]
    return section


def _program() -> str | None:
    found = shutil.which("holdfast", path=str(Path(sys.executable).parent))
    if found is None or subprocess.run([found, "--version"], capture_output=True, check=False).returncode:
        return None
    return found


def _call(command: list[str]) -> None:
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)


def _ratio(rows: list[Row], index: int) -> float:
    return rows[index].median_s / rows[0].median_s
