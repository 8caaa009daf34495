"""torch.compile through aot_eager (no C++ compiler needed), uneven batches, evaluation with the compiled model."""

# test: views=batch,slice
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(108)
x = torch.randn(25, 6)
y = x.sum(1, keepdim=True)
loader = DataLoader(TensorDataset(x, y), batch_size=10, shuffle=True)
model = torch.compile(nn.Sequential(nn.Linear(6, 12), nn.ReLU(), nn.Linear(12, 1)), backend="aot_eager")
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
for epoch in range(3):
    model.train()
    for a, b in loader:
        optimizer.zero_grad()
        loss = nn.functional.mse_loss(model(a), b)
        loss.backward()
        optimizer.step()
        print(f"{loss.item():.8f}")
    model.eval()
    with torch.no_grad():
        print(f"eval {nn.functional.mse_loss(model(x), y).item():.8f}")
