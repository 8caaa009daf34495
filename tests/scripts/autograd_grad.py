"""torch.autograd.grad and a hand-written update: .backward() is never called."""

# test: workers=2,3,5
import torch
from torch import nn

torch.manual_seed(92)
x = torch.randn(30, 5)
y = x[:, :1].sin()
model = nn.Sequential(nn.Linear(5, 10), nn.Tanh(), nn.Linear(10, 1))
params = list(model.parameters())
for step in range(15):
    rows = torch.randperm(30)[:11]
    loss = nn.functional.mse_loss(model(x[rows]), y[rows])
    grads = torch.autograd.grad(loss, params)
    with torch.no_grad():
        for p, g in zip(params, grads):
            p.sub_(g, alpha=0.1)
    print(f"{loss.item():.8f} {sum(g.pow(2).sum() for g in grads).sqrt().item():.8f}")
