"""The script seeds itself: dropout and noise inside the model, and a call on one sample, are those of the seed."""

import torch
from torch import nn


class Vae(nn.Module):
    def __init__(self):
        super().__init__()
        self.enc, self.dec = nn.Linear(6, 4), nn.Sequential(nn.Dropout(0.3), nn.Linear(2, 6))

    def forward(self, x):
        mean, logvar = self.enc(x).chunk(2, -1)
        return self.dec(mean + torch.randn_like(mean) * (0.5 * logvar).exp())


for seed in (408, 408, 409):
    torch.manual_seed(seed)
    x = torch.randn(13, 6)
    model = Vae()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(4):
        loss = nn.functional.mse_loss(model(x), x, reduction="sum")
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        one = model(x[step : step + 1])
        print(f"{seed} {loss.item():.8f} {one.sum().item():.8f} {torch.rand(()).item():.8f}")
