"""`holdfast submit slurm`: its options, the script that comes of them, and handing it to sbatch."""

import argparse
import math
import os
import re
import shutil
import subprocess
from collections.abc import Sequence
from itertools import pairwise

from holdfast.core.errors import NotSubmittedError, UsageError, printable
from holdfast.engine.turns import TURN_VARIABLE
from holdfast.engine.whole_file import whole_file
from holdfast.integrations.slurm_options import Option, last_value, limit_s, read_options
from holdfast.integrations.slurm_script import WRITTEN_BY, Plan, write_script
from holdfast.policy.durations import seconds_of
from holdfast.storage.translate import Boundary

__all__ = ["EXAMPLES", "PASSES_OPTIONS_ON", "SUMMARY", "add_arguments", "describe", "output_of", "path_of", "submit"]

SUMMARY = """\
Write a batch script for a job that comes back until its work is done, and submit it. Before the time limit Slurm tells
the program, which saves and ends with status 85; then the job is requeued (--requeue, the default), or the next task of
a chain continues (--array N). All options that are not listed here are given on to sbatch."""
EXAMPLES = (
    "holdfast submit slurm --time=4:00:00 --gres=gpu:1 -- python train.py",
    "holdfast submit slurm --array 20 --time=1:00:00 -p low -- python train.py --lr 0.1",
    "holdfast submit slurm --dry-run --time=4:00:00 -- python train.py",
)
PASSES_OPTIONS_ON = True
"""What `add_arguments` does not know is put into `arguments.options`."""

_DEFAULT_BEFORE = "2min"
_MOST_BEFORE_S = 65535  # as much as Slurm takes
_MOST_TASKS = 1_000_000
_MOST_RESTARTS = 1000
_SHARE_OF_LIMIT = 4
_DEADLINE_S = 120
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,59}\Z")
_JOB = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}\Z")
_INTERPRETER = re.compile(r"(?:python|bash|sh|julia|Rscript|perl)[0-9.]*\Z")
_CODE = re.compile(r"-[a-z]*c\Z")  # what follows it is a program, and no name of one
_SUFFIX = re.compile(r"\.(?:py|sh|jl|R|pl)\Z")
_OUTPUT = re.compile(r"^#SBATCH (?:--output[= ]|-o ?)(\S+)$", re.MULTILINE)
_NUMBER = re.compile(r"([0-9]{1,12})(?:;.*)?\Z")
# For sbatch, variables count more than the script. And who submits from inside of a job would hand that job's own on.
_MISLEADING = (
    *(
        "SBATCH_ARRAY_INX",
        "SBATCH_JOB_NAME",
        "SBATCH_NO_REQUEUE",
        "SBATCH_OPEN_MODE",
        "SBATCH_REQUEUE",
        "SBATCH_SIGNAL",
    ),
    *("SBATCH_WAIT", "SLURM_ARRAY_", "SLURM_JOB", "SLURM_RESTART_COUNT", TURN_VARIABLE),
)
# What would contradict the script, or not come to submit it.
_REFUSED = {
    "--signal": "--signal-before says how long before the limit the program is told",
    "--array": "--array N is a chain; of jobs that run side by side, submit each by itself",
    "--no-requeue": "a chain (--array N) is not requeued; a job that is not to come back needs no `holdfast submit`",
    "--wrap": "what to run goes behind --",
    "--job-name": "--name names the job",
    "--open-mode": "the output of all starts goes to one file; a start that truncates it would hide those before",
    "--test-only": "--dry-run shows what would be submitted",
    "--parsable": "--json prints the job's number for programs",
    "--wait": "`squeue` and `holdfast ls` tell how far it is",
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Those of holdfast itself."""
    parser.usage = "holdfast submit slurm [OPTION]... [OPTION OF SBATCH]... -- COMMAND..."
    way = parser.add_mutually_exclusive_group()
    way.add_argument("--requeue", action="store_true", help="one job, requeued until it is done (the default)")
    about = "a chain of at most N tasks, one after the other; it ends early once the work is done"
    way.add_argument("--array", metavar="N", help=about)
    about = f"tell the program this long before the limit (default: {_DEFAULT_BEFORE}, at most a quarter of --time)"
    parser.add_argument("--signal-before", metavar="DURATION", help=about)
    about = "name of the job, its script and its output (default: of the program)"
    parser.add_argument("--name", metavar="NAME", help=about)
    about = "belongs to this job: what {job} stands for in a run's name (default: NAME and the job's number)"
    parser.add_argument("--job", metavar="JOB", help=about)
    about = f"requeue it at most this often (default: {_MOST_RESTARTS})"
    parser.add_argument("--max-restarts", metavar="N", default=str(_MOST_RESTARTS), help=about)
    about = "start the command without srun, which must then pass signals on itself: mpirun does"
    parser.add_argument("--no-srun", action="store_true", help=about)
    parser.add_argument("--script", metavar="FILE", help="write the script there (default: NAME.sbatch)")


def describe(arguments: argparse.Namespace, command: Sequence[str]) -> str:
    """The script; UsageError where the options make no sense."""
    options = read_options(arguments.options)
    for option in options:
        if option.name in _REFUSED:
            raise UsageError(f"{option.words[0]} is not given on to sbatch", hint=_REFUSED[option.name])
    return write_script(
        Plan(
            command=_words(command),
            name=_name(arguments, command),
            tasks=None if arguments.array is None else _whole(arguments.array, "--array", most=_MOST_TASKS),
            before_s=_before_s(arguments.signal_before, options),
            max_restarts=_whole(arguments.max_restarts, "--max-restarts", most=10**9),
            job=_job(arguments.job),
            options=tuple(options),
            has_srun=not arguments.no_srun,
        )
    )


def path_of(arguments: argparse.Namespace, command: Sequence[str]) -> str:
    """Where the script is written: a file of the user's, or of the job's name in the current directory."""
    return str(arguments.script or f"{_name(arguments, command)}.sbatch")


def submit(text: str, path: str) -> str:
    """Write the script and give it to sbatch; the job's number.

    UsageError where there is no sbatch, or where the file is there and is not one of these scripts: nothing is changed
    then. NotSubmittedError where sbatch does not take it.
    """
    sbatch = shutil.which("sbatch")
    if sbatch is None:
        raise UsageError(
            "there is no sbatch here", hint="run it where you run sbatch, or with --dry-run to see the script"
        )
    _write(text, path)
    try:
        done = subprocess.run(  # noqa: S603  a list, no shell
            [sbatch, "--parsable", "--", path],
            env={name: value for name, value in os.environ.items() if not name.startswith(_MISLEADING)},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=_DEADLINE_S,
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        raise NotSubmittedError(
            f"sbatch did not answer within {_DEADLINE_S} s",
            hint=f"`squeue --me` tells whether the job is there; else submit it later: sbatch {path}",
        ) from error
    except OSError as error:
        raise NotSubmittedError(f"{sbatch}: {error.strerror}", hint="check that sbatch works") from error
    said, complaint = (stream.decode(errors="replace").strip() for stream in (done.stdout, done.stderr))
    number = _NUMBER.match(said.splitlines()[-1]) if said else None
    if done.returncode != 0 or number is None:
        found = "; ".join(map(printable, (complaint or said or "no word").splitlines()))[:1000]
        raise NotSubmittedError(
            f"sbatch: status {done.returncode}: {found}",
            hint=f"the script is kept: when sbatch can take it, submit it by `sbatch {path}`",
        )
    return number[1]


def output_of(text: str, job: str) -> str:
    """The file that it prints to, with the job's number."""
    return re.sub(r"%[jA]", job, next(reversed(_OUTPUT.findall(text)), ""))


def _words(command: Sequence[str]) -> tuple[str, ...]:
    if not command:
        raise UsageError(
            "there is no command to submit", hint="holdfast submit slurm --time=4:00:00 -- python train.py"
        )
    return tuple(command)


def _name(arguments: argparse.Namespace, command: Sequence[str]) -> str:
    if arguments.name is not None:
        if not _NAME.match(arguments.name):
            raise UsageError(
                f"--name {arguments.name}: expected letters, digits, dots, dashes, underscores, at most 60",
                hint="for example --name first-try",
            )
        return str(arguments.name)
    if os.path.basename(next(iter(command), "")) == "holdfast" and "--" in command:  # holdfast run ... -- COMMAND
        command = command[command.index("--") + 1 :]
    told = [
        os.path.basename(word)
        for before, word in pairwise(("", *command))
        if not word.startswith("-") and not _CODE.match(before) and not _INTERPRETER.match(os.path.basename(word))
    ]
    stem = _SUFFIX.sub("", next(iter([*told, *map(os.path.basename, command)]), ""))
    return re.sub(r"[^A-Za-z0-9._-]+", "-", stem).strip("-._")[:60] or "job"


def _job(given: str | None) -> str | None:
    if given is not None and not _JOB.match(given):
        raise UsageError(
            f"--job {given}: expected letters, digits, dots, dashes, underscores, at most 100",
            hint="as it was called before, for example --job train-4711",
        )
    return given


def _before_s(given: str | None, options: Sequence[Option]) -> int:
    limit = last_value(options, "--time")
    known_s = limit_s(limit)
    if limit is not None and known_s is None:
        raise UsageError(f"--time {limit}: is no time", hint="minutes, 1:30:00, or 2-00:00:00 for two days")
    if given is None:
        longest_s = seconds_of(_DEFAULT_BEFORE, "--signal-before")
        return max(1, math.floor(min(longest_s, (known_s or math.inf) / _SHARE_OF_LIMIT)))
    before_s = math.ceil(seconds_of(given, "--signal-before"))
    if not 1 <= before_s <= _MOST_BEFORE_S:
        raise UsageError(f"--signal-before {given}: expected 1 s to 18 h", hint="long enough for a checkpoint: 2min")
    if known_s is not None and before_s >= known_s:
        raise UsageError(
            f"--signal-before {given}: as long as the whole job (--time {limit})", hint="tell the program later"
        )
    return before_s


def _whole(text: str, what: str, *, most: int) -> int:
    if not (text.isascii() and text.isdecimal() and len(text) <= 12 and 1 <= int(text) <= most):
        raise UsageError(f"{what} {text}: expected a whole number from 1 to {most}", hint=f"for example {what} 20")
    return int(text)


def _write(text: str, path: str) -> None:
    """Replace the file as a whole; but not one that somebody else wrote."""
    with Boundary("reading", path):
        if os.path.lexists(path) and not _is_ours(path):
            raise UsageError(f"{path}: is there, and not {WRITTEN_BY}", hint="choose another with --script or --name")
    with whole_file(path, replace=True) as file:
        file.write(text.encode(errors="surrogateescape"))


def _is_ours(path: str) -> bool:
    if not os.path.isfile(path):
        return False
    with open(path, "rb") as file:
        return WRITTEN_BY.encode() in file.read(1000)
