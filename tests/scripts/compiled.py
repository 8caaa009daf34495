"""torch.compile'd model, the default backend."""

# test: views=batch,slice
# test: slow=compiles C++
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(107)
x = torch.randn(40, 6)
loader = DataLoader(TensorDataset(x, x.sum(1, keepdim=True)), batch_size=10, shuffle=True)
model = nn.Sequential(nn.Linear(6, 12), nn.ReLU(), nn.Linear(12, 1))
compiled = torch.compile(model)
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
for epoch in range(3):
    for a, b in loader:
        optimizer.zero_grad()
        loss = nn.functional.mse_loss(compiled(a), b)
        loss.backward()
        optimizer.step()
        print(f"{loss.item():.8f}")
