"""Adam with amsgrad; its state is looked into, and reset half-way."""

import torch
from torch import nn

torch.manual_seed(95)
x = torch.randn(22, 6)
y = x.abs().mean(1, keepdim=True)
model = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 1))
optimizer = torch.optim.Adam(model.parameters(), lr=0.01, amsgrad=True)
for step in range(12):
    loss = nn.functional.mse_loss(model(x), y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    state = optimizer.state[model[0].weight]
    print(
        f"{loss.item():.8f} m {state['exp_avg'].norm().item():.8f} v {state['exp_avg_sq'].sum().item():.10f} t {int(state['step'])}"
    )
    if step == 5:
        optimizer = torch.optim.Adam(model.parameters(), lr=0.02)
