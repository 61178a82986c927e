"""Where the KIT class takes its checkpoints: shared file systems, functions, XRootD, HTCondor; and their faults."""

import gc
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from holdfast.core.errors import RestoreError, StorageError, UsageError
from holdfast.doors.kit import Checkpointer
from tests.doors.scripts import run, started, write_counter
from tests.doors.xrootd_server import XRootD


@pytest.fixture(autouse=True)
def own_signals() -> Iterator[None]:
    """The handlers of pytest, afterwards as before."""
    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGUSR1, signal.SIGINT)}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)
    gc.collect()


def _make(file: Path, mode: str, **options: Any) -> Checkpointer:
    file.parent.mkdir(exist_ok=True)
    return Checkpointer(
        file,
        lambda path, value: path.write_text(str(value)),
        lambda path: int(path.read_text()),
        checkpoint_transfer_mode=mode,
        checkpoint_every=1,
        **options,
    )


def _steps(file: Path, mode: str, *values: int, **options: Any) -> None:
    """By a Checkpointer that is gone afterwards."""
    checkpointer = _make(file, mode, **options)
    checkpointer.restore(0)
    for value in values:
        checkpointer.step(value)


@pytest.fixture
def shared(tmp_path: Path) -> Path:
    folder = tmp_path / "shared"
    folder.mkdir()
    return folder / "me.txt"


def test_a_checkpoint_on_a_shared_file_system_is_restored_elsewhere(tmp_path: Path, shared: Path) -> None:
    _steps(tmp_path / "a" / "c.txt", "shared", 1, 2, checkpoint_transfer_target=shared)

    checkpointer = _make(tmp_path / "b" / "c.txt", "shared", checkpoint_transfer_target=shared)

    assert checkpointer.checkpoint_exists
    assert checkpointer.restore(0) == 2
    assert shared.read_text() == "2"


def test_a_target_that_is_a_directory_gets_a_file_of_the_same_name(tmp_path: Path, shared: Path) -> None:
    _steps(tmp_path / "a" / "c.txt", "shared", 1, checkpoint_transfer_target=shared.parent)

    assert (shared.parent / "c.txt").read_text() == "1"


def test_a_torn_file_at_the_target_is_not_restored(
    tmp_path: Path, shared: Path, caplog: pytest.LogCaptureFixture
) -> None:
    _steps(tmp_path / "a" / "c.txt", "shared", 41, 42, checkpoint_transfer_target=shared)
    shared.write_text("4")

    restored = _make(tmp_path / "b" / "c.txt", "shared", checkpoint_transfer_target=shared).restore(0)

    assert restored == 42
    assert "is not what was transferred" in caplog.text
    assert (shared.parent / "me.txt.set-aside-1").read_text() == "4"


def test_a_target_of_the_original_class_is_restored_as_it_is(tmp_path: Path, shared: Path) -> None:
    shared.write_text("12")

    assert _make(tmp_path / "b" / "c.txt", "shared", checkpoint_transfer_target=shared).restore(0) == 12


def test_a_local_file_that_was_never_transferred_does_not_win_over_one_that_was(tmp_path: Path, shared: Path) -> None:
    _steps(tmp_path / "a" / "c.txt", "shared", 42, checkpoint_transfer_target=shared)
    (tmp_path / "a" / "c.txt").write_text("7")

    assert _make(tmp_path / "a" / "c.txt", "shared", checkpoint_transfer_target=shared).restore(0) == 42
    assert (tmp_path / "a" / "c.txt.set-aside-1").read_text() == "7"


def test_a_local_file_that_could_not_be_transferred_any_more_is_what_the_job_goes_on_from(
    tmp_path: Path, shared: Path
) -> None:
    _steps(tmp_path / "a" / "c.txt", "shared", 1, checkpoint_transfer_target=shared)
    late = _make(tmp_path / "a" / "c.txt", "shared", checkpoint_transfer_target=shared)
    late.restore(0)
    late.checkpoint(2)
    del late

    again = _make(tmp_path / "a" / "c.txt", "shared", checkpoint_transfer_target=shared)

    assert shared.read_text() == "1"
    assert again.restore(0) == 2
    again.transfer_checkpoint()
    assert shared.read_text() == "2"


def test_what_could_never_be_transferred_is_not_replaced_by_what_the_original_class_left(
    tmp_path: Path, shared: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shared.write_text("1")
    late = _make(tmp_path / "a" / "c.txt", "shared", checkpoint_transfer_target=shared)
    assert late.restore(0) == 1
    late.checkpoint(2)
    del late

    again = _make(tmp_path / "a" / "c.txt", "shared", checkpoint_transfer_target=shared)

    assert again.restore(0) == 2
    again.transfer_checkpoint()
    assert shared.read_text() == "2"


def test_a_local_file_that_another_machine_has_overtaken_is_replaced(tmp_path: Path, shared: Path) -> None:
    _steps(tmp_path / "a" / "c.txt", "shared", 1, checkpoint_transfer_target=shared)
    late = _make(tmp_path / "a" / "c.txt", "shared", checkpoint_transfer_target=shared)
    late.restore(0)
    late.checkpoint(2)
    del late
    _steps(tmp_path / "b" / "c.txt", "shared", 3, checkpoint_transfer_target=shared)

    assert _make(tmp_path / "a" / "c.txt", "shared", checkpoint_transfer_target=shared).restore(0) == 3


def test_the_local_file_is_removed_at_the_end_when_it_was_transferred(tmp_path: Path, shared: Path) -> None:
    command = write_counter(
        tmp_path, "checkpoint_transfer_mode='shared', checkpoint_transfer_target=Path('shared/me.txt'),"
    )
    with started(tmp_path, [*command, "5"]) as script:
        script.wait_for("counted")
        script.send(signal.SIGTERM)
        ended = script.end()

    assert ended.status == 85
    assert shared.read_text() == "4"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["count.py", "shared"]


def test_a_signal_before_the_first_step_transfers_what_could_not_be_transferred_before(
    tmp_path: Path, shared: Path
) -> None:
    _steps(tmp_path / "checkpoint.txt", "shared", 1, checkpoint_transfer_target=shared)
    late = _make(tmp_path / "checkpoint.txt", "shared", checkpoint_transfer_target=shared)
    late.restore(0)
    late.checkpoint(2)
    del late
    command = write_counter(
        tmp_path, "checkpoint_transfer_mode='shared', checkpoint_transfer_target=Path('shared/me.txt'),"
    )
    with started(tmp_path, [*command, "0"]) as script:
        script.wait_for("counted")

        script.send(signal.SIGTERM)
        ended = script.end()

    assert ended.status == 85
    assert shared.read_text() == "2"
    assert not (tmp_path / "checkpoint.txt").exists()


def test_a_local_file_that_nobody_restored_is_not_removed_by_a_signal(tmp_path: Path, shared: Path) -> None:
    (tmp_path / "checkpoint.txt").write_text("mine")
    idle = "checkpoint_transfer_mode='shared', checkpoint_transfer_target=Path('shared/me.txt'))\n"
    idle += "print('idle', flush=True)\nsys.stdin.readline()\n("
    with started(tmp_path, [*write_counter(tmp_path, idle), "0"]) as script:
        script.wait_for("idle")

        script.send(signal.SIGTERM)
        ended = script.end()

    assert ended.status == 85
    assert (tmp_path / "checkpoint.txt").read_text() == "mine"


def test_a_target_directory_that_vanishes_is_a_warning_and_74_and_the_local_file_stays(
    tmp_path: Path, shared: Path
) -> None:
    command = write_counter(
        tmp_path, "checkpoint_transfer_mode='shared', checkpoint_transfer_target=Path('shared/me.txt'),"
    )
    with started(tmp_path, [*command, "3"]) as script:
        script.wait_for("counted")
        shared.parent.rename(tmp_path / "unmounted")
        script.say("77")
        script.wait_for("stepped")  # the training goes on
        script.send(signal.SIGTERM)
        ended = script.end()

    assert ended.status == 74
    assert "the checkpoint of step 4 is not kept" in ended.err
    assert (tmp_path / "checkpoint.txt").read_text() == "77"
    assert (tmp_path / "unmounted" / "me.txt").read_text() == "0"
    assert not shared.parent.exists()  # it is not made: it would be on another file system


def test_a_target_directory_that_comes_back_is_used_again(tmp_path: Path, shared: Path) -> None:
    command = write_counter(
        tmp_path, "checkpoint_transfer_mode='shared', checkpoint_transfer_target=Path('shared/me.txt'),"
    )
    with started(tmp_path, [*command, "3"]) as script:
        script.wait_for("counted")
        shared.parent.rename(tmp_path / "unmounted")
        script.say("77")
        script.wait_for("stepped")
        (tmp_path / "unmounted").rename(shared.parent)
        script.send(signal.SIGTERM)
        ended = script.end()

    assert ended.status == 85
    assert shared.read_text() == "77"


def test_another_directory_in_the_place_of_the_target_is_not_taken_for_it(tmp_path: Path, shared: Path) -> None:
    command = write_counter(
        tmp_path, "checkpoint_transfer_mode='shared', checkpoint_transfer_target=Path('shared/me.txt'),"
    )
    with started(tmp_path, [*command, "3"]) as script:
        script.wait_for("counted")
        shared.parent.rename(tmp_path / "unmounted")
        shared.parent.mkdir()  # as a mount point is, when nothing is mounted there

        script.send(signal.SIGTERM)
        ended = script.end()

    assert ended.status == 74
    assert not shared.exists()
    assert (tmp_path / "unmounted" / "me.txt").read_text() == "0"


def test_a_program_that_ends_while_its_target_is_away_ends_with_74(tmp_path: Path, shared: Path) -> None:
    gone = "checkpoint_transfer_mode='shared', checkpoint_transfer_target=Path('shared/me.txt'))\n"
    gone += (
        "import shutil\ncheckpointer.restore(0)\nshutil.rmtree('shared')\ncheckpointer.restore = lambda value: value\n("
    )

    ended = run(tmp_path, [*write_counter(tmp_path, gone), "1"])

    assert "done" in ended.out
    assert ended.status == 74
    assert "was not kept" in ended.err


def test_a_target_directory_that_is_missing_at_the_start_is_refused(tmp_path: Path) -> None:
    checkpointer = _make(tmp_path / "c.txt", "shared", checkpoint_transfer_target=tmp_path / "away" / "me.txt")

    with pytest.raises(StorageError, match="does not exist") as caught:
        checkpointer.restore(0)

    assert "mounted" in caught.value.hint


def _copy(source: object, target: object, **kwargs: object) -> None:
    assert kwargs == {"speed": "high"}
    shutil.copy(str(source), str(target))


_MANUAL: dict[str, Any] = {
    "checkpoint_transfer_callback": _copy,
    "checkpoint_transfer_callback_kwargs": {"speed": "high"},
}


def test_a_function_of_the_user_sends_and_fetches(tmp_path: Path) -> None:
    store = tmp_path / "store.txt"
    _steps(tmp_path / "a" / "c.txt", "manual", 1, 2, checkpoint_transfer_target=store, **_MANUAL)

    checkpointer = _make(tmp_path / "b" / "c.txt", "manual", checkpoint_transfer_target=store, **_MANUAL)

    assert checkpointer.checkpoint_exists
    assert checkpointer.restore(0) == 2
    assert (tmp_path / "b" / "c.txt").read_text() == "2"


def test_a_function_that_fails_to_fetch_is_no_start_from_scratch(tmp_path: Path) -> None:
    def refuse(source: object, target: object) -> None:
        raise ConnectionError("no route")

    checkpointer = _make(tmp_path / "c.txt", "manual", checkpoint_transfer_callback=refuse)

    with pytest.raises(StorageError, match="no route") as caught:
        checkpointer.restore(0)

    assert "FileNotFoundError" in caught.value.hint


def test_a_missing_program_that_was_to_fetch_it_is_no_start_from_scratch(tmp_path: Path) -> None:
    def fetch(source: object, target: object) -> None:
        subprocess.run(["a-program-that-is-not-here", str(source), str(target)], check=True)

    checkpointer = _make(tmp_path / "c.txt", "manual", checkpoint_transfer_callback=fetch)

    with pytest.raises(StorageError, match="a-program-that-is-not-here"):
        checkpointer.restore(0)


def test_a_transfer_by_hand_that_fails_is_an_error(tmp_path: Path) -> None:
    def refuse(source: object, target: object) -> None:
        raise ConnectionError("no route")

    checkpointer = _make(tmp_path / "c.txt", "manual", checkpoint_transfer_callback=refuse)
    checkpointer.transfer_checkpoint()  # there is nothing yet
    checkpointer.checkpoint(1)

    with pytest.raises(StorageError, match="no route"):
        checkpointer.transfer_checkpoint_files()


def test_holdfast_run_starts_a_program_again_whose_transfer_failed(tmp_path: Path) -> None:
    failing = "checkpoint_transfer_mode='manual', checkpoint_transfer_target=Path('store.txt'),\n"
    failing += "    checkpoint_transfer_callback=lambda source, target: copy(source, target),"
    before = "import os, shutil, signal\ndef copy(source, target):\n"
    before += "    if os.environ['HOLDFAST_RESTARTS'] == '0' and str(target) == 'store.txt':\n"
    before += "        raise ConnectionError('no route')\n    shutil.copy(source, target)\n"
    write_counter(tmp_path, failing, before)
    text = (tmp_path / "count.py").read_text()
    stop = "if os.environ['HOLDFAST_RESTARTS'] == '0':\n    os.kill(os.getpid(), signal.SIGTERM)\n    signal.pause()\n"
    (tmp_path / "count.py").write_text(text.replace('print("counted"', stop + 'print("counted"'))

    ended = run(tmp_path, ["python", "-m", "holdfast", "run", "--", sys.executable, "count.py", "5"])

    assert ended.status == 0, ended.err
    assert "status 74" in ended.err
    assert "starts at 4" in ended.out  # from the run beside the local file
    assert (tmp_path / "store.txt").read_text() == "7"


def test_what_was_not_transferred_any_more_is_found_in_the_run_beside_the_local_file(tmp_path: Path) -> None:
    store = tmp_path / "store.txt"
    _steps(tmp_path / "a" / "c.txt", "manual", 1, checkpoint_transfer_target=store, **_MANUAL)
    checkpointer = _make(tmp_path / "a" / "c.txt", "manual", checkpoint_transfer_target=store, **_MANUAL)
    checkpointer.restore(0)
    checkpointer.checkpoint(2)
    del checkpointer

    again = _make(tmp_path / "a" / "c.txt", "manual", checkpoint_transfer_target=store, **_MANUAL)

    assert store.read_text() == "1"
    assert again.restore(0) == 2


def _cut_off(folder: Path, store: Path, *values: int) -> None:
    """A job that restores, and then makes checkpoints that it cannot transfer."""
    checkpointer = _make(folder / "c.txt", "manual", checkpoint_transfer_target=store, **_MANUAL)
    checkpointer.restore(0)
    for value in values:
        checkpointer.checkpoint(value)


def test_what_was_not_transferred_any_more_wins_after_the_run_has_forgotten_what_was(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    store = tmp_path / "store.txt"
    checkpointer = _make(tmp_path / "a" / "c.txt", "manual", checkpoint_transfer_target=store, **_MANUAL)
    checkpointer.restore(0)
    checkpointer.step(1)
    checkpointer.step(2)
    for value in (3, 4):
        checkpointer.checkpoint(value)
    del checkpointer
    for value in (4, 7):  # and once more, by a job that has only fetched it
        again = _make(tmp_path / "a" / "c.txt", "manual", checkpoint_transfer_target=store, **_MANUAL)

        assert store.read_text() == "2"
        assert again.restore(0) == value
        assert "what was transferred is older" in caplog.text
        for more in (5, 6, 7):
            again.checkpoint(more)
        del again


def test_what_was_made_from_the_checkpoint_of_another_machine_wins_over_it(tmp_path: Path) -> None:
    store = tmp_path / "store.txt"
    for machine, value in (("a", 1), ("b", 2)):
        _steps(tmp_path / machine / "c.txt", "manual", value, checkpoint_transfer_target=store, **_MANUAL)
    _cut_off(tmp_path / "a", store)  # it has it, and makes nothing from it

    again = _make(tmp_path / "a" / "c.txt", "manual", checkpoint_transfer_target=store, **_MANUAL)
    assert again.restore(0) == 2
    del again

    _cut_off(tmp_path / "a", store, 3, 4, 5)
    assert _make(tmp_path / "a" / "c.txt", "manual", checkpoint_transfer_target=store, **_MANUAL).restore(0) == 5


def test_another_machine_wins_over_what_was_not_transferred_any_more(tmp_path: Path) -> None:
    store = tmp_path / "store.txt"
    _steps(tmp_path / "a" / "c.txt", "manual", 1, checkpoint_transfer_target=store, **_MANUAL)
    _cut_off(tmp_path / "a", store, 2, 3, 4)
    _steps(tmp_path / "b" / "c.txt", "manual", 9, checkpoint_transfer_target=store, **_MANUAL)

    assert _make(tmp_path / "a" / "c.txt", "manual", checkpoint_transfer_target=store, **_MANUAL).restore(0) == 9


def test_what_was_transferred_is_used_where_all_that_is_newer_is_damaged(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    store = tmp_path / "store.txt"
    _steps(tmp_path / "a" / "c.txt", "manual", 1, checkpoint_transfer_target=store, **_MANUAL)
    _cut_off(tmp_path / "a", store, 2, 3, 4)
    (tmp_path / "a" / "c.txt").unlink()
    for blob in (tmp_path / "a" / "c.txt.run").rglob("*.safetensors"):
        blob.chmod(0o600)
        blob.write_bytes(b"x")

    assert _make(tmp_path / "a" / "c.txt", "manual", checkpoint_transfer_target=store, **_MANUAL).restore(0) == 1
    assert "what was transferred is used" in caplog.text


def test_what_is_newer_and_out_of_reach_for_now_is_not_given_up_for_what_was_transferred(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = tmp_path / "store.txt"
    _steps(tmp_path / "a" / "c.txt", "manual", 1, checkpoint_transfer_target=store, **_MANUAL)
    _cut_off(tmp_path / "a", store, 2, 3, 4)
    (tmp_path / "a" / "c.txt").unlink()

    def out_of_reach(*_: object) -> list[str]:
        raise StorageError("a stale handle")

    with monkeypatch.context() as broken:
        broken.setattr("holdfast.doors.kit_catalogue.restore_files", out_of_reach)
        with pytest.raises(RestoreError):
            _make(tmp_path / "a" / "c.txt", "manual", checkpoint_transfer_target=store, **_MANUAL).restore(0)

    assert _make(tmp_path / "a" / "c.txt", "manual", checkpoint_transfer_target=store, **_MANUAL).restore(0) == 4


def test_a_callback_may_move_the_file(tmp_path: Path) -> None:
    store = tmp_path / "store.txt"
    moving = {"checkpoint_transfer_callback": lambda source, target: shutil.move(source, target)}
    checkpointer = _make(tmp_path / "a" / "c.txt", "manual", checkpoint_transfer_target=store, **moving)
    checkpointer.restore(0)

    checkpointer.step(1)
    checkpointer.step(2)

    assert store.read_text() == "2"


def test_what_another_machine_transferred_later_wins_over_the_run_of_this_one(tmp_path: Path) -> None:
    store = tmp_path / "store.txt"
    for machine, value in (("a", 1), ("b", 2)):
        _steps(tmp_path / machine / "c.txt", "manual", value, checkpoint_transfer_target=store, **_MANUAL)

    back = _make(tmp_path / "a" / "c.txt", "manual", checkpoint_transfer_target=store, **_MANUAL)

    assert back.restore(0) == 2
    back.step(3)
    assert store.read_text() == "3"


def _on_server(server: XRootD, **options: Any) -> dict[str, Any]:
    return {"checkpoint_transfer_target": "/data/me.txt", "xrootd_server_name": server.name, **options}


def test_a_checkpoint_on_a_server_is_restored_elsewhere(tmp_path: Path, xrootd: XRootD) -> None:
    _steps(tmp_path / "a" / "c.txt", "xrootd", 1, 2, **_on_server(xrootd))

    checkpointer = _make(tmp_path / "b" / "c.txt", "xrootd", **_on_server(xrootd))

    assert checkpointer.checkpoint_exists
    assert checkpointer.restore(0) == 2


def test_a_server_without_the_file_is_a_fresh_start(tmp_path: Path, xrootd: XRootD) -> None:
    checkpointer = _make(tmp_path / "a" / "c.txt", "xrootd", **_on_server(xrootd))

    assert not checkpointer.checkpoint_exists
    assert checkpointer.restore("fresh") == "fresh"


def test_a_server_that_is_down_at_the_start_is_no_start_from_scratch(tmp_path: Path, own_xrootd: XRootD) -> None:
    own_xrootd.kill()
    checkpointer = _make(tmp_path / "a" / "c.txt", "xrootd", **_on_server(own_xrootd, transfer_timeout_s=1))

    with pytest.raises(StorageError):
        checkpointer.restore(0)


@pytest.mark.parametrize("fault", ["down", "slow"])
def test_a_server_that_fails_at_the_end_gives_74_and_the_local_file_stays(
    tmp_path: Path, own_xrootd: XRootD, fault: str
) -> None:
    options = "checkpoint_transfer_mode='xrootd', checkpoint_transfer_target='/data/me.txt',"
    # Not before: the transfers that succeed may take longer.
    options += "on_SIGTERM_prehook=lambda: setattr(checkpointer._transfer, '_timeout_s', 1),"
    options += f"xrootd_server_name={own_xrootd.name!r},"
    with started(tmp_path, [*write_counter(tmp_path, options), "3"]) as script:
        script.wait_for("counted")
        if fault == "down":
            own_xrootd.kill()
        else:
            own_xrootd.freeze()

        script.send(signal.SIGTERM)
        ended = script.end()

    assert ended.status == 74
    assert (tmp_path / "checkpoint.txt").read_text() == "2"
    assert (own_xrootd.data / "me.txt").read_text() == "0"
    assert "down or slow" in ended.err


def test_a_server_that_is_full_keeps_the_older_checkpoint_and_the_training_goes_on(
    tmp_path: Path, full_xrootd: XRootD
) -> None:
    options = "checkpoint_transfer_mode='xrootd', checkpoint_transfer_target='/data/me.txt',"
    options += f"xrootd_server_name={full_xrootd.name!r})\n"
    options += (
        "checkpointer.checkpoint_function = lambda path, value: path.write_text('x' * (2 << 20 if value else 9))\n("
    )

    ended = run(tmp_path, [*write_counter(tmp_path, options), "4"])

    assert "done" in ended.out
    assert ended.status == 74
    assert [path.read_text() for path in full_xrootd.data.iterdir()] == ["x" * 9]


def _ad(folder: Path, text: str) -> None:
    (folder / "ad").write_text(text)
    os.environ["_CONDOR_JOB_AD"] = str(folder / "ad")


@pytest.fixture
def in_job(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("_CONDOR_JOB_AD", "")


@pytest.mark.usefixtures("in_job")
@pytest.mark.parametrize(
    "text",
    [
        "",
        "CheckpointExitCode = 85\n",
        'TransferCheckpoint = "c.txt"\n',
        'TransferCheckpoint = "other.txt"\nCheckpointExitCode = 85\n',
        'TransferCheckpoint = ifThenElse(true, "c.txt", "")\nCheckpointExitCode = 85\n',
        "\0\0\0 = = =\n",
    ],
)
def test_an_ad_by_which_htcondor_would_not_keep_the_checkpoint_is_refused(tmp_path: Path, text: str) -> None:
    _ad(tmp_path, text)

    with pytest.raises(UsageError):
        _make(tmp_path / "c.txt", "htcondor")


@pytest.mark.usefixtures("in_job")
def test_settings_of_the_job_ad_win_over_those_of_the_program(tmp_path: Path) -> None:
    _ad(tmp_path, 'TransferCheckpoint = "log.txt, c.txt"\nSuccessCheckpointExitCode = 99\n')

    checkpointer = _make(tmp_path / "c.txt", "htcondor", checkpoint_exit_code=3, checkpoint_transfer_target="x")

    assert checkpointer.checkpoint_exit_code == 99
    assert checkpointer.checkpoint_transfer_target == Path("log.txt, c.txt")


@pytest.mark.usefixtures("in_job")
def test_a_file_that_htcondor_brought_is_restored_without_its_run(tmp_path: Path) -> None:
    _ad(tmp_path, 'TransferCheckpoint = "c.txt"\nCheckpointExitCode = 85\n')
    _steps(tmp_path / "a" / "c.txt", "htcondor", 5)
    (tmp_path / "b").mkdir()
    shutil.move(tmp_path / "a" / "c.txt", tmp_path / "b")

    assert _make(tmp_path / "b" / "c.txt", "htcondor").restore(0) == 5
