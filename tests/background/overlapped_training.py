"""A torch training whose state is copied while it computes: run it, kill it, run it again; it prints the end's digest.

overlapped_training.py RUN ROOT CAPTURE STEPS
"""

import hashlib
import sys
from pathlib import Path

import torch

import holdfast
from tests.background.rig import use_root


def main(run: str, root: str, capture: str, steps: int) -> None:
    use_root(Path(root))
    torch.manual_seed(1)
    torch.set_num_threads(1)
    model = torch.nn.Sequential(
        torch.nn.Linear(16, 512), torch.nn.BatchNorm1d(512), torch.nn.ReLU(), torch.nn.Dropout(0.2),
        torch.nn.Linear(512, 512), torch.nn.BatchNorm1d(512), torch.nn.ReLU(), torch.nn.Linear(512, 1),
    )  # fmt: skip
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    progress = {"step": 0}
    state = {"model": model, "optimizer": optimizer, "progress": progress}
    ckpt = holdfast.Checkpointer(run, state, background="process", capture=capture, suspect_after=None)
    ckpt.restore()
    while progress["step"] < steps:
        batch = torch.randn(8, 16)
        loss = ((model(batch) - batch.sum(dim=1, keepdim=True)) ** 2).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        progress["step"] += 1
        pending = ckpt.save(step=progress["step"])
        assert pending.error is None, pending.error
        print("step", progress["step"], flush=True)
    ckpt.close()
    digest = hashlib.sha256(torch.get_rng_state().numpy().tobytes())
    for tensor in model.state_dict().values():
        digest.update(tensor.numpy().tobytes())
    for moments in optimizer.state_dict()["state"].values():
        for tensor in moments.values():
            digest.update(tensor.numpy().tobytes())
    print("end", digest.hexdigest(), flush=True)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], sys.argv[3], int(sys.argv[4]))
