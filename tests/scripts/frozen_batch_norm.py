"""Fine-tuning with batch norm kept in eval mode: it doesn't look at the batch, so no option is needed."""

# test: workers=2
import torch
from torch import nn

torch.manual_seed(317)
model = nn.Sequential(nn.Linear(5, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 1))
model[1].running_mean.uniform_(-1, 1)
model[1].running_var.uniform_(0.5, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
x = torch.randn(21, 5)
y = x.sum(1, keepdim=True)
for step in range(6):
    model.train()
    for m in model.modules():
        if isinstance(m, nn.BatchNorm1d):
            m.eval()
    loss = nn.functional.mse_loss(model(x), y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(f"{loss.item():.8f} {model[1].running_mean.sum().item():.8f}")
