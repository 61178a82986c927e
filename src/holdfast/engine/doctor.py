"""The doctor: what a storage can do for a run, tried out in a directory of its own that is removed again."""

import errno
import mmap
import os
import secrets
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import NamedTuple

from holdfast import native
from holdfast.core.clock import Clock
from holdfast.core.errors import RunError
from holdfast.core.limits import PAGE_BYTES
from holdfast.storage.files import Files, direct_io_is_refused
from holdfast.storage.translate import translate

__all__ = ["FAIL", "OK", "WARN", "Finding", "examine_directory"]

OK, WARN, FAIL = "ok", "warn", "fail"

_BLOCK_BYTES = 8 << 20
_LOW_BYTES = 1 << 30
_LOW_INODES = 1000
_SLOW_FSYNC_S = 0.25
_SLOW_BYTES_S = 50e6
_VOLATILE = ("tmpfs", "ramfs")
_DEADLINE_S = 10
_LOCKER = """
import fcntl, sys
file = open(sys.argv[1], "r+b")
try:
    fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
except OSError:
    print("taken", flush=True)
else:
    print("free", flush=True)
    sys.stdin.read()
"""


class Finding(NamedTuple):
    """What one test found."""

    what: str
    status: str
    found: str
    advice: str = ""


def examine_directory(
    path: str, clock: Clock, *, files: Files | None = None, speed_bytes: int, progress: Callable[[int], None]
) -> Iterator[Finding]:
    """Try out what saving and restoring need, in a new directory inside of the path.

    The speed is measured with `speed_bytes`, in whole blocks of 8 MiB and at least one; with 0 not at all.
    """
    used = files or Files()
    try:
        root = used.open_root(path)
    except OSError as error:
        if os.path.exists(path) and not os.path.isdir(path):
            raise RunError(f"{path} is a file, not a run or a directory", hint="name the run's directory") from error
        raise RunError(translate(error, "opening", path).message, hint="check the path") from error
    try:
        yield _ownership(used, root, path)
        yield _file_system(path)
        yield _native()
        yield from _space(used, root)
        try:
            with _scratch(used, root) as scratch:
                yield from _try_out(used, scratch, path, clock, speed_bytes=speed_bytes, progress=progress)
        except OSError as error:
            found = translate(error, "writing", path)
            yield Finding("writing", FAIL, found.message, found.hint or "nothing can be saved here")
    finally:
        used.close(root)


def _native() -> Finding:
    if native.is_built():
        return Finding("native part", OK, "used: chunks are moved and checked in one pass")
    return Finding(
        "native part",
        OK,
        "not used: copies take about twice as long",
        "reinstall holdfast where there are a C compiler and Python's headers; it is for x86-64 with AVX2",
    )


class _Scratch(NamedTuple):
    descriptor: int
    name: str


@contextmanager
def _scratch(files: Files, root: int) -> Iterator[_Scratch]:
    name = f".doctor-{secrets.token_hex(4)}"
    files.make_dir(root, name, 0o700)
    try:
        descriptor = files.open_dir(root, name)
        try:
            yield _Scratch(descriptor, name)
        finally:
            for left, _ in files.list_dir(descriptor):
                files.unlink(descriptor, left)
            files.close(descriptor)
    finally:
        files.remove_dir(root, name)


def _try_out(
    files: Files,
    scratch: _Scratch,
    path: str,
    clock: Clock,
    *,
    speed_bytes: int,
    progress: Callable[[int], None],
) -> Iterator[Finding]:
    yield _direct_io(files, scratch.descriptor)
    yield _fsync(files, scratch.descriptor, clock)
    yield _rename(files, scratch.descriptor)
    yield from _locks(files, scratch, path)
    yield from _speed(files, scratch.descriptor, clock, speed_bytes, progress)


def _ownership(files: Files, root: int, path: str) -> Finding:
    info = files.info(root)
    mine = info.uid == os.geteuid()
    found = f"owner {'you' if mine else info.uid}, mode {info.mode:04o}"
    if not mine:
        return Finding("owner", FAIL, found, "holdfast writes only in directories of its own user")
    if info.mode & 0o022:
        return Finding("owner", FAIL, found, f"others could forge checkpoints: chmod go-w {path}")
    return Finding("owner", OK, found)


def _file_system(path: str) -> Finding:
    kind = _mount_kind(os.path.realpath(path))
    if kind in _VOLATILE:
        return Finding("file system", WARN, kind, "it lives in memory: a reboot or power cut takes everything with it")
    return Finding("file system", OK, kind or "unknown")


def _mount_kind(path: str) -> str:
    """The type of the file system that is mounted there, as the kernel lists it."""
    best = ("", "")
    try:
        with open("/proc/self/mountinfo", encoding="utf-8", errors="surrogateescape") as mounts:
            for line in mounts:
                left, _, right = line.partition(" - ")
                point = left.split(" ")[4].replace("\\040", " ")
                inside = path == point or path.startswith(point.rstrip("/") + "/")
                if inside and len(point) >= len(best[0]):
                    best = (point, right.split(" ")[0])
    except OSError:
        return ""
    return best[1]


def _space(files: Files, root: int) -> Iterator[Finding]:
    space = files.space(root)
    free = f"{_amount(space.free_bytes)} of {_amount(space.total_bytes)} free"
    low = space.free_bytes < _LOW_BYTES
    advice = "checkpoints that do not fit are skipped: free some space, or holdfast prune" if low else ""
    yield Finding("space", WARN if low else OK, free, advice)
    inodes = "no limit" if space.free_inodes >= 1 << 62 else f"{space.free_inodes:,} free"
    few = space.free_inodes < _LOW_INODES
    yield Finding("inodes", WARN if few else OK, inodes, "remove files: each checkpoint takes four" if few else "")


def _amount(size_bytes: int) -> str:
    """Small disks and quotas are told in MiB: 0.0 GiB would say nothing."""
    return f"{size_bytes / (1 << 30):.1f} GiB" if size_bytes >= 1 << 30 else f"{size_bytes / (1 << 20):.1f} MiB"


def _direct_io(files: Files, parent: int) -> Finding:
    with mmap.mmap(-1, PAGE_BYTES) as page, memoryview(page) as block:
        try:
            descriptor = files.create(parent, "direct", 0o600, direct=True)
            try:
                files.write_at(descriptor, block, 0)
            finally:
                files.close(descriptor)
        except OSError as error:
            if not direct_io_is_refused(error):
                raise
            advice = "saves go through the page cache: slower, and they push out what the training reads"
            return Finding("direct I/O", WARN, "refused by the file system", advice)
    return Finding("direct I/O", OK, "works")


def _fsync(files: Files, parent: int, clock: Clock) -> Finding:
    descriptor = files.create(parent, "sync", 0o600)
    try:
        files.write_at(descriptor, memoryview(b"x"), 0)
        start_s = clock.monotonic_s()
        files.sync(descriptor)
        files.sync_dir(parent)
        took_s = clock.monotonic_s() - start_s
    except OSError as error:
        return Finding("fsync", FAIL, str(error), "without it no checkpoint survives a power cut: use another storage")
    finally:
        files.close(descriptor)
    found = f"file and directory in {took_s * 1000:.1f} ms"
    slow = took_s > _SLOW_FSYNC_S
    return Finding("fsync", WARN if slow else OK, found, "each save waits for it several times" if slow else "")


def _rename(files: Files, parent: int) -> Finding:
    for name in ("old", "taken"):
        files.close(files.create(parent, name, 0o600))
    try:
        files.rename(parent, "old", "taken")
    except FileExistsError:
        files.rename(parent, "old", "new")
        return Finding("rename", OK, "never replaces a name that is taken")
    return Finding("rename", FAIL, "replaced a file", "two writers could overwrite each other: use another storage")


def _locks(files: Files, scratch: _Scratch, path: str) -> Iterator[Finding]:
    descriptor = files.create(scratch.descriptor, "lock", 0o600)
    try:
        yield from _try_locks(files, descriptor, os.path.join(path, scratch.name, "lock"))
    except OSError as error:
        if error.errno not in (errno.ENOLCK, errno.ENOTSUP, errno.ENOSYS):
            raise
        advice = "a second writer is noticed only by its attempt's number: mount with locks if you can"
        yield Finding("locks", WARN, "not supported by the file system", advice)
    finally:
        files.close(descriptor)


def _try_locks(files: Files, descriptor: int, path: str) -> Iterator[Finding]:
    files.lock(descriptor)
    with _locker(path) as other:
        seen = _answer(other)
    files.unlock(descriptor)
    if seen != "taken":
        advice = "two trainings could write one run: mount with locks (NFS: without nolock), or use another storage"
        yield Finding("locks", FAIL, "another process does not see a lock", advice)
        return
    with _locker(path) as other:
        got = _answer(other) == "free" and not files.lock(descriptor)
        other.kill()
        other.wait(_DEADLINE_S)
        freed = files.lock(descriptor)
    if got and freed:
        yield Finding("locks", OK, "seen by other processes, freed when the holder is killed")
    else:
        advice = "a run may stay locked after a crash: Checkpointer(..., takeover=True) goes on all the same"
        yield Finding("locks", WARN, "not freed when the holder is killed", advice)


@contextmanager
def _locker(path: str) -> "Iterator[subprocess.Popen[str]]":
    """Another process that tries to take the lock, and holds it until its input ends."""
    process = subprocess.Popen(  # noqa: S603  our own interpreter, a constant program
        [sys.executable, "-I", "-c", _LOCKER, path], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    try:
        yield process
    finally:
        process.kill()
        process.communicate(timeout=_DEADLINE_S)


def _answer(process: "subprocess.Popen[str]") -> str:
    return process.stdout.readline().strip() if process.stdout is not None else ""


def _speed(
    files: Files, parent: int, clock: Clock, speed_bytes: int, progress: Callable[[int], None]
) -> Iterator[Finding]:
    if speed_bytes == 0:
        return
    room_bytes = files.space(parent).free_bytes // 10
    if room_bytes < _BLOCK_BYTES:
        yield Finding("speed", WARN, "not tested: too little space", "the test writes at most a tenth of what is free")
        return
    blocks = max(1, min(speed_bytes, room_bytes) // _BLOCK_BYTES)
    total_bytes = blocks * _BLOCK_BYTES
    with mmap.mmap(-1, _BLOCK_BYTES) as memory, memoryview(memory) as block:
        block[:] = secrets.token_bytes(PAGE_BYTES) * (_BLOCK_BYTES // PAGE_BYTES)
        start_s = clock.monotonic_s()
        direct = _write(files, parent, block, blocks, progress)
        write_s = clock.monotonic_s() - start_s
        start_s = clock.monotonic_s()
        _read(files, parent, block, blocks, direct=direct, progress=progress)
        read_s = clock.monotonic_s() - start_s
    way = "" if direct else ", through the page cache"
    for what, took_s in (("write speed", write_s), ("read speed", read_s)):
        rate = total_bytes / max(took_s, 1e-9)
        slow = rate < _SLOW_BYTES_S
        advice = "a 1 GB checkpoint takes longer than 20 s: save less often, or on a faster storage" if slow else ""
        yield Finding(
            what, WARN if slow else OK, f"{rate / (1 << 20):,.0f} MiB/s ({total_bytes >> 20} MiB{way})", advice
        )


def _write(files: Files, parent: int, block: memoryview, blocks: int, progress: Callable[[int], None]) -> bool:
    """Write the blocks durably; whether past the page cache."""
    for direct in (True, False):
        descriptor = -1
        try:
            descriptor = files.create(parent, f"speed-{direct}", 0o600, direct=direct)
            for index in range(blocks):
                files.write_at(descriptor, block, index * _BLOCK_BYTES)
                progress(_BLOCK_BYTES)
            files.sync(descriptor)
        except OSError as error:
            if not (direct and direct_io_is_refused(error)):
                raise
        else:
            return direct
        finally:
            if descriptor >= 0:
                files.close(descriptor)
    raise AssertionError("buffered writing is never refused as direct")


def _read(
    files: Files, parent: int, block: memoryview, blocks: int, *, direct: bool, progress: Callable[[int], None]
) -> None:
    descriptor = files.open_read(parent, f"speed-{direct}", direct=direct)
    try:
        for index in range(blocks):
            files.read_at(descriptor, [block], index * _BLOCK_BYTES)
            progress(_BLOCK_BYTES)
    finally:
        files.close(descriptor)
