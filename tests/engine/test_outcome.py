"""What a program waits for, from wherever it waits."""

import sys
import threading

import pytest

from holdfast.core.errors import SaveFailedError
from holdfast.engine.outcome import PendingCheckpoint

PATIENCE_S = 60


def test_one_that_waits_may_be_interrupted_anywhere_by_a_signal_handler_that_waits_too():
    """Handlers run between any two instructions, in the very thread whose wait they interrupt."""
    pending = PendingCheckpoint(1)
    done = []

    def handler(frame, event, argument):
        pending.settle(0.0)
        return handler

    def wait():
        sys.settrace(handler)
        try:
            done.append(pending.settle(0.05))
        finally:
            sys.settrace(None)

    thread = threading.Thread(target=wait, daemon=True)
    thread.start()
    thread.join(PATIENCE_S)

    assert done == [False]


def test_all_who_wait_hear_that_it_is_durable():
    pending = PendingCheckpoint(1)
    heard = []
    threads = [threading.Thread(target=lambda: heard.append(pending.wait(PATIENCE_S)), daemon=True) for _ in range(8)]
    for thread in threads:
        thread.start()

    pending.note_durable("one")
    pending.note_durable("one")  # twice is no error

    for thread in threads:
        thread.join(PATIENCE_S)
    assert heard == ["one"] * 8
    assert pending.wait() == "one"


def test_a_wait_that_is_over_says_so_however_little_time_it_was_given():
    pending = PendingCheckpoint(1)

    for timeout_s in (0.0, -1.0):
        with pytest.raises(SaveFailedError, match="is not durable yet"):
            pending.wait(timeout_s)
        assert not pending.settle(timeout_s)
