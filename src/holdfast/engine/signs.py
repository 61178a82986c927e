"""Signs of trouble, as a Checkpointer looks for them: of the machine by sensors, of the training by its loss.

Nothing here waits for a storage or a sensor: the watch has a thread of its own, and marks are made by another one.
"""

import logging
import math
import threading
from collections.abc import Mapping
from numbers import Real

from holdfast.core.errors import UsageError
from holdfast.engine.outcome import PendingCheckpoint
from holdfast.engine.sensors.finding import Wanted, check_sensors, find_sensors
from holdfast.engine.sensors.storage import StorageSensor
from holdfast.engine.session import Session
from holdfast.engine.suspicion import mark_suspects
from holdfast.engine.watching import Watch
from holdfast.policy.health import HEALTHY, SHORTLY, Diagnosis, Health
from holdfast.policy.risk import CALM, Reading

__all__ = ["Signs"]

_log = logging.getLogger("holdfast")

_MARKING_S = 5.0


class Signs:
    """One per Checkpointer. UsageError where the options make no sense; `attach` comes before all else."""

    def __init__(self, sensors: Wanted = "auto", health: str | None = None) -> None:
        """`health` is the name of the metric to follow; None for none."""
        if health is not None and (not isinstance(health, str) or not health):
            raise UsageError(f"health is {health!r}, expected the name of a metric, or None", hint='health="loss"')
        names, own = check_sensors(sensors)
        self._sensors = sensors
        self._has_sensors = bool(names or own)
        self._metric = health
        self._session: Session | None = None
        self._watch: Watch | None = None
        self._storage: StorageSensor | None = None
        self._health = Health()
        self._noted_step: int | None = None
        self._is_said = False
        self._lock = threading.Lock()
        self._to_mark: Diagnosis | None = None
        self._is_marking = False
        self._marker: threading.Thread | None = None

    @property
    def follows_loss(self) -> bool:
        """Whether `note_loss` wants to hear of every step."""
        return self._metric is not None

    @property
    def suspect(self) -> str:
        """Why a checkpoint that is made now is suspect; empty where it is not."""
        diagnosis = self._health.diagnosis
        return "" if diagnosis.suspect_from is None else diagnosis.reason

    @property
    def safe_before(self) -> int | None:
        """Checkpoints of earlier steps will not be found suspect; None where nothing is followed, or known yet."""
        return self._health.safe_before if self.follows_loss else None

    def attach(self, session: Session) -> None:
        """The run whose checkpoints are marked, and whose journal is told."""
        self._session = session
        session.suspicion_reach = SHORTLY if self.follows_loss else None

    def risk(self) -> float:
        """How many times likelier than usual a failure is. The first question begins the watch."""
        if not self._has_sensors or self._session is None:
            return CALM
        if self._watch is None:
            found = find_sensors(self._sensors, self._session.store.location, clock=self._session.clock)
            self._storage = found.storage
            self._watch = Watch(found.sensors, self._tell)
            self._watch.start()
        return self._watch.risk

    def readings(self) -> Mapping[str, Reading]:
        """What each sensor said last."""
        return {} if self._watch is None else self._watch.readings()

    def note_loss(self, step: int, metrics: Mapping[str, object], *, fetch: bool) -> None:
        """The metrics of a step. What is on an accelerator is fetched only where that is asked for: it has to wait."""
        value = None if self._metric is None else metrics.get(self._metric)
        if value is None or step == self._noted_step or not (fetch or _is_at_hand(value)):
            return
        item = getattr(value, "item", None)  # of a tensor: no warning about gradients
        try:
            number = float(item() if callable(item) else value)  # type: ignore[arg-type]
        except (TypeError, ValueError, RuntimeError, OverflowError):
            return  # no number; whoever saves it as a metric is told
        self._noted_step = step
        before, now = self._health.diagnosis, self._health.note(step, number)
        if now.suspect_from is not None and before.suspect_from is None:
            _log.warning("%s: checkpoints from step %d on are marked suspect", now.reason, now.suspect_from)
            self._mark_later(now)
        elif now.state == HEALTHY and before.suspect_from is not None:
            _log.warning("the loss is as before again at step %d: checkpoints are not suspect any more", step)

    def note_metrics(self, step: int, metrics: Mapping[str, float]) -> None:
        """Those of a checkpoint. One that is no number and that nobody follows is said, once.

        So is that none of them is the one that is to be followed.
        """
        if self._metric is not None and metrics and self._noted_step is None and not self._is_said:
            self._is_said = True
            _log.warning(
                "health=%r follows a metric that no step has had so far; step %d has %s",
                self._metric,
                step,
                ", ".join(sorted(metrics)),
            )
        odd = None if self._metric is not None or self._is_said else _first_odd(metrics)
        if odd is not None:
            self._is_said = True
            _log.warning(
                "%s is %r at step %d, and is saved all the same; health=%r would keep the last healthy checkpoint",
                odd,
                metrics[odd],
                step,
                odd,
            )

    def note_settled(self, pending: PendingCheckpoint, size_bytes: int = 0) -> None:
        """A checkpoint became durable, or failed. Sizes matter only where they differ from one to the next."""
        if self._storage is not None:
            if not pending.durable:
                self._storage.note_failed()
            elif pending.took_s is not None:
                self._storage.note_durable(pending.took_s, size_bytes)
        diagnosis = self._health.diagnosis
        if pending.durable and diagnosis.suspect_from is not None and pending.step >= diagnosis.suspect_from:
            self._mark_later(diagnosis)  # it was on its way when the loss was seen to fail

    def mark(self) -> None:
        """Have marked what is suspect, and wait for that: before a restore looks for one that is not.

        What was on its way when the loss was seen to fail is durable by now. A restore waits for the storage anyway.
        """
        diagnosis = self._health.diagnosis
        if diagnosis.suspect_from is not None:
            self._mark_later(diagnosis)
        if self._marker is not None:
            self._marker.join()

    def note_restored(self, step: int) -> None:
        """The training goes on from there: what the loss was tells nothing of what it should be."""
        self._health = Health(begins=step)
        self._noted_step = None

    def close(self) -> None:
        """End the threads, when what is to be marked is; before the store is closed."""
        if self._watch is not None:
            self._watch.close()
        diagnosis = self._health.diagnosis
        if diagnosis.suspect_from is not None:
            self._mark_later(diagnosis)
        if self._marker is not None:
            self._marker.join(_MARKING_S)

    def _tell(self, name: str, reading: Reading) -> None:
        assert self._session is not None
        self._session.journal.record(
            "sensed", sensor=name, read=reading.text, risk=reading.risk, concluded=reading.concluded
        )

    def _mark_later(self, diagnosis: Diagnosis) -> None:
        """In a thread: it takes some fsyncs, and a storage that hangs must not take the training with it (I7)."""
        with self._lock:
            self._to_mark = diagnosis
            if self._session is None or (self._is_marking and self._marker is not None and self._marker.is_alive()):
                return
            self._is_marking = True
        try:
            self._marker = threading.Thread(target=self._mark, name="holdfast-marks", daemon=True)
            self._marker.start()
        except RuntimeError as error:  # no more threads
            self._marker = None
            _log.warning("checkpoints cannot be marked suspect: %s", error)

    def _mark(self) -> None:
        while (diagnosis := self._next_to_mark()) is not None:
            if self._session is not None and diagnosis.suspect_from is not None:
                mark_suspects(self._session, from_step=diagnosis.suspect_from, reason=diagnosis.reason)

    def _next_to_mark(self) -> Diagnosis | None:
        """Whoever comes later than the last one knows that nobody marks any more."""
        with self._lock:
            diagnosis, self._to_mark = self._to_mark, None
            self._is_marking = diagnosis is not None
            return diagnosis


def _first_odd(metrics: Mapping[str, float]) -> str | None:
    """The first one that is no number, and may be a loss; the others may have no value at this step."""
    return next((name for name, value in metrics.items() if "loss" in name.lower() and not math.isfinite(value)), None)


def _is_at_hand(value: object) -> bool:
    """Whether it is a number of this process, or an array or tensor in its memory: nobody has to wait for it."""
    if isinstance(value, Real) or type(value).__module__ == "numpy":
        return True
    device = getattr(value, "device", None)
    return getattr(device, "type", device) == "cpu"
