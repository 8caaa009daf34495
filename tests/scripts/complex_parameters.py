"""Complex weights."""

# test: right-or-refused=complex gradients
import torch
from torch import nn


class Spectral(nn.Module):
    def __init__(self):
        super().__init__()
        self.w = nn.Parameter(torch.randn(5, dtype=torch.cfloat) * 0.5)

    def forward(self, x):
        return torch.fft.irfft(torch.fft.rfft(x) * self.w, n=8)


torch.manual_seed(213)
x = torch.randn(15, 8)
y = x.roll(2, 1)
model = Spectral()
optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
for step in range(8):
    loss = nn.functional.mse_loss(model(x), y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(f"{loss.item():.8f} {model.w.abs().sum().item():.8f}")
