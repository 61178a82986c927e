"""Disks that a program cannot tell apart share a judgement, and only those."""

from functools import partial

import pytest

from holdfast.storage.files import read_some
from holdfast.storage.posix import PosixStore
from tests.crash import observed
from tests.crash.children import Tell, listen, start
from tests.crash.explore import explore
from tests.crash.models import Tree
from tests.crash.mutants import MUTANTS
from tests.crash.observed import Judge, Observed, ObservedFiles, journals_are_read_for_events

_TREE: Tree = {"run": None, "run/read": b"abc", "run/measured": b"abc", "run/left": b"abc"}


def _look(tree: Tree) -> tuple[str, Observed]:
    """A program that reads one file, asks for the size of another, and finds fault with the contents of the first."""
    disk = ObservedFiles.from_tree(tree)
    process = disk.another_process()
    root = process.open_root("/run")
    data = read_some(process, process.open_read(root, "read"), 100, 0)
    process.info_at(root, "measured")
    return ("damaged" if data == b"bad" else ""), Observed.on(disk)


def test_what_was_read_and_what_was_measured_is_noted() -> None:
    _, seen = _look(_TREE)

    assert seen == Observed(contents=("run/read",), sizes=("run/measured",), events=())


def test_a_file_that_is_changed_and_then_read_counts_as_read() -> None:
    disk = ObservedFiles.from_tree(_TREE)
    descriptor = disk.open_append(disk.open_root("/run"), "left", 0o600)

    disk.append(descriptor, b"d")
    before = Observed.on(disk)
    disk.read_at(descriptor, [memoryview(bytearray(1))], 3)

    assert before.contents == ()
    assert Observed.on(disk).contents == ("run/left",)


@pytest.mark.parametrize(
    ("changed", "judged"),
    [
        ({"run/left": b"anything"}, 1),
        ({"run/measured": b"xyz"}, 1),
        ({"run/measured": b"abcd"}, 2),
        ({"run/read": b"bad"}, 2),
        ({"run/more": b""}, 2),
    ],
)
def test_a_disk_is_judged_unless_it_looks_the_same(changed: Tree, judged: int) -> None:
    judge = Judge()

    problems = [judge.problem(tree, "", partial(_look, tree)) for tree in (_TREE, {**_TREE, **changed})]

    assert problems == ["", _look({**_TREE, **changed})[0]]
    assert judge.judged == judged


def test_what_looks_the_same_is_judged_for_each_promise() -> None:
    judge = Judge()

    for promise in ("one", "another", "one"):
        judge.problem(_TREE, promise, lambda: _look(_TREE))

    assert judge.judged == 2


def test_a_program_that_does_not_do_the_same_on_the_same_disk_is_a_violation(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(observed, "_AGAIN_EVERY", 1)
    judge = Judge()
    judge.problem(_TREE, "", lambda: _look(_TREE))

    problem = judge.problem(_TREE, "", lambda: ("lost", _look(_TREE)[1]))

    assert problem == "judged otherwise than a disk that looks the same: lost, not all is well"


@pytest.mark.parametrize(
    ("journal", "is_same"),
    [
        (b'{"event":"a"}\n{"event', True),  # what is added begins on a line of its own
        (b'{"event":"a"}\n\0\0\0\0\n', True),
        (b'{"event":"a"}\n{"eve\n', True),
        (b'{"event":"a"}\n{"event":"b"}\n', False),
        (b"", False),
    ],
)
def test_journals_with_the_same_events_look_the_same(journal: bytes, is_same: bool) -> None:
    plain = b'{"event":"a"}\n'

    assert (observed._events_of(journal) == observed._events_of(plain)) is is_same


def test_a_journal_that_is_read_in_another_way_counts_byte_by_byte() -> None:
    disk = ObservedFiles.from_tree({"run": None, "run/journal.jsonl": b"{}\n"})

    with journals_are_read_for_events():
        store = PosixStore("/run", files=disk)
        store.append("journal.jsonl", b"{}\n", durable=False)
        appended = Observed.on(disk)
        store.read_tail("journal.jsonl", 100)

    assert appended == Observed((), (), ("run/journal.jsonl",))
    assert Observed.on(disk) == Observed(("run/journal.jsonl",), (), ())


@pytest.mark.parametrize("name", ["", "prunes data before the manifest", "believes the journal, not the manifests"])
def test_states_that_look_the_same_are_judged_the_same_also_of_broken_variants(name: str) -> None:
    def live(tell: Tell) -> None:
        for mutant in MUTANTS:
            if mutant.name == name:
                mutant.break_it()
        observed._AGAIN_EVERY = 1
        outcome = explore(1000, seed=1, sequences=["save and prune"])
        tell(f"found {bool(outcome.violations)}")
        tell(f"otherwise {[violation for violation in outcome.violations if 'judged otherwise' in violation]}")

    lines = listen(*start(live), deadline_s=120)

    assert lines == [f"found {bool(name)}", "otherwise []", "end"]
