"""Skips batches that hold a row which the model does not take; batch norm comes after the check."""

# test: views=batch
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


class Checked(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Tanh(), nn.Linear(8, 1))
        self.checked = 0

    def forward(self, x):
        if not torch.isfinite(x).all():
            raise ValueError("an input is not finite")
        self.checked += 1
        return self.net(x)


torch.manual_seed(0)
torch.set_default_dtype(torch.float64)
x = torch.randn(72, 4)
y = x.sum(1, keepdim=True)
x[2, 1] = x[37, 0] = x[63, 3] = float("nan")
model = Checked()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for epoch in range(3):
    total, batches = 0.0, 0
    for a, b in DataLoader(TensorDataset(x, y), batch_size=8):
        try:
            out = model(a)
        except (RuntimeError, ValueError) as error:
            print("skipped:", error)
            continue
        loss = nn.functional.mse_loss(out, b)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        total, batches = total + loss.item(), batches + 1
    print(f"epoch {epoch}: loss {total:.6f} over {batches} batches, {model.checked} calls")
model.eval()
print(f"{model(x.nan_to_num()).mean().item():.8f}")
