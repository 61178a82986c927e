"""Control records: valid or nothing."""

from hypothesis import given
from hypothesis import strategies as st

from holdfast.core.limits import MAX_MANIFEST_BYTES
from holdfast.tiers.control import EMPTY_RECORD, RECORD_BYTES, Control, decode_control, encode_control

controls = st.builds(Control, st.integers(1, 2**64 - 1), st.integers(0, 1 << 60), st.integers(0, MAX_MANIFEST_BYTES))


@given(controls)
def test_a_record_says_what_was_written(control: Control) -> None:
    assert decode_control(encode_control(control)) == control


@given(controls, st.integers(0, RECORD_BYTES * 8 - 1))
def test_any_flipped_bit_makes_a_record_invalid(control: Control, bit: int) -> None:
    record = bytearray(encode_control(control))
    record[bit // 8] ^= 1 << bit % 8

    assert decode_control(bytes(record)) is None


@given(controls, controls, st.integers(1, RECORD_BYTES - 1))
def test_a_record_torn_between_two_is_one_of_them_or_invalid(old: Control, new: Control, cut: int) -> None:
    torn = encode_control(new)[:cut] + encode_control(old)[cut:]

    assert decode_control(torn) in (None, old, new)


@given(st.binary(max_size=2 * RECORD_BYTES))
def test_other_bytes_are_no_record(data: bytes) -> None:
    assert decode_control(data) is None


def test_an_empty_record_is_no_content() -> None:
    assert decode_control(EMPTY_RECORD) is None


def test_a_generation_of_zero_and_impossible_sizes_are_refused_although_their_checksum_is_right() -> None:
    for control in (Control(0, 1, 1), Control(1, (1 << 60) + 1, 1), Control(1, 1, MAX_MANIFEST_BYTES + 1)):
        assert decode_control(encode_control(control)) is None
