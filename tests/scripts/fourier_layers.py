"""A Fourier layer, whose spectrum is written part by part."""

# test: workers=2

import torch
from torch import nn

torch.manual_seed(0)


class Spectral(nn.Module):
    def __init__(self, channels, modes):
        super().__init__()
        self.modes = modes
        self.weight = nn.Parameter(0.1 * torch.randn(channels, channels, 2 * modes, modes, dtype=torch.cfloat))

    def forward(self, x):
        f, m = torch.fft.rfft2(x), self.modes
        out = torch.zeros_like(f)
        out[:, :, :m, :m] = torch.einsum("bixy,ioxy->boxy", f[:, :, :m, :m], self.weight[:, :, :m])
        out[:, :, -m:, :m] = torch.einsum("bixy,ioxy->boxy", f[:, :, -m:, :m], self.weight[:, :, m:])
        return torch.fft.irfft2(out, s=x.shape[-2:])


net = nn.Sequential(nn.Conv2d(1, 4, 1), Spectral(4, 3), nn.GELU(), nn.Conv2d(4, 1, 1))
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
for _ in range(4):
    x = torch.randn(7, 1, 12, 12)
    loss = (net(x) - x.roll(1, -1)).pow(2).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(f"{loss.item():.6f}")
