"""An endless generator of batches and a fixed number of steps."""

import itertools

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


def forever(loader):
    while True:
        yield from loader


torch.manual_seed(29)
x = torch.randn(25, 4)
loader = DataLoader(TensorDataset(x, x[:, :1] - x[:, 1:2]), batch_size=6, shuffle=True)
model = nn.Linear(4, 1)
opt = torch.optim.SGD(model.parameters(), lr=0.1)
for step, (a, b) in enumerate(itertools.islice(forever(loader), 13), 1):
    out = model(a)
    loss = (out - b).abs().mean()
    opt.zero_grad()
    loss.backward()
    opt.step()
    print(step, len(a), f"{loss.item():.8f} {out.std().item():.8f}")
