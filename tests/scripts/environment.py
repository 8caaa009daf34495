"""Asks whether it is distributed, as portable scripts do; it isn't."""

# test: workers=2
import torch
import torch.distributed as dist
from torch import nn

is_main = not dist.is_available() or not dist.is_initialized() or dist.get_rank() == 0
print("distributed:", dist.is_available() and dist.is_initialized(), "main:", is_main)
device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
torch.manual_seed(247)
torch.cuda.manual_seed_all(247)
torch.backends.cudnn.benchmark = True
model = nn.Linear(4, 1).to(device)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
x = torch.randn(14, 4, device=device)
for step in range(4):
    loss = nn.functional.mse_loss(model(x.to(device, non_blocking=True)), x.sum(1, keepdim=True))
    optimizer.zero_grad(set_to_none=True)
    loss.backward()
    optimizer.step()
    if is_main:
        print(f"{loss.item():.8f}")
