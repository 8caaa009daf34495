"""A VAE whose noise is drawn in the loop, between encoder and decoder."""

import torch
import torch.nn.functional as F
from torch import nn

torch.manual_seed(205)
data = torch.randn(33, 3) @ torch.randn(3, 8)
encoder, decoder = nn.Linear(8, 6), nn.Sequential(nn.Linear(3, 10), nn.ReLU(), nn.Linear(10, 8))
optimizer = torch.optim.SGD([*encoder.parameters(), *decoder.parameters()], lr=0.02)
for epoch in range(5):
    for rows in torch.randperm(33).split(10):
        mu, logvar = encoder(data[rows]).chunk(2, dim=1)
        z = mu + torch.randn_like(mu) * (0.5 * logvar).exp()
        kl = -0.5 * (1 + logvar - mu.pow(2) - logvar.exp()).sum(1).mean()
        loss = F.mse_loss(decoder(z), data[rows]) + 0.01 * kl
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    print(f"loss {loss.item():.8f} kl {kl.item():.8f}")
print(f"sample {decoder(torch.randn(4, 3)).abs().mean().item():.8f}")
