"""Finds the sub-command, runs it, and turns whatever it raises into an exit status and a readable line.

Nothing is imported before it is needed: `--version` and `--help` do not even load a parser.
"""

import errno
import os
import sys
from collections.abc import Sequence

from holdfast.cli.exit_codes import EXIT_CODES, OK, UNEXPECTED, USAGE, code_of
from holdfast.core.errors import HoldfastError, IntegrityError, printable
from holdfast.core.version import __version__

# As in holdfast/__init__.py: type checkers know this name, and typing would take longer than `--version` itself.
TYPE_CHECKING = False
if TYPE_CHECKING:
    from holdfast.cli.output import Output

__all__ = ["COMMANDS", "dispatch", "module_of"]

COMMANDS = {
    "ls": "list the checkpoints of a run, or the runs in a directory",
    "show": "all there is to know of one checkpoint: documents, lineage, tree",
    "verify": "read every byte and compare it with its digest",
    "diff": "what differs between two checkpoints, and by how much",
    "export": "write a checkpoint as .safetensors, .pt or .npz",
    "import": "make a checkpoint of a .safetensors, .pt or .npz file",
    "cp": "copy a checkpoint or a run, verified at both ends",
    "pin": "keep a checkpoint whatever retention says",
    "unpin": "let retention decide again",
    "prune": "remove what is not to be kept, with the reason for each",
    "rm": "remove one checkpoint",
    "run": "keep a program running until it is done: restarts, signals, time limits",
    "submit": "give Slurm or HTCondor a job that comes back until it is done",
    "prove": "run a training with interruptions, and see whether it resumes exactly",
    "audit": "check that every sample was handed out exactly once, over all attempts",
    "explain": "how often checkpoints are made, and why that often",
    "doctor": "test what the storage can do, and say what to change",
}
_OF_DAMAGE = "`holdfast verify RUN --all` says what is intact; restore() takes the newest of these"
# Errors of a run's storage are our own by then: what is left is the standard output.
_OUTPUT_FAILED = (errno.EPIPE, errno.ENOSPC)


def dispatch(arguments: Sequence[str]) -> int:
    """Run the command that the arguments name; its exit status."""
    if arguments and arguments[0] in ("--version", "-V"):
        print(f"holdfast {__version__}")
        return OK
    if not arguments or arguments[0] in ("--help", "-h", "help"):
        print(_help())
        return OK if arguments else USAGE
    if arguments[0] not in COMMANDS:
        return _unknown(arguments)
    return _guarded(arguments[0], arguments[1:])


def module_of(command: str) -> str:
    """The name of the command's module."""
    # `import` is a word of the language; its module cannot be called that.
    return f"holdfast.cli.commands.{'import_file' if command == 'import' else command}"


def _guarded(command: str, arguments: Sequence[str]) -> int:
    out = None
    try:
        from holdfast.cli.output import Output

        out = Output(json="--json" in _own(arguments))
        return _run(command, arguments, out)
    except HoldfastError as error:
        of_run = isinstance(error, IntegrityError) and command != "import"  # that one reads a file of somebody else
        hint = error.hint or (_OF_DAMAGE if of_run else "")
        _report(error.message, hint, out, kind=type(error).__name__, code=code_of(error))
        return code_of(error)
    except Exception as error:
        if os.environ.get("HOLDFAST_DEBUG") or getattr(error, "errno", None) in _OUTPUT_FAILED:
            raise
        message = f"unexpected {type(error).__name__}: {printable(error)}"
        _report(message, "run with HOLDFAST_DEBUG=1 for the traceback", out, kind=type(error).__name__, code=UNEXPECTED)
        return UNEXPECTED


def _run(command: str, arguments: Sequence[str], out: "Output") -> int:
    __import__(module_of(command))  # importlib would be loaded for it
    module = sys.modules[module_of(command)]
    parse_plain = getattr(module, "parse_plain", None)  # for a command that is to start at once
    parsed = parse_plain(arguments) if parse_plain is not None else None
    if parsed is None:
        from holdfast.cli.parser import make_parser

        parser = make_parser(command, summary=module.SUMMARY, examples=module.EXAMPLES)
        module.add_arguments(parser)
        takes_command = getattr(module, "TAKES_COMMAND", False)
        parsed = parser.parse_args(_own(arguments) if takes_command else list(arguments))
        if takes_command:
            parsed.command = list(arguments)[len(_own(arguments)) + 1 :]
    code: int = module.run(parsed, out)
    return code


def _own(arguments: Sequence[str]) -> list[str]:
    """What stands before `--`; what stands behind it are not options of ours."""
    return list(arguments[: arguments.index("--")]) if "--" in arguments else list(arguments)


def _report(message: str, hint: str, out: "Output | None", *, kind: str, code: int) -> None:
    print(f"holdfast: error: {message}", file=sys.stderr)
    if hint:
        print(f"  hint: {hint}", file=sys.stderr)
    if out is not None and out.json:
        out.document({"error": {"kind": kind, "message": message, "hint": hint, "exit_code": code}})


def _unknown(arguments: Sequence[str]) -> int:
    from difflib import get_close_matches

    given = arguments[0]
    command = next((argument for argument in arguments if argument in COMMANDS), "")
    close = get_close_matches(given, COMMANDS, n=1)
    if given.startswith("-") and command:
        message, hint = f"{given} goes behind the command", f"holdfast {command} … {given}"
    elif given.startswith("-"):
        message, hint = f"there is no option {given} without a command", "`holdfast --help` lists the commands"
    else:
        message = f"there is no command {given!r}"
        hint = f"did you mean `holdfast {close[0]}`?" if close else "`holdfast --help` lists the commands"
    from holdfast.cli.output import Output

    out = Output(json="--json" in _own(arguments))
    _report(printable(message), printable(hint), out, kind="UsageError", code=USAGE)
    return USAGE


def _help() -> str:
    commands = "\n".join(f"  {name:<8} {summary}" for name, summary in COMMANDS.items())
    codes = "\n".join(f"  {code:<4} {meaning}" for code, meaning in EXIT_CODES.items())
    return f"""\
usage: holdfast COMMAND ...

Checkpoints of long-running jobs: look at them, check them, move them, clean up.

{commands}

  holdfast COMMAND --help   options and examples of one command
  holdfast --version

RUN is the directory that was given to Checkpointer(...). WHICH is a step (1200), `latest`, `best` (with --by METRIC),
an id as `holdfast ls --ids` shows it, or its beginning. Every command takes --json and then prints one JSON document.

examples:
  holdfast ls runs/mnist
  holdfast verify runs/mnist --all
  holdfast diff runs/mnist 1000 2000

exit status:
{codes}"""
