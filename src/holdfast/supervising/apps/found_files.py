"""The files of a program's folder that form a checkpoint, and whether they are whole."""

import fnmatch
import glob
import logging
import os
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import PurePosixPath
from typing import NamedTuple

from holdfast.core.clock import Clock
from holdfast.storage.translate import Boundary
from holdfast.supervising.apps.command_line import CommandLine
from holdfast.supervising.apps.recipe import CheckpointRules

__all__ = ["Found", "FoundFiles"]

_log = logging.getLogger("holdfast")
_CHECK_DEADLINE_S = 300.0

Stamp = tuple[int, int, int]
"""Number, size and time of a file."""


class Found(NamedTuple):
    """The files that a restart needs, as they are now. Two that are equal are the same files, unchanged."""

    names: tuple[str, ...]
    stamps: tuple[Stamp, ...]

    @property
    def newest_ns(self) -> int:
        return max(mtime_ns for _, _, mtime_ns in self.stamps)


class FoundFiles:
    """One folder under one recipe."""

    def __init__(self, rules: CheckpointRules, line: CommandLine, *, folder: str, clock: Clock) -> None:
        self._rules = rules
        self._line = line
        self._folder = folder
        self._clock = clock
        self._patterns = line.patterns(rules.files)
        self._also, self._growing = line.patterns(rules.also), line.patterns(rules.growing)
        self._seen: dict[str, tuple[Stamp, float]] = {}
        self._is_told = False

    def now(self) -> Found | None:
        """What is there; None where a part is missing."""
        return self._found(self._stamps())

    def settled(self) -> Found | None:
        """What has been unchanged for long enough to be whole, since that was first asked; None where nothing has."""
        stamps, now_s = self._stamps(), self._clock.monotonic_s()
        self._seen = {
            name: before if (before := self._seen.get(name)) and before[0] == stamp else (stamp, now_s)
            for name, stamp in stamps.items()
        }
        still = {name: s for name, s in stamps.items() if now_s - self._seen[name][1] >= self._rules.settled_s}
        if self._rules.newest:
            return self._found(still)
        return self._found(stamps) if still == stamps else None

    def _found(self, stamps: Mapping[str, Stamp]) -> Found | None:
        if not stamps:
            return None
        if self._rules.newest:
            newest = max(stamps, key=lambda name: stamps[name][2])
            return Found((newest,), (stamps[newest],))
        names = [name for pattern in self._patterns for name in stamps if _fits(name, pattern)]
        if self.lacking(names):
            return None
        return Found(tuple(dict.fromkeys(names)), tuple(stamps[name] for name in dict.fromkeys(names)))

    def _stamps(self) -> dict[str, Stamp]:
        found = {name: _stamp(os.path.join(self._folder, name)) for name in self.all_matching()}
        return {name: stamp for name, stamp in found.items() if stamp is not None}

    def is_sound(self, found: Found) -> bool | None:
        """What the recipe's check says, or that the program renames them into place; None where nothing is known."""
        if not self._rules.check:
            return True if self._rules.atomic else None
        answers = [self._passes(os.path.join(self._folder, name)) for name in found.names]
        if None in answers:
            return True if self._rules.atomic else None
        return all(answers)

    def use_previous(self) -> Found | None:
        """Where a file is missing or damaged, take the program's own copy of the one before, if that is sound."""
        found = self.now() if self._rules.newest else None
        if found is not None and len(self._stamps()) == 1:
            return None
        if found is not None:
            # It was complete before the newest was begun.
            self.put_aside(found.names)
            return self.now()
        names = self._line.names(self._rules.previous)
        if not names:
            return None
        for name, previous in zip(self._line.names(self._rules.files), names, strict=True):
            path = os.path.join(self._folder, previous)
            if not os.path.isfile(path) or self._passes(path) is False:
                return None
            self.put_aside([name])
            with Boundary("copying", path):
                shutil.copy2(path, f"{path}.tmp")
                os.replace(f"{path}.tmp", os.path.join(self._folder, name))
        return self.now()

    def put_aside(self, names: Sequence[str]) -> None:
        """Rename them to hidden names: out of the way, and not lost."""
        for name in names:
            path = os.path.join(self._folder, name)
            aside = os.path.join(os.path.dirname(path), f".{os.path.basename(path)}.aside")
            if os.path.lexists(path):
                with Boundary("renaming", path):
                    os.replace(path, aside)
                _log.warning("%s is put aside as %s", name, aside)

    def is_state(self, name: str) -> bool:
        """Whether it is one that a restart needs, by its name."""
        return any(_fits(name, pattern) for pattern in self._patterns)

    def lacking(self, names: Sequence[str]) -> list[str]:
        """The patterns without which these are no checkpoint."""
        if self._rules.newest and names:
            return []
        return [pattern for pattern in self._patterns if not any(_fits(name, pattern) for name in names)]

    def later_than(self, mtime_ns: int) -> list[str]:
        """Those that were written after that moment."""
        return [name for name, (_, _, written_ns) in self._stamps().items() if written_ns > mtime_ns]

    def all_matching(self) -> list[str]:
        """All that look like files of a checkpoint."""
        return list(dict.fromkeys(name for pattern in self._patterns for name in self._matching(pattern)))

    def beside(self) -> tuple[list[str], list[str]]:
        """Those to be copied with them that exist now, and those left out because they are too large together."""
        left = self._rules.also_max_bytes
        names: list[str] = []
        too_large: list[str] = []
        for name in dict.fromkeys(self._existing(self._also)):
            stamp = _stamp(os.path.join(self._folder, name))
            size_bytes = 0 if stamp is None else stamp[1]
            (names if size_bytes <= left else too_large).append(name)
            left -= size_bytes if size_bytes <= left else 0
        if too_large and not self._is_told:
            self._is_told = True
            _log.warning(
                "%s: not copied, since together they are larger than also_max_bytes=%d: a restart needs them in place",
                ", ".join(too_large),
                self._rules.also_max_bytes,
            )
        return names, too_large

    def growing(self) -> list[str]:
        """Those of them that are only appended to."""
        return self._existing(self._growing)

    def _existing(self, patterns: Sequence[str]) -> list[str]:
        return [name for pattern in patterns for name in self._matching(pattern)]

    def _matching(self, pattern: str) -> list[str]:
        return sorted(
            name
            for name in glob.glob(pattern, root_dir=self._folder)
            if os.path.isfile(os.path.join(self._folder, name))
        )

    def _passes(self, path: str) -> bool | None:
        command = self._line.fill_all(self._rules.check, {"file": path}) if self._rules.check else None
        if command is None:
            return None
        try:
            done = subprocess.run(  # noqa: S603  a list, from the recipe of the user
                command,
                cwd=self._folder,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                timeout=_CHECK_DEADLINE_S,
                check=False,
            )
        except (OSError, subprocess.SubprocessError) as error:
            _log.warning("%s cannot be checked: %s", path, error)
            return None
        return done.returncode == 0


def _stamp(path: str) -> Stamp | None:
    try:
        info = os.stat(path)
    except OSError:
        return None
    return info.st_ino, info.st_size, info.st_mtime_ns


def _fits(name: str, pattern: str) -> bool:
    parts, patterns = PurePosixPath(name).parts, PurePosixPath(pattern).parts
    return len(parts) == len(patterns) and all(map(fnmatch.fnmatchcase, parts, patterns))
