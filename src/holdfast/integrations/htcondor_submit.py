"""`holdfast submit htcondor`: a submit description for self-checkpointing, written or completed, and submitted."""

import argparse
import os
import posixpath
import re
import subprocess
from collections.abc import Sequence

from holdfast.core.errors import NotSubmittedError, UsageError
from holdfast.engine.jobs import restart_status
from holdfast.engine.whole_file import whole_file
from holdfast.integrations.htcondor_completing import complete
from holdfast.integrations.htcondor_description import SIGN, Wishes, describe_job
from holdfast.integrations.htcondor_language import check_value, read_statements, split_list
from holdfast.policy.durations import seconds_of
from holdfast.storage.translate import Boundary

__all__ = [
    "EXAMPLES",
    "PASSES_OPTIONS_ON",
    "SUMMARY",
    "add_arguments",
    "describe",
    "missing_runs",
    "output_of",
    "path_of",
    "submit",
]

SUMMARY = """\
Give HTCondor a job that brings its checkpoints home, and comes back until its work is done: evicted, held and released,
moved to another machine. Writes a submit description that can be read, or completes yours, and submits it."""
EXAMPLES = (
    "holdfast submit htcondor --run runs/mnist -- python train.py --lr 0.1",
    "holdfast submit htcondor --run runs/mnist --every 1h --cpus 4 --memory 8GB --dry-run -- ./train.sh",
    "holdfast submit htcondor --no-transfer -- python train.py",
    "holdfast submit htcondor --run runs/mnist --complete job.sub",
)
PASSES_OPTIONS_ON = False
"""HTCondor's commands have no options; they are given with --set."""

_SETTING = re.compile(r"(?:\+|MY\.)?[A-Za-z_][A-Za-z0-9_.]*\Z", re.IGNORECASE)
_JOB = re.compile(r"([0-9]+\.[0-9]+) - ")
_SUBMIT_S = 120.0
_NOT_COMPLETING = (
    "no_transfer",
    "every",
    "input",
    "output",
    "checkpoint_destination",
    "name",
    "cpus",
    "memory",
    "more",
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options."""
    parser.usage = "holdfast submit htcondor [OPTION]... -- COMMAND..."
    parser.add_argument("--run", metavar="DIR", help="the directory of the run, as the program names it")
    about = "the file system is shared: run in this directory, transfer nothing"
    parser.add_argument("--no-transfer", action="store_true", help=about)
    about = "bring a checkpoint home that often (default: only at evictions)"
    parser.add_argument("--every", metavar="DURATION", help=about)
    about = "what else the job needs; files that the command names are found by themselves"
    parser.add_argument("--input", metavar="PATH", action="append", default=[], help=about)
    about = "another directory that comes home with the run"
    parser.add_argument("--output", metavar="DIR", action="append", default=[], help=about)
    parser.add_argument("--checkpoint-destination", metavar="URL", help="where checkpoints go instead of here")
    about = "with which the program asks to be started again (default: 85)"
    parser.add_argument("--exit-code", metavar="N", type=int, help=about)
    parser.add_argument("--name", metavar="NAME", help="how files of the job begin (default: as the run is called)")
    parser.add_argument("--cpus", metavar="N", type=int, help="request_cpus (default: 1)")
    parser.add_argument("--memory", metavar="SIZE", help="request_memory, for example 4GB")
    about = "any other command of a submit description; may be repeated"
    parser.add_argument("--set", metavar="KEY=VALUE", action="append", default=[], dest="more", help=about)
    about = "take this description, and add or correct only what is missing"
    parser.add_argument("--complete", metavar="FILE", help=about)


def describe(arguments: argparse.Namespace, command: Sequence[str]) -> str:
    """The text of the description."""
    if arguments.complete is not None:
        return _completed(arguments, command)
    if not arguments.run and not arguments.no_transfer:
        raise UsageError(
            "which directory is the run?", hint="--run runs/mnist, as the program names it; or --no-transfer"
        )
    if arguments.cpus is not None and arguments.cpus < 1:
        raise UsageError(f"--cpus {arguments.cpus}: expected at least 1", hint="how many cores the program uses")
    return describe_job(
        Wishes(
            command,
            arguments.run or "",
            _name(arguments, command),
            is_shared=arguments.no_transfer,
            inputs=arguments.input,
            outputs=arguments.output,
            exit_code=restart_status(arguments.exit_code, {}),
            every_s=_every_s(arguments.every),
            destination=arguments.checkpoint_destination,
            cpus=arguments.cpus or 1,
            memory=arguments.memory,
            more=_settings(arguments.more),
        )
    )


def path_of(arguments: argparse.Namespace, command: Sequence[str]) -> str:
    """The file that the description goes to; that of the user stays as it is."""
    if arguments.complete is not None:
        return f"{arguments.complete.removesuffix('.sub')}.holdfast.sub"
    return f"{_name(arguments, command)}.sub"


def submit(text: str, path: str) -> str:
    """Write the description and give it to `condor_submit`; the number of the job, such as `12.0`."""
    _check_is_ours(path)
    # HTCondor holds a job whose input is missing, and one that is evicted before there is something to bring home.
    for run in missing_runs(text, ""):
        with Boundary("making", run):
            os.makedirs(run, mode=0o700, exist_ok=True)
    with whole_file(path, replace=True) as file:
        # Words of the command that are no text arrive as they were given.
        file.write(text.encode(errors="surrogateescape"))
    try:
        done = subprocess.run(  # noqa: S603  a list, no shell; the file is our own
            ["condor_submit", "-terse", os.path.abspath(path)],  # noqa: S607  where the user's path has it
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=_SUBMIT_S,
            check=False,
        )
    except FileNotFoundError:
        raise NotSubmittedError(
            "there is no HTCondor here: condor_submit is not in the path",
            hint=f"the description is in {path}; submit it where HTCondor is",
        ) from None
    except OSError as error:
        raise NotSubmittedError(
            f"condor_submit cannot be started: {error.strerror}", hint=f"the description is in {path}"
        ) from error
    except subprocess.TimeoutExpired:
        raise NotSubmittedError(
            f"condor_submit {path} has not answered for {_SUBMIT_S:.0f} s", hint="is the pool up? condor_q says"
        ) from None
    job = _JOB.match(done.stdout)
    if done.returncode != 0 or job is None:
        said = (done.stderr or done.stdout).strip()
        raise NotSubmittedError(
            f"condor_submit {path} failed with status {done.returncode}: {said}",
            hint="it says what HTCondor does not like in the description, or that it cannot be reached",
        )
    return job[1]


def output_of(text: str, job: str) -> str:
    """The file that it prints to, with the job's number; what else HTCondor fills in stays."""
    values = {statement.name: statement.value for statement in read_statements(text.splitlines())}
    return re.sub(r"\$\(Cluster(?:Id)?\)", job.partition(".")[0], values.get("output", ""), flags=re.IGNORECASE)


def missing_runs(text: str, folder: str) -> list[str]:
    """Paths of directories that go out and come back as checkpoints, and are not there where it is submitted."""
    values = {statement.name: statement.value for statement in read_statements(text.splitlines())}
    inputs = split_list(values.get("transfer_input_files", ""))
    above = os.path.join(folder, values.get("initialdir", ""))
    paths = [
        os.path.join(above, name) for name in split_list(values.get("transfer_checkpoint_files", "")) if name in inputs
    ]
    # What HTCondor fills in is not known here.
    return [path for path in paths if "$" not in path and not os.path.lexists(path)]


def _completed(arguments: argparse.Namespace, command: Sequence[str]) -> str:
    if command:
        raise UsageError(
            f"--complete {arguments.complete}: the command is in the description", hint="leave out what is behind --"
        )
    others = [name for name in _NOT_COMPLETING if getattr(arguments, name)]
    if others:
        option = "--set" if others[0] == "more" else f"--{others[0].replace('_', '-')}"
        raise UsageError(f"{option} does not go with --complete", hint=f"say it in {arguments.complete}")
    with Boundary("reading", arguments.complete), open(arguments.complete, "rb") as file:
        content = file.read()
    try:
        text = content.decode()
    except UnicodeDecodeError:
        raise UsageError(f"{arguments.complete}: is not text", hint="expected a submit description") from None
    return complete(text, run=arguments.run, exit_code=restart_status(arguments.exit_code, {})).text


def _name(arguments: argparse.Namespace, command: Sequence[str]) -> str:
    if arguments.name is not None:
        return str(arguments.name)
    last = posixpath.basename((arguments.run or "").rstrip("/")) or posixpath.basename(command[0] if command else "")
    return re.sub(r"[^A-Za-z0-9._-]+", "-", last).strip("-.") or "job"


def _every_s(given: str | None) -> float | None:
    every_s = None if given is None else seconds_of(given, "--every")
    if every_s is not None and every_s <= 0:
        raise UsageError(f"--every {given}: leaves no time to work", hint="for example --every 1h")
    return every_s


def _settings(given: Sequence[str]) -> dict[str, str]:
    found = {}
    for setting in given:
        name, equals, value = (part.strip() for part in setting.partition("="))
        if not equals or not _SETTING.match(name) or name.lower() == "queue":
            raise UsageError(f"--set {setting}: expected KEY=VALUE", hint="for example --set request_gpus=1")
        check_value(value, f"--set {name}")
        found[name] = value
    return found


def _check_is_ours(path: str) -> None:
    if not os.path.lexists(path):
        return
    with Boundary("reading", path), open(path, "rb") as file:
        is_ours = file.read(len(SIGN)) == SIGN.encode()
    if not is_ours:
        raise UsageError(
            f"{path}: is there already, and not from holdfast", hint="choose another --name, or --complete it"
        )
