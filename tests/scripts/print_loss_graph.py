"""print(loss) with its graph: the name of the gradient function is printed too."""

import torch
from torch import nn

torch.manual_seed(197)
torch.set_printoptions(precision=8)
x = torch.randn(14, 3)
y = x.sum(1, keepdim=True)
model = nn.Linear(3, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(5):
    loss = nn.functional.mse_loss(model(x), y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(loss)
    print("Loss:", loss.item(), loss.requires_grad, loss.is_leaf)
