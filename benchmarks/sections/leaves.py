"""What one small leaf costs, and whether a hundred times as many cost a hundred times as much."""

import shutil
from collections.abc import Sequence

from benchmarks.contenders import Contender, Dcp, Holdfast, Safetensors, TorchSave
from benchmarks.measure import in_turn, timed
from benchmarks.results import Check, Row, Section, at_least, at_most, row
from benchmarks.setting import Setting
from benchmarks.states import leaves_state

__all__ = ["run"]

_COUNTS = (1_000, 10_000, 100_000)
_QUICK_COUNTS = (10, 100)
_MOST_GROWTH = 1.5
# The whole run has to end: who has taken this long is not repeated, and who would take that long is left out.
_PATIENCE_S = 4.0
_MOST_EXPECTED_S = 30.0


def run(setting: Setting) -> Section:
    """Saves and restores of 1 KB leaves, as many as three powers of ten."""
    counts = _QUICK_COUNTS if setting.quick else _COUNTS
    rows: list[Row] = []
    notes = ["A per-leaf cost that does not rise with the number of leaves is linear growth."]
    contenders: list[Contender] = [Holdfast(), TorchSave(), Safetensors(), Dcp()]
    for count in counts:
        for slow in [one for one in contenders if _expected_s(rows, one.name, count) > _MOST_EXPECTED_S]:
            notes.append(f"{slow.name} is not measured with {count:,} leaves: it would take too long.")
            contenders.remove(slow)
        rows += _measure(setting, count, contenders)
    return Section(
        name="leaves",
        title="Many leaves of 1 KB: cost per leaf",
        rows=rows,
        checks=[check for doing in ("save", "restore") for check in _checks(rows, doing, counts)],
        notes=notes,
    )


def _expected_s(rows: Sequence[Row], name: str, count: int) -> float:
    """How long a save and a restore will take, from what the one with fewer leaves took."""
    before = [found for found in rows if found.name == name and found.items][-2:]
    return sum(found.median_s * count / (found.items or 1) for found in before)


def _measure(setting: Setting, count: int, contenders: Sequence[Contender]) -> list[Row]:
    state = leaves_state(count)
    times_s: dict[tuple[str, str], list[float]] = {}

    def measure(contender: Contender) -> None:
        saves, restores = (times_s.setdefault((doing, contender.name), []) for doing in ("save", "restore"))
        if sum(saves) + sum(restores) > _PATIENCE_S:
            return
        directory = setting.directory / "leaves"
        with contender.saving(state, directory) as call:
            saves.append(timed(call).wall_s)
        with contender.restoring(state, directory) as call:
            restores.append(timed(call).wall_s)
        shutil.rmtree(directory)

    in_turn(contenders, setting.repeat, measure)
    return [
        row(_group(doing, count), contender.name, contender.role, times_s[doing, contender.name], items=count)
        for doing in ("save", "restore")
        for contender in contenders
    ]


def _group(doing: str, count: int) -> str:
    return f"{doing}, {count:,} leaves"


def _checks(rows: Sequence[Row], doing: str, counts: Sequence[int]) -> list[Check]:
    def median_s(count: int, name: str = "holdfast") -> float:
        return next(found.median_s for found in rows if (found.group, found.name) == (_group(doing, count), name))

    smaller, most = counts[-2:]
    growth = (median_s(most) / most) / (median_s(smaller) / smaller)
    peers = [found for found in rows if found.group == _group(doing, most) and found.role == "peer"]
    return [
        at_most(f"{doing}: per-leaf cost of {most:,} leaves / of {smaller:,}", _MOST_GROWTH, growth),
        *(
            at_least(f"{doing}, {most:,} leaves: times faster than {peer.name}", 1.0, peer.median_s / median_s(most))
            for peer in peers
        ),
    ]
