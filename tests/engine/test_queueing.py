"""What the kernel says of threads that have no core."""

import os
import sys
import threading
import time

import pytest

from holdfast.engine import queueing
from holdfast.engine.queueing import Queued, Queueing


class Kernel:
    """Says what it is told to say."""

    def __init__(self) -> None:
        self.total_s: float | None = 0.0

    def __call__(self) -> float | None:
        return self.total_s


def test_what_is_usual_while_nothing_is_written_does_not_count() -> None:
    kernel = Kernel()
    queueing = Queueing(kernel)
    queueing.begin(0.0)
    queueing.end(10.0)

    kernel.total_s = 1.0  # a tenth of the time, because of others
    queueing.begin(20.0)
    kernel.total_s = 3.5

    assert queueing.end(25.0) == pytest.approx(2.5 - 0.5)


def test_before_it_is_known_what_is_usual_nothing_is() -> None:
    queueing = Queueing(Kernel())

    queueing.begin(0.0)

    assert queueing.end(10.0) is None


def test_of_two_writes_at_a_time_nothing_is_known() -> None:
    kernel = Kernel()
    queueing = Queueing(kernel)
    queueing.begin(0.0)
    queueing.end(10.0)

    queueing.begin(20.0)
    queueing.begin(21.0)

    assert queueing.end(22.0) is None
    assert queueing.end(23.0) is None
    queueing.begin(30.0)
    kernel.total_s = 1.0
    assert queueing.end(31.0) == pytest.approx(1.0)


def test_a_kernel_that_says_nothing_is_no_zero() -> None:
    kernel = Kernel()
    kernel.total_s = None
    queueing = Queueing(kernel)
    for now_s in (0.0, 20.0):
        queueing.begin(now_s)

        assert queueing.end(now_s + 10.0) is None


def test_where_there_is_no_such_file_nothing_is_known(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(queueing, "_TASKS", "/proc/self/no-such-thing")

    assert Queued()() is None


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads what Linux says")
@pytest.mark.skipif(not os.path.exists("/proc/self/task"), reason="no /proc here")
def test_two_threads_on_one_core_wait_for_it() -> None:
    queued = Queued()
    if queued() is None:
        pytest.skip("this kernel does not count it")
    allowed = os.sched_getaffinity(0)
    done = threading.Event()
    begun = threading.Barrier(3)

    def compute() -> None:
        os.sched_setaffinity(0, {min(allowed)})  # of this thread only
        begun.wait(60)
        while not done.is_set():
            sum(i * i for i in range(1000))

    threads = [threading.Thread(target=compute) for _ in range(2)]
    for thread in threads:
        thread.start()
    begun.wait(60)
    before_s = queued() or 0.0
    # However busy the machine is: threads that want the same core will have waited for it sooner or later.
    deadline_s = time.monotonic() + 60
    while (waited_s := (queued() or 0.0) - before_s) < 0.02 and time.monotonic() < deadline_s:
        pass
    done.set()
    for thread in threads:
        thread.join(60)

    assert waited_s >= 0.02


def test_threads_of_ours_do_not_count(monkeypatch: pytest.MonkeyPatch, tmp_path: object) -> None:
    asked: list[str] = []
    go = threading.Event()
    ours = threading.Thread(target=go.wait, name="holdfast-test", args=(60,))
    theirs = threading.Thread(target=go.wait, name="somebody", args=(60,))
    ours.start()
    theirs.start()

    def delay(task: str) -> int:
        asked.append(task)
        return 0

    monkeypatch.setattr(queueing, "_delay_ns", delay)
    Queued()()
    go.set()

    assert str(theirs.native_id) in asked
    assert str(ours.native_id) not in asked


def test_threads_that_end_take_nothing_back(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a pool that a loader ends between two writes; its numbers are given to new threads one day."""
    delays_ns = {"1": 5_000_000_000, "2": 3_000_000_000}
    monkeypatch.setattr(queueing.os, "listdir", lambda _: list(delays_ns))
    monkeypatch.setattr(queueing, "_delay_ns", lambda task: delays_ns[task])
    queued = Queued()
    assert queued() == pytest.approx(8.0)

    del delays_ns["2"]
    delays_ns["1"] += 1_000_000_000
    assert queued() == pytest.approx(9.0)

    delays_ns["2"] = 500_000_000
    assert queued() == pytest.approx(9.5)

    delays_ns["1"] = 250_000_000
    assert queued() == pytest.approx(9.75)
