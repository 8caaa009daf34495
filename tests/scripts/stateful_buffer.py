"""The model keeps running statistics of its inputs in a buffer and normalises with them."""

# test: right-or-refused=a buffer that depends on the rows seen
import torch
from torch import nn


class Normalised(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("center", torch.zeros(4))
        self.net = nn.Linear(4, 1)

    def forward(self, x):
        if self.training:
            self.center += 0.2 * (x.mean(0) - self.center)
        return self.net(x - self.center)


torch.manual_seed(156)
x = torch.randn(24, 4) + torch.linspace(0, 4, 24)[:, None]
y = x.sum(1, keepdim=True)
model = Normalised()
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for step in range(10):
    rows = torch.randperm(24)[:10]
    loss = nn.functional.mse_loss(model(x[rows]), y[rows])
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(f"{loss.item():.7f} center {model.center.sum().item():.7f}")
model.eval()
print(f"eval {nn.functional.mse_loss(model(x), y).item():.7f}")
