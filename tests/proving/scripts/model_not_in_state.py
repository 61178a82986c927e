"""The optimizer is in the state, the model is not: nothing that is saved depends on it."""

import torch

import holdfast

torch.manual_seed(0)
model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
progress = {"step": 0}
with holdfast.Checkpointer("runs/a", {"optimizer": optimizer, "progress": progress}) as ckpt:
    ckpt.restore()
    while progress["step"] < 8:
        optimizer.zero_grad()
        model(torch.ones(2, 4)).pow(2).sum().backward()
        optimizer.step()
        progress["step"] += 1
        ckpt.step()
