"""A module that takes no tensor at all beside one that does: its output must count once."""

import torch
from torch import nn


class Prompt(nn.Module):
    def __init__(self):
        super().__init__()
        self.table = nn.Parameter(torch.randn(1, 4) * 0.1)

    def forward(self, rows):
        return self.table.tanh().expand(rows, -1)


torch.manual_seed(160)
prompt, model = Prompt(), nn.Sequential(nn.Linear(8, 10), nn.Tanh(), nn.Linear(10, 1))
optimizer = torch.optim.SGD([*prompt.parameters(), *model.parameters()], lr=0.2)
x = torch.randn(19, 4)
y = x.sum(1, keepdim=True).sin()
for step in range(8):
    loss = nn.functional.mse_loss(model(torch.cat([prompt(19), x], 1)), y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(f"{loss.item():.8f} prompt {prompt.table.norm().item():.8f} grad {prompt.table.grad.norm().item():.8f}")
