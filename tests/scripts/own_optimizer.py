"""An optimizer class of one's own, derived from torch's; and another that isn't."""

import torch
from torch import nn


class SignMomentum(torch.optim.Optimizer):
    def __init__(self, params, lr):
        super().__init__(params, dict(lr=lr))

    @torch.no_grad()
    def step(self):
        for group in self.param_groups:
            for p in group["params"]:
                if p.grad is None:
                    continue
                m = self.state[p].setdefault("m", torch.zeros_like(p))
                m.mul_(0.9).add_(p.grad)
                p.add_(m / (m.norm() + 1e-3), alpha=-group["lr"])


class Plain:
    def __init__(self, params, lr):
        self.params, self.lr = list(params), lr

    def zero_grad(self):
        for p in self.params:
            p.grad = None

    def step(self):
        for p in self.params:
            p.data = p.data - self.lr * p.grad


torch.manual_seed(98)
x = torch.randn(26, 4)
y = x.norm(dim=1, keepdim=True)
for make in (SignMomentum, Plain):
    model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 1))
    optimizer = make(model.parameters(), lr=0.05)
    for step in range(8):
        loss = nn.functional.mse_loss(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        print(make.__name__, f"{loss.item():.8f}")
