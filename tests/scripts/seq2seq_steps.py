"""An encoder called once and a decoder cell called once per output step, feeding on its own output."""

import torch
from torch import nn


class Encoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.rnn = nn.GRU(3, 8, batch_first=True)

    def forward(self, x):
        return self.rnn(x)[0][:, -1]


class Step(nn.Module):
    def __init__(self):
        super().__init__()
        self.cell, self.out = nn.GRUCell(3, 8), nn.Linear(8, 3)

    def forward(self, token, state):
        state = self.cell(token, state)
        return self.out(state), state


torch.manual_seed(48)
source = torch.randn(14, 5, 3)
target = source.flip(1)
encoder, step = Encoder(), Step()
optimizer = torch.optim.SGD([*encoder.parameters(), *step.parameters()], lr=0.2)
for epoch in range(6):
    state, token, losses = encoder(source), torch.zeros(14, 3), []
    for t in range(5):
        token, state = step(token, state)
        losses.append(nn.functional.mse_loss(token, target[:, t]))
    loss = torch.stack(losses).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(f"loss {loss.item():.8f} grad {encoder.rnn.weight_hh_l0.grad.norm().item():.8f}")
