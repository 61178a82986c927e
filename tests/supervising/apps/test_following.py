"""The log of a program, read while it is written."""

import os
from pathlib import Path

import pytest

from holdfast.supervising.apps.following import Follower

STEP = {"step": r"^step\s+(\d+)\s*$"}
MARK = {"stopped": "stopped"}


@pytest.fixture
def log(tmp_path: Path) -> Path:
    return tmp_path / "log.txt"


def test_a_line_that_is_not_finished_is_read_when_it_is(log: Path) -> None:
    follower = Follower(str(log), STEP)
    log.write_text("step 1\nstep 2")
    follower.read()
    early = follower.last("step")

    log.write_text("step 1\nstep 23\n")
    follower.read()

    assert (early, follower.last("step")) == ("1", "23")


def test_at_the_end_of_a_program_the_last_line_counts_without_an_end_too(log: Path) -> None:
    follower = Follower(str(log), STEP)
    log.write_text("step 1\nstep 2")
    follower.read()
    early = follower.last("step")

    follower.read(whole=True, is_torn=False)

    assert (early, follower.last("step")) == ("1", "2")


def test_the_number_in_a_line_in_whose_middle_the_program_was_killed_does_not_count(log: Path) -> None:
    follower = Follower(str(log), STEP)
    log.write_text("step 99\nstep 10")

    follower.read(whole=True)

    assert follower.last("step") == "99"


@pytest.mark.parametrize("more", ["\n", "\nstep 1\n", " and begun again\n"])
def test_a_mark_in_an_unfinished_line_of_the_attempt_before_is_not_new_when_the_line_goes_on(
    log: Path, more: str
) -> None:
    follower = Follower(str(log), STEP, marks=MARK)
    log.write_text("step 1\nstopped")
    follower.begin()
    log.write_text(f"step 1\nstopped{more}")

    follower.read()
    early = follower.is_new("stopped")
    follower.read(whole=True)
    late = follower.is_new("stopped")
    log.write_text(f"step 1\nstopped{more}stopped")
    follower.read(whole=True)

    assert (early, late, follower.is_new("stopped")) == (False, False, True)


def test_a_log_of_many_blocks_is_read_to_its_end_and_a_match_never_spans_two_lines(log: Path) -> None:
    filler = "something else that is said\n" * 40_000
    log.write_text(f"step 1\n{filler}step 2\n{filler}step\n3\nstep 4")
    follower = Follower(str(log), STEP)

    follower.read()

    assert log.stat().st_size > 2 << 20
    assert follower.last("step") == "2"


def test_a_line_without_an_end_does_not_stop_it(log: Path) -> None:
    log.write_bytes(b"x" * (3 << 20) + b"\nstep 5\n")
    follower = Follower(str(log), STEP)

    follower.read()

    assert follower.last("step") == "5"


def test_what_was_cut_off_is_forgotten_and_what_was_there_before_is_not_new(log: Path) -> None:
    follower = Follower(str(log), STEP, marks=MARK)
    log.write_text("step 1\nstopped\nstep 2\n")
    follower.begin()

    log.write_text("step 1\nstopped\n")
    follower.read()
    after_cut = follower.last("step"), follower.is_new("stopped")
    log.write_text("step 1\nstopped\nstep 7\nstopped\n")
    follower.read()

    assert after_cut == ("1", False)
    assert (follower.last("step"), follower.is_new("stopped")) == ("7", True)


def test_a_log_that_begins_anew_counts_only_once_the_program_has_begun_it(log: Path) -> None:
    follower = Follower(str(log), STEP, marks=MARK, anew=True)
    log.write_text("step 9\nstopped\n")

    follower.begin()
    follower.read()
    before = follower.last("step"), follower.is_new("stopped")
    log.write_text("step 1\nstopped\n")
    follower.read()

    assert before == (None, False)
    assert (follower.last("step"), follower.is_new("stopped")) == ("1", True)


@pytest.mark.parametrize("make", [lambda path: None, os.mkfifo, os.mkdir])
def test_a_log_that_is_missing_or_no_file_says_nothing(log: Path, make: object) -> None:
    make(log)  # type: ignore[operator]
    follower = Follower(str(log), STEP, marks=MARK)

    follower.begin()
    follower.read()

    assert (follower.last("step"), follower.is_new("stopped")) == (None, False)
