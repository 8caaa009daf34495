"""The model returns a Python number next to its logits: a slice's number isn't the batch's."""

# test: right-or-refused=an output that is no tensor
import torch
from torch import nn


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Linear(5, 8), nn.Linear(8, 1)

    def forward(self, x):
        h = torch.relu(self.a(x))
        return self.b(h), (h == 0).float().mean().item()


torch.manual_seed(151)
x = torch.randn(21, 5)
y = x.sum(1, keepdim=True)
model = Net()
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
for step in range(6):
    out, dead = model(x)
    loss = nn.functional.mse_loss(out, y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(f"{loss.item():.7f} dead {dead:.7f}")
