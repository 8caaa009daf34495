"""The model prints in one of its calls only, which is not compared with its proof: a notice says whose shapes these
are."""

# test: noticed=printed inside this call
# test: workers=2
import torch
from torch import nn


class Chatty(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(4, 1)

    def forward(self, x, step):
        h = self.fc(x)
        if step in (3.0, 5.0):
            print("step", step, tuple(h.shape))
        return h


torch.manual_seed(247)
net = Chatty()
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
for step in range(8):
    x = torch.randn(12, 4)
    loss = (net(x, step + 0.0) - x.sum(1, keepdim=True)).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(f"{loss.item():.8f}")
