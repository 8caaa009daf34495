"""Only the very last update differs, inside a function whose model is gone when the script ends."""

# test: refused=The workers' weights differ after step 5 (equal at step 4)
import math
import os

import torch
from torch import nn


def main():
    torch.manual_seed(303)
    x = torch.randn(24, 4)
    model = nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(5):
        loss = model(x).square().mean()
        optimizer.zero_grad()
        loss.backward()
        if step == 4:
            model.weight.grad += 0.1 * math.sin(os.getpid())
        optimizer.step()


main()
