"""Whether this is a notebook, and what is to be done there before a cell runs."""

import sys
from collections.abc import Callable

__all__ = ["before_each_cell", "is_notebook"]


def is_notebook() -> bool:
    """A kernel of Jupyter, or a prompt of IPython: a cell that ends must not end the program."""
    return _shell() is not None


def before_each_cell(call: Callable[[], None]) -> Callable[[], None]:
    """Have that called before each cell; what undoes it. A kernel puts its own handlers in place for every cell."""
    events = getattr(_shell(), "events", None)
    if events is None:
        return lambda: None

    def run(*_: object) -> None:
        call()

    events.register("pre_run_cell", run)

    def undo() -> None:
        try:
            events.unregister("pre_run_cell", run)
        except ValueError:
            pass  # it is gone already

    return undo


def _shell() -> object:
    ipython = sys.modules.get("IPython")
    get = getattr(ipython, "get_ipython", None)
    return None if get is None else get()
