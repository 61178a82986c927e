"""Deliberately broken variants of holdfast, and the part of the rig that must catch each.

A rig that finds nothing proves nothing until it has found these.
"""

import itertools
import tempfile
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple
from unittest.mock import patch

from holdfast import native
from holdfast.agent import worker
from holdfast.agent.messages import Durable, Write
from holdfast.core.errors import HoldfastError
from holdfast.core.names import MANIFEST_NAME
from holdfast.core.values import Checkpoint
from holdfast.engine import ahead, reading, session, writing
from holdfast.engine import catalog as catalog_module
from holdfast.engine import persist_image as persist_image_module
from holdfast.engine.commit import remove_checkpoint
from holdfast.engine.journal import read_events
from holdfast.format import manifest as manifest_module
from holdfast.format.manifest import ShardRecord
from holdfast.storage import posix_writer
from holdfast.storage.files import Files
from holdfast.storage.posix import PosixStore
from holdfast.storage.store import Store
from holdfast.testing.store_suite import OpenStore, check_store
from holdfast.tiers.slot import Slot
from tests.crash.agent_sequences import AGENT_SEQUENCES
from tests.crash.children import Tell, listen, start
from tests.crash.damage import flip_every_bit, replace_every_file
from tests.crash.explore import explore
from tests.crash.fuzz import fuzz
from tests.crash.interference import interfere
from tests.crash.memory_damage import flip_bits_in_memory
from tests.crash.native_damage import damage_natively, damage_natively_in_memory
from tests.crash.outcome import Outcome, Progress
from tests.crash.power import cut_many
from tests.crash.slices import WHOLE, Slice
from tests.crash.sweep import sweep

__all__ = ["CATCHERS", "MUTANTS", "Mutant", "catch_all", "try_mutant"]

_SEED = 7
_DEADLINE_S = 300.0


class Mutant(NamedTuple):
    """What is broken, how, and who must notice."""

    name: str
    break_it: Callable[[], None]
    caught_by: str
    promise: str


class _Agreeable(str):
    """A sum that is equal to every other."""

    def __eq__(self, other: object) -> bool:
        return True

    def __ne__(self, other: object) -> bool:
        return False

    __hash__ = str.__hash__


def _replace(owner: object, name: str, by: object) -> None:
    # A variant that replaces what nothing calls any more is not broken: it would escape for the wrong reason.
    assert hasattr(owner, name), f"{owner} has no {name}"
    setattr(owner, name, by)


class _Between:
    """Sits between the store and its files, and does one thing wrong; passes on the rest."""

    def __init__(self, inner: Files) -> None:
        self._inner = inner

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)


def _put_between(broken: type[_Between]) -> None:
    original = PosixStore.__init__

    def begin(self: PosixStore, *arguments: Any, files: Files | None = None, **options: Any) -> None:
        original(self, *arguments, files=broken(files or Files()), **options)  # type: ignore[arg-type]

    _replace(PosixStore, "__init__", begin)


def _no_directory_sync() -> None:
    class Broken(_Between):
        def sync_dir(self, descriptor: int) -> None:
            pass

    _put_between(Broken)


def _no_parent_sync() -> None:
    class Broken(_Between):
        _roots: set[int] = set()  # noqa: RUF012 - shared on purpose: one process, one run at a time

        def open_root(self, path: str) -> int:
            descriptor = self._inner.open_root(path)
            self._roots.add(descriptor)
            return descriptor

        def close(self, descriptor: int) -> None:
            self._roots.discard(descriptor)
            self._inner.close(descriptor)

        def sync_dir(self, descriptor: int) -> None:
            if descriptor not in self._roots:
                self._inner.sync_dir(descriptor)

    _put_between(Broken)


def _no_file_sync() -> None:
    class Broken(_Between):
        def sync(self, descriptor: int) -> None:
            pass

    _put_between(Broken)


def _acknowledge_before_sync() -> None:
    class Broken(_Between):
        """Every sync happens when the next one is asked for."""

        _late: Callable[[], None] = staticmethod(lambda: None)

        def sync_dir(self, descriptor: int) -> None:
            self._late()
            self._late = lambda: _quietly(self._inner.sync_dir, descriptor)

    _put_between(Broken)


def _write_in_place() -> None:
    def publish_in_place(files: Files, parent: int, name: str, data: bytes) -> None:
        posix_writer._write_durably(files, parent, name, data)

    _replace(posix_writer, "publish_file", publish_in_place)


def _manifest_first() -> None:
    from holdfast.engine import commit

    waiting: list[Callable[[], None]] = []
    write, finish, publish = posix_writer.PosixWriter.write_at, posix_writer.PosixWriter.finish, PosixStore.publish

    def write_later(self: posix_writer.PosixWriter, block: memoryview, offset: int) -> None:
        kept = bytes(block)
        waiting.append(lambda: write(self, memoryview(kept), offset))

    def finish_later(self: posix_writer.PosixWriter, size_bytes: int) -> None:
        waiting.append(lambda: finish(self, size_bytes))

    def publish_and_write(self: PosixStore, key: str, data: bytes, *, make_group: bool = True) -> None:
        publish(self, key, data, make_group=make_group)
        if key.endswith(MANIFEST_NAME):
            while waiting:
                waiting.pop(0)()

    _replace(posix_writer.PosixWriter, "write_at", write_later)
    _replace(posix_writer.PosixWriter, "finish", finish_later)
    _replace(PosixStore, "publish", publish_and_write)
    _replace(commit, "check_shards", lambda store, checkpoint_id, shards: None)


def _retry_after_sync_error() -> None:
    class Broken(_Between):
        def sync(self, descriptor: int) -> None:
            try:
                self._inner.sync(descriptor)
            except OSError:
                self._inner.sync(descriptor)

    _put_between(Broken)


def _no_digest_check() -> None:
    for name in ("checksum_hex", "checksum_of_parts", "digest_hex"):
        _replace(reading, name, lambda data: _Agreeable())
    scatter = reading.scatter

    def agree(source: memoryview, parts: Sequence[memoryview]) -> str:
        scatter(source, parts)
        return _Agreeable()

    _replace(reading, "scatter", agree)


def _native_agrees() -> None:
    scatter = native.scatter_chunks

    def agree(source: memoryview, parts: Sequence[memoryview], chunk_bytes: int) -> list[str] | None:
        found = scatter(source, parts, chunk_bytes)
        return None if found is None else [_Agreeable() for _ in found]

    _replace(native, "scatter_chunks", agree)


def _native_takes_what_it_can_get() -> None:
    scatter = native.scatter_chunks

    def agree(source: memoryview, parts: Sequence[memoryview], chunk_bytes: int) -> list[str] | None:
        found = scatter(source, parts, chunk_bytes)
        if found is None and source.nbytes >= native._LEAST_BYTES:
            return [_Agreeable() for _ in range(0, source.nbytes, chunk_bytes)]
        return found

    _replace(native, "scatter_chunks", agree)


def _no_manifest_digest() -> None:
    def split_without_looking(data: bytes, where: str) -> tuple[bytes, memoryview]:
        first, _, third = data.split(b"\n")[:3]
        return first[len(b'{"head":') : -1], memoryview(third)[len(b'"body":') : -1]

    _replace(manifest_module, "_split", split_without_looking)


def _prune_data_first() -> None:
    remove = PosixStore.remove

    def remove_later(self: PosixStore, key: str) -> None:
        if not key.endswith(MANIFEST_NAME):
            remove(self, key)

    _replace(PosixStore, "remove", remove_later)


def _prune_before_commit() -> None:
    def make_much_room(current: session.Session, draft: object, keep: object, *, is_begun: bool) -> None:
        for checkpoint in current.catalog().checkpoints:
            remove_checkpoint(current.store, checkpoint.id, attempt=current.attempt)

    _replace(writing, "_make_room", make_much_room)


def _no_fence() -> None:
    from holdfast.engine import commit

    _replace(commit, "check_fence", lambda store, attempt: None)


def _rename_replaces() -> None:
    class Broken(_Between):
        def rename(self, parent: int, old: str, new: str) -> None:
            _quietly(self._inner.unlink, parent, new)
            self._inner.rename(parent, old, new)

    _put_between(Broken)


def _ignore_short_writes() -> None:
    class Broken(_Between):
        def write_at(self, descriptor: int, data: memoryview, offset: int) -> int:
            self._inner.write_at(descriptor, data, offset)
            return len(data)

    _put_between(Broken)


def _trust_the_journal() -> None:
    read = catalog_module.read_catalog

    def read_what_the_journal_knows(store: Any, run_id: str, **options: Any) -> catalog_module.Catalog:
        found = read(store, run_id, **options)
        known = {event.get("id") for event in read_events(store) if event["event"] == "committed"}
        return found._replace(checkpoints=[c for c in found.checkpoints if c.id in known])

    _replace(session, "read_catalog", read_what_the_journal_knows)


def _empty_on_error() -> None:
    look = PosixStore.list

    def look_away(self: PosixStore, group: str = "") -> Any:
        try:
            return look(self, group)
        except HoldfastError:
            return []

    _replace(PosixStore, "list", look_away)


def _false_success() -> None:
    from holdfast.engine.failures import Failures
    from holdfast.engine.outcome import PendingCheckpoint

    def report_success(self: Failures, pending: PendingCheckpoint, error: HoldfastError) -> None:
        pending.note_durable("surely")

    _replace(Failures, "report", report_success)


def _save_raises() -> None:
    from holdfast.engine.failures import Failures
    from holdfast.engine.outcome import PendingCheckpoint

    def report_loudly(self: Failures, pending: PendingCheckpoint, error: HoldfastError) -> None:
        raise error

    _replace(Failures, "report", report_loudly)


def _wait_for_fifos() -> None:
    import os

    def open_and_wait(self: Files, parent: int, name: str, *, direct: bool = False) -> int:
        return os.open(name, os.O_RDONLY | os.O_CLOEXEC, dir_fd=parent)

    _replace(Files, "open_read", open_and_wait)


def _believe_sizes() -> None:
    _replace(manifest_module, "_check_leaves", lambda body, where: None)
    _replace(manifest_module, "_check_shards", lambda body, where, *, staged: None)


def _agent_reports_first() -> None:
    write = worker.Worker.write

    def report_and_write(self: worker.Worker, slot: Slot, message: Write, report: worker.SendReport) -> None:
        staged = worker._read_staged(slot, message, self.run_id)
        report(Durable(message.generation, staged.checkpoint.id))
        write(self, slot, message, lambda said: None if isinstance(said, Durable) else report(said))

    _replace(worker.Worker, "write", report_and_write)


def _agent_trusts_memory() -> None:
    gather = persist_image_module.gather

    def gather_and_agree(target: memoryview, parts: Sequence[memoryview], *, kept: bool) -> str:
        gather(target, parts, kept=kept)
        return _Agreeable()

    _replace(persist_image_module, "gather", gather_and_agree)


def _agent_believes_what_it_was_told() -> None:
    _replace(ahead.WrittenAhead, "is_of", lambda self, checkpoint_id, staged: self.checkpoint_id == checkpoint_id)


def _agent_does_not_sync_what_it_wrote_early() -> None:
    def finish_without_sync(self: ahead.WrittenAhead, staged: ShardRecord) -> ShardRecord:
        assert isinstance(self.writer, posix_writer.PosixWriter)
        with patch.object(type(self.writer._files), "sync", lambda files, descriptor: None):
            return finish(self, staged)

    finish = ahead.WrittenAhead.finish
    _replace(ahead.WrittenAhead, "finish", finish_without_sync)


def _agent_reuses_names() -> None:
    def name_again(self: worker.Worker, checkpoint: Checkpoint) -> tuple[Checkpoint, list[str]]:
        self.store.remove_group(checkpoint.id)
        return checkpoint, []

    _replace(worker.Worker, "_name", name_again)


def _agent_believes_the_one_before() -> None:
    name, write = worker.Worker._name, worker.write_checkpoint

    def is_there(store: Store, checkpoint: Checkpoint) -> bool:
        return any(entry.name == MANIFEST_NAME for entry in store.list(checkpoint.id))

    def name_or_keep(self: worker.Worker, checkpoint: Checkpoint) -> tuple[Checkpoint, list[str]]:
        return (checkpoint, []) if is_there(self.store, checkpoint) else name(self, checkpoint)

    def write_or_believe(writer: writing.Attempt, draft: writing.Draft, *rest: Any, **options: Any) -> Checkpoint:
        return draft.checkpoint if is_there(writer.store, draft.checkpoint) else write(writer, draft, *rest, **options)

    _replace(worker.Worker, "_name", name_or_keep)
    _replace(worker, "write_checkpoint", write_or_believe)


def _agent_prunes_all_garbage() -> None:
    hold = worker.Worker._hold

    def hold_alone(self: worker.Worker, attempt: int) -> None:
        hold(self, attempt)
        self.shares_attempt = False

    _replace(worker.Worker, "_hold", hold_alone)


def _agent_has_no_fence() -> None:
    write = worker.write_checkpoint

    def write_as_the_newest(writer: worker.Worker, *rest: Any, **options: Any) -> Checkpoint:
        own, writer.attempt = writer.attempt, 1 << 30
        try:
            return write(writer, *rest, **options)
        finally:
            writer.attempt = own

    _replace(worker, "write_checkpoint", write_as_the_newest)


def _run_store_suite() -> Outcome:
    with tempfile.TemporaryDirectory(prefix="holdfast-suite-") as scratch:
        places = itertools.count()

        def make_place() -> OpenStore:
            path = f"{scratch}/{next(places)}"
            return lambda: PosixStore(path, create=True)

        try:
            check_store(make_place)
        except AssertionError as error:
            return Outcome(1, [str(error)])
    return Outcome(1, [])


def _quietly(call: Callable[..., object], *arguments: object) -> None:
    try:
        call(*arguments)
    except OSError:
        pass


CATCHERS: dict[str, Callable[[], Outcome]] = {
    "crash states": lambda: explore(3_000, seed=_SEED, first_only=True),
    "crash states of a zombie": lambda: explore(30, seed=_SEED, sequences=["zombie of an older attempt"]),
    "crash states with an agent": lambda: explore(600, seed=_SEED, sequences=tuple(AGENT_SEQUENCES), first_only=True),
    "crash states of what is written early": lambda: explore(
        3_000, seed=_SEED, sequences=["agent: writes what is being copied"], first_only=True
    ),
    "crash states of a dead agent": lambda: explore(
        3_000, seed=_SEED, sequences=["agent: dies, another starts again"], first_only=True
    ),
    "power cuts": lambda: cut_many(24, seed=_SEED),
    "failing calls: fsync": lambda: sweep(faults=["EIO on fsync"], first_only=True),
    "failing calls: short write": lambda: sweep(faults=["short write"], first_only=True),
    "failing calls: read": lambda: sweep(faults=["EIO on read"], first_only=True),
    "failing calls: full disk": lambda: sweep(faults=["ENOSPC"], first_only=True),
    "takeovers": lambda: interfere(every=3, first_only=True),
    "takeovers with an agent": lambda: interfere(every=1, agents_only=True, first_only=True),
    "bit flips": lambda: flip_every_bit(at_most=3_000, first_only=True),
    "bit flips in memory": lambda: flip_bits_in_memory(at_most=300, first_only=True),
    "damage of large chunks": lambda: damage_natively(at_most=40, first_only=True),
    "damage of large chunks in memory": lambda: damage_natively_in_memory(at_most=40, first_only=True),
    "replaced files": lambda: replace_every_file(first_only=True),
    "fuzz": lambda: fuzz(3_000, seed=_SEED, first_only=True),
    "store suite": _run_store_suite,
}
"""The parts of the rig, in the amounts that suffice for a mutant."""

MUTANTS = [
    Mutant("no directory is ever synced", _no_directory_sync, "crash states", "I5"),
    Mutant("no directory is ever synced, on a real disk", _no_directory_sync, "power cuts", "I5"),
    Mutant("the run's own directory is not synced", _no_parent_sync, "crash states", "I5"),
    Mutant("no file is ever synced", _no_file_sync, "crash states", "I5"),
    Mutant("no file is ever synced, on a real disk", _no_file_sync, "power cuts", "I5"),
    Mutant("acknowledges before the last sync", _acknowledge_before_sync, "crash states", "I5"),
    Mutant("writes documents in place", _write_in_place, "crash states", "I1"),
    Mutant("writes the manifest first", _manifest_first, "crash states", "I2"),
    Mutant("syncs again after a failed sync", _retry_after_sync_error, "failing calls: fsync", "I5"),
    Mutant("does not check the checksums of chunks", _no_digest_check, "bit flips", "I4"),
    Mutant("does not check the checksums of chunks in memory", _no_digest_check, "bit flips in memory", "I4"),
    Mutant("does not check the checksums of large chunks", _native_agrees, "damage of large chunks", "I4"),
    Mutant("takes what is left of a cut file", _native_takes_what_it_can_get, "damage of large chunks", "I4"),
    Mutant(
        "does not check the checksums of large chunks in memory",
        _native_agrees,
        "damage of large chunks in memory",
        "I4",
    ),
    Mutant("does not check the digest of the manifest", _no_manifest_digest, "bit flips", "I4"),
    Mutant("prunes data before the manifest", _prune_data_first, "crash states", "I2"),
    Mutant("prunes before it commits", _prune_before_commit, "crash states", "I6"),
    Mutant("does not look at newer attempts", _no_fence, "crash states of a zombie", "I11"),
    Mutant("does not look at newer attempts, in a race", _no_fence, "takeovers", "I11"),
    Mutant("a rename replaces", _rename_replaces, "store suite", "I3"),
    Mutant("takes a short write for a whole one", _ignore_short_writes, "failing calls: short write", "I4"),
    Mutant("believes the journal, not the manifests", _trust_the_journal, "crash states", "I1"),
    Mutant("takes a directory that cannot be read for an empty one", _empty_on_error, "failing calls: read", "I12"),
    Mutant("reports failed saves as durable", _false_success, "failing calls: full disk", "I8"),
    Mutant("a failed save raises", _save_raises, "failing calls: full disk", "I7"),
    Mutant("waits for a FIFO in the place of a file", _wait_for_fifos, "replaced files", "I7"),
    Mutant("believes the sizes in a manifest", _believe_sizes, "fuzz", "I10"),
    Mutant("the agent reports before it commits", _agent_reports_first, "crash states with an agent", "I5"),
    Mutant("the agent does not check memory", _agent_trusts_memory, "crash states with an agent", "I4"),
    Mutant(
        "the agent believes that what it wrote early is the state",
        _agent_believes_what_it_was_told,
        "crash states with an agent",
        "I4",
    ),
    Mutant(
        "the agent does not sync what it wrote early",
        _agent_does_not_sync_what_it_wrote_early,
        "crash states of what is written early",
        "I5",
    ),
    Mutant("the agent gives a half-written name again", _agent_reuses_names, "crash states of a dead agent", "I3"),
    Mutant(
        "the agent believes the one before it", _agent_believes_the_one_before, "crash states of a dead agent", "I5"
    ),
    Mutant("the agent prunes what the training writes", _agent_prunes_all_garbage, "crash states with an agent", "I7"),
    Mutant("the agent does not look at newer attempts", _agent_has_no_fence, "crash states with an agent", "I11"),
    Mutant(
        "the agent does not look at newer attempts, in a race", _agent_has_no_fence, "takeovers with an agent", "I11"
    ),
]


def try_mutant(mutant: Mutant) -> str:
    """What its catcher says of a child process that is broken that way: "caught …", "skipped …", or why neither."""

    def live(tell: Tell) -> None:
        mutant.break_it()
        outcome = CATCHERS[mutant.caught_by]()
        if outcome.skipped:
            tell(f"skipped {outcome.skipped}")
        elif outcome.violations:
            tell(f"caught {len(outcome.violations)} violations: {outcome.violations[0][:300]}")

    lines = listen(*start(live), deadline_s=_DEADLINE_S)
    # A rig that breaks down has caught nothing: only violations that a part reports count.
    found = [line for line in lines if line.startswith(("caught ", "skipped ", "problem "))]
    return found[0] if found else "escaped: no violation was found"


def catch_all(*, part: Slice = WHOLE) -> tuple[int, int, list[str]]:
    """How many mutants could be tried here, how many were caught, and what became of each."""
    mutants = part.of(MUTANTS)
    progress = Progress("mutants", len(mutants))
    verdicts = []
    for count, mutant in enumerate(mutants, 1):
        verdicts.append(f"{mutant.name} ({mutant.promise}, {mutant.caught_by}): {try_mutant(mutant)}")
        progress.show(count, sum("): caught " not in verdict for verdict in verdicts))
    skipped = sum("): skipped " in verdict for verdict in verdicts)
    return len(mutants) - skipped, sum("): caught " in verdict for verdict in verdicts), verdicts
