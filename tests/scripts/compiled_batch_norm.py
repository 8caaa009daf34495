"""torch.compile of a model with batch norm, in training and in evaluation."""

import torch
from torch import nn

torch.manual_seed(8)
x = torch.randn(18, 3, 4, 4, dtype=torch.float64)
y = x.mean((1, 2, 3)).unsqueeze(1)
layers = [nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Linear(16, 8), nn.BatchNorm1d(8)]
model = nn.Sequential(*layers, nn.Linear(8, 1)).double()
model = torch.compile(model, backend="aot_eager")
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(6):
    loss = nn.functional.mse_loss(model(x), y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(f"step {step} loss {loss.item():.10f}")
model.eval()
with torch.no_grad():
    print(f"evaluated {nn.functional.mse_loss(model(x), y).item():.10f}")
