"""Dropout and noise applied in the loop, outside every module with parameters: drawn from the script's own stream."""

import torch
import torch.nn.functional as F
from torch import nn

torch.manual_seed(203)
x = torch.randn(26, 6)
y = x.mean(1, keepdim=True)
encoder, decoder, drop = nn.Linear(6, 12), nn.Linear(12, 1), nn.Dropout(0.2)
optimizer = torch.optim.SGD([*encoder.parameters(), *decoder.parameters()], lr=0.1)
for step in range(10):
    hidden = drop(torch.tanh(encoder(x + 0.1 * torch.randn_like(x))))
    loss = F.mse_loss(decoder(F.dropout(hidden, 0.1)), y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(f"{loss.item():.8f} {torch.rand(()).item():.8f}")
