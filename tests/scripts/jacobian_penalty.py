"""torch.autograd.functional: a Jacobian of the model in the loss, a Hessian printed."""

# test: right-or-refused=derivatives taken by a helper of torch
# test: workers=2
import torch
from torch import nn
from torch.autograd.functional import hessian, jacobian

torch.manual_seed(249)
x = torch.randn(7, 3)
y = x.sum(1, keepdim=True).sin()
model = nn.Sequential(nn.Linear(3, 6), nn.Tanh(), nn.Linear(6, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(4):
    J = jacobian(model, x, create_graph=True)
    penalty = J.pow(2).sum() / 7
    loss = nn.functional.mse_loss(model(x), y) + 0.1 * penalty
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(f"{loss.item():.8f} {penalty.item():.8f}")
H = hessian(lambda v: model(v).sum(), x[:2])
print(tuple(H.shape), f"{H.abs().sum().item():.8f}")
