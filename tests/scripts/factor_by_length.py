"""A factor that depends on the number of rows, in such a way that few rows and all rows have the same one."""

# test: workers=2,3
import torch
from torch import nn
from torch.nn import functional as F


class Scaled(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(6, 4)

    def forward(self, x, y):
        return F.cross_entropy(self.layer(x) * (2.0 if len(x) % 4 == 0 else 1.0), y)


torch.manual_seed(0)
model = Scaled()
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
for step in range(5):
    loss = model(torch.randn(9, 6), torch.randint(4, (9,)))
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(f"{loss.item():.8f}")
