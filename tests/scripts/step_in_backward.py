"""The optimizer steps inside the backward, parameter by parameter (register_post_accumulate_grad_hook)."""

# test: right-or-refused=parameters are updated before workers' parts are added up
import torch
from torch import nn

torch.manual_seed(132)
x = torch.randn(24, 5)
y = x.pow(2).sum(1, keepdim=True)
model = nn.Sequential(nn.Linear(5, 10), nn.ReLU(), nn.Linear(10, 1))
optimizers = {p: torch.optim.SGD([p], lr=0.05) for p in model.parameters()}


def step(p):
    optimizers[p].step()
    optimizers[p].zero_grad()


for p in model.parameters():
    p.register_post_accumulate_grad_hook(step)
for i in range(8):
    loss = nn.functional.mse_loss(model(x), y)
    loss.backward()
    print(f"{loss.item():.8f}")
