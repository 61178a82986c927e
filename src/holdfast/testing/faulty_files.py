"""A `Files` that counts its calls and fails at chosen ones: the tool for "what if call number n goes wrong?"."""

import os
import threading
from collections.abc import Callable, Collection, Sequence
from typing import NamedTuple, TypeVar

from holdfast.storage.files import Files, Info, Space

__all__ = ["CHANGING_METHODS", "READING_METHODS", "Call", "Fault", "FaultyFiles", "When"]

_T = TypeVar("_T")

CHANGING_METHODS = frozenset(
    {
        "make_dir",
        "create",
        "open_update",
        "open_append",
        "write_at",
        "append",
        "truncate",
        "sync",
        "sync_dir",
        "rename",
        "unlink",
        "remove_dir",
    }
)
"""What a full or read-only file system may refuse. `close` is in neither set: it always happens."""

READING_METHODS = frozenset(
    {
        "open_root",
        "open_dir",
        "open_read",
        "open_starts",
        "read_at",
        "map",
        "is_cached_at",
        "list_dir",
        "info",
        "info_at",
        "is_writable",
        "space",
        "lock",
        "unlock",
        "lock_is_taken",
    }
)


class When:
    """When in a call the fault strikes."""

    BEFORE = "before"
    MIDDLE = "middle"
    """Half of the bytes of a write or read are through; for other calls the same as before."""
    AFTER = "after"
    """The call was carried out, and its answer is lost."""


class Call(NamedTuple):
    """One call, with its number from 0 on."""

    number: int
    method: str


class Fault(NamedTuple):
    """What goes wrong, and at which call. Give one of `error`, `action` and `short`."""

    at: int
    """The number of the call, from 0 on."""
    error: int = 0
    """An errno to raise."""
    action: Callable[[], object] | None = None
    """Something to do, such as killing the process; the call goes on afterwards if this returns."""
    short: bool = False
    """Only half of the bytes of a write or read are through, and the count says so."""
    when: str = When.BEFORE
    lasting: bool = False
    """From that call on, instead of once."""
    methods: Collection[str] = ()
    """Only these; empty for all."""

    def strikes(self, call: Call) -> bool:
        """Whether the call is one that goes wrong."""
        in_time = call.number >= self.at if self.lasting else call.number == self.at
        return in_time and (not self.methods or call.method in self.methods)


class FaultyFiles(Files):
    """Passes everything on to `inner`, except for the faults of the plan. `calls` lists what was called."""

    def __init__(self, inner: Files | None = None, plan: Sequence[Fault] = ()) -> None:
        self.inner = Files() if inner is None else inner
        self.plan = list(plan)
        self.calls: list[Call] = []
        self._guard = threading.Lock()

    def open_root(self, path: str) -> int:
        return self._call("open_root", lambda: self.inner.open_root(path))

    def open_dir(self, parent: int, name: str) -> int:
        return self._call("open_dir", lambda: self.inner.open_dir(parent, name))

    def make_dir(self, parent: int, name: str, mode: int) -> None:
        self._call("make_dir", lambda: self.inner.make_dir(parent, name, mode))

    def create(self, parent: int, name: str, mode: int, *, direct: bool = False) -> int:
        return self._call("create", lambda: self.inner.create(parent, name, mode, direct=direct))

    def open_update(self, parent: int, name: str, *, direct: bool = False) -> int:
        return self._call("open_update", lambda: self.inner.open_update(parent, name, direct=direct))

    def open_read(self, parent: int, name: str, *, direct: bool = False) -> int:
        return self._call("open_read", lambda: self.inner.open_read(parent, name, direct=direct))

    def open_starts(self, root: int, groups: Sequence[str], name: str, size_bytes: int) -> None:  # noqa: ARG002 - opens are to be counted
        return None

    def open_append(self, parent: int, name: str, mode: int) -> int:
        return self._call("open_append", lambda: self.inner.open_append(parent, name, mode))

    def write_at(self, descriptor: int, data: memoryview, offset: int) -> int:
        half = data[: _half(len(data))]
        return self._call(
            "write_at",
            lambda: self.inner.write_at(descriptor, data, offset),
            partly=lambda: self.inner.write_at(descriptor, half, offset),
        )

    def append(self, descriptor: int, data: bytes) -> int:
        half = data[: _half(len(data))]
        return self._call(
            "append",
            lambda: self.inner.append(descriptor, data),
            partly=lambda: self.inner.append(descriptor, half),
        )

    def read_at(self, descriptor: int, buffers: Sequence[memoryview], offset: int) -> int:
        half = [buffers[0][: _half(len(buffers[0]))]] if buffers else []
        return self._call(
            "read_at",
            lambda: self.inner.read_at(descriptor, buffers, offset),
            partly=lambda: self.inner.read_at(descriptor, half, offset),
        )

    def map(self, descriptor: int, size_bytes: int) -> None:  # noqa: ARG002 - reads are to be counted
        return self._call("map", lambda: None)

    def is_cached_at(self, descriptor: int, offset: int) -> bool:
        return self._call("is_cached_at", lambda: self.inner.is_cached_at(descriptor, offset))

    def truncate(self, descriptor: int, size_bytes: int) -> None:
        self._call("truncate", lambda: self.inner.truncate(descriptor, size_bytes))

    def sync(self, descriptor: int) -> None:
        self._call("sync", lambda: self.inner.sync(descriptor))

    def sync_dir(self, descriptor: int) -> None:
        self._call("sync_dir", lambda: self.inner.sync_dir(descriptor))

    def close(self, descriptor: int) -> None:
        # Linux frees the descriptor even when it reports an error, so a failing close still closes.
        self._call("close", lambda: self.inner.close(descriptor), always=True)

    def rename(self, parent: int, old: str, new: str) -> None:
        self._call("rename", lambda: self.inner.rename(parent, old, new))

    def unlink(self, parent: int, name: str) -> None:
        self._call("unlink", lambda: self.inner.unlink(parent, name))

    def remove_dir(self, parent: int, name: str) -> None:
        self._call("remove_dir", lambda: self.inner.remove_dir(parent, name))

    def list_dir(self, descriptor: int) -> list[tuple[str, str]]:
        return self._call("list_dir", lambda: self.inner.list_dir(descriptor))

    def info(self, descriptor: int) -> Info:
        return self._call("info", lambda: self.inner.info(descriptor))

    def info_at(self, parent: int, name: str) -> Info:
        return self._call("info_at", lambda: self.inner.info_at(parent, name))

    def is_writable(self, directory: int) -> bool:
        return self._call("is_writable", lambda: self.inner.is_writable(directory))

    def space(self, descriptor: int) -> Space:
        return self._call("space", lambda: self.inner.space(descriptor))

    def lock(self, descriptor: int) -> bool:
        return self._call("lock", lambda: self.inner.lock(descriptor))

    def unlock(self, descriptor: int) -> None:
        self._call("unlock", lambda: self.inner.unlock(descriptor))

    def lock_is_taken(self, descriptor: int) -> bool:
        return self._call("lock_is_taken", lambda: self.inner.lock_is_taken(descriptor))

    def _call(
        self,
        method: str,
        whole: Callable[[], _T],
        *,
        partly: Callable[[], _T] | None = None,
        always: bool = False,
    ) -> _T:
        with self._guard:
            call = Call(len(self.calls), method)
            self.calls.append(call)
        fault = next((fault for fault in self.plan if fault.strikes(call)), None)
        if fault is None:
            return whole()
        if fault.short:
            return whole() if partly is None else partly()
        if fault.when == When.AFTER or (always and fault.error):
            result = whole()
            _strike(fault, call)
            return result
        if fault.when == When.MIDDLE and partly is not None:
            partly()
        _strike(fault, call)
        return whole()


def _strike(fault: Fault, call: Call) -> None:
    if fault.action is not None:
        fault.action()
    if fault.error:
        raise OSError(fault.error, f"{os.strerror(fault.error)} (injected at call {call.number}, {call.method})")


def _half(size: int) -> int:
    """At least one byte of something: a write of nothing is another fault than a short one."""
    return max(1, size // 2) if size else 0
