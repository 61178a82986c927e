"""Inside a program that `holdfast prove` watches: says what it sees at every point, and strikes where the plan says.

Active only where HOLDFAST_PROVE names a plan. The program must not be able to tell: nothing draws from a generator,
nothing that it drops stays alive.
"""

import contextlib
import operator
import os
import re
import time
import weakref
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, Literal, NoReturn

from holdfast.core.clock import SystemClock
from holdfast.core.errors import HoldfastError
from holdfast.engine.bystanders import Registered
from holdfast.engine.determinism import determinism
from holdfast.engine.evidence import PARTED, UNGUARDED, Bystander, Point
from holdfast.engine.laying import lay_out_state
from holdfast.engine.outcome import PendingCheckpoint
from holdfast.engine.randomness import current_random
from holdfast.engine.rebinding import Rebinding
from holdfast.engine.saving import Document, save_laid
from holdfast.engine.session import Session, default_workers
from holdfast.engine.traces import Trace, differing, leaf_texts, metric_bits, order_texts, short_digest, versions
from holdfast.engine.variables import look_at_variables
from holdfast.engine.watched_program import Program, find_program
from holdfast.format.encode import Encoded, encode_state
from holdfast.policy.keep import keep
from holdfast.storage.posix import PosixStore

__all__ = ["Witness", "find_witness"]

Encode = Callable[[], Encoded]

_FULL_LOOK_POINTS = 50
_FIRST_LOOKS = 3
_DURABLE_WITHIN_S = 600.0
_SLUG = re.compile(r"[^A-Za-z0-9._-]+")


def find_witness() -> "Witness | None":
    """One for each Checkpointer; None where nobody proves anything.

    The first process that asks tells and strikes. Others that it starts, or forks, only get directories for their runs.
    """
    program = find_program()
    return None if program is None else Witness(program)


class Witness:
    """Of one Checkpointer, which calls it; it holds that one weakly, so as not to keep it alive.

    The calls of a step: note_step, wants_save, saving (where it saves), leave. Those of a save by the program: saving,
    leave. `is_in_step` tells which of both it is.
    """

    sees_every_step = True

    def __init__(self, program: Program) -> None:
        self._program = program
        self._plan = program.plan
        self._striker = program.striker
        self._rebinding = Rebinding()
        self._run = ""
        self._encode: Callable[[], Encode | None] = _nothing
        self._close: Callable[[], Callable[[], None] | None] = _nothing
        self.state: Mapping[str, object] = {}
        self.with_random = True
        self.is_in_step = False
        self.leaves: dict[str, str] = {}
        self._determinism: dict[str, str] = {}
        self._points = 0
        self._is_first = True
        self._problem = ""
        self._left_s = time.monotonic()
        self._step_s = 0.0
        self._save_s = 0.0
        self._last: PendingCheckpoint | None = None

    @property
    def is_active(self) -> bool:
        """Whether this is the process that the plan is for."""
        return self._program.is_active

    def place(self, run: str | os.PathLike[str]) -> str:
        """Where this run goes instead."""
        given = os.path.abspath(os.fspath(run))
        slug = _SLUG.sub("-", os.path.basename(given)).strip("-.")[:40] or "run"
        place = Path(self._plan.directory, "runs", f"{slug}-{short_digest(os.fsencode(given))[:8]}")
        place.parent.mkdir(parents=True, exist_ok=True)
        return str(place)

    def attach(
        self,
        run: str | os.PathLike[str],
        encode: Encode | None = None,
        state: Mapping[str, object] | None = None,
        *,
        close: Callable[[], None] | None = None,
    ) -> None:
        """The run as the program calls it; what gives its state with the random state (a method, which is held weakly;
        called with the lock held); and the objects of the state."""
        self._run = os.fspath(run) if isinstance(os.fspath(run), str) else os.fsdecode(run)
        self._encode = _nothing if encode is None else _weakly(encode)
        self._close = _nothing if close is None else _weakly(close)
        self.state = {} if state is None else state
        if not self.is_active:
            return
        self._program.witnesses.add(self)
        self._rebinding.remember(self.state)
        text = UNGUARDED if self._program.was_unguarded else ""
        self._tell("began", pid=os.getpid(), versions=versions(), text=text)
        self._left_s = time.monotonic()
        self._striker.begin_step(0, self._step_s)

    def note_restored(self, step: int, encode: Encode | None = None) -> None:
        """After a restore. `encode` gives what was restored, where that is not the state (a tree)."""
        if self.is_active:
            self._see("restored", step, None, {}, encode=encode, afresh=True)
            self._left_s = time.monotonic()
            self._striker.begin_step(step, self._step_s)

    def note_nothing(self) -> None:
        """There was nothing to restore."""
        if self.is_active:
            self._tell("nothing")

    def note_step(self, step: int, epoch: int | None, metrics: Mapping[str, object]) -> None:
        """At the end of each step, before anything is saved."""
        if not self.is_active:
            return
        self._step_s = max(time.monotonic() - self._left_s, 1e-4)
        self._striker.end_step(step)
        self.is_in_step = True
        self._see("step", step, epoch, metrics)
        self._striker.strike_at("before save", step)

    def wants_save(self, step: int) -> bool:
        """Whether this step is to be saved, whatever else is said.

        Not where the state cannot be had: a save that the program would not make is not to be its end.
        """
        is_wanted = self.is_active and step in self._plan.save_at
        if is_wanted and self._problem:
            self._tell("unsaved", step=step, text=self._problem)
        return is_wanted and not self._problem

    @contextlib.contextmanager
    def saving(
        self, step: int, epoch: int | None, metrics: Mapping[str, object], encode: Encode | None = None
    ) -> Iterator[None]:
        """Around every save. `encode` gives the state of this save, where that is another (a tree)."""
        if not self.is_active or not hasattr(step, "__index__"):  # the program hears of it when it saves
            yield
            return
        step = operator.index(step)
        if not self.is_in_step:
            self._see("save", step, epoch, metrics, encode=encode)
            self._striker.strike_at("before save", step)
        self._striker.begin_save(step, self._known_save_s())
        began_s = time.monotonic()
        try:
            yield
        except BaseException as error:
            self.is_in_step = False  # a step that raises is not left
            self._tell_unsaved(step, error)
            raise
        finally:
            self._save_s = time.monotonic() - began_s

    def leave(self, step: int, pending: PendingCheckpoint | None) -> None:
        """Before the program goes on."""
        if not self.is_active:
            return
        self.is_in_step = False
        self._last = pending or self._last
        self._striker.end_save(step)
        if pending is not None and step in self._plan.save_at:
            pending.settle(_DURABLE_WITHIN_S)
            self._tell_unsaved(step, pending.error)
        self._striker.strike_at("after save", step)
        if self._plan.end_step is not None and step >= self._plan.end_step:
            self._end(0, f"step {step} was the last that was wanted")
        self._striker.begin_step(step, self._step_s)
        self._left_s = time.monotonic()

    def close_run(self) -> None:
        """Close the Checkpointer, if it is still there."""
        close = self._close()
        if close is not None:
            close()

    def _tell_unsaved(self, step: int, error: BaseException | None) -> None:
        if error is not None and step in self._plan.save_at:
            said = error.message if isinstance(error, HoldfastError) else repr(error)
            self._tell("unsaved", step=step, text=said)

    def _see(
        self,
        kind: Literal["restored", "step", "save"],
        step: int,
        epoch: int | None,
        metrics: Mapping[str, object],
        *,
        encode: Encode | None = None,
        afresh: bool = False,
    ) -> None:
        """Say what there is; compare it; write the state down where the plan says."""
        encoded, problem = self._encoded(encode)
        self._problem = problem
        leaves = {} if encoded is None else leaf_texts(encoded) | order_texts(encoded)
        if problem:  # there is no state, which is not the same as one that is empty
            leaves.pop("", None)
        is_first, self._is_first = self._is_first, False
        new = {path: text for path, text in leaves.items() if self.leaves.get(path) != text}
        gone = tuple(path for path in self.leaves if path not in leaves)
        self.leaves = leaves
        bystanders = self._look(afresh=afresh or _is_worth_a_look(self._points))
        self._points = 1 if afresh else self._points + 1
        point = self._tell(
            kind,
            step=step,
            epoch=epoch,
            metrics=metric_bits(metrics),
            leaves=new,
            gone=gone,
            whole=is_first,
            bystanders=bystanders,
            text=problem,
        )
        self._compare(point, encoded)
        if kind != "restored" and step == self._plan.dump_at:
            self._dump(encoded, step)
            self._end(0, f"the state of step {step} was written down")

    def _encoded(self, encode: Encode | None) -> tuple[Encoded | None, str]:
        """The state; where it cannot be had, the random state alone, and why."""
        encode = encode or self._encode()
        problem = "the state is not known"
        try:
            if encode is not None:
                encoded = encode()
                self.with_random = encoded.random is not None
                return encoded, ""
        except Exception as error:  # noqa: BLE001  # whatever it is, the program hears of it when it saves
            said = error.message if isinstance(error, HoldfastError) else repr(error)
            problem = f"the state is not known: {said}"
        return encode_state({}, random=current_random()) if self.with_random else None, problem

    def _look(self, *, afresh: bool) -> tuple[Bystander, ...]:
        witnesses = list(self._program.witnesses)
        registered = [Registered(witness.state, witness.leaves) for witness in witnesses]
        with_random = any(witness.with_random for witness in witnesses)
        found = self._program.bystanders.look(registered, afresh=afresh, with_random=with_random)
        return (*found, *look_at_variables(registered), *self._rebinding.look(self.state))

    def _compare(self, point: Point, encoded: Encoded | None) -> None:
        reference = self._program.reference
        known = [] if reference is None else reference.at(point)
        found = [self._differences(point, *one) for one in known]
        if reference is not None and found and all(found) and point.kind != "restored":
            found = [self._differences(point, *one) for one in reference.anywhere(point)]
        if not found or not all(found):
            return
        fewest: list[str] = min(found, key=len)
        self._tell("differs", step=point.step, epoch=point.epoch, text="\n".join(fewest))
        self._dump(encoded, point.step)
        self._end(PARTED, f"the program differs from the undisturbed one at step {point.step}")

    def _differences(self, point: Point, known: Point, known_leaves: dict[str, str]) -> list[str]:
        leaves = self.leaves
        if point.text or known.text:  # only the random state is known
            common = known_leaves.keys() & leaves.keys()
            known_leaves, leaves = ({path: side[path] for path in common} for side in (known_leaves, leaves))
        paths = differing(known_leaves, leaves, self._plan.ignored)
        if point.kind != "restored":
            paths += [f"metric {name}" for name in differing(known.metrics, point.metrics)]
            paths += ["epoch"] if known.epoch != point.epoch else []
        return [path for path in paths if path not in self._plan.ignored]

    def _dump(self, encoded: Encoded | None, step: int) -> None:
        if encoded is None or not self._plan.dump:
            return
        store = PosixStore(self._plan.dump, create=True)
        session = Session(store, SystemClock(), takeover=False, fresh=True, workers=default_workers())
        try:
            document = Document(step, None, {}, "", (), {}, {})
            save_laid(session, lay_out_state(encoded), document, keep(last=1))
        finally:
            session.close()

    def _end(self, status: int, why: str) -> NoReturn:
        self._program.end(status, why, lambda said: self._tell("ended", text=said))

    def _tell(self, kind: Any, **what: Any) -> Point:
        switches = determinism()
        point = Point(
            kind=kind,
            run=self._run,
            start=self._plan.start,
            at_s=self._trace.at_s(),
            determinism=switches if switches != self._determinism else {},
            **what,
        )
        self._determinism = switches
        self._trace.write(point)
        return point

    @property
    def _trace(self) -> Trace:
        assert self._program.trace is not None
        return self._program.trace

    def _known_save_s(self) -> float:
        took_s = None if self._last is None else self._last.took_s
        return self._save_s if took_s is None else took_s


def _nothing() -> None:
    return None


def _weakly(function: Callable[[], Any]) -> Callable[[], Any]:
    """A reference that does not keep the object of a method alive; a plain function is kept."""
    return weakref.WeakMethod(function) if hasattr(function, "__self__") else lambda: function


def _is_worth_a_look(points: int) -> bool:
    """Early on, what begins alike is soon seen to be two things."""
    return points < _FIRST_LOOKS or points % _FULL_LOOK_POINTS == 0
