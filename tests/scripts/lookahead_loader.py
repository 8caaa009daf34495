"""The next batch is fetched before the current one is used (a home-made prefetcher), in a background thread."""

import queue
import threading

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


def prefetch(loader, depth=2):
    q = queue.Queue(depth)

    def fill():
        for batch in loader:
            q.put(batch)
        q.put(None)

    threading.Thread(target=fill, daemon=True).start()
    while (batch := q.get()) is not None:
        yield batch


torch.manual_seed(32)
x = torch.randn(40, 6)
loader = DataLoader(
    TensorDataset(x, x.sum(1, keepdim=True).cos()),
    batch_size=9,
    shuffle=True,
    generator=torch.Generator().manual_seed(2),
)
model = nn.Sequential(nn.Linear(6, 10), nn.Tanh(), nn.Linear(10, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.2)
for epoch in range(3):
    for a, b in prefetch(loader):
        loss = nn.functional.mse_loss(model(a), b)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        print(f"{epoch} {loss.item():.8f}")
