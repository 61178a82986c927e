"""Names on disk: which are allowed, and one spelling each."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.core.errors import UsageError
from holdfast.core.names import CheckpointId, check_name, is_valid_name, parse_checkpoint_id


@pytest.mark.parametrize("name", ["a", "rank-00000.safetensors", "000001200-e003-20261115T184201Z-a0002", "x" * 200])
def test_ordinary_names_are_allowed(name):
    assert check_name(name) == name


@pytest.mark.parametrize(
    "name",
    ["", ".", "..", "a/b", "/a", "a\\b", ".hid", "-opt", "a..b", "a\x00b", "a\nb", "\x1b[31m", "é", "a b", "x" * 201],
)
def test_names_that_could_leave_the_directory_or_confuse_are_refused(name):
    with pytest.raises(UsageError) as caught:
        check_name(name)

    assert "\x1b" not in str(caught.value)
    assert "\n" not in caught.value.message


@given(st.text(max_size=300))
def test_a_valid_name_is_one_component_of_plain_ascii(name):
    if is_valid_name(name):
        assert name.isascii()
        assert name.isprintable()
        assert not set(name) & set("/\\ \0")
        assert not name.startswith((".", "-"))


@given(
    st.integers(0, 10**15),
    st.integers(0, 10**6),
    st.integers(0, 10**8),
    st.integers(0, 99),
)
def test_a_checkpoint_id_is_spelled_and_read_back(step, epoch, attempt, twin):
    wanted = CheckpointId(step, epoch, "20261115T184201Z", attempt, twin)

    assert parse_checkpoint_id(str(wanted)) == wanted
    assert is_valid_name(str(wanted))


@pytest.mark.parametrize(
    "name",
    [
        "attempts",
        "1200-e003-20261115T184201Z-a0002",
        "0000001200-e003-20261115T184201Z-a0002",
        "000001200-e0003-20261115T184201Z-a0002",
        "000001200-e003-20261115T184201Z-a00002",
        "000001200-e003-20261115T184201Z-a0002-0",
        "000001200-e003-20261115T184201Z-a0002-01",
        "000001200-e003-20261115T184201Z-a0002\n",
        "٠٠٠٠٠١٢٠٠-e003-20261115T184201Z-a0002",
    ],
)
def test_a_second_spelling_is_not_an_id(name):
    assert parse_checkpoint_id(name) is None
