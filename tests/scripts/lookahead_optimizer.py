"""Lookahead around SGD, an optimizer whose step calls another's step; one that keeps no param_groups; detach_ of grads."""

import torch
from torch import nn


class Lookahead(torch.optim.Optimizer):
    def __init__(self, optimizer, k=3, alpha=0.5):
        self.optimizer, self.k, self.alpha, self.count = optimizer, k, alpha, 0
        self.param_groups, self.state, self.defaults = optimizer.param_groups, optimizer.state, optimizer.defaults
        self.slow = [[p.detach().clone() for p in g["params"]] for g in self.param_groups]

    def zero_grad(self, set_to_none=True):
        self.optimizer.zero_grad(set_to_none)

    def step(self, closure=None):
        loss = self.optimizer.step(closure)
        self.count += 1
        if self.count % self.k == 0:
            for group, slow in zip(self.param_groups, self.slow):
                for p, q in zip(group["params"], slow):
                    q.add_(p.data - q, alpha=self.alpha)
                    p.data.copy_(q)
        return loss


class Both(torch.optim.Optimizer):
    def __init__(self, params, lr):
        params = list(params)
        super().__init__(params, dict(lr=lr))
        self.inner = [torch.optim.SGD(params[:2], lr=lr), torch.optim.Adam(params[2:], lr=lr / 10)]

    def step(self, closure=None):
        loss = None if closure is None else closure()
        for optimizer in self.inner:
            optimizer.step()
        return loss


class OptimWrapper:
    def __init__(self, optimizer):
        self.opt = optimizer

    def step(self):
        self.opt.step()

    def zero_grad(self):
        for group in self.opt.param_groups:
            for p in group["params"]:
                if p.grad is not None:
                    p.grad.detach_()
                    p.grad.zero_()


torch.manual_seed(502)
x = torch.randn(28, 4)
y = x.norm(dim=1, keepdim=True)
for make in (
    lambda p: Lookahead(torch.optim.SGD(p, lr=0.1)),
    lambda p: Both(p, lr=0.1),
    lambda p: OptimWrapper(torch.optim.SGD(p, lr=0.1, momentum=0.9)),
):
    model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1))
    optimizer = make(list(model.parameters()))
    for step in range(7):
        for half in (slice(0, 13), slice(13, 28)):
            loss = nn.functional.mse_loss(model(x[half]), y[half])
            loss.backward()
            for p in model.parameters():
                p.grad.detach_()
        optimizer.step()
        optimizer.zero_grad()
        print(f"{type(optimizer).__name__} {step} {loss.item():.8f} {model[0].weight.sum().item():.8f}")
