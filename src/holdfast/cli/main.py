"""The `holdfast` command: finds the sub-command, and turns every outcome into an exit status and a readable line.

Nothing is imported before it is needed: `--version` and `--help` do not even load a parser.
"""

import gc
import os
import sys
from collections.abc import Sequence

from holdfast.cli.exit_codes import BROKEN_PIPE, EXIT_CODES, INTERRUPTED, OK, UNEXPECTED, USAGE, code_of
from holdfast.core.errors import HoldfastError, printable
from holdfast.core.version import __version__

# As in holdfast/__init__.py: type checkers know this name, and typing would take longer than `--version` itself.
TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import NoReturn

    from holdfast.cli.output import Output

__all__ = ["COMMANDS", "main", "run"]

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
    "doctor": "test what the storage can do, and say what to change",
}
# `import` is a word of the language; its module cannot be called that.
_MODULES = {"import": "import_file"}


def run() -> "NoReturn":
    """The entry point of the command."""
    if sys.argv[1:2] == ["ls"]:
        gc.disable()  # a listing makes thousands of small values, none of them garbage before it ends
    sys.exit(main(sys.argv[1:]))


def main(arguments: Sequence[str]) -> int:
    """Run one command; its exit status."""
    if arguments and arguments[0] in ("--version", "-V"):
        print(f"holdfast {__version__}")
        return OK
    if not arguments or arguments[0] in ("--help", "-h", "help"):
        print(_help())
        return OK if arguments else USAGE
    if arguments[0] not in COMMANDS:
        return _unknown(arguments[0])
    return _guarded(arguments[0], arguments[1:])


def _guarded(command: str, arguments: Sequence[str]) -> int:
    out = None
    try:
        from holdfast.cli.output import Output

        out = Output(json="--json" in arguments)
        code = _dispatch(command, arguments, out)
        sys.stdout.flush()
    except HoldfastError as error:
        _report(error.message, error.hint, out, kind=type(error).__name__, code=code_of(error))
        return code_of(error)
    except BrokenPipeError:
        # The reader has seen enough (`| head`). Python would complain once more when it flushes at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return BROKEN_PIPE
    except KeyboardInterrupt:
        print("\nholdfast: interrupted", file=sys.stderr)
        return INTERRUPTED
    except Exception as error:
        if os.environ.get("HOLDFAST_DEBUG"):
            raise
        message = f"unexpected {type(error).__name__}: {printable(error)}"
        _report(message, "run with HOLDFAST_DEBUG=1 for the traceback", out, kind=type(error).__name__, code=UNEXPECTED)
        return UNEXPECTED
    return code


def _dispatch(command: str, arguments: Sequence[str], out: "Output") -> int:
    from importlib import import_module

    from holdfast.cli.parser import make_parser

    module = import_module(f"holdfast.cli.commands.{_MODULES.get(command, command)}")
    parser = make_parser(command, summary=module.SUMMARY, examples=module.EXAMPLES)
    module.add_arguments(parser)
    parsed = parser.parse_args(list(arguments))
    code: int = module.run(parsed, out)
    return code


def _report(message: str, hint: str, out: "Output | None", *, kind: str, code: int) -> None:
    print(f"holdfast: error: {message}", file=sys.stderr)
    if hint:
        print(f"  hint: {hint}", file=sys.stderr)
    if out is not None and out.json:
        out.document({"error": {"kind": kind, "message": message, "hint": hint, "exit_code": code}})


def _unknown(command: str) -> int:
    from difflib import get_close_matches

    close = get_close_matches(command, COMMANDS, n=1)
    hint = f"did you mean `holdfast {close[0]}`?" if close else "`holdfast --help` lists the commands"
    _report(f"there is no command {command!r}", hint, None, kind="UsageError", code=USAGE)
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
