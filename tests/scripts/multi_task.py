"""Multi-task: uncertainty weights as bare parameters beside the model, heads called from the loop."""

import torch
from torch import nn

torch.manual_seed(79)
x = torch.randn(24, 6)
targets = {"sum": x.sum(1), "max": x.max(1).values, "std": x.std(1)}
trunk = nn.Sequential(nn.Linear(6, 16), nn.ReLU())
heads = nn.ModuleDict({name: nn.Linear(16, 1) for name in targets})
log_var = {name: nn.Parameter(torch.zeros(())) for name in targets}
optimizer = torch.optim.SGD([*trunk.parameters(), *heads.parameters(), *log_var.values()], lr=0.05)
for epoch in range(5):
    for rows in torch.randperm(24).split(7):
        features = trunk(x[rows])
        losses = {n: nn.functional.mse_loss(h(features)[:, 0], targets[n][rows]) for n, h in heads.items()}
        loss = sum(torch.exp(-log_var[n]) * v + log_var[n] for n, v in losses.items())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    print(epoch, {n: round(v.item(), 8) for n, v in losses.items()}, [round(p.item(), 8) for p in log_var.values()])
