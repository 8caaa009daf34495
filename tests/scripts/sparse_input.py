"""A sparse tensor as the batch."""

# test: workers=2
import torch
from torch import nn


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(20, 3) * 0.2)

    def forward(self, x):
        return torch.sparse.mm(x, self.weight)


torch.manual_seed(260)
dense = (torch.rand(10, 20) < 0.2).float()
x, y = dense.to_sparse(), dense[:, :3].argmax(1)
model = Net()
optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
for step in range(5):
    loss = nn.functional.cross_entropy(model(x), y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(f"{loss.item():.8f}")
