"""A batch of one sample, whose output is flattened to (time, words)."""

import torch
from torch import nn


class Flat(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed, self.out = nn.Embedding(15, 6), nn.Linear(6, 15)

    def forward(self, x):
        return self.out(self.embed(x)).view(-1, 15)


torch.manual_seed(510)
text = torch.randint(15, (1, 60))
model = Flat()
optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
for step in range(5):
    x, y = text[:, step * 8 : step * 8 + 8], text[:, step * 8 + 1 : step * 8 + 9]
    loss = nn.functional.cross_entropy(model(x), y.view(-1))
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(f"{step} {loss.item():.8f}")
