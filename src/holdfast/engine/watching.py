"""The watch: one thread that asks the sensors now and then, off the path of the training.

Nothing that a sensor does reaches the program: one that raises is switched off and said, and so is one that hangs, as
soon as somebody asks for the risk and finds the thread waiting for it. Nobody waits for a lock: what readers see is
replaced whole, so that a child that was forked at any moment can go on.
"""

import logging
import os
import threading
from collections.abc import Callable, Mapping, Sequence

from holdfast.core.countdown import Countdown
from holdfast.engine.sensors.sensor import Sensor
from holdfast.policy.risk import CALM, Reading, bounded, combine

__all__ = ["OnChange", "Watch"]

_log = logging.getLogger("holdfast")

_PERIOD_S = 10.0
_FASTER = 5
_FIRST_S = 1.0
_PATIENCE_S = 5.0
_CLOSE_S = 1.0

OnChange = Callable[[str, Reading], None]
"""Called with the sensor's name when what it concludes changes; from the thread of the watch."""


class Watch:
    """Asks every `period_s` seconds, five times as often while there is a risk. `start` begins it, `close` ends it.

    A sensor whose `is_urgent` is true is always asked that often: what it sees leaves little time.
    """

    def __init__(
        self,
        sensors: Sequence[Sensor],
        on_change: OnChange | None = None,
        *,
        period_s: float = _PERIOD_S,
        patience_s: float = _PATIENCE_S,
    ) -> None:
        self._sensors = list(sensors)
        self._on_change = on_change
        self._period_s = period_s
        self._patience_s = patience_s
        self._pid = os.getpid()
        self._readings: Mapping[str, Reading] = {}
        self._risk = CALM
        self._round: _Round | None = None
        self._closed = False

    @property
    def risk(self) -> float:
        """How many times likelier a failure is than usual, by all sensors together; 1 before the first look."""
        running = self._round
        if running is not None and running.hangs():
            self._replace(running)
        return self._risk

    def readings(self) -> Mapping[str, Reading]:
        """What each sensor said last."""
        return self._readings

    def start(self) -> None:
        """Begin, if it has not: not in a forked child, not after `close`, and not where there is nothing to ask."""
        if self._round is None and not self._closed and self._sensors and os.getpid() == self._pid:
            self._begin(min(_FIRST_S, self._period_s))

    def close(self) -> None:
        """End the thread; one that hangs is left behind, and ends when its sensor answers."""
        if os.getpid() != self._pid:
            return
        self._closed = True
        running = self._round
        if running is not None:
            running.stop.set()
            if running.thread is not threading.current_thread():
                running.thread.join(_CLOSE_S)

    def look(self) -> None:
        """Ask all sensors once, in this thread."""
        self._look(_Round(self._patience_s))

    def _begin(self, first_s: float, trouble: str = "") -> None:
        running = _Round(self._patience_s)
        running.thread = threading.Thread(
            target=self._work, args=(running, first_s, trouble), name="holdfast-watch", daemon=True
        )
        self._round = running
        try:
            running.thread.start()
        except RuntimeError as error:  # no more threads
            _log.warning("no signs of trouble are looked for: %s", error)
            self._closed = True

    def _work(self, running: "_Round", first_s: float, trouble: str) -> None:
        if trouble:
            self._tell_of_trouble(running, trouble)
        wait_s, looks = first_s, 0
        while not running.stop.wait(wait_s):
            self._look(running, urgent_only=self._risk <= CALM and looks % _FASTER > 0)
            wait_s, looks = self._period_s / _FASTER, looks + 1
        if self._round is running:
            for sensor in self._sensors:
                _close_quietly(sensor)

    def _look(self, running: "_Round", *, urgent_only: bool = False) -> None:
        for sensor in list(self._sensors):
            if urgent_only and not getattr(sensor, "is_urgent", False):
                continue
            running.busy_with(sensor.name)
            reading: Reading | None = None
            why = ""
            try:
                reading = sensor.read()
                if not isinstance(reading, Reading):
                    raise TypeError(f"it gave {reading!r}")
                reading = Reading(str(reading.text), bounded(float(reading.risk)), str(reading.concluded))
            except BaseException as error:  # noqa: BLE001  whatever a sensor does, sys.exit() too, must not end it
                reading, why = None, f"{type(error).__name__}: {error}"
            running.busy_with("")
            if running.stop.is_set():
                return  # another thread has taken over, or it is over: this answer came too late
            if reading is None:
                self._switch_off(running, sensor, why)
            else:
                self._note(running, sensor.name, reading)

    def _note(self, running: "_Round", name: str, reading: Reading) -> None:
        before = self._readings.get(name, Reading(""))
        self._readings = {**self._readings, name: reading}
        self._risk = combine(self._readings.values())
        if (before.risk, before.concluded) != (reading.risk, reading.concluded):
            running.busy_with(_TELLING)
            self._tell(name, reading)
            running.busy_with("")

    def _tell(self, name: str, reading: Reading) -> None:
        if self._on_change is None:
            return
        try:
            self._on_change(name, reading)
        except Exception as error:  # noqa: BLE001  a journal that fails must not end the watch
            _log.warning("what the sensor %s sees cannot be told: %s", name, error)

    def _switch_off(self, running: "_Round", sensor: Sensor, why: str) -> None:
        self._sensors = [other for other in self._sensors if other is not sensor]
        _log.warning("the sensor %s is switched off: %s", sensor.name, why)
        self._note(running, sensor.name, Reading(why, CALM, "switched off"))
        _close_quietly(sensor)

    def _replace(self, stuck: "_Round") -> None:
        """Leave the thread that hangs behind, and go on in another one, without what it waits for."""
        if self._closed or os.getpid() != self._pid or not stuck.given_up.acquire(blocking=False):
            return
        stuck.stop.set()
        self._begin(0.0, trouble=stuck.busy)

    def _tell_of_trouble(self, running: "_Round", name: str) -> None:
        if name == _TELLING:
            _log.warning("what sensors see is not told any more: whoever is told does not answer")
            self._on_change = None
            return
        for sensor in self._sensors:
            if sensor.name == name:
                self._sensors = [other for other in self._sensors if other is not sensor]
                _log.warning("the sensor %s is switched off: it does not answer", name)
                self._note(running, name, Reading("no answer", CALM, "switched off"))


_TELLING = "\0telling"


class _Round:
    """One thread, and what it is at."""

    def __init__(self, patience_s: float) -> None:
        self.thread = threading.current_thread()
        self.stop = threading.Event()
        self.given_up = threading.Lock()
        """Taken, and kept, by the one that replaces the thread."""
        self.busy = ""
        """The sensor that is being asked."""
        self._patience_s = patience_s
        self._left: Countdown | None = None

    def busy_with(self, name: str) -> None:
        self._left = Countdown(self._patience_s) if name else None
        self.busy = name

    def hangs(self) -> bool:
        """Whether it has been at the same sensor for too long. The time that the process was stopped does not count."""
        left = self._left
        return left is not None and left.step_s() <= 0 and bool(self.busy)


def _close_quietly(sensor: Sensor) -> None:
    """Let go what a sensor holds; few hold anything."""
    close = getattr(sensor, "close", None)
    if close is not None:
        try:
            close()
        except Exception as error:  # noqa: BLE001  it is not asked any more
            _log.debug("the sensor %s: %s", sensor.name, error)
