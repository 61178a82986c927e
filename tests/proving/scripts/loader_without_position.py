"""Broken: a torch DataLoader does not know where it was, so that a resumed epoch begins from its start."""

import torch

import holdfast

torch.manual_seed(0)
inputs = torch.linspace(-1, 1, 128).reshape(32, 4)
loader = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(inputs), batch_size=4)
w = torch.zeros(4)
progress = {"step": 0, "epoch": 0}

with holdfast.Checkpointer("runs/loader", {"w": w, "progress": progress}) as ckpt:
    ckpt.restore()
    while progress["step"] < 16:
        for (batch,) in loader:
            w += batch.sum(dim=0)
            progress["step"] += 1
            ckpt.step(epoch=progress["epoch"])
            if progress["step"] >= 16:
                break
        progress["epoch"] += 1
