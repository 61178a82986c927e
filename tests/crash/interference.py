"""Part (c), continued: at every call of a save, another process takes the run over (I11)."""

import multiprocessing
import shutil
import tempfile
from pathlib import Path

from holdfast.core.errors import FencedError, HoldfastError, RunBusyError, SaveFailedError
from holdfast.policy.keep import keep
from holdfast.storage.files import Files
from holdfast.testing.faulty_files import Fault, FaultyFiles
from tests.crash.children import Tell, listen, start
from tests.crash.oracle import describe
from tests.crash.outcome import Outcome, Progress
from tests.crash.subject import Program, quiet, small_and_fast

__all__ = ["interfere"]

_FLOATS = 600
_BEFORE = 2
_OWN = 3
_OTHERS = 500
_PROCESSES = 2
_RETAIN = keep(last=1)


def interfere(*, every: int = 1) -> Outcome:
    """A takeover at each call of a program that restores, saves and prunes; `every` takes only each n-th call."""
    with small_and_fast(), tempfile.TemporaryDirectory(prefix="holdfast-takeover-") as scratch:
        template = Path(scratch) / "template"
        _make_run(template)
        numbers = range(0, _count_calls(template, Path(scratch) / "trial"), every)
        progress = Progress("takeovers", len(numbers))
        violations = []
        with multiprocessing.get_context("fork").Pool(_PROCESSES) as pool:
            for done, problem in enumerate(pool.imap(_run_one, [(template, number) for number in numbers]), 1):
                violations += [problem] if problem else []
                progress.show(done, len(violations))
    return Outcome(len(numbers), violations)


def _make_run(path: Path) -> None:
    program = Program(floats=_FLOATS)
    with program.checkpointer(Files(), str(path)) as checkpointer:
        for number in range(1, _BEFORE + 1):
            program.become(number)
            checkpointer.save(step=number).wait()


def _count_calls(template: Path, trial: Path) -> int:
    shutil.copytree(template, trial)

    def live(tell: Tell) -> None:
        files = FaultyFiles()
        _live(files, str(trial), tell)
        tell(f"calls {len(files.calls)}")

    return int(_told(listen(*start(live)), "calls"))


def _live(files: Files, path: str, tell: Tell) -> None:
    """The program that gets interrupted."""
    program = Program(floats=_FLOATS)
    try:
        checkpointer = program.checkpointer(files, path, retain=_RETAIN)
        tell(f"attempt {checkpointer.attempt}")
        restored = checkpointer.restore()
        program.become(_OWN)
        tell("ack" if checkpointer.save(step=1 if restored is None else restored.step + 1).durable else "failed")
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


def _run_one(task: tuple[Path, int]) -> str:
    template, number = task
    scratch = Path(tempfile.mkdtemp(prefix="one-", dir=template.parent))
    try:
        path = str(shutil.copytree(template, scratch / "run"))

        def live(tell: Tell) -> None:
            def let_the_other_live() -> None:
                for line in listen(*start(lambda tell_of_other: _take_over(path, tell_of_other))):
                    tell(line if line.startswith("problem ") else f"other {line}")

            _live(FaultyFiles(plan=[Fault(number, action=let_the_other_live)]), path, tell)

        problem = _judge(listen(*start(live)), path)
        return f"takeover at call {number}: {problem}" if problem else ""
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
