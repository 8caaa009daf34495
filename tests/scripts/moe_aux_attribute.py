"""A mixture of experts leaves its load-balancing loss, a product of two means over the batch, in an attribute."""

import torch
import torch.nn.functional as F
from torch import nn


class Experts(nn.Module):
    def __init__(self, width=8, count=4):
        super().__init__()
        self.gate = nn.Linear(width, count, bias=False)
        self.experts = nn.ModuleList(nn.Linear(width, width) for _ in range(count))
        self.balance = None

    def forward(self, x):
        p = self.gate(x).softmax(-1)
        top, chosen = p.max(-1)
        mixed = torch.stack([expert(x) for expert in self.experts], 1)
        used = F.one_hot(chosen, len(self.experts)).double().mean(0)
        self.balance = len(self.experts) * (used * p.mean(0)).sum()
        return x + top[:, None] * mixed[torch.arange(len(x)), chosen]


torch.set_default_dtype(torch.float64)
torch.manual_seed(3)
x = torch.randn(46, 8)
y = x[:, :3].argmax(1)
experts = Experts()
model = nn.Sequential(nn.Linear(8, 8), experts, nn.Linear(8, 3))
optimizer = torch.optim.SGD(model.parameters(), lr=0.2)
for _ in range(2):
    for rows in torch.randperm(46).split(16):
        loss = F.cross_entropy(model(x[rows]), y[rows])
        optimizer.zero_grad()
        (loss + 0.1 * experts.balance).backward()
        optimizer.step()
        print(f"{loss.item():.9f} {experts.balance.item():.9f}")
print(f"{sum(p.abs().sum() for p in model.parameters()).item():.9f}")
