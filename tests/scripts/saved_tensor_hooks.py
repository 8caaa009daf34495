"""Activations packed by saved_tensors_hooks; a device context; a default generator replaced for a moment."""

# test: workers=2
import torch
from torch import nn

torch.manual_seed(266)
with torch.device("cpu"):
    model = nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 1))
x = torch.randn(14, 4)
y = x.sum(1, keepdim=True)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
packed = 0


def pack(t):
    global packed
    packed += 1
    return t.double()


for step in range(4):
    with torch.autograd.graph.saved_tensors_hooks(pack, lambda t: t.float()):
        loss = nn.functional.mse_loss(model(x), y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(f"{loss.item():.8f} {packed > 0}")
