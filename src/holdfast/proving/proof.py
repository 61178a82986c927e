"""The proof itself: undisturbed, undisturbed again, interrupted; and once more where the interrupted run parts."""

import errno
import os
import socket
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import NamedTuple

from holdfast.engine.evidence import PARTED, UNGUARDED
from holdfast.format.paths import RANDOM_ROOT
from holdfast.policy.durations import words_of
from holdfast.proving.beside import beside_the_state, other_arrays, unsteady_bystanders
from holdfast.proving.cause import judge_beside, judge_resumed, restore_not_called
from holdfast.proving.comparing import Change, Parting, first_parting, unsteady
from holdfast.proving.measuring import describe_differences
from holdfast.proving.omissions import Key, first_omission, left_out, work_keys
from holdfast.proving.outcome import (
    Broken,
    add_rebound,
    describe_start,
    is_ahead,
    judge_end,
    outcome_of,
    reached_step,
    saved_by,
    seen_by_the_program,
    started_over,
    was_interrupted,
    went_on,
)
from holdfast.proving.planning import Leg, plan_legs
from holdfast.proving.reading import Course, Trace, course_of
from holdfast.proving.rebinding import find_rebound
from holdfast.proving.running import Case, OnStep, Start, Workspace
from holdfast.proving.steadiness import Steadiness, judge_undisturbed, judge_unrepeatable
from holdfast.proving.undisturbed import REFERENCE_SHARE, Cost, check_reference, cost_of, failed, first_part
from holdfast.proving.verdict import DIFFERS, IDENTICAL, UNFINISHED, CannotProveError, Started, Verdict

__all__ = ["Wishes", "prove"]

_SLOW_FACTOR = 5.0
_SLOW_S = 60.0
_SHOWN_DIFFERENCES = 8
_FULL = os.strerror(errno.ENOSPC)

Progress = Callable[[str, int | None], AbstractContextManager[OnStep]]
"""Begins a line of the progress, with its title and the step it goes to; what it gives is told the steps."""


class Wishes(NamedTuple):
    """What is to be proven, and within which limits."""

    command: tuple[str, ...]
    steps: int | None
    time_limit_s: float
    interruptions: int
    seed: int


class _OutOfTimeError(Exception):
    """The time limit of the whole proof."""


def prove(wishes: Wishes, workspace: Workspace, progress: Progress) -> Verdict:
    """Run the program as often as it takes, and say whether it resumes exactly.

    CannotProveError where the program gives nothing to compare.
    """
    return _Proof(wishes, workspace, progress).run()


class _Proof:
    def __init__(self, wishes: Wishes, workspace: Workspace, progress: Progress) -> None:
        self._wishes = wishes
        self._workspace = workspace
        self._progress = progress
        self._began_s = time.monotonic()
        self._starts: list[Started] = []
        self._remarks: list[str] = []
        self._end_step = wishes.steps
        self._usual_s = 0.0
        self._cost = Cost(0.0, 0.0, ())
        self._resumed: list[Trace] = []
        self._points = 0
        self._made = 0
        self._unseen: list[str] = []
        self._optional: set[Key] = set()
        """What the undisturbed program does not do every time."""
        self._is_cut = wishes.steps is not None
        """Whether the program would go on behind the last step that was looked at."""

    def run(self) -> Verdict:
        reference, course = self._undisturbed()
        legs = plan_legs(course, interruptions=self._wishes.interruptions, seed=self._wishes.seed)
        rebound = find_rebound(reference.trace)
        steadiness = Steadiness()
        shaky: set[str] = set()
        first: Parting | None = None
        broken: Broken | None = None
        answer = IDENTICAL
        try:
            again = self._undisturbed_again(reference.trace, course)
            steadiness, first = self._judge_undisturbed(reference.trace, again)
            shaky = unsteady_bystanders(reference.trace, again.trace) | {one.key for one in rebound}
            if steadiness.is_serious:
                assert first is not None
                first = first._replace(leaves=_without(first.leaves, steadiness.ignored))
                dumps = self._two_dumps(first)
                arrays = [item for item in describe_differences(first, dumps) if item.elements is not None]
                apart = max((item.max_rel for item in arrays if item.max_rel is not None), default=None)
                cause = judge_unrepeatable(reference.trace, again.trace, first, apart)
                broken = Broken((*(one.cause for one in rebound), cause), first, first.step, is_undisturbed=True)
                return self._verdict(reference, course, legs, DIFFERS, broken, steadiness, dumps)
            self._optional = work_keys(reference.trace) - work_keys(again.trace)
            broken = self._interrupted(reference, course, legs, steadiness, shaky)
        except _OutOfTimeError:
            answer = UNFINISHED
            limit = words_of(self._wishes.time_limit_s)
            self._remarks.append(
                f"the time limit of {limit} was reached; --time-limit gives more, --steps asks for less"
            )
            if self._usual_s:
                self._remarks.append(self._wanted(is_cut=reference.status is None))
        if answer == IDENTICAL and broken is None:
            answer = self._judge_made(reference.trace)
            if self._missing(reference, legs):
                answer = UNFINISHED  # a proof of less than was asked for is none that a test should pass by
        if rebound:
            broken = add_rebound(broken, rebound)
        if self._unseen:
            reason = self._workspace.shown(self._unseen[0].split("\n  hint:")[0].replace("\n", " "))
            self._remarks.append(
                f"at {len(self._unseen)} of {self._points} points only metrics and generators were compared: {reason}"
            )
            if answer == IDENTICAL and len(self._unseen) >= self._points:
                answer = UNFINISHED
        if broken is None and steadiness.causes and first is not None:
            # Nothing but this differs; the interrupted runs were compared without it.
            leaves = {path: change for path, change in first.leaves.items() if not path.startswith(RANDOM_ROOT)}
            broken = Broken((), first._replace(leaves=leaves, metrics={}), first.step, is_undisturbed=True)
        if broken is not None:
            answer = DIFFERS
        if answer == IDENTICAL:
            self._remarks += beside_the_state(reference.trace)
            self._remarks += other_arrays(reference.trace, self._resumed, shaky)
        return self._verdict(reference, course, legs, answer, broken, steadiness, self._dumps(broken))

    # The cases

    def _undisturbed(self) -> tuple[Start, Course]:
        limit_s = self._wishes.time_limit_s * REFERENCE_SHARE
        with self._workspace.case("undisturbed") as case, self._progress("undisturbed", self._end_step) as on_step:
            start = case.start(limit_s=limit_s, on_step=on_step, end_step=self._end_step)
        course = course_of(start.trace)
        check_reference(start, course, limit_s, self._workspace)
        assert course is not None
        self._cost = cost_of(start, course)
        if start.status is None:
            wishes = self._wishes
            last = self._cost.affordable_step(limit_s=wishes.time_limit_s, interruptions=wishes.interruptions)
            course = first_part(course, last)
            self._end_step, self._is_cut = course.steps[-1], True
            self._remarks.append(
                f"the program did not end within {words_of(limit_s)}: proven is what it did until step {self._end_step}"
            )
            if len(course.steps) <= wishes.interruptions:
                self._remarks.append(self._wanted(is_cut=True))
        elif self._end_step is not None and course.steps[-1] < self._end_step:
            self._remarks.append(f"the program ended after step {course.steps[-1]}, before step {self._end_step}")
            self._is_cut = False
        refusals = dict.fromkeys(map(self._workspace.shown, start.trace.refusals))
        self._remarks += [f"a write was refused: {text}" for text in refusals]
        if any(point.kind == "began" and point.text == UNGUARDED for point in start.trace.points):
            self._remarks.append(UNGUARDED)
        self._usual_s = start.took_s
        self._note("undisturbed", 1, None, start, "cut off" if start.status is None else "ended")
        return start, course

    def _undisturbed_again(self, known: Trace, course: Course) -> Start:
        with self._workspace.case("again") as case, self._progress("undisturbed again", course.steps[-1]) as on_step:
            start = self._start(case, on_step, end_step=self._end_step)
        if start.status != 0:
            raise failed("the program fails when it is run a second time", start)
        new = [run for run in start.trace.runs if run not in known.runs]
        if new:
            raise CannotProveError(
                f"a run is called {known.runs[-1]}, and {new[0]} when the program is run again: it is never resumed",
                hint="give it the same name every time, without a process number, a time or a random id",
            )
        reached = reached_step(start.trace, course.run) or 0
        if reached < course.steps[-1]:
            raise failed(
                f"the program ends after step {course.steps[-1]}, and after step {reached} when it is run again",
                start,
                hint="let it make the same number of steps every time, or look at fewer: --steps",
            )
        return start

    def _judge_undisturbed(self, reference: Trace, start: Start) -> tuple[Steadiness, Parting | None]:
        again = start.trace
        first = first_parting(reference, again)
        if first is not None and first.beyond and self._is_cut:
            first = None
        steadiness = judge_undisturbed(unsteady(reference, again), first)
        if steadiness.ignored_metrics:
            names = ", ".join(steadiness.ignored_metrics)
            self._remarks.append(f"logged, but different in every run, and not compared: {names}")
        self._remarks += steadiness.remarks
        outcome = "differs" if steadiness.is_serious else "equal, but for clocks" if steadiness.causes else "equal"
        self._note("undisturbed again", 1, None, start, outcome)
        self._points += len(again.work())
        self._unseen += again.unseen
        return steadiness, first

    def _interrupted(
        self, reference: Start, course: Course, legs: Sequence[Leg], steadiness: Steadiness, shaky: set[str]
    ) -> Broken | None:
        """One chain of starts, each of which goes on from where the one before was interrupted.

        A program that goes on after SIGTERM, or to which a signal came late, may be further than where the next is to
        come; what is still to be tried is then tried in a new chain.
        """
        place, chain = 0, 0
        survived: list[str] = []
        late: list[str] = []
        while place < len(legs):
            chain += 1
            with self._workspace.case(f"interrupted-{chain}") as case:
                saved, number = 0, 0
                while place < len(legs):
                    leg = legs[place]
                    place += 1
                    number += 1
                    title = f"interrupted {place} of {len(legs) - 1}" if leg.interruption else "to the end"
                    with self._progress(title, course.steps[-1]) as on_step:
                        start = self._start(
                            case,
                            on_step,
                            end_step=self._end_step,
                            save_at=leg.save_at,
                            interruption=leg.interruption,
                            reference=reference.trace_path,
                            ignored=(*steadiness.ignored, *(f"metric {n}" for n in steadiness.ignored_metrics)),
                        )
                    broken = self._judge(reference, course, leg, start, number, saved, steadiness, shaky)
                    self._note("interrupted", place, leg, start, outcome_of(leg, start, course, broken))
                    if broken is not None:
                        return broken
                    self._resumed.append(start.trace)
                    if leg.interruption is not None:
                        is_made = was_interrupted(start, course)
                        self._made += is_made
                        if not is_made:
                            (survived if start.trace.was_struck else late).append(str(leg.interruption.step))
                    self._points += len(
                        [point for point in start.trace.points if point.kind in ("restored", "step", "save")]
                    )
                    self._unseen += start.trace.unseen
                    saved = max(saved, saved_by(leg, start.trace, course.run))
                    if not is_ahead(legs[place:], reached_step(start.trace, course.run)):
                        break
        if survived:
            steps = ", ".join(survived)
            self._remarks.append(f"the program went on after SIGTERM, so this was no interruption: at step {steps}")
        if late:
            steps = ", ".join(late)
            self._remarks.append(f"the program had ended before the signal came, which was meant for step {steps}")
        return None

    def _missing(self, reference: Start, legs: Sequence[Leg]) -> int:
        """How many interruptions found no step of their own, because the time was not enough to come to that many."""
        return self._wishes.interruptions - (len(legs) - 1) if reference.status is None else 0

    def _judge_made(self, reference: Trace) -> str:
        """Where nothing parts: whether there was anything that could have."""
        if not self._made:
            self._remarks.append("no interruption was made, so nothing is proven")
        elif not any(went_on(reference, trace) for trace in self._resumed):
            self._remarks.append("no step that was made after a restore could be compared, so nothing is proven")
        else:
            return IDENTICAL
        return UNFINISHED

    def _judge(
        self,
        reference: Start,
        course: Course,
        leg: Leg,
        start: Start,
        number: int,
        saved: int,
        steadiness: Steadiness,
        shaky: set[str],
    ) -> Broken | None:
        if start.status not in (0, None, PARTED) and any(_FULL in line for line in start.tail):
            raise failed("the disk became full during the proof", start, hint="make room, or choose a place: --dir")
        parting = first_parting(
            reference.trace,
            start.trace,
            ignored=steadiness.ignored,
            ignored_metrics=steadiness.ignored_metrics,
        )
        if parting is not None and parting.beyond and self._is_cut:
            parting = None
        if parting is not None:
            causes = judge_resumed(reference.trace, start.trace, parting, unsteady_bystanders=shaky)
            return Broken(causes, parting, parting.step, start.dump)
        if start.status == PARTED:
            return seen_by_the_program(start)
        first_step = started_over(start.trace, course.run, saved)
        if first_step is not None:
            asked = any(point.kind == "nothing" and point.run == course.run for point in start.trace.points)
            return Broken((restore_not_called(first_step, saved, number=number, asked=asked),), step=first_step)
        broken = judge_end(course, leg, start, number, usual_s=self._usual_s)
        if broken is not None:
            return broken
        missing = first_omission(
            reference.trace,
            start.trace,
            optional=self._optional,
            to_the_end=not self._is_cut and start.status == 0 and leg.interruption is None,
        )
        if missing:
            return Broken((left_out(missing, number=number),), step=missing[0].step)
        beside = judge_beside(reference.trace, start.trace, unsteady_bystanders=shaky)
        return None if beside is None else Broken(beside[1], step=beside[0])

    # How far apart

    def _dumps(self, broken: Broken | None) -> tuple[str, str] | None:
        """The undisturbed program once more, up to where the other has parted."""
        if broken is None or broken.parting is None or not broken.parting.leaves or not broken.dump:
            return None
        before = self._dump("measured", broken.parting.step)
        return None if before is None else (before, broken.dump)

    def _two_dumps(self, first: Parting) -> tuple[str, str] | None:
        if not first.leaves:
            return None
        before = self._dump("measured", first.step)
        after = None if before is None else self._dump("measured-again", first.step)
        return None if before is None or after is None else (before, after)

    def _dump(self, name: str, step: int) -> str | None:
        try:
            with self._workspace.case(name) as case, self._progress("measuring the difference", step) as on_step:
                return self._start(case, on_step, end_step=step, dump_at=step).dump
        except _OutOfTimeError:
            return None  # that they differ is known; by how much can be left out

    # What they share

    def _start(self, case: Case, on_step: OnStep, **plan: object) -> Start:
        left_s = self._wishes.time_limit_s - (time.monotonic() - self._began_s)
        limit_s = min(left_s, _SLOW_S + _SLOW_FACTOR * self._usual_s)
        if left_s <= 0:
            raise _OutOfTimeError
        start = case.start(limit_s=limit_s, on_step=on_step, **plan)  # type: ignore[arg-type]
        if start.status is None and limit_s == left_s:
            raise _OutOfTimeError
        return start

    def _wanted(self, *, is_cut: bool) -> str:
        return self._cost.wanted_words(interruptions=self._wishes.interruptions, is_cut=is_cut)

    def _note(self, case: str, number: int, leg: Leg | None, start: Start, outcome: str) -> None:
        self._starts.append(describe_start(case, number, leg, start.trace, start.status, start.took_s, outcome))

    def _verdict(
        self,
        reference: Start,
        course: Course,
        legs: Sequence[Leg],
        answer: str,
        broken: Broken | None,
        steadiness: Steadiness,
        dumps: tuple[str, str] | None,
    ) -> Verdict:
        parting = None if broken is None else broken.parting
        differences = () if parting is None else describe_differences(parting, dumps, clocks=steadiness.ignored)
        count = 0 if parting is None else len(parting.leaves) + len(parting.metrics)
        causes = (*(() if broken is None else broken.causes), *(() if steadiness.is_serious else steadiness.causes))
        first = reference.trace.work()[0]
        return Verdict(
            answer=answer,
            command=self._wishes.command,
            runs=tuple(dict.fromkeys(map(self._workspace.shown, reference.trace.runs))),
            first_step=course.steps[0],
            last_step=course.steps[-1],
            interruptions=self._made,
            wanted=len(legs) - 1 + self._missing(reference, legs),
            seed=self._wishes.seed,
            took_s=round(time.monotonic() - self._began_s, 3),
            utc_s=time.time(),
            points=self._points,
            leaves=len(first.leaves),
            unseen=len(self._unseen),
            starts=tuple(self._starts),
            step=None if broken is None else broken.step,
            at="" if parting is None else parting.kind,
            undisturbed=broken is not None and broken.is_undisturbed,
            differences=differences[:_SHOWN_DIFFERENCES],
            more_differences=max(0, count - _SHOWN_DIFFERENCES),
            causes=causes,
            remarks=tuple(self._remarks),
            tail=() if broken is None else broken.tail,
            leaf="" if broken is None else broken.path,
            host=socket.gethostname(),
            versions=tuple(reference.trace.versions.items()),
        )


def _without(leaves: dict[str, Change], ignored: Sequence[str]) -> dict[str, Change]:
    return {path: change for path, change in leaves.items() if path not in ignored}
