"""torch's default layout for recurrent networks: time first, batch second. The proof finds it."""

import torch
from torch import nn


class Reader(nn.Module):
    def __init__(self):
        super().__init__()
        self.rnn, self.out = nn.LSTM(4, 8), nn.Linear(8, 1)

    def forward(self, x):
        return self.out(self.rnn(x)[0])


torch.manual_seed(63)
x = torch.randn(6, 15, 4)
y = x.cumsum(0).sum(2, keepdim=True).tanh()
model = Reader()
optimizer = torch.optim.SGD(model.parameters(), lr=0.2)
for step in range(10):
    out = model(x)
    loss = nn.functional.mse_loss(out, y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(f"{step} {loss.item():.8f} {out[-1].mean().item():.8f}")
