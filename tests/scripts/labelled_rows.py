"""Semi-supervised: the first 8 rows of a batch are labelled, and the model knows that."""

import torch
import torch.nn.functional as F
from torch import nn


class Net(nn.Module):
    def __init__(self, labelled):
        super().__init__()
        self.labelled = labelled
        self.body = nn.Sequential(nn.Linear(6, 12), nn.ReLU())
        self.head = nn.Linear(12, 3)

    def forward(self, x):
        h = self.body(x)
        return self.head(h[: self.labelled]), self.head(h[self.labelled :])


torch.manual_seed(0)
model = Net(labelled=8)
optimizer = torch.optim.SGD(model.parameters(), lr=0.2)
for step in range(6):
    x = torch.randn(20, 6)
    target = x[:8, :3].argmax(1)
    labelled, unlabelled = model(x)
    guess = unlabelled.detach().argmax(1)
    loss = F.cross_entropy(labelled, target) + 0.3 * F.cross_entropy(unlabelled, guess)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(f"{step} {tuple(labelled.shape)} {tuple(unlabelled.shape)} {loss.item():.6f}")
