"""The number of random draws differs from call to call: dropout of the input by chance, and always of a weight."""

import torch
import torch.nn.functional as F
from torch import nn


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight, self.head = nn.Parameter(torch.randn(64, 64) / 8), nn.Linear(64, 4)

    def forward(self, x):
        if torch.rand(()).item() < 0.5:
            x = F.dropout(x, 0.2, self.training)
        return self.head(x @ F.dropout(self.weight, 0.5, self.training))


torch.manual_seed(0)
x = torch.randn(8, 64) + torch.arange(8)[:, None] / 2
y = torch.randint(0, 3, (8,))
model = Net()
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for step in range(10):
    loss = F.cross_entropy(model(x), y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(f"{step} loss {loss.item():.6f}")
