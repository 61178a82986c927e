"""Part (c): every call of a save, a prune, a takeover and a fallback fails in every way, or is the process's last."""

import errno
import multiprocessing
import os
import shutil
import signal
import tempfile
import threading
from contextlib import AbstractContextManager, nullcontext, suppress
from pathlib import Path
from typing import Literal, NamedTuple
from unittest.mock import patch

from holdfast.checkpointer import Checkpointer
from holdfast.core.errors import HoldfastError
from holdfast.core.names import shard_name
from holdfast.policy.keep import KEEP_ALL, Keep, keep
from holdfast.storage.files import Files
from holdfast.testing.faulty_files import Fault, FaultyFiles
from tests.crash.agents import arenas_in, change_owner, quiesce
from tests.crash.children import Tell, listen, start
from tests.crash.faults import FAULTS, FaultKind
from tests.crash.oracle import describe
from tests.crash.outcome import Outcome, Progress
from tests.crash.slices import WHOLE, Slice
from tests.crash.subject import Program, in_memory, quiet, small_and_fast

__all__ = ["SCENARIOS", "sweep"]

_FLOATS = 600
_PROCESSES = 2
_NEXT = 1000
_SETTLED_S = 30.0
# What an agent does goes through the same calls as what the training does in the foreground: samples suffice.
_AGENT_STRIDE = 12


_MEMORY = "memory"


class _ForgetfulFiles(FaultyFiles):
    """As Linux does it: when a sync fails, the file loses its data, and the next sync succeeds without them."""

    def sync(self, descriptor: int) -> None:
        try:
            super().sync(descriptor)
        except OSError as error:
            if error.errno == errno.EIO:
                self.inner.truncate(descriptor, 0)
            raise


class _Scenario(NamedTuple):
    """What was saved and acknowledged before, and with which retention is saved under the fault."""

    saves: int
    retain: Keep
    damaged: bool = False
    agent: bool = False
    """An agent writes, and two saves are made without waiting between them."""
    staged: bool = False
    """The last of the saves is in memory only: the training and its agent were killed before it was written."""

    @property
    def floor(self) -> int:
        """The newest save that must survive whatever happens now."""
        return self.saves - self.damaged

    @property
    def numbers(self) -> range:
        """The saves that are made under the fault."""
        return range(self.saves + 1, self.saves + (3 if self.agent else 2))

    @property
    def background(self) -> Literal["thread", "off"]:
        return "thread" if self.agent else "off"

    def arenas(self, place: Path) -> AbstractContextManager[None]:
        """Where what is in memory is kept, beside the run at that place."""
        return arenas_in(place / _MEMORY) if self.agent else nullcontext()


SCENARIOS = {
    "first save": _Scenario(0, KEEP_ALL),
    "takeover, restore, save": _Scenario(1, KEEP_ALL),
    "save and prune": _Scenario(3, keep(last=1)),
    "fallback, save and prune": _Scenario(2, keep(last=1), damaged=True),
    "agent: saves and prune": _Scenario(2, keep(last=1), agent=True),
    "agent: restart from memory, saves and prune": _Scenario(2, keep(last=2), agent=True, staged=True),
}


def sweep(*, faults: list[str] | None = None, every: int = 1, first_only: bool = False, part: Slice = WHOLE) -> Outcome:
    """All scenarios × calls × faults; `every` takes only each n-th call, `first_only` ends at the first violation."""
    chosen = [fault for fault in FAULTS if faults is None or fault.name in faults]
    tasks: list[tuple[str, Path, FaultKind, list[int]]] = []
    with (
        small_and_fast(),
        tempfile.TemporaryDirectory(prefix="holdfast-sweep-", dir=in_memory()) as scratch,
    ):
        for name in SCENARIOS:
            template, calls = _prepare(name, Path(scratch))
            for turn, fault in enumerate(chosen):
                hit = [number for number, call in enumerate(calls) if call in fault.methods]
                hit = hit[turn % _AGENT_STRIDE :: every * _AGENT_STRIDE] if SCENARIOS[name].agent else hit[::every]
                tasks += [(name, template, fault, hit[begin : begin + 20]) for begin in range(0, len(hit), 20)]
        tasks = part.of(tasks)
        progress = Progress("failing calls", sum(len(numbers) for *_, numbers in tasks))
        done, violations = 0, []
        with multiprocessing.get_context("fork").Pool(_PROCESSES) as pool:
            # One after the other where we end early: what runs elsewhere could not be ended cleanly.
            for count, problems in map(_run_task, tasks) if first_only else pool.imap_unordered(_run_task, tasks):
                done += count
                violations += problems
                progress.show(done, len(violations))
                if first_only and violations:
                    break
    return Outcome(done, violations)


def _prepare(name: str, scratch: Path) -> tuple[Path, list[str]]:
    """A run as the scenario finds it, and the calls that the scenario makes when nothing fails."""
    scenario = SCENARIOS[name]
    template = scratch / name.replace(" ", "_")
    template.mkdir(mode=0o700)
    (template / _MEMORY).mkdir(mode=0o700)
    program = Program(floats=_FLOATS)
    if scenario.saves:
        checkpointer = program.checkpointer(Files(), f"{template}/run")
        for number in range(1, scenario.saves + 1 - scenario.staged):
            program.become(number)
            newest = checkpointer.save(step=number).wait()
        checkpointer.close()
    if scenario.damaged:
        shard = template / "run" / newest / shard_name(0)
        data = bytearray(shard.read_bytes())
        data[-1] ^= 1
        shard.write_bytes(bytes(data))
    if scenario.staged:
        with scenario.arenas(template):
            lines = listen(*start(lambda tell: _stage_and_die(scenario.saves, f"{template}/run", tell)))
        if lines != ["staged"]:
            raise RuntimeError(f"{name}: nothing was left in memory: {lines}")
    return template, _calls_without_fault(name, template, scratch / "trial")


def _stage_and_die(number: int, path: str, tell: Tell) -> None:
    """Leave a snapshot in memory that no agent has begun to write."""

    class Stuck:
        def write(self, *_: object) -> None:
            threading.Event().wait()

    program = Program(floats=_FLOATS)
    with patch("holdfast.agent.staging._local_worker", lambda *_: Stuck()):
        checkpointer = program.checkpointer(Files(), path, background="thread")
        checkpointer.restore()
        program.become(number)
        if checkpointer.save(step=number).staged:
            tell("staged")
    os.kill(os.getpid(), signal.SIGKILL)


def _calls_without_fault(name: str, template: Path, trial: Path) -> list[str]:
    """In a child, as under a fault: what a process has opened before changes the number of its calls."""
    _copy(template, trial)

    def live(tell: Tell) -> None:
        files = FaultyFiles()
        _live(SCENARIOS[name], files, str(trial / "run"), tell)
        tell(f"calls {' '.join(call.method for call in files.calls)}")

    with SCENARIOS[name].arenas(trial):
        lines = listen(*start(live))
    shutil.rmtree(trial)
    if any(f"ack {number}" not in lines for number in SCENARIOS[name].numbers):
        raise RuntimeError(f"{name}: does not work even without a fault: {lines}")
    return lines[-2].split()[1:]


def _copy(template: Path, place: Path) -> None:
    shutil.copytree(template, place, symlinks=True)
    for arena in place.glob(f"{_MEMORY}/*/*"):
        change_owner(arena, run=str(place / "run"))  # the memory of a copied run is not the copy's


def _live(scenario: _Scenario, files: Files, path: str, tell: Tell) -> None:
    """The program under the fault. Opening and restoring may be refused; a save may fail, but not raise (I7)."""
    program = Program(floats=_FLOATS)
    try:
        checkpointer = program.checkpointer(files, path, retain=scenario.retain, background=scenario.background)
        quiesce(checkpointer)
        restored = checkpointer.restore()
        quiesce(checkpointer)
    except HoldfastError as error:
        tell(f"refused {describe(error)}")
        return
    found = 0 if restored is None else program.saved()
    if found is None:
        tell("problem restored other bits than were saved (I4)")
        return
    if found == 0 and scenario.floor > 0:
        tell("problem started from scratch (I12)")
        return
    if all(_save(scenario, checkpointer, program, tell)):
        try:
            checkpointer.close()
        except HoldfastError as error:
            tell(f"problem close complains of durable saves: {describe(error)}")
    else:
        with suppress(HoldfastError):
            checkpointer.close()


def _live_and_tell(scenario: _Scenario, fault: Fault, path: str, tell: Tell) -> None:
    """Also tell where no call was made that the fault strikes."""
    files = _ForgetfulFiles(plan=[fault])
    _live(scenario, files, path, tell)
    if not any(fault.strikes(call) for call in files.calls):
        tell(f"call {fault.at} is not to fail")


def _save(scenario: _Scenario, checkpointer: Checkpointer, program: Program, tell: Tell) -> list[bool]:
    """Which of the saves became durable. What the program knows, it tells at once."""
    pending = {}
    for number in scenario.numbers:
        program.become(number)
        pending[number] = checkpointer.save(step=number)
    for number, one in pending.items():
        with suppress(HoldfastError):
            one.wait(_SETTLED_S)
        tell(f"{'ack' if one.durable else 'failed'} {number}")
        if not one.durable and one.error is None:
            tell("problem the save failed without an error (I8)")
    quiesce(checkpointer)
    return [one.durable for one in pending.values()]


def _run_task(task: tuple[str, Path, FaultKind, list[int]]) -> tuple[int, list[str]]:
    name, template, fault, numbers = task
    violations = []
    for number in numbers:
        problem = _run_one(SCENARIOS[name], template, fault, number)
        if problem:
            violations.append(f"{name}, call {number}, {fault}: {problem}")
    return len(numbers), violations


def _run_one(scenario: _Scenario, template: Path, fault: FaultKind, number: int) -> str:
    scratch = Path(tempfile.mkdtemp(prefix="one-", dir=template.parent))
    try:
        _copy(template, scratch / "at")
        path = str(scratch / "at" / "run")
        with scenario.arenas(scratch / "at"), quiet():
            lines = listen(*start(lambda tell: _live_and_tell(scenario, fault.at(number), path, tell)))
            # With an agent two threads make calls, in the order in which they meet: another one may have this number.
            is_another = scenario.agent and f"call {number} is not to fail" in lines
            if fault.kill and lines[-1:] == ["end"] and not is_another:
                lines.append("problem the process was not killed")
            problems = [line.partition(" ")[2] for line in lines if line.startswith("problem ")]
            acknowledged = [int(line.split()[1]) for line in lines if line.startswith("ack ")]
            return problems[0] if problems else _check(scenario, path, acknowledged)
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


def _check(scenario: _Scenario, path: str, acknowledged: list[int]) -> str:
    """The fault is over: what must be there is there, exactly, and the next save works. What is wrong, or nothing."""
    program = Program(floats=_FLOATS)
    floor = max([scenario.floor, *acknowledged])
    allowed = [number for number in (scenario.floor, *scenario.numbers) if number >= floor]
    try:
        with program.checkpointer(Files(), path, background=scenario.background) as checkpointer:
            restored = checkpointer.restore()
            found = 0 if restored is None else program.saved()
            if found not in allowed:
                return f"restored save {found}, allowed are {allowed} (I5)"
            if not scenario.damaged and list(Path(path).glob("marks/*.quarantined.json")):
                return "left a checkpoint that is not whole (I2)"
            program.become(_NEXT)
            checkpointer.save(step=_NEXT).wait()
        left = [str(arena) for arena in Path(path).parent.glob(f"{_MEMORY}/*/*")]
        if left:
            return f"the memory of earlier attempts was not given back: {left}"
        with program.checkpointer(Files(), path) as checkpointer:
            program.become(0)
            checkpointer.restore()
            return "" if program.saved() == _NEXT else "the next save was acknowledged, but cannot be restored (I5)"
    except HoldfastError as error:
        return f"afterwards: {describe(error)}"
