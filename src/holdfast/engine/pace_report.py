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
_COARSE_S = 10.0
_FIRST = "first"
_CAP = "lose_at_most"
_LEAST_SAVED = 2  # the overhead is known from one checkpoint to another
_KEPT_WITHIN = 1.25  # an interval is changed when it is wrong by a fifth, if not before; and is rounded to whole steps


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
    queued_s: float | None
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

    @property
    def overhead_lately(self) -> float | None:
        """`overhead_window`, but None before there is one to look at."""
        return None if self.saved is not None and self.saved < _LEAST_SAVED else self.overhead_window

    @property
    def kept_against(self) -> int | None:
        """What the rule that won wants by now, where the interval stays as it is because that is nearly the same."""
        wants = {rule.name: rule.steps for rule in self.rules}
        wanted, kept = wants.get(self.won), self.interval_steps
        if not wanted or kept is None or wanted == kept or self.is_measuring:
            return None
        # Wishes are rounded up, but that of a cap down: next to one, a step more or less is a matter of rounding.
        cap, is_step = wants.get(_CAP), abs(wanted - kept) == 1
        if is_step and cap is not None and abs(cap - kept) <= 1:
            return None
        few, many = sorted((wanted, kept))
        # Few steps are nearly the same, too, if they are one apart: they were rounded. Where it is more than that,
        # another rule is in the way, and `why` says so.
        return wanted if is_step or many <= _KEPT_WITHIN * few else None


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
    is_auto: bool
    """Whether the interval is found by measuring, though it may not have been found yet."""
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
        """What checkpoints cost in all attempts, as far as it was measured."""
        return next((pace.overhead_run for pace in reversed(self.paces) if pace.overhead_run is not None), None)

    def failed_before(self, attempt: int) -> int:
        """How many of the attempts before that one were ended by a failure."""
        return sum(a.ending in (Ending.KILLED, Ending.RAISED) for a in self.attempts if a.number < attempt)

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
        is_auto="paced" in of_kind,
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
        queued_s=fields.number(event, "queued_s"),
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
    gaps = [
        (b.step - a.step, b.at_s - a.at_s)
        for a, b in pairwise(commits)
        if a.attempt == b.attempt and a.step is not None and b.step is not None and b.step > a.step
    ]
    if not gaps:
        return None
    steps = [gap for gap, _ in gaps]
    typical = median(steps)
    off = sum(abs(gap - typical) > _ALIKE * typical for gap in steps)
    # Events have times in whole seconds: where that is coarse, only all of them together tell.
    middle_s, step_s = median(s for _, s in gaps), sum(s for _, s in gaps) / sum(steps)
    seconds = middle_s if middle_s >= _COARSE_S else typical * step_s
    return Spacing(typical, seconds, is_even=off <= len(steps) // 10)


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
