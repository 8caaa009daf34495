"""The model keeps its last attention map in an attribute; the loop prints statistics of it."""

# test: right-or-refused=a tensor leaves the model past its outputs
import torch
from torch import nn


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.q, self.k, self.out = nn.Linear(4, 4), nn.Linear(4, 4), nn.Linear(4, 1)

    def forward(self, x):
        self.attention = (self.q(x) @ self.k(x).transpose(1, 2)).softmax(-1)
        return self.out((self.attention @ x).mean(1))


torch.manual_seed(153)
x = torch.randn(14, 5, 4) * torch.linspace(0.2, 3, 14)[:, None, None]
y = x.amax((1, 2))[:, None]
model = Net()
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
for step in range(6):
    loss = nn.functional.mse_loss(model(x), y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(f"{loss.item():.7f} attention {tuple(model.attention.shape)} {model.attention.max().item():.7f}")
