"""A model that returns its loss and nothing else."""

# test: views=batch,slice
# test: workers=2,3,5
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(6, 14), nn.ReLU(), nn.Linear(14, 3))

    def forward(self, x, y):
        return nn.functional.cross_entropy(self.net(x), y)


torch.manual_seed(40)
x = torch.randn(41, 6)
loader = DataLoader(TensorDataset(x, x[:, :3].argmax(1)), batch_size=8, shuffle=True)
model = Model()
optimizer = torch.optim.SGD(model.parameters(), lr=0.3)
for epoch in range(3):
    for a, b in loader:
        optimizer.zero_grad()
        loss = model(a, b)
        loss.backward()
        optimizer.step()
        print(f"{loss.item():.8f}")
print(f"{sum(p.abs().sum().item() for p in model.parameters()):.7f}")
