"""The thread that copies: one after the other, lets go of what it did, and is made anew after a fork."""

import gc
import os
import threading
import weakref

import numpy as np
import pytest

from holdfast.engine.copier import Copier, run_in_thread


@pytest.fixture
def copier():
    made = Copier()
    yield made
    made.close()


def test_work_is_done_in_order_by_one_other_thread(copier):
    done, finished = [], threading.Event()
    for number in range(100):
        copier.run(lambda number=number: done.append((number, threading.get_ident())))
    copier.run(finished.set)

    assert finished.wait(60)
    assert [number for number, _ in done] == list(range(100))
    assert len({thread for _, thread in done} | {threading.get_ident()}) == 2


def test_it_lets_go_of_what_it_worked_on(copier):
    array, finished = np.ones(3), threading.Event()
    gone = weakref.ref(array)
    copier.run(lambda array=array: array.sum())
    copier.run(finished.set)
    assert finished.wait(60)

    del array
    gc.collect()

    assert gone() is None


@pytest.mark.parametrize("run", [run_in_thread, lambda work: Copier().run(work)])
def test_without_threads_it_is_done_here_and_now(run, monkeypatch):
    def refuse(_):
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", refuse)
    done = []

    run(lambda: done.append(threading.get_ident()))

    assert done == [threading.get_ident()]


def test_a_forked_child_gets_a_thread_of_its_own(copier):
    finished = threading.Event()
    copier.run(finished.set)
    assert finished.wait(60)

    child = os.fork()
    if child == 0:
        again = threading.Event()
        copier.run(again.set)
        os._exit(0 if again.wait(60) else 1)

    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def test_the_thread_ends_when_it_is_closed(copier):
    workers = []
    copier.run(lambda: workers.append(threading.current_thread()))
    copier.close()

    while not workers:
        threading.Event().wait(0.01)
    workers[0].join(60)
    assert not workers[0].is_alive()
