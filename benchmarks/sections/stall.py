"""How long a checkpoint of a large state stops the training thread, and when it is durable."""

import shutil
import time
from collections.abc import Collection, Sequence
from pathlib import Path

import torch

from benchmarks.background import Background, Begun, MemoryCopy, Save
from benchmarks.limits import RawWrite
from benchmarks.measure import in_turn, settle, timed
from benchmarks.peers import present
from benchmarks.results import Check, Row, Section, against_limits, at_least, at_most, faster_than_peers, row
from benchmarks.setting import Setting
from benchmarks.states import TorchState, transformer_state

__all__ = ["run", "stalled"]

_MODEL = {"layers": 20, "width": 576}
_CHECKED_MODEL = {"layers": 8, "width": 640, "vocabulary": 8_000}  # large enough that a copy takes a while
_QUICK_MODEL = {"layers": 2, "width": 64, "vocabulary": 1000}
_COMPUTE_S = 0.7  # a forward and a backward pass of a model of that size
_QUICK_COMPUTE_S = 0.05
_WARM_UPS = 2  # a training makes hundreds; the first touches memory, the second is the first that finds all of it known
_MOST_OF_COPY = {"holdfast, now": 1.3, "holdfast, overlapped": 0.05}
_LEAST_TIMES_LESS = {"holdfast, now": 2.0, "holdfast, overlapped": 20.0}
_MOST_OF_WRITE = 1.3
_GROUPS = ("stall", "durable")


def run(setting: Setting) -> Section:
    """The stall of one checkpoint while the training computes, and the time to durable while it does not."""
    state = transformer_state(**(_QUICK_MODEL if setting.quick else _MODEL))
    found, notes = present()
    contenders: list[Background | RawWrite] = [MemoryCopy(), RawWrite(1), RawWrite(2), *found.values()]
    times_s: dict[tuple[str, str], list[float]] = {}
    checked = state if setting.quick else transformer_state(**_CHECKED_MODEL)
    for contender in contenders:
        if not isinstance(contender, RawWrite):
            _check_restores(contender, checked, setting.directory / "check")
    del checked

    def measure(contender: Background | RawWrite) -> None:
        directory = setting.directory / "stall"
        if isinstance(contender, RawWrite):
            with contender.saving(state, directory) as call:
                times_s.setdefault(("durable", contender.name), []).append(timed(call).wall_s)
        else:
            stall_s, durable_s = _measure(contender, state, directory, quick=setting.quick)
            times_s.setdefault(("stall", contender.name), []).append(stall_s)
            if not isinstance(contender, MemoryCopy):
                times_s.setdefault(("durable", contender.name), []).append(durable_s)
        if isinstance(contender, MemoryCopy):
            contender.forget()
        shutil.rmtree(directory, ignore_errors=True)

    in_turn(contenders, setting.repeat, measure)
    rows = against_limits(
        [
            row(group, contender.name, contender.role, times_s[group, contender.name])
            for group in _GROUPS
            for contender in contenders
            if (group, contender.name) in times_s
        ]
    )
    overlapping = {contender.name for contender in found.values() if contender.overlaps}
    return Section(
        name="stall",
        title=f"Stall of the training thread by a checkpoint, {state.size_bytes / 1e9:.2f} GB "
        f"in {len(state.flat):,} tensors",
        rows=rows,
        checks=[*_checks(rows, overlapping), *faster_than_peers(rows, "durable")],
        notes=[
            "stall: the call that begins the checkpoint, and what the next weight update waits for",
            "durable: from that call until every byte is, with nothing else to do",
            *notes,
        ],
    )


def stalled(save: Save, step: int, compute_s: float) -> tuple[float, Begun]:
    """The stall of one checkpoint, which is still being written then; computes in between, as a training does."""
    settle()
    begin_s = time.perf_counter()
    begun = save(step)
    begun_s = time.perf_counter()
    _compute(compute_s)
    computed_s = time.perf_counter()
    begun.before_update()
    return begun_s - begin_s + time.perf_counter() - computed_s, begun


def _check_restores(contender: Background, state: TorchState, directory: Path) -> None:
    """A contender that does not bring back what it was given, although the training went on, must not be timed."""
    expected = state.digest()
    with contender.opening(state, directory) as save:
        begun = save(1)
        begun.before_update()
        state.wipe()
        begun.wait()
    contender.restore(state, directory)
    shutil.rmtree(directory, ignore_errors=True)
    if state.digest() != expected:
        raise RuntimeError(f"{contender.name} did not restore the state bit for bit")


def _measure(contender: Background, state: TorchState, directory: Path, *, quick: bool) -> tuple[float, float]:
    with contender.opening(state, directory) as save:
        for step in range(_WARM_UPS if contender.warms else 0):
            save(step).wait()
        stall_s, begun = stalled(save, _WARM_UPS, _QUICK_COMPUTE_S if quick else _COMPUTE_S)
        begun.wait()
        settle()
        begin_s = time.perf_counter()
        save(_WARM_UPS + 1).wait()
        return stall_s, time.perf_counter() - begin_s


def _compute(seconds: float) -> None:
    """Keep one core busy, as a forward and a backward pass do."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    left, right = torch.ones(256, 256), torch.ones(256, 256)
    end_s = time.perf_counter() + seconds
    while time.perf_counter() < end_s:
        torch.mm(left, right)
    torch.set_num_threads(threads)


def _checks(rows: Sequence[Row], overlapping: Collection[str]) -> list[Check]:
    stalls = [found for found in rows if found.group == "stall"]
    ours = [found for found in stalls if found.role == "holdfast"]
    copy_s = next(found.median_s for found in stalls if found.role == "limit")
    copying, overlapped = (
        min((p for p in stalls if p.role == "peer" and (p.name in overlapping) is overlaps), key=lambda p: p.median_s)
        for overlaps in (False, True)
    )
    write_s = min(found.median_s for found in rows if found.group == "durable" and found.role == "limit")
    checks = [at_most(f"stall, {f.name} / the bare copy", _MOST_OF_COPY[f.name], f.median_s / copy_s) for f in ours]
    checks += [_times_less(found, copying, "copies at once", _LEAST_TIMES_LESS[found.name]) for found in ours]
    checks += [_times_less(found, overlapped, "overlaps", 1.0) for found in ours if found.name in overlapping]
    checks += [
        at_most(f"durable, {found.name} / raw direct write", _MOST_OF_WRITE, found.median_s / write_s)
        for found in rows
        if (found.group, found.role) == ("durable", "holdfast")
    ]
    return checks


def _times_less(ours: Row, peer: Row, kind: str, target: float) -> Check:
    what = f"stall, {ours.name}: times less than the best peer that {kind} ({peer.name})"
    return at_least(what, target, peer.median_s / ours.median_s)
