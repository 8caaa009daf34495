# framework: wandb
# program: offline run, `wandb.config`, `watch`, `log` of losses and a histogram, summary
import torch
import wandb
from torch import nn

torch.manual_seed(6)
run = wandb.init(project="demo", mode="offline", config={"lr": 0.05, "epochs": 3})
config = wandb.config
model = nn.Sequential(nn.Linear(4, 16), nn.ReLU(), nn.Linear(16, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=config.lr)
x = torch.randn(48, 4)
y = x.sum(1, keepdim=True)
loader = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(x, y), batch_size=12, shuffle=True)
for epoch in range(config.epochs):
    for bx, by in loader:
        out = model(bx)
        loss = ((out - by) ** 2).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        wandb.log({"loss": loss.item(), "out": wandb.Histogram(out.detach().numpy())})
    print(f"epoch {epoch} {loss.item():.6f}")
run.summary["final"] = loss.item()
print(f"summary {run.summary['final']:.6f}")
wandb.finish()
