"""The gate: holds back updates of the state until the capture that is under way has what it needs.

Updates are the steps of torch optimizers, which are hooked, and whatever the program does inside `updating()`. They may
come from any thread. A capture begins when no update is under way in another thread, and none begins while it lasts.
"""

import os
import sys
import threading
import time
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

from holdfast.core.countdown import Countdown
from holdfast.core.errors import StateError
from holdfast.engine.deferral import Deferral, Guarded, Owned, find_optimizers, immutable_leaves
from holdfast.engine.overlap import Overlapped
from holdfast.format.encode import Encoded

__all__ = ["Gate"]

# Much longer than any copy takes: a training that waits longer than this has met something that will not end.
_DEADLINE_S = 60.0
# How long a copier that was told to stop is given to let go of the arrays.
_LET_GO_S = 1.0
# How long an update lets a capture go first that waits for others to end. Were it longer, an update that waits for one
# in another thread would be stuck; without it, a thread that updates all the time would let no capture begin.
_POLITE_S = 1.0
# A step that raises tells nobody that it has ended: it is looked for as often as this.
_LOOK_S = 0.05


class Gate:
    """Lets updates through, from many threads at once, but none during a capture.

    No update waits longer than the deadline: then the snapshot fails, not the training.
    """

    def __init__(self, state: object, *, all_guarded: bool = False, deadline_s: float = _DEADLINE_S) -> None:
        """Hook the torch optimizers in the state.

        With `all_guarded` the program promises that everything in its state changes in `step()` of these optimizers or
        inside `updating()`, and nowhere else: not in a forward pass, as the statistics of batch norms do.
        """
        self.waited_s = 0.0
        """How long updates were held back, in total."""
        self._all_guarded = all_guarded
        self._deadline_s = deadline_s
        self._optimizers = find_optimizers(state)
        self._owned = Owned()
        self._start_afresh()
        self._handles: list[Any] = []
        for optimizer in self._optimizers:
            self._handles.append(optimizer.register_step_pre_hook(self._before_step))
            self._handles.append(optimizer.register_step_post_hook(self._after_step))
        _gates.add(self)

    def _start_afresh(self) -> None:
        # `with` this, not the condition: that one is entered by code in Python, where Ctrl-C leaves it locked for ever.
        self._lock = threading.RLock()
        self._changed = threading.Condition(self._lock)
        # The threads in the middle of updates, the innermost last: its frame, or None where its end cannot be missed.
        self._updates: dict[int, list[int | None]] = {}
        self._waiting = 0
        self._capturer: int | None = None
        self._was_broken_into = False
        self._copies: list[Overlapped] = []

    def close(self) -> None:
        """Remove the hooks. Copies that are under way are not waited for."""
        while self._handles:
            self._handles.pop().remove()

    @contextmanager
    def capturing(self) -> Iterator[None]:
        """While the state is looked at and what cannot wait is copied. StateError where an update did not keep out.

        An update that this very thread is in the middle of does not count; only, then nothing is deferrable.
        """
        outer = self._begin_capture(threading.get_ident())
        try:
            yield
        finally:
            with self._lock:
                self._capturer = outer
                was_broken_into = self._was_broken_into
                self._changed.notify_all()
        if was_broken_into:
            raise StateError(
                f"capturing the state took more than {self._deadline_s:g} s and an update went on: it is not used",
                hint='save from the thread that updates the state, or set capture="now"',
            )

    def guarded_tensors(self) -> Guarded:
        """The tensors that only change behind the gate. To be asked inside `capturing`."""
        return Guarded([] if self._is_updating() else self._optimizers)

    def deferrable(self, encoded: Encoded, guarded: Guarded) -> Deferral:
        """What may be copied after `capturing` has ended, by an Overlapped that was given to `hold` before."""
        if self._all_guarded and not self._is_updating():
            return Deferral(frozenset(range(len(encoded.leaves))), guarded.tensors, encoded.leaves)
        return self._owned.deferral(encoded, guarded, besides=immutable_leaves(encoded))

    def hold(self, copy: Overlapped) -> None:
        """Hold back updates until the copy is done. To be called inside `capturing`."""
        with self._lock:
            self._copies = [other for other in self._copies if not other.done] + [copy]

    @contextmanager
    def updating(self) -> Iterator[None]:
        """Around code that changes the state in place, outside of the steps of the optimizers in it."""
        depth = self._depth()
        try:
            self._enter(None)
            yield
        finally:
            self._leave(depth)

    def _before_step(self, optimizer: Any, *_: object) -> None:
        depth = self._depth()
        try:
            self._enter(_frame_of_step(optimizer))
        except BaseException:  # Ctrl-C: there will be no step
            self._leave(depth)
            raise

    def _after_step(self, optimizer: Any, *_: object) -> None:
        frames, own = self._updates.get(threading.get_ident(), []), _frame_of_step(optimizer)
        if own is None:
            self._leave(max(0, len(frames) - 1))
        elif own in frames:  # and with it those inside of it, which have raised
            self._leave(frames.index(own))

    def _is_updating(self) -> bool:
        """Whether this thread is in the middle of an update: the rest of it would come while its arrays are copied."""
        with self._lock:
            self._drop_ended()
            return threading.get_ident() in self._updates

    def _depth(self) -> int:
        return len(self._updates.get(threading.get_ident(), ()))

    def _enter(self, frame: int | None) -> None:
        me = threading.get_ident()
        began, left = time.monotonic(), Countdown(self._deadline_s)
        with self._lock:
            if self._updates:
                self._drop_ended()
            is_held = self._waiting > 0 or self._capturer not in (None, me)
            if self._waiting and me not in self._updates:
                self._changed.wait_for(lambda: not self._waiting, _POLITE_S)
            if not self._changed.wait_for(lambda: self._capturer in (None, me), self._deadline_s):
                self._was_broken_into = True
            self._updates.setdefault(me, []).append(frame)
            self._copies = copies = [copy for copy in self._copies if not copy.done]
        for copy in copies:
            while not copy.wait(pause_s := left.step_s()):
                if not pause_s:
                    self._give_up(copy)
                    break
        if is_held or copies:
            with self._lock:
                self.waited_s += time.monotonic() - began

    def _give_up(self, copy: Overlapped) -> None:
        # From here on the snapshot is a failed one, whatever the copier still does.
        if copy.cancel(f"the copy was not done after {self._deadline_s:g} s, and the training went on"):
            copy.wait(_LET_GO_S)
        with self._lock:
            self._copies = [other for other in self._copies if other is not copy]

    def _leave(self, depth: int) -> None:
        me = threading.get_ident()
        with self._lock:
            del self._updates.get(me, [])[depth:]
            if not self._updates.get(me):
                self._updates.pop(me, None)
                self._changed.notify_all()

    def _begin_capture(self, me: int) -> int | None:
        """Wait until no other thread updates or captures. The thread that was capturing: this one, or none."""
        left = Countdown(self._deadline_s)
        with self._lock:
            self._waiting += 1
            try:
                while not self._is_free_for(me):
                    if not left.step_s():
                        raise StateError(
                            f"an update in another thread has not ended in {self._deadline_s:g} s: nothing is captured",
                            hint='end "with checkpointer.updating():" when the update is done',
                        )
                    self._changed.wait(_LOOK_S)
            finally:
                self._waiting -= 1
                self._changed.notify_all()
            outer, self._capturer = self._capturer, me
            if outer is None:
                self._was_broken_into = False
            return outer

    def _is_free_for(self, me: int) -> bool:
        self._drop_ended()
        return self._capturer in (None, me) and not (self._updates.keys() - {me})

    def _drop_ended(self) -> None:
        """Forget steps that have raised (torch calls no hook then): their frame is not on its thread's stack."""
        if not self._updates:
            return
        stacks = sys._current_frames()
        for thread, frames in list(self._updates.items()):
            running = {id(frame) for frame in _callers(stacks.get(thread))}
            frames[:] = [frame for frame in frames if thread in stacks and (frame is None or frame in running)]
            if not frames:
                del self._updates[thread]


_gates: "weakref.WeakSet[Gate]" = weakref.WeakSet()


def _forget_in_child() -> None:
    # The copiers, and threads in the middle of an update, are not in the child; their locks may be held for ever.
    for gate in list(_gates):
        gate._start_afresh()


os.register_at_fork(after_in_child=_forget_in_child)


def _frame_of_step(optimizer: Any) -> int | None:
    """The frame of the step that calls the hook: torch's wrapper around it. None where torch does it otherwise."""
    code = getattr(type(optimizer).step, "__code__", None)
    return next((id(frame) for frame in _callers(sys._getframe(1)) if frame.f_code is code), None)


def _callers(innermost: FrameType | None) -> Iterator[FrameType]:
    frame = innermost
    while frame is not None:
        yield frame
        frame = frame.f_back
