"""What the journal says of how often checkpoints were made, and why: the report behind `holdfast explain`. Pure."""

from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise
from statistics import median
from typing import NamedTuple

from holdfast.engine.history import Attempt, Ending, Fields, Placed, trace_attempts
from holdfast.engine.journal import Event

__all__ = ["Commit", "Deadline", "Pace", "Report", "Sensed", "Spacing", "Stop", "Wish", "report_pace"]

_MOST_RULES = 20
_MOST_RISK = 1e6
_MOST_SHARE = 1e4
_ALIKE = 0.1
_FIRST = "first"


class Wish(NamedTuple):
    """What one rule wanted."""

    name: str
    steps: int | None
    text: str


class Pace(NamedTuple):
    """The interval from one moment on, what it was made from, and who decided it."""

    attempt: int
    at_s: float
    """In running time of the run, as everywhere here."""
    step: int | None
    interval_steps: int | None
    won: str
    why: str
    rules: tuple[Wish, ...]
    step_s: float | None
    stall_s: float | None
    slow_s: float | None
    durable_s: float | None
    overhead_window: float | None
    overhead_run: float | None
    limit: float | None
    mtbf_s: float | None
    risk: float | None
    saved: int | None
    skipped: int | None

    @property
    def interval_s(self) -> float | None:
        """What the interval is in time."""
        return None if self.interval_steps is None or self.step_s is None else self.interval_steps * self.step_s

    @property
    def is_measuring(self) -> bool:
        """Whether this is the checkpoint that is made to see what one costs, and no interval yet."""
        return self.won == _FIRST

    @property
    def reason(self) -> str:
        """Of the rule that won, in short; else the whole sentence."""
        return next((rule.text for rule in self.rules if rule.name == self.won and rule.text), self.why)


class Sensed(NamedTuple):
    """A sensor's conclusion, when it changed."""

    attempt: int
    at_s: float
    sensor: str
    read: str
    risk: float | None
    concluded: str


class Deadline(NamedTuple):
    """What was decided as the end came near."""

    attempt: int
    at_s: float
    source: str
    left_s: float | None
    decided: str
    why: str


class Stop(NamedTuple):
    """The job stopped itself."""

    attempt: int
    at_s: float
    step: int | None
    why: str
    lost_steps: int | None


class Commit(NamedTuple):
    """A checkpoint became durable."""

    attempt: int
    at_s: float
    step: int | None


class Spacing(NamedTuple):
    """How far apart the checkpoints are that were made."""

    steps: float
    seconds: float
    is_even: bool
    """Whether nearly all are so far apart, in steps."""


class Report(NamedTuple):
    """All that the journal tells of the pace of a run, oldest first."""

    attempts: tuple[Attempt, ...]
    now: Pace | None
    """The last word of it; None where nothing was decided by measurement."""
    changes: tuple[Pace, ...]
    """When the interval, or who decided it, became another one; the first of each attempt is one."""
    paces: tuple[Pace, ...]
    sensed: tuple[Sensed, ...]
    deadlines: tuple[Deadline, ...]
    stops: tuple[Stop, ...]
    commits: tuple[Commit, ...]
    spacing: Spacing | None
    failed_saves: tuple[float, ...]
    running_s: float
    is_whole: bool
    """Whether the journal goes back to the beginning."""
    odd: int
    """How many of its values make no sense, and are left out."""

    @property
    def killed(self) -> int:
        """The attempts that were ended from outside."""
        return sum(attempt.failed for attempt in self.attempts)

    @property
    def left(self) -> int:
        """The attempts of which nobody knows whether they ended as they should."""
        return sum(attempt.ending == Ending.LEFT for attempt in self.attempts)

    @property
    def raised(self) -> int:
        """The attempts that an exception ended."""
        return sum(attempt.ending == Ending.RAISED for attempt in self.attempts)

    @property
    def overhead_all(self) -> float | None:
        """What checkpoints cost in all attempts, each as far as it was measured."""
        began_s = {attempt.number: attempt.at_s for attempt in self.attempts}
        last = {pace.attempt: pace for pace in self.paces if pace.overhead_run is not None}
        weights_s = {number: pace.at_s - began_s[number] for number, pace in last.items()}
        total_s = sum(weights_s.values())
        if total_s <= 0:
            return None
        return sum(weights_s[number] * (pace.overhead_run or 0.0) for number, pace in last.items()) / total_s

    @property
    def seeing(self) -> tuple[Sensed, ...]:
        """The sensors that see a risk now."""
        latest = {s.sensor: s for s in self.sensed if s.attempt == self.attempts[-1].number} if self.attempts else {}
        return tuple(s for s in latest.values() if s.risk is not None and s.risk > 1)

    def troubles(self) -> list[tuple[float, float]]:
        """From when to when any sensor saw a risk."""
        return _spans(self.sensed, {attempt.number: attempt.at_s + attempt.lived_s for attempt in self.attempts})


def report_pace(events: Sequence[Event], *, alive: int | None = None, now_utc_s: float = 0.0) -> Report:
    """Read the events. `alive` is the attempt whose process lives, which is running until now."""
    fields = Fields()
    history = trace_attempts(events, fields, alive=alive, now_utc_s=now_utc_s)
    of_kind: dict[object, list[Placed]] = {}
    for placed in history.events:
        of_kind.setdefault(placed.event.get("event"), []).append(placed)
    paces = [_pace(placed, fields) for placed in of_kind.get("paced", ())]
    paces = [pace for pace in paces if pace.interval_steps is not None]
    commits = [Commit(p.attempt, p.at_s, fields.whole(p.event, "step")) for p in of_kind.get("committed", ())]
    return Report(
        attempts=history.attempts,
        now=paces[-1] if paces else None,
        changes=tuple(_changes(paces)),
        paces=tuple(paces),
        sensed=tuple(_sensed(placed, fields) for placed in of_kind.get("sensed", ())),
        deadlines=tuple(_deadline(placed, fields) for placed in of_kind.get("deadline", ())),
        stops=tuple(_stop(placed, fields) for placed in of_kind.get("stopped", ())),
        commits=tuple(commits),
        spacing=_spacing(commits),
        failed_saves=tuple(placed.at_s for placed in of_kind.get("save_failed", ())),
        running_s=history.running_s,
        is_whole=history.is_whole,
        odd=fields.odd,
    )


def _pace(placed: Placed, fields: Fields) -> Pace:
    event = placed.event
    return Pace(
        attempt=placed.attempt,
        at_s=placed.at_s,
        step=fields.whole(event, "step"),
        interval_steps=fields.whole(event, "interval_steps", least=1),
        won=fields.text(event, "won"),
        why=fields.text(event, "why"),
        rules=tuple(_wishes(event, fields)),
        step_s=fields.number(event, "step_s"),
        stall_s=fields.number(event, "stall_s"),
        slow_s=fields.number(event, "slow_s"),
        durable_s=fields.number(event, "durable_s"),
        overhead_window=fields.number(event, "overhead_window", most=_MOST_SHARE),
        overhead_run=fields.number(event, "overhead_run", most=_MOST_SHARE),
        limit=fields.number(event, "limit", most=1.0),
        mtbf_s=fields.number(event, "mtbf_s"),
        risk=fields.number(event, "risk", most=_MOST_RISK),
        saved=fields.whole(event, "saved"),
        skipped=fields.whole(event, "skipped"),
    )


def _wishes(event: Event, fields: Fields) -> Iterable[Wish]:
    rules = event.get("rules")
    if rules is None:
        return
    if not isinstance(rules, list):
        fields.odd += 1
        return
    for rule in rules[:_MOST_RULES]:
        if not isinstance(rule, Mapping):
            fields.odd += 1
        elif name := fields.text(rule, "name"):
            yield Wish(name, fields.whole(rule, "steps"), fields.text(rule, "text"))


def _changes(paces: Sequence[Pace]) -> Iterable[Pace]:
    before = None
    for pace in paces:
        key = (pace.attempt, pace.interval_steps, pace.won)
        if key != before:
            yield pace
        before = key


def _sensed(placed: Placed, fields: Fields) -> Sensed:
    event = placed.event
    return Sensed(
        placed.attempt,
        placed.at_s,
        fields.text(event, "sensor") or "?",
        fields.text(event, "read"),
        fields.number(event, "risk", most=_MOST_RISK),
        fields.text(event, "concluded"),
    )


def _deadline(placed: Placed, fields: Fields) -> Deadline:
    event = placed.event
    left_s = fields.number(event, "left_s", least=-1e10)
    words = (fields.text(event, name) for name in ("decided", "why"))
    return Deadline(placed.attempt, placed.at_s, fields.text(event, "source") or "?", left_s, *words)


def _stop(placed: Placed, fields: Fields) -> Stop:
    event = placed.event
    step, lost = fields.whole(event, "step"), fields.whole(event, "lost_steps")
    return Stop(placed.attempt, placed.at_s, step, fields.text(event, "why"), lost)


def _spacing(commits: Sequence[Commit]) -> Spacing | None:
    """Of checkpoints of the same attempt: between two attempts lies what was lost, and a pause."""
    pairs = [(a, b) for a, b in pairwise(commits) if a.attempt == b.attempt]
    steps = [b.step - a.step for a, b in pairs if a.step is not None and b.step is not None and b.step > a.step]
    if not steps:
        return None
    typical = median(steps)
    off = sum(abs(gap - typical) > _ALIKE * typical for gap in steps)
    return Spacing(typical, median(b.at_s - a.at_s for a, b in pairs), is_even=off <= len(steps) // 10)


def _spans(sensed: Sequence[Sensed], ends_s: Mapping[int, float]) -> list[tuple[float, float]]:
    spans: list[tuple[float, float]] = []
    seeing: set[str] = set()
    begin: Sensed | None = None
    for change in sensed:
        if begin is not None and change.attempt != begin.attempt:
            spans.append((begin.at_s, ends_s[begin.attempt]))  # what was seen is not known to a new process
            begin, seeing = None, set()
        if change.risk is not None and change.risk > 1:
            seeing.add(change.sensor)
            begin = begin or change
        else:
            seeing.discard(change.sensor)
            if begin is not None and not seeing:
                spans.append((begin.at_s, change.at_s))
                begin = None
    if begin is not None:
        spans.append((begin.at_s, ends_s[begin.attempt]))
    return spans
