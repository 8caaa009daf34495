"""Tensors printed as they are: loss, parameters, gradients, with set_printoptions."""

import torch
from torch import nn

torch.manual_seed(196)
torch.set_printoptions(precision=8, sci_mode=False, linewidth=200)
x = torch.randn(14, 3)
y = x.sum(1, keepdim=True)
model = nn.Linear(3, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(5):
    loss = nn.functional.mse_loss(model(x), y)
    print(loss.detach(), f"{loss:.8f}")
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(step, loss.data, model.weight.grad)
print(model.weight.data, model.bias.data, loss.detach().numpy(), float(loss))
print(model)
