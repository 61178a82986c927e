"""What an audit finds in a ledger: all that was planted, and nothing else."""

import random
from collections.abc import Iterable
from typing import Any, NamedTuple

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.data.order import Order
from holdfast.data.progress import Progress
from holdfast.data.sharing import next_batch, share_of
from holdfast.engine.auditing import CHANGED, DISORDERED, FOREIGN, REPEATED, SKIPPED, SourceAudit, audit
from holdfast.engine.ledger import MAX_ENTRIES, Entry, Ledger, entries_of
from holdfast.engine.recomputing import cost_of


class Batch(NamedTuple):
    """Positions of an epoch that were handed out for a step."""

    attempt: int
    step: int
    epoch: int
    begin: int
    end: int


class Setup(NamedTuple):
    """The data, and who takes which part of it."""

    length: int
    batch_size: int = 4
    world: int = 1
    rank: int = 0
    seed: int = 7
    shuffle: bool = True
    pad: bool = False
    tells: dict[str, Any] = {}  # noqa: RUF012  # of drop_last and pad; nothing, as older ledgers

    def facts(self) -> dict[str, Any]:
        names = ("seed", "length", "shuffle", "rank", "world", "batch_size")
        return {name: getattr(self, name) for name in names} | self.tells

    def indices(self, batch: Batch) -> Any:
        order = Order(self.length, seed=self.seed, epoch=batch.epoch, shuffle=self.shuffle)
        parts = share_of(range(batch.begin, batch.end), self.rank, self.world, pad=self.pad)
        return np.concatenate([order.indices(part.start, part.stop) for part in parts])


def ledger_attempt(ledger: Ledger) -> int:
    return max((entry.attempt for entry in entries_of(ledger.plain())), default=0)


def run(setup: Setup, batches: Iterable[Batch], ledger: Ledger | None = None) -> Ledger:
    """The ledger of a training that was handed these batches; read again where an attempt begins."""
    ledger = ledger or Ledger()
    attempt = ledger_attempt(ledger)
    for batch in batches:
        if attempt and batch.attempt != attempt:
            ledger = Ledger.from_plain(msgspec.json.decode(msgspec.json.encode(ledger.plain())))
        attempt = batch.attempt
        handed = (batch.epoch, batch.begin, batch.end, setup.indices(batch))
        ledger.note("data", attempt=batch.attempt, step=batch.step, handed=handed, facts=setup.facts())
    return ledger


def clean(setup: Setup, *, epochs: int, drop_last: bool = False, attempts: tuple[int, ...] = ()) -> list[Batch]:
    """All batches of the epochs. Each of `attempts` is a step before which another attempt begins."""
    found: list[Batch] = []
    for epoch in range(epochs):
        consumed = 0
        while positions := next_batch(consumed, setup.length, setup.batch_size * setup.world, drop_last=drop_last):
            step = len(found) + 1
            attempt = 1 + sum(step >= begin for begin in attempts)
            found.append(Batch(attempt, step, epoch, positions.start, positions.stop))
            consumed = positions.stop
    return found


def renumbered(batches: Iterable[Batch]) -> list[Batch]:
    return [batch._replace(step=step) for step, batch in enumerate(batches, 1)]


def audited(ledger: Ledger, **options: Any) -> SourceAudit:
    (found,) = audit(entries_of(ledger.plain()), **options)
    return found


def told(found: SourceAudit) -> list[tuple[str, int, int, int, int]]:
    return [(f.kind, f.epoch, f.begin, f.end, f.attempt) for f in found.findings]


def expected_of(setup: Setup, batches: list[Batch]) -> set[tuple[Any, ...]]:
    """Position by position: what happened to it, in which attempt, and in which step where that is known exactly."""
    seen: set[tuple[int, int]] = set()
    newest, furthest = 0, {}
    found: set[tuple[Any, ...]] = set()
    for batch in batches:
        newest = max(newest, batch.epoch)
        behind = furthest.get(batch.epoch, 0)
        for position in range(batch.begin, batch.end):
            where = (batch.epoch, position, batch.attempt, batch.step)
            if (batch.epoch, position) in seen:
                found.add((REPEATED, *where))
            elif batch.epoch < newest or position < behind:
                found.add((DISORDERED, *where))
            seen.add((batch.epoch, position))
        furthest[batch.epoch] = max(behind, batch.end)
    for epoch in furthest:
        until = setup.length if epoch < newest else furthest[epoch]
        for position in range(until):
            if (epoch, position) not in seen:
                passed = next(b for b in batches if b.epoch > epoch or (b.epoch == epoch and b.begin > position))
                found.add((SKIPPED, epoch, position, passed.attempt))
    return found


def assert_told(found: SourceAudit, expected: set[tuple[Any, ...]]) -> None:
    """The findings name these positions and no others, each with its step between the first and the last."""
    spread = {(f.kind, f.epoch, position, f.attempt): f for f in found.findings for position in range(f.begin, f.end)}
    assert set(spread) == {one[:4] for one in expected}
    for kind, epoch, position, attempt, *step in expected:
        covering = [
            f
            for f in found.findings
            if (f.kind, f.epoch, f.attempt) == (kind, epoch, attempt) and f.begin <= position < f.end
        ]
        assert not step or any(f.first_step <= step[0] <= f.last_step for f in covering)
    for f in found.findings:
        if f.kind != SKIPPED:
            assert (f.kind, f.epoch, f.begin, f.attempt, f.first_step) in expected
            assert (f.kind, f.epoch, f.end - 1, f.attempt, f.last_step) in expected


setups = st.builds(
    Setup,
    length=st.integers(1, 60),
    batch_size=st.integers(1, 7),
    world=st.integers(1, 3),
    rank=st.just(0),
    seed=st.integers(-3, 3),
    shuffle=st.booleans(),
    pad=st.booleans(),
    tells=st.just({}),
)


@settings(max_examples=150, deadline=None)
@given(
    setups,
    st.integers(1, 4),
    st.booleans(),
    st.lists(st.integers(2, 40), max_size=3).map(sorted).map(tuple),
    st.integers(0, 40),
    st.data(),
)
def test_a_sound_history_has_no_findings_wherever_attempts_began_and_it_stopped(
    setup, epochs, drop_last, attempts, stopped, data
):
    told = data.draw(st.sampled_from([{}, {"drop_last": drop_last, "pad": setup.pad}]))
    setup = setup._replace(rank=data.draw(st.integers(0, setup.world - 1)), tells=told)
    batches = clean(setup, epochs=epochs, drop_last=drop_last, attempts=attempts)
    batches = batches[: max(1, len(batches) - stopped)]
    if not batches:
        return

    found = audited(run(setup, batches))

    assert found.findings == []
    assert found.compared == len(run(setup, batches).plain())
    assert sum(epoch.batches for epoch in found.epochs) == len(batches)
    assert {epoch.left_out for epoch in found.epochs} <= {0, setup.length % (setup.batch_size * setup.world)}


@settings(max_examples=300, deadline=None)
@given(setups, st.integers(1, 4), st.lists(st.integers(2, 40), max_size=2).map(sorted).map(tuple), st.randoms())
def test_repeats_skips_and_swaps_are_found_exactly(setup, epochs, attempts, dice: random.Random):
    batches = clean(setup, epochs=epochs, attempts=attempts)
    for _ in range(dice.randint(1, 3)):
        at = dice.randrange(len(batches))
        planted = dice.choice(["repeat", "skip", "swap"])
        if planted == "repeat":
            batches.insert(dice.randint(at + 1, len(batches)), batches[at])
        elif planted == "skip" and len(batches) > 1:
            del batches[at]
        elif planted == "swap" and at + 1 < len(batches):
            batches[at], batches[at + 1] = batches[at + 1], batches[at]
    # Attempts begin where they do: what was planted belongs to the attempt in which it happens.
    batches = [
        batch._replace(attempt=1 + sum(step >= begin for begin in attempts), step=step)
        for step, batch in enumerate(batches, 1)
    ]

    found = audited(run(setup, batches))
    expected = expected_of(setup, batches)

    # An epoch that is missing as a whole is told once, with those that follow it.
    there = {batch.epoch for batch in batches}
    missing = {number for number in range(max(there)) if number not in there}
    told_missing = {finding.epoch for finding in found.findings} & missing
    assert told_missing == {number for number in missing if number - 1 not in missing}
    on_purpose = {
        (SKIPPED, epoch.number, position)
        for epoch in found.epochs
        for position in range(setup.length - epoch.left_out, setup.length)
    }
    others = found._replace(findings=[finding for finding in found.findings if finding.epoch in there])
    assert_told(others, {one for one in expected if one[:3] not in on_purpose})


def test_a_repeated_batch_is_named_with_both_attempts_steps_and_samples():
    setup = Setup(length=12)
    batches = clean(setup, epochs=2, attempts=(5,))
    batches.insert(5, batches[4])

    found = audited(run(setup, renumbered(batches)))

    first, *_ = samples = Order(12, seed=7, epoch=1).indices(4, 8).tolist()
    (finding,) = found.findings
    assert finding[:7] == (REPEATED, 1, 4, 8, 2, 6, 6)
    assert finding.samples == tuple(samples)
    assert finding.text.startswith(f"epoch 1, positions 4–7 (samples {first}, ")
    assert finding.text.endswith("): repeated at step 6 of attempt 2; before that at step 5 of attempt 2")


def test_a_training_that_forgot_its_position_repeats_what_it_had():
    setup = Setup(length=12)
    ledger = run(setup, clean(setup, epochs=1)[:2])

    again = [Batch(2, 3 + at, 0, batch.begin, batch.end) for at, batch in enumerate(clean(setup, epochs=1))]
    found = audited(run(setup, again, ledger))

    (finding,) = found.findings
    assert finding[:7] == (REPEATED, 0, 0, 8, 2, 3, 4)
    assert "before that at steps 1–2 of attempt 1" in finding.text


def test_a_skipped_batch_is_told_with_who_went_on_behind_it():
    setup = Setup(length=12, shuffle=False)
    batches = clean(setup, epochs=2)
    del batches[1]

    (finding,) = audited(run(setup, renumbered(batches))).findings

    assert finding.text == (
        "epoch 0, positions 4–7 (samples 4, 5, 6, 7): skipped: attempt 1 went on behind them at step 2"
    )


def test_an_end_shorter_than_a_batch_is_left_out_on_purpose():
    setup = Setup(length=10)

    found = audited(run(setup, clean(setup, epochs=3, drop_last=True)))

    assert found.findings == []
    assert [(e.end, e.left_out, e.under_way) for e in found.epochs] == [(8, 2, False)] * 3


def test_an_end_that_may_be_yet_to_come_is_under_way():
    setup = Setup(length=10)

    found = audited(run(setup, clean(setup, epochs=2)[:-1]))

    assert found.findings == []
    assert [(e.end, e.left_out, e.under_way) for e in found.epochs] == [(10, 0, False), (8, 0, True)]


def test_an_end_that_the_same_attempt_hands_out_elsewhere_is_skipped():
    setup = Setup(length=10)
    batches = [batch for batch in clean(setup, epochs=3) if (batch.epoch, batch.begin) != (1, 8)]

    found = audited(run(setup, renumbered(batches)))

    assert told(found) == [(SKIPPED, 1, 8, 10, 1)]


@pytest.mark.parametrize("tells", [{}, {"drop_last": False, "pad": False}])
def test_an_end_that_only_a_later_attempt_hands_out_is_skipped_where_it_is_missing(tells):
    setup = Setup(length=100, batch_size=16, tells=tells)
    batches = [batch for batch in clean(setup, epochs=3, attempts=(7,)) if (batch.epoch, batch.begin) != (0, 96)]

    found = audited(run(setup, renumbered(batches)))

    assert told(found) == [(SKIPPED, 0, 96, 100, 2)]


def test_an_end_that_no_attempt_hands_out_is_skipped_where_the_ledger_says_that_it_should():
    setup = Setup(length=10, tells={"drop_last": False, "pad": False})

    found = audited(run(setup, clean(setup, epochs=3, drop_last=True)))

    assert told(found) == [(SKIPPED, 0, 8, 10, 1), (SKIPPED, 1, 8, 10, 1)]
    assert found.epochs[-1].under_way


def test_an_epoch_is_over_where_the_ledger_says_that_its_end_is_left_out():
    setup = Setup(length=10, tells={"drop_last": True, "pad": False})

    (epoch,) = audited(run(setup, clean(setup, epochs=1, drop_last=True))).epochs

    assert (epoch.left_out, epoch.under_way) == (2, False)


@pytest.mark.parametrize("tells", [{}, {"drop_last": True, "pad": False}])
def test_an_end_that_is_less_than_a_batch_after_a_restart_with_larger_ones_is_left_out_on_purpose(tells):
    small, large = (Setup(length=100, batch_size=size, tells=tells) for size in (10, 32))
    ledger = run(small, clean(small, epochs=1)[:9])

    found = audited(run(large, [Batch(2, 10 + at, 1, 32 * at, 32 * at + 32) for at in range(3)], ledger))

    assert found.findings == []
    assert found.epochs[0].left_out == 10


@settings(max_examples=200, deadline=None)
@given(st.integers(1, 60), st.integers(1, 4), st.data())
def test_a_history_whose_attempts_have_other_batches_has_no_findings(length, attempts, data):
    ledger, state, step, handed_out = Ledger(), None, 0, 0
    for attempt in range(1, attempts + 1):
        size, world, drop_last, pad = data.draw(
            st.tuples(st.integers(1, 20), st.integers(1, 3), st.booleans(), st.booleans())
        )
        drop_last = drop_last and size * world <= length
        options: dict[str, Any] = {"batch_size": size, "world": world, "drop_last": drop_last, "pad": pad}
        progress = Progress(length, seed=7, **options)
        if state is not None:
            progress.load_state_dict(state)
            ledger = Ledger.from_plain(msgspec.json.decode(msgspec.json.encode(ledger.plain())))
        for _ in range(data.draw(st.integers(1, 30))):
            while not (positions := next(progress.rest(), None)):
                progress.end_epoch()
            handed = (progress.epoch, positions.start, positions.stop, progress.indices_of(positions))
            step, handed_out = step + 1, handed_out + 1
            facts = {**progress.facts, "drop_last": drop_last, "pad": pad}
            ledger.note("data", attempt=attempt, step=step, handed=handed, facts=facts)
            progress.consume(positions)
        state = progress.state_dict()

    found = audited(ledger)

    assert found.findings == []
    assert found.compared == found.entries
    assert sum(epoch.batches for epoch in found.epochs) == handed_out


def test_epochs_that_are_missing_are_one_finding_even_if_there_are_many():
    setup = Setup(length=8)
    batches = [Batch(1, 1, 0, 0, 4), Batch(1, 2, 0, 4, 8), Batch(1, 3, 2**60, 0, 4)]

    (finding,) = audited(run(setup, batches)).findings

    assert finding.text == (f"epochs 1–{2**60 - 1} are missing: attempt 1 went on with epoch {2**60} at step 3")


def test_an_epoch_that_comes_too_late_is_out_of_order():
    setup = Setup(length=4)

    found = audited(run(setup, [Batch(1, 1, 0, 0, 4), Batch(1, 2, 2, 0, 4), Batch(1, 3, 1, 0, 4)]))

    assert told(found) == [(DISORDERED, 1, 0, 4, 1)]
    assert "after epoch 2 had begun" in found.findings[0].text


def test_a_ledger_that_begins_later_does_not_judge_what_was_before():
    setup = Setup(length=12)

    found = audited(run(setup, [batch for batch in clean(setup, epochs=3) if batch.step >= 5]))

    assert found.findings == []
    assert found.remarks == ["the ledger begins with step 5, epoch 1, position 4: what was before is not known"]


def test_a_ledger_that_has_forgotten_its_first_entries_does_not_judge_them_whatever_the_steps():
    setup = Setup(length=4)
    batches = [Batch(1, 1, epoch, 0, 4) for epoch in range(MAX_ENTRIES + 3)]

    found = audited(run(setup, batches))

    assert found.findings == []
    assert found.remarks == ["the ledger begins with step 1, epoch 3, position 0: what was before is not known"]


def test_one_that_goes_on_from_a_checkpoint_without_a_ledger_does_not_judge_what_was_before():
    setup = Setup(length=12)
    ledger = run(setup, renumbered(clean(setup, epochs=3)[4:6]), Ledger.from_plain(None))

    found = audited(run(setup, [Batch(2, 3, 2, 0, 4)], ledger))

    assert found.findings == []
    assert found.remarks == ["the ledger begins with step 1, epoch 1, position 4: what was before is not known"]


def test_data_that_begins_late_with_its_first_sample_has_nothing_before():
    setup = Setup(length=12)

    found = audited(run(setup, [batch._replace(step=batch.step + 70) for batch in clean(setup, epochs=1)]))

    assert (found.findings, found.remarks) == ([], [])


def test_one_that_begins_with_the_training_does():
    setup = Setup(length=12)

    found = audited(run(setup, renumbered(clean(setup, epochs=2)[1:])))

    assert told(found) == [(SKIPPED, 0, 0, 4, 1)]


def test_other_samples_than_those_of_the_seed_are_found():
    setup = Setup(length=12)
    first, second = clean(setup, epochs=2, attempts=(4,))[:3], clean(setup, epochs=2, attempts=(4,))[3:]
    ledger = run(setup, first)
    for batch in second:
        samples = setup.indices(batch)[::-1]  # the right ones, in another order
        handed = (batch.epoch, batch.begin, batch.end, samples)
        ledger.note("data", attempt=2, step=batch.step, handed=handed, facts=setup.facts())

    found = audited(ledger)

    assert told(found) == [(FOREIGN, 1, 0, 12, 2)]
    assert found.findings[0].text.endswith("the samples of steps 4–6 (attempt 2) are not those of seed 7")
    assert audited(ledger, compare=False).findings == []


def test_another_seed_in_the_middle_of_an_epoch_is_found_and_one_between_epochs_is_said():
    setup = Setup(length=8)
    batches = clean(setup, epochs=3, attempts=(2, 5))

    ledger = run(setup, batches[:1])
    ledger = run(setup._replace(seed=8), batches[1:4], ledger)
    found = audited(run(setup._replace(seed=9), batches[4:], ledger))

    assert told(found) == [(CHANGED, 0, 4, 8, 2)]
    assert "seed 7 → 8 with step 2 of attempt 2" in found.findings[0].text
    assert found.remarks == ["seed 8 → 9 with step 5 of attempt 3"]


def test_another_number_of_ranks_in_the_middle_of_an_epoch_is_said_and_no_fault():
    before, after = Setup(length=24, world=3, rank=1, batch_size=2), Setup(length=24, world=2, rank=1, batch_size=4)
    ledger = run(before, [Batch(1, 1, 0, 0, 6), Batch(1, 2, 0, 6, 12)])

    found = audited(run(after, [Batch(2, 3, 0, 12, 20), Batch(2, 4, 0, 20, 24)], ledger))

    assert (found.findings, found.compared) == ([], 2)
    assert found.remarks == [
        "this is the ledger of rank 1 of 3: positions are those of all ranks, samples those of this one",
        "batch_size 2 → 4, world 3 → 2 with step 3 of attempt 2",
    ]


def test_a_change_of_what_becomes_of_ends_is_said_where_it_was_known_before():
    setup = Setup(length=8)
    batches = clean(setup, epochs=3, attempts=(3, 5))
    ledger = run(setup, batches[:2])
    ledger = run(setup._replace(tells={"drop_last": False, "pad": False}), batches[2:4], ledger)

    found = audited(run(setup._replace(tells={"drop_last": True, "pad": False}), batches[4:], ledger))

    assert (found.findings, found.remarks) == ([], ["drop_last False → True with step 5 of attempt 3"])


def test_positions_beyond_the_epoch_are_found():
    ledger = Ledger()
    facts = Setup(length=8).facts()

    for step, begin in enumerate((0, 4, 8), 1):
        ledger.note("data", attempt=1, step=step, handed=(0, begin, begin + 4, np.arange(4)), facts=facts)

    assert told(audited(ledger)) == [(FOREIGN, 0, 8, 12, 1)]


def test_samples_without_numbers_are_judged_by_their_positions():
    ledger = Ledger()
    for step, (begin, end) in enumerate(((0, 4), (4, 8), (12, 16)), 1):
        ledger.note("stream", attempt=1, step=step, handed=(0, begin, end, None), facts={})

    found = audited(ledger)

    assert told(found) == [(SKIPPED, 0, 8, 12, 1)]
    assert (found.findings[0].samples, found.compared) == ((), 0)
    assert "positions only" in found.remarks[0]


def test_what_would_take_forever_is_left_out_and_said():
    ledger = Ledger()
    facts = Setup(length=2**61, batch_size=2**61).facts()
    ledger.note("data", attempt=1, step=1, handed=(0, 0, 2**61, np.arange(4)), facts=facts)

    found = audited(ledger)

    assert (found.findings, found.compared) == ([], 0)
    assert found.remarks == ["1 of 1 entries have too many samples to compute again: not compared"]
    assert found.entries == 1


@pytest.mark.parametrize("world", [1, 3])
def test_progress_is_told_within_an_entry_and_adds_up_to_its_cost(world):
    setup = Setup(length=1_000_001, batch_size=1000, world=world, shuffle=False)
    ledger = run(setup, [batch._replace(step=1) for batch in clean(setup, epochs=1)])
    told_of: list[int] = []

    found = audited(ledger, progress=told_of.append)

    (entry,) = entries_of(ledger.plain())
    assert found.findings == []
    assert len(told_of) > 5
    assert sum(told_of) == pytest.approx(cost_of(entry), rel=1e-3)


def test_whether_shares_are_filled_up_is_not_guessed_where_the_ledger_says_it():
    setup = Setup(length=10, batch_size=2, world=3, rank=2, pad=True)
    batches = clean(setup, epochs=1)

    assert audited(run(setup, batches)).findings == []
    assert audited(run(setup._replace(tells={"pad": True}), batches)).findings == []
    assert told(audited(run(setup._replace(tells={"pad": False}), batches))) == [(FOREIGN, 0, 0, 10, 1)]


@pytest.mark.parametrize(("ended", "under_way"), [(None, True), ({"data": 0}, True), ({"data": 1}, False)])
def test_of_data_without_a_length_the_last_epoch_is_under_way_unless_it_is_known_to_be_over(ended, under_way):
    ledger = Ledger()
    for step, epoch in enumerate((0, 0, 1, 1), 1):
        ledger.note("data", attempt=1, step=step, handed=(epoch, 1 - step % 2, 2 - step % 2, None), facts={})

    found = audited(ledger, ended=ended)

    assert [(epoch.under_way, epoch.counts) for epoch in found.epochs] == [(False, "batches"), (under_way, "batches")]


def test_an_entry_that_is_left_out_is_not_counted_as_compared():
    small = entries_of(run(Setup(length=4), [Batch(1, 1, 0, 0, 4)]).plain())
    large = Entry("data", 1, 2, 2, 1, 1, 0, 2**61, 2**61, 7, 2**61, True, 0, 1, "0" * 32)

    (found,) = audit([*small, large])

    assert (found.entries, found.compared) == (2, 1)


@pytest.mark.parametrize("accumulated", [1, 2])
def test_steps_are_exact_only_where_each_has_one_batch(accumulated):
    setup = Setup(length=16)
    batches = [b._replace(step=(b.step - 1) // accumulated + 1) for b in clean(setup, epochs=1)]
    again = Batch(2, 9, 0, 8, 12)

    (finding,) = audited(run(setup, [*batches, again])).findings

    before = "at step 3" if accumulated == 1 else "within steps 1–2"
    assert finding.text.endswith(f"repeated at step 9 of attempt 2; before that {before} of attempt 1")
