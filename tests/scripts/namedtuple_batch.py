"""Named tuples as samples, batches and outputs."""

from collections import namedtuple
from typing import NamedTuple

import torch
from torch import nn
from torch.utils.data import DataLoader

Sample = namedtuple("Sample", ["pixels", "label"])


class Output(NamedTuple):
    logits: torch.Tensor
    features: torch.Tensor


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Linear(9, 12)
        self.head = nn.Linear(12, 3)

    def forward(self, batch: Sample) -> Output:
        features = torch.relu(self.body(batch.pixels.flatten(1)))
        return Output(logits=self.head(features), features=features)


torch.manual_seed(16)
samples = [Sample(torch.rand(3, 3), i % 3) for i in range(20)]
model = Net()
optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
for batch in list(DataLoader(samples, batch_size=6)) * 4:
    output = model(batch)
    loss = nn.functional.cross_entropy(output.logits, batch.label)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(f"{loss.item():.8f} {type(output).__name__} {output.features.mean().item():.8f}")
