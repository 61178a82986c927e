"""The KIT class in one process: what it writes, when, and what it refuses to load."""

import gc
import json
import logging
import os
import signal
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from holdfast.cli.main import main
from holdfast.core.clock import SystemClock
from holdfast.core.errors import RestoreError, RunBusyError, StateError, StorageError, UsageError
from holdfast.doors.kit import Checkpointer
from holdfast.engine.session import Session
from holdfast.storage.posix import PosixStore
from tests.doors.scripts import run


@pytest.fixture(autouse=True)
def own_signals() -> Iterator[None]:
    """The handlers of pytest, afterwards as before."""
    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGUSR1, signal.SIGINT)}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)
    gc.collect()


def _make(file: Path, **options: Any) -> Checkpointer:
    given: dict[str, Any] = {
        "checkpoint_function": lambda path, value: path.write_text(str(value)),
        "restore_function": lambda path: int(path.read_text()),
        **options,
    }
    return Checkpointer(file, **given)


def _names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_the_default_is_returned_where_there_is_no_checkpoint(tmp_path: Path) -> None:
    checkpointer = _make(tmp_path / "c.txt")

    assert not checkpointer.checkpoint_exists
    assert checkpointer.restore("nothing yet") == "nothing yet"


def test_the_last_value_is_checkpointed_where_none_is_given(tmp_path: Path) -> None:
    checkpointer = _make(tmp_path / "c.txt")
    checkpointer.checkpoint(7)
    checkpointer.checkpoint_value = 8

    checkpointer.checkpoint()

    assert (tmp_path / "c.txt").read_text() == "8"
    assert checkpointer.checkpoint_value == 8
    assert checkpointer.checkpoint_exists


def test_step_checkpoints_at_the_first_call_and_then_at_every_nth(tmp_path: Path) -> None:
    written: list[int] = []

    def write(path: Path, value: int) -> None:
        written.append(value)
        path.write_text(str(value))

    checkpointer = _make(tmp_path / "c.txt", checkpoint_function=write, checkpoint_every=3)

    for value in range(8):
        checkpointer.step(value)

    assert written == [0, 3, 6]
    assert checkpointer.checkpoint_value == 7
    assert checkpointer.step_counter == 8


def test_of_two_values_all_go_to_a_function_that_takes_them_and_the_last_to_one_that_does_not(tmp_path: Path) -> None:
    both = _make(tmp_path / "a", checkpoint_function=lambda path, i, model: path.write_text(f"{i} {model}"))
    one = _make(tmp_path / "b", checkpoint_function=lambda path, model: path.write_text(model))

    both.step(4, "model")
    one.step(4, "model")

    assert (tmp_path / "a").read_text() == "4 model"
    assert (tmp_path / "b").read_text() == "model"


def test_the_file_is_replaced_only_when_the_new_one_is_complete(tmp_path: Path) -> None:
    file = tmp_path / "c.txt"

    def tear(path: Path, value: str) -> None:
        path.write_text(value[:2])
        if value == "broken":
            raise RuntimeError("killed in the middle")

    checkpointer = _make(file, checkpoint_function=tear)
    checkpointer.checkpoint("good")

    with pytest.raises(RuntimeError, match="killed"):
        checkpointer.checkpoint("broken")

    assert file.read_text() == "go"
    assert _names(tmp_path) == ["c.txt", "c.txt.run"]


def test_a_function_sees_the_name_of_the_file(tmp_path: Path) -> None:
    seen: list[str] = []
    checkpointer = _make(
        tmp_path / "model.npz", checkpoint_function=lambda path, value: (seen.append(path.name), path.write_text(value))
    )

    checkpointer.checkpoint("x")

    assert seen == ["model.npz"]


def test_a_function_that_writes_elsewhere_is_refused(tmp_path: Path) -> None:
    checkpointer = _make(tmp_path / "c.txt", checkpoint_function=lambda path, value: None)

    with pytest.raises(StateError, match="wrote nothing"):
        checkpointer.checkpoint(1)


def test_what_a_killed_process_left_half_written_is_removed(tmp_path: Path) -> None:
    leftover = tmp_path / ".c.txt.0123abcd.tmp"
    leftover.mkdir()
    (leftover / "c.txt").write_text("half")
    (tmp_path / ".c.txt.mine").mkdir()

    _make(tmp_path / "c.txt").checkpoint(1)

    assert _names(tmp_path) == [".c.txt.mine", "c.txt", "c.txt.run"]


def test_files_are_checkpoints_in_the_catalogue_and_the_last_two_stay(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    checkpointer = _make(tmp_path / "c.txt", checkpoint_every=1)
    for value in range(5):
        checkpointer.step(value)

    assert main(["ls", str(tmp_path / "c.txt.run")]) == 0
    listed = capsys.readouterr().out
    assert main(["verify", "--all", str(tmp_path / "c.txt.run")]) == 0

    assert "2 checkpoints" in listed
    assert "all 2 checkpoints intact" in capsys.readouterr().out


def _saved(file: Path, *values: int) -> None:
    """By another object, which is gone afterwards."""
    checkpointer = _make(file, checkpoint_every=1)
    checkpointer.restore(0)
    for value in values:
        checkpointer.step(value)


def test_a_damaged_file_is_not_loaded_but_set_aside_and_the_run_has_the_good_one(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    file = tmp_path / "c.txt"
    _saved(file, 41, 42)
    file.write_text("43")

    restored = _make(file).restore(0)

    assert restored == 42
    assert (tmp_path / "c.txt.set-aside-1").read_text() == "43"
    assert "is not what was saved" in caplog.text


def test_an_older_file_than_the_run_has_is_replaced_as_after_a_crash_between_the_two(tmp_path: Path) -> None:
    file = tmp_path / "c.txt"
    _saved(file, 41, 42)
    file.write_text("41")

    assert _make(file).restore(0) == 42
    assert "c.txt.set-aside-1" not in _names(tmp_path)


def test_a_file_that_was_removed_comes_back_from_the_run_with_a_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    file = tmp_path / "c.txt"
    _saved(file, 42)
    file.unlink()

    assert _make(file).restore(0) == 42
    assert "to start over, remove that, too" in caplog.text


def _damage(run_directory: Path, *, all_of_them: bool) -> None:
    shards = sorted(run_directory.glob("*/rank-*.safetensors"))
    for shard in shards if all_of_them else shards[-1:]:
        data = bytearray(shard.read_bytes())
        data[-1] ^= 1
        shard.write_bytes(data)


def test_a_damaged_checkpoint_of_the_run_gives_way_to_the_older_one(tmp_path: Path) -> None:
    file = tmp_path / "c.txt"
    _saved(file, 41, 42)
    file.unlink()
    _damage(tmp_path / "c.txt.run", all_of_them=False)

    assert _make(file).restore(0) == 41


def test_where_all_is_damaged_nobody_starts_from_scratch(tmp_path: Path) -> None:
    file = tmp_path / "c.txt"
    _saved(file, 41, 42)
    file.unlink()
    _damage(tmp_path / "c.txt.run", all_of_them=True)

    with pytest.raises(RestoreError):
        _make(file).restore(0)


def test_an_intact_file_is_used_though_the_run_is_damaged(tmp_path: Path) -> None:
    file = tmp_path / "c.txt"
    _saved(file, 41, 42)
    _damage(tmp_path / "c.txt.run", all_of_them=True)

    assert _make(file).restore(0) == 42


def test_a_file_of_the_original_class_is_restored_as_it_is(tmp_path: Path) -> None:
    (tmp_path / "c.txt").write_text("12")

    assert _make(tmp_path / "c.txt").restore(0) == 12


def test_a_second_restore_goes_back_to_what_is_there_and_on_from_it_as_another_attempt(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    checkpointer = _make(tmp_path / "c.txt", checkpoint_every=2)
    for value in range(4):
        checkpointer.step(value)

    restored = checkpointer.restore(0)
    checkpointer.step(9)

    main(["ls", "--json", str(tmp_path / "c.txt.run")])
    attempts = [checkpoint["attempt"] for checkpoint in json.loads(capsys.readouterr().out)["checkpoints"]]

    assert restored == 2
    assert (tmp_path / "c.txt").read_text() == "9"
    assert attempts == [1, 2]
    del checkpointer
    assert _make(tmp_path / "c.txt").restore(0) == 9


def test_steps_go_on_counting_in_the_catalogue(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    _saved(tmp_path / "c.txt", 1, 2, 3)
    _saved(tmp_path / "c.txt", 4, 5)

    main(["ls", "--json", str(tmp_path / "c.txt.run")])

    assert '"step": 5' in capsys.readouterr().out


def test_a_second_process_cannot_write_the_same_file(tmp_path: Path) -> None:
    checkpointer = _make(tmp_path / "c.txt")
    checkpointer.checkpoint(1)
    (tmp_path / "other.py").write_text(
        "from pathlib import Path\n"
        "from holdfast.core.errors import RunBusyError\n"
        "from holdfast.doors.kit import Checkpointer\n"
        "other = Checkpointer(Path('c.txt'), lambda path, value: path.write_text('2'), None)\n"
        "try:\n    other.checkpoint(2)\nexcept RunBusyError:\n    print('refused')\n"
    )

    ended = run(tmp_path, ["python", "other.py"])

    assert ended.out == "refused\n", ended.err
    assert (tmp_path / "c.txt").read_text() == "1"


def test_one_that_is_made_again_in_the_same_process_takes_over(tmp_path: Path) -> None:
    first = _make(tmp_path / "c.txt")
    first.checkpoint(1)

    second = _make(tmp_path / "c.txt")
    second.restore(0)
    second.checkpoint(2)

    assert (tmp_path / "c.txt").read_text() == "2"
    assert first.checkpoint_value == 1


def test_one_that_is_made_again_takes_nothing_from_another_process_that_took_over(tmp_path: Path) -> None:
    first = _make(tmp_path / "c.txt")
    first.checkpoint(1)
    other = Session(PosixStore(tmp_path / "c.txt.run"), SystemClock(), takeover=True, fresh=False, workers=2)

    second = _make(tmp_path / "c.txt")
    with pytest.raises(RunBusyError):
        second.checkpoint(2)

    other.roll_back()
    assert other.attempt == 3
    other.close()


def test_a_storage_that_fails_is_a_warning_in_step_and_an_error_in_checkpoint(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(path: Path, value: int) -> None:
        raise OSError(28, "No space left on device")

    checkpointer = _make(tmp_path / "c.txt", checkpoint_function=fail)

    with caplog.at_level(logging.WARNING):
        checkpointer.step(1)
    with pytest.raises(OSError, match="No space"):
        checkpointer.checkpoint(1)

    assert "the checkpoint of step 1 is not kept" in caplog.text


def test_an_empty_file_is_a_checkpoint_like_any_other(tmp_path: Path) -> None:
    checkpointer = _make(tmp_path / "c", checkpoint_function=lambda path, value: path.touch())
    checkpointer.checkpoint(1)
    del checkpointer

    assert _make(tmp_path / "c", restore_function=lambda path: path.read_bytes()).restore(0) == b""


def test_one_that_is_made_in_another_thread_says_that_it_sees_no_signals(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    thread = threading.Thread(target=lambda: _make(tmp_path / "c.txt").checkpoint(1))
    thread.start()
    thread.join()

    assert (tmp_path / "c.txt").read_text() == "1"
    assert "does not see signals" in caplog.text


def test_a_forked_child_cannot_use_it(tmp_path: Path) -> None:
    checkpointer = _make(tmp_path / "c.txt")
    checkpointer.checkpoint(1)

    child = os.fork()
    if child == 0:
        try:
            checkpointer.checkpoint(2)
        except UsageError:
            os._exit(0)
        os._exit(1)

    assert os.waitpid(child, 0)[1] == 0
    assert (tmp_path / "c.txt").read_text() == "1"


@pytest.mark.parametrize(
    "options",
    [
        {"checkpoint_transfer_mode": "carrier pigeon"},
        {"checkpoint_transfer_mode": "shared"},
        {"checkpoint_transfer_mode": "manual"},
        {"checkpoint_transfer_mode": "xrootd", "checkpoint_transfer_target": "/data/a"},
        {"checkpoint_transfer_mode": "xrootd", "checkpoint_transfer_target": "a", "xrootd_server_name": "host"},
        {"checkpoint_every": 0},
        {"checkpoint_every": "often"},
        {"checkpoint_function": "torch.save"},
        {"restore_function": 1},
        {"checkpoint_exit_code": 0},
        {"checkpoint_exit_code": 256},
        {"local_checkpoint_files": []},
        {"transfer_timeout_s": "soon"},
    ],
)
def test_options_that_make_no_sense_are_refused(tmp_path: Path, options: dict[str, Any]) -> None:
    with pytest.raises(UsageError):
        _make(tmp_path / "c.txt", **options)


def test_mode_none_may_be_given_as_text_or_as_none(tmp_path: Path) -> None:
    for mode in (None, "None"):
        assert _make(tmp_path / "c.txt", checkpoint_transfer_mode=mode).checkpoint_transfer_mode == "None"


def test_a_directory_that_is_not_there_is_said_before_the_training_begins(tmp_path: Path) -> None:
    with pytest.raises(StorageError, match="does not exist"):
        _make(tmp_path / "nowhere" / "c.txt").restore(0)
