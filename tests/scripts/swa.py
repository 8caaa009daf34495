"""torch.optim.swa_utils: averaged model, SWALR, update_bn over a loader."""

import torch
from torch import nn
from torch.optim.swa_utils import SWALR, AveragedModel, update_bn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(117)
x = torch.randn(36, 5)
y = x.sum(1, keepdim=True).sin()
loader = DataLoader(TensorDataset(x, y), batch_size=9, shuffle=True)
model = nn.Sequential(nn.Linear(5, 12), nn.BatchNorm1d(12), nn.Tanh(), nn.Linear(12, 1))
averaged = AveragedModel(model)
optimizer = torch.optim.SGD(model.parameters(), lr=0.2)
scheduler = SWALR(optimizer, swa_lr=0.05, anneal_epochs=2)
for epoch in range(4):
    for a, b in loader:
        loss = nn.functional.mse_loss(model(a), b)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    averaged.update_parameters(model)
    scheduler.step()
    print(f"{epoch} {loss.item():.8f}")
update_bn(loader, averaged)
averaged.eval()
with torch.no_grad():
    print(
        f"averaged {nn.functional.mse_loss(averaged(x), y).item():.8f} {averaged.module[1].running_var.sum().item():.8f}"
    )
