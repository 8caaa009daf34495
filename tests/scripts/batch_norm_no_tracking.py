"""Batch norm without running statistics: it looks at the batch in evaluation, too."""

# test: right-or-refused=samples are mixed in evaluation, too
# test: workers=2
import torch
from torch import nn

torch.manual_seed(318)
model = nn.Sequential(nn.Linear(5, 8), nn.BatchNorm1d(8, track_running_stats=False), nn.ReLU(), nn.Linear(8, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
x = torch.randn(21, 5) + torch.arange(21)[:, None] / 7
y = x.sum(1, keepdim=True)
for step in range(5):
    model.train()
    loss = nn.functional.mse_loss(model(x), y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    model.eval()
    with torch.no_grad():
        print(f"{loss.item():.8f} eval {nn.functional.mse_loss(model(x[:9]), y[:9]).item():.8f}")
