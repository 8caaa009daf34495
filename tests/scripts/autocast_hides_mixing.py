"""Under autocast the rounding of bfloat16 is larger than what the samples add to each other."""

# test: tolerance=2e-2  sums of bfloat16 in another order
import torch
import torch.nn.functional as F
from torch import nn


class Mixing(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(32, 4)

    def forward(self, x):
        y = self.layer(x)
        return y + 0.1 * y.mean(0, keepdim=True)


torch.manual_seed(0)
x = torch.randn(64, 32) + torch.arange(64)[:, None] / 16
y = torch.randint(0, 4, (64,))
model = Mixing()
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
for step in range(8):
    with torch.autocast("cpu", torch.bfloat16):
        loss = F.cross_entropy(model(x), y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(f"{step} loss {loss.item():.6f}")
