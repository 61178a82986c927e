"""A function of the program as a sensor."""

from collections.abc import Callable

from holdfast.core.errors import UsageError
from holdfast.policy.risk import CALM, SERIOUS, Reading, bounded

__all__ = ["FunctionSensor"]


class FunctionSensor:
    """Asks the function. It says whether there is trouble: as a bool, a text, a risk of 1 and more, or a Reading."""

    def __init__(self, function: Callable[[], object], name: str | None = None) -> None:
        self.name = name or str(getattr(function, "__name__", type(function).__name__))
        self._function = function

    def read(self) -> Reading:
        found = self._function()
        item = getattr(found, "item", None)
        if callable(item):  # a comparison of arrays or tensors gives one of them
            found = item()
        match found:
            case Reading():
                return found._replace(risk=bounded(found.risk))
            case None | False | "":
                return Reading("no trouble")
            case True:
                return Reading("trouble", SERIOUS, f"{self.name} sees trouble")
            case str():
                return Reading(found, SERIOUS, found)
            case int() | float():
                risk = bounded(found)
                return Reading(f"{found:g}", risk, f"{self.name} sees trouble" if risk > CALM else "")
        raise UsageError(
            f"the sensor {self.name} gave {found!r} ({type(found).__name__}), expected a bool, a text or a number"
        )
