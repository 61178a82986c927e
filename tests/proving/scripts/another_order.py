"""After a restore, a dict of the state has its keys in another order."""

import holdfast

state = {"cache": {}, "progress": {"step": 0}}
with holdfast.Checkpointer("runs/a", state) as ckpt:
    if ckpt.restore():
        items = sorted(state["cache"].items())
        state["cache"].clear()
        state["cache"].update(items)
    while state["progress"]["step"] < 12:
        state["progress"]["step"] += 1
        state["cache"][f"k{state['progress']['step'] * 7 % 13:02}"] = 1.0
        ckpt.step()
