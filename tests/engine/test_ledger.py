"""Which samples went into which step: what is one entry, what it says, and what no reader accepts."""

from typing import Any

import msgspec
import numpy as np
import pytest
from blake3 import blake3

from holdfast.core.errors import FormatError, UsageError
from holdfast.data.protocol import Handed
from holdfast.engine.ledger import MAX_ENTRIES, MAX_READ, Entry, Ledger, entries_of

FACTS: dict[str, Any] = {"seed": 7, "length": 10, "shuffle": True, "rank": 0, "world": 1, "batch_size": 4}


def note(ledger: Ledger, *batches: tuple[int, int, int], step: int = 1, attempt: int = 1, **facts: Any) -> None:
    """Epoch, begin and end of each; a step each; the samples are the positions."""
    for at, (epoch, begin, end) in enumerate(batches):
        handed = Handed(epoch, begin, end, np.arange(begin, end, dtype=np.int64))
        ledger.note("data", attempt=attempt, step=step + at, handed=handed, facts=FACTS | facts)


def digest(*ranges: range) -> str:
    numbers = np.concatenate([np.arange(r.start, r.stop, dtype="<i8") for r in ranges])
    return blake3(numbers.tobytes()).hexdigest(length=16)


def through_json(ledger: Ledger) -> Any:
    return msgspec.json.decode(msgspec.json.encode(ledger.plain()))


def spans(ledger: Ledger) -> list[tuple[int, int, int, int]]:
    return [(e.epoch, e.begin, e.end, e.batches) for e in entries_of(ledger.plain())]


def test_batches_that_follow_each_other_are_one_entry_with_the_shorter_last_one():
    ledger = Ledger()

    note(ledger, (0, 0, 4), (0, 4, 8), (0, 8, 10), step=5)

    (entry,) = entries_of(ledger.plain())
    assert entry == Entry("data", 1, 5, 7, 3, 0, 0, 10, 4, 7, 10, True, 0, 1, digest(range(10)))


def test_several_batches_may_go_into_one_step():
    ledger = Ledger()

    note(ledger, (0, 0, 4), step=3)
    note(ledger, (0, 4, 8), step=3)

    (entry,) = entries_of(ledger.plain())
    assert (entry.first_step, entry.last_step, entry.batches) == (3, 3, 2)


@pytest.mark.parametrize(
    ("second", "changes"),
    [
        ((1, 0, 4), {}),
        ((0, 0, 4), {}),
        ((0, 8, 10), {}),
        ((0, 4, 8), {"attempt": 2}),
        ((0, 4, 8), {"step": 1}),
        ((0, 4, 8), {"seed": 8}),
        ((0, 4, 8), {"length": 12}),
        ((0, 4, 10), {}),
    ],
    ids=["epoch", "again", "gap", "attempt", "step back", "seed", "length", "larger"],
)
def test_what_does_not_go_on_is_another_entry(second, changes):
    ledger = Ledger()
    note(ledger, (0, 0, 4), step=2)

    note(ledger, second, **{"step": 3, **changes})

    assert len(ledger.plain()) == 2


def test_nothing_joins_after_a_shorter_batch():
    ledger = Ledger()

    note(ledger, (0, 0, 3), (0, 3, 7), (0, 7, 9), (0, 9, 10))

    assert spans(ledger) == [(0, 0, 3, 1), (0, 3, 9, 2), (0, 9, 10, 1)]


def test_sources_that_take_turns_have_an_entry_each():
    ledger = Ledger()

    for at in range(6):
        handed = Handed(0, at, at + 1, None)
        for source in ("images", "texts"):
            ledger.note(source, attempt=1, step=at, handed=handed, facts={"seed": None, "batch_size": None})

    found = entries_of(ledger.plain())
    assert [(e.source, e.begin, e.end, e.digest, e.seed) for e in found] == [
        ("images", 0, 6, "", None),
        ("texts", 0, 6, "", None),
    ]


def test_samples_without_numbers_join_whatever_the_size_of_their_batches():
    ledger = Ledger()

    for begin, end in ((0, 3), (3, 9), (9, 10)):
        ledger.note("stream", attempt=1, step=begin, handed=Handed(0, begin, end, None), facts={"world": 4, "rank": 2})

    assert spans(Ledger.from_plain(through_json(ledger))) == [(0, 0, 10, 3)]


def test_what_is_saved_does_not_change_with_later_batches_and_is_continued_by_a_new_entry():
    ledger = Ledger()
    note(ledger, (0, 0, 4))
    saved = ledger.plain()
    expected = msgspec.json.encode(saved)

    note(ledger, (0, 4, 8))
    resumed = Ledger.from_plain(msgspec.json.decode(expected))
    note(resumed, (0, 4, 8), (0, 8, 10), attempt=2, step=2)

    assert msgspec.json.encode(saved) == expected
    assert [(e.attempt, e.begin, e.end, e.digest) for e in entries_of(through_json(resumed))] == [
        (1, 0, 4, digest(range(4))),
        (2, 4, 10, digest(range(4, 10))),
    ]


def test_numbers_of_any_width_and_layout_give_the_same_digest():
    wide, other = Ledger(), Ledger()
    numbers = np.array([3, 1, 2, 0])

    wide.note("data", attempt=1, step=1, handed=(0, 0, 4, numbers.astype("<i8")), facts=FACTS)
    strided = np.repeat(numbers.astype(">i4"), 2)[::2]
    other.note("data", attempt=1, step=1, handed=(0, 0, 4, strided), facts=FACTS)  # type: ignore[arg-type]

    assert wide.plain() == other.plain()


def test_a_source_that_changes_its_facts_in_place_is_noticed():
    ledger, facts = Ledger(), dict(FACTS)
    ledger.note("data", attempt=1, step=1, handed=(0, 0, 4, np.arange(4)), facts=facts)

    facts["seed"] = 8
    ledger.note("data", attempt=1, step=2, handed=(0, 4, 8, np.arange(4)), facts=facts)

    assert [entry.seed for entry in entries_of(ledger.plain())] == [7, 8]


@pytest.mark.parametrize("seed", [2**63 - 1, -(2**63), 2**64, -(2**200), 10**398])
def test_seeds_of_any_size_come_back(seed):
    ledger = Ledger()
    note(ledger, (0, 0, 4), seed=seed)

    (entry,) = entries_of(through_json(ledger))

    assert entry.seed is not None
    assert int(entry.seed) == seed


def test_the_oldest_entries_are_forgotten_before_there_are_too_many():
    ledger = Ledger()

    note(ledger, *((epoch, 0, 4) for epoch in range(MAX_ENTRIES + 5)))

    found = entries_of(through_json(ledger))
    assert [found[0].epoch, found[-1].epoch, len(found)] == [5, MAX_ENTRIES + 4, MAX_ENTRIES]
    assert [entry.forgotten for entry in found] == [True] + [False] * (MAX_ENTRIES - 1)


def test_that_some_were_forgotten_moves_to_the_first_that_is_left_of_the_source_also_after_a_restart():
    ledger = Ledger()
    note(ledger, *((epoch, 0, 4) for epoch in range(MAX_ENTRIES + 1)))

    resumed = Ledger.from_plain(through_json(ledger))
    note(resumed, (MAX_ENTRIES + 1, 0, 4), (MAX_ENTRIES + 2, 0, 4), step=MAX_ENTRIES + 2, attempt=2)
    resumed.note("other", attempt=2, step=1, handed=(0, 0, 1, None), facts={})

    found = entries_of(through_json(resumed))
    assert [(entry.source, entry.epoch) for entry in found if entry.forgotten] == [("data", 4)]
    assert (len(found), found[0].epoch) == (MAX_ENTRIES, 4)


def test_a_ledger_with_more_entries_than_are_written_is_read_and_cut():
    older = [[*OLDER[:1], 1, at, at, 1, at, 0, 4, *OLDER[8:]] for at in range(MAX_READ)]

    found = entries_of(Ledger.from_plain(older).plain())

    assert (len(found), found[0].epoch, found[0].forgotten) == (MAX_ENTRIES, MAX_READ - MAX_ENTRIES, True)


@pytest.mark.parametrize(("begin", "forgotten"), [((0, 0, 4), False), ((0, 4, 8), True), ((3, 0, 4), True)])
def test_what_a_checkpoint_without_a_ledger_had_is_forgotten_unless_the_data_begins_there(begin, forgotten):
    ledger = Ledger.from_plain(None)

    note(ledger, begin, (begin[0] + 1, 0, 4))

    assert [entry.forgotten for entry in entries_of(through_json(ledger))] == [forgotten, False]


def test_whether_ends_are_left_out_and_shares_filled_up_is_kept_where_the_source_says_it():
    ledger = Ledger()

    note(ledger, (0, 0, 4))
    note(ledger, (0, 4, 8), step=2, drop_last=True, pad=False)
    note(ledger, (0, 8, 10), step=3, drop_last=False, pad=None)

    resumed = Ledger.from_plain(through_json(ledger))
    assert [(e.drop_last, e.pad) for e in entries_of(resumed.plain())] == [(None, None), (True, False), (False, None)]
    assert resumed.plain() == ledger.plain()
    assert [len(entry) for entry in ledger.plain()] == [15, 17, 17]


def test_no_samples_are_no_entry():
    ledger = Ledger()

    note(ledger, (0, 4, 4))

    assert ledger.plain() == []
    assert Ledger.from_plain(None).plain() == Ledger.from_plain([]).plain() == []


@pytest.mark.parametrize(
    ("handed", "facts"), [((-1, 0, 4), {}), ((0, -4, 4), {}), ((0, 0, 4), {"rank": 3, "world": 2})]
)
def test_what_no_reader_would_accept_is_refused_before_it_is_saved(handed, facts):
    ledger = Ledger()

    with pytest.raises(UsageError, match="makes no sense"):
        note(ledger, handed, **facts)

    assert ledger.plain() == []


GOOD: dict[str, Any] = dict(
    zip(
        Entry.__struct_fields__,
        ["data", 1, 5, 7, 3, 0, 0, 10, 4, 7, 10, True, 0, 1, "0" * 32, False, False, False],
        strict=True,
    )
)
OLDER = list(GOOD.values())[:15]


@pytest.mark.parametrize(
    "changes",
    [
        {"source": 1},
        {"attempt": 0},
        {"attempt": True},
        {"first_step": 8},
        {"last_step": -1},
        {"batches": 0},
        {"batches": 2},
        {"batches": 11, "digest": ""},
        {"begin": 10},
        {"end": 2**62 + 1},
        {"batch_size": 0},
        {"seed": 1.5},
        {"seed": "seven"},
        {"seed": "9" * 401},
        {"length": -1},
        {"shuffle": 1},
        {"rank": 1},
        {"world": 0},
        {"digest": "0" * 31},
        {"digest": "0" * 15 + "gg" + "0" * 15},
        {"digest": None},
        {"drop_last": 1},
        {"pad": "no"},
        {"forgotten": None},
    ],
    ids=repr,
)
def test_an_entry_that_makes_no_sense_is_refused(changes):
    assert entries_of([list(GOOD.values())])

    with pytest.raises(FormatError, match="ledger"):
        Ledger.from_plain([list((GOOD | changes).values())])


@pytest.mark.parametrize(
    "value",
    [
        1,
        {},
        "[]",
        [1],
        [[]],
        [OLDER[:-1]],
        [[*GOOD.values(), 1]],
        [OLDER] * (MAX_READ + 1),
    ],
    ids=["number", "mapping", "text", "no entry", "empty", "short", "long", "too many"],
)
def test_what_is_no_ledger_is_refused(value):
    with pytest.raises(FormatError, match="ledger"):
        Ledger.from_plain(value)
