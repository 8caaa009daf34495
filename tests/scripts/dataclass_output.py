"""A model that takes and returns dataclasses."""

from dataclasses import dataclass

import torch
from torch import nn


@dataclass
class Batch:
    x: torch.Tensor
    y: torch.Tensor
    name: str = "train"


@dataclass
class Output:
    logits: torch.Tensor
    hidden: torch.Tensor
    loss: torch.Tensor | None = None


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(5, 11), nn.Linear(11, 4)

    def forward(self, batch):
        hidden = torch.tanh(self.first(batch.x))
        return Output(logits=self.second(hidden), hidden=hidden)


torch.manual_seed(17)
x = torch.randn(27, 5)
y = x[:, :4].argmax(1)
model = Net()
optimizer = torch.optim.SGD(model.parameters(), lr=0.4)
for epoch in range(5):
    for start in range(0, 27, 9):
        batch = Batch(x[start : start + 9], y[start : start + 9])
        output = model(batch)
        output.loss = nn.functional.cross_entropy(output.logits, batch.y)
        optimizer.zero_grad()
        output.loss.backward()
        optimizer.step()
    print(f"{output.loss.item():.8f} {output.hidden.abs().mean().item():.8f} {tuple(output.logits.shape)}")
