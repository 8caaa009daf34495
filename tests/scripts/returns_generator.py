"""forward is a generator: what it computes happens after the call has returned."""

# test: right-or-refused=work that is done after the call
# test: workers=2
import torch
from torch import nn


class Stages(nn.Module):
    def __init__(self):
        super().__init__()
        self.blocks = nn.ModuleList(nn.Linear(4, 4) for _ in range(3))

    def forward(self, x):
        for block in self.blocks:
            x = torch.tanh(block(x))
            yield x


torch.manual_seed(258)
x = torch.randn(12, 4)
model = Stages()
optimizer = torch.optim.SGD(model.parameters(), lr=0.2)
for step in range(5):
    loss = sum((h - x).pow(2).mean() for h in model(x))
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(f"{loss.item():.8f}")
