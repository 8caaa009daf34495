"""A compiled function that calls the model and computes the loss."""

# test: right-or-refused=the model is called inside a graph
import torch
from torch import nn

torch.manual_seed(110)
x = torch.randn(24, 6)
y = x.sum(1, keepdim=True)
model = nn.Sequential(nn.Linear(6, 12), nn.Tanh(), nn.Linear(12, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)


@torch.compile(backend="eager")
def compute_loss(a, b):
    return (model(a) - b).pow(2).mean()


for step in range(6):
    optimizer.zero_grad()
    loss = compute_loss(x, y)
    loss.backward()
    optimizer.step()
    print(f"{loss.item():.8f}")
