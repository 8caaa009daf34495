"""Weight norm and spectral norm (whose power iteration keeps buffers)."""

import torch
from torch import nn
from torch.nn.utils.parametrizations import spectral_norm, weight_norm

torch.manual_seed(126)
model = nn.Sequential(
    weight_norm(nn.Linear(6, 12)), nn.Tanh(), spectral_norm(nn.Linear(12, 8)), nn.Tanh(), nn.Linear(8, 1)
)
x = torch.randn(25, 6)
y = x.sum(1, keepdim=True).sin()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for epoch in range(5):
    model.train()
    for a, b in zip(x.split(7), y.split(7)):
        loss = nn.functional.mse_loss(model(a), b)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    model.eval()
    with torch.no_grad():
        print(
            f"{loss.item():.8f} {nn.functional.mse_loss(model(x), y).item():.8f} {torch.linalg.matrix_norm(model[2].weight, 2).item():.6f}"
        )
