"""Part (b): real power cuts of a loop-mounted ext4, while a program saves to it."""

import random
import tempfile
import time
from contextlib import suppress
from pathlib import Path
from typing import Literal, NamedTuple

from holdfast.agent.client import Agent
from holdfast.checkpointer import Checkpointer
from holdfast.core.errors import HoldfastError
from holdfast.policy.keep import keep
from holdfast.storage.files import Files
from holdfast.testing.recording import RecordingFiles
from tests.crash.agents import arenas_in
from tests.crash.children import Tell, listen, start
from tests.crash.loop_image import LAYOUTS, LoopImage, cut_power, power_is_cut, why_not
from tests.crash.oracle import describe
from tests.crash.outcome import Outcome, Progress
from tests.crash.slices import WHOLE, Slice
from tests.crash.subject import Program, in_memory, small_and_fast

__all__ = ["cut_many"]

_FLOATS = 3000
_RETAIN = keep(last=2)
_LONGEST_WAIT_S = 0.06
_AGENT_LONGEST_WAIT_S = 0.6  # it has to be started first
_SETTLED_S = 20.0
_MOST_CALLS = 160

AFTER_ACK = "right after the acknowledgement"
AT_A_CALL = "at a call"
AT_A_MOMENT = "at a moment"
_MOMENTS = (AFTER_ACK, AT_A_CALL, AT_A_MOMENT)
_AGENT_MOMENTS = (AFTER_ACK, AT_A_MOMENT)  # its calls are in another process, out of reach


class _Setup(NamedTuple):
    """How the disk is mounted, and who writes to it."""

    layout: str
    background: Literal["process", "off"]

    @property
    def moments(self) -> tuple[str, ...]:
        return _MOMENTS if self.background == "off" else _AGENT_MOMENTS

    def __str__(self) -> str:
        return self.layout if self.background == "off" else f"{self.layout}, agent process"


_SETUPS = (*(_Setup(layout, "off") for layout in LAYOUTS), _Setup(LAYOUTS[0], "process"))


class _Promise(NamedTuple):
    """What is known of the run on the image: the newest save that must be there, and the last that was begun."""

    acknowledged: int = 0
    begun: int = 0


class _CuttingFiles(RecordingFiles):
    """Cuts the power after a number of operations that change the disk."""

    def __init__(self, mounted: str, calls: int) -> None:
        super().__init__(Files())
        self._mounted = mounted
        self._calls = calls

    def _record(self, operation: object) -> None:
        self._calls -= 1
        if self._calls == 0:
            cut_power(self._mounted)


def cut_many(wanted: int, *, seed: int, part: Slice = WHOLE) -> Outcome:
    """Cut the power that often, spread over the setups; after each cut restore, compare and go on."""
    skipped = why_not()
    if skipped:
        return Outcome(0, [], skipped)
    violations: list[str] = []
    progress = Progress("power cuts", -(-wanted // part.count))
    share = len(part.of(range(-(-wanted // len(_SETUPS)))))
    cuts = 0
    for setup in _SETUPS if share else ():
        rng = random.Random(f"{seed} {setup} {part}")
        with LoopImage(setup.layout) as image, small_and_fast():
            promise = _Promise()
            for turn in range(share + 1):  # what a cut did shows at the next turn; the last one is not counted
                moment = setup.moments[turn % len(setup.moments)]
                with (
                    tempfile.TemporaryDirectory(prefix="holdfast-arenas-", dir=in_memory()) as memory,
                    arenas_in(Path(memory)),
                ):
                    promise, problem = _one_cut(image, setup, moment, promise, rng)
                if problem:
                    violations.append(f"{setup}, cut {turn} {moment} (seed {seed}, slice {part}): {problem}")
                cuts += turn > 0
                image.power_on_again()
                progress.show(cuts, len(violations))
    return Outcome(cuts, violations)


def _one_cut(
    image: LoopImage, setup: _Setup, moment: str, promise: _Promise, rng: random.Random
) -> tuple[_Promise, str]:
    """Start a program that restores, checks and saves, and cut its power; what it was promised, and what was wrong."""
    longest_s = _LONGEST_WAIT_S if setup.background == "off" else _AGENT_LONGEST_WAIT_S
    saves, calls, wait_s = rng.randrange(1, 4), rng.randrange(1, _MOST_CALLS), rng.random() * longest_s

    def live(tell: Tell) -> None:
        files = _CuttingFiles(image.path, calls) if moment == AT_A_CALL else None
        program = Program(floats=_FLOATS)
        try:
            checkpointer = program.checkpointer(files, f"{image.path}/run", retain=_RETAIN, background=setup.background)
            stager = checkpointer._stager
            if setup.background == "process" and not (stager and isinstance(stager.background._client, Agent)):
                tell("problem there is no agent process here")
            _live(program, checkpointer, promise, tell, saves if moment == AFTER_ACK else None)
        except HoldfastError as error:  # with the power gone, opening and restoring fail, too
            tell(f"{'failed' if power_is_cut(image.path) else 'problem'} {describe(error)}")
        if moment == AFTER_ACK:
            cut_power(image.path)

    child, told = start(live)
    if moment == AT_A_MOMENT:
        time.sleep(wait_s)
        cut_power(image.path)
    lines = listen(child, told)
    if moment == AT_A_CALL and "end" in lines:
        cut_power(image.path)
    return _learn(promise, lines)


def _live(program: Program, checkpointer: Checkpointer, promise: _Promise, tell: Tell, saves: int | None) -> None:
    """What the program does. Everything it knows to be durable it tells; it ends when a save fails or is the last."""
    restored = checkpointer.restore()
    number = 0 if restored is None else program.saved()
    tell(f"restored {-1 if number is None else number}")
    step = 0 if restored is None else restored.step
    for count in range(1, 1000):
        number = promise.begun + count
        program.become(number)
        tell(f"begin {number}")
        pending = checkpointer.save(step=step + count)
        with suppress(HoldfastError):
            pending.wait(_SETTLED_S)
        if not pending.durable:
            break
        tell(f"ack {number}")
        if count == saves:
            break


def _learn(promise: _Promise, lines: list[str]) -> tuple[_Promise, str]:
    problem = ""
    for line in lines:
        what, _, value = line.partition(" ")
        if what == "restored":
            found = int(value)
            if found == -1:
                problem = "restored other bits than were saved (I4)"
            elif not promise.acknowledged <= found <= promise.begun:
                problem = f"save {promise.acknowledged} was acknowledged, save {found} restored (I5)"
            else:  # it was there once: it must be there from now on
                promise = promise._replace(acknowledged=found)
        elif what == "begin":
            promise = promise._replace(begun=int(value))
        elif what == "ack":
            promise = promise._replace(acknowledged=int(value))
        elif what == "problem":
            problem = value
    return promise, problem
