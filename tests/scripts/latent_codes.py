"""Auto-decoder: a raw table of latent codes is optimised together with the decoder."""

import torch
from torch import nn

torch.manual_seed(162)
targets = torch.randn(20, 6)
codes = torch.zeros(20, 3, requires_grad=True)
decoder = nn.Sequential(nn.Linear(3, 12), nn.Tanh(), nn.Linear(12, 6))
optimizer = torch.optim.SGD([{"params": [codes], "lr": 2.0}, {"params": decoder.parameters()}], lr=0.2)
for epoch in range(5):
    for rows in torch.randperm(20).split(6):
        loss = nn.functional.mse_loss(decoder(codes[rows]), targets[rows]) + 1e-3 * codes[rows].pow(2).sum(1).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    print(f"{loss.item():.8f} codes {codes.norm().item():.8f}")
