"""Writes the submit description of a job that brings its checkpoints home and comes back until its work is done."""

import os
import posixpath
import shlex
import shutil
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from holdfast.core.errors import UsageError
from holdfast.engine.jobs import RESTART_STATUS
from holdfast.integrations.htcondor_language import check_value, quote_arguments, quote_environment

__all__ = ["SIGN", "Wishes", "check_run", "describe_job"]

SIGN = "# Written by holdfast submit htcondor"
"""How a description that is ours begins."""
_MAX_STARTS = 1000


class Wishes(NamedTuple):
    """What a description is to say."""

    command: Sequence[str]
    run: str
    """The directory of the run; relative to that of the job, unless that is on a shared file system."""
    name: str
    """How its files begin."""
    folder: str = "."
    """Where it is submitted."""
    is_shared: bool = False
    """Whether the job runs in the folder itself, on a file system that all machines have."""
    inputs: Sequence[str] = ()
    outputs: Sequence[str] = ()
    """Directories that come home with the run."""
    exit_code: int = 85
    every_s: float | None = None
    """How often a checkpoint is brought home while the job runs; None: only when it is evicted."""
    destination: str | None = None
    cpus: int = 1
    memory: str | None = None
    more: Mapping[str, str] = {}
    """Other commands, which also replace ours."""


def describe_job(wishes: Wishes) -> str:
    """The description; UsageError where what is wished for cannot be had."""
    if not wishes.command:
        raise UsageError("there is no command to submit", hint="holdfast submit htcondor --run RUN -- python train.py")
    parts = [_program(wishes)]
    parts += _shared_parts(wishes) if wishes.is_shared else _transfer_parts(wishes)
    parts.append(_surroundings(wishes))
    given = {name.lower(): (name, value) for name, value in wishes.more.items()}
    if wishes.every_s is not None and "environment" in given:
        raise UsageError(
            "--every sets a variable of the environment, which --set environment would take away",
            hint=f"leave out --every, and add HOLDFAST_TIME_LEFT={wishes.every_s:g} to yours",
        )
    lines = [f"{SIGN}: a job that comes back until its work is done.", f"# {shlex.join(wishes.command)}"]
    for part in parts:
        lines.append("")
        for key, value in part:
            if key.startswith("#"):
                lines.append(key)
            else:
                name, text = given.pop(key.lower(), (key, value))
                check_value(text, name)
                lines.append(f"{name:<25} = {text}")
    lines += ["", *(f"{name:<25} = {value}" for name, value in given.values()), "queue"]
    return "\n".join(lines) + "\n"


def check_run(run: str) -> str:
    """The run's path as it is within the directory of the job; UsageError where it is not in it."""
    plain = posixpath.normpath(run)
    if not run or posixpath.isabs(run) or plain.split("/")[0] in ("..", "."):
        raise UsageError(
            f"--run {run}: is not a directory below the one that the job runs in",
            hint="give it as the program does, such as runs/mnist; on a shared file system, --no-transfer",
        )
    if "{job}" in run:
        raise UsageError(
            f"--run {run}: names the job, which has no number before it is submitted",
            hint="a job has a directory of its own: the same name serves for all",
        )
    if any(c in plain for c in ",$\"'"):
        raise UsageError(f"--run {run}: HTCondor cannot transfer a name like that", hint="without , $ and quotes")
    check_value(plain, "--run")
    return plain


Part = list[tuple[str, str]]
"""Commands with their values; a comment has none."""


def _program(wishes: Wishes) -> Part:
    program, *words = wishes.command
    arguments = [("arguments", quote_arguments(words))] if words else []
    own = os.path.join(wishes.folder, program)
    # As in a shell, a name without a slash is looked for in the path.
    if "/" in program and not os.path.isabs(program) and not wishes.is_shared:
        if not os.path.isfile(own):
            raise UsageError(f"{program}: there is no such file in {wishes.folder}", hint="check the name")
        check_value(program, "the program")
        return [("executable", program), *arguments]
    found = shutil.which(own if "/" in program and not os.path.isabs(program) else program)
    if found is None:
        raise UsageError(f"{program}: there is no such program here", hint="give its path")
    check_value(found, "the program")
    return [
        ("# The program is on the machine that runs the job, under this path.", ""),
        ("executable", os.path.abspath(found).replace("$", "$(DOLLAR)")),
        ("transfer_executable", "False"),
        *arguments,
    ]


def _transfer_parts(wishes: Wishes) -> list[Part]:
    run = check_run(wishes.run)
    # HTCondor holds a job that is evicted when something that it is to bring home is not there yet: so that goes along.
    inputs = [
        run,
        *wishes.outputs,
        *wishes.inputs,
        *(word for word in wishes.command[1:] if _is_own_file(word, wishes.folder)),
    ]
    part: Part = [
        (
            f"# With status {wishes.exit_code} it says: there is a checkpoint, start me again. HTCondor brings the run",
            "",
        ),
        ("# home then; also when the job is evicted, so that it goes on from there on another machine.", ""),
        ("checkpoint_exit_code", str(wishes.exit_code)),
        ("transfer_checkpoint_files", _list([run, *wishes.outputs])),
        ("should_transfer_files", "YES"),
        ("when_to_transfer_output", "ON_EXIT_OR_EVICT"),
        ("# Only what is named here comes home. It goes out as well: a job continues what is there.", ""),
        ("transfer_output_files", _list([run, *wishes.outputs])),
        ("transfer_input_files", _list(inputs)),
        ("preserve_relative_paths", "True"),
    ]
    if wishes.destination is not None:
        if "://" not in wishes.destination or any(c.isspace() for c in wishes.destination):
            raise UsageError(
                f"--checkpoint-destination {wishes.destination}: is not a URL", hint="such as osdf:///some/where"
            )
        part += [
            ("# Checkpoints are kept there, but not those of evictions: HTCondor goes on from the one before.", "")
        ]
        part += [("checkpoint_destination", wishes.destination)]
    if wishes.every_s is None:
        return [part]
    every: Part = [
        (
            "# After this time it ends by itself, with a checkpoint that comes home: more is not lost with a machine.",
            "",
        ),
        ("environment", quote_environment({"HOLDFAST_TIME_LEFT": f"{wishes.every_s:g} s"})),
    ]
    return [part, every]


def _shared_parts(wishes: Wishes) -> list[Part]:
    if wishes.destination is not None or wishes.inputs or wishes.outputs or wishes.every_s is not None:
        raise UsageError(
            "with --no-transfer nothing is transferred",
            hint="leave out --input, --output, --every and --checkpoint-destination",
        )
    folder = os.path.abspath(wishes.folder)
    check_value(folder, "the directory")
    part: Part = [
        ("# It runs in this directory, on a file system that all machines have.", ""),
        ("initialdir", folder.replace("$", "$(DOLLAR)")),
        ("should_transfer_files", "NO"),
        (f"# With status {wishes.exit_code} it says: not done, start me again. Everything else is its end.", ""),
        ("on_exit_remove", f"ExitCode =!= {wishes.exit_code}"),
        ("# Not for ever, should it get nowhere.", ""),
        ("periodic_hold", f"NumJobStarts > {_MAX_STARTS}"),
        ("periodic_hold_reason", f'"started {_MAX_STARTS} times, and not done"'),
    ]
    if wishes.exit_code != RESTART_STATUS:
        part.append(("+SuccessCheckpointExitCode", str(wishes.exit_code)))
    return [part]


def _surroundings(wishes: Wishes) -> Part:
    check_value(wishes.name, "--name")
    if any(c in wishes.name for c in "/$ ") or not wishes.name:
        raise UsageError(f"--name {wishes.name}: expected the beginning of a file's name", hint="such as mnist")
    # What a job printed is transferred with its checkpoints, and goes on; without a transfer each start begins it anew.
    start = "-$$([NumJobStarts+1])" if wishes.is_shared else ""
    part: Part = [
        ("output", f"{wishes.name}-$(ClusterId){start}.out"),
        ("error", f"{wishes.name}-$(ClusterId){start}.err"),
        ("log", f"{wishes.name}-$(ClusterId).log"),
        ("request_cpus", str(wishes.cpus)),
    ]
    if wishes.memory is not None:
        part.append(("request_memory", wishes.memory))
    return part


def _is_own_file(word: str, folder: str) -> bool:
    """Whether a word of the command is a file that the job will look for in its directory."""
    plain = posixpath.normpath(word)
    if posixpath.isabs(word) or plain.split("/")[0] == ".." or any(c in word for c in ",$\"'\n"):
        return False
    return os.path.isfile(os.path.join(folder, word))


def _list(names: Iterable[str]) -> str:
    found = dict.fromkeys(posixpath.normpath(name) for name in names)
    for name in found:
        if any(c in name for c in ",$\"'"):
            raise UsageError(f"{name}: HTCondor cannot transfer a name like that", hint="without , $ and quotes")
    return ", ".join(found)
