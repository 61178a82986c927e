"""Attempts: who writes a run now. One file each, made exclusively; the highest number is the writer (I11)."""

import json
import os
from typing import NamedTuple

from holdfast.core.clock import Clock, utc_text
from holdfast.core.errors import BlobExistsError, FencedError, HoldfastError, RunBusyError
from holdfast.core.limits import MAX_SMALL_BLOB_BYTES
from holdfast.core.names import ATTEMPTS_DIR, agent_key, attempt_key
from holdfast.storage.store import Store

__all__ = ["Holder", "begin_attempt", "check_fence", "latest_holder"]

_LOCK_DEADLINE_S = 20.0
_AGENT_DEADLINE_S = 30.0
_AGENT_PAUSE_S = 0.02
# What schedulers call a job; nothing else of the environment is ever recorded.
_JOB_VARIABLES = ("SLURM_JOB_ID", "PBS_JOBID", "LSB_JOBID", "_CONDOR_JOB_ID")


class Holder(NamedTuple):
    """Who made an attempt, as its file says."""

    attempt: int
    host: str
    pid: int
    job: str
    since: str
    alive: bool

    def __str__(self) -> str:
        job = f", job {self.job}" if self.job else ""
        return f"attempt {self.attempt}: pid {self.pid} on {self.host}{job}, since {self.since}"


def begin_attempt(store: Store, clock: Clock, *, takeover: bool = False) -> int:
    """The number of a new attempt, held by this process until it ends.

    RunBusyError where a live writer holds the run, unless `takeover`; the older writer is fenced off from then on.
    """
    if not takeover:
        _wait_for_agent(store, clock)
    with store.exclusive(_LOCK_DEADLINE_S):
        holder = latest_holder(store)
        if holder is not None and holder.alive and not takeover:
            is_own = holder.pid == os.getpid() and holder.host == _host()
            raise RunBusyError(
                f"{store.location} is being written by {holder}" + (", which is this process" if is_own else ""),
                hint="close() the Checkpointer that this process has on it; takeover=True where it is lost"
                if is_own
                else "wait for it or stop it; Checkpointer(..., takeover=True) takes the run away from it",
            )
        number = 1 if holder is None else holder.attempt + 1
        try:
            store.publish(attempt_key(number), _describe(number, clock))
        except BlobExistsError as error:
            # Only where the file system has no locks: two writers chose the same number, one of them made it.
            raise RunBusyError(
                f"{store.location}: another process began attempt {number} at the same moment", hint="try again"
            ) from error
        # Still under the lock: nobody may find the new attempt before it is held.
        store.hold(attempt_key(number))
    return number


def _wait_for_agent(store: Store, clock: Clock) -> None:
    """Let the agent of a process that died finish what it has; after a deadline it is fenced off like any other."""
    holder = latest_holder(store)
    if holder is None or holder.alive or not store.is_held(agent_key(holder.attempt)):
        return
    import logging  # kept off the start of `holdfast ls`

    log = logging.getLogger("holdfast")
    log.warning("%s: waiting for the agent of %s to finish its last checkpoint", store.location, holder)
    end_s = clock.monotonic_s() + _AGENT_DEADLINE_S
    while clock.monotonic_s() < end_s:
        clock.sleep(_AGENT_PAUSE_S)
        if not store.is_held(agent_key(holder.attempt)):
            return
    log.warning(
        "%s: the agent of %s did not finish within %g s; it is fenced off", store.location, holder, _AGENT_DEADLINE_S
    )


def check_fence(store: Store, attempt: int) -> None:
    """FencedError once a newer attempt exists. To be called with the run's lock held, before committing or deleting."""
    newest = max(_numbers(store), default=attempt)
    if newest > attempt:
        holder = _read_holder(store, newest)
        raise FencedError(
            f"{store.location}: attempt {attempt} may no longer write; the run belongs to {holder}",
            hint="stop this process: whatever it saves from now on would be on an abandoned branch",
        )


def latest_holder(store: Store) -> Holder | None:
    """Who wrote the run last, and whether that process still lives."""
    newest = max(_numbers(store), default=None)
    return None if newest is None else _read_holder(store, newest)


def _numbers(store: Store) -> list[int]:
    names = (entry.name.removesuffix(".json") for entry in store.list(ATTEMPTS_DIR))
    return [int(name) for name in names if name.isascii() and name.isdigit() and len(name) <= 9]


def _read_holder(store: Store, number: int) -> Holder:
    key = attempt_key(number)
    try:
        fields = json.loads(store.read(key, MAX_SMALL_BLOB_BYTES))
        known = (str(fields["host"]), int(fields["pid"]), str(fields["job"]), str(fields["since"]))
    except (HoldfastError, ValueError, KeyError, TypeError, RecursionError, OverflowError):
        known = ("an unknown host", 0, "", "an unknown time")
    return Holder(number, *known, alive=store.is_held(key))


def _describe(number: int, clock: Clock) -> bytes:

    fields = {
        "attempt": number,
        "host": _host(),
        "pid": os.getpid(),
        "boot_id": _boot_id(),
        "job": next((os.environ[name] for name in _JOB_VARIABLES if os.environ.get(name)), ""),
        "since": utc_text(clock.utc_s()),
        # Two copies of a run that both went on have attempts of the same number; this tells them apart.
        "nonce": os.urandom(8).hex(),
    }
    return json.dumps(fields).encode() + b"\n"


def _host() -> str:
    import socket  # kept off the start of `holdfast ls`

    return socket.gethostname()


def _boot_id() -> str:
    try:
        with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as source:
            return source.read().strip()
    except OSError:
        return ""
