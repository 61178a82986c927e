"""Two runs; a resumed program never saves the second one again."""

import numpy as np

import holdfast

state = {"w": np.zeros(3), "progress": {"step": 0}}
mean = {"ema": np.zeros(3)}
with holdfast.Checkpointer("runs/a", state) as ckpt, holdfast.Checkpointer("runs/b", mean) as other:
    restored = ckpt.restore()
    other.restore()
    while state["progress"]["step"] < 12:
        state["w"] += 1
        state["progress"]["step"] += 1
        if restored is None:
            mean["ema"] *= 0.9
            mean["ema"] += state["w"]
            if state["progress"]["step"] % 3 == 0:
                other.save(step=state["progress"]["step"])
        ckpt.step()
