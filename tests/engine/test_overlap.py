"""Overlapped capture by itself: what is copied when, failing, cancelling, letting go."""

import gc
import mmap
import threading
import weakref

import numpy as np

from holdfast.core.errors import SaveFailedError, StateError
from holdfast.core.limits import CHUNK_BYTES
from holdfast.engine.laying import lay_out_leaves
from holdfast.engine.overlap import Overlapped
from holdfast.format.encode import encode_state


class _Laid:
    """A state of two arrays, laid out, and memory for its image."""

    def __init__(self):
        self.now, self.later = np.full(CHUNK_BYTES, 1, np.uint8), np.full(3 * CHUNK_BYTES, 2, np.uint8)
        encoded = encode_state({"now": self.now, "later": self.later})
        self.layout = lay_out_leaves(encoded)
        self.carriers = encoded.carriers
        self.memory = mmap.mmap(-1, self.layout.size_bytes)

    def start(self, deferred=(1,), **options):
        return Overlapped(self.layout, self.carriers, set(deferred), memoryview(self.memory), workers=1, **options)

    def content(self, index):
        place = self.layout.places[index]
        return np.frombuffer(self.memory[place.begin : place.end], np.uint8)


def test_leaves_that_are_not_deferred_may_change_at_once():
    laid, may_go_on = _Laid(), threading.Event()

    copy = laid.start(before=may_go_on.wait)
    laid.now[:] = 99
    laid.later[:] = 3
    assert not copy.done
    assert not copy.wait(0)
    may_go_on.set()

    assert copy.wait(60)
    assert (laid.content(0) == 1).all()
    assert (laid.content(1) == 3).all()  # so it was not looked at before


def test_arrays_and_image_are_let_go_when_it_is_done():
    laid = _Laid()
    copy = laid.start()
    array = weakref.ref(laid.later)
    assert copy.wait(60)

    laid.carriers.clear()
    del laid.later
    gc.collect()

    assert array() is None
    laid.memory.close()  # BufferError if a view of it were left


def test_the_arrays_are_kept_alive_until_it_is_done():
    laid, may_go_on = _Laid(), threading.Event()
    copy = laid.start(before=may_go_on.wait)
    array = weakref.ref(laid.later)

    laid.carriers = None
    del laid.later
    gc.collect()
    assert array() is not None
    may_go_on.set()

    assert copy.wait(60)
    assert (laid.content(1) == 2).all()


def test_a_copier_that_fails_is_done_with_an_error_and_holds_nothing():
    laid = _Laid()

    def fail():
        raise MemoryError("none left")

    copy = laid.start(before=fail)

    assert copy.wait(60)
    assert isinstance(copy.error, SaveFailedError)
    assert "MemoryError: none left" in str(copy.error)
    laid.memory.close()


def test_a_cancelled_copy_fails_even_if_the_copier_went_on_to_the_end():
    laid, is_asked, may_go_on = _Laid(), threading.Event(), threading.Event()

    def changed():
        is_asked.set()
        may_go_on.wait(60)
        return []

    copy = laid.start(changed=changed)
    assert is_asked.wait(60)
    assert copy.cancel("because")
    assert not copy.done
    may_go_on.set()

    assert copy.wait(60)
    assert isinstance(copy.error, SaveFailedError)
    assert "because" in str(copy.error)


def test_a_cancelled_copy_stops_before_the_next_chunk():
    laid, may_go_on = _Laid(), threading.Event()
    copy = laid.start(before=may_go_on.wait)

    copy.cancel("because")
    may_go_on.set()

    assert copy.wait(60)
    assert copy.copied_bytes == 0
    assert isinstance(copy.error, SaveFailedError)


def test_what_is_complete_cannot_be_cancelled():
    copy = _Laid().start()
    assert copy.wait(60)

    assert not copy.cancel("too late")
    assert copy.error is None


def test_leaves_that_changed_are_named():
    copy = _Laid().start(changed=lambda: [f"model.w{index}" for index in range(7)])

    assert copy.wait(60)
    assert isinstance(copy.error, StateError)
    assert "'model.w0'" in str(copy.error)
    assert "and 2 more" in str(copy.error)
    assert "updating()" in copy.error.hint
    assert 'capture="now"' in copy.error.hint


def test_without_threads_it_is_copied_at_once(monkeypatch):
    def refuse(thread):
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", refuse)
    laid = _Laid()

    copy = laid.start()

    assert copy.done
    assert copy.error is None
    assert (laid.content(1) == 2).all()
