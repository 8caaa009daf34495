# framework: torchdiffeq
# program: a neural ODE on spirals: `odeint_adjoint` with dopri5, and fixed steps of rk4
import torch
from torch import nn
from torchdiffeq import odeint, odeint_adjoint

torch.manual_seed(0)
true_a = torch.tensor([[-0.1, 2.0], [-2.0, -0.1]])
t = torch.linspace(0, 3, 60)
with torch.no_grad():
    true_y = odeint(lambda t, y: (y**3) @ true_a, torch.tensor([[2.0, 0.0]]), t, method="dopri5")


class Func(nn.Module):
    def __init__(self):
        super().__init__()
        self.net, self.calls = nn.Sequential(nn.Linear(2, 16), nn.Tanh(), nn.Linear(16, 2)), 0

    def forward(self, t, y):
        self.calls += 1
        return self.net(y**3)


def get_batch(size=16, length=6):
    s = torch.randperm(60 - length)[:size]
    return true_y[s], t[:length], torch.stack([true_y[s + i] for i in range(length)])


for name, solve, options in (
    ("adjoint", odeint_adjoint, {"rtol": 1e-4, "atol": 1e-5}),
    ("rk4", odeint, {"method": "rk4"}),
):
    torch.manual_seed(1)
    func = Func()
    optimizer = torch.optim.RMSprop(func.parameters(), lr=1e-3)
    for step in range(6):
        y0, times, y = get_batch()
        optimizer.zero_grad()
        pred = solve(func, y0, times, **options)
        loss = (pred - y).abs().mean()
        loss.backward()
        optimizer.step()
        print(name, step, f"{loss.item():.6f}", func.calls)
