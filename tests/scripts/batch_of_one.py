"""Pure stochastic gradient descent: one sample a step."""

# test: views=batch,slice
import torch
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(3)
x = torch.randn(12, 5)
y = x.sum(1, keepdim=True)
model = torch.nn.Linear(5, 1)
sgd = torch.optim.SGD(model.parameters(), lr=0.05)
for epoch in range(3):
    for xi, yi in DataLoader(TensorDataset(x, y), shuffle=True):
        loss = (model(xi) - yi).pow(2).mean()
        sgd.zero_grad()
        loss.backward()
        sgd.step()
        print(f"loss={loss.item():.9f}")
print(model.weight.tolist(), model.bias.item())
