"""AllenNLP's way: the model updates its metrics in forward and returns a dictionary with the loss."""

import torch
import torch.nn.functional as F
from torch import nn


class Accuracy:
    def __init__(self):
        self.reset()

    def __call__(self, logits, labels):
        self.correct += (logits.argmax(-1) == labels).sum().item()
        self.total += labels.numel()

    def get(self):
        return self.correct / self.total

    def reset(self):
        self.correct, self.total = 0.0, 0.0


class Average:
    def __init__(self):
        self.sum, self.count = 0.0, 0

    def __call__(self, value):
        self.sum += value
        self.count += 1

    def get(self):
        return self.sum / self.count


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Dropout(0.2), nn.Linear(16, 3))
        self.accuracy, self.average = Accuracy(), Average()

    def forward(self, x, labels):
        logits = self.layers(x)
        loss = F.cross_entropy(logits, labels)
        self.accuracy(logits, labels)
        self.average(loss.item())
        return {"logits": logits, "loss": loss}


torch.manual_seed(0)
model = Net()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
x = torch.randn(96, 8)
y = x[:, :3].argmax(1)
for epoch in range(3):
    for batch, labels in zip(x.split(16), y.split(16)):
        loss = model(batch, labels)["loss"]
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    print(f"{epoch} accuracy {model.accuracy.get():.5f} average loss {model.average.get():.5f}")
    model.accuracy.reset()
