"""What a checkpoint costs on machines that are drawn: nothing that no machine can do."""

import random

import pytest

from holdfast.testing.machines import Machine, random_machine
from holdfast.testing.scenarios import INDEPENDENT, random_scenario

PLAIN = Machine(
    size_bytes=1e9,
    copy_bytes_s=10e9,
    fixed_s=0.001,
    copied=1.0,
    waits=False,
    storage_bytes_s=0.5e9,
    commit_s=0.01,
    computing_s_gb=0.4,
    lost=0.5,
    queued=0.6,
    contention=0.0,
)


def test_a_checkpoint_costs_a_copy_and_what_the_agent_takes_from_the_training() -> None:
    piece = PLAIN.piece(100, 1.0)

    assert piece.stall_s == pytest.approx(0.101)
    assert piece.durable_s == pytest.approx(0.101 + 2.0 + 0.01)
    assert piece.slow_s == pytest.approx(0.2)
    assert piece.queued_s == pytest.approx(0.24)


def test_a_slower_storage_makes_neither_the_stall_longer_nor_the_computing() -> None:
    usual, slower = PLAIN.piece(100, 1.0), PLAIN.piece(100, 1.0, slower=5.0)

    assert slower.durable_s > 4 * usual.durable_s
    assert slower.stall_s == usual.stall_s
    assert slower.slow_s == pytest.approx(usual.slow_s)
    # But whoever reads from that storage waits for longer.
    busy = PLAIN._replace(contention=0.1)
    assert busy.piece(100, 1.0, slower=5.0).slow_s > 3 * busy.piece(100, 1.0).slow_s - usual.slow_s


def test_a_state_that_grows_costs_more_of_everything() -> None:
    usual, grown = PLAIN.piece(100, 1.0), PLAIN.piece(100, 1.0, grown=3.0)

    assert grown.cost_s == pytest.approx(3 * usual.cost_s, rel=0.01)
    assert grown.queued_s == pytest.approx(3 * (usual.queued_s or 0.0))


def test_who_waits_for_the_write_is_not_slowed_by_it_afterwards() -> None:
    piece = PLAIN._replace(waits=True).piece(100, 1.0)

    assert piece.stall_s == pytest.approx(0.101 + 2.0)
    assert piece.slow_s == piece.queued_s == 0.0


def test_no_machine_does_what_none_can() -> None:
    for seed in range(2000):
        machine = random_machine(random.Random(seed))
        piece = machine.piece(1, 1.0)
        assert piece.durable_s > piece.stall_s > 0
        # One core, at the most, computes.
        assert piece.durable_s >= machine.computing_s_gb * machine.size_bytes / 1e9
        assert 0 <= piece.slow <= 1


def test_scenarios_from_before_there_were_machines_are_kept() -> None:
    piece = random_scenario(7, draw=INDEPENDENT).pieces[0]

    assert piece.queued_s is None
    assert piece != random_scenario(7).pieces[0]
