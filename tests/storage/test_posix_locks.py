"""Locks and holds between real processes, threads and forked children."""

import errno
import linecache
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

from holdfast.core import interrupts
from holdfast.core.errors import RunBusyError, StorageError, UsageError
from holdfast.storage.files import Files, Start
from holdfast.storage.posix import PosixStore
from holdfast.storage.posix_locks import let_go
from holdfast.testing import FakeClock, Fault, FaultyFiles
from tests.descriptors import open_descriptors

_PATIENCE_S = 30.0

_CHILD = """
import sys
from holdfast.core.errors import RunBusyError
from holdfast.storage.posix import PosixStore

def can_lock():
    try:
        with store.exclusive(0.0):
            return True
    except RunBusyError:
        return False

store = PosixStore(sys.argv[1])
for line in sys.stdin:
    print(eval(line), flush=True)
"""


class _Process:
    """Another process with the run open, which answers expressions about its `store`."""

    def __init__(self, run: Path) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-c", _CHILD, run], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

    def ask(self, expression: str) -> str:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(expression + "\n")
        self._process.stdin.flush()
        return self._process.stdout.readline().strip()

    def kill(self) -> None:
        self._process.kill()
        self._process.communicate()


@pytest.fixture
def other(store: PosixStore, run: Path) -> Iterator[_Process]:
    process = _Process(run)
    yield process
    process.kill()


def _try_lock(store: PosixStore, deadline_s: float = 0.0) -> bool:
    try:
        with store.exclusive(deadline_s):
            return True
    except RunBusyError:
        return False


def test_the_lock_of_another_process_is_respected_until_it_is_killed(store: PosixStore, other: _Process) -> None:
    assert other.ask("store.exclusive(30.0).__enter__()") == "None"

    while_it_lives = _try_lock(store)
    other.kill()

    assert (while_it_lives, _try_lock(store, _PATIENCE_S)) == (False, True)


def test_another_process_respects_our_lock(store: PosixStore, other: _Process) -> None:
    with store.exclusive(_PATIENCE_S):
        while_we_have_it = other.ask("can_lock()")

    assert (while_we_have_it, other.ask("can_lock()")) == ("False", "True")


def test_a_blob_held_by_another_process_is_free_once_that_is_killed(store: PosixStore, other: _Process) -> None:
    store.publish("attempts/1", b"x")
    assert other.ask("store.hold('attempts/1')") == "True"

    while_it_lives = (store.is_held("attempts/1"), store.hold("attempts/1"))
    other.kill()

    assert while_it_lives == (True, False)
    assert (store.is_held("attempts/1"), store.hold("attempts/1")) == (False, True)


def test_asking_whether_a_blob_is_held_does_not_hold_it(store: PosixStore, other: _Process) -> None:
    store.publish("attempts/1", b"x")
    store.hold("attempts/1")

    answers = [other.ask("store.is_held('attempts/1')") for _ in range(2)]
    store.let_go("attempts/1")

    assert answers == ["True", "True"]
    assert other.ask("store.is_held('attempts/1')") == "False"
    assert store.hold("attempts/1")


_USES: dict[str, Callable[[PosixStore], object]] = {
    "read": lambda store: store.read("attempts/1", 100),
    "open": lambda store: store.open("attempts/1").close(),
    "heads": lambda store: store.list_heads(["attempts"], "1", 10),
    "tail": lambda store: store.read_tail("attempts/1", 10),
    "append": lambda store: store.append("attempts/1", b"x", durable=True),
    "is_held": lambda store: store.is_held("attempts/1"),
    "second hold": lambda store: store.hold("attempts/1"),
    "list": lambda store: store.list("attempts"),
}


@pytest.mark.parametrize("use", _USES.values(), ids=_USES)
def test_no_use_of_a_held_blob_in_its_own_process_drops_the_hold(
    store: PosixStore, run: Path, other: _Process, use: Callable[[PosixStore], object]
) -> None:
    store.publish("attempts/1", b"x")
    store.hold("attempts/1")
    second = PosixStore(run)

    use(store)
    use(second)
    second.close()

    assert other.ask("store.hold('attempts/1')") == "False"


def test_a_reader_opened_before_the_hold_does_not_drop_it_when_it_closes(store: PosixStore, other: _Process) -> None:
    store.publish("attempts/1", b"x")
    reader = store.open("attempts/1")
    store.hold("attempts/1")

    reader.close()

    assert other.ask("store.is_held('attempts/1')") == "True"


def test_a_blob_that_another_thread_holds_since_it_was_opened_stays_held(
    run: Path, store: PosixStore, other: _Process
) -> None:
    class Held(Files):
        def open_starts(self, root: int, groups: Sequence[str], name: str, size_bytes: int) -> list[Start] | None:
            found = Files().open_starts(root, groups, name, size_bytes)
            assert store.hold("attempts/1")
            return found

    store.publish("attempts/1", b"me")

    found = PosixStore(run, files=Held()).list_heads(["attempts"], "1", 10)

    assert list(found) == [b"me"]
    assert other.ask("store.is_held('attempts/1')") == "True"


def test_reading_a_held_blob_many_times_opens_no_more_descriptors(store: PosixStore) -> None:
    store.publish("attempts/1", b"x")
    store.hold("attempts/1")
    store.read("attempts/1", 100)
    before = len(open_descriptors())

    for _ in range(50):
        store.read("attempts/1", 100)
        store.list_heads(["attempts"], "1", 10)

    assert len(open_descriptors()) == before


def test_a_second_store_that_closes_does_not_free_the_lock(store: PosixStore, run: Path, other: _Process) -> None:
    second = PosixStore(run)
    _try_lock(second)

    with store.exclusive(_PATIENCE_S):
        second.close()

        answer = other.ask("can_lock()")

    assert answer == "False"


@pytest.fixture
def raising_ctrl_c() -> Iterator[None]:
    """As in a program at a terminal: one that a shell starts in the background ignores the signal."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


def _interrupted_at(count: int, act: Callable[[], object], *, leave_out: tuple[str, ...] = ()) -> bool:
    """Whether Ctrl-C came before the n-th line about locks that this thread ran to do so.

    A tracer sees the end of a `with` as a line, where no signal can come: such lines are to be left out.
    """
    left = count

    def enter(frame: FrameType, event: str, argument: object) -> Any:
        is_ours = frame.f_code.co_filename.endswith(("run_lock.py", "posix_locks.py"))
        return line if is_ours and frame.f_code.co_name not in leave_out else None

    def line(frame: FrameType, event: str, argument: object) -> Any:
        nonlocal left
        text = linecache.getline(frame.f_code.co_filename, frame.f_lineno)
        if event == "line" and not any(part in text for part in leave_out):
            left -= 1
            if left == 0:
                signal.raise_signal(signal.SIGINT)
        return line

    before = sys.gettrace()  # that of a coverage measurement, which would be over
    sys.settrace(enter)
    try:
        act()
    except KeyboardInterrupt:
        pass
    finally:
        sys.settrace(before)
    return left <= 0


@pytest.mark.usefixtures("raising_ctrl_c")
def test_ctrl_c_at_any_line_leaves_the_lock_free(store: PosixStore, other: _Process) -> None:
    def take_and_give_back() -> None:
        with store.exclusive(_PATIENCE_S):
            pass

    count = 1
    while _interrupted_at(count, take_and_give_back):
        assert other.ask("can_lock()") == "True", count
        count += 1

    assert count > 30


@pytest.mark.usefixtures("raising_ctrl_c")
def test_ctrl_c_at_any_line_of_reading_a_blob_does_not_stop_who_holds_it_later(
    store: PosixStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("holdfast.storage.posix_locks._CLOSING_S", 0.01)
    store.publish("group/blob", b"data")
    count, leave_out = 1, ("end_closing", "with registry.guard")
    while _interrupted_at(count, lambda: store.read("group/blob", 100), leave_out=leave_out):
        assert store.hold("group/blob"), count
        store.let_go("group/blob")
        count += 1

    assert count > 10


@pytest.mark.usefixtures("raising_ctrl_c")
def test_ctrl_c_at_any_line_of_letting_go_leaves_nothing_half_let_go(store: PosixStore, other: _Process) -> None:
    store.publish("group/blob", b"data")
    count, is_over = 1, False
    while not is_over:
        assert store.hold("group/blob")
        is_over = not _interrupted_at(count, partial(let_go, store._held["group/blob"]))
        store.let_go("group/blob")
        assert other.ask("store.is_held('group/blob')") == "False", count
        count += 1

    assert count > 5


class _NoAnswer(Files):
    """A file server that does not answer when what was appended is closed."""

    def __init__(self) -> None:
        self.hangs, self.answers = threading.Event(), threading.Event()
        self._appended = -1

    def append(self, descriptor: int, data: bytes) -> int:
        self._appended = descriptor
        return super().append(descriptor, data)

    def close(self, descriptor: int) -> None:
        if descriptor == self._appended:
            self.hangs.set()
            self.answers.wait()
            self._appended = -1
        super().close(descriptor)


def test_a_storage_that_does_not_answer_stops_nobody_who_writes_elsewhere(tmp_path: Path) -> None:
    files = _NoAnswer()
    mute = PosixStore(tmp_path / "mute", create=True, files=files)
    mute.publish("attempts/1", b"x")
    mute.hold("attempts/1")
    hanging = threading.Thread(target=mute.append, args=("journal", b"x"), kwargs={"durable": False}, daemon=True)
    hanging.start()
    files.hangs.wait()
    done: list[bool] = []

    def work() -> None:
        elsewhere = PosixStore(tmp_path / "elsewhere", create=True)
        elsewhere.publish("attempts/1", b"x")
        done.append(elsewhere.hold("attempts/1"))
        done.append(elsewhere.read("attempts/1", 10) == b"x")
        done.append(_try_lock(elsewhere))
        elsewhere.close()
        mute.close()
        done.append(True)

    working = threading.Thread(target=work, daemon=True)
    working.start()
    working.join(_PATIENCE_S)
    files.answers.set()
    hanging.join()

    assert done == [True] * 4


def test_a_thread_that_has_the_lock_keeps_it_when_its_store_is_closed(run: Path, other: _Process) -> None:
    before = open_descriptors()
    closed = PosixStore(run)
    has_it, may_end = threading.Event(), threading.Event()

    def commit() -> None:
        with closed.exclusive(_PATIENCE_S):
            has_it.set()
            may_end.wait()

    thread = threading.Thread(target=commit)
    thread.start()
    has_it.wait()

    closed.close()
    while_it_goes_on = other.ask("can_lock()")
    may_end.set()
    thread.join()

    assert (while_it_goes_on, other.ask("can_lock()")) == ("False", "True")
    assert open_descriptors() == before


def test_who_waits_for_the_lock_of_a_store_that_is_closed_does_not_end_up_in_directories_of_others(
    run: Path, tmp_path: Path, other: _Process
) -> None:
    other.ask("store.exclusive(30.0).__enter__()")
    waits, may_go_on = threading.Event(), threading.Event()
    outcome: list[BaseException] = []

    def on_wait() -> None:
        waits.set()
        may_go_on.wait()

    def wait() -> None:
        try:
            with closed.exclusive(_PATIENCE_S, on_wait=on_wait):
                pass
        except UsageError as error:
            outcome.append(error)

    closed = PosixStore(run)
    thread = threading.Thread(target=wait)
    thread.start()
    waits.wait()

    closed.close()
    foreign = tmp_path / "foreign"
    foreign.mkdir()
    others = [os.open(foreign, os.O_RDONLY) for _ in range(5)]
    other.kill()
    may_go_on.set()
    thread.join()

    for descriptor in others:
        os.close(descriptor)
    assert "closed" in str(outcome[0])
    assert list(foreign.iterdir()) == []


_FORKING = """
import os, sys
from holdfast.core.errors import RunBusyError
from holdfast.storage.posix import PosixStore

def in_child(action):
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        os.write(write, repr(action()).encode())
        os._exit(0)
    os.waitpid(child, 0)
    return os.read(read, 1000).decode()

def try_lock():
    try:
        with store.exclusive(0.0):
            return True
    except RunBusyError:
        return False

def leave():
    turn.__exit__(None, None, None)
    store.let_go("attempts/1")
    store.close()

store = PosixStore(sys.argv[1], create=True)
store.publish("attempts/1", b"x")
store.hold("attempts/1")
turn = store.exclusive(0.0)
turn.__enter__()
print(in_child(lambda: (store.hold("attempts/1"), store.is_held("attempts/1"), try_lock())))
print(in_child(leave))
print(in_child(lambda: (store.hold("attempts/1"), store.is_held("attempts/1"), try_lock())))
turn.__exit__(None, None, None)
print(in_child(try_lock))

asked, answered = os.pipe(), os.pipe()
if os.fork() == 0:
    os.read(asked[0], 1)
    os.write(answered[1], repr((store.is_held("attempts/1"), store.hold("attempts/1"))).encode())
    os._exit(0)
store.close()
os.write(asked[1], b"!")
print(os.read(answered[0], 1000).decode())
"""


def test_a_forked_child_holds_nothing_and_frees_nothing_of_its_parent(run: Path) -> None:
    ran = subprocess.run([sys.executable, "-c", _FORKING, run], capture_output=True, text=True, check=True)

    # What the parent holds is held by another process, as its child sees it: also after a child closed everything.
    assert ran.stdout.split("\n")[:4] == ["(False, True, False)", "None", "(False, True, False)", "True"]
    # And when the parent lets go, the child does not keep it alive: it can be held anew.
    assert ran.stdout.split("\n")[4:] == ["(False, True)", ""]


def test_waiting_for_the_lock_pauses_longer_and_longer_and_ends_at_the_deadline(run: Path, store: PosixStore) -> None:
    clock = FakeClock()
    waiting = PosixStore(run, clock=clock)

    with store.exclusive(_PATIENCE_S), pytest.raises(RunBusyError, match="kept it for 2 s"), waiting.exclusive(2.0):
        pass

    assert clock.monotonic_s() == pytest.approx(2.0)
    assert clock.slept_s[0] == 0.001
    assert max(clock.slept_s) == 0.05
    assert clock.slept_s[:-1] == sorted(clock.slept_s[:-1])


def test_the_lock_is_taken_as_soon_as_it_is_free(run: Path, store: PosixStore) -> None:
    turn = store.exclusive(_PATIENCE_S)
    waiting = PosixStore(run, clock=FakeClock())

    # In a thread of its own: turns of one thread that are not nested would leave its interrupts deferred.
    with ThreadPoolExecutor(1) as holder:
        holder.submit(turn.__enter__).result(30)
        free = lambda: holder.submit(turn.__exit__, None, None, None).result(30)  # noqa: E731
        with waiting.exclusive(_PATIENCE_S, on_wait=free):
            taken = not _try_lock(store)

    assert taken
    assert not interrupts._is_deferred


def test_a_lock_file_that_was_removed_excludes_nobody_and_is_made_again(
    run: Path, store: PosixStore, other: _Process
) -> None:
    _try_lock(store)
    (run / "lock").unlink()
    assert other.ask("store.exclusive(30.0).__enter__()") == "None"

    assert not _try_lock(store)


def test_a_lock_file_that_is_replaced_while_it_is_being_locked_is_locked_again(run: Path, store: PosixStore) -> None:
    _try_lock(store)
    files = FaultyFiles()
    late = PosixStore(run, files=files, clock=FakeClock())
    _try_lock(late)
    replace = Fault(at=len(files.calls), action=lambda: (run / "lock").unlink(), lasting=True, methods={"lock"})
    files.plan.append(replace)

    def stop() -> None:
        files.plan.clear()

    with late.exclusive(_PATIENCE_S, on_wait=stop):
        excluded = not _try_lock(store)

    assert excluded


@pytest.mark.parametrize("number", [errno.ENOLCK, errno.ENOTSUP])
def test_a_file_system_without_locks_is_used_with_one_warning(
    run: Path, number: int, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("holdfast.storage.posix_locks._warned", [])
    without = {"lock", "unlock", "lock_is_taken"}
    files = FaultyFiles(plan=[Fault(at=0, error=number, lasting=True, methods=without)])
    store = PosixStore(run, create=True, files=files)
    store.publish("attempts/1", b"x")

    with store.exclusive(0.0):
        threads_exclude_each_other = not _try_lock(store)
    held = (store.is_held("attempts/1"), store.hold("attempts/1"), store.is_held("attempts/1"))

    assert threads_exclude_each_other
    assert held == (False, True, True)
    assert [record.getMessage().split(": ")[1][:28] for record in caplog.records] == ["the file system has no locks"]


@pytest.mark.parametrize("method", ["open_append", "info", "info_at", "lock", "unlock"])
def test_an_error_while_locking_is_reported_and_leaves_the_lock_free(run: Path, method: str) -> None:
    run.mkdir(mode=0o700)
    probe = FaultyFiles()
    store = PosixStore(run, files=probe)
    begin = len(probe.calls)
    _try_lock(store)
    numbers = [number for number, called in probe.calls[begin:] if called == method]
    store.close()

    for number in numbers:
        (run / "lock").unlink()
        store = PosixStore(run, files=FaultyFiles(plan=[Fault(at=number, error=errno.EIO)]))
        with pytest.raises(StorageError, match="EIO"):
            _try_lock(store)
        after = PosixStore(run)
        assert _try_lock(after)
        after.close()
        store.close()

    assert numbers


def test_threads_that_read_and_hold_at_once_never_lose_the_hold(store: PosixStore, other: _Process) -> None:
    store.publish("attempts/1", b"x")
    stop = threading.Event()

    def read() -> None:
        while not stop.is_set():
            store.read("attempts/1", 100)

    readers = [threading.Thread(target=read) for _ in range(3)]
    for reader in readers:
        reader.start()
    lost = []
    for _ in range(50):
        assert store.hold("attempts/1")
        lost.append(other.ask("store.is_held('attempts/1')") != "True")
        store.let_go("attempts/1")
    stop.set()
    for reader in readers:
        reader.join()

    assert not any(lost)


def test_a_record_lock_is_asked_for_and_not_taken(run: Path) -> None:
    run.mkdir()
    files = Files()
    root = files.open_root(str(run))
    descriptor = files.create(root, "file", 0o600)

    before = files.lock_is_taken(descriptor)
    taken = files.lock(descriptor)

    assert (before, taken) == (False, True)
    files.close(descriptor)
    files.close(root)
