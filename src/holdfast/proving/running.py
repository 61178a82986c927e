"""Starts the program under a plan, in a directory of its own, and watches it until it ends or its time is over."""

import json
import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import NamedTuple

import msgspec

from holdfast.core.errors import HoldfastError
from holdfast.engine.evidence import PLAN_VARIABLE, Interruption, Plan, Point
from holdfast.engine.guarding import ALLOW_VARIABLE, ORIGIN_VARIABLE, Guard
from holdfast.engine.traces import short_digest
from holdfast.proving import launcher
from holdfast.proving.mirror import mirror
from holdfast.proving.processes import end_all, end_group
from holdfast.proving.reading import Trace, read_trace
from holdfast.proving.verdict import CannotProveError
from holdfast.tiers.finding import find_arenas

__all__ = ["Case", "OnStep", "Start", "Workspace", "plan_path"]

_GUARD = os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "engine", "guard_site")
_PAUSE_S = 0.02
_AGENT_GRACE_S = 2.0
_TAIL_LINES = 15
_TAIL_BYTES = 16 << 10
_NOW = "now"
_LONGEST_TEMPORARY = 60
"""Sockets that are made in there have a name of at most 107 bytes, their own part included."""
_OUTPUT_BYTES = 16 << 20
_REFUSED = re.compile(
    r"permission denied|operation not permitted|read-only file system|cannot be opened", re.IGNORECASE
)
_KEPT = ("trace-", "dump-", "output-")

OnStep = Callable[[int], None]
"""Told the step to which the program has come."""


class Start(NamedTuple):
    """What became of one start."""

    trace: Trace
    trace_path: str
    """Where the trace is when the case is over."""
    status: int | None
    """None where its time was over."""
    took_s: float
    tail: tuple[str, ...]
    """The last lines of what it said."""
    dump: str
    """Where its state would have been written down."""


_NOTHING_OF_THE_USERS = ("TMPDIR", "TEMP", "TMP", "TORCHINDUCTOR_CACHE_DIR", "TRITON_CACHE_DIR")
"""Temporary files, and what compilers keep: writes there are not worth a remark."""


class Workspace:
    """The directory of a proof. Every case has the same path while it runs, so that paths in a state are the same."""

    def __init__(
        self,
        root: str,
        command: Sequence[str],
        *,
        origin: str,
        allow: Sequence[str] = (),
        spared: set[int] | None = None,
        environment: Mapping[str, str] | None = None,
        keeps: bool = True,
    ) -> None:
        """With `keeps`, all that a case has left stays until the end, not only what is compared."""
        self.root = os.path.realpath(root)
        self.origin = origin
        self._command = [_reachable(word, origin) for word in command]
        self._spared = set() if spared is None else spared
        self._keeps = keeps
        self._is_confined = True
        given = dict(os.environ if environment is None else environment)
        paths = [_GUARD, *filter(None, [given.get("PYTHONPATH")])]
        self._environment = {
            **given,
            "PYTHONPATH": os.pathsep.join(paths),
            "PYTHONDONTWRITEBYTECODE": "1",
            PLAN_VARIABLE: self._plan_path,
            ALLOW_VARIABLE: json.dumps([os.path.abspath(path) for path in allow]),
            ORIGIN_VARIABLE: self.origin,
        }
        if len(os.fsencode(self._temporary)) <= _LONGEST_TEMPORARY or self._guard().common_temporary is None:
            self._environment["TMPDIR"] = self._temporary

    def remarks(self) -> list[str]:
        """What is to be known about where the program may write."""
        guard = self._guard()
        return [
            *(
                f"{name} is set, so the program may write to {place}"
                for name, place in guard.because.items()
                if not place.startswith(self.root + os.sep) and name not in _NOTHING_OF_THE_USERS
            ),
            *(
                f"--allow {place}: it is not there yet, so what is not Python may write to all of {above}"
                for place, above in guard.not_yet.items()
                if self._is_confined
            ),
            *(["this system has no Landlock: only what Python itself writes was watched"] * (not self._is_confined)),
        ]

    def _guard(self) -> Guard:
        return Guard(self._now, self._plan_path, 1, self._environment)

    @property
    def _temporary(self) -> str:
        return os.path.join(self._now, "tmp")

    @property
    def _now(self) -> str:
        return os.path.join(self.root, _NOW)

    @property
    def _plan_path(self) -> str:
        return plan_path(self.root)

    @contextmanager
    def case(self, name: str) -> Iterator["Case"]:
        """A new one; when it is over, nothing of it runs any more, and its files are at `root/name`."""
        os.makedirs(self._now, mode=0o700)
        grace_s = 0.0
        try:
            os.mkdir(self._temporary)
            mirror(self.origin, os.path.join(self._now, "work"), without=self.root)
            yield Case(self, name)
            grace_s = _AGENT_GRACE_S
        finally:
            # Agents have it, too: whoever has it in its environment belongs to this proof.
            marker = f"{PLAN_VARIABLE}={self._plan_path}".encode()
            end_all(marker, grace_s=grace_s, spared=self._spared)
            _remove_arenas(self._now)
            os.rename(self._now, os.path.join(self.root, name))
            if not self._keeps:
                _remove_all_but(os.path.join(self.root, name), _KEPT)

    def shown(self, text: str) -> str:
        """The text, with paths as they are in the user's own directory."""
        return text.replace(os.path.join(self._now, "work") + os.sep, "")

    def remove(self) -> None:
        """All of it."""
        shutil.rmtree(self.root, ignore_errors=True)

    def run(self, plan: Plan, output: str, limit_s: float, on_step: OnStep) -> tuple[int | None, float]:
        """Run the program under the plan; its status and the seconds that it took."""
        with open(self._plan_path, "wb") as file:
            file.write(msgspec.json.encode(plan))
        began_s = time.monotonic()
        process = self._launch(output)
        is_over = False
        try:
            watched = _Watched(plan.trace, on_step)
            while not _has_ended(process.pid):
                if time.monotonic() - began_s > limit_s:
                    is_over = True
                    break
                watched.look()
                _cut(output)
                time.sleep(_PAUSE_S)
        finally:
            end_group(process.pid)
            process.wait()
        return None if is_over else process.returncode, time.monotonic() - began_s

    def _launch(self, output: str) -> "subprocess.Popen[bytes]":
        """The program, which has begun; CannotProveError where it cannot."""
        reading, writing = os.pipe()
        with open(reading, encoding="ascii") as answers, open(output, "ab") as said:
            try:
                locale = launcher.KEPT if "LC_CTYPE" in self._environment else "none"
                process = subprocess.Popen(  # noqa: S603  the user's own command
                    [
                        *(sys.executable, "-I", "-S", launcher.__file__),
                        *(str(os.getpid()), str(writing), locale),
                        *self._command,
                    ],
                    stdin=subprocess.DEVNULL,
                    stdout=said,
                    stderr=subprocess.STDOUT,
                    cwd=os.path.join(self._now, "work"),
                    env=self._environment,
                    start_new_session=True,
                    pass_fds=(writing,),
                )
            finally:
                os.close(writing)
            try:
                found = answers.read().split()
            except BaseException:
                end_group(process.pid)
                process.wait()
                raise
        self._is_confined = self._is_confined and found[:1] == [launcher.CONFINED]
        if len(found) > 1:
            process.wait()
            raise CannotProveError(
                f"{self._command[0]} cannot be started: {os.strerror(int(found[1]))}",
                hint="give the command as you would type it: holdfast prove -- python train.py",
            )
        return process


def plan_path(root: str) -> str:
    """Where the plan lies while a case of the proof in that directory runs."""
    return os.path.join(root, _NOW, "plan.json")


class Case:
    """One run of the program from its beginning to its end, in one or several starts."""

    def __init__(self, workspace: Workspace, name: str) -> None:
        self._workspace = workspace
        self._name = name
        self._starts = 0

    def start(
        self,
        *,
        limit_s: float,
        on_step: OnStep,
        end_step: int | None = None,
        save_at: tuple[int, ...] = (),
        interruption: Interruption | None = None,
        reference: str = "",
        dump_at: int | None = None,
        ignored: tuple[str, ...] = (),
    ) -> Start:
        """Start the program once more; what earlier starts saved is there."""
        self._starts += 1
        now = os.path.join(self._workspace.root, _NOW)
        trace, output, dump = f"trace-{self._starts}.jsonl", f"output-{self._starts}.txt", f"dump-{self._starts}"
        plan = Plan(
            directory=now,
            trace=os.path.join(now, trace),
            start=self._starts,
            end_step=end_step,
            save_at=save_at,
            interruption=interruption,
            reference=reference,
            dump_at=dump_at,
            dump=os.path.join(now, dump),
            ignored=ignored,
        )
        status, took_s = self._workspace.run(plan, os.path.join(now, output), limit_s, on_step)
        later = os.path.join(self._workspace.root, self._name)
        found = read_trace(plan.trace)
        tail = tuple(map(self._workspace.shown, _tail(os.path.join(now, output))))
        if status not in (0, None) and not found.refusals:
            found = Trace((*found.points, *_refused_by_the_system(tail, self._starts)))
        _show_runs(found, now)
        return Start(
            found,
            os.path.join(later, trace),
            status,
            took_s,
            tail,
            os.path.join(later, dump),
        )


class _Watched:
    """Follows a trace that grows, for the progress only."""

    def __init__(self, path: str, on_step: OnStep) -> None:
        self._path = path
        self._on_step = on_step
        self._offset = 0

    def look(self) -> None:
        try:
            with open(self._path, "rb") as file:
                file.seek(self._offset)
                data = file.read()
        except FileNotFoundError:
            return
        whole, newline, _ = data.rpartition(b"\n")
        if newline:
            self._offset += len(whole) + 1
            try:
                self._on_step(msgspec.json.decode(whole.rpartition(b"\n")[2], type=Point).step)
            except msgspec.DecodeError:
                pass


def _has_ended(pid: int) -> bool:
    """Without reaping it: until then its number, and that of its group, belong to nobody else."""
    return os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None


def _show_runs(trace: Trace, now: str) -> None:
    """Link the runs to where the program believes them to be: some ask whether there is one before they restore."""
    runs, work = os.path.join(now, "runs"), os.path.join(now, "work")
    names = os.listdir(runs) if os.path.isdir(runs) else []
    for run in trace.runs:
        believed = os.path.join(work, run)
        ending = short_digest(os.fsencode(os.path.normpath(believed)))[:8]
        place = next((name for name in names if name.endswith(f"-{ending}")), None)
        if place is not None and believed.startswith(work + os.sep) and not os.path.lexists(believed):
            try:
                os.makedirs(os.path.dirname(believed), exist_ok=True)
                os.symlink(os.path.join(runs, place), believed)
            except OSError:
                continue


def _refused_by_the_system(tail: Sequence[str], start: int) -> list[Point]:
    """Where it is not Python that writes, only the program's own words tell of a refusal."""
    line = next((line for line in reversed(tail) if _REFUSED.search(line)), None)
    if line is None:
        return []
    return [Point("refused", start=start, text=f"the system is likely to have refused it: {line.strip()}")]


def _cut(output: str) -> None:
    """Of what the program says, only the end is kept: it may say the same for ever."""
    with open(output, "r+b") as file:
        size = file.seek(0, os.SEEK_END)
        if size > _OUTPUT_BYTES:
            file.seek(-_TAIL_BYTES, os.SEEK_END)
            end = file.read(_TAIL_BYTES)
            file.seek(0)
            file.write(b"[the beginning is left out]\n" + end)
            file.truncate()


def _remove_all_but(directory: str, kept: tuple[str, ...]) -> None:
    for entry in os.scandir(directory):
        if entry.name.startswith(kept):
            continue
        if entry.is_dir(follow_symlinks=False):
            shutil.rmtree(entry.path, ignore_errors=True)
        else:
            os.remove(entry.path)


def _reachable(word: str, origin: str) -> str:
    """What is named from above the working directory is found from another working directory too."""
    if word.startswith(f"..{os.sep}") and os.path.exists(os.path.join(origin, word)):
        return os.path.normpath(os.path.join(origin, word))
    return word


def _tail(path: str) -> tuple[str, ...]:
    with open(path, "rb") as file:
        size = file.seek(0, os.SEEK_END)
        file.seek(max(0, size - _TAIL_BYTES))
        lines = file.read().decode("utf-8", "replace").splitlines()
    return tuple(line.rstrip() for line in lines if line.strip())[-_TAIL_LINES:]


def _remove_arenas(directory: str) -> None:
    """The memory of killed programs, which would be kept for a restart that does not come."""
    try:
        for arena in find_arenas(None):
            if os.path.realpath(arena.run).startswith(directory + os.sep):
                arena.remove()
    except (HoldfastError, OSError):
        pass  # they are given back after an hour
