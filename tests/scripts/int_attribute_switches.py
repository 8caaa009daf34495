"""The script sets a number in an attribute; from then on the model subtracts the mean of its batch."""

import torch
import torch.nn.functional as F
from torch import nn


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer, self.phase = nn.Linear(64, 4), 0

    def forward(self, x):
        logits = self.layer(x)
        return logits - logits.mean(0) if self.phase else logits


torch.manual_seed(0)
x = torch.randn(8, 64) + torch.arange(8)[:, None] / 2
y = torch.randint(0, 3, (8,))
model = Net()
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for step in range(7):
    model.phase = int(step >= 4)
    loss = F.cross_entropy(model(x), y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(f"{step} phase {model.phase} loss {loss.item():.6f}")
