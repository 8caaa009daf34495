"""A selection that is empty in some steps: the model is called with no rows."""

# test: workers=2,3
import torch
from torch import nn

torch.manual_seed(264)
x = torch.randn(24, 4)
y = x.sum(1, keepdim=True)
model = nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(6):
    rows = x[:, 0] > (99 if step % 3 == 1 else 0.5 * step - 1)
    out = model(x[rows])
    loss = (out - y[rows]).pow(2).sum() / 24 + 0.01 * model[0].weight.pow(2).sum()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(f"{tuple(out.shape)} {loss.item():.8f}")
