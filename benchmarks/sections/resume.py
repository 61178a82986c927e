"""How long it takes from the kill of a training to the first step of the one that resumes it."""

import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from benchmarks.measure import drop_from_cache, in_turn, read_into_cache
from benchmarks.results import Check, Role, Row, Section, against_limits, at_most, faster_than_peers, row
from benchmarks.setting import Setting

__all__ = ["run"]

_MODEL = (20, 576, 50_257)
_QUICK_MODEL = (1, 64, 500)
_MOST_OF_LIMIT = 1.1
_CONTENDERS: dict[str, tuple[str, Role]] = {
    "raw": ("interpreter, imports and a raw read", "limit"),
    "holdfast-memory": ("holdfast, from memory", "holdfast"),
    "holdfast-disk": ("holdfast, from disk", "holdfast"),
    "torch": ("torch.load", "peer"),
    "torch-mapped": ("torch.load, mmap=True", "peer"),
    "safetensors": ("safetensors", "peer"),
    "dcp": ("torch DCP", "peer"),
}
_QUICK_CONTENDERS = ("raw", "holdfast-memory", "holdfast-disk", "torch")  # each starts and kills processes


def run(setting: Setting) -> Section:
    """SIGKILL, a new process with the same program, its restore, and one pass over every tensor."""
    rows: list[Row] = []
    words = _QUICK_CONTENDERS if setting.quick else tuple(_CONTENDERS)
    conditions = (("files in the page cache", read_into_cache), ("page cache dropped", drop_from_cache))
    for group, prepare in conditions[:1] if setting.quick else conditions:
        times_s: dict[str, list[float]] = {}

        def measure(
            word: str, prepare: Callable[[Path], None] = prepare, times_s: dict[str, list[float]] = times_s
        ) -> None:
            times_s.setdefault(word, []).append(_resume_s(setting, word, prepare))

        in_turn(words, setting.repeat // 2 + 1, measure)
        rows += [row(group, *_CONTENDERS[word], times_s[word]) for word in words]
    rows = against_limits(rows)
    groups = sorted({found.group for found in rows})
    return Section(
        name="resume",
        title="From SIGKILL to the first resumed step, 1.31 GB" + (" (quick: much less)" if setting.quick else ""),
        rows=rows,
        checks=[check for group in groups for check in (*_checks(rows, group), *faster_than_peers(rows, group))],
        notes=[
            "the limit imports torch, reads the bytes once straight into the tensors, and takes the step",
            "all start in memory that nobody has touched yet; the step reads and writes every byte, as an update does",
        ],
    )


def _resume_s(setting: Setting, word: str, prepare: Callable[[Path], None]) -> float:
    directory = setting.directory / "resume"
    victim = _start(setting, "save", word, directory)
    saved = _line(victim, "saved")
    prepare(directory)
    begin_s = time.perf_counter()
    victim.send_signal(signal.SIGKILL)
    victim.wait()
    resumed = _start(setting, "resume", word, directory)
    _line(resumed, "stepped")
    wall_s = time.perf_counter() - begin_s
    restored = _line(resumed, "restored")
    resumed.communicate()  # ends by itself, and gives back the memory of the one that was killed
    shutil.rmtree(directory)
    if restored != saved:
        raise RuntimeError(f"{word} did not restore the state bit for bit")
    return wall_s


def _start(setting: Setting, doing: str, word: str, directory: Path) -> subprocess.Popen[str]:
    model = _QUICK_MODEL if setting.quick else _MODEL
    command = [sys.executable, "-m", "benchmarks.resuming", doing, word, str(directory), *map(str, model)]
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def _line(process: subprocess.Popen[str], word: str) -> str:
    """What the process says after the word; all else it prints is passed over."""
    assert process.stdout is not None
    for line in process.stdout:
        said, _, rest = line.strip().partition(" ")
        if said == word:
            return rest
    raise RuntimeError(f"a process ended before it {word}:\n{process.communicate()[1]}")


def _checks(rows: Sequence[Row], group: str) -> list[Check]:
    chosen = [found for found in rows if found.group == group]
    limit = next(found for found in chosen if found.role == "limit")
    return [
        at_most(f"{group}, {found.name} / {limit.name}", _MOST_OF_LIMIT, found.median_s / limit.median_s)
        for found in chosen
        if found.role == "holdfast"
    ]
