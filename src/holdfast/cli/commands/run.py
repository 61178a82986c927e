"""`holdfast run`: keeps a program running until it is done."""

import argparse
import os
import shlex
import sys

from holdfast.cli.output import Output
from holdfast.cli.parser import whole
from holdfast.cli.plain_text import speaks_unicode
from holdfast.core.clock import SystemClock
from holdfast.core.errors import UsageError
from holdfast.engine.jobs import find_job, restart_status
from holdfast.policy.durations import seconds_of
from holdfast.supervising.app import App, Plain
from holdfast.supervising.arrivals import Arrivals
from holdfast.supervising.deciding import Rules
from holdfast.supervising.supervisor import Plan, Supervisor
from holdfast.supervising.telling import Teller

__all__ = ["EXAMPLES", "SUMMARY", "TAKES_COMMAND", "add_arguments", "run"]

SUMMARY = """\
Keep a program running until it is done. Passes signals on to it, also through shells and pipelines; starts it again
when it asks for that (status 85) and after crashes, later and later where it gets no further; and ends with the
program's own status. One line for every attempt goes to the error stream and to the log; the program keeps its input,
its output and its terminal. With --json these lines are JSON."""
EXAMPLES = (
    "holdfast run -- python train.py",
    "holdfast run --log run.log --max-restarts 10 -- python train.py --lr 0.1",
    "holdfast run --hang 30min --until-done -- bash -c 'set -o pipefail; python train.py | tee -a log'",
    "holdfast run --grace 2min -- srun python train.py",
)
TAKES_COMMAND = True
"""What stands behind `--` is the program's."""

_DEFAULT_GRACE = "30 s"
_DEFAULT_BACKOFF = "1 s"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The command's own options."""
    parser.usage = "holdfast run [OPTION]... -- COMMAND..."
    parser.add_argument("words", metavar="COMMAND", nargs=argparse.REMAINDER, help="what to run, behind `--`")
    about = "start it again at most N times (default: 100)"
    parser.add_argument("--max-restarts", metavar="N", type=whole(0), default=None, help=about)
    about = "give up after N crashes in a row in which it came no further (default: 5)"
    parser.add_argument("--max-crashes", metavar="N", type=whole(1), default=None, help=about)
    parser.add_argument("--until-done", action="store_true", help="never give up, whatever it ends with")
    about = f"how long to wait after a crash; doubles, up to a minute (default: {_DEFAULT_BACKOFF})"
    parser.add_argument("--backoff", metavar="DURATION", default=_DEFAULT_BACKOFF, help=about)
    about = f"how long it has to end after SIGTERM or SIGHUP before it is killed (default: {_DEFAULT_GRACE})"
    parser.add_argument("--grace", metavar="DURATION", default=None, help=about)
    about = "end it, and start it again, when it makes no step for so long (default: never)"
    parser.add_argument("--hang", metavar="DURATION", default=None, help=about)
    about = "what follows when it asks for a restart (default: auto, which is exit in a scheduler's job, else restart)"
    parser.add_argument("--on-85", choices=("auto", "restart", "exit"), default="auto", help=about)
    about = "the status with which it asks for a restart (default: 85, or what the HTCondor job says)"
    parser.add_argument("--exit-code", metavar="N", type=whole(1), default=None, help=about)
    parser.add_argument("--app", metavar="NAME|FILE", help="it does not use holdfast: what kind of program it is")
    parser.add_argument("--run", metavar="RUN", dest="of_run", help="the run's directory, for --app")
    parser.add_argument("--log", metavar="FILE", help="append the lines to this file, too")
    parser.add_argument("--plain", action="store_true", help="no line at the bottom of the terminal")
    parser.add_argument("--quiet", "-q", action="store_true", help="say nothing but what went wrong in the end")


def run(arguments: argparse.Namespace, out: Output) -> int:
    """Run it, and say what happened."""
    if not os.path.exists("/proc/self/status"):
        raise UsageError("holdfast run needs Linux, and /proc", hint="in a container, mount /proc")
    command = _command(arguments)
    plan = _plan(arguments)
    unicode = speaks_unicode(sys.stderr)
    clock = SystemClock()
    arrivals = Arrivals()
    teller = Teller(
        log=arguments.log,
        as_json=out.json,
        quiet=arguments.quiet,
        plain=arguments.plain,
        unicode=unicode,
        clock=clock,
    )
    try:
        app = _app(arguments, command, plan)
        try:
            supervisor = Supervisor(app, plan, arrivals=arrivals, telling=teller, clock=clock)
            return supervisor.run(os.environ)
        finally:
            app.close()
    finally:
        teller.close()


def _command(arguments: argparse.Namespace) -> list[str]:
    command, words = list(arguments.command), shlex.join(arguments.words)
    if words and not command:
        raise UsageError(
            f"the command is not behind --: {words}", hint=f"put -- before the command: holdfast run -- {words}"
        )
    if words:
        raise UsageError(
            f"before -- are only options, not {words}", hint='what has spaces in it goes into quotes: --grace "2 min"'
        )
    if not command or not command[0]:
        raise UsageError("there is no command to run", hint="holdfast run -- python train.py")
    if arguments.until_done and (arguments.max_restarts is not None or arguments.max_crashes is not None):
        raise UsageError("--until-done has no limits", hint="leave out --max-restarts and --max-crashes")
    if arguments.of_run is not None and arguments.app is None:
        raise UsageError(
            "--run says where the files of an --app are saved", hint="a program that uses holdfast names its run itself"
        )
    return command


def _plan(arguments: argparse.Namespace) -> Plan:
    hang_s = seconds_of(arguments.hang, "--hang") if arguments.hang is not None else None
    if hang_s == 0:
        raise UsageError("--hang is 0, in which nothing can make a step", hint="for example --hang 30min")
    job = find_job(os.environ)
    is_scheduled = job is not None and bool(job.scheduler)
    max_restarts = 100 if arguments.max_restarts is None else arguments.max_restarts
    max_crashes = 5 if arguments.max_crashes is None else arguments.max_crashes
    return Plan(
        Rules(
            max_restarts=None if arguments.until_done else max_restarts,
            max_crashes=None if arguments.until_done else max_crashes,
            backoff_s=seconds_of(arguments.backoff, "--backoff"),
            restarts_when_asked=arguments.on_85 == "restart" or (arguments.on_85 == "auto" and not is_scheduled),
            repeats_usage_errors=arguments.until_done,
        ),
        restart_status=restart_status(arguments.exit_code, os.environ),
        grace_s=seconds_of(arguments.grace or _DEFAULT_GRACE, "--grace"),
        tells_grace=arguments.grace is not None,
        hang_s=hang_s,
    )


def _app(arguments: argparse.Namespace, command: list[str], plan: Plan) -> App:
    if arguments.app is None:
        return Plain(command, restart_status=plan.restart_status)
    from holdfast.supervising.apps import find_app  # not before it is needed: it brings the engine with it

    return find_app(arguments.app, command, run=arguments.of_run, restart_status=plan.restart_status)
