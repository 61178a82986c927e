"""Broken: results differ in their last bits every time.

A stand-in for kernels that add up in an order of their own: here the last bits are random bytes, on purpose.
"""

import os

import numpy as np

import holdfast

state = {"w": np.ones(16), "progress": {"step": 0}}


def kernel(w):
    last_bits = np.frombuffer(os.urandom(w.size), np.uint8) & 1
    return (w * 1.001).view(np.uint64).__xor__(last_bits.astype(np.uint64)).view(np.float64)


np.random.seed(0)
with holdfast.Checkpointer("runs/kernel", state) as ckpt:
    ckpt.restore()
    while state["progress"]["step"] < 8:
        state["w"][:] = kernel(state["w"])
        state["progress"]["step"] += 1
        ckpt.step()
