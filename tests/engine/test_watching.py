"""The watch: one thread that asks the sensors, and that nothing they do can hurt."""

import os
import threading
from collections.abc import Callable, Iterator

import pytest

from holdfast.engine.watching import Watch
from holdfast.policy.risk import CALM, SERIOUS, SLIGHT, Reading

_TIMEOUT_S = 30.0


class Sensor:
    """Says what it was told to say; can be made to raise, and to hang until it is let go."""

    def __init__(self, name: str, *readings: Reading | Exception) -> None:
        self.name = name
        self.is_urgent = False
        self.readings = list(readings) or [Reading("nothing")]
        self.asked = 0
        self.free = threading.Event()
        self.free.set()
        self.closed = threading.Event()

    def read(self) -> Reading:
        self.free.wait(_TIMEOUT_S)
        found = self.readings[min(self.asked, len(self.readings) - 1)]
        self.asked += 1
        if isinstance(found, BaseException):
            raise found
        return found

    def close(self) -> None:
        self.closed.set()


class Told:
    """What the watch told, and a way to wait for it."""

    def __init__(self) -> None:
        self.heard: list[tuple[str, Reading]] = []
        self._came = threading.Condition()

    def __call__(self, name: str, reading: Reading) -> None:
        with self._came:
            self.heard.append((name, reading))
            self._came.notify_all()

    def wait_for(self, wanted: Callable[[], bool], *, ask: Callable[[], object] = bool) -> None:
        for _ in range(int(_TIMEOUT_S / 0.01)):
            ask()
            with self._came:
                if self._came.wait_for(wanted, 0.01):
                    return
        raise AssertionError(f"not heard: {self.heard}")


TROUBLE = Reading("5 errors", SERIOUS, "errors")


@pytest.fixture
def watches() -> Iterator[list[Watch]]:
    made: list[Watch] = []
    yield made
    for watch in made:
        watch.close()


def test_it_tells_what_all_say_together() -> None:
    watch = Watch([Sensor("a", TROUBLE), Sensor("b", Reading("hot", SLIGHT, "hot")), Sensor("c")])
    assert (watch.risk, dict(watch.readings())) == (CALM, {})

    watch.look()

    assert watch.risk == SERIOUS + SLIGHT - 1
    assert watch.readings()["a"] == TROUBLE
    assert watch.readings()["c"] == Reading("nothing")


def test_only_changes_of_the_conclusion_are_told() -> None:
    told = Told()
    calm, more = Reading("0 errors"), TROUBLE._replace(text="6 errors")
    watch = Watch([Sensor("a", calm, calm, TROUBLE, more, calm)], told)

    for _ in range(5):
        watch.look()

    assert told.heard == [("a", TROUBLE), ("a", calm)]


def test_the_thread_asks_again_and_again_and_ends_with_close(watches: list[Watch]) -> None:
    told, sensor = Told(), Sensor("a", Reading("0"), TROUBLE, Reading("0"), TROUBLE)
    watch = Watch([sensor], told, period_s=0.001)
    watches.append(watch)

    watch.start()
    watch.start()
    told.wait_for(lambda: len(told.heard) >= 3)
    assert [thread.name for thread in threading.enumerate()].count("holdfast-watch") == 1
    watch.close()

    assert "holdfast-watch" not in [thread.name for thread in threading.enumerate()]
    assert sensor.closed.is_set()
    watch.start()
    assert "holdfast-watch" not in [thread.name for thread in threading.enumerate()]


def test_without_start_and_without_sensors_there_is_no_thread(watches: list[Watch]) -> None:
    watches += [Watch([Sensor("a")]), Watch([])]

    watches[1].start()

    assert watches[0].risk == watches[1].risk == CALM
    assert "holdfast-watch" not in [thread.name for thread in threading.enumerate()]


@pytest.mark.parametrize(
    "fault",
    [
        OSError("no such device"),
        KeyError("x"),
        RecursionError(),
        SystemExit(3),
        "not a reading",
        pytest.param(Reading("text", object(), "odd"), id="odd risk"),  # type: ignore[arg-type]
    ],
    ids=repr,
)
def test_a_sensor_that_raises_is_switched_off_and_said_and_the_others_go_on(
    fault: object, caplog: pytest.LogCaptureFixture
) -> None:
    told = Told()
    bad, good = Sensor("bad", TROUBLE, fault), Sensor("good")  # type: ignore[arg-type]
    watch = Watch([bad, good], told)

    for _ in range(4):
        watch.look()

    assert (bad.asked, good.asked) == (2, 4)
    assert watch.risk == CALM
    assert [(name, reading.concluded) for name, reading in told.heard] == [("bad", "errors"), ("bad", "switched off")]
    assert caplog.text.count("the sensor bad is switched off") == 1
    assert bad.closed.is_set()


def test_a_sensor_that_hangs_is_switched_off_and_said_and_the_others_go_on(
    watches: list[Watch], caplog: pytest.LogCaptureFixture
) -> None:
    told = Told()
    bad, good = Sensor("bad"), Sensor("good", Reading("0"), TROUBLE)
    bad.free.clear()
    watch = Watch([bad, good], told, period_s=0.001, patience_s=0.05)
    watches.append(watch)

    watch.start()
    told.wait_for(lambda: ("good", TROUBLE) in told.heard, ask=lambda: watch.risk)

    assert ("bad", Reading("no answer", CALM, "switched off")) in told.heard
    assert watch.risk == SERIOUS
    assert "the sensor bad is switched off: it does not answer" in caplog.text

    bad.readings = [Reading("late", SERIOUS, "late")]
    bad.free.set()  # it answers after all; that comes too late
    asked = good.asked
    told.wait_for(lambda: good.asked > asked + 3)
    assert watch.readings()["bad"].concluded == "switched off"
    assert [thread.name for thread in threading.enumerate()].count("holdfast-watch") == 1


def test_a_listener_that_raises_hurts_nobody(caplog: pytest.LogCaptureFixture) -> None:
    def fail(name: str, reading: Reading) -> None:
        raise OSError("no space")

    watch = Watch([Sensor("a", TROUBLE), Sensor("b", TROUBLE)], fail)

    watch.look()

    assert watch.risk == 2 * SERIOUS - 1
    assert "what the sensor b sees cannot be told: no space" in caplog.text


def test_a_listener_that_hangs_is_not_told_any_more(watches: list[Watch], caplog: pytest.LogCaptureFixture) -> None:
    free = threading.Event()
    sensor = Sensor("a", *[TROUBLE, Reading("0")] * 20)
    told = []

    def hang(name: str, reading: Reading) -> None:
        told.append(name)
        free.wait(_TIMEOUT_S)

    watch = Watch([sensor], hang, period_s=0.001, patience_s=0.05)
    watches.append(watch)

    watch.start()
    Told().wait_for(lambda: sensor.asked > 30, ask=lambda: watch.risk)

    assert told == ["a"]
    assert "not told any more" in caplog.text
    free.set()


def test_a_forked_child_has_no_watch_of_its_own(watches: list[Watch]) -> None:
    told = Told()
    watch = Watch([Sensor("a", TROUBLE)], told, period_s=0.001)
    watches.append(watch)
    watch.start()
    told.wait_for(lambda: bool(told.heard))
    unused = Watch([Sensor("b")])

    child = os.fork()
    if child == 0:
        alive = [thread.name for thread in threading.enumerate()].count("holdfast-watch")
        watch.start()
        unused.start()
        risk = watch.risk
        watch.close()
        started = [thread.name for thread in threading.enumerate()].count("holdfast-watch")
        os._exit(0 if (alive, risk, started) == (0, SERIOUS, 0) else 1)

    assert os.waitpid(child, 0)[1] == 0
    assert [thread.name for thread in threading.enumerate()].count("holdfast-watch") == 1


def test_one_that_is_urgent_is_asked_more_often(watches: list[Watch]) -> None:
    usual, urgent, told = Sensor("usual"), Sensor("urgent"), Told()
    urgent.is_urgent = True
    watch = Watch([usual, urgent], told, period_s=0.5)
    watches.append(watch)

    watch.start()
    told.wait_for(lambda: urgent.asked >= 11)

    # At the first of five looks both are asked: of eleven looks, at three.
    assert 2 <= usual.asked <= 4
