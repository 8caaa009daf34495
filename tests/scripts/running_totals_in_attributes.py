"""The running loss, the number of samples and of correct predictions in plain attributes."""

import torch
import torch.nn.functional as F
from torch import nn


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(6, 3)
        self.total, self.count = 0.0, 0

    def forward(self, x, y):
        logits = self.layer(x)
        loss = F.cross_entropy(logits, y)
        self.total += loss.item() * len(x)
        self.count += len(x)
        self.correct = getattr(self, "correct", 0) + (logits.argmax(1) == y).sum().item()
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
    print(
        f"{step} loss {loss.item():.6f} mean {model.total / model.count:.6f} accuracy {model.correct / model.count:.6f}"
    )
