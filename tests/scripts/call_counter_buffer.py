"""A buffer that only counts calls, and one that anneals a temperature: equal on every worker."""

import torch
from torch import nn


class Annealed(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("calls", torch.zeros((), dtype=torch.long))
        self.register_buffer("temperature", torch.tensor(2.0))
        self.net = nn.Linear(4, 3)

    def forward(self, x):
        if self.training:
            self.calls += 1
            self.temperature *= 0.9
        return self.net(x) / self.temperature


torch.manual_seed(157)
x = torch.randn(20, 4)
y = x[:, :3].argmax(1)
model = Annealed()
optimizer = torch.optim.SGD(model.parameters(), lr=0.2)
for step in range(8):
    loss = nn.functional.cross_entropy(model(x), y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(f"{loss.item():.8f} calls {model.calls.item()} temperature {model.temperature.item():.7f}")
