"""`holdfast submit`: give a scheduler a job that comes back until its work is done."""

import argparse
import os
from collections.abc import Sequence
from importlib import import_module
from typing import Protocol, cast

from holdfast.cli.exit_codes import OK
from holdfast.cli.output import Output
from holdfast.cli.parser import make_parser
from holdfast.core.errors import UsageError

__all__ = ["EXAMPLES", "SCHEDULERS", "SUMMARY", "TAKES_COMMAND", "Scheduler", "add_arguments", "parser_of", "run"]

SUMMARY = """\
Give a scheduler a job that comes back until its work is done: after its time limit, a preemption, a lost node. Writes
what the scheduler wants to have, readable, with comments, and submits it; with --dry-run it is only shown. `holdfast
submit slurm --help` and `holdfast submit htcondor --help` list the options of each."""
EXAMPLES = (
    "holdfast submit slurm --time=4:00:00 -- python train.py",
    "holdfast submit slurm --array 20 --time=1:00:00 --dry-run -- python train.py",
    "holdfast submit htcondor --run runs/mnist -- python train.py",
)
TAKES_COMMAND = True
"""What stands behind `--` is the program's."""

SCHEDULERS = {
    "slurm": "holdfast.integrations.slurm_submit",
    "htcondor": "holdfast.integrations.htcondor_submit",
}


class Scheduler(Protocol):
    """What the module of a scheduler has."""

    SUMMARY: str
    EXAMPLES: Sequence[str]
    PASSES_OPTIONS_ON: bool
    """Whether options that it does not know are the scheduler's: `arguments.options`."""

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        """Its options."""

    def describe(self, arguments: argparse.Namespace, command: Sequence[str]) -> str:
        """What is submitted, as text."""

    def path_of(self, arguments: argparse.Namespace, command: Sequence[str]) -> str:
        """The file that the text goes to."""

    def submit(self, text: str, path: str) -> str:
        """Write it there and submit it; what the scheduler calls the job."""

    def output_of(self, text: str, job: str) -> str:
        """The file that what the job prints goes to; empty where nobody has said one."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The scheduler; what follows is for its own parser."""
    parser.usage = "holdfast submit slurm|htcondor [OPTION]... -- COMMAND..."
    parser.add_argument("scheduler", choices=sorted(SCHEDULERS), help="who is to run it")
    parser.add_argument("options", metavar="OPTION", nargs=argparse.REMAINDER, help="of that scheduler")


def parser_of(name: str, scheduler: Scheduler) -> argparse.ArgumentParser:
    """That of the scheduler's own options."""
    parser = make_parser(f"submit {name}", summary=scheduler.SUMMARY, examples=scheduler.EXAMPLES)
    parser.add_argument("--dry-run", action="store_true", help="show what would be submitted, and where it would go")
    scheduler.add_arguments(parser)
    return parser


def run(arguments: argparse.Namespace, out: Output) -> int:
    """Write, and submit or show."""
    scheduler = cast(Scheduler, import_module(SCHEDULERS[arguments.scheduler]))
    parser = parser_of(arguments.scheduler, scheduler)
    wishes, unknown = parser.parse_known_args(arguments.options)
    if unknown and not scheduler.PASSES_OPTIONS_ON:
        raise UsageError(
            f"there is no option {unknown[0]} of holdfast submit {arguments.scheduler}",
            hint=f"`holdfast submit {arguments.scheduler} --help` lists them",
        )
    wishes.options = unknown
    text = scheduler.describe(wishes, arguments.command)
    path = scheduler.path_of(wishes, arguments.command)
    job = None if wishes.dry_run else scheduler.submit(text, path)
    if out.json:
        file, shown = (os.fsencode(part).decode(errors="replace") for part in (os.path.abspath(path), text))
        out.document({"scheduler": arguments.scheduler, "job": job, "file": file, "text": shown})
        return OK
    if job is None:
        for line in text.splitlines():
            out.line(line)
        out.remark(f"not submitted; it would be written to {path}")
    else:
        output = scheduler.output_of(text, job)
        out.line(f"submitted job {job}: {path}" + (f"; what it prints goes to {output}" if output else ""))
    return OK
