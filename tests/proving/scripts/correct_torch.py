"""Resumes exactly: a torch training whose data comes from holdfast.data, in the middle of epochs too."""

import torch

import holdfast

torch.manual_seed(0)
inputs = torch.linspace(-1, 1, 128).reshape(32, 4)
dataset = torch.utils.data.TensorDataset(inputs, inputs.sum(dim=1, keepdim=True))
loader = torch.utils.data.DataLoader(dataset, batch_size=8, shuffle=True)
model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Dropout(0.1), torch.nn.Linear(8, 1))
optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
data = holdfast.data.resumable(loader, seed=7)

state = {"model": model, "optimizer": optimizer, "data": data}
with holdfast.Checkpointer("runs/torch", state) as ckpt:
    ckpt.restore()
    for batch, target in ckpt.over(data, epochs=3):
        loss = (model(batch) - target).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        ckpt.step(loss=loss)
