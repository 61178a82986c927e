"""The errors of holdfast; everything it raises on purpose derives from HoldfastError.

HoldfastError
├── UsageError (ValueError)            an argument, option or step that makes no sense
├── StateError (TypeError)             a state that cannot be represented; nothing was written
├── StateMismatchError (ValueError)    program and checkpoint differ; nothing was loaded
├── FormatError (ValueError)           bytes that are not what the format says
│   ├── FormatVersionError             written by a newer holdfast
│   ├── UnsupportedError               intact, but this program or machine lacks what it takes to load it
│   ├── IntegrityError                 a digest or a size differs: damaged
│   └── ProtocolError                  a message between training and agent that makes no sense
├── NoCheckpointError (LookupError)    nothing there by that name or rule
├── RestoreError (RuntimeError)        checkpoints exist and none can be used (I12)
├── SaveFailedError (RuntimeError)     the last checkpoint did not become durable (I8)
├── RunError (OSError)                 a directory that is not, or cannot be, a run
├── RunBusyError (RuntimeError)        another live writer holds the run (I11)
├── FencedError (RuntimeError)         a newer attempt has started; this one may not write (I11)
├── NotSubmittedError (RuntimeError)   the scheduler did not take a job whose script is written
├── Stopped (RuntimeError)             asked to stop, and saved (on_stop="raise")
│   └── Interrupted (KeyboardInterrupt)   by Ctrl-C
└── StorageError (OSError)             the storage failed
    ├── NoSpaceError                   full disk, quota or no inodes
    └── BlobExistsError, BlobMissingError
"""

from collections.abc import Sequence

__all__ = [
    "BlobExistsError",
    "BlobMissingError",
    "FencedError",
    "FormatError",
    "FormatVersionError",
    "HoldfastError",
    "IntegrityError",
    "Interrupted",
    "NoCheckpointError",
    "NoSpaceError",
    "NotSubmittedError",
    "ProtocolError",
    "RestoreError",
    "RunBusyError",
    "RunError",
    "SaveFailedError",
    "StateError",
    "StateMismatchError",
    "Stopped",
    "StorageError",
    "UnsupportedError",
    "UsageError",
    "in_words",
    "printable",
]


def in_words(error: BaseException) -> str:
    """Its class and its text; one of somebody else may not even have a text."""
    try:
        text = str(error)
    except Exception:  # noqa: BLE001  what it is worth is not decided by its text
        text = "its text cannot be had"
    return f"{type(error).__name__}: {text}"


def printable(text: object) -> str:
    """The text with control characters escaped, so that a hostile name cannot forge a log line or a colour."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in str(text))


class HoldfastError(Exception):
    """What failed, on what, found and expected; `hint` says what to do next."""

    def __init__(self, message: str, *, hint: str = "") -> None:
        self.message = "\n".join(printable(line) for line in message.split("\n"))
        self.hint = printable(hint)
        # OSError formats itself from two arguments; one keeps our own text.
        super().__init__(self.message)

    def __str__(self) -> str:
        return f"{self.message}\n  hint: {self.hint}" if self.hint else self.message


class UsageError(HoldfastError, ValueError):
    """An argument, option or step that makes no sense; nothing was changed."""


class StateError(HoldfastError, TypeError):
    """The state holds something that cannot be represented; nothing was written."""


class StateMismatchError(HoldfastError, ValueError):
    """The program's state and the checkpoint differ; nothing was loaded. `problems` lists every difference."""

    def __init__(self, message: str, *, problems: Sequence[str] = (), hint: str = "") -> None:
        self.problems = tuple(problems)
        super().__init__("\n".join([message, *(f"  - {problem}" for problem in problems)]), hint=hint)


class FormatError(HoldfastError, ValueError):
    """Bytes that are not what docs/format.md says."""


class FormatVersionError(FormatError):
    """Written by a newer holdfast than this one."""


class UnsupportedError(FormatError):
    """The bytes are as they were written, but this program or machine lacks what it takes to load them."""


class IntegrityError(FormatError):
    """A digest or a size differs: the data is damaged (I4)."""


class ProtocolError(FormatError):
    """A message between the training process and its agent that makes no sense; neither acts on it."""


class NoCheckpointError(HoldfastError, LookupError):
    """There is no checkpoint by that name or rule."""


class RestoreError(HoldfastError, RuntimeError):
    """Checkpoints exist and none can be used (I12)."""


class SaveFailedError(HoldfastError, RuntimeError):
    """The last checkpoint did not become durable (I8)."""


class RunError(HoldfastError, OSError):
    """A directory that is not, or cannot be, a run."""


class RunBusyError(HoldfastError, RuntimeError):
    """Another live writer holds the run (I11)."""


class FencedError(HoldfastError, RuntimeError):
    """A newer attempt has started; this one may neither commit nor delete (I11)."""


class NotSubmittedError(HoldfastError, RuntimeError):
    """The scheduler did not take the job, or nobody knows; its script is written."""


class StorageError(HoldfastError, OSError):
    """The storage failed. `errno` is the system's number, where there was one."""

    def __init__(self, message: str, *, hint: str = "", errno: int | None = None) -> None:
        super().__init__(message, hint=hint)
        self.errno = errno


class NoSpaceError(StorageError):
    """Full disk, exhausted quota, or no inodes left."""


class BlobExistsError(StorageError):
    """The name is taken; names are never used again (I3)."""


class BlobMissingError(StorageError):
    """There is no blob of that name."""


class Stopped(HoldfastError, RuntimeError):  # noqa: N818  nothing went wrong
    """The training was asked to stop, and has been saved; of `on_stop="raise"`. `status` asks for a restart."""

    def __init__(self, message: str, *, hint: str = "", status: int = 85) -> None:
        super().__init__(message, hint=hint)
        self.status = status

    def _render_traceback_(self) -> list[str]:
        """What a notebook shows instead of a traceback: nothing went wrong."""
        return [f"holdfast: {self.message}", f"  {self.hint}"]


class Interrupted(Stopped, KeyboardInterrupt):
    """The same, by Ctrl-C or by a notebook that interrupts its kernel."""
