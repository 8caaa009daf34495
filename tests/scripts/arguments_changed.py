"""Models that write their result into the batch, pop a key, mask labels and extend a list, as the script sees later."""

from types import SimpleNamespace

import torch
from torch import nn


class Writes(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(5, 3)

    def forward(self, b):
        b["logits"] = self.fc(b["x"])
        return b


class Pops(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(5, 3)

    def forward(self, b):
        labels = b.pop("labels")
        labels[labels == 0] = -100
        logits = self.fc(b["x"])
        return nn.functional.cross_entropy(logits, labels), logits


class Appends(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Linear(5, 5), nn.Linear(5, 3)

    def forward(self, x, kept):
        h = torch.tanh(self.a(x))
        kept.append(h)
        return self.b(h)


class Scales(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(5, 3)

    def forward(self, b):
        b.x.mul_(1.5)
        b.seen = len(b.x)
        b.extra["logits"] = self.fc(b.x)
        return b.extra["logits"], b


torch.manual_seed(410)
x, y = torch.randn(14, 5), torch.randint(3, (14,))
writes, pops, appends, scales = Writes(), Pops(), Appends(), Scales()
optimizer = torch.optim.SGD(
    [*writes.parameters(), *pops.parameters(), *appends.parameters(), *scales.parameters()], lr=0.3
)
for step in range(5):
    batch = {"x": x}
    out = writes(batch)
    first = nn.functional.cross_entropy(batch["logits"], y)
    given = {"x": x, "labels": y.clone()}
    labels = given["labels"]
    second, _ = pops(given)
    kept = []
    third = nn.functional.cross_entropy(appends(x, kept), y) + kept[0].pow(2).mean()
    holder = SimpleNamespace(x=x.clone(), extra={})
    logits, same = scales(holder)
    fourth = nn.functional.cross_entropy(holder.extra["logits"], y)
    optimizer.zero_grad()
    (first + second + third + fourth).backward()
    optimizer.step()
    print(f"{first.item():.8f} {second.item():.8f} {third.item():.8f} {fourth.item():.8f}")
    print(f"{holder.x.sum().item():.6f} {holder.seen} {same is holder} {logits.sum().item():.6f}")
    print(out is batch, sorted(batch), sorted(given), int((labels == -100).sum()), len(kept), tuple(kept[0].shape))
