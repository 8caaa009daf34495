# framework: torch.amp
# package: torch
# program: `autocast` in bfloat16, `GradScaler`, `unscale_` and clipping
import torch
from torch import nn

torch.manual_seed(0)
use_cuda = torch.cuda.is_available()
device = "cuda" if use_cuda else "cpu"
net = nn.Sequential(nn.Linear(20, 64), nn.ReLU(), nn.Linear(64, 1)).to(device)
opt = torch.optim.SGD(net.parameters(), lr=0.01)
scaler = torch.amp.GradScaler(device, init_scale=2.0**12, growth_interval=4)
x = torch.randn(128, 20)
y = x[:, :4].sum(1, keepdim=True)
for epoch in range(2):
    for i in range(0, 128, 32):
        with torch.autocast(device_type=device, dtype=torch.bfloat16, enabled=False):
            loss = nn.functional.mse_loss(net(x[i : i + 32].to(device)), y[i : i + 32].to(device))
        scaler.scale(loss).backward()
        scaler.unscale_(opt)
        norm = torch.nn.utils.clip_grad_norm_(net.parameters(), max_norm=1.0)
        scaler.step(opt)
        scaler.update()
        opt.zero_grad(set_to_none=True)
        print(f"{epoch} {i} loss {loss.item():.6f} norm {norm.item():.6f} scale {scaler.get_scale():.1f}")
with torch.autocast(device_type=device, dtype=torch.bfloat16):
    print(f"bf16 {net(x).float().mean().item():.3f}")
