"""A function of the program as a sensor."""

import math

import numpy as np
import pytest

from holdfast.core.errors import UsageError
from holdfast.engine.sensors.function import FunctionSensor
from holdfast.policy.risk import CALM, MOST, SERIOUS, Reading


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        (None, Reading("no trouble")),
        (False, Reading("no trouble")),
        ("", Reading("no trouble")),
        (True, Reading("trouble", SERIOUS, "cooling sees trouble")),
        ("the pump is off", Reading("the pump is off", SERIOUS, "the pump is off")),
        (7, Reading("7", 7.0, "cooling sees trouble")),
        (0.5, Reading("0.5", CALM, "")),
        (np.float64(3) > 2, Reading("trouble", SERIOUS, "cooling sees trouble")),
        (np.float32(7), Reading("7", 7.0, "cooling sees trouble")),
        (math.inf, Reading("inf", MOST, "cooling sees trouble")),
        (math.nan, Reading("nan", CALM, "")),
        (Reading("41 °C", 5e9, "warm"), Reading("41 °C", MOST, "warm")),
    ],
)
def test_what_a_function_may_say(given: object, expected: Reading) -> None:
    def cooling() -> object:
        return given

    assert FunctionSensor(cooling).read() == expected


def test_anything_else_is_refused() -> None:
    with pytest.raises(UsageError, match="expected a bool, a text or a number"):
        FunctionSensor(lambda: [1], name="list").read()


def test_it_is_called_by_the_name_of_the_function() -> None:
    class Pump:
        def __call__(self) -> bool:
            return False

    assert FunctionSensor(Pump()).name == "Pump"
    assert FunctionSensor(lambda: None, name="pump").name == "pump"
