"""The arena: the slots of one training process, in files that outlive it, or where that cannot be, in memfds."""

import errno
import os
import threading
import weakref
from itertools import count
from pathlib import Path
from typing import NamedTuple

from holdfast.core.errors import HoldfastError, StorageError, UsageError
from holdfast.core.names import check_name
from holdfast.storage.translate import translate
from holdfast.tiers.control import CONTROL_BYTES
from holdfast.tiers.directory import DEFAULT_ROOT, SLOT_NAMES, ArenaDirectory
from holdfast.tiers.owner import this_process
from holdfast.tiers.room import memory_room
from holdfast.tiers.shared_memory import AllocationStoppedError, is_shortage, padded
from holdfast.tiers.slot import Slot

__all__ = ["MOST_SLOTS", "Arena"]

MOST_SLOTS = len(SLOT_NAMES)
# Of the memory that is available, what the first slot may take and what a second one may: the first saves the training
# from waiting for the disk, the second only from waiting for the one before.
_SHARES = (0.75, 0.5)
_NO_DESCRIPTORS = (errno.EMFILE, errno.ENFILE)


class _Shortage(NamedTuple):
    """What was missing for a slot."""

    of: str
    has_bytes: int | None
    takes_bytes: int | None


class Arena:
    """Shared memory for snapshots: allocated and touched once, used again for each, grown when the state grows."""

    def __init__(self, directory: ArenaDirectory | None, *, obstacle: str = "", limit_bytes: int | None = None) -> None:
        self.slots: list[Slot] = []
        """A slot that could not grow in its place is another one, with another descriptor, after `fit`."""
        self.shortage = ""
        """What was missing at the last `fit`, and what it would take; one sentence, or empty."""
        self.obstacle = obstacle
        """Why the slots cannot be found by a later process; one sentence, or empty."""
        self._directory = directory
        self._limit_bytes = limit_bytes
        self._generations = count(1)
        self._pid = os.getpid()
        self._is_open = True
        self._guard = threading.Lock()
        self._fitting: threading.Thread | None = None
        self._hurry = threading.Event()
        self._making: Slot | None = None
        """So that a child that is forked meanwhile can close it."""
        _live.add(self)

    @classmethod
    def create(
        cls, *, run_id: str, run: str, attempt: int, root: Path | None = None, limit_bytes: int | None = None
    ) -> "Arena":
        """An arena without slots. StorageError where this process has no file descriptors left.

        Where its directory cannot be had (no /dev/shm, somebody else's directory in our place), the slots are memfds,
        and `obstacle` says why.
        """
        check_name(run_id)
        root = DEFAULT_ROOT if root is None else root
        try:
            directory = ArenaDirectory(root, this_process(run_id=run_id, run=run, attempt=attempt))
        except HoldfastError as error:
            return cls(None, obstacle=error.message, limit_bytes=limit_bytes)
        except OSError as error:
            if error.errno in _NO_DESCRIPTORS:
                raise translate(error, "making an arena", str(root)) from error
            return cls(None, obstacle=f"{root}: {error.strerror or error}", limit_bytes=limit_bytes)
        return cls(directory, limit_bytes=limit_bytes)

    @property
    def kind(self) -> str:
        """ "file" where a later process can find all slots, else "memfd"."""
        in_files = self._directory is not None and all(slot.kind == "file" for slot in self.slots)
        return "file" if in_files else "memfd"

    @property
    def path(self) -> Path | None:
        """Where the files are; None where there are none."""
        return None if self._directory is None else self._directory.path

    @property
    def is_fitting(self) -> bool:
        """Whether slots are made or grown in the background: then only `fit` says what there is."""
        return self._fitting is not None and self._fitting.is_alive()

    @property
    def size_bytes(self) -> int:
        """What the slots take, without the manifests."""
        return sum(CONTROL_BYTES + slot.capacity_bytes for slot in self.slots)

    def has_room(self, image_bytes: int) -> bool:
        """Whether each slot, and there is one, takes an image of that size."""
        return bool(self.slots) and all(slot.capacity_bytes >= image_bytes for slot in self.slots)

    def fit(self, image_bytes: int, slots: int = MOST_SLOTS) -> int:
        """Have 1 to `slots` slots for images of that size, and say how many; 0 where memory does not allow one.

        Slots grow and never shrink. What they hold stays if they can grow where they are; else it is dropped, so call
        this only while nobody reads from these slots. `shortage` says why there are fewer than were wanted.
        StorageError where something else than memory is missing (file descriptors).
        """
        if image_bytes < 0 or not 1 <= slots <= MOST_SLOTS:
            raise UsageError(f"{slots} slots for {image_bytes} bytes were wanted, expected 1 to {MOST_SLOTS} slots")
        fitting = self._fitting
        if fitting is not None and fitting is not threading.current_thread():
            self._hurry.set()
            fitting.join()
        with self._guard:
            self._check_open()
            try:
                return self._fit(padded(max(1, image_bytes)), slots)
            except AllocationStoppedError:
                raise StorageError("the arena was released while it was being allocated") from None

    def fit_in_background(self, image_bytes: int, slots: int = MOST_SLOTS, *, after_s: float = 0.0) -> None:
        """The same in a thread; the next `fit` waits for it, and raises what went wrong.

        It begins after that time, or when `fit` asks for it: fresh memory is slow for all who want some.
        """
        self._check_open()
        if self._fitting is not None:
            self._hurry.set()
            self._fitting.join()
        self._hurry = threading.Event()
        thread = threading.Thread(
            target=self._fit_quietly, args=(image_bytes, slots, after_s), name="holdfast-arena", daemon=True
        )
        try:
            thread.start()
        except RuntimeError:
            return  # no more threads: `fit` does it all
        self._fitting = thread

    def release(self) -> None:
        """Give everything back: files, memory, descriptors. In a forked child: `forget`."""
        if os.getpid() != self._pid:
            self.forget()
            return
        self._is_open = False  # also ends what the thread is doing
        if self._fitting is not None:
            self._hurry.set()
            self._fitting.join()
        with self._guard:
            self._drop(0)
            directory, self._directory = self._directory, None
            if directory is not None:
                directory.remove()

    def forget(self) -> None:
        """Unmap and close, and leave the files to whom they belong: for a forked child."""
        # Another lock: one that another thread had at the time of the fork is never released in the child.
        self._guard = threading.Lock()
        self._fitting = None
        self._is_open = False
        slots, self.slots = self.slots, []
        if self._making is not None:
            slots.append(self._making)
        for slot in slots:
            slot.close()
        directory, self._directory = self._directory, None
        if directory is not None:
            directory.close()

    def _fit_quietly(self, image_bytes: int, slots: int, after_s: float) -> None:
        self._hurry.wait(after_s)
        if not self._is_open:
            return
        try:
            with self._guard:
                self._fit(padded(max(1, image_bytes)), slots)
        except (HoldfastError, AllocationStoppedError):
            pass  # `fit` meets the same again, where somebody can be told

    def _fit(self, capacity_bytes: int, wanted: int) -> int:
        self.shortage = ""
        for index in range(wanted):
            short = self._have(index, capacity_bytes)
            if short is not None and index == 0 and len(self.slots) > 1:
                self._drop(1)  # one that is large enough is better than two that are not
                short = self._have(index, capacity_bytes)
            if short is not None:
                self._drop(index)
                self.shortage = _sentence(short, index, wanted, capacity_bytes)
                break
        if any(slot.capacity_bytes < capacity_bytes for slot in self.slots):
            self._drop(wanted)
        return len(self.slots)

    def _have(self, index: int, capacity_bytes: int) -> _Shortage | None:
        """Make or grow the slot; what was missing where it cannot be."""
        present = self.slots[index].capacity_bytes if index < len(self.slots) else -CONTROL_BYTES
        extra_bytes = capacity_bytes - present
        if extra_bytes <= 0:
            return None
        room = memory_room()
        usable = int(room.free_bytes * _SHARES[index])
        if extra_bytes > usable:
            return _Shortage(room.limited_by, room.free_bytes, int(extra_bytes / _SHARES[index]))
        if self._limit_bytes is not None and self.size_bytes + extra_bytes > self._limit_bytes:
            return _Shortage("the limit that was set (memory_bytes)", self._limit_bytes, self.size_bytes + extra_bytes)
        try:
            if not self._have_as_file(index, capacity_bytes, extra_bytes):
                self._have_as_memfd(index, capacity_bytes)
        except HoldfastError:
            raise
        except OSError as error:
            if not is_shortage(error):
                raise translate(error, "making a slot", str(self.path or "memfd")) from error
            return _Shortage(f"the system ({error.strerror}; see ulimit -v and ulimit -f)", None, None)
        return None

    def _have_as_file(self, index: int, capacity_bytes: int, extra_bytes: int) -> bool:
        """False where the file system has no room for it, and nothing is changed."""
        directory = self._directory
        is_present = index < len(self.slots)
        if directory is None or (is_present and self.slots[index].kind != "file"):
            return False
        if extra_bytes > directory.free_bytes():
            return False
        try:
            if is_present:
                self.slots[index].grow(capacity_bytes, self._keep_going)
                return True
            descriptor = directory.create_slot(index)
            try:
                slot = self._make(descriptor, str(directory.path / SLOT_NAMES[index]), "file", capacity_bytes)
            except BaseException:
                directory.remove_slot(index)
                raise
        except OSError as error:
            if error.errno in (errno.ENOSPC, errno.EDQUOT):
                return False
            raise
        self.slots.append(slot)
        return True

    def _have_as_memfd(self, index: int, capacity_bytes: int) -> None:
        if index < len(self.slots):
            if self.slots[index].kind == "memfd":
                self.slots[index].grow(capacity_bytes, self._keep_going)
                return
            self._drop(index)  # with those behind it: should there be no other one, they would be in its place
        descriptor = os.memfd_create(f"holdfast-{SLOT_NAMES[index]}", os.MFD_CLOEXEC)
        self.slots.append(self._make(descriptor, f"{SLOT_NAMES[index]} (memfd)", "memfd", capacity_bytes))

    def _make(self, descriptor: int, where: str, kind: str, capacity_bytes: int) -> Slot:
        """A slot of that size in the new file, which is closed where that is not possible."""
        slot = Slot(
            descriptor,
            where=where,
            kind=kind,
            writable=True,
            next_generation=self._generations.__next__,
            on_finish=None if self._directory is None else self._directory.touch,
        )
        self._making = slot
        try:
            slot.grow(capacity_bytes, self._keep_going)
        except BaseException:
            slot.close()
            raise
        finally:
            self._making = None
        return slot

    def _drop(self, first: int) -> None:
        for index in reversed(range(first, len(self.slots))):
            slot = self.slots.pop()
            slot.close()
            if slot.kind == "file" and self._directory is not None:
                self._directory.remove_slot(index)

    def _keep_going(self) -> bool:
        return self._is_open

    def _check_open(self) -> None:
        if not self._is_open:
            raise StorageError("the arena was released before, or belongs to the parent of this process")


def _sentence(short: _Shortage, made: int, wanted: int, capacity_bytes: int) -> str:
    slots = f"{made} of {wanted} slots of {_mib(capacity_bytes)} in memory: "
    if short.has_bytes is None or short.takes_bytes is None:
        return slots + f"refused by {short.of}"
    return slots + f"{short.of} leaves {_mib(short.has_bytes)}, one more takes {_mib(short.takes_bytes)}"


def _mib(size_bytes: int) -> str:
    return f"{size_bytes / (1 << 20):,.1f} MiB"


_live: "weakref.WeakSet[Arena]" = weakref.WeakSet()


def _forget_all() -> None:
    for arena in list(_live):
        arena.forget()


# A worker that is forked off a training must not keep its memory, nor the lock that shows that it lives.
os.register_at_fork(after_in_child=_forget_all)
