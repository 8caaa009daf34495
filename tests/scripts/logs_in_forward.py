"""A log line in forward that tells shapes and numbers of the batch."""

import logging
import sys

import torch
from torch import nn

logging.basicConfig(stream=sys.stdout, level=logging.INFO, format="%(levelname)s %(message)s")
log = logging.getLogger("net")
torch.manual_seed(0)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.last, self.steps = nn.Linear(6, 8), nn.Linear(8, 1), 0

    def forward(self, x):
        h = torch.relu(self.first(x))
        if self.steps < 2:
            log.info("hidden %s", tuple(h.shape))
        self.steps += 1
        log.debug("never seen %d", len(h))
        return self.last(h)


net = Net()
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
for step in range(4):
    loss = net(torch.randn(12, 6)).pow(2).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    log.info("step %d: %.6f", step, loss.item())
