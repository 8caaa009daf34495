# framework: torch.func
# package: torch
# program: a loop with a model, and `functional_call` with changed weights (a MAML inner step)
import torch
import torch.nn.functional as F
from torch import nn
from torch.func import functional_call

torch.manual_seed(1)
model = nn.Sequential(nn.Linear(1, 24), nn.ReLU(), nn.Linear(24, 1))
meta = torch.optim.SGD(model.parameters(), lr=0.02)
for step in range(6):
    meta.zero_grad()
    total = 0.0
    for task in range(3):
        amplitude, phase = torch.rand(1) * 4 + 1, torch.rand(1) * 3
        xs, xq = torch.rand(10, 1) * 10 - 5, torch.rand(12, 1) * 10 - 5
        ys, yq = amplitude * torch.sin(xs + phase), amplitude * torch.sin(xq + phase)
        fast = dict(model.named_parameters())
        inner = F.mse_loss(functional_call(model, fast, xs), ys)
        grads = torch.autograd.grad(inner, fast.values(), create_graph=True)
        fast = {k: p - 0.01 * g for (k, p), g in zip(fast.items(), grads)}
        loss = F.mse_loss(functional_call(model, fast, (xq,)), yq)
        loss.backward()
        total += loss.item()
    meta.step()
    print(f"meta step {step}: {total / 3:.6f}")
