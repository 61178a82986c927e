"""Part (c): every call of a save, a prune, a takeover and a fallback fails in every way, or is the process's last."""

import errno
import multiprocessing
import os
import shutil
import tempfile
from pathlib import Path
from typing import NamedTuple

from holdfast.core.errors import HoldfastError
from holdfast.core.names import shard_name
from holdfast.policy.keep import KEEP_ALL, Keep, keep
from holdfast.storage.files import Files
from holdfast.testing.faulty_files import FaultyFiles
from tests.crash.children import Tell, listen, start
from tests.crash.faults import FAULTS, FaultKind
from tests.crash.oracle import describe
from tests.crash.outcome import Outcome, Progress
from tests.crash.subject import Program, quiet, small_and_fast

__all__ = ["SCENARIOS", "sweep"]

_FLOATS = 600
_PROCESSES = 2
_NEXT = 1000


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
    """What was saved and acknowledged before, and with which retention one more save is made under the fault."""

    saves: int
    retain: Keep
    damaged: bool = False

    @property
    def floor(self) -> int:
        """The newest save that must survive whatever happens now."""
        return self.saves - self.damaged


SCENARIOS = {
    "first save": _Scenario(0, KEEP_ALL),
    "takeover, restore, save": _Scenario(1, KEEP_ALL),
    "save and prune": _Scenario(3, keep(last=1)),
    "fallback, save and prune": _Scenario(2, keep(last=1), damaged=True),
}


def sweep(*, faults: list[str] | None = None, every: int = 1, first_only: bool = False) -> Outcome:
    """All scenarios × calls × faults; `every` takes only each n-th call, `first_only` ends at the first violation."""
    chosen = [fault for fault in FAULTS if faults is None or fault.name in faults]
    tasks: list[tuple[str, Path, FaultKind, list[int]]] = []
    memory = "/dev/shm"
    with (
        small_and_fast(),
        tempfile.TemporaryDirectory(prefix="holdfast-sweep-", dir=memory if os.path.isdir(memory) else None) as scratch,
    ):
        for name in SCENARIOS:
            template, calls = _prepare(name, Path(scratch))
            for fault in chosen:
                hit = [number for number, call in enumerate(calls) if call in fault.methods][::every]
                tasks += [(name, template, fault, hit[begin : begin + 20]) for begin in range(0, len(hit), 20)]
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
    program = Program(floats=_FLOATS)
    if scenario.saves:
        checkpointer = program.checkpointer(Files(), f"{template}/run")
        for number in range(1, scenario.saves + 1):
            program.become(number)
            newest = checkpointer.save(step=number).wait()
        checkpointer.close()
    if scenario.damaged:
        shard = template / "run" / newest / shard_name(0)
        data = bytearray(shard.read_bytes())
        data[-1] ^= 1
        shard.write_bytes(bytes(data))
    return template, _calls_without_fault(name, template, scratch / "trial")


def _calls_without_fault(name: str, template: Path, trial: Path) -> list[str]:
    """In a child, as under a fault: what a process has opened before changes the number of its calls."""
    shutil.copytree(template, trial, symlinks=True)

    def live(tell: Tell) -> None:
        files = FaultyFiles()
        _live(SCENARIOS[name], files, str(trial / "run"), tell)
        tell(f"calls {' '.join(call.method for call in files.calls)}")

    lines = listen(*start(live))
    shutil.rmtree(trial)
    if "ack" not in lines:
        raise RuntimeError(f"{name}: does not work even without a fault: {lines}")
    return lines[-2].split()[1:]


def _live(scenario: _Scenario, files: Files, path: str, tell: Tell) -> None:
    """The program under the fault. Opening and restoring may be refused; a save may fail, but not raise (I7)."""
    program = Program(floats=_FLOATS)
    try:
        checkpointer = program.checkpointer(files, path, retain=scenario.retain)
        restored = checkpointer.restore()
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
    program.become(scenario.saves + 1)
    pending = checkpointer.save(step=scenario.saves + 1)
    tell("ack" if pending.durable else "failed")
    if not pending.durable and pending.error is None:
        tell("problem the save failed without an error (I8)")
    try:
        checkpointer.close()
    except HoldfastError:
        if pending.durable:
            tell("problem close complains of a durable save")


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
        shutil.copytree(template, scratch / "at", symlinks=True)
        path = str(scratch / "at" / "run")
        lines = listen(*start(lambda tell: _live(scenario, _ForgetfulFiles(plan=[fault.at(number)]), path, tell)))
        if fault.kill and lines[-1:] == ["end"]:
            lines.append("problem the process was not killed")
        problems = [line.partition(" ")[2] for line in lines if line.startswith("problem ")]
        if problems:
            return problems[0]
        with quiet():
            return _check(scenario, path, is_acknowledged="ack" in lines)
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


def _check(scenario: _Scenario, path: str, *, is_acknowledged: bool) -> str:
    """The fault is over: what must be there is there, exactly, and the next save works. What is wrong, or nothing."""
    program = Program(floats=_FLOATS)
    newest = scenario.saves + 1
    allowed = [newest] if is_acknowledged else [scenario.floor, newest]
    try:
        with program.checkpointer(Files(), path) as checkpointer:
            restored = checkpointer.restore()
            found = 0 if restored is None else program.saved()
            if found not in allowed:
                return f"restored save {found}, allowed are {allowed} (I5)"
            if not scenario.damaged and list(Path(path).glob("marks/*.quarantined.json")):
                return "left a checkpoint that is not whole (I2)"
            program.become(_NEXT)
            checkpointer.save(step=_NEXT).wait()
        with program.checkpointer(Files(), path) as checkpointer:
            program.become(0)
            checkpointer.restore()
            return "" if program.saved() == _NEXT else "the next save was acknowledged, but cannot be restored (I5)"
    except HoldfastError as error:
        return f"afterwards: {describe(error)}"
