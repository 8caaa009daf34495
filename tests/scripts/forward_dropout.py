"""model.forward(x) of a model with dropout, batch norm and a mean over its hidden layer."""

import torch
import torch.nn.functional as F
from torch import nn


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc1, self.norm, self.fc2 = nn.Linear(6, 16), nn.BatchNorm1d(16), nn.Linear(16, 2)
        self.scale = nn.Parameter(torch.ones(2))

    def forward(self, x):
        h = F.dropout(torch.relu(self.norm(self.fc1(x))), 0.3, self.training)
        return self.fc2(h) * self.scale


torch.manual_seed(506)
x = torch.randn(21, 6)
y = (x.sum(1) > 0).long()
model = Net()
optimizer = torch.optim.SGD(model.parameters(), lr=0.2)
for step in range(6):
    loss = F.cross_entropy(model.forward(x), y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(f"{step} {loss.item():.8f} {model.scale.sum().item():.8f}")
model.eval()
print(f"{F.cross_entropy(model.forward(x), y).item():.8f}")
