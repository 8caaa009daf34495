"""Plots the loss curve with matplotlib at the end."""

# test: slow=imports matplotlib
# test: workers=2
import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
import torch
from torch import nn

torch.manual_seed(248)
x = torch.randn(14, 4)
model = nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
losses = []
for step in range(6):
    loss = nn.functional.mse_loss(model(x), x.sum(1, keepdim=True))
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    losses.append(loss.item())
    print(f"{loss.item():.8f}")
plt.plot(losses)
plt.savefig("loss.png")
plt.savefig("loss.pdf")
