"""A stream: IterableDataset, no length, an uneven last batch."""

# test: views=batch,slice
import torch
from torch import nn
from torch.utils.data import DataLoader, IterableDataset


class Stream(IterableDataset):
    def __iter__(self):
        generator = torch.Generator().manual_seed(21)
        for i in range(43):
            x = torch.randn(4, generator=generator)
            yield x, (x.sum() > 0).float()


torch.manual_seed(9)
model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
loss_fn = nn.BCEWithLogitsLoss()
seen = 0
for epoch in range(3):
    for x, y in DataLoader(Stream(), batch_size=8):
        loss = loss_fn(model(x)[:, 0], y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        seen += 1
        print(f"{seen:3d} {loss.item():.8f}")
