"""The model returns sums and counts with a number added, bounded or compared: an everyday denominator."""

import torch
import torch.nn.functional as F
from torch import nn


class Tagger(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(6, 4)

    def forward(self, x, target, mask):
        loss = F.cross_entropy(self.layer(x), target, reduction="none")
        return (loss * mask).sum(), mask.sum() + 1.0


class Positives(Tagger):
    def forward(self, x, target, mask):
        loss = F.cross_entropy(self.layer(x), target, reduction="none")
        positive = target > 2
        if positive.sum() > 0:
            loss = loss + 0.1 * self.layer(x).pow(2).sum(1)
        return (loss * mask).sum(), positive.sum().clamp(min=1)


class Latest(Tagger):
    """The last sample of a class is its prototype."""

    def forward(self, x, target, mask):
        prototypes = torch.zeros(9, 4)
        prototypes[target] = self.layer(x)
        return (prototypes**2).sum(), mask.sum().clamp(min=1)


class Logged(Tagger):
    """A loss over targets that count, and copies of it."""

    def forward(self, x, target, mask):
        loss = F.cross_entropy(self.layer(x), target.where(mask > 0, -1), None, None, -1)
        return loss.view(1).sum(), loss.detach().clone()


for cls in (Tagger, Positives, Latest, Logged):
    torch.manual_seed(1)
    model = cls()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(6):
        x, target = torch.randn(12, 6), torch.randint(0, 4, (12,))
        target[: 6 + step] = target[: 6 + step].clamp(max=2)
        mask = (torch.rand(12) < 0.4).float()
        total, count = model(x, target, mask)
        loss = total / count.clamp(min=0.1)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        print(cls.__name__, f"{loss.item():.6f} {count.item():.5f} {model.layer.weight.abs().sum().item():.6f}")
