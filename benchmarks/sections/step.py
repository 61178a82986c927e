"""What checkpointing costs when nothing is saved: a call of step(), and the agent that waits."""

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np

import holdfast
from benchmarks.measure import in_turn, timed
from benchmarks.results import Role, Section, at_most, row
from benchmarks.setting import Setting

__all__ = ["run"]

_CALLS = 200_000
_QUICK_CALLS = 1_000
_LEAST_REPEAT = 3
_MOST_STEP_US = 1.0
_MOST_START_MS = 100.0
_MOST_AGENT_MB = 40.0
_AGENT = "holdfast.agent"
_ROLES: tuple[Role, Role] = ("limit", "holdfast")


def run(setting: Setting) -> Section:
    """step() beside an empty method, the agent's start beside that of Python, and its memory."""
    section = Section(name="step", title="The cost of a training that saves nothing: step() and the agent")
    with holdfast.Checkpointer(
        # With the default `every`, whose looks are part of what step() costs; nothing is due in so short a time.
        setting.directory / "run",
        {"weights": np.zeros(256)},
        background="process",
        on_error="raise",
    ) as ckpt:
        ckpt.save(step=0).wait()
        if hasattr(ckpt, "step"):
            _measure_step(section, ckpt, setting)
        else:
            section.notes.append("step() is not measured: Checkpointer has no such method.")
        _measure_memory(section)
    _measure_start(section, setting)
    return section


class _Empty:
    def step(self) -> None:
        pass


def _measure_step(section: Section, ckpt: holdfast.Checkpointer, setting: Setting) -> None:
    calls = _QUICK_CALLS if setting.quick else _CALLS

    def loop(step: Callable[[], object]) -> None:
        for _ in range(calls):
            step()

    steps: list[Callable[[], object]] = [_Empty().step, ckpt.step]
    samples = in_turn(steps, max(setting.repeat, _LEAST_REPEAT), lambda step: timed(lambda: loop(step)))
    empty, ours = (
        row("step", name, role, [sample.wall_s for sample in found], items=calls)
        for name, role, found in zip(
            ("an empty method", "holdfast, step() with nothing due"), _ROLES, samples, strict=True
        )
    )
    section.rows += [empty, ours]
    section.checks.append(at_most("step() with nothing due", _MOST_STEP_US, ours.median_s / calls * 1e6, "µs"))
    section.notes.append(f"step() with nothing due costs {ours.median_s / empty.median_s:.1f} calls of an empty method")


def _measure_memory(section: Section) -> None:
    agents = [pid for pid in _children() if _AGENT in _command(pid)]
    if not agents:
        section.notes.append("the agent's memory is not measured: this process has no agent.")
        return
    # Pages that it shares with the training process are the state, and are counted there.
    own_bytes = max(_status_bytes(pid, "RssAnon") + _status_bytes(pid, "RssFile") for pid in agents)
    section.checks.append(at_most("memory of the agent", _MOST_AGENT_MB, own_bytes / 1e6, "MB"))


def _measure_start(section: Section, setting: Setting) -> None:
    codes = {"python -c pass": "pass", "holdfast, the agent with its imports": f"import {_AGENT}.main"}
    if any(_run_python(code) for code in codes.values()):
        section.notes.append(f"the agent's start is not measured: {_AGENT} cannot be imported.")
        return
    samples = in_turn(
        list(codes.values()),
        max(setting.repeat, 1 if setting.quick else 10),
        lambda code: timed(lambda: _run_python(code)),
    )
    start, ours = (
        row("agent", name, role, [sample.wall_s for sample in found])
        for name, role, found in zip(codes, _ROLES, samples, strict=True)
    )
    section.rows += [start, ours]
    section.checks.append(at_most("start of the agent", _MOST_START_MS, ours.median_s * 1000, "ms"))


def _run_python(code: str) -> int:
    """As the agent's process is started: without the user's start-up files."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    command = [sys.executable, "-S", "-P", "-c", code]
    return subprocess.run(command, capture_output=True, check=False, cwd="/", env=environment).returncode


def _children() -> list[int]:
    found: list[int] = []
    for task in Path(f"/proc/{os.getpid()}/task").iterdir():
        try:
            found += map(int, (task / "children").read_text(encoding="ascii").split())
        except FileNotFoundError:
            continue  # a thread that ended meanwhile
    return found


def _command(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
    except FileNotFoundError:
        return ""


def _status_bytes(pid: int, field: str) -> int:
    for line in Path(f"/proc/{pid}/status").read_text(encoding="ascii").splitlines():
        if line.startswith(field + ":"):
            return int(line.split()[1]) << 10
    return 0
