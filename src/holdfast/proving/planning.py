"""Where to interrupt: the nasty moments always, the rest at random, and a checkpoint before each of them."""

import random
from collections.abc import Sequence
from typing import NamedTuple

from holdfast.engine.evidence import Interruption, Moments
from holdfast.proving.reading import Course

__all__ = ["Leg", "plan_legs"]

_SIGNALS = ("SIGKILL", "SIGTERM")
_MOMENTS: tuple[Moments, ...] = ("before save", "in save", "after save", "in step")


class Leg(NamedTuple):
    """One start of the interrupted program."""

    interruption: Interruption | None
    """None for the last one, which runs to the end."""
    save_at: tuple[int, ...]
    why: str
    """What is nasty about it."""


class _Wanted(NamedTuple):
    step: int
    when: Moments
    why: str
    signal: str = ""


def plan_legs(course: Course, *, interruptions: int, seed: int) -> list[Leg]:
    """The starts, in order: as many interruptions as wanted, at most one a step, and one start that is left alone.

    Each interruption is at a later step than the one before, and behind a checkpoint of its own, so that every start
    goes on from another place.
    """
    chance = random.Random(seed)  # noqa: S311  to be repeated, not to be secret
    chosen: dict[int, _Wanted] = {}
    for wanted in _nasty(course)[:interruptions]:
        step = _nearest_free(wanted.step, course.steps, chosen)
        if step is not None:
            why = wanted.why if step == wanted.step else _where(step, course.steps)
            chosen[step] = wanted._replace(step=step, why=why)
    free = [step for step in course.steps if step not in chosen]
    for step in chance.sample(free, k=max(0, min(interruptions - len(chosen), len(free)))):
        chosen[step] = _Wanted(step, chance.choice(_MOMENTS), "at random")
    legs, before = [], 0
    for number, step in enumerate(sorted(chosen)):
        wanted = chosen[step]
        if wanted.when == "in step" and step == course.steps[-1]:
            wanted = wanted._replace(when="after save")  # there may be none behind it
        # Who is only asked to end has come to the end by himself at the last step.
        signal = "SIGKILL" if step == course.steps[-1] else wanted.signal or _SIGNALS[number % 2]
        share = round(chance.uniform(0.1, 0.9), 2)
        save_at = _checkpoints(wanted, before, course.steps, chance)
        legs.append(Leg(Interruption(signal, step, wanted.when, share), save_at, wanted.why))
        before = step
    return [*legs, Leg(None, (), "to the end")]


def _nasty(course: Course) -> list[_Wanted]:
    """The most telling first, for those who want few."""
    steps = course.steps
    middle = _middle_of_an_epoch(course)
    where = "in the middle of an epoch" if middle is not None else "in the middle"
    # A kill while a checkpoint is written, and an order to end that many programs answer to with a checkpoint.
    return [
        _Wanted(steps[len(steps) // 2] if middle is None else middle, "in step", where, "SIGTERM"),
        _Wanted(steps[len(steps) // 4], "in save", "in the middle of a save", "SIGKILL"),
        _Wanted(steps[0], "after save", "at the first step", "SIGKILL"),
        _Wanted(steps[-1], "after save", "at the last step"),
    ]


def _middle_of_an_epoch(course: Course) -> int | None:
    """A step behind and before others of its epoch, near the middle of the whole."""
    epochs = course.epochs
    inside = [
        index
        for index in range(1, len(epochs) - 1)
        if epochs[index] is not None and epochs[index - 1] == epochs[index] == epochs[index + 1]
    ]
    if not inside or len(set(epochs)) == 1:
        return None
    return course.steps[min(inside, key=lambda index: abs(index - len(epochs) // 2))]


def _where(step: int, steps: Sequence[int]) -> str:
    """In words, of one that is not where it was wanted."""
    return "at the first step" if step == steps[0] else "at the last step" if step == steps[-1] else "in the middle"


def _nearest_free(step: int, steps: Sequence[int], taken: dict[int, _Wanted]) -> int | None:
    free = [other for other in steps if other not in taken]
    return min(free, key=lambda other: abs(other - step)) if free else None


def _checkpoints(wanted: _Wanted, before: int, steps: Sequence[int], chance: random.Random) -> tuple[int, ...]:
    """Where to make checkpoints: one that is there when the interruption comes, and the one that it hits."""
    earlier = [step for step in steps if before < step < wanted.step]
    if wanted.when in ("after save", "in step") and (wanted.why != "at random" or not earlier):
        return (wanted.step,)
    behind = (chance.choice(earlier),) if earlier else ()
    # What is interrupted before it is saved is to be saved, or there would be nothing to interrupt.
    return behind if wanted.when == "in step" else (*behind, wanted.step)
