"""Broken: Adam's moments are not in the state, so that a resumed training begins with empty ones."""

import torch

import holdfast

torch.manual_seed(0)
model = torch.nn.Linear(4, 2)
optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
inputs = torch.linspace(-1, 1, 32).reshape(8, 4)
progress = {"step": 0}

with holdfast.Checkpointer("runs/optimizer", {"model": model, "progress": progress}) as ckpt:
    ckpt.restore()
    while progress["step"] < 8:
        loss = model(inputs).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        progress["step"] += 1
        ckpt.step(loss=loss.item())
