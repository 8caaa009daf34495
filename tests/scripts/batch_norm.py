"""Batch norm in a small network, running statistics printed, evaluation with them."""

# test: views=batch,slice
# test: workers=2,3,5
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(58)
x = torch.randn(43, 6) * 3 + 1
y = (x[:, 0] > x[:, 1]).long()
loader = DataLoader(TensorDataset(x, y), batch_size=12, shuffle=True)
model = nn.Sequential(nn.Linear(6, 10), nn.BatchNorm1d(10), nn.ReLU(), nn.Linear(10, 2))
optimizer = torch.optim.SGD(model.parameters(), lr=0.2)
for epoch in range(3):
    model.train()
    for a, b in loader:
        loss = nn.functional.cross_entropy(model(a), b)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        print(f"{loss.item():.8f}")
    model.eval()
    with torch.no_grad():
        print(f"accuracy {(model(x).argmax(1) == y).float().mean().item():.6f}")
bn = model[1]
print(
    f"mean {bn.running_mean.abs().sum().item():.7f} var {bn.running_var.sum().item():.7f} seen {bn.num_batches_tracked.item()}"
)
