"""The model prints and logs in some of its calls only: shapes are those of the whole batch."""

# test: workers=2,3
import logging

import torch
from torch import nn

logging.basicConfig(format="%(message)s", level=logging.INFO)


class Chatty(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(4, 1)
        self.register_buffer("calls", torch.zeros((), dtype=torch.int64))

    def forward(self, x):
        if self.training:
            self.calls += 1
        h = self.fc(x)
        if self.calls in (3, 5, 6):
            print("call", int(self.calls), tuple(h.shape), f"{h.mean().item():.6f}")
            logging.getLogger("model").info("%s rows", len(x))
        return h


torch.manual_seed(246)
net = Chatty()
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
for _ in range(8):
    x = torch.randn(12, 4)
    loss = (net(x) - x.sum(1, keepdim=True)).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(f"{loss.item():.8f}")
