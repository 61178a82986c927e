"""A training on images with everything that makes a resume inexact elsewhere, and is exact here.

python examples/train_images.py runs/images               # kill it whenever you like, and start it again

Random crops, flips and noise in four loader workers; dropout; Adam; a learning rate that changes at every step; a
gradient scaler; a shuffled order; a log of all losses. However often it is interrupted, the last line is the same.
Needs torch. `holdfast prove -- python examples/train_images.py runs/images` shows that it holds.
"""

import argparse
import hashlib
import random

import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset

import holdfast

SAMPLES, CLASSES, SIZE, CROP = 320, 4, 20, 16


class Pictures(Dataset):
    """Noisy stripes; their direction is the class. Each is cropped, mirrored and made noisier when it is asked for."""

    def __init__(self) -> None:
        chance = np.random.default_rng(0)
        self.labels = torch.arange(SAMPLES) % CLASSES
        rows, columns = np.mgrid[:SIZE, :SIZE]
        angles = np.pi * self.labels.numpy()[:, None, None] / CLASSES
        stripes = np.sin(rows * np.cos(angles) + columns * np.sin(angles))
        noisy = stripes[:, None] + 0.3 * chance.standard_normal((SAMPLES, 3, SIZE, SIZE))
        self.pictures = torch.from_numpy(noisy.astype(np.float32))

    def __len__(self) -> int:
        return SAMPLES

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        top, left = torch.randint(SIZE - CROP + 1, (2,)).tolist()
        picture = self.pictures[index, :, top : top + CROP, left : left + CROP]
        if random.random() < 0.5:
            picture = picture.flip(1, 2)
        noise = np.random.standard_normal(picture.shape).astype(np.float32)
        return picture + 0.05 * torch.from_numpy(noise), self.labels[index]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("run", help="the run's directory")
    parser.add_argument("--epochs", type=int, default=6)
    parser.add_argument("--workers", type=int, default=4)
    parser.add_argument("--every", type=int, default=5, help="checkpoint after so many steps")
    parser.add_argument("--report", action="store_true", help="print every step")
    arguments = parser.parse_args()

    torch.manual_seed(1)
    model = torch.nn.Sequential(
        torch.nn.Conv2d(3, 8, 3, stride=2), torch.nn.ReLU(), torch.nn.Flatten(),
        torch.nn.Dropout(0.25), torch.nn.Linear(8 * 7 * 7, CLASSES),
    )  # fmt: skip
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, gamma=0.99)
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0, growth_interval=20)
    loader = DataLoader(
        Pictures(), batch_size=32, shuffle=True, num_workers=arguments.workers, persistent_workers=arguments.workers > 0
    )
    data = holdfast.data.resumable(loader, seed=7)
    log: list[float] = []

    parts = {"model": model, "optimizer": optimizer, "scheduler": scheduler, "scaler": scaler, "data": data, "log": log}
    with holdfast.Checkpointer(arguments.run, parts, every=arguments.every) as ckpt:
        ckpt.restore()
        for pictures, labels in ckpt.over(data, epochs=arguments.epochs):
            optimizer.zero_grad()
            with torch.autocast("cpu", torch.bfloat16):
                loss = torch.nn.functional.cross_entropy(model(pictures).float(), labels)
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
            scheduler.step()
            log.append(loss.item())
            if arguments.report:
                print(f"step {len(log)}", flush=True)
            ckpt.step(loss=loss)

    print(f"{len(log)} steps, last loss {log[-1]:.6f}")
    print(f"weights {digest(*model.state_dict().values())}, log {digest(torch.tensor(log, dtype=torch.float64))}")


def digest(*tensors: torch.Tensor) -> str:
    """The same digits for the same bits."""
    found = hashlib.sha256()
    for tensor in tensors:
        found.update(tensor.detach().numpy().tobytes())
    return found.hexdigest()[:16]


if __name__ == "__main__":
    main()
