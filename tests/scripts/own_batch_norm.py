"""A batch norm written by hand: in training it mixes the batch, in evaluation it doesn't."""

# test: right-or-refused=samples are mixed in training mode only
import torch
from torch import nn


class Norm(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.gain, self.shift = nn.Parameter(torch.ones(width)), nn.Parameter(torch.zeros(width))
        self.register_buffer("mean", torch.zeros(width))
        self.register_buffer("var", torch.ones(width))

    def forward(self, x):
        if self.training:
            mean, var = x.mean(0), x.var(0, unbiased=False)
            self.mean.lerp_(mean.detach(), 0.1)
            self.var.lerp_(var.detach(), 0.1)
        else:
            mean, var = self.mean, self.var
        return (x - mean) / (var + 1e-5).sqrt() * self.gain + self.shift


torch.manual_seed(61)
x = torch.randn(24, 5) + torch.arange(24)[:, None] / 6
y = x.sum(1, keepdim=True)
model = nn.Sequential(nn.Linear(5, 8), Norm(8), nn.ReLU(), nn.Linear(8, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.02)
for step in range(8):
    loss = nn.functional.mse_loss(model(x), y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(f"{loss.item():.7f} {model[1].mean.sum().item():.7f}")
