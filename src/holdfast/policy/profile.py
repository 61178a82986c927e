"""What an attempt measured, kept in the run, so that the next one begins with it."""

from collections.abc import Mapping
from typing import Any

import msgspec

__all__ = ["Profile"]

_TIMES = ("step", "stall", "slow", "durable", "queued")
_LEAST_S, _MOST_S = 1e-9, 1e10


class Profile(msgspec.Struct, frozen=True):
    """Seconds of one step and of one checkpoint; None is not measured."""

    step_s: float | None = None
    stall_s: float | None = None
    slow_s: float | None = None
    """What one checkpoint costs through steps that are slower while it is written."""
    slow_error_s: float = 0.0
    """By how much that may be off: one standard error."""
    durable_s: float | None = None
    interval_steps: int | None = None
    steps: int = 0
    """How many steps, and below checkpoints, the figures rest on."""
    saved: int = 0
    spent_s: float = 0.0
    """What all checkpoints of the run have cost, and below how long it has taken without; over all attempts."""
    base_s: float = 0.0
    queued_s: float | None = None
    """For how long, all together, the threads of the training had no core while one was written."""

    @property
    def cost_s(self) -> float | None:
        """What one checkpoint takes from the training."""
        return None if self.stall_s is None else self.stall_s + (self.slow_s or 0.0)

    def to_plain(self) -> dict[str, float | int | None]:
        """As plain values, for the journal."""
        return {name: getattr(self, name) for name in self.__struct_fields__}

    @staticmethod
    def from_plain(plain: object) -> "Profile":
        """What `to_plain` gave; anything else counts as not measured, for a journal may be damaged."""
        fields: Mapping[Any, Any] = plain if isinstance(plain, Mapping) else {}
        step_s, stall_s, slow_s, durable_s, queued_s = (_seconds(fields.get(f"{name}_s")) for name in _TIMES)
        steps, saved, interval = (_count(fields.get(name)) for name in ("steps", "saved", "interval_steps"))
        spent_s, base_s = (_seconds(fields.get(name)) or 0.0 for name in ("spent_s", "base_s"))
        return Profile(
            step_s=step_s or None,
            stall_s=stall_s,
            slow_s=slow_s,
            slow_error_s=_seconds(fields.get("slow_error_s")) or 0.0,
            durable_s=durable_s,
            queued_s=queued_s,
            interval_steps=interval or None,
            steps=steps,
            saved=saved,
            spent_s=spent_s,
            base_s=base_s,
        )


def _seconds(value: object) -> float | None:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    try:
        number = float(value)
    except OverflowError:
        return None
    # What is shorter or longer than any measurement comes from nobody who measured, and overflows elsewhere.
    return (number if number > _LEAST_S else 0.0) if 0 <= number < _MOST_S else None


def _count(value: object) -> int:
    return value if isinstance(value, int) and not isinstance(value, bool) and value > 0 else 0
