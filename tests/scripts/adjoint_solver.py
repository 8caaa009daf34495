"""A neural ODE by hand: adaptive steps forward, the adjoint solved backward with adaptive steps, outside any module."""

import torch
from torch import nn


def solve(f, y, t0, t1):
    t, h = t0, (t1 - t0) / 8
    while abs(t1 - t) > 1e-9:
        h = min(h, t1 - t, key=abs)
        k1 = f(t, y)
        k2 = f(t + h, tuple(a + h * b for a, b in zip(y, k1)))
        error = sum(((h / 2 * (b - a)) ** 2).sum() for a, b in zip(k1, k2)).sqrt().item()
        size = sum((a**2).sum() for a in y).sqrt().item()
        if error <= 1e-3 * (1 + size):
            t, y = t + h, tuple(a + h / 2 * (b + c) for a, b, c in zip(y, k1, k2))
        h = 0.9 * h * min(2.0, max(0.3, (1e-3 * (1 + size) / (error + 1e-12)) ** 0.5))
    return y


class Adjoint(torch.autograd.Function):
    @staticmethod
    def forward(ctx, func, y, *parameters):
        ctx.func, ctx.parameters = func, parameters
        with torch.no_grad():
            (end,) = solve(lambda t, s: (func(t, s[0]),), (y,), 0.0, 1.0)
        ctx.save_for_backward(end)
        return end

    @staticmethod
    def backward(ctx, grad):
        func, parameters = ctx.func, ctx.parameters
        (end,) = ctx.saved_tensors

        def augmented(t, state):
            y, a = state[0], state[1]
            with torch.enable_grad():
                y = y.detach().requires_grad_()
                out = func(t, y)
                found = torch.autograd.grad(out, (y, *parameters), -a)
            return (out.detach(), *found)

        state = (end, grad, *(torch.zeros_like(p) for p in parameters))
        state = solve(augmented, state, 1.0, 0.0)
        return (None, state[1], *state[2:])


class Field(nn.Module):
    def __init__(self):
        super().__init__()
        self.net, self.calls = nn.Sequential(nn.Linear(3, 16), nn.Tanh(), nn.Linear(16, 2)), 0

    def forward(self, t, y):
        self.calls += 1
        return self.net(torch.cat([y, torch.full_like(y[:, :1], t)], 1))


torch.manual_seed(503)
x = torch.randn(20, 2)
y = x @ torch.tensor([[0.0, 1.0], [-1.0, 0.0]])
field = Field()
optimizer = torch.optim.SGD(field.parameters(), lr=0.3)
for step in range(6):
    loss = nn.functional.mse_loss(Adjoint.apply(field, x, *field.parameters()), y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(f"{step} {loss.item():.8f} {field.calls}")
