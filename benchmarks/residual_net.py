"""The training script of the accuracy table (benchmarks/converge.py), written for one worker.

A 7×7 convolution, a max-pool, two bottleneck blocks, an average pool and a linear layer; Adam at 1e-3. Prints the
training and the test accuracy of each epoch; or, with --until, the step at which a test accuracy is reached.

    python benchmarks/residual_net.py --data DIR --norm
    python benchmarks/residual_net.py --data DIR --until 0.5 --every 2048 --optimizer sgd --lr 0.04 --batch-size 256
"""

from __future__ import annotations

import argparse
import math
import sys
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

sys.path.insert(0, str(Path(__file__).parents[1] / "examples"))

import pictures


class Bottleneck(nn.Module):
    def __init__(self, inside: int, middle: int, outside: int, stride: int, norm: bool) -> None:
        super().__init__()
        made = [(inside, middle, 1, stride), (middle, middle, 3, 1), (middle, outside, 1, 1)]
        made.append((inside, outside, 1, stride))  # the shortcut
        self.convs = nn.ModuleList(nn.Conv2d(a, b, size, step, size // 2) for a, b, size, step in made)
        self.norms = nn.ModuleList(nn.BatchNorm2d(b) if norm else nn.Identity() for _, b, _, _ in made)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = x
        for number in range(3):
            y = self.norms[number](self.convs[number](y))
            y = F.relu(y) if number < 2 else y
        return F.relu(y + self.norms[3](self.convs[3](x)))


class Net(nn.Module):
    def __init__(self, channels: int, norm: bool) -> None:
        super().__init__()
        self.first, self.norm = nn.Conv2d(channels, 64, 7, 2, 3), nn.BatchNorm2d(64) if norm else nn.Identity()
        self.blocks = nn.Sequential(Bottleneck(64, 64, 256, 1, norm), Bottleneck(256, 128, 512, 2, norm))
        self.last = nn.Linear(512 * 2 * 2, 10)  # the same for pictures of 28 × 28 and of 32 × 32
        for module in self.modules():
            if isinstance(module, nn.Conv2d | nn.Linear):
                nn.init.xavier_uniform_(module.weight)
                nn.init.zeros_(module.bias)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = F.max_pool2d(F.relu(self.norm(self.first(x))), 3, 2, 1)
        return self.last(F.avg_pool2d(self.blocks(x), 2).flatten(1))


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--data", help="folder of the real data sets; default: drawn pictures")
    parser.add_argument("--shape", choices=("cifar", "fashion"), default="cifar")
    parser.add_argument("--train-size", type=int, default=30_000)
    parser.add_argument("--test-size", type=int, default=2_000)
    parser.add_argument("--batch-size", type=int, default=512)
    parser.add_argument("--epochs", type=int, default=12)
    parser.add_argument("--norm", action="store_true", help="use batch norm")
    parser.add_argument("--optimizer", choices=("adam", "sgd"), default="adam")
    parser.add_argument("--lr", type=float, default=1e-3)
    parser.add_argument("--accumulate", type=int, default=1, help="batches per optimizer step")
    parser.add_argument("--until", type=float, help="stop when the mean of three test accuracies reaches this")
    parser.add_argument("--every", type=int, default=2048, help="with --until: samples between two tests")
    parser.add_argument(
        "--at-most", type=int, default=sys.maxsize, metavar="STEPS", help="with --until: maximum number of steps"
    )
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    args = parser.parse_args()

    torch.manual_seed(args.seed)
    x, y, x_test, y_test = pictures.load(args.shape, args.data, args.train_size, args.test_size)
    loader = DataLoader(TensorDataset(x, y), args.batch_size, shuffle=True, drop_last=args.accumulate > 1)
    model = Net(x.shape[1], args.norm).to(args.device)
    if args.optimizer == "adam":
        optimizer = torch.optim.Adam(model.parameters(), lr=args.lr, eps=1e-7)
    else:
        optimizer = torch.optim.SGD(model.parameters(), lr=args.lr, momentum=0.9)
    x_test, y_test = x_test.to(args.device), y_test.to(args.device)

    @torch.no_grad()
    def test() -> float:
        model.eval()
        parts = zip(x_test.split(500), y_test.split(500), strict=True)
        right = torch.stack([(model(a).argmax(1) == b).sum() for a, b in parts]).sum().item()
        model.train()
        return right / len(x_test)

    steps, seen, batches, last = 0, 0, 0, [0.0, 0.0, 0.0]
    for epoch in range(1, args.epochs + 1):
        model.train()
        right = torch.zeros((), device=args.device)
        for images, labels in loader:
            images, labels = images.to(args.device), labels.to(args.device)
            logits = model(images)
            loss = F.cross_entropy(logits, labels)
            (loss / args.accumulate).backward()
            right += (logits.argmax(1) == labels).sum()
            batches, seen = batches + 1, seen + len(labels)
            if batches % args.accumulate:
                continue
            optimizer.step()
            optimizer.zero_grad()
            steps += 1
            if args.until and seen >= args.every:
                seen, last = 0, [*last[1:], test()]
                if sum(last) / 3 >= args.until:
                    print(f"reached {args.until} after {steps} steps, test accuracy {last[-1]:.4f}")
                    return
                if not math.isfinite(loss.item()) or steps >= args.at_most:
                    print(f"given up at step {steps}, loss {loss.item():.4f}, test accuracy {last[-1]:.4f}")
                    return
        print(f"epoch {epoch} train accuracy {right.item() / len(x):.4f} test accuracy {test():.4f}")


if __name__ == "__main__":
    main()
