"""How often checkpoints are made, and what they cost, in words: for the status line and `holdfast explain`. Pure."""

import math

__all__ = ["pace_words", "share_words", "steps_words", "time_words"]

_MINUTE_S, _HOUR_S, _DAY_S = 60.0, 3600.0, 86_400.0
# Up to where a unit is used, how much one of it is, and its name.
_UNITS = (
    (1e-3, 1e-6, "µs"),
    (1.0, 1e-3, "ms"),
    (_MINUTE_S, 1.0, "s"),
    (_HOUR_S, _MINUTE_S, "min"),
    (_DAY_S, _HOUR_S, "h"),
    (math.inf, _DAY_S, "d"),
)
_ENDLESS_S = 100_000 * _DAY_S


def pace_words(
    interval_steps: int | None, step_s: float | None, *, overhead: float | None = None, limit: float | None = None
) -> str:
    """`every 120 steps (≈ 4 min): overhead 2.1 % of 3.5 %`; what is not known is left out.

    The overhead and its limit are shares: 0.035 is 3.5 %.
    """
    if interval_steps is None:
        return "no interval yet: measuring"
    takes = "" if step_s is None or not math.isfinite(step_s) else f" (≈ {time_words(interval_steps * step_s)})"
    words = f"every {steps_words(interval_steps)}{takes}" if interval_steps != 1 else f"at every step{takes}"
    if overhead is None or not math.isfinite(overhead):
        return words
    allowed = "" if limit is None or not math.isfinite(limit) else f" of {share_words(limit)}"
    return f"{words}: overhead {share_words(overhead)}{allowed}"


def steps_words(steps: int) -> str:
    """`1 step`, `21,480 steps`."""
    return "1 step" if steps == 1 else f"{steps:,} steps" if abs(steps) < 10**12 else f"{steps:.1e} steps"


def time_words(seconds: float) -> str:
    """`140 ms`, `2.1 s`, `42 s`, `3.3 min`, `14 h`: two digits and one unit, which is what a measurement is worth."""
    if not 0 <= seconds < _ENDLESS_S:
        return "endless" if seconds > 0 else "0 s" if math.isnan(seconds) else f"-{time_words(-seconds)}"
    if seconds < 1e-7:
        return "0 s"
    for below_s, unit_s, name in _UNITS:
        # What would be rounded up to one of the next unit is one of it: no `1000 ms`, no `60 s`.
        if seconds < below_s and float(_digits(seconds / unit_s)) * unit_s < below_s:
            return f"{_digits(seconds / unit_s)} {name}"
    return f"{_digits(seconds / _DAY_S)} d"


def share_words(share: float) -> str:
    """`2.1 %`, `12 %`, `0.03 %`."""
    percent = 100 * share
    if not math.isfinite(percent):
        return "? %"
    if percent != 0 and abs(percent) < 0.095:
        return f"{percent:.2f} %" if abs(percent) >= 0.005 else "< 0.01 %"
    return f"{percent:.1f} %" if abs(percent) < 9.95 else f"{percent:.0f} %" if abs(percent) < 1e6 else "> 1000000 %"


def _digits(value: float) -> str:
    text = f"{value:.1f}" if value < 9.95 else f"{value:.0f}"
    return text.removesuffix(".0")
