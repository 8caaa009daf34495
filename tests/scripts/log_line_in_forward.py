"""forward appends each loss to a file: one line a call."""

import torch
import torch.nn.functional as F
from torch import nn


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(6, 3)

    def forward(self, x, y):
        loss = F.cross_entropy(self.layer(x), y)
        with open("losses.csv", "a") as file:
            file.write(f"{loss.item():.6f}\n")
        return loss


torch.manual_seed(5)
model = Net()
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
for step in range(5):
    x, y = torch.randn(9, 6), torch.randint(0, 3, (9,))
    loss = model(x, y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(f"{step} loss {loss.item():.6f} lines {len(open('losses.csv').readlines())}")
print(open("losses.csv").read())
