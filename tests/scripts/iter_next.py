"""A loader driven by hand with iter() and next(), restarted at StopIteration; one batch taken just to look at it."""

# test: views=batch,slice
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(27)
x = torch.randn(34, 5)
loader = DataLoader(TensorDataset(x, x.pow(2).sum(1)), batch_size=8, shuffle=True)
sample, _ = next(iter(loader))
print("features", sample.shape[1])
model = nn.Sequential(nn.Linear(5, 12), nn.ReLU(), nn.Linear(12, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
batches = iter(loader)
for step in range(14):
    try:
        a, b = next(batches)
    except StopIteration:
        batches = iter(loader)
        a, b = next(batches)
    loss = nn.functional.mse_loss(model(a).squeeze(-1), b)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(f"step {step} loss {loss.item():.7f}")
