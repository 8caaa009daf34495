"""One parameter used inside the model, outside it on the batch, and in a penalty: each use has its own factor."""

# test: workers=2,3,5
import torch
from torch import nn


class Scale(nn.Module):
    def __init__(self):
        super().__init__()
        self.w = nn.Parameter(torch.tensor([[0.5, -0.3], [0.2, 0.8], [-0.6, 0.1]]))

    def forward(self, x):
        return torch.tanh(x @ self.w)


torch.manual_seed(74)
x, y = torch.randn(17, 3), torch.randn(17, 2)
model = Scale()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(10):
    h = model(x)
    back = h @ model.w.T
    loss = (
        (h - y).pow(2).mean()
        + (back - x).pow(2).mean()
        + 0.3 * model.w.pow(2).sum()
        + 0.1 * (model(back) - h).abs().mean()
    )
    optimizer.zero_grad()
    loss.backward()
    print(f"{loss.item():.8f} {[round(v, 8) for v in model.w.grad.flatten().tolist()]}")
    optimizer.step()
