"""A training with long calls of libraries, and somebody who sends it signals at random moments.

As a program: the training. It says what it heard, and when, and every stop that it made.
"""

import hashlib
import logging
import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

import holdfast

__all__ = ["Seen", "storm"]

KINDS = ("SIGTERM", "SIGUSR1", "SIGUSR2", "SIGINT")
_ROOT = Path(__file__).parents[2]
_DEADLINE_S = 120.0
_LONGEST_PAUSE_S = 0.04
_BURST_SHARE = 0.1


class Seen(NamedTuple):
    """What became of all the signals."""

    sent: int
    heard: int
    stops: int
    delays_s: list[float]
    """From being sent to being heard, of each."""
    statuses: list[int]


def storm(run: Path, signals: int, *, on_stop: str, seed: int, check: Callable[[int], None]) -> Seen:
    """Send so many; the training goes on after each (`return`), or is started again (`exit`).

    `check` is told the step of every stop, when it was said to be saved.
    """
    chance = random.Random(seed)
    sent = heard = stops = 0
    delays_s: list[float] = []
    statuses: list[int] = []
    while sent < signals:
        with subprocess.Popen(
            [sys.executable, __file__, str(run), on_stop, str(chance.random())],
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONPATH": os.pathsep.join([str(_ROOT / "src"), str(_ROOT)])},
        ) as program:
            # Should it not answer, what it says ends, and that is an error here.
            watch = threading.Timer(_DEADLINE_S + signals, program.kill)
            watch.daemon = True
            watch.start()
            try:
                lines = iter(program.stdout or ())
                assert next(lines).startswith("ready")
                while sent < signals:
                    burst = chance.sample(KINDS, 2 if chance.random() < _BURST_SHARE else 1)
                    time.sleep(chance.uniform(0, _LONGEST_PAUSE_S))
                    sent_at = {}
                    for kind in burst:
                        sent_at[kind] = time.time()
                        program.send_signal(signal.Signals[kind])
                    sent += len(burst)
                    has_stopped = False
                    while sent_at or not has_stopped:
                        line = next(lines, "")
                        if not line and has_stopped and on_stop == "exit":
                            break  # the second of two came when the program had answered the first, and was ending
                        word, what, number = line.split()
                        if word == "heard" and what in sent_at:
                            delays_s.append(float(number) - sent_at.pop(what))
                            heard += 1
                        elif word == "stopped":
                            has_stopped = True
                            stops += 1
                            check(int(what))
                    if on_stop == "exit":
                        statuses.append(program.wait(_DEADLINE_S))
                        break
            finally:
                watch.cancel()
                program.kill()
    return Seen(sent, heard, stops, delays_s, statuses)


class _Tell(logging.Handler):
    """Written in one go, past Python's buffers: two threads do so, and one of them may be ended in the middle."""

    def emit(self, record: logging.LogRecord) -> None:
        text = record.getMessage()
        if text.startswith(KINDS):
            _say(f"heard {text.partition(':')[0]} {record.created!r}")
        elif text.startswith("stopping at step"):
            _say(f"stopped {text.split()[3].strip(',;')} {record.created!r}")


def _say(line: str) -> None:
    os.write(1, f"{line}\n".encode())


def _train(run: str, on_stop: str, seed: str) -> None:
    signal.signal(signal.SIGINT, signal.default_int_handler)  # which shells have ignored in the background
    logging.getLogger("holdfast").addHandler(_Tell())
    chance = random.Random(seed)
    weights, matrix, data = np.zeros(1000), np.ones((700, 700)), bytes(40 << 20)
    # Calls that take from nothing to a tenth of a second, during which Python runs nothing in this thread.
    calls: Sequence[Callable[[], object]] = (
        lambda: None,
        lambda: time.sleep(chance.uniform(0, 0.1)),
        lambda: matrix @ matrix,
        lambda: hashlib.sha256(data),
        lambda: np.sort(np.tile(matrix, 2), axis=None),
    )
    kind = "return" if on_stop == "return" else "exit"
    ckpt = holdfast.Checkpointer(run, {"w": weights}, every=1_000_000, sensors="off", on_stop=kind, background="thread")
    ckpt.restore()
    weights += 1
    ckpt.step()  # from now on, Ctrl-C is heard as well
    _say("ready 0 0")
    while True:
        chance.choice(calls)()
        weights += 1
        saved = ckpt.step()
        if saved is not None:
            _say(f"stopped {saved.step} {time.time()!r}")


if __name__ == "__main__":
    _train(*sys.argv[1:])
