"""Before an attempt: whether it goes on from the files in the folder, or from those of the run."""

import logging
import os
from collections.abc import Iterable
from typing import NamedTuple

from holdfast.core.errors import RestoreError, UsageError
from holdfast.engine.file_state import SavedFile
from holdfast.supervising.apps.file_run import FileRun, Saved
from holdfast.supervising.apps.found_files import Found, FoundFiles

__all__ = ["Chosen", "choose_files"]

_log = logging.getLogger("holdfast")
_COMPARED_BYTES = 4 << 20


class Chosen(NamedTuple):
    """What an attempt goes on from."""

    found: Found | None
    """In its place; None where there is nothing, and never was (I12)."""
    is_saved: bool
    """Whether the run has it."""


def choose_files(
    run: FileRun,
    saved: Saved | None,
    files: FoundFiles,
    *,
    folder: str,
    trusted: Found | None,
    doubted: Found | None = None,
) -> Chosen:
    """What the next attempt goes on from.

    Files in the folder count where they are those of the newest checkpoint, or newer and known to be whole: as
    `trusted`, or as the recipe can tell. Where the run has none, those in the folder count, but for `doubted` ones.
    """
    here = files.now()
    if saved is None:
        return Chosen(_without_run(here, files, doubted), is_saved=False)
    wanted = _state_names(run, saved, files)
    if saved.is_older:
        return _bring_back(run, saved, files, folder, wanted)
    if here is not None and set(here.names) == set(wanted) and all(_is_same_in(folder, n, saved) for n in wanted):
        _bring_outputs(run, saved, folder, set(saved.files) - set(wanted), growing=set(files.growing()))
        return Chosen(here, is_saved=True)
    if here is not None and _is_newer(here, saved, wanted):
        if here == trusted or files.is_sound(here):
            _log.info("goes on from %s in %s, newer than the last checkpoint", ", ".join(here.names), folder)
            return Chosen(here, is_saved=False)
        _log.error("%s: newer than the last checkpoint, but not known to be whole", ", ".join(here.names))
    if here is None or _is_newer(here, saved, wanted):
        previous = files.use_previous()
        if previous is not None and _is_newer(previous, saved, wanted):
            _log.warning("goes on from the copy of the one before that the program keeps")
            return Chosen(previous, is_saved=False)
    return _bring_back(run, saved, files, folder, wanted)


def _without_run(here: Found | None, files: FoundFiles, doubted: Found | None) -> Found | None:
    if here is not None:
        is_sound = files.is_sound(here)
        if is_sound or (is_sound is None and here != doubted):
            return here
    previous = files.use_previous()
    if previous is None and here is not None:
        _log.error("%s: perhaps damaged, and there is no checkpoint to go on from", ", ".join(here.names))
        return here  # the program itself will say what is wrong with it (I12)
    return previous


def _bring_back(run: FileRun, saved: Saved, files: FoundFiles, folder: str, wanted: list[str]) -> Chosen:
    step = saved.checkpoint.step
    # What is newer must not be taken for it; what is in its place is damaged.
    newer = files.later_than(max(saved.files[name].mtime_ns for name in wanted))
    lacking = files.lacking([*wanted, *(name for name in files.all_matching() if name not in newer)])
    if lacking:  # I12: the program would start from scratch
        raise RestoreError(
            f"{run.path}: the checkpoint of step {step} lacks {', '.join(lacking)}, which the recipe wants",
            hint="use the recipe that the run was made with, or give the command a run of its own: --run",
        )
    files.put_aside([name for name in dict.fromkeys([*newer, *wanted]) if not _is_same_in(folder, name, saved)])
    others = [name for name in saved.files if name not in wanted]
    _bring_outputs(run, saved, folder, others, growing=set(files.growing()))
    run.put_back(saved, folder, [name for name in wanted if not _is_same_in(folder, name, saved)])
    _log.warning("brought %s of step %d back from %s", ", ".join(wanted), step, run.path)
    return Chosen(files.now(), is_saved=True)


def _state_names(run: FileRun, saved: Saved, files: FoundFiles) -> list[str]:
    """Those of the checkpoint that a restart needs: the patterns of the recipe say which."""
    names = [name for name in saved.files if files.is_state(name)]
    if not names:
        raise UsageError(
            f"{run.path} holds other files than this command writes: {', '.join(list(saved.files)[:5])}",
            hint="give the command a run of its own: --run",
        )
    return names


def _bring_outputs(run: FileRun, saved: Saved, folder: str, names: Iterable[str], *, growing: set[str]) -> None:
    """What goes with the state. An output that has grown since stays: the program cuts it itself."""
    lacking = [
        name
        for name in names
        if not _is_like(os.path.join(folder, name), saved.files[name], may_be_longer=name in growing)
    ]
    if lacking:
        run.put_back(saved, folder, lacking)
        _log.warning("brought %s of step %d back from %s", ", ".join(lacking), saved.checkpoint.step, run.path)


def _is_newer(here: Found, saved: Saved, wanted: list[str]) -> bool:
    return here.newest_ns > max(saved.files[name].mtime_ns for name in wanted)


def _is_same_in(folder: str, name: str, saved: Saved) -> bool:
    return name in saved.files and _is_like(os.path.join(folder, name), saved.files[name], may_be_longer=False)


def _is_like(path: str, saved: SavedFile, *, may_be_longer: bool) -> bool:
    """Byte by byte: a disk that lies does not change a file's time."""
    try:
        with open(path, "rb") as file:
            size_bytes = os.fstat(file.fileno()).st_size
            if size_bytes < saved.data.size or (size_bytes > saved.data.size and not may_be_longer):
                return False
            for begin in range(0, saved.data.size, _COMPARED_BYTES):
                expected = saved.data[begin : begin + _COMPARED_BYTES]
                if file.read(len(expected)) != expected.tobytes():
                    return False
    except OSError:
        return False
    return True
