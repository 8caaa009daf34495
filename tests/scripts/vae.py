"""A VAE whose reparametrisation noise is drawn inside the model."""

import torch
import torch.nn.functional as F
from torch import nn


class VAE(nn.Module):
    def __init__(self):
        super().__init__()
        self.enc, self.dec = nn.Linear(8, 6), nn.Linear(3, 8)

    def forward(self, x):
        mu, logvar = self.enc(x).chunk(2, dim=1)
        z = mu + torch.randn_like(mu) * (0.5 * logvar).exp()
        return self.dec(z), mu, logvar


torch.manual_seed(204)
data = torch.randn(40, 3) @ torch.randn(3, 8)
model = VAE()
optimizer = torch.optim.SGD(model.parameters(), lr=0.02)
losses = []
for epoch in range(12):
    for rows in torch.randperm(40).split(10):
        out, mu, logvar = model(data[rows])
        kl = -0.5 * (1 + logvar - mu.pow(2) - logvar.exp()).sum(1).mean()
        loss = F.mse_loss(out, data[rows], reduction="sum") / len(rows) + 0.1 * kl
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    losses.append(loss.item())
    print(f"{epoch} loss {loss.item():.7f} kl {kl.item():.7f}")
print("learned", losses[-1] < losses[0])
