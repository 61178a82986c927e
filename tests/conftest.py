"""What all tests share: saves are made in the foreground unless one asks for an agent; none fails for being slow."""

import os
import signal
import sys
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import HealthCheck, settings

os.environ.setdefault("HOLDFAST_BACKGROUND", "off")
# What shells in the background and `nohup` have ignored would be ignored by all programs that tests start, too.
for number, usual in ((signal.SIGINT, signal.default_int_handler), (signal.SIGHUP, signal.SIG_DFL)):
    if signal.getsignal(number) is signal.SIG_IGN:
        signal.signal(number, usual)

# A machine that others use may take any time for an example, and for thinking of one.
settings.register_profile("patient", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("patient")


@pytest.fixture(autouse=True)
def nobody_listens_on() -> Iterator[None]:
    """A Checkpointer that a test leaves open would hear the signals of the next ones, and end their process."""
    before = {id(one) for one in _open_ones()}
    yield
    for checkpointer in [one for one in _open_ones() if id(one) not in before]:
        checkpointer._pace.release()
        checkpointer._stops.close()


def _open_ones() -> list[Any]:
    # Not imported here: what is imported before coverage begins is not counted.
    exiting, front = sys.modules.get("holdfast.agent.exiting"), sys.modules.get("holdfast.checkpointer")
    if exiting is None or front is None:
        return []
    found = (finish.__self__ for reference in exiting._open if (finish := reference()) is not None)
    return [one for one in found if isinstance(one, front.Checkpointer)]
