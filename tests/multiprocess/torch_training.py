"""A torch training with everything that has state: run it, kill it, run it again; it prints the digest of the end."""

import hashlib
import sys

import torch

import holdfast

STEPS = 60


def main(run: str) -> None:
    torch.manual_seed(1)
    torch.set_num_threads(1)
    model = torch.nn.Sequential(
        torch.nn.Linear(8, 32), torch.nn.BatchNorm1d(32), torch.nn.ReLU(), torch.nn.Dropout(0.3), torch.nn.Linear(32, 1)
    )
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, STEPS)
    averaged = torch.optim.swa_utils.AveragedModel(model, multi_avg_fn=torch.optim.swa_utils.get_ema_multi_avg_fn(0.9))
    progress = {"step": 0, "losses": []}
    state = {"model": model, "optimizer": optimizer, "scheduler": scheduler, "ema": averaged, "progress": progress}

    ckpt = holdfast.Checkpointer(run, state)
    ckpt.restore()
    while progress["step"] < STEPS:
        batch = torch.randn(16, 8)
        loss = ((model(batch) - batch.sum(dim=1, keepdim=True)) ** 2).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        scheduler.step()
        averaged.update_parameters(model)
        progress["step"] += 1
        progress["losses"].append(loss.item())
        ckpt.save(step=progress["step"], metrics={"loss": loss})
        print("step", progress["step"], flush=True)
    ckpt.close()

    digest = hashlib.sha256(repr(progress).encode())
    for part in (model, averaged):
        for tensor in part.state_dict().values():
            digest.update(tensor.numpy().tobytes())
    for slot in optimizer.state_dict()["state"].values():
        for tensor in slot.values():
            digest.update(tensor.numpy().tobytes())
    digest.update(torch.get_rng_state().numpy().tobytes())
    print("end", digest.hexdigest(), flush=True)


if __name__ == "__main__":
    main(sys.argv[1])
