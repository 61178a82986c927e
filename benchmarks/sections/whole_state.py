"""How fast a large state becomes durable, and how fast it comes back, warm and cold."""

import shutil
from collections.abc import Callable, Sequence
from pathlib import Path

from benchmarks.contenders import Contender, Dcp, Holdfast, Safetensors, TorchSave
from benchmarks.limits import RawDirectRead, RawRead, RawWrite
from benchmarks.measure import Sample, drop_from_cache, in_turn, read_into_cache, timed
from benchmarks.results import Check, Row, Section, against_limits, at_least, faster_than_peers, row
from benchmarks.setting import Setting
from benchmarks.states import TorchState, transformer_state

__all__ = ["run_restore", "run_save"]

_TARGET = 0.8


def run_save(setting: Setting) -> Section:
    """Durable synchronous saves of a transformer with its Adam moments."""
    state = _state(setting)
    contenders = [Holdfast(), Holdfast(first=True), RawWrite(1), RawWrite(2), TorchSave(), Safetensors(), Dcp()]

    def measure(contender: Contender) -> Sample:
        directory = setting.directory / "save"
        with contender.saving(state, directory) as call:
            sample = timed(call)
        shutil.rmtree(directory)
        return sample

    samples = in_turn(contenders, setting.repeat, measure)
    rows = against_limits(_rows("save", contenders, samples))
    return Section(
        name="save",
        title=f"Durable synchronous save, {_describe(state)}",
        rows=rows,
        checks=[_share(rows, "save"), *faster_than_peers(rows, "save")],
    )


def run_restore(setting: Setting) -> Section:
    """Restores of the same state in place, with the files in the page cache and without."""
    state = _state(setting)
    threads = setting.threads
    # Past the page cache more threads than cores keep the disk busy.
    raw = [RawRead(threads), RawDirectRead(2 * threads), RawRead(threads, digest=True)]
    saved = [Holdfast(), TorchSave(), Safetensors(), Dcp()]
    places: dict[str, Path] = {contender.name: setting.directory / f"restore-{i}" for i, contender in enumerate(saved)}
    for contender in saved:
        with contender.saving(state, places[contender.name]) as call:
            call()
    with RawWrite(1).saving(state, setting.directory / "raw") as call:
        call()
    mapped = TorchSave(mapped=True)
    contenders = [*raw, *saved, mapped]
    for contender in raw:
        places[contender.name] = setting.directory / "raw"
    places[mapped.name] = places[saved[1].name]
    _check_all_restore(state, contenders, places)
    rows: list[Row] = []
    for group, prepare in (("warm", read_into_cache), ("cold", drop_from_cache)):
        samples = in_turn(contenders, setting.repeat, _restorer(state, places, prepare))
        rows += _rows(group, contenders, samples)
    for place in set(places.values()):
        shutil.rmtree(place)
    rows = against_limits(rows)
    return Section(
        name="restore",
        title=f"Restore in place, {_describe(state)}",
        rows=rows,
        checks=[
            check
            for group in ("warm", "cold")
            for check in (_share(rows, group), _share_of_verified(rows, group), *faster_than_peers(rows, group))
        ],
        notes=[
            "raw read + BLAKE3 is the price of never handing out a byte that was not verified; no peer verifies",
        ],
    )


def _state(setting: Setting) -> TorchState:
    if setting.quick:
        return transformer_state(layers=2, width=64, vocabulary=1000)
    return transformer_state(layers=20, width=576)


def _restorer(
    state: TorchState, places: dict[str, Path], prepare: Callable[[Path], None]
) -> Callable[[Contender], Sample]:
    def measure(contender: Contender) -> Sample:
        prepare(places[contender.name])
        with contender.restoring(state, places[contender.name]) as call:
            return timed(call)

    return measure


def _check_all_restore(state: TorchState, contenders: Sequence[Contender], places: dict[str, Path]) -> None:
    """A contender that does not bring the bytes back must not be timed."""
    expected = state.digest()
    for contender in contenders:
        if isinstance(contender, RawDirectRead):
            continue  # reads into memory of its own
        state.wipe()
        with contender.restoring(state, places[contender.name]) as call:
            call()
        if state.digest() != expected:
            raise RuntimeError(f"{contender.name} did not restore the state bit for bit")


def _rows(group: str, contenders: Sequence[Contender], samples: Sequence[Sequence[Sample]]) -> list[Row]:
    return [
        row(
            group,
            contender.name,
            contender.role,
            [sample.wall_s for sample in found],
            extra_bytes=max(sample.extra_bytes for sample in found),
        )
        for contender, found in zip(contenders, samples, strict=True)
    ]


def _share(rows: Sequence[Row], group: str) -> Check:
    ours = next(found for found in rows if found.group == group and found.role == "holdfast")
    return at_least(f"{group}: speed as a fraction of the fastest raw limit", _TARGET, ours.speed_of_limit_median or 0)


def _share_of_verified(rows: Sequence[Row], group: str) -> Check:
    ours = next(found for found in rows if found.group == group and found.role == "holdfast")
    verified = next(found for found in rows if found.group == group and found.role == "verified limit")
    return at_least(
        f"{group}: speed as a fraction of the raw read + BLAKE3", _TARGET, verified.median_s / ours.median_s
    )


def _describe(state: TorchState) -> str:
    return f"{state.size_bytes / 1e9:.2f} GB in {len(state.flat):,} tensors"
