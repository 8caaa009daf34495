"""Several parameter groups: no decay for biases, another rate for the head."""

# test: views=batch,slice
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(123)
x = torch.randn(30, 6)
loader = DataLoader(TensorDataset(x, x.sum(1, keepdim=True)), batch_size=8, shuffle=True)
model = nn.Sequential(nn.Linear(6, 10), nn.LayerNorm(10), nn.ReLU(), nn.Linear(10, 1))
decay = [p for p in model.parameters() if p.ndim > 1]
rest = [p for p in model.parameters() if p.ndim == 1]
optimizer = torch.optim.SGD(
    [{"params": decay, "weight_decay": 0.1}, {"params": rest, "lr": 0.01, "momentum": 0.9}], lr=0.05
)
for epoch in range(4):
    for a, b in loader:
        optimizer.zero_grad()
        loss = nn.functional.mse_loss(model(a), b)
        loss.backward()
        optimizer.step()
    print(
        f"{loss.item():.8f}", [f"{sum(p.abs().sum().item() for p in g['params']):.7f}" for g in optimizer.param_groups]
    )
