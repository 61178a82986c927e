"""What stays: rules that name checkpoints to keep, combined with `|`, and the decision for each one with its reason."""

import math
import operator
from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple, Protocol

from holdfast.core.calls import public_call
from holdfast.core.errors import UsageError
from holdfast.core.values import Checkpoint, CheckpointName
from holdfast.policy.lineage import abandoned_tips, healthy_before_suspects, in_order

__all__ = ["KEEP_ALL", "NO_METRIC", "Keep", "Verdict", "decide", "keep"]

NO_METRIC = "no checkpoint has the metric"
_DAY_S = 86_400.0


class Rule(Protocol):
    """One reason to keep checkpoints."""

    spares_abandoned: ClassVar[bool]
    """Whether it also counts what a rollback left behind, or the live line only."""

    def kept(self, line: Sequence[Checkpoint], now_s: float) -> dict[CheckpointName, str]:
        """The ids to keep, of the usable ones oldest first, each with its reason."""
        ...

    def missed(self) -> str:
        """Why a checkpoint that the rule does not name is not kept by it."""
        ...


@dataclass(frozen=True)
class Keep:
    """What stays: the union of its rules, within `max_bytes`. Made by `keep(...)`, combined with `|`."""

    rules: tuple[Rule, ...]
    max_bytes: int | None = None

    def __or__(self, other: "Keep") -> "Keep":
        if not isinstance(other, Keep):
            raise UsageError(
                f"keep(...) cannot be combined with {type(other).__name__}, expected another keep(...)",
                hint="for example keep(last=3) | keep(for_days=2)",
            )
        limits = [limit for limit in (self.max_bytes, other.max_bytes) if limit is not None]
        return Keep(self.rules + other.rules, min(limits, default=None))

    def to_plain(self) -> dict[str, object]:
        """As plain values, for another process."""
        named = {kind: name for name, kind in _RULES.items()}
        rules = [[named[type(rule)], *vars(rule).values()] for rule in self.rules]
        return {"rules": rules, "max_bytes": self.max_bytes}

    @staticmethod
    def from_plain(plain: Mapping[str, Any]) -> "Keep":
        """What `to_plain` was given."""
        return Keep(tuple(_RULES[name](*fields) for name, *fields in plain["rules"]), plain["max_bytes"])


class Verdict(NamedTuple):
    """What happens to one checkpoint, and why."""

    id: CheckpointName
    keep: bool
    reason: str


@public_call("holdfast.keep")
def keep(
    *,
    last: int | None = None,
    best: int | None = None,
    by: str | None = None,
    mode: str = "min",
    every_steps: int | None = None,
    every_epochs: int | None = None,
    for_days: float | None = None,
    max_bytes: int | None = None,
) -> Keep:
    """What stays: the union of what is given.

    `last`, `every_steps` and `every_epochs` (the first at or after each multiple) count the live line only; `best` (by
    a metric, the smallest or with mode="max" the largest) counts all branches; `for_days` spares whatever is younger.
    `max_bytes` then gives up the oldest of these until the rest fits. Pinned and damaged checkpoints, the newest,
    the last verified and the last healthy one always stay; the newest of each abandoned branch stays unless `max_bytes`
    leaves no room.
    """
    if mode not in ("min", "max"):
        raise UsageError(f"keep: mode {mode!r} is not known", hint='use mode="min" or mode="max"')
    if (best is None) != (by is None):
        given, lacking = ("best", "by") if by is None else ("by", "best")
        raise UsageError(f"keep: {given}= is given without {lacking}=", hint='for example keep(best=2, by="val_loss")')
    rules: list[Rule] = []
    if last is not None:
        rules.append(_Last(_count("last", last)))
    if best is not None and by is not None:
        rules.append(_Best(_count("best", best), by, mode))
    if every_steps is not None:
        rules.append(_EverySteps(_count("every_steps", every_steps, least=1)))
    if every_epochs is not None:
        rules.append(_EveryEpochs(_count("every_epochs", every_epochs, least=1)))
    if for_days is not None:
        rules.append(_ForDays(_days(for_days)))
    limit = _count("max_bytes", max_bytes) if max_bytes is not None else None
    if not rules and limit is None:
        raise UsageError("keep: nothing is given to keep", hint="for example keep(last=3), or KEEP_ALL")
    return Keep(tuple(rules) or (_All(),), limit)


def decide(
    keep: Keep,
    checkpoints: Iterable[Checkpoint],
    *,
    now_s: float,
    live: Set[CheckpointName],
    drop_abandoned: bool = False,
    safe_before: int | None = None,
) -> list[Verdict]:
    """One verdict for each checkpoint, oldest first. `live` is what `policy.lineage.live_line` says.

    `safe_before`: those of this step and later ones may yet be found suspect. So the newest one before it stays, and
    the first one after it, which takes its place some day.
    """
    ordered = in_order(checkpoints)
    line = [c for c in ordered if c.id in live and c.is_sound]
    left = [] if drop_abandoned else [c for c in ordered if c.id not in live and c.is_sound]

    protected = _protected(ordered, live, safe_before)
    ruled = _ruled(keep.rules, line, left, now_s)
    tips = dict.fromkeys(() if drop_abandoned else abandoned_tips(ordered, live), "newest of an abandoned branch")
    reasons: dict[CheckpointName, str] = {}
    for table in (protected, ruled, tips):
        for name, reason in table.items():
            reasons[name] = f"{reasons[name]}; {reason}" if name in reasons else reason
    # Damaged data is not counted: it must not push good checkpoints out.
    counted = [c for c in ordered if c.is_sound and c.id in reasons]
    dropped = _over_limit(keep.max_bytes, counted, live, protected=protected.keys())

    verdicts = []
    for checkpoint in ordered:
        why = reasons.get(checkpoint.id)
        if why is not None and checkpoint.id in dropped:
            verdicts.append(Verdict(checkpoint.id, keep=False, reason=f"over max_bytes={keep.max_bytes}: {why}"))
        elif why is not None:
            verdicts.append(Verdict(checkpoint.id, keep=True, reason=why))
        else:
            verdicts.append(Verdict(checkpoint.id, keep=False, reason=_unkept(checkpoint, keep, live)))
    return verdicts


def _protected(
    ordered: list[Checkpoint], live: Set[CheckpointName], safe_before: int | None
) -> dict[CheckpointName, str]:
    reasons: dict[CheckpointName, list[str]] = {}
    usable = [c for c in ordered if c.is_sound]
    line = [c for c in usable if c.id in live]
    for checkpoint in ordered:
        if checkpoint.quarantined:
            reasons.setdefault(checkpoint.id, []).append("quarantined: kept for inspection")
        elif checkpoint.damaged:
            reasons.setdefault(checkpoint.id, []).append("damaged: kept for inspection")
        if checkpoint.pinned:
            reasons.setdefault(checkpoint.id, []).append("pinned")
    # Where nothing on the live line is usable, an abandoned checkpoint is the last good one.
    for newest in (line or usable)[-1:]:
        reasons.setdefault(newest.id, []).append("the newest one")
    for verified in ([c for c in line if c.verified] or [c for c in usable if c.verified])[-1:]:
        reasons.setdefault(verified.id, []).append("the last verified one (I6)")
    healthy = healthy_before_suspects(ordered, live)
    if healthy is not None:
        reasons.setdefault(healthy.id, []).append("the last healthy one: newer ones are suspect")
    # Damage to a training is seen some steps after it was done. By then the last few may all have it.
    if safe_before is not None:
        well = [c for c in line if not c.suspect]
        for safe in [c for c in well if c.step < safe_before][-1:]:
            reasons.setdefault(safe.id, []).append(f"surely healthy: from step {safe_before} on that may change")
        for following in [c for c in well if c.step >= safe_before][:1]:
            reasons.setdefault(following.id, []).append("the next one that will be surely healthy")
    return {name: "; ".join(texts) for name, texts in reasons.items()}


def _ruled(
    rules: Sequence[Rule], line: Sequence[Checkpoint], left: Sequence[Checkpoint], now_s: float
) -> dict[CheckpointName, str]:
    reasons: dict[CheckpointName, list[str]] = {}
    for rule in rules:
        counted = in_order([*line, *left]) if rule.spares_abandoned else line
        for name, reason in rule.kept(counted, now_s).items():
            reasons.setdefault(name, []).append(reason)
    return {name: "; ".join(dict.fromkeys(texts)) for name, texts in reasons.items()}


def _over_limit(
    max_bytes: int | None, counted: list[Checkpoint], live: Set[CheckpointName], *, protected: Set[CheckpointName]
) -> set[CheckpointName]:
    if max_bytes is None:
        return set()
    excess = sum(c.size_bytes for c in counted) - max_bytes
    dropped: set[CheckpointName] = set()
    for checkpoint in sorted(counted, key=lambda c: c.id in live):  # stable: abandoned first, then oldest first
        if excess <= 0:
            break
        if checkpoint.id not in protected:
            dropped.add(checkpoint.id)
            excess -= checkpoint.size_bytes
    return dropped


def _unkept(checkpoint: Checkpoint, keep: Keep, live: Set[CheckpointName]) -> str:
    if checkpoint.id not in live:
        return "abandoned: a rollback left it behind"
    return ", ".join(dict.fromkeys(rule.missed() for rule in keep.rules))


@dataclass(frozen=True)
class _All:
    spares_abandoned: ClassVar[bool] = True

    def kept(self, line: Sequence[Checkpoint], now_s: float) -> dict[CheckpointName, str]:  # noqa: ARG002
        return dict.fromkeys((c.id for c in line), "everything is kept")

    def missed(self) -> str:
        return "nothing"


@dataclass(frozen=True)
class _Last:
    spares_abandoned: ClassVar[bool] = False
    count: int

    def kept(self, line: Sequence[Checkpoint], now_s: float) -> dict[CheckpointName, str]:  # noqa: ARG002
        return dict.fromkeys((c.id for c in line[max(0, len(line) - self.count) :]), f"last {self.count}")

    def missed(self) -> str:
        return f"older than the last {self.count}"


@dataclass(frozen=True)
class _Best:
    spares_abandoned: ClassVar[bool] = True  # a good model is a good model, wherever the training went afterwards
    count: int
    by: str
    mode: str

    def kept(self, line: Sequence[Checkpoint], now_s: float) -> dict[CheckpointName, str]:  # noqa: ARG002
        sign = 1 if self.mode == "min" else -1
        if not any(self.by in c.metrics for c in line):
            # A misspelt name must not cost the models it was meant to keep.
            return dict.fromkeys((c.id for c in line), f"{NO_METRIC} {self.by!r}, so no best can be told")
        scored = [c for c in line if not math.isnan(c.metrics.get(self.by, math.nan))]
        scored.reverse()  # and the sort is stable: of equals the newer one counts as better
        ranked = sorted(scored, key=lambda c: sign * c.metrics[self.by])
        return {c.id: f"best {self.count} by {self.by} ({c.metrics[self.by]:.6g})" for c in ranked[: self.count]}

    def missed(self) -> str:
        return f"not among the best {self.count} by {self.by}"


@dataclass(frozen=True)
class _EverySteps:
    spares_abandoned: ClassVar[bool] = False
    steps: int

    def kept(self, line: Sequence[Checkpoint], now_s: float) -> dict[CheckpointName, str]:  # noqa: ARG002
        multiples = _first_at_multiples([(c.id, c.step) for c in line], self.steps)
        return {name: f"every {self.steps} steps (first at or after {at})" for name, at in multiples.items()}

    def missed(self) -> str:
        return f"not the first after a multiple of {self.steps} steps"


@dataclass(frozen=True)
class _EveryEpochs:
    spares_abandoned: ClassVar[bool] = False
    epochs: int

    def kept(self, line: Sequence[Checkpoint], now_s: float) -> dict[CheckpointName, str]:  # noqa: ARG002
        places = [(c.id, c.epoch) for c in line if c.epoch is not None]
        multiples = _first_at_multiples(places, self.epochs)
        return {name: f"every {self.epochs} epochs (first at or after {at})" for name, at in multiples.items()}

    def missed(self) -> str:
        return f"not the first after a multiple of {self.epochs} epochs"


@dataclass(frozen=True)
class _ForDays:
    spares_abandoned: ClassVar[bool] = True
    days: float

    def kept(self, line: Sequence[Checkpoint], now_s: float) -> dict[CheckpointName, str]:
        young = (c.id for c in line if now_s - c.utc_s <= self.days * _DAY_S)
        return dict.fromkeys(young, f"younger than {self.days:g} days")

    def missed(self) -> str:
        return f"older than {self.days:g} days"


_EXAMPLES = {"max_bytes": "50 * 2**30", "every_steps": "10_000"}
_RULES: dict[str, Callable[..., Rule]] = {
    "all": _All,
    "last": _Last,
    "best": _Best,
    "every_steps": _EverySteps,
    "every_epochs": _EveryEpochs,
    "for_days": _ForDays,
}

KEEP_ALL = Keep((_All(),))
"""Nothing is ever removed."""


def _first_at_multiples(places: Sequence[tuple[CheckpointName, int]], interval: int) -> dict[CheckpointName, int]:
    firsts: dict[int, CheckpointName] = {}
    for name, place in places:
        multiple = place // interval * interval
        # Zero is a multiple only for itself, or the first save of every run would stay forever.
        if multiple > 0 or place == 0:
            firsts.setdefault(multiple, name)
    return {name: multiple for multiple, name in firsts.items()}


def _count(name: str, value: object, *, least: int = 0) -> int:
    try:
        number = None if isinstance(value, bool) else operator.index(value)  # type: ignore[arg-type]
    except TypeError:
        number = None
    if number is None or number < least:
        raise UsageError(
            f"keep: {name}={value!r} is not an integer of at least {least}",
            hint=f"{name}={_EXAMPLES.get(name, 3)}, say",
        )
    return number


def _days(value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value) or value < 0:
        raise UsageError(f"keep: for_days={value!r} is not a number of days", hint="give for_days=7, or 0.5")
    return float(value)
