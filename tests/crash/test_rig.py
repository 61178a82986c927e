"""The rig in small amounts, and once as `make crash` runs it."""

import itertools
import json
import random
import subprocess
import sys
from pathlib import Path

import pytest

from holdfast import native
from tests.crash.agent_sequences import AGENT_SEQUENCES
from tests.crash.beside import Beside
from tests.crash.damage import flip_every_bit, replace_every_file
from tests.crash.explore import explore, replay
from tests.crash.fuzz import fuzz
from tests.crash.interference import interfere
from tests.crash.loop_image import why_not
from tests.crash.memory_damage import flip_bits_in_memory
from tests.crash.models import MODELS, CrashPoint
from tests.crash.mutants import CATCHERS, MUTANTS, try_mutant
from tests.crash.native_damage import damage_natively, damage_natively_in_memory
from tests.crash.outcome import Outcome
from tests.crash.power import cut_many
from tests.crash.sequences import SEQUENCES, record
from tests.crash.subject import small_and_fast
from tests.crash.sweep import sweep

_ROOT = Path(__file__).parents[2]
_QUICKLY_CAUGHT = (
    "no directory is ever synced",
    "writes documents in place",
    "does not check the checksums of chunks",
    "the agent reports before it commits",
    "the agent gives a half-written name again",
    "a rename replaces",
    *(
        ("does not check the checksums of large chunks", "takes what is left of a cut file")
        if native.is_built()
        else ()
    ),
)


def test_a_few_crash_states_of_every_sequence_and_model_hold_the_promises() -> None:
    wanted = 10 * len(SEQUENCES) * len(MODELS)

    outcome = explore(wanted, seed=1)

    assert outcome.violations == []
    assert outcome.counted >= wanted


def test_a_state_can_be_built_again_from_the_numbers_in_its_report() -> None:
    with small_and_fast():
        recorded = record("first save")
    point = CrashPoint(recorded.initial, recorded.operations[:20], "any-subset")
    choices = list(itertools.islice(point.choices(random.Random(1)), 6))[-1]

    tree, problem = replay("first save", "any-subset", 20, choices)

    assert problem == ""
    assert [len(data or b"") for data in tree.values()] == [len(data or b"") for data in point.tree(choices).values()]


@pytest.mark.skipif(why_not() != "", reason=why_not() or "power can be cut here")
def test_a_few_power_cuts_lose_nothing_that_was_acknowledged() -> None:
    assert cut_many(12, seed=1) == Outcome(12, [])


def test_a_full_disk_and_a_kill_at_some_calls_lose_nothing() -> None:
    outcome = sweep(faults=["ENOSPC", "SIGKILL within"], every=15)

    assert outcome.violations == []
    assert outcome.counted > 20


def test_a_takeover_at_some_calls_leaves_one_writer() -> None:
    outcome = interfere(every=25)

    assert outcome.violations == []
    assert outcome.counted >= 5


def test_some_flipped_bits_are_detected_or_harmless() -> None:
    outcome = flip_every_bit(at_most=300)

    assert outcome.violations == []
    assert outcome.counted >= 300


def test_some_flipped_bits_in_memory_are_detected_or_harmless() -> None:
    outcome = flip_bits_in_memory(at_most=100)

    assert outcome.violations == []
    assert outcome.counted >= 100


@pytest.mark.skipif(not native.is_built(), reason="the native part is not built")
def test_damage_of_chunks_that_the_native_part_moves_is_detected() -> None:
    on_disk, in_memory = damage_natively(at_most=100), damage_natively_in_memory(at_most=30)

    assert on_disk.violations == in_memory.violations == []
    assert on_disk.counted >= 100
    assert in_memory.counted >= 30


def test_recorded_lives_with_an_agent_are_the_same_every_time() -> None:
    """Threads and all: a state is named by the number of operations before it."""
    for name in AGENT_SEQUENCES:
        with small_and_fast():
            one, other = ([(op.kind, op.inode, op.offset, op.mark) for op in record(name).operations] for _ in range(2))

        assert one == other, name


def test_every_file_cut_swapped_or_replaced_is_detected_or_harmless() -> None:
    outcome = replace_every_file()

    assert outcome.violations == []
    assert outcome.counted > 50


def test_some_hostile_documents_are_refused_without_executing_anything() -> None:
    outcome = fuzz(200, seed=1)

    assert outcome.violations == []
    assert outcome.counted == 200


def test_every_part_of_the_rig_has_mutants_to_catch() -> None:
    assert {mutant.caught_by for mutant in MUTANTS} == set(CATCHERS)
    assert len({mutant.name for mutant in MUTANTS}) == len(MUTANTS) >= 12


@pytest.mark.parametrize("name", _QUICKLY_CAUGHT)
def test_a_broken_variant_is_caught(name: str) -> None:
    mutant = next(mutant for mutant in MUTANTS if mutant.name == name)

    assert try_mutant(mutant).startswith("caught ")


@pytest.mark.skipif(why_not() != "", reason=why_not() or "power can be cut here")
def test_parts_that_run_beside_the_others_are_told_and_counted_with_them() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "tests.crash", "--quick", "--seed=1", "--only=fuzzed", "--only=power_cuts"],
        cwd=_ROOT,
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )

    *said, last = done.stdout.splitlines()
    assert [line.split()[0] for line in said] == ["fuzzed", "power_cuts"]
    assert {name: count for name, count in json.loads(last).items() if count} == {"fuzzed": 600, "power_cuts": 12}


def test_parts_beside_the_others_that_end_without_counts_are_a_violation(
    capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(_ROOT)

    with Beside(["--only=nothing"]) as others:
        found = others.wait()

    assert found == {"violations": 1}
    assert "ended with status 2" in capfd.readouterr().out


@pytest.mark.crash
def test_the_whole_rig_finds_no_violation_and_every_mutant() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "tests.crash"], cwd=_ROOT, stdout=subprocess.PIPE, text=True, timeout=1800, check=False
    )

    assert done.returncode == 0, done.stdout[-5000:]
    summary = json.loads(done.stdout.splitlines()[-1])
    assert summary["violations"] == 0
    assert summary["mutants_caught"] == summary["mutants"] >= 12
    assert summary["states"] >= 100_000
    assert summary["power_cuts"] >= 200 or why_not()
