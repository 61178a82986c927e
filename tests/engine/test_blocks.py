"""Work shared between threads: what happens when it is interrupted."""

import os
import signal
import threading

import pytest

from holdfast.engine.blocks import run_workers


def test_an_interrupt_is_raised_only_when_no_thread_works_any_more():
    interrupted = threading.Event()
    finished = []

    def interrupt(number, frame):
        interrupted.set()
        raise KeyboardInterrupt

    def work(next_index):
        while (index := next_index()) is not None:
            os.kill(os.getpid(), signal.SIGINT) if index == 0 else None
            interrupted.wait(timeout=10)
            sum(range(3_000_000))  # long enough for a caller that does not wait to be seen
            finished.append(index)

    before = signal.signal(signal.SIGINT, interrupt)
    try:
        with pytest.raises(KeyboardInterrupt):
            run_workers(work, 100, 2)
        finished_when_raised = len(finished)
    finally:
        signal.signal(signal.SIGINT, before)

    assert not [thread for thread in threading.enumerate() if thread.name == "holdfast-io"]
    assert 0 < finished_when_raised < 100
