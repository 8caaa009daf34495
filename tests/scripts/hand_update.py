"""No optimizer: p -= lr * p.grad under no_grad."""

# test: views=batch,slice
# test: workers=2,3,5
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(90)
x = torch.randn(35, 4)
loader = DataLoader(TensorDataset(x, x.pow(2).sum(1, keepdim=True)), batch_size=8, shuffle=True)
model = nn.Sequential(nn.Linear(4, 16), nn.ReLU(), nn.Linear(16, 1))
lr = 0.02
for epoch in range(4):
    for a, b in loader:
        model.zero_grad()
        loss = nn.functional.mse_loss(model(a), b)
        loss.backward()
        with torch.no_grad():
            for p in model.parameters():
                p -= lr * p.grad
        print(f"{loss.item():.8f}")
