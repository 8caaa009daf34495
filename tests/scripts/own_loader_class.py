"""A subclass of DataLoader with its own __iter__, and a loader class that isn't one."""

# test: workers=2
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


class Repeating(DataLoader):
    def __iter__(self):
        for _ in range(2):
            for x, y in super().__iter__():
                yield x * 1.0, y


class Fast:
    def __init__(self, *tensors, batch_size):
        self.tensors, self.batch_size = tensors, batch_size

    def __iter__(self):
        order = torch.randperm(len(self.tensors[0]))
        for i in range(0, len(order), self.batch_size):
            yield tuple(t[order[i : i + self.batch_size]] for t in self.tensors)


torch.manual_seed(324)
x = torch.randn(25, 4)
y = x.sum(1, keepdim=True)
model = nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
for loader in (Repeating(TensorDataset(x, y), batch_size=7, shuffle=True), Fast(x, y, batch_size=7)):
    for a, b in loader:
        loss = nn.functional.mse_loss(model(a), b)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        print(f"{type(loader).__name__} {loss.item():.8f}")
