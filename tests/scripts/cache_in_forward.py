"""A dictionary in which forward keeps a number of the last sample of each class."""

import torch
import torch.nn.functional as F
from torch import nn


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer, self.last = nn.Linear(6, 3), {}

    def forward(self, x, y):
        logits = self.layer(x)
        for label, row in zip(y.tolist(), logits.detach()):
            self.last[label] = row.mean().item()
        return F.cross_entropy(logits, y)


torch.manual_seed(5)
model = Net()
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
for step in range(5):
    x, y = torch.randn(9, 6), torch.randint(0, 3, (9,))
    loss = model(x, y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(f"{step} loss {loss.item():.6f} classes {len(model.last)} sum {sum(model.last.values()):.6f}")
