"""Broken: the learning rate's schedule is not in the state and begins anew."""

import torch

import holdfast

torch.manual_seed(0)
model = torch.nn.Linear(4, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=1e-1)
scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, gamma=0.9)
inputs = torch.linspace(-1, 1, 32).reshape(8, 4)
progress = {"step": 0}

state = {"model": model, "optimizer": optimizer, "progress": progress}
with holdfast.Checkpointer("runs/scheduler", state) as ckpt:
    ckpt.restore()
    while progress["step"] < 8:
        loss = model(inputs).square().mean()
        optimizer.zero_grad()
        loss.backward()
        # The rate comes from the schedule, not from what the optimizer was restored with.
        optimizer.param_groups[0]["lr"] = 0.1 * 0.9**scheduler.last_epoch
        optimizer.step()
        scheduler.step()
        progress["step"] += 1
        ckpt.step(loss=loss.item())
