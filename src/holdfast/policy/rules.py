"""The rules of the automatic interval: what each of them wants, which one wins, and why, in words."""

import math
from typing import NamedTuple

from holdfast.policy.auto import Auto
from holdfast.policy.durations import words_of
from holdfast.policy.failures import young_daly
from holdfast.policy.profile import Profile

__all__ = ["AIM", "MOST", "Demand", "Facts", "Plan", "Wish", "demand", "explain"]

AIM = 0.95  # of the overhead that is allowed: room for what is not measured exactly
_DURABLE_ROOM = 1.05
_LOSE_AIM = 0.95  # of lose_at_most: room for a step that takes longer, and for noise
_MOST_STEPS = 1e15
MOST = 1.15  # times the limit: above this, the run as a whole is not let
_UNSEEN = 8  # times what a checkpoint costs: so much may one cost that meets a storage in trouble
_DEBT_PER_SAVED = 8
_DEBT_MOST = 8
_NOTICEABLE = 1.02
_SMALL = 0.05  # of what is said: not worth a word


class Wish(NamedTuple):
    """What one rule wants: at least so many steps ("lose_at_most": at most)."""

    name: str
    steps: int
    text: str


class Plan(NamedTuple):
    """The interval that is in force; None while the first steps are measured."""

    interval_steps: int | None
    won: str
    rules: tuple[Wish, ...]
    why: str
    measured: Profile


class Facts(NamedTuple):
    """What the rules look at."""

    step_s: float
    cost_s: float
    careful_s: float
    """The cost with as much of the slow-down as there may well be."""
    dearest_s: float
    """As much as one may cost, by what was seen."""
    durable_s: float
    mtbf_s: float
    """With what sensors see."""
    lifetime_s: float
    """The same without."""
    spent_s: float
    """On all checkpoints of this attempt until now."""
    spent_most_s: float
    """The same, as much as it can be."""
    credit_s: float
    """What the attempts before this one have left of what they might have spent."""
    saved: int
    saved_base_s: float
    """How long the training had taken without checkpoints, when the last one began."""
    risky: bool
    gap_steps: int
    """So many at least, where it must be seen again what a step takes while nothing is written."""


class Demand(NamedTuple):
    """What each rule wants, in steps and fractions of steps."""

    durable: float
    overhead: float
    failures: float
    lose_at_most: float
    lose_bound: float
    """Which is hard; `lose_at_most` leaves some room below it where it can."""
    survival: float
    """More than the job lives: an interval that is longer, most attempts would not see the end of."""

    @property
    def wanted(self) -> float:
        """By all of them."""
        return max(self.durable, min(self.lose_at_most, self.survival, max(self.overhead, self.failures)))

    @property
    def bound(self) -> float:
        """Which must not be overstepped; infinite where nothing is promised, or the promise cannot be held."""
        return self.lose_bound if self.lose_bound > self.durable else math.inf

    @property
    def won(self) -> str:
        """The name of the rule that decides."""
        wanted = self.wanted
        for name in ("overhead", "failures", "lose_at_most"):
            if getattr(self, name) == wanted:
                return name
        return "durable" if self.durable == wanted else "failures"


def demand(auto: Auto, facts: Facts) -> Demand:
    """All wishes."""
    longest_s = math.inf if auto.lose_at_most_s is None else auto.lose_at_most_s
    failures = young_daly(facts.cost_s, facts.mtbf_s) / facts.step_s
    if auto.at_least_every_steps is not None:
        failures = min(failures, float(auto.at_least_every_steps))
    overhead = _overhead_s(auto.overhead, facts) / facts.step_s
    # What is lost is counted from the begin of the last durable checkpoint, and the next is not durable at once.
    lose_bound = (longest_s - facts.durable_s) / facts.step_s
    lose_at_most = (_LOSE_AIM * longest_s - facts.durable_s) / facts.step_s
    return Demand(
        # Without a gap, a wrong time of a step, and with it a wrong interval, would stay for ever.
        durable=max(facts.gap_steps, _DURABLE_ROOM * facts.durable_s / facts.step_s),
        overhead=overhead,
        failures=failures,
        # The room below the bound is given up before the overhead is.
        lose_at_most=min(lose_bound, max(lose_at_most, overhead)),
        lose_bound=lose_bound,
        survival=facts.lifetime_s / facts.step_s,
    )


def explain(auto: Auto, facts: Facts, wishes: Demand, interval: int, measured: Profile) -> Plan:
    """The same in words."""
    rules = [
        Wish("durable", _up(wishes.durable), _durable_text(facts)),
        Wish("overhead", _up(wishes.overhead), _overhead_text(auto, facts)),
        Wish("failures", _up(wishes.failures), _failures_text(auto, facts)),
    ]
    if auto.lose_at_most_s is not None:
        text = f"no more than {words_of(auto.lose_at_most_s)} lost, the time to durable included"
        rules.append(Wish("lose_at_most", max(1, math.floor(wishes.lose_at_most)), text))
    won = wishes.won
    reason = next((rule.text for rule in rules if rule.name == won), "")
    why = f"every {interval} steps, about {words_of(interval * facts.step_s)}: {won} decides ({reason})"
    conflict = _conflict(auto, facts, wishes, interval)
    return Plan(interval, won, tuple(rules), f"{why}; {conflict}" if conflict else why, measured)


def _overhead_s(limit: float, facts: Facts) -> float:
    """Seconds from the last checkpoint to the next, such that the limit holds from now on, and over the whole run."""
    # The run as a whole: the last checkpoint has been paid for only then.
    hard_s = (facts.spent_most_s + _reserve_s(facts)) / (MOST * limit) - facts.saved_base_s
    if facts.risky:
        # What was saved before may be spent while there is risk.
        return max(0.0, (facts.spent_s + facts.careful_s) / (AIM * limit) - facts.saved_base_s)
    return max(hard_s, (facts.careful_s + _instalment_s(limit, facts)) / (AIM * limit))


def _reserve_s(facts: Facts) -> float:
    """What the next one may cost: as much as the dearest, or so much that has not been seen yet.

    Once, at the begin of a run: what was not spent before, the attempts after it need not save again.
    """
    return max(facts.dearest_s, _UNSEEN * facts.cost_s - facts.credit_s)


def _instalment_s(limit: float, facts: Facts) -> float:
    """What the next checkpoint has to make up for, of what those before it cost more than the limit allows."""
    debt_s = max(0.0, facts.spent_s - limit * facts.saved_base_s)
    return debt_s / min(_DEBT_MOST, max(1.0, facts.saved / _DEBT_PER_SAVED))


def _durable_text(facts: Facts) -> str:
    if facts.gap_steps > _DURABLE_ROOM * facts.durable_s / facts.step_s:
        return "some steps while nothing is written, to see again what one takes"
    return f"durable within {words_of(facts.durable_s)}, even a slow one, before the next"


def _overhead_text(auto: Auto, facts: Facts) -> str:
    """With the figures that the interval comes from: whoever divides them gets it."""
    limit = auto.overhead
    one = f"up to {words_of(facts.careful_s)} a checkpoint"
    allowed = f"within {_percent(AIM)} of the allowed {_percent(limit)}"
    spent = f"{words_of(facts.spent_s)} spent until now and {words_of(facts.careful_s)} for the next"
    if facts.risky:
        return f"{spent}, {allowed}: what was not spent before may be now"
    instalment_s = _instalment_s(limit, facts)
    if _overhead_s(limit, facts) > (facts.careful_s + instalment_s) / (AIM * limit):
        spent = f"up to {words_of(facts.spent_most_s)} spent until now and {words_of(_reserve_s(facts))} for a dear one"
        return f"{spent}, within {_percent(MOST * limit)} of the training's time"
    if instalment_s < _SMALL * facts.careful_s:
        return f"{one}, {allowed}"
    return f"{one} and {words_of(instalment_s)} that earlier ones cost too much, {allowed}"


def _failures_text(auto: Auto, facts: Facts) -> str:
    best = f"least time lost at a failure every {words_of(facts.mtbf_s)}"
    if facts.risky:
        best += f" while there is trouble, else {words_of(facts.lifetime_s)}"
    elif abs(facts.lifetime_s / auto.mtbf_s - 1) <= _SMALL:
        best += ", as is assumed at first"
    else:
        best += f"; at first {words_of(auto.mtbf_s)} is assumed"
    if auto.at_least_every_steps is None:
        return best
    asked = auto.at_least_every_steps
    return f"{best}, but at least {'at every step' if asked == 1 else f'every {asked} steps'} as was asked for"


def _conflict(auto: Auto, facts: Facts, wishes: Demand, interval: int) -> str:
    """Where not everything that was asked for can be had: what is not, and what to do."""
    if auto.lose_at_most_s is not None and wishes.durable > wishes.lose_bound:
        return (
            f"lose_at_most={words_of(auto.lose_at_most_s)} cannot be held: a checkpoint takes up to "
            f"{words_of(facts.durable_s)} to be durable; use a faster storage or a smaller state"
        )
    found = facts.cost_s / (interval * facts.step_s)
    if found <= auto.overhead * _NOTICEABLE or wishes.overhead <= wishes.wanted:
        return ""
    if wishes.survival == wishes.wanted:
        against = f"failures every {words_of(facts.lifetime_s)}: hardly an attempt would live to its first checkpoint"
    else:
        against = f"lose_at_most={words_of(auto.lose_at_most_s or 0.0)}"
    return (
        f"an overhead of {_percent(auto.overhead)} cannot be held against {against}; it will be about "
        f"{_percent(found)}: allow more "
        f'overhead or more loss, or make checkpoints cheaper (capture="overlapped", a core to spare, faster storage)'
    )


def _percent(share: float) -> str:
    percent = 100 * share
    return f"{percent:.3g} %" if percent < 10 else f"{percent:.0f} %"


def _up(steps: float) -> int:
    return max(1, math.ceil(min(steps, _MOST_STEPS) - 1e-9))
