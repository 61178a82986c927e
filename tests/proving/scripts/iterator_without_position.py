"""Broken: a Python generator hands out the data, and begins anew after a restart."""

import numpy as np

import holdfast


def batches():
    number = 0
    while True:
        number += 1
        yield np.full(4, float(number))


state = {"w": np.zeros(4), "progress": {"step": 0}}
source = batches()

with holdfast.Checkpointer("runs/iterator", state) as ckpt:
    ckpt.restore()
    while state["progress"]["step"] < 12:
        state["w"] += next(source)
        state["progress"]["step"] += 1
        ckpt.step()
