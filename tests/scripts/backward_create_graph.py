"""loss.backward(create_graph=True), then a second backward through p.grad (a Hessian-vector product)."""

# test: right-or-refused=the gradient of a gradient of parameters
import torch
from torch import nn

torch.manual_seed(167)
torch.set_default_dtype(torch.float64)
x = torch.randn(13, 3)
y = x.prod(1, keepdim=True)
model = nn.Sequential(nn.Linear(3, 6), nn.Tanh(), nn.Linear(6, 1))
params = list(model.parameters())
for step in range(5):
    loss = nn.functional.mse_loss(model(x), y)
    grads = torch.autograd.grad(loss, params, create_graph=True)
    direction = [torch.ones_like(g) for g in grads]
    hvp = torch.autograd.grad(grads, params, grad_outputs=direction)
    with torch.no_grad():
        for p, g in zip(params, grads):
            p -= 0.1 * g
    print(f"{loss.item():.10f} {sum(h.sum() for h in hvp).item():.9f}")
