"""A metric that wraps its own method in an attribute, as torchmetrics does: a copy's attribute is bound to the original."""
# test: workers=2

import torch
from torch import nn
from torch.nn import functional as F

torch.manual_seed(30)


class Accuracy(nn.Module):
    def __init__(self):
        super().__init__()
        self.right, self.seen = torch.zeros(3), torch.zeros(())
        self.update = self.wrapped(self.update)

    def wrapped(self, update):
        return lambda *given: update(*given)

    def update(self, scores, y):
        self.right = self.right + torch.bincount(y[scores.argmax(1) == y], minlength=3)
        self.seen += len(y)


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer, self.accuracy = nn.Linear(8, 3), Accuracy()

    def forward(self, x, y):
        scores = self.layer(x)
        self.accuracy.update(scores, y)
        return F.cross_entropy(scores, y)


model = Model()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(4):
    x = torch.randn(16, 8)
    loss = model(x, x[:, :3].argmax(1))
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(step, f"{loss.item():.5f}", model.accuracy.right.sum().item(), model.accuracy.seen.item())
