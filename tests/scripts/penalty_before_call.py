"""A weight penalty that is computed before the model's call: its graph refers to the weights at the first call."""

# test: views=batch
import torch
from torch import nn

torch.manual_seed(31)
x = torch.randn(24, 6).double()
model = nn.Sequential(nn.Linear(6, 12), nn.Tanh(), nn.Linear(12, 4), nn.Tanh(), nn.Linear(4, 1)).double()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(6):
    l1, l2 = sum(p.abs().sum() for p in model.parameters()), sum(p.norm() for p in model.parameters())
    loss = nn.functional.mse_loss(model(x), x.prod(1, keepdim=True)) + 1e-3 * l1 + 1e-2 * l2
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    with torch.no_grad():
        model[2].weight[step % 4, step] = 0.125  # an element
        model[0].weight.data[step][0].mul_(0.5)
    print(f"{loss.item():.8f} {l1.item():.8f} {l2:.6f} {model[2].weight[0, 0].item():.6f}", l2.detach().shape)
