"""Hooks on the outermost module, on its inputs and outputs: they may see a slice."""

# test: noticed=hooks on Sequential
import torch
from torch import nn

torch.manual_seed(155)
model = nn.Sequential(nn.Linear(5, 10), nn.Tanh(), nn.Linear(10, 1))
log = {}
model.register_forward_pre_hook(lambda m, args: log.update(rows=len(args[0]), mean=args[0].mean().item()))
model.register_forward_hook(lambda m, args, out: log.update(out=out.abs().mean().item()))
x = torch.randn(17, 5) * torch.linspace(0.1, 2, 17)[:, None]
y = x.sum(1, keepdim=True)
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
for step in range(5):
    loss = nn.functional.mse_loss(model(x), y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(f"{loss.item():.7f} rows {log['rows']} in {log['mean']:.7f} out {log['out']:.7f}")
