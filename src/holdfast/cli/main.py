"""The `holdfast` command. Whatever happens becomes an exit status: also Ctrl-C before the rest could be imported."""

import atexit
import gc
import os
import sys
from collections.abc import Sequence

# As in holdfast/__init__.py: type checkers know this name, and typing would take longer than `--version` itself.
TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import NoReturn

__all__ = ["main", "run"]


def run() -> "NoReturn":
    """The entry point of the command."""
    is_listing = sys.argv[1:2] == ["ls"]
    if is_listing:
        gc.disable()  # a listing makes thousands of small values, none of them garbage before it ends
    for name in ("stdin", "stdout", "stderr"):
        if getattr(sys, name) is None:  # closed by the shell: `>&-`
            setattr(sys, name, open(os.devnull, "r+"))  # noqa: SIM115  open until the end
    code = main(sys.argv[1:])
    # To take every module and value apart would be a twentieth of a listing. All of it is printed and flushed by now.
    if is_listing and code == 0 and not atexit._ncallbacks():
        os._exit(code)
    gc.freeze()  # Python looks for garbage once more when it ends; the system takes all of it anyway
    sys.exit(code)


def main(arguments: Sequence[str]) -> int:
    """Run one command; its exit status."""
    try:
        return _guarded(arguments)
    except KeyboardInterrupt:
        print("\nholdfast: interrupted", file=sys.stderr)
        return 130  # INTERRUPTED of exit_codes, whose import may be what was interrupted


def _guarded(arguments: Sequence[str]) -> int:
    from holdfast.cli.dispatch import dispatch
    from holdfast.cli.exit_codes import BROKEN_PIPE, STORAGE

    try:
        code = dispatch(arguments)
        sys.stdout.flush()
    except BrokenPipeError:
        _drop_output()  # the reader has seen enough (`| head`)
        return BROKEN_PIPE
    except OSError as error:
        _drop_output()
        print(f"holdfast: error: the output cannot be written: {error.strerror}", file=sys.stderr)
        return STORAGE
    return code


def _drop_output() -> None:
    """Python would complain once more when it flushes at exit."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
