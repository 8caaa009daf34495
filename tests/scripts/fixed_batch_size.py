"""The batch size is built into the model: its initial state has a row per sample."""

# test: right-or-refused=the model only works on the whole batch
# test: workers=2
import torch
from torch import nn


class Stateful(nn.Module):
    def __init__(self, batch):
        super().__init__()
        self.start = nn.Parameter(torch.randn(batch, 6) * 0.1)
        self.cell, self.out = nn.GRUCell(3, 6), nn.Linear(6, 1)

    def forward(self, x):
        h = self.start
        for t in range(x.size(1)):
            h = self.cell(x[:, t], h)
        return self.out(h)


torch.manual_seed(246)
model = Stateful(8)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
x = torch.randn(8, 4, 3)
for step in range(5):
    loss = nn.functional.mse_loss(model(x), x.sum((1, 2))[:, None])
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(f"{loss.item():.8f}")
