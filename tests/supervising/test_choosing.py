"""Whom a signal is meant for, of a tree of processes."""

import signal

import pytest

from holdfast.engine.process_tree import Process
from holdfast.supervising.relaying import as_its_launcher_takes_it, choose


def tree(**parents: int) -> dict[int, Process]:
    """Processes by name: `bash_10=1` is bash with the number 10, a child of 1."""
    found = {}
    for key, parent in parents.items():
        name, _, pid = key.rpartition("_")
        found[int(pid)] = Process(parent, "S", name, 10)
    return found


PIPELINE = tree(bash_10=1, python_11=10, tee_12=10)


def test_the_program_that_uses_holdfast_gets_it_and_not_the_shell_around_it():
    assert choose(PIPELINE, [11], {10, 11}, child=10) == [11]


def test_all_ranks_get_it():
    family = tree(mpirun_10=1, python_11=10, python_12=10)

    assert choose(family, [12, 11], {10, 11, 12}, child=10) == [11, 12]


def test_a_number_that_is_not_of_the_family_is_not_believed():
    """A program in a container tells the number that it has there."""
    assert choose(PIPELINE, [7], {11}, child=10) == [11]


def test_without_beats_those_that_catch_it_get_it():
    assert choose(PIPELINE, [], {11}, child=10) == [11]


def test_a_shell_that_catches_it_does_not_keep_it_from_its_program():
    assert choose(PIPELINE, [], {10, 11}, child=10) == [11]


def test_a_shell_with_a_trap_gets_it_where_nothing_else_catches_it():
    assert choose(PIPELINE, [], {10}, child=10) == [10]


def test_a_launcher_that_catches_it_tells_its_own():
    family = tree(bash_10=1, srun_11=10, srun_12=11, python_13=12)

    assert choose(family, [], {11, 13}, child=10) == [11]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP, signal.SIGINT])
def test_srun_gets_a_signal_that_it_passes_on_instead_of_killing_its_tasks(number):
    assert as_its_launcher_takes_it(number, "srun") == signal.SIGUSR1
    assert as_its_launcher_takes_it(number, "mpirun") == number


def test_where_nobody_catches_it_the_child_gets_it():
    assert choose(PIPELINE, [], set(), child=10) == [10]


def test_where_nothing_is_left_nobody_gets_it():
    assert choose({}, [11], set(), child=10) == []
