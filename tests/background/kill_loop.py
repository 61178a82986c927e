"""A training that is killed again and again at random moments, by a parent that has everything imported already.

    kill_loop.py RUN ROOT CYCLES SEED

Says `killed COUNTS` and `end STEP DIGEST EXPECTED`; fails where anything was lost or is left.
"""

import ctypes
import hashlib
import logging
import mmap
import os
import random
import signal
import struct
import sys
import time
from collections import Counter
from pathlib import Path

import numpy as np

import holdfast
from holdfast.checkpointer import Checkpointer
from holdfast.testing import FakeClock
from holdfast.tiers.finding import reclaim
from tests.background.rig import agents_of, arenas, garbage, steps, until, use_root

_PR_SET_CHILD_SUBREAPER = 36
_MORE_STEPS = 30


class Training:
    """A random walk: every step depends on all before it, and on the generator's state."""

    def __init__(self) -> None:
        self.weights = np.zeros(2000)
        self.generator = np.random.default_rng(1)
        self.progress = {"step": 0}

    def advance(self) -> None:
        self.weights *= 0.999
        self.weights += self.generator.standard_normal(self.weights.size)
        self.progress["step"] += 1

    def digest(self) -> str:
        return hashlib.sha256(self.weights.tobytes() + repr(self.generator.bit_generator.state).encode()).hexdigest()


class Board:
    """What the training tells its parent, in memory that both have."""

    def __init__(self) -> None:
        self._memory = mmap.mmap(-1, 4096)

    def put(self, place: int, value: int) -> None:
        struct.pack_into("q", self._memory, 8 * place, value)

    def get(self, place: int) -> int:
        return struct.unpack_from("q", self._memory, 8 * place)[0]


RESTORED, STAGED, DURABLE = range(3)


def train(run: Path, board: Board, more_steps: int | None) -> Training:
    training = Training()
    state = {"w": training.weights, "generator": training.generator, "progress": training.progress}
    # Killed before it could save, many times in a row: that says nothing against the checkpoint.
    ckpt = Checkpointer(run, state, background="process", random=False, keep=holdfast.keep(last=2), suspect_after=None)
    restored = ckpt.restore()
    board.put(RESTORED, 0 if restored is None else restored.step)
    first = training.progress["step"]
    while more_steps is None or training.progress["step"] < first + more_steps:
        training.advance()
        pending = ckpt.save(step=training.progress["step"])
        assert pending.error is None, pending.error
        board.put(STAGED, pending.step)
        board.put(DURABLE, max(board.get(DURABLE), ckpt.status().durable_step or 0))
    ckpt.close()
    return training


def start(run: Path, board: Board) -> int:
    pid = os.fork()
    if pid == 0:
        try:
            train(run, board, None)
        except BaseException:
            logging.exception("the training failed")
        os._exit(1)
    return pid


def kill(pid: int, how: str, chance: random.Random) -> None:
    """End the training by SIGKILL, and before, after or instead of it something of its agent."""
    agents = agents_of(pid)
    if how == "trainer" or not agents:
        os.kill(pid, signal.SIGKILL)
    elif how == "both":
        for victim in chance.sample([pid, *agents], 1 + len(agents)):
            os.kill(victim, signal.SIGKILL)
    elif how == "agent":
        os.kill(agents[0], signal.SIGKILL)
        time.sleep(chance.uniform(0, 0.2))
        os.kill(pid, signal.SIGKILL)
    elif how == "stopped agent":
        os.kill(agents[0], signal.SIGSTOP)
        time.sleep(chance.uniform(0, 0.1))
        os.kill(pid, signal.SIGKILL)
        os.kill(agents[0], signal.SIGCONT)
    elif how == "stopped trainer":
        os.kill(pid, signal.SIGSTOP)
        time.sleep(chance.uniform(0, 0.1))
        os.kill(agents[0], signal.SIGKILL)
        os.kill(pid, signal.SIGKILL)


def reap() -> bool:
    """Whether no child is left: orphaned agents are ours."""
    try:
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass
    except ChildProcessError:
        return True
    return False


def main(run: Path, root: Path, cycles: int, seed: int) -> None:
    logging.basicConfig(level=logging.ERROR)
    use_root(root)
    ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    chance, board, counts = random.Random(seed), Board(), Counter()
    for _ in range(cycles):
        staged_before = max(board.get(STAGED), board.get(RESTORED))
        board.put(RESTORED, -1)
        pid = start(run, board)
        if chance.random() < 0.8:
            until(lambda: board.get(RESTORED) >= 0)
        time.sleep(chance.uniform(0, 0.15))
        how = chance.choice(["trainer", "trainer", "agent", "both", "stopped agent", "stopped trainer"])
        kill(pid, how, chance)
        status = os.waitpid(pid, 0)[1]
        assert os.WIFSIGNALED(status), f"the training ended by itself: {status}"
        restored = board.get(RESTORED)
        # Whatever was staged is in memory, and that outlives any process.
        assert restored in (-1, 0) or restored >= staged_before, (restored, staged_before)
        assert restored != 0 or staged_before == 0, staged_before
        if restored < 0:
            board.put(RESTORED, staged_before)
        counts[how if restored >= 0 else "before the restore"] += 1
        reap()
    staged = max(board.get(STAGED), board.get(RESTORED))
    training = train(run, board, _MORE_STEPS)
    print("killed", dict(counts), flush=True)

    assert board.get(RESTORED) >= staged, (board.get(RESTORED), staged)
    until(reap)
    # Who is killed while making an arena leaves an empty directory, which nobody touches for an hour.
    assert list(root.glob("*/*/slot-*")) == []
    reclaim(keep_run_id=None, clock=FakeClock(time.time() + 7200))
    assert arenas(root) == [], arenas(root)
    assert garbage(run) == [], garbage(run)
    last = training.progress["step"]
    assert steps(run) == [last - 1, last], steps(run)
    undisturbed = Training()
    for _ in range(last):
        undisturbed.advance()
    print("end", last, training.digest(), undisturbed.digest(), flush=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4]))
