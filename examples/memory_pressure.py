"""A job that leaks memory until it is killed, with the sensor that sees that coming and without: what each one loses.

python examples/memory_pressure.py        # takes about a minute and a half

Both save when every="auto" says so. The limit is one of the address space (RLIMIT_AS), which needs no rights. Where the
memory of a control group is used up, the kernel sends SIGKILL; here an allocation fails, and the job sends itself the
same signal on the spot: nothing is caught, closed or saved on the way out.
"""

import argparse
import mmap
import os
import resource
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

import holdfast

STEP_S = 0.025
ROOM_BYTES = 512 << 20
LIFE_S = 75.0
PATIENCE_S = 600.0
SENSORS = ("memory", "off")


class Outcome(NamedTuple):
    """Of a job that was killed."""

    made: int
    """Steps."""
    restored: int
    """The step that the next attempt would go on from."""

    @property
    def lost(self) -> int:
        return self.made - self.restored


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--life-s", type=float, default=LIFE_S, help="how long the memory lasts, about")
    parser.add_argument("--job", nargs=2, metavar=("RUN", "SENSORS"), help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.job:
        leak(*arguments.job, life_s=arguments.life_s)
    else:
        with tempfile.TemporaryDirectory(prefix="holdfast-pressure-") as folder:
            compare(Path(folder), arguments.life_s)


def compare(folder: Path, life_s: float) -> None:
    """Both at the same time."""
    jobs = {sensors: start(folder / sensors, sensors, life_s) for sensors in SENSORS}
    print(f"two jobs, each with {ROOM_BYTES >> 20} MiB to leak in about {life_s:g} s; one looks at its memory")
    outcomes = {sensors: outcome(folder / sensors, job) for sensors, job in jobs.items()}
    for sensors, found in outcomes.items():
        name = "with the memory sensor" if sensors == "memory" else "without sensors"
        print(
            f"{name}: killed after {found.made} steps, {found.restored} are saved: "
            f"{found.lost} steps lost, {found.lost * STEP_S:.1f} s"
        )


def start(run: Path, sensors: str, life_s: float) -> subprocess.Popen[str]:
    command = [sys.executable, __file__, "--life-s", f"{life_s}", "--job", str(run), sensors]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)


def outcome(run: Path, job: subprocess.Popen[str]) -> Outcome:
    """Wait for the kill, and see what is left."""
    try:
        said, _ = job.communicate(timeout=PATIENCE_S)
    except subprocess.TimeoutExpired:
        job.kill()
        sys.exit(f"the job in {run} still runs after {PATIENCE_S:g} s, although its memory must be used up")
    if job.returncode != -signal.SIGKILL:
        sys.exit(f"the job in {run} ended with status {job.returncode}, expected {-signal.SIGKILL}")
    with holdfast.Checkpointer(run, new_state()) as ckpt:
        restored = ckpt.restore()
    return Outcome(len(said.splitlines()), 0 if restored is None else restored.step)


def leak(run: str, sensors: str, *, life_s: float) -> None:
    """The job: a training whose steps leak."""
    state = new_state()
    weights, leaked = state["weights"], []
    piece_bytes = int(ROOM_BYTES * STEP_S / life_s)
    chosen = "off" if sensors == "off" else [sensors]
    # One worker: a save starts no thread, which a Python without memory for it would wait for, rather than fail.
    with holdfast.Checkpointer(run, state, every="auto", sensors=chosen, workers=1) as ckpt:
        limit_bytes = address_space_bytes() + ROOM_BYTES
        resource.setrlimit(resource.RLIMIT_AS, (limit_bytes, limit_bytes))
        try:
            while True:
                next_s = time.monotonic() + STEP_S
                weights += 1.0
                leaked.append(b"x" * piece_bytes)
                os.write(1, b"step\n")
                ckpt.step()
                time.sleep(max(0.0, next_s - time.monotonic()))  # a larger model would be at work
        except MemoryError:
            os.kill(os.getpid(), signal.SIGKILL)


def new_state() -> dict[str, Any]:
    return {"weights": np.zeros(1 << 20)}


def address_space_bytes() -> int:
    return int(Path("/proc/self/statm").read_text(encoding="ascii").split()[0]) * mmap.PAGESIZE


if __name__ == "__main__":
    main()
