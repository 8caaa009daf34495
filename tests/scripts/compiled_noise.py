"""A compiled model that draws in several ways; the last batch is smaller, and evaluation draws nothing."""

# test: slow=compiles C++
import torch
import torch.nn.functional as F
from torch import nn

torch.manual_seed(12)
device = "cuda" if torch.cuda.is_available() else "cpu"


class Noisy(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Linear(6, 10), nn.Linear(10, 2)

    def forward(self, x):
        x = F.dropout(torch.tanh(self.a(x)), 0.3, self.training)
        if self.training:
            x = x + 0.1 * torch.randn_like(x) + 0.1 * torch.rand(len(x), 1, device=x.device)
            x = x * torch.bernoulli(torch.full_like(x, 0.9))
        return self.b(x)


raw = Noisy().to(device)
model = torch.compile(raw)
optimizer = torch.optim.SGD(raw.parameters(), lr=0.1)
x = torch.randn(25, 6, device=device)
y = x[:, :2].sin()
for epoch in range(3):
    for rows in torch.randperm(25).split(10):
        loss = F.mse_loss(model(x[rows]), y[rows])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        print(f"{loss.item():.7f}")
    raw.eval()
    with torch.no_grad():
        print(f"eval {F.mse_loss(model(x), y).item():.7f}")
    raw.train()
