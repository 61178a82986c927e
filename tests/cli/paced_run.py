"""Runs whose journal tells of a pace, as `every="auto"` leaves it behind: made up, so that it is always the same."""

import json
import math
from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np

import holdfast

__all__ = ["THREE_ATTEMPTS", "Diary", "write_run"]

_BEGIN = datetime(2026, 11, 15, 18, 42, 1, tzinfo=UTC)
_LIMIT = 0.035
_ASSUMED_S = 43_200.0  # auto(mtbf="12 h")


class Diary:
    """Collects the events of a run, attempt by attempt."""

    def __init__(self) -> None:
        self.events: list[dict[str, object]] = []
        self._attempt = 0
        self._began = _BEGIN
        self._now_s = 0.0

    def begin(self, *, after_s: float = 0.0, step: int = 0, pid: int | None = None) -> None:
        """A new attempt, so long after the last event."""
        self._began += timedelta(seconds=self._now_s + after_s)
        self._attempt += 1
        self._now_s = 0.0
        self.note("attempt", 0.0, pid=pid or 4000 + self._attempt)
        if step:
            self.note("restoring", 1.0, id=f"{step:09d}-e000-20261115T184201Z-a0001", step=step)
            self.note("restored", 2.0, id=f"{step:09d}-e000-20261115T184201Z-a0001", step=step, where="disk")

    def note(self, event: str, at_s: float, **details: object) -> None:
        """Something that happened so long after the beginning of the attempt."""
        self._now_s = max(self._now_s, at_s)
        time = (self._began + timedelta(seconds=at_s)).strftime("%Y-%m-%dT%H:%M:%SZ")
        self.events.append({"time": time, "attempt": self._attempt, "event": event, **details})

    def commit(self, at_s: float, step: int) -> None:
        """A checkpoint."""
        name = f"{step:09d}-e000-20261115T184201Z-a{self._attempt:04d}"
        self.note("committed", at_s, id=name, step=step, size_bytes=1 << 30)

    def pace(self, at_s: float, step: int, steps: int, won: str, **changed: Any) -> None:
        """An interval that was chosen; the rule that won may want another one (`wants`) by now."""
        wants = changed.pop("wants", None) or steps
        facts: dict[str, Any] = {
            "step_s": 2.0,
            "stall_s": 0.14,
            "slow_s": 1.1,
            "durable_s": 21.0,
            "overhead_window": 0.0204,
            "overhead_run": 0.0213,
            "limit": _LIMIT,
            "mtbf_s": 18_400.0,
            "risk": 1.0,
            "saved": 12,
            "skipped": 0,
            **changed,
        }
        cost_s, mtbf_s = facts["stall_s"] + facts["slow_s"], facts["mtbf_s"] / facts["risk"]
        slow_s = 1.2 * facts["durable_s"]
        assumed = ", as is assumed at first" if facts["mtbf_s"] == _ASSUMED_S else "; at first 12 h is assumed"
        if facts["risk"] > 1:
            assumed = f" while there is trouble, else {facts['mtbf_s'] / 3600:.2g} h"
        rules = [
            ("durable", 1.05 * slow_s / 2, f"durable within {slow_s:.0f} s, even a slow one, before the next"),
            (
                "overhead",
                cost_s / _LIMIT / 0.95 / 2,
                f"up to {cost_s:.2g} s a checkpoint, within 95 % of the allowed 3.5 %",
            ),
            ("failures", wants, f"least time lost at a failure every {mtbf_s / 3600:.2g} h{assumed}"),
            ("lose_at_most", 280, "no more than 10 min lost, the time to durable included"),
        ]
        reason = next(text for name, _, text in rules if name == won)
        why = f"every {steps} steps, about {steps / 30:.2g} min: {won} decides ({reason})"
        wishes = [{"name": name, "steps": math.ceil(wanted), "text": text} for name, wanted, text in rules]
        if won == "overhead":
            wishes[1]["steps"], wishes[2]["steps"] = wants, round(steps * 0.6)
        chosen = {"interval_steps": steps, "won": won, "why": why, "rules": wishes}
        self.note("paced", at_s, step=step, elapsed_s=at_s, **chosen, **facts)


def _three_attempts() -> list[dict[str, object]]:
    """Killed after 2.5 hours; then slow storage, and memory that runs out; then a disk that fills up, a time limit."""
    diary = Diary()
    diary.begin()
    first = {"interval_steps": 1, "won": "first", "why": "one checkpoint, to see what one costs", "rules": []}
    diary.note("paced", 22, step=11, elapsed_s=22.0, **first, step_s=2.1, limit=_LIMIT)
    diary.commit(45, 12)
    diary.pace(46, 13, 40, "overhead", slow_s=2.66, mtbf_s=_ASSUMED_S, saved=1, overhead_window=0.0)
    _commit(diary, range(52, 332, 40))
    diary.pace(660, 320, 165, "failures", mtbf_s=_ASSUMED_S, overhead_window=0.0152, overhead_run=0.0188)
    _commit(diary, range(497, 4500, 165))
    diary.begin(after_s=8040, step=4292)
    diary.pace(60, 4320, 107, "failures", saved=0, overhead_window=0.0, overhead_run=0.0188)
    _commit(diary, range(4400, 6000, 107), 4292)
    slow = {"stall_s": 0.3, "slow_s": 13.0, "durable_s": 170.0}
    diary.pace(3600, 6080, 190, "overhead", **slow, overhead_window=0.0412, overhead_run=0.0221)
    diary.note("save_failed", 4000, step=6270, error="no space left")
    _commit(diary, range(6460, 7900, 190), 4292)
    read = "some avg10=41.2, 97 % of the cgroup's limit"
    diary.note("sensed", 7300, sensor="memory", read=read, risk=8.0, concluded="the OOM killer may come")
    diary.pace(7305, 7930, 38, "failures", risk=8.0, overhead_window=0.0301, overhead_run=0.0254)
    _commit(diary, range(7968, 8400, 38), 4292)
    diary.begin(after_s=300, step=8386)
    calm = {"mtbf_s": 12_300.0, "overhead_run": 0.0236}
    diary.pace(40, 8400, 88, "failures", mtbf_s=12_300.0, saved=0, overhead_window=0.0, overhead_run=0.0254)
    _commit(diary, range(8474, 12_900, 88), 8386)
    read = "31 GiB free, 9 GiB less every hour"
    diary.note("sensed", 3000, sensor="disk space", read=read, risk=2.0, concluded="the disk is full in 3.4 h")
    diary.pace(3001, 9880, 62, "failures", **calm, risk=2.0)
    diary.note("sensed", 5400, sensor="disk space", read="210 GiB free", risk=1.0, concluded="there is space again")
    diary.pace(5402, 11_080, 88, "failures", **calm, overhead_window=0.0221)
    why = "1 min 3 s left; a step takes up to 3.1 s, a checkpoint 56 s, the end 5 s: save now, and stop"
    diary.note("deadline", 9030, source="Slurm", left_s=63.0, decided="save and stop", why=why)
    diary.commit(9055, 12_902)
    diary.note("stopped", 9056, step=12_902, why=why, lost_steps=0)
    diary.pace(9057, 12_902, 88, "failures", wants=91, **calm, saved=52, overhead_window=0.0171)
    diary.note("closed", 9058, clean=False)
    return diary.events


def _commit(diary: Diary, steps: Iterable[int], from_step: int = 0) -> None:
    for step in steps:
        diary.commit(2.0 * (step - from_step) + 21, step)


THREE_ATTEMPTS = _three_attempts()


def write_run(path: Path | str, events: Iterable[dict[str, object]] = THREE_ATTEMPTS, *, raw: bytes = b"") -> Path:
    """A run with this journal, and no checkpoints: `holdfast explain` looks at nothing else."""
    path = Path(path)
    with holdfast.Checkpointer(path, {"weights": np.zeros(1)}, background="off"):
        pass
    lines = sorted(events, key=lambda event: str(event.get("time")))  # as they were written
    (path / "journal.jsonl").write_bytes(b"".join(json.dumps(event).encode() + b"\n" for event in lines) + raw)
    return path
