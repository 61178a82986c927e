"""The process that a proof watches: its plan, its trace, the one signal that it is sent, and its end."""

import contextlib
import fcntl
import os
import sys
import weakref
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import NoReturn, Protocol

import msgspec

from holdfast.core.errors import HoldfastError, UsageError
from holdfast.engine.bystanders import Bystanders
from holdfast.engine.evidence import PLAN_VARIABLE, Interruption, Plan, Point
from holdfast.engine.guarding import guard_if_missing
from holdfast.engine.striking import Striker
from holdfast.engine.traces import Reference, Trace

__all__ = ["Onlooker", "Program", "find_program"]


class Onlooker(Protocol):
    """The witness of one Checkpointer, as the others of the process see it."""

    state: Mapping[str, object]
    with_random: bool
    leaves: dict[str, str]

    def close_run(self) -> None:
        """Close the Checkpointer, if it is still there."""


class Program:
    """What all witnesses of one process share."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self._pid = os.getpid()
        self.trace = _open_trace(plan)
        self.reference = Reference(plan.reference) if plan.reference else None
        self.bystanders = Bystanders()
        self.witnesses: weakref.WeakSet[Onlooker] = weakref.WeakSet()
        self.is_ending = False
        # A command that sets PYTHONPATH itself has none before: better late than never.
        self.was_unguarded = guard_if_missing()
        # Once in a start of the command: a shell may start the program again, in vain if that were struck too.
        planned = None if os.path.exists(_struck_path(plan)) else plan.interruption
        self.striker = Striker(planned, self._tell_strike)

    @property
    def is_active(self) -> bool:
        """Whether this is the process that the plan is for."""
        return self.trace is not None and not self.is_ending and os.getpid() == self._pid

    def end(self, status: int, why: str, tell: Callable[[str], object]) -> NoReturn:
        """Nothing of the program runs any more; its runs are closed, so that the next start finds them free.

        `tell` is the last that is called, with why, and with what went wrong.
        """
        self.is_ending = True
        try:
            for witness in list(self.witnesses):
                witness.close_run()
        except HoldfastError as error:
            why = f"{why}; {error.message}"
        finally:
            _end_children()
            tell(why)
            _flush_output()
            os._exit(status)

    def _tell_strike(self, planned: Interruption) -> bool:
        """Whether it is to be sent."""
        assert self.trace is not None
        try:
            os.close(os.open(_struck_path(self.plan), os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666))
        except FileExistsError:
            return False
        at_s, pid = self.trace.at_s(), os.getpid()
        self.trace.write(
            Point("struck", step=planned.step, start=self.plan.start, at_s=at_s, pid=pid, text=planned.signal)
        )
        return True


_program: Program | None = None
_has_looked = False
_lock_descriptor = -1


def find_program() -> Program | None:
    """One for all witnesses of the process; None where nobody proves anything."""
    global _program, _has_looked
    if not _has_looked:
        _has_looked = True
        path = os.environ.get(PLAN_VARIABLE)
        if path:
            _program = Program(_read_plan(path))
    return _program


def _read_plan(path: str) -> Plan:
    try:
        return msgspec.json.decode(Path(path).read_bytes(), type=Plan)
    except (OSError, msgspec.DecodeError) as error:
        raise UsageError(
            f"{PLAN_VARIABLE} names {path}, which is no plan of a proof: {error}", hint=f"unset {PLAN_VARIABLE}"
        ) from error


def _open_trace(plan: Plan) -> Trace | None:
    """None where another process that still lives is the one to tell."""
    global _lock_descriptor
    Path(plan.trace).parent.mkdir(parents=True, exist_ok=True)
    descriptor = os.open(f"{plan.trace}.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
    try:
        # Not flock: children would inherit it, and one that outlives the program would keep it from the next start.
        fcntl.lockf(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(descriptor)
        return None
    _lock_descriptor = descriptor
    return Trace(plan.trace)


def _struck_path(plan: Plan) -> str:
    """There is such a file when the signal was sent."""
    return f"{plan.trace}.struck"


def _end_children() -> None:
    """Those that Python would end with the program."""
    multiprocessing = sys.modules.get("multiprocessing")
    if multiprocessing is not None:
        with contextlib.suppress(Exception):
            for child in multiprocessing.active_children():
                if child.daemon:
                    child.terminate()


def _flush_output() -> None:
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(Exception):
            stream.flush()
