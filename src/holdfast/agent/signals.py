"""Which signals are meant for the job and not for its agent."""

import signal

__all__ = ["JOB_SIGNALS"]

_FAULTS = (
    signal.SIGSEGV,
    signal.SIGBUS,
    signal.SIGFPE,
    signal.SIGILL,
    signal.SIGABRT,
    signal.SIGTRAP,
    signal.SIGSYS,
)
_MANAGED = (signal.SIGKILL, signal.SIGSTOP, signal.SIGCONT, signal.SIGCHLD)

JOB_SIGNALS = signal.valid_signals() - {*_FAULTS, *_MANAGED}
"""All that a terminal, a scheduler or a timer sends. Not the faults of a program itself."""
