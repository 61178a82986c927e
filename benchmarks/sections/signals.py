"""How soon a signal is heard: from being sent to being known in a training that is in a call of a library."""

import os

from tests.multiprocess.storm import Seen, storm

import holdfast
from benchmarks.results import Section, at_least, row
from benchmarks.setting import Setting

__all__ = ["run"]

_SIGNALS = 10_000
_QUICK_SIGNALS = 40
_EXITS = 100
_QUICK_EXITS = 3
_SOON_S = 0.05
_SEED = 7


def run(setting: Setting) -> Section:
    """Ten thousand to one training that saves at each and goes on; some more, each of which ends a program."""
    section = Section(name="signals", title="Signals: from being sent to being heard, in a training with long C calls")
    folder = setting.directory / "signals"

    def check(step: int) -> None:
        saved = holdfast.load(folder)["w"][0]  # type: ignore[index]
        if saved != step:
            raise AssertionError(f"stopped at step {step}, durable is {saved}")

    count, exits = (_QUICK_SIGNALS, _QUICK_EXITS) if setting.quick else (_SIGNALS, _EXITS)
    went_on = storm(folder, count, on_stop="return", seed=_SEED, check=check)
    ended = storm(setting.directory / "signals-exit", exits, on_stop="exit", seed=_SEED, check=lambda _: None)
    for name, seen in (("goes on", went_on), ("ends with 85", ended)):
        section.rows.append(row("signals", f"heard by a program that {name}", "holdfast", seen.delays_s))
        section.notes.append(_words(name, seen))
    soon = [delay_s for seen in (went_on, ended) for delay_s in seen.delays_s if delay_s <= _SOON_S]
    section.checks.append(at_least("heard within 50 ms", 1.0, len(soon) / (went_on.sent + ended.sent), "of all"))
    kept = ended.statuses.count(85) / max(1, len(ended.statuses))
    section.checks.append(at_least("programs that ended with 85", 1.0, kept, "of all"))
    section.notes.append(f"load of the machine when it was over: {os.getloadavg()[0]:.1f}")
    return section


def _words(name: str, seen: Seen) -> str:
    delays_ms = sorted(delay_s * 1e3 for delay_s in seen.delays_s)
    late = sum(delay_ms > _SOON_S * 1e3 for delay_ms in delays_ms)
    return (
        f"{name}: {seen.sent:,} sent, {seen.heard:,} heard, {seen.stops:,} stops, all durable; heard after "
        f"{delays_ms[len(delays_ms) // 2]:.1f} ms (median), {delays_ms[-1]:.1f} ms (latest), {late} later than 50 ms"
    )
