# framework: wandb
# program: `wandb.watch` (hooks on the model's layers), offline
import torch
import wandb
from torch import nn

torch.manual_seed(6)
run = wandb.init(project="demo", mode="offline")
model = nn.Sequential(nn.Linear(4, 16), nn.ReLU(), nn.Linear(16, 1))
wandb.watch(model, log="all", log_freq=2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
for step in range(6):
    x = torch.randn(12, 4)
    loss = ((model(x) - x.sum(1, keepdim=True)) ** 2).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    run.log({"loss": loss.item()})
    print(f"step {step} {loss.item():.6f}")
run.finish()
