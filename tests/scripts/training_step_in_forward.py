"""A learner whose forward makes a whole training step (MAML's Meta.forward)."""

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn


class Learner(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Linear(16, 3))
        self.shortcut = nn.Linear(6, 3)
        self.optimizer = torch.optim.Adam(self.parameters(), lr=0.01)

    def forward(self, x, y):
        loss = F.cross_entropy(self.layers(x) + self.shortcut(x), y)
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        accuracy = (self.layers(x).argmax(1) == y).float().mean().item()
        return np.array([loss.item(), accuracy])


torch.manual_seed(0)
model = Learner()
for step in range(5):
    loss, accuracy = model(torch.randn(12, 6), torch.randint(0, 3, (12,)))
    weights = sum(p.abs().sum().item() for p in model.parameters())
    steps = int(model.optimizer.state[model.layers[0].weight]["step"])
    print(f"{step} loss {loss:.6f} accuracy {accuracy:.6f} weights {weights:.6f} steps {steps}")
