"""A run that is called otherwise in every start."""

import os

import holdfast

progress = {"step": 0}
with holdfast.Checkpointer(f"runs/{os.getpid()}", {"progress": progress}) as ckpt:
    ckpt.restore()
    while progress["step"] < 6:
        progress["step"] += 1
        ckpt.step()
