"""What it gains that each worker augments only its own rows of a loader's batch.

    python benchmarks/augmented_input.py                # two workers, about a minute
    python benchmarks/augmented_input.py --workers 8

One run, in which every other step augments the whole batch on every worker: its batch is looked at by numpy, so that it
becomes plain. Shown are seconds of the augmentation and of a whole step, medians over rounds of two steps, and the
median of the rounds' ratios (smallest – largest). Both kinds of step compute the same numbers.

Figures, own rows ÷ whole: on a host of 16 cores, `--workers 8`, augmentation 0.282 (0.260 – 0.349), a step 0.495
(0.468 – 0.541); on 2 busy cores with 2 workers 0.552 (0.409 – 0.674) and 0.810 (0.628 – 1.022).
"""

from __future__ import annotations

import argparse
import itertools
import statistics
import time

import torch
import torch.nn.functional as F
from side_by_side import PACELINE, ratio, run
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

BATCHES, EPOCHS, FIRST = 8, 6, 8  # steps that are left out: proofs are made in them


def main() -> None:
    parser = argparse.ArgumentParser(description="Measure augmentation in the training loop.")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--batch", type=int, default=128, help="Images of a batch.")
    parser.add_argument("--size", type=int, default=64, help="Pixels along an image's side.")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--inside", action="store_true", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.inside:
        measure(given.batch, given.size, given.device)
        return
    options = ["--batch", str(given.batch), "--size", str(given.size), "--device", given.device]
    for line in run([*PACELINE, "run", "-n", str(given.workers), "--quiet", __file__, "--inside", *options]):
        print(line.text)


def augment(x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Crop, flip, colours, a small turn and a blur of each image, noise, and mix-up of the batch."""
    many, side = len(x), x.shape[-1]
    across, down = (int(n) for n in torch.randint(0, 9, (2,)))
    x = F.pad(x, (4, 4, 4, 4), mode="reflect")[:, :, down : down + side, across : across + side]
    x = torch.where((torch.rand(many, 1, 1, 1) < 0.5).to(x.device), x.flip(-1), x)
    strengths = (1 + 0.2 * torch.randn(3, many, 1, 1, 1)).to(x.device)
    x = x * strengths[0]
    grey = x.mean(1, keepdim=True)
    x = (x - grey) * strengths[1] + grey
    middle = x.mean((1, 2, 3), keepdim=True)
    x = (x - middle) * strengths[2] + middle
    angles = 0.2 * torch.randn(many)
    theta = torch.stack([angles.cos(), -angles.sin(), angles * 0, angles.sin(), angles.cos(), angles * 0], 1)
    grid = F.affine_grid(theta.view(-1, 2, 3).to(x.device), list(x.shape), align_corners=False)
    x = F.grid_sample(x, grid, align_corners=False)
    kernel = torch.tensor([1.0, 2.0, 1.0]).outer(torch.tensor([1.0, 2.0, 1.0])) / 16
    x = F.conv2d(x, kernel.expand(3, 1, 3, 3).to(x.device), padding=1, groups=3)
    x = x + (0.05 * torch.randn(many, 1, side, side)).to(x.device)
    order, share = torch.randperm(many).to(x.device), 0.7
    return share * x + (1 - share) * x[order], share * y + (1 - share) * y[order]


def measure(batch: int, size: int, device: str) -> None:
    torch.manual_seed(0)
    images, labels = torch.rand(batch * BATCHES, 3, size, size), torch.randint(0, 10, (batch * BATCHES,))
    loader = DataLoader(TensorDataset(images, labels), batch_size=batch, shuffle=True)
    widths = (3, 32, 64, 64)
    layers: list[nn.Module] = []
    for one, other in itertools.pairwise(widths):
        layers += [nn.Conv2d(one, other, 3, stride=2, padding=1), nn.BatchNorm2d(other), nn.ReLU()]
    net = nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(widths[-1], 10)).to(device)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.05)
    seconds: list[tuple[float, float]] = []
    for _ in range(EPOCHS):
        for x, y in loader:
            if len(seconds) % 2:
                x.numpy()
            x, y = x.to(device), F.one_hot(y, 10).float().to(device)
            began = now(device)
            x, y = augment(x, y)
            augmented = now(device)
            loss = F.cross_entropy(net(x), y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            loss.item()
            seconds.append((augmented - began, now(device) - began))
    for name, which in (("augmentation", 0), ("step", 1)):
        own, whole = ([took[which] for took in seconds[FIRST + first :: 2]] for first in (0, 1))
        shown = f"own rows {statistics.median(own) * 1e3:.1f} ms, whole {statistics.median(whole) * 1e3:.1f} ms"
        print(f"{name:13} {shown}, ratio {ratio(own, whole)}", flush=True)


def now(device: str) -> float:
    if device == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter()


if __name__ == "__main__":
    main()
