"""Bad input: makes a checkpointer and then waits for ever, with a child that waits as well."""

import subprocess
import time

import numpy as np

import holdfast

ckpt = holdfast.Checkpointer("runs/hanging", {"w": np.zeros(4)})
subprocess.Popen(["sleep", "1000"])
time.sleep(1000)
