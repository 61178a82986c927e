"""Bad input: fails by itself."""

import numpy as np

import holdfast

state = {"w": np.zeros(4)}

with holdfast.Checkpointer("runs/failing", state) as ckpt:
    ckpt.step()
    raise ValueError("no such dataset")
