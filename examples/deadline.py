"""A job with a time limit: it stops itself before the end, with a durable checkpoint, and goes on when started again.

python examples/deadline.py runs/limited --time-left 60; echo $?      # 85: not done, start me again
python examples/deadline.py runs/limited; echo $?                     # 0: done

HOLDFAST_TIME_LEFT=60 does the same without the option; under Slurm and HTCondor neither is needed. A loop stands in for
a scheduler:

until python examples/deadline.py runs/limited --time-left 60; do [ $? -eq 85 ] || break; done
"""

import argparse
import hashlib
import logging
import time

import numpy as np

import holdfast

WIDTH = 512


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("run", help="the run's directory")
    parser.add_argument("--time-left", help='how long it may run from now on: seconds, or "1 min"')
    parser.add_argument("--steps", type=int, default=1000)
    parser.add_argument("--step-s", type=float, default=0.1, help="what a step takes at least")
    parser.add_argument("--first-step-s", type=float, default=0.0, help="what the first one takes, as if it compiled")
    arguments = parser.parse_args()
    # Why it stops is in the log.
    logging.basicConfig(level=logging.INFO, format="%(message)s")

    generator = np.random.default_rng(0)
    weights = generator.normal(0, WIDTH**-0.5, (WIDTH, WIDTH))
    velocity = np.zeros_like(weights)
    state = {"weights": weights, "velocity": velocity, "generator": generator}

    began_s = time.monotonic()
    with holdfast.Checkpointer(arguments.run, state, time_left=arguments.time_left) as ckpt:
        restored = ckpt.restore()
        step = 0 if restored is None else restored.step
        time.sleep(arguments.first_step_s)
        print(f"begins at step {step}", flush=True)
        try:
            while step < arguments.steps:
                next_s = time.monotonic() + arguments.step_s
                train_step(weights, velocity, generator)
                time.sleep(max(0.0, next_s - time.monotonic()))  # a larger model would be at work
                step += 1
                ckpt.step()  # where the time is over: saves, waits for that, and ends the program with status 85
        finally:
            print(f"ends at step {step}, after {time.monotonic() - began_s:.1f} s", flush=True)
        if restored is None or step > restored.step:
            ckpt.save(step=step)
    print(f"done: {hashlib.sha256(weights.tobytes()).hexdigest()}")


def train_step(weights: np.ndarray, velocity: np.ndarray, generator: np.random.Generator) -> None:
    """Learn the identity, from noise, with momentum."""
    inputs = generator.normal(size=(64, WIDTH))
    error = inputs @ weights - inputs
    velocity *= 0.9
    velocity += inputs.T @ error / len(inputs)
    weights -= 0.001 * velocity


if __name__ == "__main__":
    main()
