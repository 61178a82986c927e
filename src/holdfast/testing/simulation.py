"""A training on a clock that nobody waits for: steps, checkpoints, failures, and a policy that says when to save.

What is drawn and added up are parts of intervals, not steps, so that days of steps of a millisecond take no time.
"""

import math
import random
from bisect import bisect_right
from collections.abc import Iterable
from typing import NamedTuple, Protocol

from holdfast.policy.failures import Lifetime

__all__ = ["Pacing", "Piece", "Policy", "Result", "Scenario", "simulate"]

_GIVE_UP = 10  # times as long as without checkpoints and failures: the job does not get on
_LEAST_OF_MEAN = 0.2  # no luck makes a step faster than that
_MOST_SYMMETRIC = 0.3
_QUEUED_NOISE = 0.3  # of what the kernel says of cores: it is not the same at every write
# How often a program looks at its steps: see `holdfast.engine.pacing`.
_LOOK_S = 0.1
_LOOK_MOST = 1000


class Piece(NamedTuple):
    """A stretch of the training in which nothing changes but by chance."""

    steps: int
    step_s: float
    stall_s: float
    durable_s: float
    slow: float
    """How much longer a step takes while a checkpoint is written: 0.1 is a tenth."""
    queued_s: float | None = None
    """For how long the threads of the training have no core while one is written; None where nobody knows."""

    @property
    def slow_s(self) -> float:
        """What one checkpoint costs through slower steps: those after the stall, until it is durable."""
        return (self.durable_s - self.stall_s) * self.slow / (1 + self.slow)

    @property
    def cost_s(self) -> float:
        """What one checkpoint costs."""
        return self.stall_s + self.slow_s


class Scenario(NamedTuple):
    """Everything that happens to a job, but when it saves."""

    seed: int
    pieces: tuple[Piece, ...]
    overhead: float = 0.035
    lose_at_most_s: float | None = None
    step_noise: float = 0.0
    """Standard deviation of one step, as a fraction."""
    cost_noise: float = 0.0
    """Of what a checkpoint costs and takes; log-normal around its mean."""
    spike_odds: float = 0.0
    """That a checkpoint costs and takes `spike` times as much."""
    spike: float = 1.0
    first: float = 1.0
    """How many times as much the first checkpoint of an attempt costs."""
    update_every: int = 0
    """Every so many-th step takes `update` steps longer: gradient accumulation."""
    update: float = 0.0
    pause_every: int = 0
    """After so many steps the training stands still for `pause_s`: an evaluation."""
    pause_s: float = 0.0
    compile_s: float = 0.0
    """Added to the first step of an attempt."""
    slow_first: int = 0
    """So many first steps take twice as long."""
    others: float = 0.0
    """How much the time without a core differs by chance, because of others: seconds, for a second."""
    mtbf_s: float = math.inf
    restart_s: float = 60.0
    history: tuple[Lifetime, ...] = ()
    """Attempts before this job."""

    @property
    def steps(self) -> int:
        """Of the whole job."""
        return sum(piece.steps for piece in self.pieces)

    def at(self, step: int) -> Piece:
        """The piece that the step is in; the last one after the end."""
        for piece in self.pieces:
            if step < piece.steps:
                return piece
            step -= piece.steps
        return self.pieces[-1]

    def each_s(self, piece: Piece) -> float:
        """What a step takes in the piece, on average, with its share of updates and pauses."""
        updates = self.update / self.update_every if self.update_every else 0.0
        return piece.step_s * (1 + updates) + (self.pause_s / self.pause_every if self.pause_every else 0.0)


class Pacing(Protocol):
    """A policy during one attempt. What it is told is what a program can measure."""

    @property
    def look_steps(self) -> int:
        """After how many steps, at the latest, it wants to be told."""
        ...

    def left(self, steps: int, seconds: float, step_s: float) -> float:
        """How many steps from now the next checkpoint is due: so many steps and seconds after the last one."""
        ...

    def note_steps(self, count: int, seconds: float, *, writing: bool) -> None: ...

    def note_saved(self, stall_s: float) -> None: ...

    def note_durable(self, seconds: float, queued_s: float | None) -> None:
        """And for how long threads of the training had no core, where that is known."""
        ...


class Policy(Protocol):
    """Makes a `Pacing` for each attempt."""

    name: str

    def begin(self, scenario: Scenario, before: Pacing | None, lifetimes: Iterable[Lifetime]) -> Pacing:
        """`before` is that of the attempt before, for what it left in the run."""
        ...


class Result(NamedTuple):
    """What came of it."""

    overhead: float
    """What checkpoints cost, as a fraction of the time that the same steps take without; over all attempts."""
    lost_s: float
    """Work that was done again after failures."""
    failures: int
    efficiency: float
    """The time that the job takes without checkpoints and failures, as a fraction of what it took. A job that has
    taken ten times as long is ended; what it has done by then counts."""
    saved: int
    late: int
    """Checkpoints that were due while the one before was not durable; they waited."""
    interval_s: float | None
    """From checkpoint to checkpoint of the same attempt, on average: by the mean time of steps; None without two."""
    intervals: tuple[tuple[int, int, bool], ...]
    """Of each checkpoint: its step, the steps since the one before, and whether it was the first of its attempt."""
    longest_s: float
    """The most work that was at risk: from the begin of the last durable checkpoint on."""
    dearer: float
    """What chance made of the costs: what the checkpoints cost, as a fraction of what they do on average."""


def simulate(scenario: Scenario, policy: Policy) -> Result:
    """Run the job until its last step is made, or it is clear that it will not be."""
    return _Job(scenario, policy).run()


class _Job:
    def __init__(self, scenario: Scenario, policy: Policy) -> None:
        self._scenario = scenario
        self._policy = policy
        self._chance = random.Random(scenario.seed)  # noqa: S311 - a simulation
        # Of its own, so that all policies meet the same failures.
        self._fate = random.Random(~scenario.seed)  # noqa: S311
        self._kernel = random.Random(scenario.seed + 0.5)  # noqa: S311
        self._ends = []
        at = 0
        for piece in scenario.pieces:
            at += piece.steps
            self._ends.append(at)
        self._steps = at
        self._each_s = [scenario.each_s(piece) for piece in scenario.pieces]
        self._index = 0
        self.piece = scenario.pieces[0]
        """The one that the step is in; the last one after the end."""
        self.step = 0
        self.began_step = 0
        self.wall_s = 0.0
        self.base_s = 0.0
        self.work_s = 0.0
        self.cost_s = 0.0
        self.saved = 0
        self.late = 0
        self.lost_s = 0.0
        self.failures = 0
        self.longest_s = 0.0
        self.intervals: list[tuple[int, int, bool]] = []
        self.apart_s: list[float] = []
        self._drawn_s = 0.0
        self._usual_s = 0.0
        self._fails_s = self._next_failure()

    def run(self) -> Result:
        before: Pacing | None = None
        lifetimes = list(self._scenario.history)
        durable_step = 0
        useful_s = self._without_failures()
        while True:
            began_s = self.wall_s
            pacing = self._policy.begin(self._scenario, before, lifetimes)
            attempt = _Attempt(self, pacing, durable_step)
            if attempt.run() or self.wall_s > _GIVE_UP * useful_s:
                break
            lifetimes.append(Lifetime(self.wall_s - began_s, failed=True))
            self.failures += 1
            self.lost_s += self.wall_s - attempt.durable_wall_s
            durable_step = attempt.durable_step
            self.began_step = durable_step
            self._go_to(durable_step)
            self.wall_s += self._scenario.restart_s
            self._fails_s = self._next_failure()
            before = pacing
        return Result(
            overhead=self.cost_s / self.base_s,
            lost_s=self.lost_s,
            failures=self.failures,
            efficiency=useful_s * self.step / self._steps / self.wall_s,
            saved=self.saved,
            late=self.late,
            interval_s=sum(self.apart_s) / len(self.apart_s) if self.apart_s else None,
            intervals=tuple(self.intervals),
            longest_s=self.longest_s,
            dearer=self._drawn_s / self._usual_s if self._usual_s else 1.0,
        )

    @property
    def over(self) -> bool:
        return self.step >= self._steps

    @property
    def failed(self) -> bool:
        return self.wall_s >= self._fails_s

    def advance(self, count: int, slow_s: float = 0.0) -> tuple[int, float]:
        """Make so many steps, or fewer where something changes before: how many, and what they took.

        `slow_s`: so much longer takes each of them. Like in a program, which looks at its steps often, a pause is in a
        few steps that are told by themselves.
        """
        piece, scenario = self.piece, self._scenario
        count = min(count, self._ends[self._index] - self.step)
        if scenario.pause_every:
            look = max(1, min(_LOOK_MOST, int(_LOOK_S / piece.step_s)))
            pause = scenario.pause_every - self.step % scenario.pause_every
            if count >= pause:
                count = pause if pause <= look else pause - look
        extra_s = count * slow_s
        mean_s = count * piece.step_s
        seconds = mean_s
        if scenario.step_noise:
            seconds = mean_s * self._luck(scenario.step_noise / math.sqrt(count))
        first, last = self.step, self.step + count
        if scenario.update_every:
            updates = last // scenario.update_every - first // scenario.update_every
            seconds += updates * scenario.update * piece.step_s
        if scenario.pause_every:
            seconds += (last // scenario.pause_every - first // scenario.pause_every) * scenario.pause_s
        made = first - self.began_step
        if made < scenario.slow_first:
            seconds += min(count, scenario.slow_first - made) * piece.step_s
        if made == 0:
            seconds += scenario.compile_s
        self.work_s += count * self._each_s[self._index]
        self._go_to(last)
        self.base_s += seconds
        self.wall_s += seconds + extra_s
        self.cost_s += extra_s
        return count, seconds + extra_s

    def _go_to(self, step: int) -> None:
        self.step = step
        if self.began_step < step < self._ends[self._index]:
            return  # forwards, and within the same piece
        self._index = min(bisect_right(self._ends, step), len(self._ends) - 1)
        self.piece = self._scenario.pieces[self._index]

    def _luck(self, noise: float) -> float:
        """A factor of 1 on average. Never negative, so that much noise is not symmetric: a few take very long."""
        if noise <= _MOST_SYMMETRIC:
            return max(_LEAST_OF_MEAN, 1 + self._chance.gauss(0.0, noise))
        sigma2 = math.log1p(noise * noise)
        return math.exp(self._chance.gauss(-sigma2 / 2, math.sqrt(sigma2)))

    def cut_at_failure(self) -> None:
        """The failure came at its own time; what was added up after it did not happen."""
        self.base_s -= self.wall_s - self._fails_s
        self.wall_s = self._fails_s

    def draw(self, *, first: bool) -> tuple[float, float, float, float | None]:
        """What a checkpoint that begins now costs: stall, time to durable, slow-down; and what is said of cores."""
        piece, scenario = self.piece, self._scenario
        factor = 1.0
        if scenario.cost_noise:
            factor *= math.exp(self._chance.gauss(0.0, scenario.cost_noise) - scenario.cost_noise**2 / 2)
        if scenario.spike_odds and self._chance.random() < scenario.spike_odds:
            factor *= scenario.spike
        self._usual_s += piece.cost_s
        self._drawn_s += piece.cost_s * factor
        if first:
            factor *= scenario.first
        queued_s = piece.queued_s
        if queued_s is not None:
            queued_s *= factor * math.exp(self._kernel.gauss(0.0, _QUEUED_NOISE))
            queued_s += self._kernel.gauss(0.0, scenario.others * math.sqrt(piece.durable_s))
        return piece.stall_s * factor, piece.durable_s * factor, piece.slow_s * factor, queued_s

    def _next_failure(self) -> float:
        mtbf_s = self._scenario.mtbf_s
        return math.inf if mtbf_s == math.inf else self.wall_s + self._fate.expovariate(1 / mtbf_s)

    def _without_failures(self) -> float:
        scenario = self._scenario
        steps_s = sum(p.steps * p.step_s for p in scenario.pieces)
        updates = scenario.update / scenario.update_every if scenario.update_every else 0.0
        pauses = self._steps // scenario.pause_every if scenario.pause_every else 0
        slow_first = min(scenario.slow_first, self._steps) * scenario.pieces[0].step_s
        return steps_s * (1 + updates) + pauses * scenario.pause_s + slow_first + scenario.compile_s


class _Attempt:
    def __init__(self, job: _Job, pacing: Pacing, durable_step: int) -> None:
        self._job = job
        self._pacing = pacing
        self.durable_step = durable_step
        self.durable_wall_s = job.wall_s
        self._saved_step = durable_step
        self._saved_wall_s = job.wall_s
        self._saved_work_s: float | None = None
        self._first = True

    def run(self) -> bool:
        """Whether the job came to its end; else it failed."""
        job, pacing = self._job, self._pacing
        while not job.over:
            left = pacing.left(job.step - self._saved_step, job.wall_s - self._saved_wall_s, job.piece.step_s)
            if left > 0:
                self._train(left)
            else:
                self._save()
            if job.failed:
                job.cut_at_failure()
                job.longest_s = max(job.longest_s, job.wall_s - self.durable_wall_s)
                return False
        return True

    def _train(self, left: float) -> None:
        job, pacing = self._job, self._pacing
        done, seconds = job.advance(int(min(left, pacing.look_steps)))
        pacing.note_steps(done, seconds, writing=False)

    def _save(self) -> None:
        job, pacing = self._job, self._pacing
        stall_s, durable_s, slow_s, queued_s = job.draw(first=self._first)
        job.intervals.append((job.step, job.step - self._saved_step, self._first))
        if self._saved_work_s is not None:
            job.apart_s.append(job.work_s - self._saved_work_s)
        self._saved_work_s = job.work_s
        self._first = False
        job.saved += 1
        job.longest_s = max(job.longest_s, job.wall_s - self.durable_wall_s)
        begun_step, begun_wall_s = job.step, job.wall_s
        self._saved_step, self._saved_wall_s = begun_step, begun_wall_s
        job.wall_s += stall_s
        job.cost_s += stall_s
        pacing.note_saved(stall_s)
        piece = job.piece
        # No step is made during the stall, which is part of the time to durable.
        steps = max(1, math.ceil((durable_s - stall_s - slow_s) / piece.step_s))
        left = steps
        while left > 0 and not job.over:
            done, seconds = job.advance(left, slow_s / steps)
            left -= done
            pacing.note_steps(done, seconds, writing=True)
            if job.failed:
                return
        if left > 0:
            return
        pacing.note_durable(durable_s, queued_s)
        job.longest_s = max(job.longest_s, job.wall_s - self.durable_wall_s)
        self.durable_step, self.durable_wall_s = begun_step, begun_wall_s
        if pacing.left(job.step - begun_step, job.wall_s - begun_wall_s, piece.step_s) < 0:
            job.late += 1
