"""Everything in float64: differences beyond the tenth digit would be a wrong factor, not rounding."""

# test: tolerance=1e-9
# test: workers=2,3,5
# test: views=batch,slice
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.set_default_dtype(torch.float64)
torch.manual_seed(212)
x = torch.randn(41, 5)
loader = DataLoader(TensorDataset(x, x.sum(1, keepdim=True).sin()), batch_size=9, shuffle=True)
model = nn.Sequential(nn.Linear(5, 10), nn.Tanh(), nn.Linear(10, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.2)
for epoch in range(3):
    for a, b in loader:
        optimizer.zero_grad()
        loss = nn.functional.mse_loss(model(a), b)
        loss.backward()
        optimizer.step()
        print(f"{loss.item():.13f} {model[0].weight.grad.norm().item():.13f}")
