"""What all tests share: saves are made in the foreground unless one asks for an agent; none fails for being slow."""

import os

from hypothesis import HealthCheck, settings

os.environ.setdefault("HOLDFAST_BACKGROUND", "off")

# A machine that others use may take any time for an example, and for thinking of one.
settings.register_profile("patient", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("patient")
