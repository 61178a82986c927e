"""Who a run is: its marker, made once, and what to do when the marker itself is damaged."""

import json

from holdfast.core.clock import Clock, utc_text
from holdfast.core.errors import (
    BlobExistsError,
    BlobMissingError,
    FencedError,
    FormatError,
    FormatVersionError,
    IntegrityError,
    RunError,
    StorageError,
)
from holdfast.core.limits import MAX_HEAD_BYTES, MAX_SMALL_BLOB_BYTES
from holdfast.core.names import JOURNAL_NAME, LOCK_NAME, MANIFEST_NAME, MARKER_NAME, parse_checkpoint_id
from holdfast.format.head import FORMAT_VERSION, decode_head, digest_hex, split_head
from holdfast.storage.store import Store

__all__ = ["check_run", "find_marker_fault", "found_run", "identify"]

_DIGEST_OPEN = b'"blake3":"'
_MAY_PRECEDE_MARKER = {LOCK_NAME, JOURNAL_NAME}


def identify(store: Store) -> str:
    """The id of the run in the store; RunError where there is none, FormatVersionError where it is newer."""
    where = f"{store.location}/{MARKER_NAME}"
    try:
        return _decode_marker(store.read(MARKER_NAME, MAX_SMALL_BLOB_BYTES), where)
    except FormatVersionError:
        raise
    except (FormatError, BlobMissingError) as error:
        run_id = _recover(store)
        if run_id is None and isinstance(error, BlobMissingError):
            raise RunError(
                f"{store.location} is not a run: it has no {MARKER_NAME}",
                hint="name the directory that was given to Checkpointer(...)",
            ) from error
        if run_id is None:
            raise
        import logging  # rare; kept off the start of `holdfast ls`, as uuid below

        log = logging.getLogger("holdfast")
        log.warning("%s; all checkpoints agree that this is run %s, so it is used", error.message, run_id)
        return run_id


def found_run(store: Store, clock: Clock) -> str:
    """The id of the run in the store; a new one where the store is empty, RunError where it holds something else."""
    try:
        return identify(store)
    except RunError as no_marker:
        foreign = [entry.name for entry in store.list() if entry.name not in _MAY_PRECEDE_MARKER]
        if foreign:
            raise RunError(
                f"{store.location} is not a run and not empty: it holds {', '.join(map(repr, foreign[:3]))}"
                + (f" and {len(foreign) - 3} more" if len(foreign) > 3 else ""),
                hint="give the run a directory of its own, for example a new one inside it",
            ) from no_marker
    import uuid

    run_id = uuid.uuid4().hex
    try:
        store.publish(MARKER_NAME, _encode_marker(run_id, clock))
    except BlobExistsError:
        return identify(store)  # somebody else was a moment faster
    return run_id


def check_run(store: Store, run_id: str) -> None:
    """FencedError once the directory is another run: somebody emptied it, and began anew there (I11).

    To be called with the run's lock held, before something is committed, removed or begun.
    """
    where = f"{store.location}/{MARKER_NAME}"
    try:
        found = _decode_marker(store.read(MARKER_NAME, MAX_SMALL_BLOB_BYTES), where)
    except FormatVersionError:
        raise  # another one, and a newer one
    except (FormatError, StorageError):
        return  # a marker that is lost or damaged is nobody else's
    if found != run_id:
        raise FencedError(
            f"{store.location} is another run by now (id {found}, this process writes {run_id})",
            hint="stop this process: its directory was emptied, and is written by another one",
        )


def find_marker_fault(store: Store) -> str:
    """What is wrong with the marker of a run that is used all the same; empty where nothing is."""
    try:
        _decode_marker(store.read(MARKER_NAME, MAX_SMALL_BLOB_BYTES), MARKER_NAME)
    except BlobMissingError:
        return f"{MARKER_NAME} is missing"
    except FormatError as error:
        return error.message
    return ""


def _encode_marker(run_id: str, clock: Clock) -> bytes:
    fields = {"format": FORMAT_VERSION, "run": run_id, "created": utc_text(clock.utc_s())}
    covered = json.dumps(fields).encode()[:-1] + b",\n"
    return covered + _DIGEST_OPEN + digest_hex(covered).encode() + b'"}\n'


def _decode_marker(data: bytes, where: str) -> str:
    cut = data.rfind(_DIGEST_OPEN)
    try:
        fields = json.loads(data.decode())
        version, run_id = fields["format"], fields["run"]
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise IntegrityError(f"{where}: the marker is damaged ({type(error).__name__})") from error
    if type(version) is int and version > FORMAT_VERSION:
        raise FormatVersionError(
            f"{where}: a run of format {version}, this holdfast reads up to {FORMAT_VERSION}",
            hint="use a newer holdfast: pip install -U holdfast",
        )
    if cut < 0 or data[cut:] != _DIGEST_OPEN + digest_hex(data[:cut]).encode() + b'"}\n' or type(run_id) is not str:
        raise IntegrityError(f"{where}: the marker differs from its digest")
    return run_id


def _recover(store: Store) -> str | None:
    """The run's id as all readable manifests have it; None where they disagree or there is none."""
    groups = [entry.name for entry in store.list() if entry.is_group and parse_checkpoint_id(entry.name)]
    found = set()
    for group, start in zip(groups, store.list_heads(groups, MANIFEST_NAME, MAX_HEAD_BYTES), strict=True):
        if start is None:
            continue
        try:
            head, _ = split_head(start, group)
            found.add(decode_head(head, where=group, checkpoint_id=group, run_id=None)[1])
        except FormatError:
            continue
    return found.pop() if len(found) == 1 else None
