"""A small training that sleeps in every step, and says on which slot it was started, and at which step.

    training.py RUN STEPS STEP_S MARKS [deaf] [late] [pauses]

Steps of the second half wait for a file `go` among the marks, some time each: it is not done before it was disturbed,
however busy the machine is. `deaf` does not hear SIGTERM; `late` takes its time before it knows holdfast, when it is
started first; `pauses` asks for a restart every 25 steps.
"""

import os
import signal
import sys
import time
from pathlib import Path

run, steps, step_s, marks = sys.argv[1], int(sys.argv[2]), float(sys.argv[3]), Path(sys.argv[4])
how = sys.argv[5:]


def tell(name: str, text: str) -> None:
    with open(marks / name, "a", encoding="utf-8") as file:
        file.write(f"{text}\n")


if "late" in how:
    tell("awake", os.environ.get("_CONDOR_SLOT", ""))
    if (marks / "awake").read_text().count("\n") == 1:
        time.sleep(120)  # it is evicted meanwhile

import numpy as np  # noqa: E402  what takes its time comes before

import holdfast  # noqa: E402

generator = np.random.default_rng(7)
weights = np.zeros(5000)
signals = None if "deaf" in how else "auto"
every = holdfast.every(steps=100_000)
ckpt = holdfast.Checkpointer(run, {"weights": weights, "generator": generator}, every=every, signals=signals)
if "deaf" in how:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
restored = ckpt.restore()
done = restored.step if restored is not None else 0
tell("starts", f"{os.environ.get('_CONDOR_SLOT', '')} {done}")
try:
    while done < steps:
        weights += generator.normal(size=weights.size)
        weights *= 0.99
        done += 1
        if "pauses" in how and done % 25 == 0:
            ckpt.stop("it is time for a pause")
        ckpt.step()
        tell("steps", str(done))
        give_up_s = time.monotonic() + (2 if done > steps // 2 else step_s)
        while time.monotonic() < give_up_s and not (marks / "go").exists():
            time.sleep(0.05)
except SystemExit:
    tell("stops", str(done))
    raise
ckpt.save(step=steps).wait()
ckpt.close()
print(f"finished at step {done}")
