"""A forward hook that is set after some steps, and logs a number of the whole batch; then it is removed."""

import torch
from torch import nn

torch.manual_seed(31)
x, y = torch.randn(22, 5), torch.randn(22, 2)
model = nn.Sequential(nn.Linear(5, 7), nn.Tanh(), nn.Linear(7, 2))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
seen = []
for step in range(9):
    rows = slice(step, step + 11)
    if step == 4:
        handle = model[1].register_forward_hook(lambda module, args, output: seen.append(output.detach().sum().item()))
    if step == 7:
        handle.remove()
    loss = nn.functional.mse_loss(model(x[rows]), y[rows])
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(f"{step} {loss.item():.6f} {[round(number, 4) for number in seen]}")
