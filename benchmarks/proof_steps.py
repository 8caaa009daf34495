"""The script of benchmarks/proof.py, written for one worker: trains one of five models on made-up data.

    python benchmarks/proof_steps.py cnn 80
    paceline run -n 2 benchmarks/proof_steps.py bert 8

Prints the time of the first and of the second step, and the median of the steps of the last half.
"""

from __future__ import annotations

import statistics
import sys
import time
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import nn

sys.path.insert(0, str(Path(__file__).parents[1] / "examples"))

from cnn import CNN
from gpt import GPT
from resnet18 import ResNet18

WORDS = 2000


class Bert(nn.Module):
    """An encoder of BERT-base's size with a classifier of the first token."""

    def __init__(self, layers: int = 12, width: int = 768, tokens: int = 128) -> None:
        super().__init__()
        self.word, self.position = nn.Embedding(WORDS, width), nn.Embedding(tokens, width)
        self.norm, self.dropout = nn.LayerNorm(width), nn.Dropout(0.1)
        layer = nn.TransformerEncoderLayer(width, 12, 4 * width, 0.1, "gelu", batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, layers)
        self.head = nn.Linear(width, 10)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        x = self.word(ids) + self.position(torch.arange(ids.shape[1], device=ids.device))
        return self.head(self.encoder(self.dropout(self.norm(x)))[:, 0])


class Bottleneck(nn.Module):
    def __init__(self, inputs: int, width: int, stride: int) -> None:
        super().__init__()
        self.body = nn.Sequential(
            *(nn.Conv2d(inputs, width, 1, bias=False), nn.BatchNorm2d(width), nn.ReLU()),
            *(nn.Conv2d(width, width, 3, stride, 1, bias=False), nn.BatchNorm2d(width), nn.ReLU()),
            *(nn.Conv2d(width, 4 * width, 1, bias=False), nn.BatchNorm2d(4 * width)),
        )
        self.shortcut = nn.Sequential()
        if stride != 1 or inputs != 4 * width:
            self.shortcut = nn.Sequential(
                nn.Conv2d(inputs, 4 * width, 1, stride, bias=False), nn.BatchNorm2d(4 * width)
            )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return F.relu(self.body(x) + self.shortcut(x))


def resnet50() -> nn.Module:
    blocks, inputs = list[nn.Module](), 64
    for width, count, stride in ((64, 3, 1), (128, 4, 2), (256, 6, 2), (512, 3, 2)):
        for number in range(count):
            blocks.append(Bottleneck(inputs, width, stride if number == 0 else 1))
            inputs = 4 * width
    stem = (nn.Conv2d(3, 64, 7, 2, 3, bias=False), nn.BatchNorm2d(64), nn.ReLU(), nn.MaxPool2d(3, 2, 1))
    return nn.Sequential(*stem, *blocks, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(inputs, 10))


def made(name: str) -> tuple[nn.Module, torch.Tensor, torch.Tensor]:
    """A model, a batch and its targets."""
    match name:
        case "cnn":
            return CNN(1, 28, 10, 0.0), torch.randn(256, 1, 28, 28), torch.randint(10, (256,))
        case "gpt":
            ids = torch.randint(WORDS, (16, 81))
            return GPT(WORDS, 80, 4, 256, 4, 0.0), ids[:, :-1].contiguous(), ids[:, 1:].contiguous()
        case "resnet18":
            return ResNet18(10), torch.randn(32, 3, 32, 32), torch.randint(10, (32,))
        case "bert":
            return Bert(), torch.randint(WORDS, (8, 128)), torch.randint(10, (8,))
        case "resnet50":
            return resnet50(), torch.randn(8, 3, 96, 96), torch.randint(10, (8,))
    raise SystemExit(f"There is no model named {name}: type cnn, gpt, resnet18, bert or resnet50.")


def main() -> None:
    name, steps = sys.argv[1], int(sys.argv[2])
    torch.manual_seed(0)
    model, batch, target = made(name)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    times = []
    for _ in range(steps):
        began = time.perf_counter()
        logits = model(batch)
        loss = F.cross_entropy(logits.flatten(0, -2), target.flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        loss.item()
        times.append(time.perf_counter() - began)
    later = statistics.median(times[max(2, steps // 2) :])
    print(f"first {times[0]:.4f} s, second {times[1]:.4f} s, later {1000 * later:.3f} ms")


if __name__ == "__main__":
    main()
