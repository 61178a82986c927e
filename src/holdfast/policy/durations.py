"""Durations: as people write them, in seconds; and seconds, as people read them."""

import math
import re
from datetime import timedelta
from numbers import Real

from holdfast.core.errors import UsageError

__all__ = ["DURATION_HINT", "seconds_of", "words_of"]

DURATION_HINT = 'give seconds (600), a timedelta, or text such as "10 min", "1h30m", "1:30:00" or "2-00:00:00"'

_MINUTE_S, _HOUR_S, _DAY_S = 60, 3600, 86_400
_SPELLINGS = {
    "w week weeks": 7.0 * _DAY_S,
    "d day days": float(_DAY_S),
    "h hr hrs hour hours": float(_HOUR_S),
    "m min mins minute minutes": float(_MINUTE_S),
    "s sec secs second seconds": 1.0,
    "ms msec millisecond milliseconds": 1e-3,
    "us µs μs microsecond microseconds": 1e-6,
}
_UNIT_S = {name: unit_s for names, unit_s in _SPELLINGS.items() for name in names.split()}

_DECIMAL = r"(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+)"
_NUMBER = re.compile(rf"-?{_DECIMAL}")
_PART = re.compile(rf"({_DECIMAL})\s*([a-zµμ]+)\s*")
# As Slurm writes a limit. Two numbers alone are refused: 1:30 is an hour and a half to some, 90 seconds to others.
_CLOCK = re.compile(r"([0-9]+):([0-5][0-9]):([0-5][0-9](?:\.[0-9]+)?)")
_DAYS_AND_CLOCK = re.compile(r"([0-9]+)-([01]?[0-9]|2[0-3])(?::([0-5][0-9])(?::([0-5][0-9](?:\.[0-9]+)?))?)?")
_TWO_NUMBERS = re.compile(r"[0-9]+:[0-9]+")

_FOREVER_S = 1e15  # thirty million years

# Unit, the smaller one that is said with it, and below which time the pair is used.
_PAIRS = (
    (_MINUTE_S, "min", 1, "s", _HOUR_S),
    (_HOUR_S, "h", _MINUTE_S, "min", _DAY_S),
    (_DAY_S, "d", _HOUR_S, "h", math.inf),
)


def seconds_of(given: object, what: str) -> float:
    """The duration in seconds, 0 or more; UsageError, which says `what` it was meant for, if it is none.

    A number, or text that is one, is of seconds. Units go from the large to the small, each once: `1 h 30 min`.
    """
    if isinstance(given, timedelta):
        seconds = given.total_seconds()
    elif isinstance(given, str):
        seconds = _parse(given.strip().lower(), given, what)
    elif isinstance(given, bool) or not isinstance(given, Real):
        raise _refused(given, what, "a duration")
    else:
        seconds = _as_float(given)
    if math.isnan(seconds) or math.isinf(seconds):
        raise _refused(given, what, "a finite duration")
    if seconds < 0:
        raise _refused(given, what, "a duration that is not negative")
    return seconds


def words_of(seconds: float) -> str:
    """`250 ms`, `12 s`, `1 h 30 min`, `2 d 3 h`: two digits, or two units."""
    if math.isnan(seconds):
        return "an unknown time"
    if seconds < 0:
        return f"-{words_of(-seconds)}"
    if seconds > _FOREVER_S:
        return "an unlimited time"
    if seconds < 1e-9:
        return "0 s"
    for unit_s, name, below in ((1e-6, "µs", 1000), (1e-3, "ms", 1000), (1.0, "s", 60)):
        value = seconds / unit_s
        # Rounded first and compared then, or 999.7 ms would read "1000 ms".
        rounded = float(f"{value:.2g}") if value < 10 else round(value)
        if rounded < below:
            return f"{rounded:g} {name}"
    return _pair_of(seconds)


def _pair_of(seconds: float) -> str:
    # The same here: 59 min 59.7 s is an hour.
    pair = next(pair for pair in _PAIRS if round(seconds / pair[2]) * pair[2] < pair[4])
    unit_s, name, smaller_s, smaller, _ = pair
    whole, rest = divmod(round(seconds / smaller_s), unit_s // smaller_s)
    return f"{whole} {name} {rest} {smaller}" if rest else f"{whole} {name}"


def _parse(text: str, given: str, what: str) -> float:
    if _NUMBER.fullmatch(text):
        return float(text)
    if clock := _CLOCK.fullmatch(text):
        return _clock_s(0, *clock.groups())
    if clock := _DAYS_AND_CLOCK.fullmatch(text):
        return _clock_s(*(field or 0 for field in clock.groups()))
    if text.startswith("-") and _sum_of_parts(text[1:].lstrip()) is not None:
        raise _refused(given, what, "a duration that is not negative")
    seconds = _sum_of_parts(text)
    if seconds is None:
        hint = "write 1:30:00 for hours, or 0:01:30 for minutes" if _TWO_NUMBERS.fullmatch(text) else DURATION_HINT
        raise _refused(given, what, "a duration", hint=hint)
    return seconds


def _clock_s(days: str | int, hours: str | int, minutes: str | int, seconds: str | int) -> float:
    return float(days) * _DAY_S + float(hours) * _HOUR_S + float(minutes) * _MINUTE_S + float(seconds)


def _sum_of_parts(text: str) -> float | None:
    total_s, last_unit_s, at = 0.0, math.inf, 0
    while part := _PART.match(text, at):
        unit_s = _UNIT_S.get(part[2], math.inf)
        if unit_s >= last_unit_s:
            return None
        total_s += float(part[1]) * unit_s
        last_unit_s, at = unit_s, part.end()
    return total_s if 0 < at == len(text) else None


def _as_float(number: Real) -> float:
    try:
        return float(number)
    except OverflowError:
        return math.inf


def _refused(given: object, what: str, expected: str, *, hint: str = DURATION_HINT) -> UsageError:
    found = repr(given)
    found = found if len(found) <= 60 else f"{found[:60]}…"
    return UsageError(f"{what} is {found}, expected {expected}", hint=hint)
