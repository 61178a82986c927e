"""The rig in slices."""

import pytest

from tests.crash.explore import explore
from tests.crash.fuzz import fuzz
from tests.crash.slices import WHOLE, Slice


def test_slices_together_are_the_whole() -> None:
    items = list(range(23))

    slices = [Slice.parse(f"{number}/5").of(items) for number in range(1, 6)]

    assert sorted(item for one in slices for item in one) == items
    assert max(map(len, slices)) - min(map(len, slices)) <= 1
    assert WHOLE.of(items) == items


@pytest.mark.parametrize("text", ["0/3", "4/3", "1/0"])
def test_a_slice_that_does_not_exist_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="there is no slice"):
        Slice.parse(text)


def test_the_counts_of_slices_add_up_to_that_of_the_whole() -> None:
    slices = [Slice(number, 2) for number in (1, 2)]

    states = [explore(60, seed=1, sequences=["first save", "several saves"], part=part).counted for part in slices]
    fuzzed = [fuzz(300, seed=1, part=part).counted for part in slices]

    assert sum(states) == explore(60, seed=1, sequences=["first save", "several saves"]).counted
    assert sum(fuzzed) == 300
