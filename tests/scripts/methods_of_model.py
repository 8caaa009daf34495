"""model.encode and model.decode are called, never model itself."""

import torch
from torch import nn


class AutoEncoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.enc = nn.Sequential(nn.Linear(8, 6), nn.ReLU(), nn.Linear(6, 2))
        self.dec = nn.Sequential(nn.Linear(2, 6), nn.ReLU(), nn.Linear(6, 8))
        self.shift = nn.Parameter(torch.full((2,), 0.1))

    def encode(self, x):
        return self.enc(x) + self.shift

    def decode(self, z):
        return self.dec(z * 2)


torch.manual_seed(69)
x = torch.randn(25, 2) @ torch.randn(2, 8)
model = AutoEncoder()
optimizer = torch.optim.SGD(model.parameters(), lr=0.03)
for epoch in range(5):
    for batch in x.split(7):
        code = model.encode(batch)
        loss = nn.functional.mse_loss(model.decode(code), batch)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    print(f"{loss.item():.8f} shift {model.shift.tolist()} grad {model.shift.grad.norm().item():.8f}")
