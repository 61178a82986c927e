"""Work shared between threads: what happens when it is interrupted."""

import _thread
import gc
import mmap
import os
import signal
import threading
import time
from pathlib import Path

import numpy as np
import pytest

from holdfast.engine import blocks
from holdfast.engine.blocks import BlockPool, run_in_order, run_workers
from tests.interrupting import interrupted_only_in


@pytest.fixture(autouse=True)
def _no_collection():
    """JAX has Python run when garbage is collected, where it was imported: what is raised in there, nobody gets."""
    gc.collect()
    gc.disable()
    yield
    gc.enable()


def test_an_interrupt_is_raised_only_when_no_thread_works_any_more():
    both, interrupted = threading.Barrier(2, timeout=30), threading.Event()
    finished = []

    def work(next_index):
        while (index := next_index()) is not None:
            both.wait() if index < 2 else None  # each thread has one of them
            os.kill(os.getpid(), signal.SIGINT) if index == 0 else None
            interrupted.wait(timeout=10)
            sum(range(3_000_000))  # long enough for a caller that does not wait to be seen
            finished.append(index)

    with interrupted_only_in(run_workers, heard=interrupted.set):
        with pytest.raises(KeyboardInterrupt):
            run_workers(work, 100, 2)
        finished_when_raised = len(finished)

    time.sleep(0.2)
    assert 0 < len(finished) == finished_when_raised < 100


@pytest.mark.parametrize("kind", ["workers", "in order"])
def test_further_interrupts_do_not_hurry_threads_that_still_work(kind):
    heard, is_first = threading.Semaphore(0), threading.Lock()
    finished = []

    def impatient(index):
        if threading.current_thread() is not threading.main_thread() and is_first.acquire(blocking=False):
            for _ in range(4):
                os.kill(os.getpid(), signal.SIGINT)
                while not heard.acquire(timeout=0.05):  # one that comes just before a wait does not end it
                    os.kill(os.getpid(), signal.SIGINT)
            sum(range(3_000_000))  # long enough for a caller that does not wait to be seen
        finished.append(index)

    def work(next_index):
        while (index := next_index()) is not None:
            impatient(index)

    lost = len(blocks._never_lent_again)
    with interrupted_only_in(run_workers, run_in_order, heard=heard.release):
        with pytest.raises(KeyboardInterrupt):
            run_workers(work, 1_000_000, 2) if kind == "workers" else _collect(1_000_000, 2, fill=impatient)
        finished_when_raised = len(finished)

    time.sleep(0.2)
    assert 0 < len(finished) == finished_when_raised
    assert len(blocks._never_lent_again) == lost  # nobody waits for a lock that an interrupt left locked


def test_an_interrupt_where_a_wait_has_let_go_of_its_lock_is_raised_as_it_came(monkeypatch):
    is_first = threading.Lock()

    class Interrupted(threading.Condition):
        def wait_for(self, predicate, timeout=None):
            if threading.current_thread() is threading.main_thread() and is_first.acquire(blocking=False):
                self._lock.release()
                raise KeyboardInterrupt
            return super().wait_for(predicate, timeout)

    monkeypatch.setattr("threading.Condition", Interrupted)

    with pytest.raises(KeyboardInterrupt):
        _collect(1_000, 2, fill=lambda index: time.sleep(0.01))


def test_blocks_of_a_thread_that_does_not_come_back_are_not_lent_again(monkeypatch):
    monkeypatch.setattr("holdfast.engine.crew._PATIENCE_S", 0.01)
    pool, hangs, goes_on = BlockPool(4096), threading.Event(), threading.Event()
    raised, back = threading.Event(), threading.Event()

    def keep_interrupting():
        while not raised.wait(timeout=0.05):
            os.kill(os.getpid(), signal.SIGINT)

    def hang(index, block):
        if index > 0 and threading.current_thread() is not threading.main_thread():
            hangs.set()
            assert goes_on.wait(timeout=30)
            block[:] = b"x" * 4096
            back.set()
        return block

    def hear(index, block):
        assert hangs.wait(timeout=30)
        interrupter.start()
        raise KeyboardInterrupt

    interrupter = threading.Thread(target=keep_interrupting)
    with interrupted_only_in(run_in_order):
        try:
            with pytest.raises(KeyboardInterrupt):
                run_in_order(hang, hear, 3, pool=pool, workers=2)
            raised.set()
            interrupter.join()
        finally:
            raised.set()
    with pool.block() as block, pool.block() as another, pool.block() as third:
        goes_on.set()
        assert back.wait(timeout=30)

        assert not any(block)
        assert not any(another)
        assert not any(third)


def test_an_interrupt_is_not_lost_behind_a_fault_that_another_thread_found_before():
    main, failed = threading.current_thread(), threading.Event()

    def work(next_index):
        next_index()
        if threading.current_thread() is main:
            assert failed.wait(timeout=10)
            raise KeyboardInterrupt
        try:
            raise OSError("broken")
        finally:
            failed.set()

    with pytest.raises(KeyboardInterrupt):
        run_workers(work, 100, 2)


def _collect(count, workers, *, fill=None, use=None):
    """What run_in_order makes of indices, with a look at the order of use."""
    used = []

    def put(index, block):
        if fill is not None:
            fill(index)
        block[:8] = index.to_bytes(8, "little")
        return block[:8]

    def take(index, data):
        if use is not None:
            use(index)
        used.append((index, int.from_bytes(data, "little")))

    run_in_order(put, take, count, pool=BlockPool(4096), workers=workers)
    return used


@pytest.mark.parametrize("workers", [1, 2, 3, 8])
@pytest.mark.parametrize("count", [0, 1, 2, 50])
def test_blocks_are_used_in_order_with_what_was_filled_for_them(count, workers):
    slow_even = lambda index: time.sleep(0.002 if index % 2 == 0 else 0)  # noqa: E731
    assert _collect(count, workers, fill=slow_even) == [(index, index) for index in range(count)]


@pytest.mark.parametrize("workers", [1, 2, 4])
@pytest.mark.parametrize("part", ["fill", "use"])
def test_the_first_failure_ends_all_and_is_raised_when_no_thread_works_any_more(workers, part):
    done = []

    def fail_at_seven(index):
        done.append(index)
        if index == 7:
            raise OSError("broken")

    with pytest.raises(OSError, match="broken"):
        _collect(100, workers, **{part: fail_at_seven})
    done_when_raised = len(done)
    time.sleep(0.2)
    assert len(done) == done_when_raised < 100


@pytest.mark.skipif(not hasattr(os, "SCHED_BATCH"), reason="this system has no batch scheduling")
def test_threads_that_fill_give_way_to_the_one_that_writes():
    filling, writing = set(), set()
    here = threading.get_ident()

    def fill(index):
        time.sleep(0.001)  # so that others come to fill as well
        filling.add((threading.get_ident() == here, os.sched_getscheduler(0)))

    _collect(
        200, 3, fill=fill, use=lambda index: writing.add((threading.get_ident() == here, os.sched_getscheduler(0)))
    )

    # The writer fills, too, where it comes first: as what it is.
    assert (False, os.SCHED_BATCH) in filling
    assert filling <= {(False, os.SCHED_BATCH), (True, os.SCHED_OTHER)}
    assert writing == {(True, os.SCHED_OTHER)}


def test_where_the_system_forbids_to_give_way_blocks_are_filled_all_the_same(monkeypatch):
    def forbidden(*arguments):
        raise PermissionError

    monkeypatch.setattr(os, "sched_setscheduler", forbidden)

    assert _collect(20, 3) == [(index, index) for index in range(20)]


def _mapping_of(view: memoryview) -> str:
    """The line of the process's memory map that the view lies in."""
    address = np.frombuffer(view, np.uint8).__array_interface__["data"][0]
    for line in Path("/proc/self/maps").read_text().splitlines():
        begin, end = (int(part, 16) for part in line.split()[0].split("-"))
        if begin <= address < end:
            return line
    return ""


def test_blocks_are_private_memory_that_can_be_in_huge_pages():
    with BlockPool().block() as block:
        line = _mapping_of(block)

        assert line.split()[1] == "rw-p"  # shared memory is in small pages, unless an administrator says otherwise


def test_a_forked_child_neither_has_the_blocks_nor_unmaps_what_takes_their_place():
    pool = BlockPool()
    with pool.block() as block:
        block[:5] = b"ours!"
        place = _mapping_of(block)

    child = os.fork()
    if child == 0:
        free = pool._blocks
        is_gone = not any(_mapping_of_address(place))
        others = [mmap.mmap(-1, pool.size_bytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS) for _ in range(8)]
        for other in others:
            other[:] = b"x" * len(other)
        free.clear()
        del pool
        gc.collect()
        os._exit(0 if is_gone and all(other[:1] == b"x" == other[-1:] for other in others) else 1)

    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    with pool.block() as block:
        assert bytes(block[:5]) == b"ours!"


def _mapping_of_address(place: str) -> list[str]:
    begin = place.split("-")[0]
    return [line for line in Path("/proc/self/maps").read_text().splitlines() if line.startswith(begin)]


def _use_workers(count=50):
    done = []

    def work(next_index):
        while (index := next_index()) is not None:
            done.append(index)

    run_workers(work, count, 4)
    return sorted(done)


@pytest.mark.parametrize("refusal", [RuntimeError("can't start new thread"), MemoryError()])
def test_without_threads_the_caller_does_the_work(monkeypatch, refusal):
    def refuse(*arguments):
        raise refusal

    monkeypatch.setattr(_thread, "start_new_thread", refuse)

    assert _collect(50, 4) == [(index, index) for index in range(50)]
    assert _use_workers() == list(range(50))


def test_threads_that_die_before_they_begin_are_not_waited_for(monkeypatch):
    """As those do for whose first objects there is no memory: they were started, and never run a line."""
    started = []
    monkeypatch.setattr(_thread, "start_new_thread", lambda function, arguments: started.append(function))

    assert _collect(50, 4) == [(index, index) for index in range(50)]
    assert _use_workers() == list(range(50))
    assert len(started) == 6


def test_a_thread_that_begins_too_late_does_nothing(monkeypatch):
    late = []
    monkeypatch.setattr(_thread, "start_new_thread", lambda function, arguments: late.append((function, arguments)))
    filled = []
    _collect(5, 4, fill=filled.append)

    for function, arguments in late:
        function(*arguments)

    assert len(late) == 3
    assert filled == [0, 1, 2, 3, 4]


def test_threads_are_traced_like_those_of_threading():
    seen = set()
    before = threading.gettrace()
    threading.settrace(lambda frame, event, argument: seen.add(threading.get_ident()))
    try:
        _collect(200, 3, fill=lambda index: time.sleep(0.001))
    finally:
        threading.settrace(before)

    assert seen - {threading.get_ident()}
