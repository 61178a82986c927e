"""Which checkpoint the KIT class goes on from: the local file, its run, or what was transferred."""

import logging
from pathlib import Path

from holdfast.core.errors import RestoreError
from holdfast.doors.kit_catalogue import Catalogue, Known
from holdfast.doors.kit_files import aside, digest_of, put_in_place, read_note, set_aside
from holdfast.doors.kit_transfer import Transfer

__all__ = ["bring_local"]

_log = logging.getLogger("holdfast")


def bring_local(file: Path, catalogue: Catalogue, transfer: Transfer) -> bool:
    """Have the newest good checkpoint in the file, verified where anything is known of it; or no file.

    Whether that is what was transferred; otherwise it is newer, or nothing was.
    """
    if transfer.catalogue is not None:
        return _from_storage(file, transfer.catalogue, transfer)
    known = catalogue.known()
    with aside(file) as folder:
        fetched = folder / file.name
        if not transfer.fetch(fetched):
            catalogue.transferred = ""
            _from_run(file, catalogue, known)
            return False
        catalogue.transferred = digest = digest_of(fetched)
        place = _place(known, digest)
        if place == 0:
            put_in_place(fetched, file)
            catalogue.resume(known[0].checkpoint)
            return True
        if place is not None or _is_before(known, digest):
            _log.warning("what was transferred is older than what %s has: that is used", catalogue.path)
            try:
                _from_run(file, catalogue, known)
            except RestoreError as error:
                if not all(one.checkpoint.quarantined for one in catalogue.known()):
                    raise  # not damaged, but out of reach for now
                _log.error("what was transferred is used, though it is older: %s", error.message)
            else:
                return False
        # Transferred by a job elsewhere: what this machine has is of another time. Or nothing here is good.
        put_in_place(fetched, file)
        catalogue.start_over()
        return True


def _from_run(file: Path, catalogue: Catalogue, known: list[Known]) -> None:
    """The file, if it is what the run has saved last; otherwise the run's."""
    if not known:
        return  # nothing is known of the file: as the original class left it, or HTCondor brought it
    if file.exists():
        place = _place(known, digest_of(file))
        if place == 0:
            catalogue.resume(known[0].checkpoint)
            return
        if place is None:
            other = set_aside(file)
            _log.error(
                "%s is not what was saved: damaged, or changed by somebody; it is %s now, and the run's is used",
                file,
                other.name,
            )
    else:
        _log.warning("%s is missing: brought back from %s; to start over, remove that, too", file, catalogue.path)
    catalogue.bring_back(file)


def _from_storage(file: Path, catalogue: Catalogue, transfer: Transfer) -> bool:
    """Where the run is in the storage: of the local file, a note says what it is."""
    known = catalogue.known()
    if known and file.exists() and _is_current(file, known):
        catalogue.resume(known[0].checkpoint)
        return digest_of(file) == known[0].digest
    if not known and file.exists() and _is_after_nothing(file):
        _log.warning("%s was never transferred; the job goes on from it", file)
        return False
    with aside(file) as folder:
        if transfer.fetch(folder / file.name):
            put_in_place(folder / file.name, file)
            return True
    return False


def _is_after_nothing(file: Path) -> bool:
    """Whether it was made here, is intact, and nothing that the run knows had been transferred before it."""
    note = read_note(file)
    return note is not None and not note.after and note.digest == digest_of(file)


def _is_current(file: Path, known: list[Known]) -> bool:
    """Whether it is what was transferred last, or was made after that, by this job on this machine, and is intact."""
    digest, note = digest_of(file), read_note(file)
    place = _place(known, digest)
    if place is None and (note is None or note.digest != digest):
        other = set_aside(file)
        _log.warning("%s is not what was saved here: it is %s now, and what was transferred is used", file, other.name)
        return False
    if place is None and note is not None and note.after == known[0].digest:
        _log.warning("%s was not transferred any more; the job goes on from it", file)
        return True
    return place == 0


def _is_before(known: list[Known], digest: str) -> bool:
    """Whether the newest one that can be read was made when that had been transferred last, by whomever."""
    return next((one.after == digest for one in known if one.digest), False)


def _place(known: list[Known], digest: str) -> int | None:
    """How many are newer; None where none of them is it."""
    return next((index for index, one in enumerate(known) if one.digest == digest), None)
