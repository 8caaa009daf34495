"""Parameters of a module that is never called: F.linear on its weights."""

# test: right-or-refused=no module is called, so there is nothing to split
import torch
import torch.nn.functional as F
from torch import nn


class Store(nn.Module):
    def __init__(self):
        super().__init__()
        self.w = nn.ParameterList([torch.randn(8, 5) * 0.4, torch.randn(1, 8) * 0.4])


torch.manual_seed(66)
store = Store()
optimizer = torch.optim.SGD(store.parameters(), lr=0.1)
x = torch.randn(20, 5)
y = x.prod(1, keepdim=True)
for step in range(10):
    loss = F.mse_loss(F.linear(torch.tanh(F.linear(x, store.w[0])), store.w[1]), y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(f"{loss.item():.8f}")
