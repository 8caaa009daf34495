"""Indices come with the batch and address tables outside the model: per-sample losses, hard-example mining."""

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset


class Indexed(Dataset):
    def __init__(self, x, y):
        self.x, self.y = x, y

    def __len__(self):
        return len(self.x)

    def __getitem__(self, i):
        return i, self.x[i], self.y[i]


torch.manual_seed(229)
x = torch.randn(36, 5)
y = x[:, :3].argmax(1)
losses = torch.zeros(36)
model = nn.Sequential(nn.Linear(5, 10), nn.ReLU(), nn.Linear(10, 3))
optimizer = torch.optim.SGD(model.parameters(), lr=0.3)
for epoch in range(3):
    for i, a, b in DataLoader(Indexed(x, y), batch_size=10, shuffle=True):
        each = nn.functional.cross_entropy(model(a), b, reduction="none")
        losses[i] = each.detach()
        loss = each.topk(max(1, len(each) // 2)).values.mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    print(f"{epoch} {loss.item():.8f} hardest {losses.topk(3).indices.tolist()} mean {losses.mean().item():.8f}")
