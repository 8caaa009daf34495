"""Early stopping on the loss of training, with patience on validation."""

# test: views=batch,slice
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(188)
x = torch.randn(60, 5)
y = (x[:, 0] + 0.5 * torch.randn(60) > 0).long()
loader = DataLoader(TensorDataset(x[:40], y[:40]), batch_size=9, shuffle=True)
model = nn.Sequential(nn.Linear(5, 20), nn.ReLU(), nn.Linear(20, 2))
optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
best, patience = float("inf"), 0
for epoch in range(50):
    for a, b in loader:
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(a), b)
        loss.backward()
        optimizer.step()
        if loss.item() < 0.1:
            break
    with torch.no_grad():
        valid = nn.functional.cross_entropy(model(x[40:]), y[40:]).item()
    print(f"{epoch} train {loss.item():.7f} valid {valid:.7f}")
    if valid < best - 1e-4:
        best, patience = valid, 0
    else:
        patience += 1
        if patience == 3:
            print("stopped early at", epoch)
            break
