"""SAM as the well-known repository writes it: an optimizer around an optimizer, with a closure, and its two steps."""

import torch
from torch import nn


class SAM(torch.optim.Optimizer):
    def __init__(self, params, base_optimizer, rho=0.05, **kwargs):
        super().__init__(params, dict(rho=rho, **kwargs))
        self.base_optimizer = base_optimizer(self.param_groups, **kwargs)
        self.param_groups = self.base_optimizer.param_groups
        self.defaults.update(self.base_optimizer.defaults)

    @torch.no_grad()
    def first_step(self, zero_grad=False):
        norm = torch.norm(torch.stack([p.grad.norm(p=2) for g in self.param_groups for p in g["params"]]), p=2)
        for group in self.param_groups:
            scale = group["rho"] / (norm + 1e-12)
            for p in group["params"]:
                if p.grad is None:
                    continue
                self.state[p]["old_p"] = p.data.clone()
                p.add_(p.grad * scale.to(p))
        if zero_grad:
            self.zero_grad()

    @torch.no_grad()
    def second_step(self, zero_grad=False):
        for group in self.param_groups:
            for p in group["params"]:
                if p.grad is not None:
                    p.data = self.state[p]["old_p"]
        self.base_optimizer.step()
        if zero_grad:
            self.zero_grad()

    @torch.no_grad()
    def step(self, closure=None):
        closure = torch.enable_grad()(closure)
        self.first_step(zero_grad=True)
        closure()
        self.second_step()

    def load_state_dict(self, state_dict):
        super().load_state_dict(state_dict)
        self.base_optimizer.param_groups = self.param_groups


torch.manual_seed(501)
x = torch.randn(30, 5)
y = (x[:, 0] * x[:, 1] > 0).long()
model = nn.Sequential(nn.Linear(5, 12), nn.Tanh(), nn.Linear(12, 2))
optimizer = SAM(model.parameters(), torch.optim.SGD, lr=0.2, momentum=0.9)
schedule = torch.optim.lr_scheduler.StepLR(optimizer, 3, 0.5)
for step in range(8):
    a, b = x[step % 3 :: 3], y[step % 3 :: 3]

    def closure():
        loss = nn.functional.cross_entropy(model(a), b)
        loss.backward()
        return loss

    loss = closure()
    if step % 2 == 0:
        optimizer.step(closure)
        optimizer.zero_grad()
    else:
        optimizer.first_step(zero_grad=True)
        closure()
        optimizer.second_step(zero_grad=True)
    schedule.step()
    print(f"{step} {loss.item():.8f} {model[0].weight.norm().item():.8f}")
