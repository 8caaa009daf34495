"""The model changes its input in place, and the loop uses that input afterwards."""

# test: workers=2
import torch
from torch import nn

torch.manual_seed(312)
model = nn.Sequential(nn.ReLU(inplace=True), nn.Linear(5, 8), nn.ReLU(inplace=True), nn.Linear(8, 5))
optimizer = torch.optim.SGD(model.parameters(), lr=0.2)
for step in range(5):
    x = torch.randn(11, 5)
    out = model(x)
    loss = nn.functional.mse_loss(out, x)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(f"{loss.item():.8f} {x.min().item():.8f} {x.sum().item():.7f}")
