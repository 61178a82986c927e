"""What a program gets to know of its disk, so that disks that it cannot tell apart are judged once.

A program is deterministic here: asked the same, answered the same, it does the same. So a judgement holds for every
disk with the same names on which all that was looked at is the same, whatever lies in the files that nobody read: most
crash states differ only in the torn data of a checkpoint that has no manifest.

The journal is always read, and nearly always torn. What the program learns from it are the events in it, and whether
its last line is whole: where it is read for its events or a line is added, only that counts as seen. It is found out by
reading and continuing every distinct journal with the functions under test.
"""

import functools
import threading
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any, NamedTuple, Self
from unittest.mock import patch

from holdfast.core.names import JOURNAL_NAME
from holdfast.engine.journal import read_events
from holdfast.storage.files import Info
from holdfast.storage.posix import PosixStore
from holdfast.testing.memory_files import MemoryFiles
from tests.crash.models import Tree

__all__ = ["SHARED", "Judge", "Observed", "ObservedFiles", "journals_are_read_for_events"]

_READERS = ("holdfast.engine.pace", "holdfast.engine.restoring")
_MOST_JOURNALS = 20_000
_AGAIN_EVERY = 50

SHARED = "judged; to the program, each of the others looks like one of these"
"""What is to be said of a number of judgements."""

# Of this thread: what others read at the same time counts as it is.
_reads_for_events = threading.local()


@contextmanager
def journals_are_read_for_events() -> Iterator[None]:
    """Within it, `read_events` and the store's `append` see the events of a journal instead of its bytes."""

    def on_journals(self: PosixStore, parent: int, name: str, line: bytes, **options: Any) -> None:
        (for_events if name == JOURNAL_NAME else append)(self, parent, name, line, **options)

    append = PosixStore._append
    for_events = _for_events(append)
    with ExitStack() as stack:
        for module in _READERS:
            stack.enter_context(patch(f"{module}.read_events", _for_events(read_events)))
        stack.enter_context(patch.object(PosixStore, "_append", on_journals))
        yield


def _for_events(function: Callable[..., Any]) -> Callable[..., Any]:
    def watched(*arguments: Any, **options: Any) -> Any:
        _reads_for_events.now = True
        try:
            return function(*arguments, **options)
        finally:
            _reads_for_events.now = False

    return watched


class Observed(NamedTuple):
    """Which of the files that were there at first were looked at. Names and kinds always count as seen."""

    contents: tuple[str, ...]
    sizes: tuple[str, ...]
    events: tuple[str, ...]

    @classmethod
    def on(cls, *disks: "ObservedFiles") -> "Observed":
        """All that was looked at on equal disks, one after the other."""
        contents, sizes, events = (
            set().union(*seen) for seen in zip(*((d._contents, d._sizes, d._events) for d in disks), strict=True)
        )
        return cls(*(tuple(sorted(seen)) for seen in (contents, sizes - contents, events - contents)))

    def of(self, tree: Tree) -> int:
        """What would have been seen on this disk, as a hash."""
        contents = [tree[path] for path in self.contents]
        sizes = [len(tree[path] or b"") for path in self.sizes]
        return hash((*contents, *sizes, *(_events_of(tree[path] or b"") for path in self.events)))


@functools.lru_cache(_MOST_JOURNALS)
def _events_of(journal: bytes) -> int:
    """A hash of all that `read_events` tells of the journal as it is, and after a line was added to it."""
    store = PosixStore("/run", files=MemoryFiles.from_tree({f"run/{JOURNAL_NAME}": journal}))
    told = repr(read_events(store))
    store.append(JOURNAL_NAME, b'{"event":"next"}', durable=False)
    return hash((told, repr(read_events(store))))


class ObservedFiles(MemoryFiles):
    """Notes which files were read, and whose size was asked for; by all processes that share the disk.

    What was changed counts when it is read: what a file holds by then depends on what it held at first.
    """

    def __init__(self) -> None:
        super().__init__()
        self._origins: dict[int, str] = {}
        self._contents: set[str] = set()
        self._sizes: set[str] = set()
        self._events: set[str] = set()

    @classmethod
    def from_tree(cls, tree: Mapping[str, bytes | None]) -> Self:
        made = super().from_tree(tree)
        made._origins.update(made._inodes())
        return made

    def another_process(self) -> Self:
        other = super().another_process()
        other._origins, other._events = self._origins, self._events
        other._contents, other._sizes = self._contents, self._sizes
        return other

    def tree(self) -> dict[str, bytes | None]:
        self._contents.update(self._origins.values())
        return super().tree()

    def paths(self) -> list[str]:
        """All names, without a look into the files."""
        return list(super().tree())

    def read_at(self, descriptor: int, buffers: Sequence[memoryview], offset: int) -> int:
        self._note(self._contents, self._node(descriptor).number)
        return super().read_at(descriptor, buffers, offset)

    def info(self, descriptor: int) -> Info:
        self._note(self._sizes, self._node(descriptor).number)
        return super().info(descriptor)

    def info_at(self, parent: int, name: str) -> Info:
        self._note(self._sizes, self._entry(parent, name).number)
        return super().info_at(parent, name)

    def peek(self, path: str) -> bytes | None:
        """The contents of a file, for who looks at the disk from outside; None where there is none."""
        node = self._disk.root
        for name in path.split("/"):
            found = node.entries.get(name)
            if found is None:
                return None
            node = found
        self._note(self._contents, node.number)
        return node.data

    def _note(self, seen: set[str], inode: int) -> None:
        origin = self._origins.get(inode)
        if origin is None:
            return
        if getattr(_reads_for_events, "now", False) and origin.endswith(f"/{JOURNAL_NAME}"):
            self._events.add(origin)
        else:
            seen.add(origin)

    def _inodes(self) -> Iterator[tuple[int, str]]:
        pending = [("", self._disk.root)]
        while pending:
            path, node = pending.pop()
            for name, child in node.entries.items():
                if child.data is None:
                    pending.append((f"{path}{name}/", child))
                else:
                    yield child.number, path + name


class Judge:
    """Judges disks, except those that look the same as one that was judged before."""

    def __init__(self) -> None:
        # By hashes, as there are very many: of names and circumstances, and of what was seen.
        self._known: dict[int, dict[Observed, dict[int, str]]] = {}
        self._spared = 0
        self.judged = 0

    def problem(self, tree: Tree, circumstances: Hashable, judge: Callable[[], tuple[str, Observed]]) -> str:
        """What is wrong with the disk, or nothing: as `judge` says, or said in the same circumstances.

        If all that was seen of a judged disk is the same on this one, the same would be looked at here: each next look
        follows from what was seen before. A few are judged all the same, so that this is not only believed.
        """
        known = self._find(tree, circumstances)
        if known is not None:
            self._spared += 1
            if self._spared % _AGAIN_EVERY:
                return known
        problem, observed = judge()
        self.judged += 1
        if known is None:
            self._known.setdefault(_key(tree, circumstances), {}).setdefault(observed, {})[observed.of(tree)] = problem
        elif bool(known) != bool(problem):
            found, before = (said or "all is well" for said in (problem, known))
            return f"judged otherwise than a disk that looks the same: {found}, not {before}"
        return problem

    def _find(self, tree: Tree, circumstances: Hashable) -> str | None:
        for observed, judged in self._known.get(_key(tree, circumstances), {}).items():
            problem = judged.get(observed.of(tree))
            if problem is not None:
                return problem
        return None


def _key(tree: Tree, circumstances: Hashable) -> int:
    """Names in the order in which directories are listed."""
    return hash((circumstances, tuple([(path, data is None) for path, data in tree.items()])))
