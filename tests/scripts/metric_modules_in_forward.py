"""Metrics as torchmetrics writes them: modules whose states are tensors in plain attributes, updated in forward."""

import torch
import torch.nn.functional as F
from torch import nn


class Metric(nn.Module):
    def __init__(self):
        super().__init__()
        self.reset()

    def reset(self):
        self.value, self.weight = torch.tensor(0.0), torch.tensor(0.0)

    def compute(self):
        return self.value / self.weight


class Accuracy(Metric):
    def update(self, logits, labels):
        self.value += (logits.argmax(-1) == labels).sum()
        self.weight += labels.numel()


class Mean(Metric):
    def update(self, value, weight):
        self.value = self.value + value * weight
        self.weight = self.weight + weight


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 3))
        self.accuracy, self.mean = Accuracy(), Mean()

    def forward(self, x, labels):
        logits = self.layers(x)
        loss = F.cross_entropy(logits, labels)
        self.accuracy.update(logits, labels)
        self.mean.update(loss.detach(), weight=len(x))
        return loss


torch.manual_seed(0)
model = Net()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
x = torch.randn(96, 8)
y = x[:, :3].argmax(1)
for epoch in range(3):
    for batch, labels in zip(x.split(16), y.split(16)):
        loss = model(batch, labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    print(f"{epoch} accuracy {model.accuracy.compute().item():.5f} mean loss {model.mean.compute().item():.5f}")
    model.accuracy.reset()
    model.mean.reset()
