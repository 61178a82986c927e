"""Who an arena belongs to, written so that a later process can tell whether that one still lives."""

import fcntl
import json
import os
from typing import NamedTuple

__all__ = ["MAX_OWNER_BYTES", "Owner", "decode_owner", "encode_owner", "has_ended", "is_alive", "this_process"]

MAX_OWNER_BYTES = 64 << 10


class Owner(NamedTuple):
    """The training process that made the arena."""

    boot_id: str
    pid: int
    start_ticks: int
    """When the process started, in clock ticks since the boot: tells it from a later one with the same number."""
    pid_namespace: str
    """Process numbers mean nothing in the container next door."""
    run_id: str
    run: str
    attempt: int


_TYPES = {name: Owner.__annotations__[name] for name in Owner._fields}


def this_process(*, run_id: str, run: str, attempt: int) -> Owner:
    """OSError where the system does not say (no /proc)."""
    ticks = _start_ticks(os.getpid())
    if ticks is None:
        raise OSError("/proc does not show this process")
    return Owner(boot_id(), os.getpid(), ticks, pid_namespace(), run_id, run, attempt)


def encode_owner(owner: Owner) -> bytes:
    return json.dumps(owner._asdict()).encode() + b"\n"


def decode_owner(data: bytes) -> Owner | None:
    """None where it is torn or not ours."""
    try:
        fields = json.loads(data)
        owner = Owner(**{name: fields[name] for name in Owner._fields})
    except (ValueError, KeyError, TypeError, RecursionError):
        return None
    return owner if all(type(value) is _TYPES[name] for name, value in owner._asdict().items()) else None


def is_alive(owner: Owner, descriptor: int) -> bool:
    """Whether the process lives and uses the arena. The descriptor is of its owner.json, on which it holds a lock."""
    if owner.boot_id != boot_id():
        return False
    if owner.pid_namespace == pid_namespace() and _start_ticks(owner.pid) != owner.start_ticks:
        return False
    return _is_locked(descriptor)  # not so if the process goes on without it: what was not durable stays behind


def has_ended(owner: Owner) -> bool:
    """Whether the machine was started anew since: nothing of the owner can be left."""
    return owner.boot_id != boot_id()


def boot_id() -> str:
    with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as file:
        return file.read().strip()


def pid_namespace() -> str:
    return os.readlink("/proc/self/ns/pid")


def _start_ticks(pid: int) -> int | None:
    """None where there is no such process, or only what its parent has not yet buried of it."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            # Behind the program's name, which may hold anything: state is the third field, the start the 22nd.
            fields = file.read().rpartition(b")")[2].split()
        return None if fields[0] in (b"Z", b"X", b"x") else int(fields[19])
    except (OSError, IndexError, ValueError):
        return None


def _is_locked(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:
        return True  # cannot be told: nothing of a process that may live is taken away
    fcntl.flock(descriptor, fcntl.LOCK_UN)
    return False
