"""Part (c), continued: at every call of a save, another process takes the run over (I11)."""

import multiprocessing
import shutil
import tempfile
from pathlib import Path
from typing import NamedTuple

from holdfast.core.errors import FencedError, HoldfastError, RunBusyError, SaveFailedError
from holdfast.policy.keep import keep
from holdfast.storage.files import Files
from holdfast.testing.faulty_files import Fault, FaultyFiles
from tests.crash.agents import arenas_in, quiesce
from tests.crash.children import Tell, listen, start
from tests.crash.oracle import describe
from tests.crash.outcome import Outcome, Progress
from tests.crash.slices import WHOLE, Slice
from tests.crash.subject import Program, in_memory, quiet, small_and_fast

__all__ = ["interfere"]

_FLOATS = 600
_BEFORE = 2
_OWN = 3
_OTHERS = 500
_PROCESSES = 2
_RETAIN = keep(last=1)
_AGENT_STRIDE = 3


class _Task(NamedTuple):
    template: Path
    number: int
    """Of the call at which the run is taken over."""
    agent: bool


def interfere(*, every: int = 1, agents_only: bool = False, first_only: bool = False, part: Slice = WHOLE) -> Outcome:
    """A takeover at each call of a program that restores, saves and prunes, itself or through an agent.

    `every` takes only each n-th call, `first_only` ends at the first violation.
    """
    with small_and_fast(), tempfile.TemporaryDirectory(prefix="holdfast-takeover-", dir=in_memory()) as scratch:
        template = Path(scratch) / "template"
        _make_run(template)
        tasks = []
        for agent, stride in ((False, every), (True, every * _AGENT_STRIDE))[agents_only:]:
            calls = _count_calls(template, Path(scratch) / f"trial-{agent}", agent=agent)
            tasks += [_Task(template, number, agent) for number in range(0, calls, stride)]
        tasks = part.of(tasks)
        progress = Progress("takeovers", len(tasks))
        done, violations = 0, []
        with multiprocessing.get_context("fork").Pool(_PROCESSES) as pool:
            for done, problem in enumerate(map(_run_one, tasks) if first_only else pool.imap(_run_one, tasks), 1):
                violations += [problem] if problem else []
                progress.show(done, len(violations))
                if first_only and violations:
                    break
    return Outcome(done, violations)


def _make_run(path: Path) -> None:
    program = Program(floats=_FLOATS)
    with program.checkpointer(Files(), str(path)) as checkpointer:
        for number in range(1, _BEFORE + 1):
            program.become(number)
            checkpointer.save(step=number).wait()


def _count_calls(template: Path, trial: Path, *, agent: bool) -> int:
    shutil.copytree(template, trial / "run")

    def live(tell: Tell) -> None:
        files = FaultyFiles()
        _live(files, trial, tell, agent=agent)
        tell(f"calls {len(files.calls)}")

    return int(_told(listen(*start(live)), "calls"))


def _live(files: Files, place: Path, tell: Tell, *, agent: bool) -> None:
    """The program that gets interrupted."""
    (place / "memory").mkdir(mode=0o700)
    with arenas_in(place / "memory"):
        _live_there(files, f"{place}/run", tell, agent=agent)


def _live_there(files: Files, path: str, tell: Tell, *, agent: bool) -> None:
    program = Program(floats=_FLOATS)
    try:
        checkpointer = program.checkpointer(files, path, retain=_RETAIN, background="thread" if agent else "off")
        tell(f"attempt {checkpointer.attempt}")
        quiesce(checkpointer)
        restored = checkpointer.restore()
        program.become(_OWN)
        pending = checkpointer.save(step=1 if restored is None else restored.step + 1)
        quiesce(checkpointer)
        tell("ack" if pending.durable else f"failed {pending.error}")
        checkpointer.close()
    except (FencedError, RunBusyError, SaveFailedError) as error:
        # SaveFailedError: the new owner may clear away the directory of a save that can no longer be committed.
        tell(f"stopped {describe(error)}")


def _take_over(path: str, tell: Tell) -> None:
    """The other process: it saves, and tells what it found and what it left."""
    program = Program(floats=_FLOATS)
    try:
        checkpointer = program.checkpointer(Files(), path, takeover=True)
    except RunBusyError as error:  # the first one is committing at this very moment, and is not to be waited for
        tell(f"busy {describe(error)}")
        return
    tell(f"attempt {checkpointer.attempt}")
    restored = checkpointer.restore()
    tell(f"found {None if restored is None else program.saved()}")
    program.become(_OTHERS)
    checkpointer.save(step=_OTHERS).wait()
    tell(f"left {' '.join(_manifests(path))}")


def _run_one(task: _Task) -> str:
    template, number, agent = task
    scratch = Path(tempfile.mkdtemp(prefix="one-", dir=template.parent))
    try:
        path = str(shutil.copytree(template, scratch / "run"))

        def live(tell: Tell) -> None:
            def let_the_other_live() -> None:
                for line in listen(*start(lambda tell_of_other: _take_over(path, tell_of_other))):
                    tell(line if line.startswith("problem ") else f"other {line}")

            _live(FaultyFiles(plan=[Fault(number, action=let_the_other_live)]), scratch, tell, agent=agent)

        problem = _judge(listen(*start(live)), path)
        return f"takeover at call {number}{' (agent)' if agent else ''}: {problem}" if problem else ""
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


def _judge(lines: list[str], path: str) -> str:
    problems = [line.partition(" ")[2] for line in lines if line.startswith("problem ")]
    if problems:
        return problems[0]
    found = _told(lines, "other found")
    left = _told(lines, "other left").split()
    is_older = bool(found) and int(_told(lines, "attempt") or 0) < int(_told(lines, "other attempt"))
    if is_older and "ack" in lines and found != str(_OWN):
        return f"the older attempt committed although a newer one had restored save {found} (I11)"
    lost = set(left) - set(_manifests(path))
    if lost and is_older:
        return f"the older attempt deleted {sorted(lost)} of a run that was no longer its own (I11)"
    program = Program(floats=_FLOATS)
    try:
        with quiet(), program.checkpointer(Files(), path) as checkpointer:
            checkpointer.restore()
    except HoldfastError as error:
        return f"afterwards: {describe(error)}"
    expected = _OTHERS if found and (is_older or "ack" not in lines) else _OWN
    return "" if program.saved() == expected else f"save {program.saved()} was restored, not {expected}"


def _told(lines: list[str], what: str) -> str:
    return next((line.removeprefix(f"{what} ") for line in lines if line.startswith(f"{what} ")), "")


def _manifests(path: str) -> list[str]:
    return sorted(manifest.parent.name for manifest in Path(path).glob("*/manifest.json"))
