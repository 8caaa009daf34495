"""atexit handlers, a final sys.exit(0), a summary written at the end."""

import atexit
import sys

import torch
from torch import nn

history = []


@atexit.register
def goodbye():
    with open("summary.txt", "w") as f:
        f.write(" ".join(f"{v:.8f}" for v in history))
    print(f"bye after {len(history)} steps, last {history[-1]:.8f}")


def main():
    torch.manual_seed(223)
    x = torch.randn(16, 4)
    y = x.sum(1, keepdim=True)
    model = nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(5):
        loss = nn.functional.mse_loss(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        history.append(loss.item())
    return 0


if __name__ == "__main__":
    sys.exit(main())
