"""A recurrent cell stepped from the loop; the state is [batch, width] and carried over, detached."""

import torch
from torch import nn

torch.manual_seed(144)
cell, out = nn.RNNCell(3, 7), nn.Linear(7, 1)
optimizer = torch.optim.SGD([*cell.parameters(), *out.parameters()], lr=0.1)
x = torch.randn(11, 24, 3)
y = x.sum(2).cumsum(1).tanh()
state = torch.zeros(11, 7)
for start in range(0, 24, 6):
    state, loss = state.detach(), 0.0
    for t in range(start, start + 6):
        state = cell(x[:, t], state)
        loss = loss + nn.functional.mse_loss(out(state)[:, 0], y[:, t])
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(f"{loss.item():.8f} {state.abs().mean().item():.8f}")
