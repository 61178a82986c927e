"""Signals to scripts that use the KIT class: what is kept, and the status they end with. All is real."""

import os
import shutil
import signal
import time
from pathlib import Path

import pytest

from holdfast.doors.kit import Checkpointer
from holdfast.engine.beats import read_beats
from tests.docs.pages import ROOT, blocks
from tests.doors.scripts import run, started, write_counter

_ALL = [signal.SIGTERM, signal.SIGUSR1, signal.SIGINT]


@pytest.mark.parametrize("number", _ALL)
def test_a_signal_keeps_the_last_value_and_ends_with_85_though_no_step_follows(
    tmp_path: Path, number: signal.Signals
) -> None:
    with started(tmp_path, [*write_counter(tmp_path), "5"]) as script:
        script.wait_for("counted")

        script.send(number)
        ended = script.end()

    assert ended.status == 85
    assert (tmp_path / "checkpoint.txt").read_text() == "4"
    assert f"stopping at step 5, on signal {number.value}; status 85" in ended.err


def test_the_next_start_goes_on_from_there(tmp_path: Path) -> None:
    with started(tmp_path, [*write_counter(tmp_path), "5"]) as script:
        script.wait_for("counted")
        script.send(signal.SIGTERM)
        script.end()

    second = run(tmp_path, [*write_counter(tmp_path), "2"])

    assert "starts at 4" in second.out
    assert second.status == 0


def test_a_step_that_follows_the_signal_is_the_one_that_is_kept(tmp_path: Path) -> None:
    # The program says itself when it has the signal: a handler from before is called first.
    before = "import os, signal\nsignal.signal(signal.SIGTERM, lambda *_: os.write(1, b'asked\\n'))\n"
    # As long as steps have taken so far, one is waited for.
    slow = "on_SIGTERM_prehook=None)\ncheckpointer._last_step_s, checkpointer._step_took_s = 0.0, 3.0\n("
    with started(tmp_path, [*write_counter(tmp_path, slow, before), "0"]) as script:
        script.wait_for("counted")
        script.send(signal.SIGTERM)
        script.wait_for("asked")

        script.say("99")
        ended = script.end()

    assert ended.status == 85
    assert (tmp_path / "checkpoint.txt").read_text() == "99"


def test_a_handler_from_before_is_called_too(tmp_path: Path) -> None:
    before = "import os, signal\nsignal.signal(signal.SIGUSR1, lambda *_: os.write(1, b'as before\\n'))\n"
    with started(tmp_path, [*write_counter(tmp_path, before=before), "1"]) as script:
        script.wait_for("counted")

        script.send(signal.SIGUSR1)
        ended = script.end()

    assert ended.out.count("as before") == 1
    assert ended.status == 85


def test_a_handler_from_before_that_ends_the_program_does_not_cost_the_checkpoint(tmp_path: Path) -> None:
    before = "import signal, sys\nsignal.signal(signal.SIGTERM, lambda *_: sys.exit(3))\n"
    with started(tmp_path, [*write_counter(tmp_path, before=before), "2"]) as script:
        script.wait_for("counted")

        script.send(signal.SIGTERM)
        ended = script.end()

    assert ended.status == 85
    assert (tmp_path / "checkpoint.txt").read_text() == "1"


def test_a_signal_before_the_first_step_ends_with_85_and_leaves_what_there_was(tmp_path: Path) -> None:
    with started(tmp_path, [*write_counter(tmp_path), "0"]) as script:
        script.wait_for("counted")

        script.send(signal.SIGTERM)
        ended = script.end()

    assert ended.status == 85
    assert not (tmp_path / "checkpoint.txt").exists()


def test_a_value_of_none_is_a_value_for_functions_that_know_what_to_save(tmp_path: Path) -> None:
    nothing = "on_SIGTERM_prehook=None)\ncheckpointer.checkpoint_every = 10**6\ncheckpointer.step(0)\n"
    nothing += "checkpointer.step(None)\nprint('stepped', flush=True)\nsys.stdin.readline()\n("
    with started(tmp_path, [*write_counter(tmp_path, nothing), "0"]) as script:
        script.wait_for("stepped")

        script.send(signal.SIGTERM)
        ended = script.end()

    assert ended.status == 85
    assert (tmp_path / "checkpoint.txt").read_text() == "None"


def test_a_signal_in_the_middle_of_a_checkpoint_lets_it_finish_and_a_second_changes_nothing(tmp_path: Path) -> None:
    slow = "checkpoint_exit_code=77)\ndef write(path, value):\n    print('writing', flush=True)\n"
    slow += "    sys.stdin.readline()\n    path.write_text(str(value))\n    print('written', flush=True)\n"
    slow += "checkpointer.checkpoint_function = write\n("
    with started(tmp_path, [*write_counter(tmp_path, slow), "1"]) as script:
        script.wait_for("writing")
        script.send(signal.SIGTERM)
        script.send(signal.SIGUSR1)
        script.say("go on")
        script.wait_for("writing")  # that of the end
        script.send(signal.SIGTERM)
        script.say("go on")
        ended = script.end()

    assert ended.status == 77
    assert [word for word in ended.out.split() if word.startswith("writ")] == ["writing", "written"] * 2
    assert (tmp_path / "checkpoint.txt").read_text() == "0"
    assert ended.err.count("stopping at step") == 1


def test_the_hook_runs_before_the_checkpoint_and_one_that_fails_does_not_keep_it_from_being_made(
    tmp_path: Path,
) -> None:
    hook = "on_SIGTERM_prehook=lambda word: print(word, checkpointer.local_checkpoint_file.read_text(), 1 / 0),"
    hook += " on_SIGTERM_prehook_kwargs={'word': 'before'},"
    with started(tmp_path, [*write_counter(tmp_path, hook), "2"]) as script:
        script.wait_for("counted")

        script.send(signal.SIGTERM)
        ended = script.end()

    assert "ZeroDivisionError" in ended.err
    assert ended.status == 85
    assert (tmp_path / "checkpoint.txt").read_text() == "1"


def test_a_program_that_catches_the_exit_is_ended_by_its_next_step(tmp_path: Path) -> None:
    stubborn = "checkpoint_exit_code=77)\nimport signal\ncheckpointer.checkpoint(7)\n"
    stubborn += "try:\n    signal.raise_signal(signal.SIGTERM)\nexcept SystemExit:\n    print('caught')\n("

    ended = run(tmp_path, [*write_counter(tmp_path, stubborn), "1"])

    assert "caught" in ended.out
    assert "starts at" not in ended.out
    assert ended.status == 77


def test_a_checkpoint_function_that_fails_at_the_end_gives_74_and_not_85(tmp_path: Path) -> None:
    failing = "on_SIGTERM_prehook=lambda: setattr(checkpointer, 'checkpoint_function', lambda path, value: 1 / 0),"
    with started(tmp_path, [*write_counter(tmp_path, failing), "2"]) as script:
        script.wait_for("counted")

        script.send(signal.SIGTERM)
        ended = script.end()

    assert ended.status == 74
    assert "no checkpoint of step 2 could be kept" in ended.err
    assert (tmp_path / "checkpoint.txt").read_text() == "0"  # that of the first step is untouched


def test_forked_workers_do_not_inherit_the_handlers(tmp_path: Path) -> None:
    fork = "on_SIGTERM_prehook=None)\nimport os, signal\nhear, tell = os.pipe()\nchild = os.fork()\n"
    fork += "if child == 0:\n    os.write(tell, b'here')\n    signal.pause()\nos.read(hear, 4)\n"
    fork += "os.kill(child, signal.SIGTERM)\nprint('child', os.waitpid(child, 0)[1], flush=True)\n("

    ended = run(tmp_path, [*write_counter(tmp_path, fork), "1"])

    assert f"child {signal.SIGTERM.value}" in ended.out
    assert ended.status == 0


def test_a_forked_worker_that_is_ended_at_once_does_not_end_its_parent(tmp_path: Path) -> None:
    # The signal comes before the child has forgotten whose handlers it has.
    before = "import os, signal, time\nin_child = lambda: (os.write(2, b'here'), time.sleep(1))\n"
    before += "os.register_at_fork(after_in_child=in_child)\n"
    fork = "on_SIGTERM_prehook=None)\nhear, tell = os.pipe()\nos.dup2(tell, 2)\nchild = os.fork()\n"
    fork += "if child == 0:\n    time.sleep(60)\n    os._exit(1)\nos.read(hear, 4)\nos.kill(child, signal.SIGTERM)\n"
    fork += "print('child', os.waitpid(child, 0)[1], flush=True)\ntime.sleep(1)\n("

    ended = run(tmp_path, [*write_counter(tmp_path, fork, before), "1"])

    assert f"child {signal.SIGTERM.value}" in ended.out
    assert ended.status == 0


def test_all_checkpointers_of_a_program_keep_what_they_have(tmp_path: Path) -> None:
    second = "checkpoint_exit_code=77)\nother = Checkpointer(Path('other.txt'), lambda p, v: p.write_text(v), None)\n"
    second += "other.step('mine')\n("
    with started(tmp_path, [*write_counter(tmp_path, second), "2"]) as script:
        script.wait_for("counted")
        (tmp_path / "other.txt").unlink()

        script.send(signal.SIGTERM)
        ended = script.end()

    assert ended.status == 77
    assert (tmp_path / "other.txt").read_text() == "mine"
    assert (tmp_path / "checkpoint.txt").read_text() == "1"


def test_a_signal_that_does_not_interrupt_the_main_thread_is_heard_all_the_same(tmp_path: Path) -> None:
    # As one that comes right before that thread begins to wait: the interpreter knows of it, and the wait goes on.
    aside = "on_SIGTERM_prehook=None)\nimport os, signal, threading\ncheckpointer.step(7)\n"
    aside += "def get_it():\n    sys.stdin.readline()\n    signal.pthread_kill(threading.get_ident(), signal.SIGTERM)\n"
    aside += "threading.Thread(target=get_it).start()\nprint('waits', flush=True)\nos.read(os.pipe()[0], 1)\n("
    with started(tmp_path, [*write_counter(tmp_path, aside), "0"]) as script:
        script.wait_for("waits")
        _until_it_waits(script.pid)

        script.say("now")
        ended = script.end()

    assert ended.status == 85
    assert (tmp_path / "checkpoint.txt").read_text() == "7"


def test_a_call_that_begins_again_after_every_signal_is_not_kept_from_its_end(tmp_path: Path) -> None:
    # As C libraries do: whoever interrupts it again and again has it wait for ever.
    patient = "on_SIGTERM_prehook=None)\nimport ctypes, os, signal\nlibc = ctypes.CDLL(None, use_errno=True)\n"
    patient += "def wait():\n    while libc.poll(None, 0, 2000) < 0:\n        pass\n"
    patient += "from holdfast.doors import kit_signals\nkit_signals._handle = handle = lambda *_: None\n"
    patient += "signal.signal(signal.SIGTERM, handle)\nprint('waits', flush=True)\nwait()\n"
    patient += "print('waited', flush=True)\n("
    with started(tmp_path, [*write_counter(tmp_path, patient), "0"]) as script:
        script.wait_for("waits")
        script.send(signal.SIGTERM)

        script.wait_for("waited")
        script.send(signal.SIGKILL)
        ended = script.end()

    assert "waited" in ended.out


def test_a_signal_to_a_child_that_a_library_forked_is_not_taken_for_the_parents(tmp_path: Path) -> None:
    # Without Python's hooks it never forgets, and what it gets is written to the same place.
    fork = "on_SIGTERM_prehook=None)\nimport ctypes, os, signal, time\nchild = ctypes.PyDLL(None).fork()\n"
    fork += "if child == 0:\n    time.sleep(60)\n    os._exit(1)\ntime.sleep(0.5)\nos.kill(child, signal.SIGUSR1)\n"
    fork += "print('child', os.waitpid(child, 0)[1], flush=True)\ntime.sleep(1)\n("

    ended = run(tmp_path, [*write_counter(tmp_path, fork), "1"])

    assert f"child {signal.SIGUSR1.value}" in ended.out
    assert ended.status == 0


def test_a_program_that_has_closed_all_descriptors_forks_children_that_can_be_ended(tmp_path: Path) -> None:
    fork = "on_SIGTERM_prehook=None)\nimport os, signal, time\nos.closerange(3, 64)\nhear, tell = os.pipe()\n"
    fork += "child = os.fork()\nif child == 0:\n    os.write(tell, b'here')\n    time.sleep(60)\n    os._exit(1)\n"
    fork += "os.read(hear, 4)\nos.kill(child, signal.SIGTERM)\nprint('child', os.waitpid(child, 0)[1], flush=True)\n"
    fork += "os._exit(0)\n("

    ended = run(tmp_path, [*write_counter(tmp_path, fork), "1"])

    assert f"child {signal.SIGTERM.value}" in ended.out
    assert ended.status == 0


def test_a_wakeup_descriptor_that_somebody_has_closed_keeps_nobody_from_being_made(tmp_path: Path) -> None:
    before = "import os, signal\nreader, writer = os.pipe()\nos.set_blocking(writer, False)\n"
    before += "signal.set_wakeup_fd(writer)\nos.close(writer)\n"

    assert run(tmp_path, [*write_counter(tmp_path, before=before), "1"]).status == 0


def _until_it_waits(pid: int) -> None:
    """For the pipe: its main thread sleeps."""
    deadline_s = time.monotonic() + 60
    while ") S " not in Path(f"/proc/{pid}/task/{pid}/stat").read_text():
        assert time.monotonic() < deadline_s
        time.sleep(0.01)


def test_a_process_that_is_killed_at_any_moment_leaves_a_whole_file(tmp_path: Path) -> None:
    torn = (
        "on_SIGTERM_prehook=None)\ndef write(path, value):\n    path.write_text('h')\n    print('half', flush=True)\n"
    )
    torn += "    sys.stdin.readline()\n    path.write_text(str(value))\ncheckpointer.checkpoint_function = write\n("
    with started(tmp_path, [*write_counter(tmp_path, torn), "4"]) as script:
        script.wait_for("half")
        script.say("go on")
        script.wait_for("half")

        script.send(signal.SIGKILL)
        script.end()

    second = run(tmp_path, [*write_counter(tmp_path), "1"])

    assert "starts at 0" in second.out
    assert second.status == 0
    assert sorted(path.name for path in tmp_path.iterdir()) == ["checkpoint.txt", "checkpoint.txt.run", "count.py"]


def test_steps_in_another_thread_are_kept_too(tmp_path: Path) -> None:
    threaded = "checkpoint_exit_code=77)\nimport threading, time\ndef train():\n    for i in range(10**9):\n"
    threaded += "        checkpointer.step(i)\n        time.sleep(0.01)\n        print('trained', flush=True)\n"
    threaded += "thread = threading.Thread(target=train, daemon=True)\nthread.start()\nthread.join()\n("
    with started(tmp_path, [*write_counter(tmp_path, threaded), "0"]) as script:
        script.wait_for("trained")

        script.send(signal.SIGTERM)
        ended = script.end()

    assert ended.status == 77
    assert (tmp_path / "checkpoint.txt").exists()


def test_a_second_signal_ends_the_wait_for_a_step(tmp_path: Path) -> None:
    before = "import os, signal\nsignal.signal(signal.SIGTERM, lambda *_: os.write(1, b'asked\\n'))\n"
    # As if steps took almost as long as is waited for.
    slow = "on_SIGTERM_prehook=None)\ncheckpointer.step(5)\ncheckpointer._step_took_s = 4.9\n"
    slow += (
        "import holdfast.doors.kit_signals as signals\nsignals._wait_for_step = lambda s: os.write(1, b'waits\\n')\n("
    )
    with started(tmp_path, [*write_counter(tmp_path, slow, before), "0"]) as script:
        script.wait_for("counted")
        script.send(signal.SIGTERM)
        script.wait_for("waits")

        script.send(signal.SIGTERM)
        ended = script.end()

    assert ended.status == 85


def test_a_signal_in_the_last_lines_of_a_program_that_leaves_does_not_change_its_status(tmp_path: Path) -> None:
    # What the program leaves behind is dropped when Python's own handlers are gone already.
    late = "import os\nclass Late:\n    def __del__(self, kill=os.kill, here=os.getpid()):\n        kill(here, 15)\n"
    with started(tmp_path, [*write_counter(tmp_path, before=late + "late = Late()\n"), "0"]) as script:
        script.wait_for("counted")

        script.send(signal.SIGTERM)
        ended = script.end()

    assert ended.status == 85


@pytest.mark.parametrize(
    "hook",
    [
        "lambda: checkpointer.checkpoint('of the hook')",
        "lambda: checkpointer.checkpoint_exists",
        "lambda: checkpointer.step('of the hook')",
        "lambda: sys.exit(3)",
    ],
)
def test_a_hook_may_use_the_checkpointer_and_does_not_change_the_status(tmp_path: Path, hook: str) -> None:
    options = "checkpoint_transfer_mode='shared', checkpoint_transfer_target=Path('store/me.txt'),"
    (tmp_path / "store").mkdir()
    with started(tmp_path, [*write_counter(tmp_path, f"{options} on_SIGTERM_prehook={hook},"), "5"]) as script:
        script.wait_for("counted")

        script.send(signal.SIGTERM)
        ended = script.end()

    assert ended.status == 85
    assert (tmp_path / "store" / "me.txt").read_text() == ("of the hook" if "'" in hook else "4")


def test_another_thread_can_end_the_program(tmp_path: Path) -> None:
    ends = "import threading\nend = lambda: threading.Thread(target=lambda: checkpointer.on_SIGTERM(15)).start()\n"
    more = "on_SIGTERM_prehook=None)\nimport time\ncheckpointer.step(7)\nend()\ntime.sleep(600)\n("

    ended = run(tmp_path, [*write_counter(tmp_path, more, ends), "0"])

    assert ended.status == 85
    assert (tmp_path / "checkpoint.txt").read_text() == "7"


def test_a_second_signal_while_the_first_one_starts_to_wait_does_no_harm(tmp_path: Path) -> None:
    # As if it came while the first one starts a thread, which takes a lock that whoever starts another one needs, too.
    slow = "on_SIGTERM_prehook=None)\ncheckpointer.step(5)\ncheckpointer._step_took_s = 4.9\n"
    slow += "import os, threading, time\nusual = threading.Timer.start\ndef start_slowly(timer):\n"
    slow += "    with threading._active_limbo_lock:\n"
    slow += "        os.kill(os.getpid(), signal.SIGTERM)\n        time.sleep(0.1)\n"
    slow += "    usual(timer)\nthreading.Timer.start = start_slowly\n"
    slow += "def write(path, value):\n    threading.Thread(target=path.write_text, args=(str(value),)).start()\n"
    slow += "    while not path.exists() or not path.read_text():\n        pass\n"
    slow += "checkpointer.checkpoint_function = write\n("
    with started(tmp_path, [*write_counter(tmp_path, slow), "0"]) as script:
        script.wait_for("counted")

        script.send(signal.SIGTERM)
        ended = script.end()

    assert ended.status == 85, ended.err
    assert (tmp_path / "checkpoint.txt").read_text() == "5"


def test_a_signal_in_a_call_that_fails_is_answered_all_the_same(tmp_path: Path) -> None:
    before = "import os, signal\n"
    fails = "checkpoint_transfer_mode='manual',"
    fails += "checkpoint_transfer_callback=lambda *_: 1 / (os.kill(os.getpid(), 15) or 0),"

    ended = run(tmp_path, [*write_counter(tmp_path, fails, before), "0"])

    assert ended.status == 85  # nothing was to be kept yet


def test_ctrl_c_that_was_to_be_ignored_still_is(tmp_path: Path) -> None:
    ignores = "import signal\nsignal.signal(signal.SIGINT, signal.SIG_IGN)\n"
    with started(tmp_path, [*write_counter(tmp_path, before=ignores), "0"]) as script:
        script.wait_for("counted")
        script.send(signal.SIGINT)

        script.say("3")
        script.wait_for("stepped")
        script.send(signal.SIGTERM)

        assert script.end().status == 85


def test_a_supervisor_that_asks_for_signs_of_life_hears_of_the_steps(tmp_path: Path) -> None:
    (tmp_path / "beats").mkdir()

    run(tmp_path, [*write_counter(tmp_path), "5"], {"HOLDFAST_BEATS": str(tmp_path / "beats")})

    (beat,) = read_beats(str(tmp_path / "beats"))
    assert (beat.step, beat.durable_step) == (5, 4)
    assert beat.run == str(tmp_path / "checkpoint.txt.run")


@pytest.mark.slow
@pytest.mark.parametrize(
    "mode", ["", "checkpoint_transfer_mode='shared', checkpoint_transfer_target=Path('shared/me.txt'),"]
)
def test_a_job_that_is_killed_again_and_again_never_loses_what_a_step_has_kept(tmp_path: Path, mode: str) -> None:
    (tmp_path / "shared").mkdir()
    command = write_counter(tmp_path, mode + ")\ncheckpointer.checkpoint_every = 1\n(")
    text = (tmp_path / "count.py").read_text()
    (tmp_path / "count.py").write_text(text.replace("step(i)\n", "step(i)\n    print(f'kept <{i}>', flush=True)\n"))
    kept = 0
    for more in (1, 2, 3, 5, 8, 2):
        with started(tmp_path, [*command, "1000000"]) as script:
            script.wait_for("starts at")
            for _ in range(more):
                script.wait_for("kept")
            script.send(signal.SIGKILL)
            ended = script.end()

        began = int(ended.out.split("starts at ")[1].split()[0])
        assert began >= kept
        kept = int(ended.out.rpartition("<")[2].partition(">")[0])
    assert sorted(path.name for path in tmp_path.glob("*.set-aside*")) == []


def _wrapper(folder: Path, count: str) -> list[str]:
    """The script of the page, around the counter."""
    page = ROOT / "docs/how-to/from-the-kit-checkpointer.md"
    text = next(block.text for block in blocks(page) if block.language == "bash")
    assert "train.py &" in text
    (folder / "wrapper.sh").write_text(text.replace("train.py &", f"count.py {count} <&0 &"))
    write_counter(folder)
    return ["bash", "wrapper.sh"]


@pytest.mark.skipif(shutil.which("bash") is None, reason="not installed: bash")
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGUSR1])
def test_a_shell_script_that_waits_twice_has_the_status_of_the_training(tmp_path: Path, number: signal.Signals) -> None:
    with started(tmp_path, _wrapper(tmp_path, "3")) as script:
        script.wait_for("counted")

        script.send(number)
        ended = script.end()

    assert ended.status == 85, ended.err


@pytest.mark.skipif(shutil.which("bash") is None, reason="not installed: bash")
def test_a_shell_script_that_waits_twice_has_the_status_of_a_training_that_ends_by_itself(tmp_path: Path) -> None:
    assert run(tmp_path, _wrapper(tmp_path, "3")).status == 0
    assert run(tmp_path, _wrapper(tmp_path, "nonsense")).status == 1


def test_handlers_that_took_the_place_of_its_own_stay_in_a_forked_child(tmp_path: Path) -> None:
    made = Checkpointer(tmp_path / "checkpoint", lambda path, value: path.write_text(str(value)), None)
    before = signal.signal(signal.SIGUSR1, lambda number, frame: os._exit(7))

    child = os.fork()
    if child == 0:
        os.kill(os.getpid(), signal.SIGUSR1)
        os._exit(1)

    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
    signal.signal(signal.SIGUSR1, before)
    del made
