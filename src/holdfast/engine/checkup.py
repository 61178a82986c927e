"""The state of a run's own files: what crashes left behind, what cannot be read, what was never verified."""

import json
from collections.abc import Iterator

from holdfast.core.names import ATTEMPTS_DIR, JOURNAL_NAME, MARKER_NAME, MARKS_DIR
from holdfast.engine.catalog import Catalog, read_catalog
from holdfast.engine.doctor import OK, WARN, Finding
from holdfast.engine.holders import is_being_written, latest_holder
from holdfast.engine.identity import find_marker_fault
from holdfast.engine.marks import list_marks
from holdfast.storage.store import Store

__all__ = ["examine_run"]

_JOURNAL_BYTES = 64 << 20
_KNOWN = {MARKER_NAME, JOURNAL_NAME, ATTEMPTS_DIR, MARKS_DIR}


def examine_run(store: Store, run_id: str) -> Iterator[Finding]:
    """What a look at the run's files tells, without reading its data."""
    catalog = read_catalog(store, run_id)
    yield _marker(store, run_id)
    yield _writer(store)
    yield _checkpoints(store, catalog)
    yield _verified(store, catalog)
    yield _garbage(store, catalog)
    yield _strangers(store, catalog)
    yield _journal(store)


def _marker(store: Store, run_id: str) -> Finding:
    fault = find_marker_fault(store)
    if not fault:
        return Finding("marker", OK, f"run {run_id}")
    # A copy has the same one, byte for byte.
    advice = (
        f"used as long as a checkpoint can be read; a copy of the run (holdfast cp) has a {MARKER_NAME} to put back"
    )
    return Finding("marker", WARN, f"{fault}; its checkpoints agree that this is run {run_id}", advice)


def _writer(store: Store) -> Finding:
    holder = latest_holder(store)
    if holder is None:
        return Finding("writer", OK, "none yet")
    return Finding("writer", OK, f"{'now' if holder.alive else 'none; the last was'} {holder}")


def _checkpoints(store: Store, catalog: Catalog) -> Finding:
    bad = [checkpoint for checkpoint in catalog.checkpoints if not checkpoint.is_sound]
    if not bad:
        return Finding("checkpoints", OK, f"{len(catalog.checkpoints)}, none quarantined")
    quarantined = sum(bool(checkpoint.quarantined) for checkpoint in bad)
    counts = {"quarantined": quarantined, "found damaged": len(bad) - quarantined}
    found = ", ".join([f"{len(catalog.checkpoints)}", *(f"{n} of them {what}" for what, n in counts.items() if n)])
    more = f"`holdfast verify {store.location} --all` says more, `holdfast rm {store.location} {bad[-1].id}` removes it"
    advice = f"step {bad[-1].step}: {bad[-1].quarantined or bad[-1].damaged}; {more}"
    return Finding("checkpoints", WARN, found, advice)


def _verified(store: Store, catalog: Catalog) -> Finding:
    usable = [checkpoint for checkpoint in catalog.checkpoints if checkpoint.is_sound]
    if catalog.checkpoints and not usable:
        # I12: a restart raises, it does not begin anew.
        advice = "a restart fails, unless one of them is found intact; a copy of the run (holdfast cp) may have some"
        return Finding("verified", WARN, "none is left that is not damaged or quarantined", advice)
    count = sum(checkpoint.verified for checkpoint in usable)
    if usable and not count:
        advice = f"read them back once: holdfast verify {store.location} --all"
        return Finding("verified", WARN, f"none of {len(usable)}", advice)
    return Finding("verified", OK, f"{count} of {len(usable)}")


def _garbage(store: Store, catalog: Catalog) -> Finding:
    holder = latest_holder(store)
    if not catalog.garbage:
        return Finding("leftovers", OK, "none")
    if holder is not None and is_being_written(store, holder.attempt):
        return Finding("leftovers", OK, f"{len(catalog.garbage)} without a manifest; the writer may be at work there")
    count = len(catalog.garbage)
    advice = f"of a crash: the next save or `holdfast prune {store.location} --garbage` cleans up"
    found = f"{count} {'directory' if count == 1 else 'directories'} without a manifest"
    return Finding("leftovers", WARN, found, advice)


def _strangers(store: Store, catalog: Catalog) -> Finding:
    known = {*_KNOWN, *catalog.garbage, *(checkpoint.id for checkpoint in catalog.checkpoints)}
    strange = [entry.name for entry in store.list() if entry.name not in known]
    gone = set().union(*list_marks(store).values()) - known
    if strange:
        return Finding("other files", WARN, ", ".join(strange[:3]), "holdfast did not make them and leaves them alone")
    if gone:
        return Finding("other files", OK, f"marks of {_counted(len(gone), 'removed checkpoint')}, harmless")
    return Finding("other files", OK, "none")


def _journal(store: Store) -> Finding:
    lines = [line for line in store.read_tail(JOURNAL_NAME, _JOURNAL_BYTES).split(b"\n") if line]
    damaged = sum(not _is_event(line) for line in lines)
    if damaged:
        advice = "harmless: a crash tears the last line; the journal is for people and never trusted"
        found = f"{damaged} of {_counted(len(lines), 'line')} damaged"
        return Finding("journal", WARN if damaged > 1 else OK, found, advice)
    return Finding("journal", OK, _counted(len(lines), "event"))


def _counted(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def _is_event(line: bytes) -> bool:
    try:
        return isinstance(json.loads(line), dict)
    except (ValueError, RecursionError):
        return False
