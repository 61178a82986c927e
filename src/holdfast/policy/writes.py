"""The steps that are made while a checkpoint is written, and those around it that they are compared with."""

import math

__all__ = ["ENOUGH_AFTER", "Recent", "Write"]

ENOUGH_AFTER = 0.5
"""Times as many steps after a write as during it are enough to compare with."""

_AFTER = 4  # times as many steps after a write as during it are compared with those, and as many before
_BEFORE_SPAN = 2.0
_HARDLY = 0.01


class Recent:
    """What a step took lately while nothing was written: the older, the less it counts."""

    def __init__(self, write_steps: int) -> None:
        """Over a few times as many as are made during a write."""
        self._span = max(1.0, _BEFORE_SPAN * write_steps)
        self.step_s = 0.0
        self._variance = math.inf

    @property
    def steps(self) -> float:
        """How many it rests on, in effect."""
        return 1 / self._variance

    def add(self, count: int, seconds: float) -> None:
        weight = 1.0 if self._variance == math.inf else -math.expm1(-count / self._span)
        self.step_s += weight * (seconds / count - self.step_s)
        kept = 0.0 if weight == 1.0 else (1 - weight) ** 2 * self._variance
        self._variance = kept + weight * weight / count


class Write:
    """The steps that were made while one checkpoint was written, and those around it."""

    def __init__(self, before: tuple[float, float] = (0.0, 0.0), stall_s: float = 0.0) -> None:
        """`before`: steps, and seconds of one of them."""
        self.steps_before, self.before_s = before
        self.stall_s = stall_s
        self.during = Tally()
        self.after = Tally()
        self.took_s: float | None = None
        """From its begin until it was durable, the stall included."""
        self.ended = False

    @property
    def steps(self) -> int:
        return self.during.steps

    @property
    def seconds(self) -> float:
        return self.during.seconds

    @property
    def steps_after(self) -> int:
        return self.after.steps

    @property
    def seconds_after(self) -> float:
        return self.after.seconds

    @property
    def short(self) -> bool:
        """Too short to matter to these steps: they are as good as any others, and perhaps there are no others."""
        return self.took_s is not None and self.took_s < _HARDLY * self.seconds

    @property
    def is_seen(self) -> bool:
        """Whether there were enough steps after it to compare with."""
        return self.steps_after >= ENOUGH_AFTER * self.steps

    @property
    def left(self) -> int:
        """How many steps are still to be seen after it."""
        return max(0, _AFTER * self.steps - self.steps_after) if self.ended else 0

    @property
    def left_at_least(self) -> int:
        """How many there must still be, to compare with."""
        return max(1, math.ceil(ENOUGH_AFTER * self.steps) - self.steps_after)

    def note(self, count: int, seconds: float, *, odd: bool = False) -> None:
        """Steps; `odd`: the training has paused during them, it seems."""
        (self.after if self.ended else self.during).note(count, seconds, odd=odd)


class Tally:
    """Steps, without those during which the training paused; unless they are the most."""

    def __init__(self) -> None:
        self._usual = (0, 0.0)
        self._odd = (0, 0.0)

    @property
    def steps(self) -> int:
        return self._usual[0] + (self._odd[0] if self._odd_counts else 0)

    @property
    def seconds(self) -> float:
        return self._usual[1] + (self._odd[1] if self._odd_counts else 0.0)

    @property
    def _odd_counts(self) -> bool:
        return self._odd[0] > self._usual[0]

    def note(self, count: int, seconds: float, *, odd: bool) -> None:
        if odd:
            self._odd = (self._odd[0] + count, self._odd[1] + seconds)
        else:
            self._usual = (self._usual[0] + count, self._usual[1] + seconds)
