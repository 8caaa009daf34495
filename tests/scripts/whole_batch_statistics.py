"""Numbers of the batch computed in the loop from outputs: quantiles, correlations, per-class means, histograms."""

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(237)
x = torch.randn(38, 5)
y = x.sum(1).sin()
model = nn.Sequential(nn.Linear(5, 12), nn.Tanh(), nn.Linear(12, 1), nn.Flatten(0))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for epoch in range(2):
    for a, b in DataLoader(TensorDataset(x, y), batch_size=9, shuffle=True):
        out = model(a)
        loss = nn.functional.mse_loss(out, b)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        o = out.detach()
        correlation = torch.corrcoef(torch.stack([o, b]))[0, 1].item() if len(o) > 2 else 0.0
        print(
            f"{loss.item():.7f} r {correlation:.6f} median {o.median().item():.7f} q90 {o.quantile(0.9).item():.7f} above {(o > 0).sum().item()}"
        )
