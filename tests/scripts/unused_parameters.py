"""Branches: some parameters get no gradient in some steps; one never does."""

# test: views=batch,slice
# test: workers=2,3,5
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


class Branching(nn.Module):
    def __init__(self):
        super().__init__()
        self.stem = nn.Linear(4, 8)
        self.branches = nn.ModuleList([nn.Linear(8, 1), nn.Linear(8, 1)])
        self.never = nn.Linear(3, 3)

    def forward(self, x, which):
        return self.branches[which](torch.relu(self.stem(x)))


torch.manual_seed(119)
x = torch.randn(40, 4)
model = Branching()
optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
for step, (a, b) in enumerate(DataLoader(TensorDataset(x, x.sum(1, keepdim=True)), batch_size=6)):
    loss = nn.functional.mse_loss(model(a, step % 3 % 2), b)
    optimizer.zero_grad()
    loss.backward()
    missing = [n for n, p in model.named_parameters() if p.grad is None]
    optimizer.step()
    print(f"{loss.item():.8f} without gradient: {missing}")
