"""Mixed-precision boilerplate on a machine without a GPU: GradScaler disabled, then enabled on the CPU."""

# test: views=batch,slice
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(210)
x = torch.randn(28, 5)
loader = DataLoader(TensorDataset(x, x.sum(1, keepdim=True).sin()), batch_size=8, shuffle=True)
for scaler in (torch.amp.GradScaler("cuda", enabled=False), torch.amp.GradScaler("cpu", init_scale=1024.0)):
    model = nn.Sequential(nn.Linear(5, 10), nn.Tanh(), nn.Linear(10, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for epoch in range(2):
        for a, b in loader:
            optimizer.zero_grad()
            with torch.autocast("cpu", enabled=False):
                loss = nn.functional.mse_loss(model(a), b)
            scaler.scale(loss).backward()
            scaler.unscale_(optimizer)
            norm = nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            scaler.step(optimizer)
            scaler.update()
            print(f"{loss.item():.8f} {norm.item():.8f} {scaler.get_scale()}")
