"""Who a run is."""

import pytest

from holdfast.core.errors import FormatVersionError, IntegrityError, RunError
from holdfast.engine.identity import found_run, identify


def test_a_new_run_gets_an_id_that_stays(store, clock):
    founded = found_run(store, clock)

    assert identify(store) == founded
    assert found_run(store, clock) == founded


def test_an_empty_directory_is_not_a_run_for_a_reader(store):
    with pytest.raises(RunError, match="not a run"):
        identify(store)


def test_a_directory_with_other_things_in_it_is_refused_and_left_alone(store, clock):
    store.publish("thesis.txt", b"years of work")

    with pytest.raises(RunError, match=r"thesis\.txt"):
        found_run(store, clock)

    assert [entry.name for entry in store.list()] == ["thesis.txt"]


def test_a_run_of_a_newer_format_is_refused_and_left_alone(store, clock):
    store.publish("holdfast.json", b'{"format": 2, "run": "abc"}\n')

    with pytest.raises(FormatVersionError, match="format 2"):
        found_run(store, clock)

    assert [entry.name for entry in store.list()] == ["holdfast.json"]


def test_every_flipped_bit_of_the_marker_is_found(tmp_path, store, clock):
    founded = found_run(store, clock)
    marker = tmp_path / "run" / "holdfast.json"
    good = marker.read_bytes()

    for position in range(len(good) * 8):
        damaged = bytearray(good)
        damaged[position // 8] ^= 1 << position % 8
        marker.write_bytes(damaged)
        with pytest.raises((IntegrityError, FormatVersionError)):
            identify(store)

    marker.write_bytes(good)
    assert identify(store) == founded
