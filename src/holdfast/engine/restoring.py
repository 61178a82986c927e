"""Restore: choose a checkpoint, verify, load; on damage fall back to the next older one, loudly."""

import logging
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import NamedTuple, Protocol, TypeVar, cast

from holdfast.core.errors import (
    BlobMissingError,
    FormatError,
    FormatVersionError,
    HoldfastError,
    NoCheckpointError,
    RestoreError,
    StateMismatchError,
    StorageError,
    UnsupportedError,
    printable,
)
from holdfast.core.values import DISK, MEMORY, Checkpoint
from holdfast.engine.attempts import check_fence
from holdfast.engine.catalog import Catalog, read_catalog
from holdfast.engine.identity import check_run
from holdfast.engine.journal import Event, read_events
from holdfast.engine.loading import Fillable, Source, fill, leaf_infos, read_manifest
from holdfast.engine.marks import DAMAGED, QUARANTINED, VERIFIED, clear_mark, set_mark
from holdfast.engine.provenance import Drift, Provenance, compare_provenance
from holdfast.engine.randomness import restore_random
from holdfast.engine.session import Session
from holdfast.engine.snapshots import Snapshot, with_snapshots
from holdfast.format.arrays import Destination, LeafInfo
from holdfast.format.decode import Plan as BuiltPlan
from holdfast.format.decode import build
from holdfast.format.manifest import Body, Manifest
from holdfast.policy.lineage import best_in_words, choose, in_order
from holdfast.storage.store import Store

__all__ = [
    "RULES",
    "Choice",
    "Loaded",
    "MakePlan",
    "Plan",
    "TreePlan",
    "find_candidates",
    "restore_session",
    "try_candidates",
]

_log = logging.getLogger("holdfast")
_T = TypeVar("_T")

_MAX_NAMED = 10

RULES = ("latest", "healthy", "best")
"""Choices that name no checkpoint: where there is none yet, nothing is restored."""


class Choice(NamedTuple):
    """Which checkpoint is wanted."""

    which: str | int = "latest"
    by: str | None = None
    mode: str = "min"
    suspect_after: int | None = None
    """Skip the latest one once it was restored this often without a newer one following."""


class Loaded(NamedTuple):
    """What a restore did."""

    checkpoint: Checkpoint
    drift: list[Drift]
    skipped: list[str]
    value: object
    """The tree, for programs that keep no state in place."""
    where: str
    """What it was read from."""
    ledger: object = None
    """That of the checkpoint, as its manifest has it."""


class Plan(Protocol):
    """Where the leaves of a checkpoint go, and what happens once they are there."""

    @property
    def destinations(self) -> list[Destination]: ...

    @property
    def skipped(self) -> Sequence[str]: ...

    @property
    def unknown_classes(self) -> Mapping[str, str]: ...

    def apply(self) -> object: ...


MakePlan = Callable[[Manifest, Sequence[LeafInfo]], Plan]
"""The plan for a checkpoint; StateMismatchError where it cannot be loaded as it is."""


class TreePlan:
    """The plan for a tree in new memory, as a plan for restoring."""

    skipped: Sequence[str] = ()
    unknown_classes: Mapping[str, str] = MappingProxyType({})
    """None to be told of: Records are what one expects of a tree without a program."""

    def __init__(self, tree: BuiltPlan) -> None:
        self.destinations = tree.destinations
        self.apply = tree.value


def restore_session(
    session: Session,
    choice: Choice,
    make_plan: MakePlan,
    *,
    with_random: bool,
    provenance: Provenance,
    hyperparameters: object,
    is_touched: Callable[[], bool],
    on_touch: Callable[[], None],
    snapshots: Mapping[str, Snapshot],
) -> Loaded | None:
    """Load the chosen checkpoint as the plan says; None where the run has none yet.

    `on_touch` runs before the first byte of the program's state changes, and perhaps again; `is_touched` says whether
    one has changed that no restore has made good yet.
    """
    source = Source(session.store, session.run_id, session.pool, session.workers)

    def load(checkpoint: Checkpoint) -> Loaded:
        snapshot = snapshots.get(checkpoint.id)
        # Asked once: what its copy in memory was partly read into is what its copy on the disk replaces.
        after_another = is_touched()
        if snapshot is not None:
            try:
                in_memory = source._replace(store=cast("Store", snapshot.store))
                return load_from(in_memory, checkpoint, MEMORY, after_another=after_another)
            except (FormatError, StorageError) as error:
                if DISK not in checkpoint.where:
                    raise
                _log.error("step %d is damaged in memory, and read from the disk: %s", checkpoint.step, error.message)
        return load_from(source, checkpoint, DISK, after_another=after_another)

    def load_from(source: Source, checkpoint: Checkpoint, where: str, *, after_another: bool) -> Loaded:
        manifest = read_manifest(source, checkpoint.id, staged=where == MEMORY)
        body = manifest.body
        leaves = leaf_infos(body)
        plan = _replace_all(make_plan, manifest, leaves) if after_another else make_plan(manifest, leaves)
        random_plan = build(body.random, leaves) if with_random and body.random is not None else None
        if session.seq > 0:
            # I11: who cannot begin another attempt afterwards leaves the state as it is.
            check_run(session.store, session.run_id)
            check_fence(session.store, session.attempt)
        # Written before the state is touched: a checkpoint that kills its reader must be counted, too.
        session.journal.record("restoring", durable=True, id=checkpoint.id, step=checkpoint.step)
        fill(source, manifest, *((plan,) if random_plan is None else (plan, random_plan)), on_touch=on_touch)
        on_touch()  # a state may have no arrays
        value = plan.apply()
        _report_unknown_classes(plan.unknown_classes)
        left = [] if random_plan is None else restore_random(random_plan.value())
        if left:
            _log.warning("the random state of %s is in the checkpoint, but cannot be restored here", ", ".join(left))
        if where == DISK and not checkpoint.verified and _covers_everything(body, plan, random_plan):
            _note_verified(session, checkpoint)
        drift = _drift(manifest, provenance(), hyperparameters)
        skipped = [*plan.skipped, *(f"the random state of {name}: not restored" for name in left)]
        return Loaded(checkpoint, drift, skipped, value, where, body.ledger)

    events = read_events(session.store)
    catalog = with_snapshots(session.catalog(), snapshots, events)
    candidates = _candidates(catalog, choice, session.store, events)
    if candidates is None:
        return None
    loaded = try_candidates(
        session.store,
        candidates,
        load,
        is_named=choice.which not in RULES,
        on_damage=lambda checkpoint, reason: (
            _quarantine(session, checkpoint, reason) if DISK in checkpoint.where else None
        ),
    )
    if session.seq > 0:
        session.roll_back()
    session.resume_from(loaded.checkpoint)
    session.journal.record("restored", id=loaded.checkpoint.id, step=loaded.checkpoint.step, where=loaded.where)
    return loaded


def find_candidates(store: Store, run_id: str, choice: Choice) -> list[Checkpoint] | None:
    """The checkpoints to try for somebody who only reads; None where the run has none yet."""
    return _candidates(read_catalog(store, run_id), choice, store, events=())


def try_candidates(
    store: Store,
    candidates: Sequence[Checkpoint],
    load: Callable[[Checkpoint], _T],
    *,
    on_damage: Callable[[Checkpoint, str], None],
    is_named: bool = False,
) -> _T:
    """What the first loadable candidate gives. Damage is reported; RestoreError where all of them are damaged (I12).

    `is_named`: one checkpoint was asked for, and not a rule, so the run may have others than the candidates.
    """
    failures: list[str] = []
    for checkpoint in candidates:
        try:
            result = load(checkpoint)
        except (FormatVersionError, UnsupportedError):
            raise  # not damaged: an older one would not do better, and quarantine would outlast the cause
        except BlobMissingError:
            # No manifest any more: a retention rule removed it while we were looking. That is not damage.
            failures.append(f"{checkpoint.id} was removed meanwhile")
            continue
        except (FormatError, StorageError) as error:
            failures.append(error.message if checkpoint.id in error.message else f"{checkpoint.id}: {error.message}")
            _log.error("step %d cannot be used: %s", checkpoint.step, error.message)
            if isinstance(error, FormatError):
                on_damage(checkpoint, error.message)
            continue
        if failures:
            _log.error("fell back to the checkpoint of step %d (%s)", checkpoint.step, checkpoint.id)
        return result
    what = f"none of {len(candidates)} checkpoints can be used"
    then = "to start over, use a new directory"
    if is_named:
        older = f", and none of {len(candidates) - 1} older" if len(candidates) > 1 else ""
        what = f"the checkpoint that was named cannot be used{older}"
        then = f"`holdfast ls {store.location}` lists what else there is to choose"
    raise RestoreError(
        f"{store.location}: {what}:\n  " + "\n  ".join(failures or ["all are quarantined"]),
        hint=f"holdfast verify {store.location} --all says what is damaged; {then}",
    )


def _candidates(catalog: Catalog, choice: Choice, store: Store, events: Sequence[Event]) -> list[Checkpoint] | None:
    if not catalog.checkpoints:
        if choice.which in RULES:
            _report_vanished(store, events)
            return None
        raise NoCheckpointError(f"{store.location} has no checkpoint yet, so there is no {choice.which!r}")
    unusable = [checkpoint for checkpoint in catalog.checkpoints if checkpoint.quarantined]
    if len(unusable) == len(catalog.checkpoints) and choice.which in RULES:
        raise RestoreError(
            f"{store.location}: none of {len(unusable)} checkpoints can be used:\n  "
            + "\n  ".join(f"{checkpoint.id}: {checkpoint.quarantined}" for checkpoint in unusable),
            hint=f"holdfast verify {store.location} --all checks again; to start over, use a new directory",
        )
    candidates = choose(catalog.checkpoints, choice.which, by=choice.by, mode=choice.mode, where=store.location)
    if choice.which == "best":
        said = best_in_words(candidates[0], by=choice.by, mode=choice.mode)
        _log.info("best is step %d: %s", candidates[0].step, said)
    if choice.which == "healthy":
        _report_passed_over(candidates[0], catalog.checkpoints)
    if choice.which == "latest":
        _report_skipped(candidates[0], unusable)
        candidates = _without_suspect(candidates, choice.suspect_after, events)
    return candidates


def _report_vanished(store: Store, events: Sequence[Event]) -> None:
    """Say it if a run without checkpoints once had some: nobody starts from scratch silently (I12)."""
    committed = [event for event in events if event["event"] == "committed"]
    if committed:
        _log.error(
            "%s has no checkpoint any more, though its journal tells of %d, the last at step %s: starting from scratch",
            store.location,
            len(committed),
            committed[-1].get("step"),
        )


def _report_passed_over(chosen: Checkpoint, checkpoints: Sequence[Checkpoint]) -> None:
    ordered = in_order(checkpoints)
    for checkpoint in ordered[ordered.index(chosen) + 1 :]:
        if checkpoint.suspect:
            _log.warning("step %d is suspect and passed over: %s", checkpoint.step, checkpoint.suspect)


def _report_skipped(chosen: Checkpoint, unusable: Sequence[Checkpoint]) -> None:
    ordered = [checkpoint.id for checkpoint in in_order([chosen, *unusable])]
    newer = set(ordered[ordered.index(chosen.id) + 1 :])
    for checkpoint in unusable:
        if checkpoint.id in newer:
            _log.error("step %d is quarantined and skipped: %s", checkpoint.step, checkpoint.quarantined)


def _without_suspect(
    candidates: list[Checkpoint], suspect_after: int | None, events: Sequence[Event]
) -> list[Checkpoint]:
    """The candidates with a suspected first one moved to the end: it is still better than nothing (I12)."""
    if suspect_after is None or len(candidates) < 2:
        return candidates
    suspects = [candidate for candidate in candidates if _fruitless(candidate.id, events) >= suspect_after]
    for suspect in suspects:
        _log.error(
            "step %d was restored %d times without a newer checkpoint following: suspected, an older one is tried first"
            " (suspect_after=None, or restore(which=%r), uses it all the same)",
            suspect.step,
            _fruitless(suspect.id, events),
            suspect.id,
        )
    return [candidate for candidate in candidates if candidate not in suspects] + suspects


def _fruitless(checkpoint_id: str, events: Sequence[Event]) -> int:
    """How often it was restored since the last commit, or since a program came to an end by itself."""
    count = 0
    for event in events:
        kind = event["event"]
        if kind in ("committed", "stopped") or (kind == "closed" and event.get("clean") is True):
            count = 0  # it led somewhere, or the program had nothing left to do, or no time left to do it
        elif kind == "restoring" and event.get("id") == checkpoint_id:
            count += 1
    return count


def _report_unknown_classes(places: Mapping[str, str]) -> None:
    if not places:
        return
    named = [
        f"{printable(name)[:100]} (at {printable(place)[:100]})" for name, place in list(places.items())[:_MAX_NAMED]
    ]
    more = f" and {len(places) - _MAX_NAMED} more" if len(places) > _MAX_NAMED else ""
    _log.warning(
        "objects came back as holdfast.Record, since the program has none like them there: %s%s;"
        " put @holdfast.register before their classes, to get the objects themselves",
        ", ".join(named),
        more,
    )


def _replace_all(make_plan: MakePlan, manifest: Manifest, leaves: Sequence[LeafInfo]) -> Plan:
    """The plan for a state that a damaged checkpoint was partly read into; RestoreError where some of it would stay."""
    try:
        plan = make_plan(manifest, leaves)
    except StateMismatchError as error:
        raise _would_stay(error.problems or [error.message]) from error
    if plan.skipped:
        raise _would_stay(plan.skipped)
    return plan


def _would_stay(parts: Sequence[str]) -> RestoreError:
    return RestoreError(
        "an older checkpoint does not replace all that a damaged one was partly read into:\n  " + "\n  ".join(parts),
        hint="start the program again: the damaged one is quarantined now, and not read any more",
    )


def _covers_everything(body: Body, *plans: Fillable | None) -> bool:
    """Whether every leaf with bytes was read, and so every byte of the data checked."""
    read = {destination.leaf for plan in plans if plan is not None for destination in plan.destinations}
    return all(index in read or leaf.begin == leaf.end for index, leaf in enumerate(body.leaves))


def _note_verified(session: Session, checkpoint: Checkpoint) -> None:
    _mark(session, checkpoint, VERIFIED, "restored")
    if checkpoint.damaged:
        try:
            clear_mark(session.store, checkpoint.id, DAMAGED)
        except HoldfastError as error:
            _log.warning("%s is intact, but stays marked as damaged: %s", checkpoint.id, error.message)


def _quarantine(session: Session, checkpoint: Checkpoint, reason: str) -> None:
    session.journal.record("quarantined", id=checkpoint.id, reason=reason)
    _mark(session, checkpoint, QUARANTINED, reason)


def _mark(session: Session, checkpoint: Checkpoint, kind: str, reason: str) -> None:
    try:
        set_mark(session.store, checkpoint.id, kind, reason=reason, clock=session.clock)
    except HoldfastError as error:
        # On a full or read-only disk the restore matters more than the mark.
        _log.warning("%s cannot be marked %s: %s", checkpoint.id, kind, error.message)


def _drift(manifest: Manifest, provenance: Mapping[str, object], hyperparameters: object) -> list[Drift]:
    drifts = compare_provenance(manifest.body.provenance, provenance)
    before, after = manifest.body.hyperparameters, hyperparameters
    if before != after:
        drifts += compare_provenance({"hyperparameters": before}, {"hyperparameters": after})
    return drifts
