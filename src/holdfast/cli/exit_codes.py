"""What the command's exit status means: one table, and which error belongs to which line of it."""

from holdfast.core.errors import (
    BlobExistsError,
    BlobMissingError,
    FencedError,
    FormatError,
    NoCheckpointError,
    NotSubmittedError,
    RestoreError,
    RunBusyError,
    RunError,
    StateError,
    StateMismatchError,
    Stopped,
    StorageError,
    UsageError,
)

__all__ = ["BROKEN_PIPE", "EXIT_CODES", "NO", "OK", "STORAGE", "UNEXPECTED", "USAGE", "code_of"]

OK = 0
NO = 1
USAGE = 2
MISSING = 3
DAMAGED = 4
BUSY = 5
STORAGE = 6
UNEXPECTED = 70
INTERRUPTED = 130
BROKEN_PIPE = 141

EXIT_CODES = {
    OK: "done; or the answer is yes: intact, equal, no problems",
    NO: "the answer is no: damaged, different, problems found, refused, or not confirmed",
    USAGE: "the command line makes no sense; nothing was changed",
    MISSING: "there is no such run, checkpoint, file or directory, or it is not one that may be used",
    DAMAGED: "data that cannot be read for what it should be: damaged, of a newer format, or not convertible",
    BUSY: "another process writes the run, or has taken it over",
    STORAGE: "the storage failed: full, read-only, no permission, an error of the device",
    UNEXPECTED: "a fault of holdfast itself; HOLDFAST_DEBUG=1 shows where",
    INTERRUPTED: "interrupted with Ctrl-C",
    BROKEN_PIPE: "whoever read the output went away before its end",
}

# The first that fits.
_OF_ERRORS: tuple[tuple[type[Exception], int], ...] = (
    (UsageError, USAGE),
    (BlobExistsError, USAGE),  # a file that an export would overwrite
    (BlobMissingError, MISSING),
    (NoCheckpointError, MISSING),
    (RunError, MISSING),
    (FormatError, DAMAGED),
    (RestoreError, DAMAGED),
    (StateError, DAMAGED),
    (StateMismatchError, DAMAGED),
    (RunBusyError, BUSY),
    (FencedError, BUSY),
    (StorageError, STORAGE),
    (NotSubmittedError, NO),
    (Stopped, INTERRUPTED),
)


def code_of(error: Exception) -> int:
    """The exit status for an error of ours."""
    return next((code for kind, code in _OF_ERRORS if isinstance(error, kind)), UNEXPECTED)
