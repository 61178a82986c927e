"""Broken: load_state_dict takes only a part of what state_dict gives."""

import numpy as np

import holdfast


class Model:
    def __init__(self):
        self.w, self.momentum = np.zeros(4), np.zeros(4)

    def state_dict(self):
        return {"w": self.w, "momentum": self.momentum}

    def load_state_dict(self, state):
        self.w = np.array(state["w"])

    def train(self):
        self.momentum = 0.9 * self.momentum + 1.0
        self.w = self.w + self.momentum


model, progress = Model(), {"step": 0}
with holdfast.Checkpointer("runs/lossy", {"model": model, "progress": progress}) as ckpt:
    ckpt.restore()
    while progress["step"] < 12:
        model.train()
        progress["step"] += 1
        ckpt.step()
