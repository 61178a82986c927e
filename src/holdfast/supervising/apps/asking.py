"""Asks a program for something the way it understands: a signal, a file, a command."""

import logging
import os
import signal
import subprocess
from collections.abc import Mapping, Sequence

from holdfast.supervising.apps.command_line import CommandLine
from holdfast.supervising.apps.recipe import Ask

__all__ = ["ask"]

_log = logging.getLogger("holdfast")

_SCANCEL_S = 10.0


def ask(rule: Ask, line: CommandLine, *, pid: int, folder: str, known: Mapping[str, str]) -> bool:
    """Whether it was asked; a command has to end with status 0, in time."""
    words = {**known, "pid": str(pid)}
    if rule.signal and _is_srun(pid):
        return _signal_steps(signal.Signals[rule.signal])
    if rule.signal:
        try:
            os.kill(pid, signal.Signals[rule.signal])
        except ProcessLookupError:
            return True  # it has ended by itself
        except OSError as error:
            _log.error("process %d cannot be sent %s: %s", pid, rule.signal, error)
            return False
        return True
    if rule.touch:
        return _touch(os.path.join(folder, rule.touch))
    return all(_run(line.fill_all(command, words), rule, folder, command) for command in rule.commands)


def _is_srun(pid: int) -> bool:
    try:
        with open(f"/proc/{pid}/comm", "rb") as file:
            return file.read().strip() == b"srun"
    except OSError:
        return False


def _signal_steps(number: signal.Signals) -> bool:
    """Through Slurm: srun itself would kill its tasks at SIGTERM, and not pass it on."""
    job = os.environ.get("SLURM_JOB_ID", "")
    if not job.isdecimal():
        _log.error("srun passes no %s on, and it is not known which job it belongs to", number.name)
        return False
    name = number.name.removeprefix("SIG")
    return _succeeds(["scancel", f"--signal={name}", job], deadline_s=_SCANCEL_S)


def _touch(path: str) -> bool:
    try:
        os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC | os.O_NONBLOCK, 0o666))
        os.utime(path)
    except OSError as error:
        _log.error("%s cannot be made: %s", path, error)
        return False
    return True


def _run(command: list[str] | None, rule: Ask, folder: str, given: Sequence[str]) -> bool:
    if command is None:
        _log.warning("%s: not all of its words are known yet", " ".join(given))
        return False
    return _succeeds(command, deadline_s=rule.deadline_s, folder=folder)


def _succeeds(command: list[str], *, deadline_s: float, folder: str | None = None) -> bool:
    try:
        done = subprocess.run(  # noqa: S603  a list, from the recipe of the user
            command,
            cwd=folder,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=deadline_s,
            check=False,
        )
    except (OSError, subprocess.SubprocessError) as error:
        _log.error("%s: %s", command[0], error)
        return False
    if done.returncode != 0:
        said = (done.stderr or done.stdout).decode(errors="replace").strip().splitlines()
        _log.error("%s ended with status %d: %s", command[0], done.returncode, said[-1] if said else "it said nothing")
    return done.returncode == 0
