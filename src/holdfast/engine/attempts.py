"""Attempts: who writes a run now. One file each, made exclusively; the highest number is the writer (I11)."""

import json
import os
import socket

from holdfast.core.clock import Clock, utc_text
from holdfast.core.errors import BlobExistsError, FencedError, RunBusyError
from holdfast.core.names import agent_key, attempt_key, parse_checkpoint_id
from holdfast.engine.holders import Holder, latest_holder, newest_attempt, read_holder
from holdfast.engine.identity import check_run
from holdfast.engine.jobs import find_job
from holdfast.engine.turns import find_turn
from holdfast.storage.store import Store

__all__ = ["begin_attempt", "check_fence"]

_LOCK_DEADLINE_S = 20.0
_AGENT_DEADLINE_S = 30.0
_AGENT_PAUSE_S = 0.02
_MOST_ATTEMPTS = 10**8  # a name that was made up must not use all numbers up
# What other schedulers call a job; nothing else of the environment is ever recorded.
_JOB_VARIABLES = ("PBS_JOBID", "LSB_JOBID")


def begin_attempt(
    store: Store, clock: Clock, *, takeover: bool = False, follows: int | None = None, run_id: str | None = None
) -> int:
    """The number of a new attempt, held by this process until it ends.

    RunBusyError where a live writer holds the run, unless `takeover`, or unless that is an earlier start of this job,
    which the scheduler has given up; the older writer is fenced off from then on. FencedError where the attempt that it
    `follows`, as a rollback does, is not the newest one any more, or where the directory is another run by now.
    """
    if not takeover:
        _wait_for_agent(store, clock)
    with store.exclusive(_LOCK_DEADLINE_S):
        if run_id is not None:
            check_run(store, run_id)
        if follows is not None:
            check_fence(store, follows)
        holder = latest_holder(store)
        if holder is not None and holder.alive and not takeover and not _is_our_turn(store, holder):
            is_own = holder.pid == os.getpid() and holder.host == _host()
            raise RunBusyError(
                f"{store.location} is being written by {holder}" + (", which is this process" if is_own else ""),
                hint="close() the Checkpointer that this process has on it; takeover=True where it is lost"
                if is_own
                else "wait for it or stop it; Checkpointer(..., takeover=True) takes the run away from it",
            )
        number = 1 + max(0 if holder is None else holder.attempt, _highest_in_checkpoints(store))
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


def _highest_in_checkpoints(store: Store) -> int:
    """The highest attempt that a checkpoint names: where `attempts` was lost, or not copied, its checkpoints are older.

    Or what is saved from now on would sort before them, and no restart would find it (I5).
    """
    found = (parse_checkpoint_id(entry.name) for entry in store.list())
    return max((each.attempt for each in found if each is not None and each.attempt < _MOST_ATTEMPTS), default=0)


def _wait_for_agent(store: Store, clock: Clock) -> None:
    """Let the agent of a process that died finish what it has; after a deadline it is fenced off like any other."""
    holder = latest_holder(store)
    if holder is None or holder.alive or not store.is_held(agent_key(holder.attempt)):
        return
    import logging  # kept off the start of the agent, which only checks the fence

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


def _is_our_turn(store: Store, holder: Holder) -> bool:
    turn = find_turn(os.environ)
    if turn is None or not turn.follows(holder.turn):
        return False
    import logging  # kept off the start of the agent

    logging.getLogger("holdfast").warning(
        "%s: taken over from %s, which still runs, though the scheduler has started its job again",
        store.location,
        holder,
    )
    return True


def check_fence(store: Store, attempt: int) -> None:
    """FencedError once a newer attempt exists. To be called with the run's lock held, before committing or deleting."""
    newest = newest_attempt(store)
    if newest is not None and newest > attempt:
        holder = read_holder(store, newest)
        raise FencedError(
            f"{store.location}: attempt {attempt} may no longer write; the run belongs to {holder}",
            hint="stop this process: whatever it saves from now on would be on an abandoned branch",
        )


def _describe(number: int, clock: Clock) -> bytes:
    turn = find_turn(os.environ)
    fields = {
        "attempt": number,
        "host": _host(),
        "pid": os.getpid(),
        "boot_id": _boot_id(),
        "job": _job(),
        "since": utc_text(clock.utc_s()),
        **({} if turn is None else {"turn_of": turn.job, "turn": turn.number}),
        # Two copies of a run that both went on have attempts of the same number; this tells them apart.
        "nonce": os.urandom(8).hex(),
    }
    return json.dumps(fields).encode() + b"\n"


def _job() -> str:
    job = find_job(os.environ)
    if job is not None:
        return job.part
    return next((os.environ[name] for name in _JOB_VARIABLES if os.environ.get(name)), "")


def _host() -> str:
    return socket.gethostname()


def _boot_id() -> str:
    try:
        with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as source:
            return source.read().strip()
    except OSError:
        return ""
