"""What all tests share: saves are made in the foreground unless one asks for an agent; none fails for being slow."""

import os
import signal

from hypothesis import HealthCheck, settings

os.environ.setdefault("HOLDFAST_BACKGROUND", "off")
# What shells in the background and `nohup` have ignored would be ignored by all programs that tests start, too.
for number, usual in ((signal.SIGINT, signal.default_int_handler), (signal.SIGHUP, signal.SIG_DFL)):
    if signal.getsignal(number) is signal.SIG_IGN:
        signal.signal(number, usual)

# A machine that others use may take any time for an example, and for thinking of one.
settings.register_profile("patient", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("patient")
