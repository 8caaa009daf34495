"""A model that returns a summed loss: the mean of slices' sums is not the sum."""

# test: right-or-refused=a 0-dim output that is a sum, not a mean
import torch
from torch import nn


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Linear(5, 1)

    def forward(self, x, y):
        return nn.functional.mse_loss(self.net(x), y, reduction="sum")


torch.manual_seed(42)
x = torch.randn(30, 5)
y = x.sum(1, keepdim=True)
model = Model()
optimizer = torch.optim.SGD(model.parameters(), lr=0.005)
for step in range(10):
    loss = model(x, y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(f"{step} {loss.item():.7f}")
