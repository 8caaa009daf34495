# framework: torch.optim.swa_utils
# package: torch
# program: `AveragedModel` as EMA and as SWA, `SWALR`, `update_bn`, evaluation of the averages
import torch
from torch import nn
from torch.optim.swa_utils import SWALR, AveragedModel, get_ema_multi_avg_fn, update_bn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(3)
x = torch.randn(120, 12)
y = x[:, :1] ** 2 - x[:, 1:2]
loader = DataLoader(TensorDataset(x, y), batch_size=20, shuffle=True)
model = nn.Sequential(nn.Linear(12, 32), nn.BatchNorm1d(32), nn.ReLU(), nn.Dropout(0.1), nn.Linear(32, 1))
ema = AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(0.95), use_buffers=True)
swa_model = AveragedModel(model)
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=10)
swa_scheduler = SWALR(optimizer, swa_lr=0.02, anneal_epochs=2)
loss_fn = nn.MSELoss()
for epoch in range(6):
    model.train()
    for inputs, target in loader:
        optimizer.zero_grad()
        loss = loss_fn(model(inputs), target)
        loss.backward()
        optimizer.step()
        ema.update_parameters(model)
    if epoch > 2:
        swa_model.update_parameters(model)
        swa_scheduler.step()
    else:
        scheduler.step()
    ema.eval()
    with torch.no_grad():
        print(f"{epoch} train {loss.item():.6f} ema {loss_fn(ema(x), y).item():.6f}")
update_bn(loader, swa_model)
swa_model.eval()
with torch.no_grad():
    preds = swa_model(x)
print(f"swa {loss_fn(preds, y).item():.6f} {preds.mean().item():.6f} averaged {swa_model.n_averaged.item()}")
