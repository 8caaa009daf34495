"""Semi-supervised: two loaders of different batch sizes, zipped, one of them cycled."""

from itertools import cycle

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(28)
labelled = TensorDataset(torch.randn(14, 6), torch.randint(0, 3, (14,)))
unlabelled = TensorDataset(torch.randn(52, 6))
few = DataLoader(labelled, batch_size=4, shuffle=True)
many = DataLoader(unlabelled, batch_size=10, shuffle=True)
model = nn.Sequential(nn.Linear(6, 10), nn.ReLU(), nn.Linear(10, 3))
optimizer = torch.optim.SGD(model.parameters(), lr=0.2)
for epoch in range(2):
    for (x, y), (u,) in zip(cycle(few), many):
        supervised = nn.functional.cross_entropy(model(x), y)
        p, q = model(u).softmax(1), model(u + 0.1).softmax(1)
        consistency = (p - q).pow(2).sum(1).mean()
        loss = supervised + 5 * consistency
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        print(f"{supervised.item():.8f} {consistency.item():.10f}")
