"""Keeps a program that `holdfast prove` runs from writing to anything but its own directories.

What Python opens or changes is refused with a message that says what and where (an audit hook). Everything else is
refused by the kernel, where that can do it (Landlock, Linux 5.19 and later): the launcher of the program has it refuse
for the program and whatever that starts. Reading is never refused.

Loaded by `guard_site/sitecustomize.py` before the program begins, so this module imports nothing but what every Python
has imported by then: a library that is imported too early would not see what the program sets up for it. That Python
may be older than those that holdfast runs on.
"""

from __future__ import annotations

import errno
import json
import os
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from typing import Any

__all__ = ["ALLOW_VARIABLE", "ORIGIN_VARIABLE", "Guard", "guard_if_missing", "install_guard", "landlock_version"]

_PLAN_VARIABLE = "HOLDFAST_PROVE"
ALLOW_VARIABLE = "HOLDFAST_PROVE_ALLOW"
"""Where the program may write besides: a JSON list of paths."""
ORIGIN_VARIABLE = "HOLDFAST_PROVE_ORIGIN"
"""The working directory of the user. A place for everybody's files that this lies in may not be written to."""

# In `sys`: this module is loaded twice, by the file that Python runs first and by the witness.
_INSTALLED = "_holdfast_guard"

_WRITES = os.O_WRONLY | os.O_RDWR | os.O_TRUNC | os.O_APPEND
_NO_DESCRIPTOR = -1
_MOST_TOLD = 100
_LARGEST_COPY_BYTES = 1 << 30
_COPIED_AT_ONCE_BYTES = 1 << 20
_DEVICES = ("/dev", "/proc", "/sys")
_TEMPORARY = ("/tmp", "/var/tmp", "/usr/tmp")  # noqa: S108  as tempfile does
_TEMPORARY_VARIABLES = ("TMPDIR", "TEMP", "TMP")
_CACHES = ("~/.cache", "~/.triton", "~/.nv", "~/.cupy", "~/.config/matplotlib")
_CACHE_VARIABLES = (
    "XDG_CACHE_HOME",
    "TRITON_CACHE_DIR",
    "TORCHINDUCTOR_CACHE_DIR",
    "TORCH_HOME",
    "HF_HOME",
    "MPLCONFIGDIR",
    "NUMBA_CACHE_DIR",
    "CUDA_CACHE_PATH",
    "CUPY_CACHE_DIR",
    "JAX_COMPILATION_CACHE_DIR",
)

# Event: which of its arguments are paths that are changed, each with the argument that says what it is relative to;
# and whether a link is followed there.
_EVENTS: dict[str, tuple[tuple[tuple[int, int | None], ...], bool, str]] = {
    "os.remove": (((0, 1),), False, "removing"),
    "os.rename": (((0, 2), (1, 3)), False, "renaming"),
    "os.mkdir": (((0, 2),), True, "making the directory"),
    "os.rmdir": (((0, 1),), False, "removing the directory"),
    "os.symlink": (((1, 2),), False, "making the link"),
    # What the link is to, too: whoever writes to the one writes to the other.
    "os.link": (((0, 2), (1, 3)), False, "making the link"),
    "os.truncate": (((0, None),), True, "cutting"),
    "os.chmod": (((0, 2),), True, "changing the mode of"),
    "os.chown": (((0, 3),), True, "changing the owner of"),
    "os.utime": (((0, 3),), True, "changing the times of"),
    "os.setxattr": (((0, None),), True, "changing the attributes of"),
    "os.removexattr": (((0, None),), True, "changing the attributes of"),
}


def install_guard() -> Guard | None:
    """Until the program ends: an audit hook cannot be taken away. None where nobody proves anything."""
    path = os.environ.get(_PLAN_VARIABLE)
    if not path:
        return None
    with open(path, "rb") as file:
        plan = json.load(file)
    guard = Guard(plan["directory"], plan["trace"], plan.get("start", 1))
    sys.addaudithook(guard.hear)
    sys.__dict__[_INSTALLED] = True
    return guard


def guard_if_missing() -> bool:
    """For a program whose own PYTHONPATH hid the file that Python would have run first; whether it was missing."""
    return _INSTALLED not in sys.__dict__ and install_guard() is not None


class Guard:
    """Says what may be written."""

    def __init__(self, directory: str, trace: str, start: int, environment: Mapping[str, str] = os.environ) -> None:
        self._environment = environment
        self.origins = _real([environment.get(ORIGIN_VARIABLE, "")])
        self.allowed = _real(json.loads(environment.get(ALLOW_VARIABLE) or "[]"))
        self._own = _real([directory, os.path.dirname(trace)])
        self.places = (*self._own, *self.allowed)
        self.because = _real_values(environment, (*_CACHE_VARIABLES, *_TEMPORARY_VARIABLES), self._is_too_much)
        """Variables, and what may be written because of them."""
        fixed = _real([*_TEMPORARY, *map(os.path.expanduser, _CACHES)])
        self.common_places = (
            *(place for device in _real(_DEVICES) for place in _without(device, self.origins)),
            *(place for place in fixed if not self._holds_an_origin(place)),
            *self.because.values(),
        )
        self._trace = trace
        self._start = start
        self._told: set[str] = set()
        self._is_busy = False

    def hear(self, event: str, args: tuple[Any, ...]) -> None:
        """The audit hook; StorageError where the event is a write that is refused."""
        if event == "open":
            path, _, flags = args
            if not isinstance(flags, int) or not flags & (_WRITES | os.O_CREAT) or self._is_busy:
                return
            if not flags & _WRITES and os.path.exists(path):
                return
            self._own_copy(path, flags)
            self._check(path, _NO_DESCRIPTOR, "opening", follows=True)
        elif event in _EVENTS and not self._is_busy:
            paths, follows, doing = _EVENTS[event]
            for path_at, base_at in paths:
                base = args[base_at] if base_at is not None and base_at < len(args) else _NO_DESCRIPTOR
                self._check(args[path_at], base, doing, follows=follows)

    def allows(self, path: str) -> bool:
        """Whether a path without links in it may be written."""
        if _is_in(path, self.places) or _is_in(path, self.common_places):
            return True
        return "__pycache__" in path.split(os.sep)

    def confine(self) -> bool:
        """Have the kernel refuse, from now on and in whatever this process becomes or starts; whether it does."""
        try:
            return _confine([*self.places, *self.common_places, *self.not_yet.values()])
        except (OSError, ImportError, AttributeError):
            return False

    @property
    def not_yet(self) -> dict[str, str]:
        """What is allowed and not there, and the directory it would be made in: the kernel allows only what exists."""
        found = {}
        for place in self.allowed:
            above = place
            while not os.path.lexists(above):
                above = os.path.dirname(above)
            if above != place:
                found[place] = above
        return found

    @property
    def common_temporary(self) -> str | None:
        """The directory for temporary files that the environment names, if it may be written to."""
        named = next((self._environment[name] for name in _TEMPORARY_VARIABLES if self._environment.get(name)), None)
        place = os.path.realpath(named or _TEMPORARY[0])
        return place if self.allows(place) else None

    def _holds_an_origin(self, place: str) -> bool:
        return any(_is_in(origin, (place,)) for origin in self.origins)

    def _is_too_much(self, place: str) -> bool:
        """Whether it has far more in it than what it is named for."""
        return self._holds_an_origin(place) or _is_in(os.path.realpath(os.path.expanduser("~")), (place,))

    def _own_copy(self, path: Any, flags: int) -> None:
        """Give the program a file of its own in place of a link to one of the user's, in its working directory."""
        if isinstance(path, int) or flags & (os.O_EXCL | os.O_NOFOLLOW):
            return
        self._is_busy = True
        try:
            link = _real_path(path, _NO_DESCRIPTOR, follows=False)
            if not os.path.islink(link) or not _is_in(link, self._own):
                return
            real = os.path.realpath(link)
            if self.allows(real) or not _is_in(real, self.origins) or not os.path.isfile(real):
                return
            if not flags & os.O_TRUNC and os.path.getsize(real) > _LARGEST_COPY_BYTES:
                return
            _copy_over(real, link, is_empty=bool(flags & os.O_TRUNC))
        except (OSError, ValueError, TypeError):
            pass  # it is refused, then
        finally:
            self._is_busy = False

    def _check(self, path: Any, base: Any, doing: str, *, follows: bool) -> None:
        if isinstance(path, int):
            return  # what is open already was allowed
        # What holdfast itself writes lies where the plan says, and its paths are relative to descriptors that an audit
        # event of `open` does not tell.
        caller = sys._getframe(2)
        if str(caller.f_globals.get("__name__", "")).partition(".")[0] == "holdfast":
            return
        self._is_busy = True
        try:
            try:
                real = _real_path(path, base, follows=follows)
            except (OSError, ValueError, TypeError):
                return  # the call itself will fail
            if not self.allows(real):
                self._refuse(f"{doing} {real}")
        finally:
            self._is_busy = False

    def _refuse(self, what: str) -> None:
        frame = _outside_of_libraries()
        where = f" ({frame.f_code.co_filename}:{frame.f_lineno})" if frame is not None else ""
        if what not in self._told and len(self._told) < _MOST_TOLD:
            self._told.add(what)
            self._tell(f"{what}{where}")
        message = (
            f"{what} is refused: the program is being proven, and may only write to directories of the proof{where}"
        )
        hint = "relative paths stay in the proof; holdfast prove --allow PATH allows others"
        try:
            from holdfast.core.errors import StorageError
        except Exception:  # noqa: BLE001  a Python without holdfast, or too old for it
            raise PermissionError(errno.EACCES, f"{message}; {hint}") from None
        raise StorageError(message, hint=hint, errno=errno.EACCES)

    def _tell(self, text: str) -> None:
        line = json.dumps({"kind": "refused", "start": self._start, "text": text})
        descriptor = os.open(self._trace, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o666)
        try:
            os.write(descriptor, f"{line}\n".encode())
        finally:
            os.close(descriptor)


def _outside_of_libraries() -> Any:
    """The innermost frame of the program itself: whoever called `shutil.rmtree`, not that."""
    frame: Any = sys._getframe(4)
    innermost = frame
    library = os.path.dirname(os.__file__)
    while frame is not None and frame.f_code.co_filename.startswith((library, "<frozen")):
        frame = frame.f_back
    return frame or innermost


def _real(paths: Iterable[str]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(os.path.realpath(path) for path in paths if path))


def _real_values(environment: Mapping[str, str], names: Iterable[str], is_too_much: Any) -> dict[str, str]:
    """Relative ones are in the program's own directory anyway."""
    given = {name: environment.get(name, "") for name in names}
    real = {name: os.path.realpath(path) for name, path in given.items() if os.path.isabs(path)}
    return {name: path for name, path in real.items() if not is_too_much(path)}


def _without(place: str, origins: tuple[str, ...]) -> list[str]:
    """The place, or what is in it besides the origins: nothing works without /dev/null."""
    if not any(_is_in(origin, (place,)) for origin in origins):
        return [place]
    try:
        names = [] if place in origins else os.listdir(place)
    except OSError:
        return []
    return [inner for name in names for inner in _without(os.path.join(place, name), origins)]


def _copy_over(real: str, link: str, *, is_empty: bool) -> None:
    mode = os.stat(real).st_mode & 0o777
    copy = f"{link}.{os.getpid()}.copy"
    with open(copy, "xb") as target:
        try:
            if not is_empty:
                with open(real, "rb") as source:
                    while data := source.read(_COPIED_AT_ONCE_BYTES):
                        target.write(data)
            os.chmod(copy, mode | 0o200)
            target.flush()
            os.replace(copy, link)
        except BaseException:
            os.remove(copy)
            raise


def _real_path(path: Any, base: Any, *, follows: bool) -> str:
    named = os.fsdecode(path)
    if isinstance(base, int) and base != _NO_DESCRIPTOR and not os.path.isabs(named):
        named = os.path.join(os.readlink(f"/proc/self/fd/{base}"), named)
    if follows:
        return os.path.realpath(named)
    folder, name = os.path.split(os.path.abspath(named) if not os.path.isabs(named) else named.rstrip(os.sep))
    return os.path.join(os.path.realpath(folder), name)


def _is_in(path: str, places: tuple[str, ...]) -> bool:
    return any(path == place or path.startswith(place.rstrip(os.sep) + os.sep) for place in places)


# Of the Linux header landlock.h.
_CREATE_RULESET, _ADD_RULE, _RESTRICT_SELF = 444, 445, 446
_VERSION_FLAG = 1
_PATH_BENEATH = 1
_NO_NEW_PRIVILEGES = 38
_WRITE_FILE = 1 << 1
_REMOVE_AND_MAKE = sum(1 << bit for bit in (4, 5, 6, 7, 8, 9, 10, 11, 12))
_REFER = 1 << 13
"""Moving between directories: refused everywhere by the first version, which is therefore not used."""
_TRUNCATE = 1 << 14


def landlock_version() -> int:
    """Of this kernel; 0 or less where it has none."""
    import ctypes

    return int(ctypes.CDLL(None, use_errno=True).syscall(_CREATE_RULESET, None, 0, _VERSION_FLAG))


def _confine(places: list[str]) -> bool:
    import ctypes

    call = ctypes.CDLL(None, use_errno=True).syscall
    version = landlock_version()
    if version < 2:
        return False
    for_files = _WRITE_FILE | (_TRUNCATE if version >= 3 else 0)
    handled = for_files | _REMOVE_AND_MAKE | _REFER
    ruleset = call(_CREATE_RULESET, ctypes.byref(ctypes.c_uint64(handled)), 8, 0)
    if ruleset < 0:
        return False
    try:
        for place in places:
            try:
                descriptor = os.open(place, os.O_PATH | os.O_CLOEXEC)
            except OSError:
                continue  # not there
            rights = handled if os.path.isdir(place) else for_files
            rule = ctypes.create_string_buffer(
                rights.to_bytes(8, sys.byteorder) + descriptor.to_bytes(4, sys.byteorder)
            )
            failed = call(_ADD_RULE, ruleset, _PATH_BENEATH, rule, 0)
            os.close(descriptor)
            if failed:
                return False  # half a list would refuse what is allowed
        if ctypes.CDLL(None, use_errno=True).prctl(_NO_NEW_PRIVILEGES, 1, 0, 0, 0):
            return False
        return bool(call(_RESTRICT_SELF, ruleset, 0) == 0)
    finally:
        os.close(ruleset)
