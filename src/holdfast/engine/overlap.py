"""Overlapped capture: the program goes on computing while what only changes behind the gate is copied."""

import os
import threading
import traceback
from collections.abc import Callable, Sequence, Set
from functools import partial

from holdfast.core.errors import HoldfastError, SaveFailedError, StateError
from holdfast.core.limits import CHUNK_BYTES
from holdfast.engine.capture import for_chunks
from holdfast.engine.copier import Run, run_in_thread
from holdfast.engine.filled import Filled, NoteFilled
from holdfast.engine.image import Image
from holdfast.format.arrays import Carrier
from holdfast.format.shard import Layout

__all__ = ["Overlapped", "torn_error"]

_MAX_LISTED = 5


def torn_error(what: str) -> StateError:
    """For a snapshot that was spoiled by an update which nothing held back."""
    return StateError(
        f"{what} changed while the state was captured: the snapshot is not of one moment, and is not used",
        hint='change parameters in optimizer.step() or in "with checkpointer.updating():", or set capture="now"',
    )


class Overlapped:
    """A snapshot that is being taken.

    When the constructor returns, all leaves are in the image except the deferred ones; a thread copies these. Their
    memory must not change until `done`: see `Gate`. Until then the arrays are kept alive and the image is in use, even
    if the snapshot was cancelled; after that neither is held or looked at again.
    """

    def __init__(
        self,
        layout: Layout,
        carriers: Sequence[Carrier],
        deferred: Set[int],
        image: memoryview,
        *,
        workers: int,
        changed: Callable[[], Sequence[str]] | None = None,
        before: Callable[[], object] | None = None,
        note_filled: NoteFilled | None = None,
        run: Run = run_in_thread,
    ) -> None:
        """Copy what cannot wait; `run` has the rest done.

        `changed` names the deferred leaves that were written to since the start, as far as that can be seen; it is
        asked when all is copied. `before` is called by the thread first: it returns when the deferred leaves are there
        to be copied (from an accelerator). `note_filled` hears on the way how far the image is complete.
        """
        self.copied_bytes = 0
        """How much of the image is complete."""
        self.xxh3: list[str] = [""] * -(-layout.size_bytes // CHUNK_BYTES)
        """The checksums of the chunks; complete when `done` without `error`."""
        self.error: HoldfastError | None = None
        """Why the snapshot cannot be used; looked at when `done`."""
        self._cancelled = ""
        self._lock = threading.Lock()
        self._settled = threading.Event()
        self._process = os.getpid()
        _copy_at_once(layout, carriers, deferred, image, workers)
        self._work: Callable[[], None] | None = partial(
            self._copy_deferred, layout, carriers, deferred, image, workers, changed, before, note_filled
        )
        run(self._run)

    @property
    def done(self) -> bool:
        """Whether the snapshot is complete or has failed: arrays and image are not touched any more."""
        return self._settled.is_set()

    def wait(self, timeout_s: float | None = None) -> bool:
        """Whether it was done in time; never in a process that was forked meanwhile: the copier is not there."""
        return self._process == os.getpid() and self._settled.wait(timeout_s)

    def cancel(self, reason: str) -> bool:
        """Make it fail, unless it is done already; whether it fails. It is `done` when the copier has seen it."""
        with self._lock:
            if not self.done:
                self._cancelled = self._cancelled or reason
            return bool(self._cancelled) or self.error is not None

    def _run(self) -> None:
        work, self._work = self._work, None
        assert work is not None
        error: HoldfastError | None = None
        try:
            work()
        except BaseException as failure:  # noqa: BLE001  the copier may not die in silence: the training waits for it
            # What is remembered of the failure must not hold the arrays and the image.
            traceback.clear_frames(failure.__traceback__)
            error = _as_ours(failure)
        del work
        with self._lock:
            self.error = SaveFailedError(self._cancelled) if self._cancelled else error
            self._settled.set()

    def _copy_deferred(
        self,
        layout: Layout,
        carriers: Sequence[Carrier],
        deferred: Set[int],
        image: memoryview,
        workers: int,
        changed: Callable[[], Sequence[str]] | None,
        before: Callable[[], object] | None,
        note_filled: NoteFilled | None,
    ) -> None:
        if before is not None:
            before()
        shard = Image(layout, carriers, only=deferred)
        filled = Filled(layout.size_bytes, note_filled)

        def take(chunk: int, begin: int, end: int) -> None:
            if self._cancelled:
                raise SaveFailedError(self._cancelled)
            # All of the chunk is there then: the leaves that are not deferred were copied before.
            self.xxh3[chunk] = shard.take(begin, end, image[begin:end])
            with self._lock:
                self.copied_bytes += end - begin
            filled.note(chunk)

        for_chunks(take, range(len(self.xxh3)), layout.size_bytes, workers=workers)
        torn = changed() if changed is not None else ()
        if torn:
            raise torn_error(_listed(torn))


def _copy_at_once(
    layout: Layout, carriers: Sequence[Carrier], deferred: Set[int], image: memoryview, workers: int
) -> None:
    shard = Image(layout, carriers, only=frozenset(range(len(carriers))) - deferred)

    def take(_chunk: int, begin: int, end: int) -> None:
        shard.copy(begin, end, image[begin:end])

    for_chunks(take, list(shard.chunks(CHUNK_BYTES)), layout.size_bytes, workers=workers)


def _as_ours(failure: BaseException) -> HoldfastError:
    if isinstance(failure, HoldfastError):
        return failure
    error = SaveFailedError(f"the state could not be copied: {type(failure).__name__}: {failure}")
    error.__cause__ = failure
    return error


def _listed(names: Sequence[str]) -> str:
    more = f" and {len(names) - _MAX_LISTED} more" if len(names) > _MAX_LISTED else ""
    return ", ".join(repr(name) for name in names[:_MAX_LISTED]) + more
